"""A run's settings for TensorBoard: its HParams tab, and the whole configuration as text."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from marl_sb3.config import TrainConfig, to_yaml
from marl_sb3.storage.atomic import write_whole

# TensorBoard reads a folder's files in the order of their names: this one comes first, whenever it is written.
SETTINGS_FILE = "events.out.tfevents.0000000000.settings"

Value = bool | float | str


def write_settings(folder: Path, config: TrainConfig, policy_ids: Sequence[str]) -> None:
    """Write the settings to a file of their own, whole or not at all, in place of those of before a resume."""
    write_whole(folder / SETTINGS_FILE, b"".join(map(_record, _events(config, policy_ids))))


def hyperparameters(config: TrainConfig, policy_ids: Sequence[str]) -> dict[str, Value]:
    """The settings that runs are compared by, flat, under their names on the command line."""
    own: dict[str, Any] = {}
    for policy_id in policy_ids:
        own.update({f"{policy_id}.{key}": value for key, value in config.own_settings(policy_id).items()})
    env = {f"env.{key}": value for key, value in config.env_kwargs.items()}
    policies = config.policies if isinstance(config.policies, str) else ", ".join(config.policies)
    of_run = {"env": config.env, "algo": config.algo, "policies": policies, "seed": config.seed}
    settings = {**of_run, "n_envs": config.n_envs, **env, **config.hyperparameters, **own}
    return {name: _value(value) for name, value in settings.items()}


def _value(value: Any) -> Value:
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if isinstance(value, (bool, float, str)) else str(value)


def _events(config: TrainConfig, policy_ids: Sequence[str]) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from torch.utils.tensorboard import summary

    make: Any = summary  # it has no types
    yield Event(file_version="brain.Event:2")
    experiment, start, _ = make.hparams(hyperparameters(config, policy_ids), {config.checkpoints.metric: None})
    # Four spaces make code of it in Markdown.
    yaml = "".join(f"    {line}\n" for line in to_yaml(config).splitlines())
    for each in (experiment, _in_one_order(start), make.text("config", yaml)):
        yield Event(summary=each, step=0)


def _in_one_order(summary: Any) -> Any:
    """Protobuf writes mappings in any order: the same run has to write the same bytes."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    for value in summary.value:
        plugin = value.metadata.plugin_data
        plugin.content = HParamsPluginData.FromString(plugin.content).SerializeToString(deterministic=True)
    return summary


def _record(event: Any) -> bytes:
    """An event as it stands in TensorBoard's files."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    file = io.BytesIO()
    RecordWriter(file).write(event.SerializeToString())
    return file.getvalue()
