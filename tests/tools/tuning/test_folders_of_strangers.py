"""Study folders that are damaged, or of strangers: nothing outside them is touched, and nothing hangs."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from odd_files import PUT, in_time, put
from searches import SMALL, claimed

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


# --- Ways to spoil a study: each is given its folder and the one outside ---------------------------------------------

Spoil = Callable[[Path, Path], None]
INNER = "sqlite:///runs/tune/arena/s/study.db"
ENDLESS = "CREATE VIEW version_info AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"


def saying(**content: Any) -> Spoil:
    """Change what `study.yaml` says."""

    def spoil(study: Path, outside: Path) -> None:
        path = study / "study.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **content}))

    return spoil


def kept_in(url: str) -> Spoil:
    """Say that the study is kept in a database."""
    return lambda study, outside: saying(storage=url.format(outside=outside))(study, outside)


def damaged(line: bytes) -> Spoil:
    """Put a line into the journal."""

    def spoil(study: Path, outside: Path) -> None:
        claimed(prepare_study(study="s"), "one")
        journal = study / "journal.log"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join([*lines[:4], line, *lines[5:]]))

    return spoil


def without_storage(study: Path, outside: Path) -> None:
    (study / "trials").mkdir()
    (study / "journal.log").unlink()


def odd_database(kind: str, suffix: str) -> Spoil:
    """Put something odd in the place of a file of a database."""

    def spoil(study: Path, outside: Path) -> None:
        kept_in(INNER)(study, outside)
        put(kind, study / f"study.db{suffix}", outside)

    return spoil


def foreign_database(sql: str | None) -> Spoil:
    """Make a database of a stranger's; None: it is none."""

    def spoil(study: Path, outside: Path) -> None:
        kept_in(INNER)(study, outside)
        if sql is None:
            (study / "study.db").write_text("no database, but long enough to be one" * 10)
        else:
            database = sqlite3.connect(study / "study.db")
            database.execute(sql)
            database.close()

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        *(
            (damaged(line), r"runs/tune/arena/s/journal\.log is damaged: ")
            for line in (b"garbage\n", b'{"op_code": 77}\n', b"[]\n", bytes(range(128, 256)) + b"\n")
        ),
        (without_storage, "has trials that its storage does not know"),
        (saying(space=3), "space is 3; accepted: a mapping"),
        (saying(settings=[1]), r"settings is \[1\]; accepted: a mapping"),
        (saying(seed=-1), "--seed is -1; accepted: an integer of at least 0"),
        (saying(objective=None), "objective is None; accepted: a string"),
        (saying(extra=1), "is not that of a study"),
        *(
            (kept_in(url), r"the study is kept in .*; accepted: --storage with this URL")
            for url in (
                "sqlite:///new.db",
                "sqlite:///outside/new.db",
                "sqlite:///runs/tune/arena/s/../../new.db",
                "sqlite:///{outside}/new.db",
                "sqlite+pysqlite:///runs/tune/arena/s/new.db",
                "sqlite:///file:runs/tune/arena/s/new.db?uri=true",
                "postgresql://nowhere.invalid/db",
            )
        ),
        *(
            (odd_database(kind, suffix), r"cannot open the study in .*: it is a")
            for kind in ("a link to a file", "a link to what is not there", "a pipe")
            for suffix in ("", "-journal", "-wal")
        ),
        (foreign_database(ENDLESS), "cannot be opened: 'version_info' is a view or a trigger; accepted: tables of Op"),
        (foreign_database("CREATE TABLE studies (study_id INTEGER, other TEXT)"), "(is damaged|cannot be opened): "),
        (foreign_database(None), "cannot be opened: .*file is not a database"),
    ],
)
def test_a_spoiled_study_is_refused_in_words(spoil: Spoil, message: str, study: Path, outside: Path) -> None:
    spoil(study, outside)
    with in_time(), pytest.raises(ConfigError, match=message):
        prepare_study(study="s")
    assert not Path("new.db").exists()
