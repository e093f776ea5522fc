"""Settings of a policy that are no hyperparameters of its algorithm, with their defaults and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

from msgspec import Meta

from marl_sb3.core.config.algorithms import Decay, Points
from marl_sb3.core.config.values import (
    Count,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    Strings,
    require,
    shown,
)
from marl_sb3.errors import ConfigError

# --- Processing of observations, rewards and actions -----------------------------------------------------------------


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
        frame_stack: number of latest observations that are stacked into one, as SB3's `VecFrameStack` does; those of
            choices become one MultiDiscrete.
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
        return _changed(self)


def _changed(settings: Any) -> dict[str, Any]:
    values = {each.name: (getattr(settings, each.name), each.default) for each in fields(settings)}
    return {name: value for name, (value, default) in values.items() if value != default}


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


# --- Recorded data that policies learn from --------------------------------------------------------------------------


@dataclass(frozen=True)
class DataSettings:
    """Recorded episodes that a policy learns from beside its own; see `docs/how_to/learning_from_data.md`.

    Attributes:
        imitation_data: path of recorded episodes whose actions a policy with rollouts learns beside its own loss. None:
            no such data.
        imitation_coefficient: weight of that loss; a number or a schedule, as of learning_rate.
        replay_data: path of recorded episodes that the replay buffer has from the start. None: it begins empty.
        replay_data_share: share of each minibatch that is drawn from that data, which are then kept apart and never
            overwritten. None: they are in the replay buffer like all other transitions.
        replay_data_updates: gradient steps that the first update takes in addition, mostly on that data.
    """

    imitation_data: str | None = None
    imitation_coefficient: NonNegativeFloat | Decay | Points = 0.1
    replay_data: str | None = None
    replay_data_share: Fraction | None = None
    replay_data_updates: Count = 0

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults, by name."""
        return _changed(self)


# The kinds of the settings by their names.
DATA: Mapping[str, Any] = dict(get_type_hints(DataSettings, include_extras=True))


def data_settings(values: Mapping[str, Any]) -> DataSettings:
    """The settings with these values, by name.

    Raises:
        ConfigError: a value is not accepted, or one needs another.
    """
    for name, value in values.items():
        require(name, value, DATA[name])
    made = DataSettings(**values)
    for name in made.changed():
        path = "imitation_data" if name.startswith("imitation") else "replay_data"
        if getattr(made, path) is None:
            raise ConfigError(f"{name} is {shown(values[name])}, but there is no {path}", key=name)
    return made


# The settings of a policy that are no hyperparameters -> the section that they have in a run.
OF_POLICIES: Mapping[str, str] = {**dict.fromkeys(PROCESSING, "processing"), **dict.fromkeys(DATA, "data")}
