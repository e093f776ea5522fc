"""The logs of a run: `result.jsonl` has each iteration, `progress.csv` the same as a table, and TensorBoard's events.

TensorBoard also gets the settings, for its tab HParams and as text, and a layout of charts.
"""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter, TensorBoardOutputFormat, filter_excluded_keys
from tensorboard.compat.proto.summary_pb2 import Summary

from marl_sb3.core.metrics.names import Result, finite_or_none, flatten
from marl_sb3.core.training.results import ResultLogger, ResultWriter
from marl_sb3.errors import ConfigError
from marl_sb3.files.atomic import replaced_file, with_filename, write_whole
from marl_sb3.files.regular import append_text, read_regular
from marl_sb3.results.result_log import RESULT_FILE, logged_lines, read_results
from marl_sb3.runs.files import to_yaml
from marl_sb3.runs.run import Run
from marl_sb3.runs.schema import TrainConfig

PROGRESS_FILE = "progress.csv"

_ROW_VALUES = (str, bool, int, float, list, tuple, type(None))


class IterationFormat(KVWriter):
    """An output of SB3's logger that gets whole iterations: what callbacks dump between two waits for the next."""

    name: str  # of the format, for the argument `exclude` of `logger.record`

    def __init__(self) -> None:
        self._waiting: dict[str, Any] = {}

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Keep dumped values for the next iteration."""
        self._waiting.update(filter_excluded_keys(key_values, key_excluded, self.name))

    def write_result(self, result: Result, recorded: Mapping[str, Any], step: int) -> None:
        """Write an iteration, with what callbacks have recorded."""
        self._write_iteration(result, {**self._waiting, **recorded}, step)
        self._waiting = {}

    @abstractmethod
    def _write_iteration(self, result: Result, recorded: dict[str, Any], step: int) -> None:
        """Write an iteration; `recorded` has flat names."""

    def close(self) -> None:
        """Do nothing: a run may log again, when it goes on after a rollback."""


class _RowFormat(IterationFormat):
    """Writes and flushes a row for each iteration.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = append_text(path)

    def _write_iteration(self, result: Result, recorded: dict[str, Any], step: int) -> None:
        measured = flatten(result)
        more = {name: value for name, value in recorded.items() if _fits_a_row(value) and name not in measured}
        line = self._line(finite_or_none(_without_pictures(result)), finite_or_none(more))
        with with_filename(self._path):
            self._file.write(line)  # one write for each: a reader never sees an incomplete line
            self._file.flush()

    @abstractmethod
    def _line(self, result: Result, recorded: dict[str, Any]) -> str:
        """Return the line of a row; `recorded` has flat names, none of which is in the result."""

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

    def __init__(self, folder: Path, keep: Callable[[Result], None] = lambda _: None) -> None:
        super().__init__(folder / RESULT_FILE)
        self._keep = keep

    def _line(self, result: Result, recorded: dict[str, Any]) -> str:
        _nest(recorded, result)
        self._keep(result)
        return json.dumps(result, allow_nan=False) + "\n"


class CsvFormat(_RowFormat):
    """A column per name, in order of first appearance; a missing value is empty. New names add columns.

    The rows of earlier iterations are made of `result.jsonl`, in which each iteration is before it is here.
    """

    name = "csv"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / PROGRESS_FILE)
        self._folder, self._columns = folder, list[str]()
        with suppress(csv.Error):  # it is damaged
            text = read_regular(self._path).decode(errors="replace")
            self._columns = next(csv.reader(io.StringIO(text, newline="")), [])

    def _line(self, result: Result, recorded: dict[str, Any]) -> str:
        row = {**flatten(result), **recorded}
        if added := [name for name in row if name not in self._columns]:
            self._columns += added
            self.rebuild(-1)
        return csv_line([row.get(name) for name in self._columns])

    def rebuild(self, end: int | None = None) -> None:
        """Write all rows anew; with -1 all but the last."""
        results = read_results(self._folder)[:end]
        # `_nest` has added slashes to the names of recorded values that were in the way of others.
        rows = [{name.replace("//", "/").rstrip("/"): each[name] for name in each} for each in map(flatten, results)]
        self._columns = self._columns or list(dict.fromkeys(name for row in rows for name in row))
        lines = [csv_line([row.get(name) for name in self._columns]) for row in rows]
        with replaced_file(self._path) as fresh:
            text = "".join([csv_line(self._columns), *lines]) if self._columns else ""
            fresh.write_text(text, encoding="utf-8", newline="")
            self._file.close()
        self._file = append_text(self._path)


