"""TensorBoard's events of a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import TensorBoardOutputFormat, filter_excluded_keys
from tensorboard.compat.proto.summary_pb2 import Summary

from marl_sb3.metrics import Result, flatten
from marl_sb3.storage.atomic import with_filename


class EventsFormat(TensorBoardOutputFormat):
    """TensorBoard's events, which a thread writes: its errors are raised here, with the name of what was written.

    Args:
        folder: the folder that the file goes into.
    """

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self._name = str(folder / "events.out.tfevents.*")
        with with_filename(self._name):
            super().__init__(str(folder))

    def write_result(self, result: Result, recorded: Mapping[str, Any], step: int) -> None:
        """See `ResultWriter.write_result`; names are flat."""
        self.write({**recorded, **flatten(result)}, {}, step)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write the values; they are on their way to the disk when this returns."""
        kept = filter_excluded_keys(key_values, key_excluded, self.name)
        scalars = {name: float(value) for name, value in kept.items() if isinstance(value, (int, float, np.number))}
        others = {name: value for name, value in kept.items() if name not in scalars}
        with with_filename(self._name):
            # One event for all numbers: an event each takes ten times as long.
            values = [Summary.Value(tag=name, simple_value=value) for name, value in sorted(scalars.items())]
            assert self.writer.file_writer is not None, "it was made with the writer"
            self.writer.file_writer.add_summary(Summary(value=values), step)
            super().write(others, dict.fromkeys(others, ()), step)  # flushes

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # of what could not be written, which has been said
            super().close()


@contextmanager
def quiet_writers() -> Iterator[None]:
    """While it lasts, TensorBoard's threads print no traceback of an error that `EventsFormat` raises."""
    former = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not (type(failed.thread).__module__.startswith("tensorboard.") and isinstance(failed.exc_value, OSError)):
            former(failed)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = former
