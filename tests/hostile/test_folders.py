"""Run folders of strangers: what is no regular file is refused in words; nothing outside is touched, nothing hangs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from odd_files import PUT, content, in_time, put

import marl_sb3
from marl_sb3 import load_policies
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.evaluate import main as evaluate
from marl_sb3.export import main as export
from marl_sb3.extensions.display.video import write_film
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.files.regular import open_regular, read_regular
from marl_sb3.train import main as train


@pytest.fixture
def run(run_folder: Path, in_tmp: Path) -> Path:
    """A run folder to spoil."""
    return Path(shutil.copytree(run_folder, in_tmp / "run"))


WRITTEN = [
    *("config.yaml", "result.jsonl", "progress.csv", "resumes.jsonl", "traceback.txt", ".lock", "policies"),
    *("tracking.json", "imitation.json", "wandb", "media"),
    *("league", "league/members.json", "league/shared@5"),
    *(
        "events.out.tfevents.0000000000.settings",
        "events.out.tfevents.9.mine",
        "checkpoints",
        "checkpoints/ckpt-000004",
    ),
]


@pytest.mark.parametrize("kind", PUT)
def test_a_run_is_not_resumed_if_it_would_write_outside_or_wait(
    kind: str, run: Path, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in WRITTEN:
        spoiled = Path(shutil.copytree(run, run.with_name("spoiled")))
        put(kind, spoiled / name, outside)
        with in_time():
            assert train(["--resume", "spoiled", "--quiet", "--timesteps", "60"]) == 2, name
        error = capsys.readouterr().err
        assert error.count("\n") == 1, name
        assert f"{Path(name)}: it is a" in error or f"spoiled/{name})" in error, name
        shutil.rmtree(spoiled)


UNFINISHED = ["result.jsonl", "config.yaml", "resumes.jsonl", "policies", "former-policies", "events.out.events.9.mine"]


@pytest.mark.parametrize("kind", ["a link to a file", "a link to a folder", "a pipe"])
def test_what_is_in_the_place_of_a_temporary_file_is_replaced(kind: str, run: Path, outside: Path) -> None:
    names = [f".unfinished-{name}" for name in UNFINISHED] + ["checkpoints/.unfinished-ckpt-000005"]
    for name in names:
        put(kind, run / name, outside)
    with in_time():
        assert train(["--resume", "run", "--quiet", "--timesteps", "60"]) == 0
    assert CheckpointFolder(run / "checkpoints").load().name == "ckpt-000005"
    assert [name for name in names if (run / name).is_symlink()] in ([], [".unfinished-events.out.events.9.mine"])


def test_a_file_that_has_another_name_outside_is_replaced(run: Path, in_tmp: Path) -> None:
    (run / "resumes.jsonl").write_text("{}\n")
    names = ["result.jsonl", "progress.csv", "resumes.jsonl", "config.yaml"]
    (in_tmp / "aside").mkdir()
    for name in names:
        (in_tmp / "aside" / name).hardlink_to(run / name)
    before = content(in_tmp / "aside")
    assert train(["--resume", "run", "--quiet", "--timesteps", "60"]) == 0
    assert content(in_tmp / "aside") == before
    assert all((run / name).read_bytes() != (in_tmp / "aside" / name).read_bytes() for name in names)


READ: dict[str, Callable[[], object]] = {
    "evaluate": lambda: evaluate(["run", "--episodes", "1"]),
    "export": lambda: export(["run", "--out", "files"]),
    "--init-from": lambda: train(["arena", "--init-from", "run", "--timesteps", "10", "--run-dir", "new"]),
    "--hparams": lambda: train(["--hparams", "run/config.yaml", "--timesteps", "10", "--run-dir", "new"]),
    "load_run": lambda: marl_sb3.load_run("run"),
    "load_policies": lambda: load_policies("run"),
}
OF_CHECKPOINTS = ("--init-from", "load_policies")  # they read nothing else


@pytest.mark.parametrize("way", READ)
@pytest.mark.parametrize("kind", ["a link to a folder", "a pipe", "a link to what is not there"])
def test_whatever_reads_a_run_refuses_it_in_words(
    kind: str, way: str, run: Path, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["checkpoints"] if way in OF_CHECKPOINTS else ["checkpoints", "config.yaml"]
    for name in ["config.yaml"] if way == "--hparams" else names:
        put(kind, run / name, outside)
        with in_time():
            try:
                code = READ[way]()
            except (ConfigError, CheckpointError) as error:
                code, words = 2, str(error)
            else:
                words = capsys.readouterr().err
        assert code == 2, (name, words)
        assert name in words, words
    assert not Path("new").exists()


@pytest.mark.parametrize("kind", ["a link to a file", "a pipe"])
def test_a_log_that_is_no_file_is_not_read(kind: str, run: Path, outside: Path) -> None:
    put(kind, run / "result.jsonl", outside)
    with in_time(), pytest.raises(ConfigError, match=r"cannot read .*result\.jsonl: it is a"):
        marl_sb3.load_run("run")


@pytest.mark.parametrize("name", ["export", "export/sb3"])
def test_an_export_stays_in_the_run_folder(
    name: str, run: Path, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put("a link to a folder", run / name, outside)
    assert export(["run", "--force"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --out: cannot write to run/export/sb3: it is a link; accepted: a folder that is no")


def test_a_film_is_not_written_where_a_link_leads(in_tmp: Path, outside: Path) -> None:
    put("a link to a file", in_tmp / ".unfinished-film.gif", outside)
    write_film(in_tmp / "film.gif", np.zeros((2, 8, 8, 3), np.uint8))
    assert (in_tmp / "film.gif").read_bytes().startswith(b"GIF89a")


def test_the_run_folder_itself_may_be_a_link(run: Path, in_tmp: Path) -> None:
    (in_tmp / "linked").symlink_to(run)
    assert train(["--resume", "linked", "--quiet", "--timesteps", "60"]) == 0
    assert marl_sb3.load_run("linked", "latest").checkpoint == "ckpt-000005"


def test_devices_and_files_that_fill_the_memory_are_not_read(in_tmp: Path) -> None:
    with pytest.raises(OSError, match="it is a pipe, a socket or a device; accepted: a regular file"):
        open_regular("/dev/zero")
    with (in_tmp / "sparse").open("wb") as file:
        try:
            file.truncate(2**43)
        except OSError:
            pytest.skip("the file system has no files of this size")
    with pytest.raises(OSError, match="it has 8796093022208 bytes; the free memory allows"):
        read_regular(in_tmp / "sparse")