def csv_line(values: Sequence[Any]) -> str:
    """Return a line of CSV; None becomes an empty field."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
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
    """Remove from a run's logs all entries after an iteration, and incomplete entries; the CSV is made of the others.

    Raises:
        ConfigError: a log is damaged; the message names the file.
    """
    log = folder / RESULT_FILE
    if os.path.lexists(log):
        lines = logged_lines(log, read_regular(log))
        # A file that has another name elsewhere stays there.
        write_whole(log, b"".join(line for line, result in lines if _number(log, result.get("iteration")) <= iteration))
        with closing(CsvFormat(folder)) as table:
            table.rebuild()
    for events in folder.glob("events.out.tfevents.*"):
        whole = read_regular(events)
        kept = _events_until(events, whole, env_steps)
        if kept != whole:  # they are large, and no run appends to those of an earlier start
            write_whole(events, kept)


def _number(path: Path, iteration: Any) -> int:
    try:
        return int(iteration)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{path} is damaged: an iteration is {iteration!r}", key="run") from None


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
            raise ConfigError(f"{path} is damaged: {error}", key="run") from error
        if step <= env_steps:
            kept.append(data[start:end])
        start = end
    return b"".join(kept)


# --- TensorBoard ------------------------------------------------------------------------------------------------------


class EventsFormat(TensorBoardOutputFormat):
    """Writes TensorBoard's events. A thread of TensorBoard writes the file; its errors are raised here, with the file.

    Args:
        folder: the folder that the file goes into.
        most_agents: of more agents or policies, the metrics of each are written as their quantiles.
        always: flat names of metrics of single agents that are written nevertheless.
    """

    name = "tensorboard"

    def __init__(self, folder: Path, most_agents: int, always: Collection[str] = ()) -> None:
        self._most_agents, self._always = most_agents, always
        self._name = str(folder / "events.out.tfevents.*")
        with with_filename(self._name):
            super().__init__(str(folder))

    def write_result(self, result: Result, recorded: Mapping[str, Any], step: int) -> None:
        """Write a result, with what callbacks have recorded; names are flat."""
        shown = flatten(with_quantiles(result, self._most_agents))
        if self._always:
            known = flatten(result)
            shown |= {name: known[name] for name in self._always if name in known}
        self.write({**recorded, **shown}, {}, step)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write and flush the values."""
        kept = filter_excluded_keys(key_values, key_excluded, self.name)
        scalars = {name: float(value) for name, value in kept.items() if isinstance(value, (int, float, np.number))}
        others = {name: value for name, value in kept.items() if name not in scalars}
        with with_filename(self._name):
            # One event for all numbers: an event for each takes ten times as long.
            values = [Summary.Value(tag=name, simple_value=value) for name, value in sorted(scalars.items())]
            assert self.writer.file_writer is not None, "it was made with the writer"
            self.writer.file_writer.add_summary(Summary(value=values), step)
            super().write(others, dict.fromkeys(others, ()), step)  # flushes

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # an error that was reported when it occurred
            super().close()


_QUANTILES = (0, 10, 50, 90, 100)  # percent
_OF_EACH = {  # metrics with a number of each agent or policy
    "num_agent_steps_sampled_lifetime",
    "num_agent_steps_sampled",
    "agent_episode_returns_mean",
    "module_episode_returns_mean",
    "agent_steps",
    "agent_gains_mean",
    "module_gains_mean",
}


def with_quantiles(result: Mapping[str, Any], most: int) -> Result:
    """Replace the metrics of each agent and policy by `quantile_{0,10,50,90,100}`, where there are more than `most`."""
    shown: Result = {}
    for name, value in result.items():
        large = isinstance(value, Mapping) and len(value) > most
        if large and name in _OF_EACH:
            shown[name] = _quantiles(value.values())
        elif large and name == "learners":
            policies = list(value.values())
            names = dict.fromkeys(metric for metrics in policies for metric in metrics)
            shown[name] = {each: _quantiles(metrics.get(each) for metrics in policies) for each in names}
        else:
            shown[name] = with_quantiles(value, most) if isinstance(value, Mapping) else value
    return shown


def _quantiles(values: Iterable[float | None]) -> Result:
    known = [value for value in values if isinstance(value, (int, float))]
    numbers = np.percentile(known, _QUANTILES).tolist() if known else [None] * len(_QUANTILES)
    return {f"quantile_{percent}": number for percent, number in zip(_QUANTILES, numbers, strict=True)}


