"""The settings of processing: what is done to a policy's observations, rewards and actions. All of it is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

from msgspec import Meta

from marl_sb3.config.values import PositiveFloat, Strings, require

_Side = Annotated[int, Meta(ge=1, le=4096)]
_Size = Annotated[Sequence[_Side], Meta(min_length=2, max_length=2, description="a list of height and width")] | None
_Frames = Annotated[int, Meta(ge=1, le=256)]
_Steps = Annotated[int, Meta(ge=1, le=10**9)]


@dataclass(frozen=True)
class ProcessingSettings:
    """What is done to the observations, rewards and actions of a policy, in the order in which it is done.

    Attributes:
        resize: `[height, width]` of images, by averaging over areas. None: images keep their size.
        grayscale: whether RGB images become images of one channel.
        normalize_observations: whether observations are normalised by their running mean and variance, as SB3's
            `VecNormalize` does.
        normalize_keys: keys of a Dict observation that are normalised. None: all.
        clip_observations: limit of normalised observations.
        frame_stack: number of latest observations that are stacked into one, as SB3's `VecFrameStack` does.
        previous_action: whether an agent sees its previous action; zeros at the start of an episode.
        previous_reward: whether an agent sees the reward of its previous action; 0 at the start of an episode.
        time_feature: number of actions over which a number falls from 1 to 0 that the agent sees, as sb3-contrib's
            `TimeFeatureWrapper` does. None: it does not see one.
        agent_indicator: whether an agent sees which one of the policy's agents it is, one-hot.
        clip_rewards: limit of rewards, before they are normalised. None: no limit.
        normalize_rewards: whether rewards are divided by the running standard deviation of discounted returns, as
            `VecNormalize` does. The discount is the policy's `gamma`.
        clip_normalized_rewards: limit of normalised rewards.
        normalize_epsilon: added to variances before they divide.
        rescale_actions: whether the policy acts in [-1, 1], which becomes the range of the env's Box.
    """

    resize: _Size = None
    grayscale: bool = False
    normalize_observations: bool = False
    normalize_keys: Strings | None = None
    clip_observations: PositiveFloat = 10.0
    frame_stack: _Frames = 1
    previous_action: bool = False
    previous_reward: bool = False
    time_feature: _Steps | None = None
    agent_indicator: bool = False
    clip_rewards: PositiveFloat | None = None
    normalize_rewards: bool = False
    clip_normalized_rewards: PositiveFloat = 10.0
    normalize_epsilon: PositiveFloat = 1e-8
    rescale_actions: bool = False

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults, by name."""
        return {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }


# The kinds of the settings by their names.
PROCESSING: Mapping[str, Any] = dict(get_type_hints(ProcessingSettings, include_extras=True))


def processing_settings(values: Mapping[str, Any]) -> ProcessingSettings:
    """The settings with these values, by name.

    Raises:
        ConfigError: a value is not accepted.
    """
    for name, value in values.items():
        require(name, value, PROCESSING[name])
    return ProcessingSettings(**values)


def split_processing(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the settings of a policy: those of its processing, and all others."""
    own = {name: value for name, value in settings.items() if name in PROCESSING}
    return own, {name: value for name, value in settings.items() if name not in PROCESSING}
