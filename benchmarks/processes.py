"""Run a side of a benchmark in its own process and record its output with times."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import say

HERE = Path(__file__).resolve().parent


class SideError(Exception):
    """A side failed, or did not print what was expected."""


@dataclass(frozen=True)
class Watched:
    """A process that has ended."""

    lines: list[tuple[float, str]]  # (seconds since the start, line) for each line of its output
    seconds: float  # how long it ran; the timeout if it was stopped then
    timed_out: bool  # it was stopped at the timeout


def watch(command: Sequence[str], timeout_s: float, folder: str | None = None) -> Watched:
    """Run a command until it ends or the timeout is over.

    Raises:
        SideError: it failed; the message has the last lines of its stderr.
    """
    started_s, over = time.perf_counter(), threading.Event()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment(), cwd=folder
        ) as process,
    ):
        clock = threading.Timer(timeout_s, _end, (process, over))
        clock.start()
        try:
            assert process.stdout is not None, "PIPE was requested"
            lines = [(time.perf_counter() - started_s, line.strip()) for line in process.stdout]
            process.wait()
        finally:
            clock.cancel()
        if process.returncode and not over.is_set():
            errors.seek(0)
            raise SideError(_failure(command, process.returncode, errors.read()))
    return Watched(lines, timeout_s if over.is_set() else time.perf_counter() - started_s, over.is_set())


def _environment() -> dict[str, str]:
    """Let the process import marl_sb3 from this clone; switch off Ray's usage reports and authentication."""
    path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


def _end(process: subprocess.Popen[str], over: threading.Event) -> None:
    over.set()
    process.terminate()
    try:
        process.wait(30)  # time for Ray to stop its own processes
    except subprocess.TimeoutExpired:
        process.kill()


def _failure(command: Sequence[str], exit_code: int, errors: str) -> str:
    end = "\n".join(errors.strip().splitlines()[-15:])
    return f"{shlex.join(command)}\nended with exit code {exit_code}:\n{end}"


def parsed_lines(watched: Watched, script: str) -> list[dict[str, Any]]:
    """Parse the JSON lines that a side printed; the first has its versions.

    Raises:
        SideError: its output is something else.
    """
    try:
        parsed = [json.loads(line) for _, line in watched.lines]
        parsed[0]["versions"]
    except (ValueError, LookupError, TypeError) as error:
        printed = "\n".join(line for _, line in watched.lines)
        raise SideError(f"{script} did not print JSON lines that begin with versions, but:\n{printed}") from error
    return parsed


def make_venv(folder: Path, requirements: Sequence[str]) -> str:
    """Make a virtual environment with another library; return the path of its Python.

    Raises:
        SideError: pip failed.
    """
    python = str(folder / "bin" / "python")
    for command in ([sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install", *requirements]):
        say(" ".join(command))
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode:
            raise SideError(f"{' '.join(command)}\nended with exit code {done.returncode}")
    return python


def can_limit_processors() -> bool:
    """Whether `limited_to` works on this system."""
    return hasattr(os, "sched_setaffinity")


@contextmanager
def limited_to(processors: int) -> Iterator[None]:
    """Let this thread, and the processes that it starts in the context, use only so many of its processors."""
    if not can_limit_processors():
        yield
        return
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_of_them)[-processors:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_of_them)
