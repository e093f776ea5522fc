"""The settings of a run for TensorBoard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from marl_sb3.runs.files import to_yaml
from marl_sb3.runs.logs import SETTINGS_FILE, write_settings
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import load_config

IDS = ["agent1", "agent2"]


def config() -> TrainConfig:
    settings = {"agent1.learning_rate": 1e-3, "env.height": 6, "learning_rate": "lin_3e-4", "use_sde": False}
    return load_config("arena", settings=settings, policies="per_agent", seed=3)


def values(folder: Path) -> dict[str, Any]:
    """What the file holds, by tag."""
    events = list(LegacyEventFileLoader(str(folder / SETTINGS_FILE)).Load())
    assert {event.step for event in events} == {0}
    return {value.tag: value for event in events for value in event.summary.value}


def test_hyperparameters_are_in_tensorboards_own_form(tmp_path: Path) -> None:
    write_settings(tmp_path, config(), IDS)
    found = values(tmp_path)
    start = found["_hparams_/session_start_info"].metadata.plugin_data
    assert start.plugin_name == "hparams"
    hparams = HParamsPluginData.FromString(start.content).session_start_info.hparams
    shown = {name: getattr(value, str(value.WhichOneof("kind"))) for name, value in hparams.items()}
    expected = {"env": "arena", "policies": "per_agent", "seed": 3.0, "env.height": 6.0, "use_sde": False}
    expected |= {"learning_rate": "lin_3e-4", "agent1.learning_rate": 1e-3}
    assert {name: shown[name] for name in expected} == expected
    experiment = HParamsPluginData.FromString(found["_hparams_/experiment"].metadata.plugin_data.content).experiment
    assert [info.name.tag for info in experiment.metric_infos] == ["env_runners/episode_return_mean"]
    assert {info.name for info in experiment.hparam_infos} == set(shown)


def test_the_configuration_is_there_as_text(tmp_path: Path) -> None:
    write_settings(tmp_path, config(), IDS)
    text = values(tmp_path)["config/text_summary"].tensor.string_val[0].decode()
    assert "".join(line.removeprefix("    ") + "\n" for line in text.splitlines()) == to_yaml(config())


def test_the_mean_return_is_the_first_chart_of_custom_scalars(tmp_path: Path) -> None:
    write_settings(tmp_path, config(), IDS)
    layout = Layout.FromString(values(tmp_path)["custom_scalars__config__"].tensor.string_val[0])
    (category,) = layout.category
    first, second = [(chart.title, list(chart.multiline.tag)) for chart in category.chart][:2]
    returns = ["^env_runners/episode_return_mean$", "^evaluation/env_runners/episode_return_mean$"]
    assert first == ("episode_return_mean", returns)
    assert second == ("agent_episode_returns_mean", ["^env_runners/agent_episode_returns_mean/.*$"])


def test_the_settings_of_a_resumed_run_take_the_place_of_the_former_ones(tmp_path: Path) -> None:
    write_settings(tmp_path, replace(config(), n_timesteps=7), IDS)
    write_settings(tmp_path, config(), IDS)
    first = (tmp_path / SETTINGS_FILE).read_bytes()
    write_settings(tmp_path, config(), IDS)
    assert (tmp_path / SETTINGS_FILE).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [SETTINGS_FILE]
    assert sorted([SETTINGS_FILE, "events.out.tfevents.1795310150.vm.1.0"])[0] == SETTINGS_FILE
