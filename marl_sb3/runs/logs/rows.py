"""Write each iteration's metrics to `result.jsonl` and `progress.csv`, through SB3's logger."""

from __future__ import annotations

import csv
import io
import json
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from stable_baselines3.common.logger import KVWriter, TensorBoardOutputFormat, filter_excluded_keys
from tensorboard.compat.proto.summary_pb2 import Summary

from marl_sb3.metrics import finite_or_none
from marl_sb3.storage.atomic import replaced_file, with_filename

_ROW_VALUES = (str, bool, int, float, list, tuple, type(None))


class _RowFormat(KVWriter):
    """A row for each dump of the logger.

    Args:
        name: by which SB3's `exclude` knows the format.
        row_key: the name that makes a row; what is dumped without it waits for the next row. None: any does.
    """

    def __init__(self, name: str, row_key: str | None) -> None:
        self._format, self._row_key = name, row_key
        self._waiting: dict[str, Any] = {}

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write a row; it is on its way to the disk when this returns."""
        row = {**self._waiting, **_numbers_and_text(filter_excluded_keys(key_values, key_excluded, self._format))}
        if self._row_key is None or self._row_key in row:
            self._write_row(finite_or_none(row))
            row = {}
        self._waiting = row

    @abstractmethod
    def _write_row(self, row: dict[str, Any]) -> None:
        """Append a row."""


def _numbers_and_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without pictures and the like, which are for TensorBoard alone, even where `exclude` does not say so."""
    return {name: value for name, value in values.items() if isinstance(value, _ROW_VALUES) or hasattr(value, "tolist")}


class JsonLinesFormat(_RowFormat):
    """One JSON object per line, nested at the `/` of the names; what has no value is null."""

    def __init__(self, path: Path, row_key: str | None = None) -> None:
        super().__init__("json", row_key)
        self._file = path.open("a", encoding="utf-8")

    def _write_row(self, row: dict[str, Any]) -> None:
        # One write per line: a reader never sees half of one.
        _append(self._file, json.dumps(_nest(row), allow_nan=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        _close(self._file)


class CsvFormat(_RowFormat):
    """A column per name, in order of first appearance; what has no value is empty. A name that is new becomes one."""

    def __init__(self, path: Path, row_key: str | None = None) -> None:
        super().__init__("csv", row_key)
        self._path = path
        self._file = path.open("a", encoding="utf-8", newline="")
        self._columns = next(iter(self._lines()), [])

    def _write_row(self, row: dict[str, Any]) -> None:
        added = [name for name in row if name not in self._columns]
        if added:
            self._columns += added
            self._rewrite()
        _append(self._file, csv_line([row.get(name) for name in self._columns]))

    def _lines(self) -> list[list[str]]:
        with self._path.open(encoding="utf-8", newline="") as file:
            return list(csv.reader(file))

    def _rewrite(self) -> None:
        padded = [row + [""] * (len(self._columns) - len(row)) for row in self._lines()[1:]]
        with replaced_file(self._path) as fresh:
            fresh.write_text("".join(map(csv_line, [self._columns, *padded])), encoding="utf-8", newline="")
            self._file.close()
        self._file = self._path.open("a", encoding="utf-8", newline="")

    def close(self) -> None:
        """Close the file."""
        _close(self._file)


def _append(file: TextIO, line: str) -> None:
    with with_filename(file.name):
        file.write(line)
        file.flush()


def _close(file: TextIO) -> None:
    with suppress(OSError):  # of a line that could not be written, which has been said
        file.close()


def csv_line(values: Sequence[Any]) -> str:
    """A line of CSV; None is empty."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(["" if value is None else value for value in values])
    return buffer.getvalue()


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    # Shallow names first: a value at `a` must not replace what stands at `a/b`.
    for name, value in sorted(flat.items(), key=lambda item: item[0].count("/")):
        *parents, leaf = name.split("/")
        place = nested
        for parent in parents:
            inner = place.setdefault(parent, {})
            place = inner if isinstance(inner, dict) else place.setdefault(f"{parent}/", {})
        place[leaf] = value
    return nested
