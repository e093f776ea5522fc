"""The files and the database of a study: shared with other machines, with a full disk, or of another search."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from optuna.storages.journal import JournalFileBackend
from searches import SMALL, SPACE, claimed, in_this_process, pretend, states, work_on

from marl_sb3.errors import ConfigError
from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.tools.tuning.search import Search, read_search
from marl_sb3.tools.tuning.space import parse_space
from marl_sb3.tools.tuning.storage import SafeJournal, open_storage
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trials import run_trial


def test_half_a_line_of_a_killed_writer_does_not_end_the_study(in_tmp: Path) -> None:
    in_this_process(pretend, study="s", trials=1)
    journal = next(in_tmp.glob("runs/tune/arena/s/journal.log"))
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "work')
    study = in_this_process(pretend, study="s", trials=2)
    assert states(study) == ["COMPLETE"] * 2


def test_a_journal_on_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = SafeJournal(tmp_path / "journal.log")
    monkeypatch.setattr(JournalFileBackend, "append_logs", no_space)
    with pytest.raises(OSError, match=r"No space left on device: .*journal\.log"):
        journal.append_logs([])


def test_a_password_is_not_written_down(in_tmp: Path) -> None:
    search = Search("arena", parse_space(SPACE, "space"), "s", storage="postgresql://me:secret@nowhere.invalid/db")
    search.write(in_tmp)
    assert "secret" not in (in_tmp / "study.yaml").read_text()
    assert read_search(in_tmp, storage=search.storage) == search
    with pytest.raises(ConfigError, match=r"is kept in postgresql://me:\*\*\*@nowhere.invalid/db; accepted: --storage"):
        read_search(in_tmp)
    with pytest.raises(ConfigError, match="says that the study is kept in postgresql"):
        read_search(in_tmp, storage="sqlite:///other.db")
    replace(search, storage="sqlite:///study.db?plugin=anything").write(in_tmp)
    with pytest.raises(ConfigError, match=r"is kept in sqlite.*plugin=anything; accepted: --storage"):
        read_search(in_tmp)


def test_a_study_that_sets_what_new_ones_may_not_goes_on(in_tmp: Path) -> None:
    study = prepare_study(**SMALL, study="s")
    path = study.folder / "study.yaml"
    content = yaml.safe_load(path.read_text())
    content["settings"] |= {"evaluation.duration": 3, "extensions": []}
    content["space"]["evaluation.interval"] = {"choices": [1, 2]}
    shutil.rmtree(study.folder)  # its storage holds the former content
    study.folder.mkdir()
    path.write_text(yaml.safe_dump(content))
    again = prepare_study(study="s")
    assert again.search.settings == content["settings"]
    assert again.search.trial_config({}, 0).evaluation.duration == SMALL["evaluation_episodes"]


# --- Databases -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with Optuna's tables, which take half a second to make; only to copy."""
    path = tmp_path_factory.mktemp("database") / "study.db"
    open_storage(path.parent, f"sqlite:///{path}")
    return path


@pytest.fixture
def storage(in_tmp: Path, empty_database: Path) -> str:
    """The URL of a database of its own."""
    return f"sqlite:///{shutil.copy(empty_database, in_tmp)}"


def of_both(storage: str) -> tuple[TuneStudy, TuneStudy]:
    """A study in the database of two machines."""
    here, there = (prepare_study(**SMALL, study="s", storage=storage, root=root) for root in ("here", "there"))
    return here, there


def test_another_machine_may_take_the_trial_that_was_meant(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = of_both(storage)
    ask, theirs = here.optuna.ask, []

    def too_late() -> Any:
        theirs.append(claimed(there, "there"))  # between our look and our grasp
        return ask()

    monkeypatch.setattr(here.optuna, "ask", too_late)
    ours = claimed(here, "here")
    assert {ours.user_attrs["index"], theirs[0].user_attrs["index"]} == {0, 1}
    run_trial(here, ours, pretend)
    run_trial(there, theirs[0], pretend)
    assert states(here) == ["COMPLETE", "COMPLETE"]


def test_trials_of_workers_elsewhere_are_left_alone(storage: str) -> None:
    here, there = of_both(storage)
    claimed(here, "one")
    there.queue.requeue_dead()
    assert states(here) == ["RUNNING"]
    here.queue.requeue_dead()
    work_on(there, pretend)
    work_on(here, pretend)
    assert states(here) == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
    assert here.best_config() == there.best_config()  # one was trained there, and is put together here
    assert not list(here.folder.glob("trials/*"))
    assert not (here.folder / "journal.log").exists()
    with pytest.raises(ConfigError, match="with a value of iteration"):
        here.best_config("iteration")


def test_a_search_that_is_refused_leaves_nothing_that_stands_in_the_way(storage: str) -> None:
    prepare_study(**SMALL, study="s", storage=storage, root="here")
    with pytest.raises(ConfigError, match="the storage holds a study 's' with another seed; accepted: another"):
        prepare_study(**SMALL, study="s", storage=storage, root="there", seed=1)
    assert prepare_study(**SMALL, study="s", storage=storage, root="there").search.seed == 0
