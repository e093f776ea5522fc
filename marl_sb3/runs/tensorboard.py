"""What a run writes for TensorBoard: events, its settings for the HParams tab and as text, and a layout of charts."""

from __future__ import annotations

import io
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import TensorBoardOutputFormat, filter_excluded_keys
from tensorboard.compat.proto.summary_pb2 import Summary

from marl_sb3.core.metrics import Result, flatten
from marl_sb3.files import with_filename, write_whole
from marl_sb3.runs.files import to_yaml
from marl_sb3.runs.schema import TrainConfig


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
        f"{policy_id}.{key}": value for policy_id in policy_ids for key, value in config.own_settings(policy_id).items()
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
