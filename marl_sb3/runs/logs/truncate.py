"""Truncate the logs of a run at its checkpoint, so that a resumed run logs no iteration twice."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marl_sb3.errors import ConfigError
from marl_sb3.runs.logs.rows import PROGRESS_FILE, csv_line
from marl_sb3.runs.reader import RESULT_FILE, logged_lines
from marl_sb3.storage.atomic import write_whole
from marl_sb3.storage.regular import read_regular


def truncate_logs(folder: Path, iteration: int, env_steps: int) -> None:
    """Remove from a run's logs all entries after an iteration, and incomplete entries.

    Raises:
        ConfigError: a log is damaged; the message names the file.
    """
    _cut(folder / RESULT_FILE, lambda path, data: _lines_until(path, data, iteration))
    _cut(folder / PROGRESS_FILE, lambda path, data: _csv_until(path, data, iteration))
    for events in folder.glob("events.out.tfevents.*"):
        # Large, and no run appends to events of an earlier start: they are written only if something is cut off.
        _cut(events, lambda path, data: _events_until(path, data, env_steps), only_if_cut=True)


def _cut(path: Path, keep: Callable[[Path, bytes], bytes], *, only_if_cut: bool = False) -> None:
    """Replace a file, if it exists, by the part of it to keep; a file that has another name elsewhere stays there."""
    if os.path.lexists(path):
        whole = read_regular(path)
        kept = keep(path, whole)
        if kept != whole or not only_if_cut:
            write_whole(path, kept)


def _lines_until(path: Path, data: bytes, iteration: int) -> bytes:
    lines = logged_lines(path, data)
    return b"".join(line for line, result in lines if _number(path, result.get("iteration")) <= iteration)


def _csv_until(path: Path, data: bytes, iteration: int) -> bytes:
    complete = data[: data.rfind(b"\n") + 1].decode(errors="replace")
    if not complete:
        return b""
    try:
        head, *rows = csv.reader(io.StringIO(complete, newline=""))
    except csv.Error as error:
        raise _damaged(path, str(error)) from error
    if "iteration" not in head:
        raise _damaged(path, "there is no column 'iteration'")
    column = head.index("iteration")
    kept = [row for row in rows if _number(path, "".join(row[column : column + 1])) <= iteration]
    return "".join(map(csv_line, [head, *kept])).encode()


def _number(path: Path, iteration: Any) -> int:
    try:
        return int(iteration)
    except (TypeError, ValueError, OverflowError):
        raise _damaged(path, f"an iteration is {iteration!r}") from None


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is damaged: {why}", key="run")


def _events_until(path: Path, data: bytes, env_steps: int) -> bytes:
    """Parse TensorBoard's records: length (8 bytes), its checksum (4), an `Event`, its checksum (4)."""
    kept, start = [], 0
    while start + 12 <= len(data):
        end = start + 12 + int.from_bytes(data[start : start + 8], "little") + 4
        if end > len(data):
            break  # an incomplete record
        if _step_of_event(path, data[start + 12 : end - 4]) <= env_steps:
            kept.append(data[start:end])
        start = end
    return b"".join(kept)


_WALL_TIME, _STEP = 0x09, 0x10  # field numbers and types of an `Event`, in the order in which they are written


def _step_of_event(path: Path, event: bytes) -> int:
    """Read the step at the start of an `Event`, behind its time: what is logged may be long."""
    step = 0
    if len(event) > 9 and event[0] == _WALL_TIME and event[9] == _STEP:
        for place, byte in enumerate(event[10:20]):  # 7 bits in each byte, the lowest first
            step |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return step - 2**64 if step >= 2**63 else step
    return _step_of_parsed(path, event)


def _step_of_parsed(path: Path, event: bytes) -> int:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    try:
        return int(Event.FromString(event).step)
    except DecodeError as error:
        raise _damaged(path, str(error)) from error
