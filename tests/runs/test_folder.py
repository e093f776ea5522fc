"""Which run a path names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marl_sb3.errors import ConfigError
from marl_sb3.runs.folder import RunFolder, find_run


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
    assert RunFolder.existing("runs/arena").path == new.absolute()
    assert run("runs/arena/c", 20) == find_run("runs/arena/")  # of one moment the last by name


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
