"""Study folders of strangers: nothing outside them is touched, and nothing hangs."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
import yaml
from odd_files import PUT, in_time, put
from searches import SMALL

from marl_sb3.errors import ConfigError
from marl_sb3.tools.tuning.api import prepare_study


@pytest.fixture(scope="module")
def made_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study without trials; only to copy."""
    return prepare_study(**SMALL, study="s", root=tmp_path_factory.mktemp("studies")).folder


@pytest.fixture
def study(made_study: Path, in_tmp: Path) -> Path:
    """The folder of a study to spoil."""
    return Path(shutil.copytree(made_study, in_tmp / "runs/tune/arena/s"))


OF_A_STUDY = [
    *("study.yaml", "journal.log", "journal.log.lock", ".search.lock", "workers", "workers/w.lock"),
    *("trials", "trials/00000", "confirm", "confirm/preset", "confirm/preset/seed-00"),
]


@pytest.mark.parametrize("name", OF_A_STUDY)
def test_a_study_is_not_continued_if_it_would_write_outside_or_wait(name: str, study: Path, outside: Path) -> None:
    for kind in PUT:
        put(kind, study / name, outside)
        with in_time(), pytest.raises(ConfigError, match=r"cannot open the study in .*: it is a"):
            prepare_study(study="s")


def kept_in(url: str, study: Path) -> None:
    """Write into `study.yaml` that the study is kept in a database."""
    path = study / "study.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "storage": url}))


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///new.db",
        "sqlite:///outside/new.db",
        "sqlite:///runs/tune/arena/s/../../new.db",
        "sqlite:///{outside}/new.db",
        "sqlite+pysqlite:///runs/tune/arena/s/new.db",
        "sqlite:///file:runs/tune/arena/s/new.db?uri=true",
        "postgresql://nowhere.invalid/db",
    ],
)
def test_a_database_elsewhere_has_to_be_named_by_the_user(url: str, study: Path, outside: Path) -> None:
    kept_in(url.format(outside=outside), study)
    with in_time(), pytest.raises(ConfigError, match=r"the study is kept in .*; accepted: --storage with this URL"):
        prepare_study(study="s")
    assert not Path("new.db").exists()


INNER = "sqlite:///runs/tune/arena/s/study.db"


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal"])
@pytest.mark.parametrize("kind", ["a link to a file", "a link to what is not there", "a pipe"])
def test_a_database_in_the_folder_is_a_regular_file(kind: str, suffix: str, study: Path, outside: Path) -> None:
    kept_in(INNER, study)
    put(kind, study / f"study.db{suffix}", outside)
    with in_time(), pytest.raises(ConfigError, match=r"cannot open the study in .*: it is a"):
        prepare_study(study="s")


ENDLESS = "CREATE VIEW version_info AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (ENDLESS, "cannot be opened: 'version_info' is a view or a trigger; accepted: tables of Optuna"),
        ("CREATE TABLE studies (study_id INTEGER, other TEXT)", "(is damaged|cannot be opened): "),
        (None, "cannot be opened: .*file is not a database"),
    ],
)
def test_a_foreign_database_is_refused_in_words(sql: str | None, message: str, study: Path, outside: Path) -> None:
    kept_in(INNER, study)
    if sql is None:
        (study / "study.db").write_text("no database, but long enough to be one" * 10)
    else:
        database = sqlite3.connect(study / "study.db")
        database.execute(sql)
        database.close()
    with in_time(), pytest.raises(ConfigError, match=message):
        prepare_study(study="s")
