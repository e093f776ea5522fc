"""Write each iteration's metrics to `result.jsonl`, nested, and to `progress.csv`, flat."""

from __future__ import annotations

import csv
import io
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from stable_baselines3.common.logger import KVWriter, filter_excluded_keys

from marl_sb3.metrics import Result, finite_or_none, flatten
from marl_sb3.storage.atomic import replaced_file, with_filename
from marl_sb3.storage.regular import append_text, read_regular

PROGRESS_FILE = "progress.csv"

_ROW_VALUES = (str, bool, int, float, list, tuple, type(None))


class _RowFormat(KVWriter):
    """Writes a row for each iteration, including values that callbacks dumped since the last row.

    Attributes:
        name: name of the format for the argument `exclude` of `logger.record`.
    """

    name: str

    def __init__(self) -> None:
        self._waiting: dict[str, Any] = {}

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Keep dumped values for the next row."""
        self._waiting.update(filter_excluded_keys(key_values, key_excluded, self.name))

    def write_result(self, result: Result, recorded: Mapping[str, Any], step: int) -> None:
        """Write and flush a row. See `ResultWriter.write_result`."""
        more = {**self._waiting, **recorded}
        known = flatten(result)
        more = {name: value for name, value in more.items() if _fits_a_row(value) and name not in known}
        self._write_row(finite_or_none(_without_pictures(result)), finite_or_none(more))
        self._waiting = {}

    @abstractmethod
    def _write_row(self, result: Result, recorded: dict[str, Any]) -> None:
        """Append a row.

        Args:
            recorded: flat names -> values; none of these names is in the result.
        """


def _fits_a_row(value: Any) -> bool:
    """Whether a row can hold a value. Images and the like are for TensorBoard only, even without `exclude`."""
    return isinstance(value, _ROW_VALUES) or hasattr(value, "tolist")


def _without_pictures(result: Mapping[str, Any]) -> Result:
    return {
        name: _without_pictures(value) if isinstance(value, Mapping) else value
        for name, value in result.items()
        if isinstance(value, Mapping) or _fits_a_row(value)
    }


class JsonLinesFormat(_RowFormat):
    """One JSON object per line: the nested result. Values of callbacks are nested by the `/` in their names."""

    name = "json"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = append_text(path)

    def _write_row(self, result: Result, recorded: dict[str, Any]) -> None:
        _nest(recorded, result)
        # One write per line: a reader never sees an incomplete line.
        _append(self._file, json.dumps(result, allow_nan=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        _close(self._file)


class KeptResult(_RowFormat):
    """Passes on each result as a line of `result.jsonl` has it.

    Args:
        keep: called with each result.
    """

    name = JsonLinesFormat.name

    def __init__(self, keep: Callable[[Result], None]) -> None:
        super().__init__()
        self._keep = keep

    def _write_row(self, result: Result, recorded: dict[str, Any]) -> None:
        _nest(recorded, result)
        self._keep(result)

    def close(self) -> None:
        """Do nothing: no file is open."""


class CsvFormat(_RowFormat):
    """A column per name, in order of first appearance; a missing value is empty. New names add columns."""

    name = "csv"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = append_text(path)
        self._columns = next(iter(self._lines()), [])

    def _write_row(self, result: Result, recorded: dict[str, Any]) -> None:
        row = {**flatten(result), **recorded}
        added = [name for name in row if name not in self._columns]
        if added:
            self._columns += added
            self._rewrite()
        _append(self._file, csv_line([row.get(name) for name in self._columns]))

    def _lines(self) -> list[list[str]]:
        return list(csv.reader(io.StringIO(read_regular(self._path).decode(), newline="")))

    def _rewrite(self) -> None:
        padded = [row + [""] * (len(self._columns) - len(row)) for row in self._lines()[1:]]
        with replaced_file(self._path) as fresh:
            fresh.write_text("".join(map(csv_line, [self._columns, *padded])), encoding="utf-8", newline="")
            self._file.close()
        self._file = append_text(self._path)

    def close(self) -> None:
        """Close the file."""
        _close(self._file)


def _append(file: TextIO, line: str) -> None:
    with with_filename(file.name):
        file.write(line)
        file.flush()


def _close(file: TextIO) -> None:
    with suppress(OSError):  # an error of a line that was reported when it was written
        file.close()


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
