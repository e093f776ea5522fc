"""What a console cannot print ends no command, and loses no training."""

from __future__ import annotations

import ast
import io
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest
from documentation import ROOT
from toy_envs import ScriptedEnv

from marl_sb3.cli import StandardError, run_command
from marl_sb3.compare import main as compare
from marl_sb3.core.envs.registry import register_env
from marl_sb3.evaluate import main as evaluate
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.output import ORDINARY, LenientStream, print_text, printable
from marl_sb3.train import main

TINY = ["--n-envs", "2", "--timesteps", "40", "--seed", "1", "--run-dir", "run"]
TINY += ["--set", "n_steps=10", "--set", "batch_size=10", "--set", "n_epochs=1"]
AGENT = "ä b%\ud83d"  # not in ASCII, and half a character that no encoding has


class OddlyNamed(ScriptedEnv):
    """An agent has a name that not every console can print."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__({AGENT[:4]: (3, "truncated"), "b": (3, "truncated")}, **kwargs)


def ascii_stream() -> TextIO:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)


@contextmanager
def written_to(descriptor: int) -> Iterator[TextIO]:
    """A stream like `sys.stdout`, which may be broken when it is closed."""
    with open(descriptor, "w", encoding="utf-8") as stream:
        yield stream
        lenient = LenientStream(stream)
        lenient.flush()
        lenient.discard()


@pytest.fixture
def broken_pipe() -> Iterator[TextIO]:
    """Its reader has gone."""
    ours, theirs = os.pipe()
    os.close(ours)
    with written_to(theirs) as stream:
        yield stream


def trained(folder: Path) -> bool:
    return len((folder / "run" / "result.jsonl").read_text().splitlines()) == 2 and bool(
        list((folder / "run" / "policies").glob("*.zip"))
    )


def test_characters_that_the_encoding_lacks_are_written_as_escapes() -> None:
    stream = ascii_stream()
    assert LenientStream(stream).write(AGENT) == 5
    assert stream.buffer.getvalue() == rb"\xe4 b%\ud83d"


def test_after_an_error_nothing_is_written(broken_pipe: TextIO) -> None:
    stream = LenientStream(broken_pipe)
    stream.write("a")
    stream.flush()
    assert isinstance(stream.error, BrokenPipeError)
    assert not stream.is_lost
    first = stream.error
    stream.write("b")
    stream.flush()
    assert stream.error is first


def test_a_closed_stream_and_none_at_all_drop_everything() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (LenientStream(closed), LenientStream(None)):
        stream.write("a")
        stream.flush()
        assert not stream.isatty()
        assert not stream.is_lost


@pytest.mark.parametrize("columns", [40, 0])
def test_errors_on_a_terminal_end_lines_between_words(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import pty
    import termios

    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    with open(theirs, "w", encoding="utf-8") as terminal:
        StandardError(terminal).write("error: unknown env argument 'heigth'; the env takes: height, width\n")
        StandardError(terminal).write("\x1b[2Kerror: unknown env argument 'heigth', which is redrawn\n")
        terminal.flush()
        text = ""
        while "redrawn" not in text:  # a terminal may hand it over in pieces
            text += os.read(ours, 4096).decode()
    os.close(ours)
    first = ["error: unknown env argument 'heigth';", "the env takes: height, width"]
    assert text.splitlines()[:-1] == (first if columns else [" ".join(first)])


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_training_survives_the_end_of_its_reader(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, broken_pipe: TextIO, quiet: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", broken_pipe)
    monkeypatch.setattr(sys, "stderr", broken_pipe)
    assert main(["arena", *TINY, *quiet]) == 0
    assert trained(in_tmp)
    assert sys.stdout is broken_pipe


def test_a_training_survives_agents_that_the_console_cannot_print(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_env("oddly_named", OddlyNamed)
    stream = ascii_stream()
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["oddly_named", *TINY]) == 0
    assert trained(in_tmp)
    assert rb"\xe4 b%" in stream.buffer.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_lost_on_a_full_disk_is_said_when_all_is_done(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with written_to(os.open("/dev/full", os.O_WRONLY)) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["arena", *TINY]) == 1
    assert trained(in_tmp)
    assert (
        capsys.readouterr().err == "error: standard output could not be written: [Errno 28] No space left on device\n"
    )


def test_a_command_without_standard_output_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run_command(lambda: print("nobody") or 0, 0) == 0


# --- What a terminal would obey --------------------------------------------------------------------------------------

HOSTILE = "x\x1b]0;PWNED\x07\x1b[31m\x9b2J\u202eevil\udc80"


def test_text_that_is_printed_holds_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(HOSTILE) == r"x\x1b]0;PWNED\x07\x1b[31m\x9b2J\u202eevil\udc80"
    plain = "Überraschung\u00a0名前\n\tλ\u3000[red]:fire:"
    assert printable(plain) == plain
    print_text(HOSTILE)
    print_text(HOSTILE, stderr=True)
    for each in (False, True):
        standard_console(stderr=each).print(HOSTILE)
    captured = capsys.readouterr()
    for text in captured:
        assert text.count("PWNED") == 2
        assert printable(text) == text


def test_names_of_runs_and_errors_in_the_log_are_escaped(
    run_folder: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        shutil.copytree(run_folder, Path("share", f"{name}{HOSTILE[:-1]}"))
    assert evaluate(["share", "--episodes", "1", "-v"]) == 0
    assert compare([*map(str, Path("share").iterdir())]) == 0
    assert run_command(lambda: len(str(1 / 0)), 0) == 1
    for extra in (None, ORDINARY):
        logging.getLogger("marl_sb3").warning(
            "no policy %s", HOSTILE[:-1], extra=extra
        )  # sent as UTF-8 by pytest-xdist
    captured = capsys.readouterr()
    for text in captured:
        assert "PWNED" in text
        assert printable(text) == text


ALLOWED = {
    "__init__.py": {"print"},  # before anything is imported
    "output.py": {"print"},
    "cli/running.py": {"Formatter"},
}
PRINTING = {
    "print",
    "Console",
    "Formatter",
    "print_exc",
    "print_exception",
    "basicConfig",
    "StreamHandler",
}


def test_all_that_is_printed_goes_through_one_function() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "marl_sb3").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                name = called.rpartition(".")[2]
                if (
                    called == "print"
                    or (name in PRINTING - {"print"})
                    or called.startswith(("sys.stdout.w", "sys.stderr.w"))
                ):
                    found.setdefault(path.relative_to(ROOT / "marl_sb3").as_posix(), set()).add(name)
    assert found == ALLOWED
