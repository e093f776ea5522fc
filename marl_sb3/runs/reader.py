"""Read the metrics of a run: the only reader of `result.jsonl`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from marl_sb3.errors import ConfigError, path_is_usable
from marl_sb3.metrics import Result
from marl_sb3.storage.regular import read_regular

RESULT_FILE = "result.jsonl"


def read_results(folder: Path) -> list[Result]:
    """Return the nested metrics of all logged iterations; empty if there is no log.

    Raises:
        ConfigError: the log cannot be read, or a line is damaged; the message names file and line.
    """
    log = folder / RESULT_FILE
    if not os.path.lexists(log):
        return []
    with path_is_usable("cannot read", log, "run"):
        data = read_regular(log)
    return [result for _, result in logged_lines(log, data)]


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
