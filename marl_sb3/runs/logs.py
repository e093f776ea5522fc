"""The logs of a run: each iteration in `result.jsonl` and `progress.csv`, and truncating all logs for a resume."""

from __future__ import annotations

import csv
import io
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import KVWriter, filter_excluded_keys

from marl_sb3.core.metrics import Result, finite_or_none, flatten
from marl_sb3.core.training import ResultLogger, ResultWriter
from marl_sb3.errors import ConfigError
from marl_sb3.files import append_text, read_regular, replaced_file, with_filename, write_whole
from marl_sb3.results import RESULT_FILE, logged_lines
from marl_sb3.runs.run import Run
from marl_sb3.runs.tensorboard import EventsFormat, quiet_writers, write_settings

PROGRESS_FILE = "progress.csv"

_ROW_VALUES = (str, bool, int, float, list, tuple, type(None))


class _RowFormat(KVWriter):
    """Writes a row for each iteration, including values that callbacks dumped since the last row.

    Args:
        path: the file.
    """

    name: str  # name of the format for the argument `exclude` of `logger.record`

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = append_text(path)
        self._waiting: dict[str, Any] = {}

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Keep dumped values for the next row."""
        self._waiting.update(filter_excluded_keys(key_values, key_excluded, self.name))

    def write_result(self, result: Result, recorded: Mapping[str, Any], step: int) -> None:
        """Write and flush a row, with what callbacks have recorded."""
        known, more = flatten(result), {**self._waiting, **recorded}
        more = {name: value for name, value in more.items() if _fits_a_row(value) and name not in known}
        self._write_row(finite_or_none(_without_pictures(result)), finite_or_none(more))
        self._waiting = {}

    @abstractmethod
    def _write_row(self, result: Result, recorded: dict[str, Any]) -> None:
        """Append a row; `recorded` has flat names, none of which is in the result."""

    def _append(self, line: str) -> None:
        with with_filename(self._path):
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # an error of a line that was reported when it was written
            self._file.close()


def _fits_a_row(value: Any) -> bool:
    """Return whether a row can hold a value. Images and the like are for TensorBoard only, even without `exclude`."""
    return isinstance(value, _ROW_VALUES) or hasattr(value, "tolist")


def _without_pictures(result: Mapping[str, Any]) -> Result:
    return {
        name: _without_pictures(value) if isinstance(value, Mapping) else value
        for name, value in result.items()
        if isinstance(value, Mapping) or _fits_a_row(value)
    }


class JsonLinesFormat(_RowFormat):
    """One JSON object per line: the nested result. Values of callbacks are nested by the `/` in their names.

    `keep` is called with each result before it is written.
    """

    name = "json"

    def __init__(self, path: Path, keep: Callable[[Result], None] = lambda _: None) -> None:
        super().__init__(path)
        self._keep = keep

    def _write_row(self, result: Result, recorded: dict[str, Any]) -> None:
        _nest(recorded, result)
        self._keep(result)
        # One write per line: a reader never sees an incomplete line.
        self._append(json.dumps(result, allow_nan=False) + "\n")


class CsvFormat(_RowFormat):
    """A column per name, in order of first appearance; a missing value is empty. New names add columns."""

    name = "csv"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._columns = next(iter(self._rows()), [])

    def _write_row(self, result: Result, recorded: dict[str, Any]) -> None:
        row = {**flatten(result), **recorded}
        added = [name for name in row if name not in self._columns]
        if added:
            self._columns += added
            padded = [earlier + [""] * (len(self._columns) - len(earlier)) for earlier in self._rows()[1:]]
            with replaced_file(self._path) as fresh:
                fresh.write_text("".join(map(csv_line, [self._columns, *padded])), encoding="utf-8", newline="")
                self._file.close()
            self._file = append_text(self._path)
        self._append(csv_line([row.get(name) for name in self._columns]))

    def _rows(self) -> list[list[str]]:
        return list(csv.reader(io.StringIO(read_regular(self._path).decode(), newline="")))


def csv_line(values: Sequence[Any]) -> str:
    """Return a line of CSV; None becomes an empty field."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(["" if value is None else value for value in values])
    return buffer.getvalue()


def _nest(flat: Mapping[str, Any], nested: dict[str, Any]) -> None:
    """Add values with flat names to a nested mapping, without replacing its own values."""
    # Shallow names first: a value at `a` must not replace one at `a/b`.
    for name, value in sorted(flat.items(), key=lambda item: item[0].count("/")):
        *parents, leaf = name.split("/")
        place = nested
        for parent in parents:
            inner = place.setdefault(parent, {})
            place = inner if isinstance(inner, dict) else place.setdefault(f"{parent}/", {})
        place[f"{leaf}/" if isinstance(place.get(leaf), dict) else leaf] = value


def truncate_logs(folder: Path, iteration: int, env_steps: int) -> None:
    """Remove from a run's logs all entries after an iteration, and incomplete entries.

    Raises:
        ConfigError: a log is damaged; the message names the file.
    """
    for path, keep, limit in [
        (folder / RESULT_FILE, _lines_until, iteration),
        (folder / PROGRESS_FILE, _csv_until, iteration),
        *((events, _events_until, env_steps) for events in folder.glob("events.out.tfevents.*")),
    ]:
        if os.path.lexists(path):
            whole = read_regular(path)
            kept = keep(path, whole, limit)
            # Events are large, and no run appends to those of an earlier start: they stay if nothing is cut off.
            if kept != whole or keep is not _events_until:
                write_whole(path, kept)  # a file that has another name elsewhere stays there


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
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    kept, start = [], 0
    while start + 12 <= len(data):
        end = start + 12 + int.from_bytes(data[start : start + 8], "little") + 4
        if end > len(data):
            break  # an incomplete record
        try:
            step = Event.FromString(data[start + 12 : end - 4]).step
        except DecodeError as error:
            raise _damaged(path, str(error)) from error
        if step <= env_steps:
            kept.append(data[start:end])
        start = end
    return b"".join(kept)


@contextmanager
def logs_of(run: Run, outputs: Sequence[ResultWriter] = ()) -> Iterator[None]:
    """Log the metrics of the training to the run folder: as JSON lines, as CSV, and for TensorBoard.

    The run keeps the latest result, as it is logged.

    Args:
        outputs: more that get each result; they stay open.
    """
    folder, config = run.folder, run.config
    logs = (
        lambda: JsonLinesFormat(folder / RESULT_FILE, run.keep_result),
        lambda: CsvFormat(folder / PROGRESS_FILE),
        lambda: EventsFormat(folder, config.tensorboard_agents, [config.checkpoints.metric, *config.stop]),
    )
    write_settings(folder, config, list(run.algorithm.policies))
    with ExitStack() as cleanup:
        cleanup.enter_context(quiet_writers())
        writers: list[ResultWriter] = [cleanup.enter_context(closing(make())) for make in logs]
        run.algorithm.set_logger(ResultLogger(str(folder), [*writers, *outputs]))
        yield