@contextmanager
def quiet_writers() -> Iterator[None]:
    """Keep TensorBoard's threads from printing tracebacks of errors that `EventsFormat` raises."""
    former = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not (type(failed.thread).__module__.startswith("tensorboard.") and isinstance(failed.exc_value, OSError)):
            former(failed)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = former


# TensorBoard reads files in the order of their names: this file comes first, whenever it is written.
SETTINGS_FILE = "events.out.tfevents.0000000000.settings"

Value = bool | float | str


def write_settings(folder: Path, config: TrainConfig, policy_ids: Sequence[str]) -> None:
    """Write the settings to a file of their own, atomically; after a resume, they replace the former ones."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    file = io.BytesIO()
    for event in _events(config, policy_ids):
        RecordWriter(file).write(event.SerializeToString())
    write_whole(folder / SETTINGS_FILE, file.getvalue())


def hyperparameters(config: TrainConfig, policy_ids: Sequence[str]) -> dict[str, Value]:
    """Return the settings for comparing runs, flat, named as on the command line."""
    of_policies = {
        f"{policy_id}.{key}": value
        for policy_id in policy_ids
        for key, value in config.own_settings.get(policy_id, {}).items()
    }
    env = {f"env.{key}": value for key, value in config.env_kwargs.items()}
    of_run = {"env": config.env, "algo": config.algo, "policies": config.named_policies, "seed": config.seed}
    settings = {**of_run, "n_envs": config.n_envs, **env, **config.hyperparameters, **of_policies}
    values = {name: float(value) if type(value) is int else value for name, value in settings.items()}
    return {name: value if isinstance(value, (bool, float, str)) else str(value) for name, value in values.items()}


def _events(config: TrainConfig, policy_ids: Sequence[str]) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from torch.utils.tensorboard import summary

    make: Any = summary  # it has no types
    experiment, start, _ = make.hparams(hyperparameters(config, policy_ids), {config.checkpoints.metric: None})
    for value in start.value:  # in a fixed order, unlike protobuf: the same run has to write the same bytes
        plugin = value.metadata.plugin_data
        plugin.content = HParamsPluginData.FromString(plugin.content).SerializeToString(deterministic=True)
    # Four spaces mark code in Markdown.
    yaml = "".join(f"    {line}\n" for line in to_yaml(config).splitlines())
    yield Event(file_version="brain.Event:2")
    charts = {title: ["Multiline", [f"^{tag}$" for tag in tags]] for title, tags in _CHARTS.items()}
    for each in (experiment, start, make.text("config", yaml), make.custom_scalars({"run": charts})):
        yield Event(summary=each, step=0)


# The charts of the tab Custom Scalars, the most important first: title -> patterns of the metrics in it. TensorBoard
# sorts all other charts by name, and has no other order.
_CHARTS = {
    "episode_return_mean": ["env_runners/episode_return_mean", "evaluation/env_runners/episode_return_mean"],
    "agent_episode_returns_mean": ["env_runners/agent_episode_returns_mean/.*"],
    "episode_len_mean": ["env_runners/episode_len_mean"],
    "custom_metrics": ["env_runners/custom_metrics/.*_mean"],
    "entropy": ["learners/.*/entropy"],
    "env_steps_per_s": ["throughput/env_steps_per_s"],
}


# --- All of them ------------------------------------------------------------------------------------------------------


@contextmanager
def logs_of(run: Run, outputs: Sequence[ResultWriter] = ()) -> Iterator[None]:
    """Log the metrics of the training to the run folder: as JSON lines, as CSV, and for TensorBoard.

    The run keeps the latest result, as it is logged.

    Args:
        outputs: more that get each result; they stay open.
    """
    folder, config = run.folder, run.config
    logs = (
        lambda: JsonLinesFormat(folder, run.keep_result),
        lambda: CsvFormat(folder),
        lambda: EventsFormat(folder, config.tensorboard_agents, [config.checkpoints.metric, *config.stop]),
    )
    write_settings(folder, config, list(run.algorithm.policies))
    with ExitStack() as cleanup:
        cleanup.enter_context(quiet_writers())
        writers: list[ResultWriter] = [cleanup.enter_context(closing(make())) for make in logs]
        run.algorithm.set_logger(ResultLogger(str(folder), [*writers, *outputs]))
        yield
