"""Settings of a policy that are no hyperparameters of its algorithm, with their defaults and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, cast, get_type_hints

from msgspec import Meta

from marl_sb3.core.config.values import PositiveFloat, Strings, require
from marl_sb3.doors import POLICY_SECTIONS


class PolicySection:
    """Settings of a policy that are no hyperparameters, as a frozen dataclass with their kinds and their defaults."""

    # setting -> the `LearnerPart` for which it asks, or its place, `package.module:NAME`
    parts = MappingProxyType[str, Any]({})  # no annotation, which would make it a setting

    @classmethod
    @cache
    def kinds(cls) -> Mapping[str, Any]:
        """The kinds of the settings by their names."""
        return get_type_hints(cls, include_extras=True)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The settings with these values, by name.

        Raises:
            ConfigError: a value is not accepted, or needs another setting.
        """
        for name, value in values.items():
            require(name, value, cls.kinds()[name])
        return cls(**values)

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults, by name."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(cast("Any", self))}
        return {name: value for name, (value, default) in values.items() if value != default}


def policy_sections() -> dict[str, type[PolicySection]]:
    """Return the sections of settings that each policy may have, by name: processing, and those at the door."""
    return {"processing": ProcessingSettings, **{name: POLICY_SECTIONS[name] for name in POLICY_SECTIONS.names()}}


def section_by_setting() -> dict[str, str]:
    """Return the section of each setting of a policy that is no hyperparameter."""
    return {name: section for section, settings in policy_sections().items() for name in settings.kinds()}


# --- Processing of observations, rewards and actions -----------------------------------------------------------------


_Side = Annotated[int, Meta(ge=1, le=4096)]
_Size = Annotated[Sequence[_Side], Meta(min_length=2, max_length=2, description="a list of height and width")] | None
_Frames = Annotated[int, Meta(ge=1, le=256)]
_Steps = Annotated[int, Meta(ge=1, le=10**9)]


@dataclass(frozen=True)
class ProcessingSettings(PolicySection):
    """What is done to the observations, rewards and actions of a policy, in the order in which it is done."""

    resize: _Size = None  # `[height, width]` of images, by averaging over areas. None: images keep their size.
    grayscale: bool = False  # whether RGB images become images of one channel
    # whether observations are normalised by their running mean and variance, as SB3's `VecNormalize` does
    normalize_observations: bool = False
    normalize_keys: Strings | None = None  # keys of a Dict observation that are normalised. None: all.
    clip_observations: PositiveFloat = 10.0  # limit of normalised observations
    # number of latest observations that are stacked into one, as SB3's `VecFrameStack` does; those of choices become
    # one MultiDiscrete
    frame_stack: _Frames = 1
    previous_action: bool = False  # whether an agent sees its previous action; zeros at the start of an episode
    # whether an agent sees the reward of its previous action; 0 at the start of an episode
    previous_reward: bool = False
    # number of actions over which a number falls from 1 to 0 that the agent sees, as sb3-contrib's `TimeFeatureWrapper`
    # does. None: it does not see one.
    time_feature: _Steps | None = None
    agent_indicator: bool = False  # whether an agent sees which one of the policy's agents it is, one-hot
    # what its agents learn from: the `sum` or the `mean` of the rewards of their team, or `shared`: all of it are paid
    # the same. A team are the agents of a policy, or all that have a policy each. None: each has its own rewards.
    team_reward: Literal["sum", "mean", "shared"] | None = None
    clip_rewards: PositiveFloat | None = None  # limit of rewards, before they are normalised. None: no limit.
    # whether rewards are divided by the running standard deviation of discounted returns, as `VecNormalize` does. The
    # discount is the policy's `gamma`.
    normalize_rewards: bool = False
    clip_normalized_rewards: PositiveFloat = 10.0  # limit of normalised rewards
    normalize_epsilon: PositiveFloat = 1e-8  # added to variances before they divide
    rescale_actions: bool = False  # whether the policy acts in [-1, 1], which becomes the range of the env's Box
