"""Reading `result.jsonl`: the nested metrics of a run, one iteration in a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from marl_sb3.core.metrics.names import Result
from marl_sb3.errors import ConfigError
from marl_sb3.files.paths import path_is_usable
from marl_sb3.files.regular import open_regular, read_regular

RESULT_FILE = "result.jsonl"


def read_results(folder: Path) -> list[Result]:
    """Return the nested metrics of all logged iterations; empty if there is no log.

    Raises:
        ConfigError: the log cannot be read, or a line is damaged; the message names file and line.
    """
    return [result for _, result in logged_lines(folder / RESULT_FILE, _content(folder / RESULT_FILE) or b"")]


def _content(log: Path) -> bytes | None:
    """Return what is in a log; None if there is none."""
    if not os.path.lexists(log):
        return None
    with path_is_usable("cannot read", log, "run"):
        return read_regular(log)


def last_result(folder: Path) -> Result | None:
    """Return the metrics of the latest iteration without reading the whole log; None if there is none yet.

    The errors are those of `read_results`.
    """
    log, tail, size = folder / RESULT_FILE, b"", 2**16
    with path_is_usable("cannot read", log, "run"):
        if not os.path.lexists(log):
            return None
        with open(log, "rb", opener=open_regular) as file:
            end = file.seek(0, os.SEEK_END)
            while tail.count(b"\n") < 2 and len(tail) < end:
                start = max(0, end - size)
                file.seek(start)
                tail, size = file.read(end - start), 8 * size
    complete = tail[: tail.rfind(b"\n") + 1].splitlines()
    return _result(f"{log}, last line", complete[-1]) if complete else None


def logged_lines(log: Path, data: bytes) -> Iterator[tuple[bytes, Result]]:
    """Yield the lines of a log with their results, without an incomplete last line, which a killed process leaves."""
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            yield line, _result(f"{log}, line {number}", line)


def _result(where: str, line: bytes) -> Result:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid JSON: {error}", key="run") from error
    if not isinstance(result, dict):
        raise ConfigError(f"{where} is not a mapping", key="run")
    return result


def readable_results(folder: Path) -> tuple[list[Result], str]:
    """Return the nested metrics of the iterations before any damage, and what is wrong; empty if nothing is.

    Raises:
        ConfigError: the log cannot be read at all.
    """
    log, found = folder / RESULT_FILE, list[Result]()
    if (data := _content(log)) is None:
        return [], f"{log} does not exist"
    try:
        for _, result in logged_lines(log, data):
            found.append(result)
    except ConfigError as error:
        return found, f"{error}; the {len(found)} iterations before it are used"
    cut = "" if not data or data.endswith(b"\n") else f"the last line of {log} is cut off; {len(found)} are used"
    return found, cut
