"""The settings of processing get to the policies by every way, as one typed object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.config.settings import ProcessingSettings
from marl_sb3.core.state.state import StateReader
from marl_sb3.runs.building import policy_spec, resolved
from marl_sb3.runs.files import to_yaml
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import load_config

WAYS: dict[str, Any] = {
    "--set": {"settings": {"frame_stack": 4, "normalize_rewards": True}},
    "--set with the section": {"settings": {"processing.frame_stack": 4.0, "processing.normalize_rewards": True}},
    "a file": {"hparams": {"arena": {"processing": {"frame_stack": 4, "normalize_rewards": True}}}},
    "a file without the section": {"hparams": {"arena": {"frame_stack": 4, "normalize_rewards": True}}},
    "one policy": {"policies": "per_agent", "settings": {"agent1.frame_stack": 4, "agent1.normalize_rewards": True}},
    "one policy with the section": {
        "policies": "per_agent",
        "settings": {"agent1.processing.frame_stack": 4, "normalize_rewards": True},
    },
    "one policy against all": {
        "policies": "per_agent",
        "settings": {"agent1.frame_stack": 4, "frame_stack": 9, "normalize_rewards": True},
    },
    "a file's policies": {
        "hparams": {
            "arena": {
                "normalize_rewards": True,
                "policies": {"agent1": {"agents": ["agent1"], "processing": {"frame_stack": 4}}, "agent2": {}},
            }
        }
    },
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_leads_to_the_same_object(way: dict[str, Any], tmp_path: Path) -> None:
    config = load_config("arena", **way)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(resolved(config)))
    for each in (config, load_config("arena", hparams=file)):
        assert policy_spec(each, "agent1").processing == ProcessingSettings(frame_stack=4, normalize_rewards=True)


def test_policies_with_another_algorithm_are_processed_as_all_others() -> None:
    settings = {"agent2.algo": "a2c", "frame_stack": 4}
    config = resolved(load_config("arena", policies="per_agent", settings=settings))
    assert policy_spec(config, "agent2").processing.frame_stack == 4


def test_everything_is_off() -> None:
    assert TrainConfig("arena").processing == ProcessingSettings() == PolicySpec().processing
    assert ProcessingSettings().changed() == {}


def test_the_library_takes_the_same_names() -> None:
    expected = ProcessingSettings(clip_rewards=0.5, time_feature=9)
    specs = [
        PolicySpec(clip_rewards=0.5, time_feature=9),
        PolicySpec(processing={"clip_rewards": 0.5, "time_feature": 9}),
        PolicySpec(clip_rewards=0.5).with_defaults({"clip_rewards": 3.0, "time_feature": 9}),
    ]
    assert [spec.processing for spec in specs] == [expected] * 3
    plain = specs[0].to_plain()
    assert plain is not None
    assert PolicySpec.from_plain(StateReader(plain)).processing == expected
    algorithm = MultiAgentAlgorithm(make_vec_env("arena"), n_steps=8, batch_size=8, clip_rewards=0.5, device="cpu")
    assert algorithm.parts.learners["shared"].processing.settings == ProcessingSettings(clip_rewards=0.5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"frame_stack": -1}, "--set frame_stack: processing.frame_stack is -1; accepted: an integer from 1 to 256"),
        ({"frame_stack": 2, "processing.frame_stack": 3}, "are both given"),
    ],
)
def test_wrong_settings_are_refused_with_their_source(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        policy_spec(load_config("arena", settings=settings), "shared")
