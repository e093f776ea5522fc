"""Run a side of a benchmark as a process of its own, and keep what it prints together with when."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class SideError(Exception):
    """A side did not run to its end, or printed something else than was agreed."""


@dataclass(frozen=True)
class Watched:
    """A process that has ended.

    Attributes:
        lines: what it printed, each with the seconds from its start.
        seconds: until it ended; the timeout if it was ended then.
        timed_out: it was ended because its time was over.
    """

    lines: list[tuple[float, str]]
    seconds: float
    timed_out: bool


def watch(command: Sequence[str], timeout_s: float, folder: str | None = None) -> Watched:
    """Run a command.

    Raises:
        SideError: it failed, with the end of what it said.
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
            assert process.stdout is not None, "it was asked for"
            lines = [(time.perf_counter() - started_s, line.strip()) for line in process.stdout]
            process.wait()
        finally:
            clock.cancel()
        if process.returncode and not over.is_set():
            errors.seek(0)
            raise SideError(_failure(command, process.returncode, errors.read()))
    return Watched(lines, timeout_s if over.is_set() else time.perf_counter() - started_s, over.is_set())


def _environment() -> dict[str, str]:
    """marl_sb3 can be imported from this clone, and Ray neither reports its usage nor asks for a token."""
    path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


def _end(process: subprocess.Popen[str], over: threading.Event) -> None:
    over.set()
    process.terminate()
    try:
        process.wait(30)  # Ray stops its own processes meanwhile
    except subprocess.TimeoutExpired:
        process.kill()


def _failure(command: Sequence[str], exit_code: int, errors: str) -> str:
    end = "\n".join(errors.strip().splitlines()[-15:])
    return f"{shlex.join(command)}\nended with exit code {exit_code}:\n{end}"


def parsed_lines(watched: Watched, script: str) -> list[dict[str, Any]]:
    """The JSON lines that a side printed: the first tells its versions.

    Raises:
        SideError: there are no such lines.
    """
    try:
        parsed = [json.loads(line) for _, line in watched.lines]
        parsed[0]["versions"]
    except (ValueError, LookupError, TypeError) as error:
        printed = "\n".join(line for _, line in watched.lines)
        raise SideError(f"{script} did not print JSON lines that begin with versions, but:\n{printed}") from error
    return parsed
