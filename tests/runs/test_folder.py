"""Which run a path names, and where it stays."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from small_runs import start

import marl_sb3
from marl_sb3 import MultiAgentCallback
from marl_sb3.core.metrics.names import Result
from marl_sb3.errors import CheckpointError, ConfigError, MarlSb3Error
from marl_sb3.runs.folder import RunFolder, find_run, remove_run, require_run
from marl_sb3.runs.settings import load_config


def run(path: str, started_s: int = 0) -> Path:
    folder = Path(path)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("arena: {}\n")
    os.utime(folder / "config.yaml", (started_s, started_s))
    return folder


def test_a_run_folder_is_itself_and_a_folder_of_runs_is_the_newest(in_tmp: Path) -> None:
    old, new = run("runs/arena/b", 10), run("runs/arena/a", 20)
    (in_tmp / "runs" / "arena" / "notes").mkdir()
    assert find_run(old) == old
    assert find_run("runs/arena") == new
    assert run("runs/arena/c", 20) == find_run("runs/arena/")  # of one moment the last by name


def test_only_a_run_of_the_env_is_removed(in_tmp: Path) -> None:
    for free in ("nothing", "empty"):
        require_run(Path(free), "arena")
        Path("empty").mkdir(exist_ok=True)
    remove_run(run("old"), "arena")
    assert not Path("old").exists()
    (run("of another") / "config.yaml").write_text("CartPole-v1: {}")
    Path("notes", "sub").mkdir(parents=True)
    Path("file").touch()
    for other in ("of another", "notes"):
        with pytest.raises(ConfigError, match=f"{other} is in the place of a run of 'arena', and is none, so that it"):
            remove_run(Path(other), "arena")
        assert Path(other).exists()
    with pytest.raises(ConfigError, match="cannot use file: it is a file; accepted: a folder that is no link"):
        remove_run(Path("file"), "arena")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("runs", "it has no config.yaml; there are runs in runs/arena$"),
        ("runs/arena/x/checkpoints", "it is a part of one; did you mean runs/arena/x\\?"),
        ("runs/arena/x/checkpoints/ckpt-000012", "did you mean runs/arena/x with --checkpoint 12\\?"),
        ("runs/arena/x/config.yaml", "it is a part of one; did you mean runs/arena/x\\?"),
        ("arena", "it does not exist; did you mean runs/arena\\?"),
        ("runs/arean", "it does not exist; did you mean runs/arena\\?"),
        ("nowhere/at/all", "it does not exist$"),
        ("file", "it is a file$"),
        ("empty", "it has no config.yaml$"),
    ],
)
def test_what_is_no_run_says_which_may_have_been_meant(in_tmp: Path, path: str, message: str) -> None:
    (run("runs/arena/x") / "checkpoints" / "ckpt-000012").mkdir(parents=True)
    Path("file").touch()
    Path("empty").mkdir()
    with pytest.raises(ConfigError, match=f"^{path} is not a run folder: .*{message}") as caught:
        find_run(path)
    assert caught.value.key == "run"


def test_a_newest_run_without_a_checkpoint_is_passed_over(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, crashed = run("runs/arena/a", 10), run("runs/arena/b", 20)
    (old / "checkpoints" / "ckpt-000003").mkdir(parents=True)
    assert find_run("runs/arena") == old
    assert caplog.messages == [f"{crashed} has no checkpoint; passed over"]


def test_of_runs_without_checkpoints_the_newest_is_named(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    run("runs/arena/a", 10)
    newest = run("runs/arena/b", 20)
    (newest / "checkpoints").touch()  # no folder
    assert find_run("runs/arena") == newest
    assert caplog.messages == []


# --- A folder that does not stay where it was ------------------------------------------------------------------------


def test_an_env_that_changes_the_working_folder_does_not_move_the_run(in_tmp: Path) -> None:
    elsewhere = in_tmp / "elsewhere"
    elsewhere.mkdir()
    settings = {"n_steps": 10, "batch_size": 10, "env.folder": str(elsewhere)}
    trained = marl_sb3.train("crashing_envs:ChangesFolder", timesteps=40, n_envs=2, settings=settings)
    assert trained.folder.parent == in_tmp / "runs/crashing_envs_ChangesFolder"
    assert {"config.yaml", "result.jsonl", "checkpoints", "policies"} <= {
        path.name for path in trained.folder.iterdir()
    }
    assert len(trained.results) == 2
    assert trained.files.shown.parent == Path("runs/crashing_envs_ChangesFolder")
    assert list(elsewhere.iterdir()) == []


class Lose(MultiAgentCallback):
    """Moves or deletes the folder of a run, after an iteration or before it is logged."""

    def __init__(self, folder: Path, how: str, when: str) -> None:
        super().__init__()
        self.folder, self.how, self.when = folder, how, when

    def on_iteration_end(self, result: Result) -> bool:
        self._lose("before it is logged")
        return True

    def on_iteration_logged(self, result: Result) -> None:
        self._lose("after an iteration")

    def _lose(self, when: str) -> None:
        if when == self.when and self.algorithm.iteration == 2:
            shutil.move(self.folder, "moved") if self.how == "moved" else shutil.rmtree(self.folder)


@pytest.mark.parametrize("when", ["before it is logged", "after an iteration"])
@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_folder_that_is_lost_ends_the_training_in_words(how: str, when: str, in_tmp: Path) -> None:
    with pytest.raises(MarlSb3Error) as caught:
        start("run", iterations=6, callback=[Lose(in_tmp / "run", how, when)], settings={"checkpoint_every": 1})
    assert str(caught.value).startswith(
        "the run folder run was moved or deleted while the training ran, which ends here"
    )
    assert not isinstance(caught.value, (ConfigError, CheckpointError))  # the exit code is 1
    assert not (in_tmp / "run").exists()


def test_a_folder_that_took_the_place_of_the_run_is_not_written_to(in_tmp: Path) -> None:
    files = RunFolder.new("arena", "run")
    files.make(load_config("arena"))
    (in_tmp / "run").rename("moved")
    (in_tmp / "run").mkdir()
    with pytest.raises(MarlSb3Error, match="was moved or deleted"):
        files.require_there()
    files.unlock()
