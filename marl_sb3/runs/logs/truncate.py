"""Take back what a run has logged after its checkpoint, so that no row is there twice when it goes on."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

from marl_sb3.runs.logs.rows import csv_line
from marl_sb3.storage.atomic import write_whole


def truncate_logs(folder: Path, iteration: int, env_steps: int) -> None:
    """Take everything out of a run's logs that was written after an iteration; what was cut off in its middle too.

    Args:
        folder: the run folder.
        iteration: the last one that stays.
        env_steps: the run's env steps at its end.
    """
    _cut(folder / "result.jsonl", lambda data: _lines_until(data, iteration))
    _cut(folder / "progress.csv", lambda data: _csv_until(data, iteration))
    for path in folder.glob("events.out.tfevents.*"):
        _cut(path, lambda data: _events_until(data, env_steps))


def _cut(path: Path, keep: Callable[[bytes], bytes]) -> None:
    """Replace a file, if there is one, by what is to be kept of it."""
    if path.exists():
        write_whole(path, keep(path.read_bytes()))


def _lines_until(data: bytes, iteration: int) -> bytes:
    kept = []
    for line in data.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break  # half a line, of a process that was killed
        if json.loads(line)["iteration"] > iteration:
            break
        kept.append(line)
    return b"".join(kept)


def _csv_until(data: bytes, iteration: int) -> bytes:
    complete = data[: data.rfind(b"\n") + 1]
    rows = list(csv.reader(io.StringIO(complete.decode(), newline="")))
    if not rows:
        return b""
    column = rows[0].index("iteration")
    return "".join(csv_line(row) for row in [rows[0], *(r for r in rows[1:] if int(r[column]) <= iteration)]).encode()


def _events_until(data: bytes, env_steps: int) -> bytes:
    """TensorBoard's records: length (8 bytes), its checksum (4), an `Event`, its checksum (4)."""
    from tensorboard.compat.proto.event_pb2 import Event

    kept, start = [], 0
    while start + 12 <= len(data):
        end = start + 12 + int.from_bytes(data[start : start + 8], "little") + 4
        if end > len(data):
            break  # half a record
        if Event.FromString(data[start + 12 : end - 4]).step <= env_steps:
            kept.append(data[start:end])
        start = end
    return b"".join(kept)
