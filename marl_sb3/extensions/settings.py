"""The settings of policies beside those of the core; commands read them before they import PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from msgspec import Meta
from typing_extensions import override

from marl_sb3.core.config.algorithms import Decay, Points
from marl_sb3.core.config.settings import PolicySection
from marl_sb3.core.config.values import Count, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from marl_sb3.errors import ConfigError, shown

_Widths = Annotated[Sequence[PositiveInt], Meta(min_length=1, max_length=100)]


class _SettingsOfParts(PolicySection):
    """Settings that mean something beside others alone."""

    only_with = MappingProxyType[str, str]({})  # setting -> the other one; no annotation, which would make it a setting

    @classmethod
    @override
    def of(cls, values: Mapping[str, Any]) -> Self:
        made = super().of(values)
        for name in made.changed():
            other = cls.only_with.get(name)
            if other is not None and not getattr(made, other):
                raise ConfigError(f"{name} is {shown(values[name])}, but {other} is not set", key=name)
        return made


@dataclass(frozen=True)
class DataSettings(_SettingsOfParts):
    """Recorded episodes that a policy learns from beside its own; see `docs/how_to/learning_from_data.md`."""

    parts = MappingProxyType[str, Any](
        {
            "imitation_data": "marl_sb3.extensions.data.recorded_data:ImitationData",
            "replay_data": "marl_sb3.extensions.data.recorded_data:ReplayData",
        }
    )

    only_with = MappingProxyType(
        {
            "imitation_coefficient": "imitation_data",
            "replay_data_share": "replay_data",
            "replay_data_updates": "replay_data",
        }
    )

    # path of recorded episodes whose actions a policy with rollouts learns beside its own loss. None: no such data.
    imitation_data: str | None = None
    # weight of that loss; a number or a schedule, as of learning_rate
    imitation_coefficient: NonNegativeFloat | Decay | Points = 0.1
    # path of recorded episodes that the replay buffer has from the start. None: it begins empty.
    replay_data: str | None = None
    # share of each minibatch that is drawn from that data, which are then kept apart and never overwritten. None: they
    # are in the replay buffer like all other transitions.
    replay_data_share: Fraction | None = None
    replay_data_updates: Count = 0  # gradient steps that the first update takes in addition, mostly on that data


@dataclass(frozen=True)
class CentralSettings(_SettingsOfParts):
    """A critic that sees the whole env in training; see `docs/how_to/teams.md`."""

    parts = MappingProxyType[str, Any]({"central_critic": "marl_sb3.extensions.central.twin:CriticSelector"})
    only_with = MappingProxyType(dict.fromkeys(("central_critic_net", "central_critic_popart"), "central_critic"))

    # whether critics that see the whole env replace those of the policy: they see the env's `state()` where the setting
    # `env_state` shows it, else what all agents observe; those of SAC, TD3 and DDPG see all actions, too. The actor
    # sees its own agent.
    central_critic: bool = False
    central_critic_net: _Widths = (128, 128)  # widths of the layers of such a critic
    # whether a critic of a policy with rollouts learns values in units of their running mean and standard deviation
    # (PopArt)
    central_critic_popart: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "central_critic_net", tuple(self.central_critic_net))  # files have lists


@dataclass(frozen=True)
class LearningSettings(_SettingsOfParts):
    """What a policy is paid beside the rewards of its env; see `docs/how_to/curiosity.md`."""

    parts = MappingProxyType[str, Any]({"curiosity": "marl_sb3.extensions.curiosity:Curiosity"})
    only_with = MappingProxyType(dict.fromkeys(("curiosity_scale", "curiosity_learning_rate"), "curiosity"))

    # what agents are paid for in training beside the rewards of the env: `rnd`, random network distillation, for
    # observations that are new to them. None: for nothing.
    curiosity: Literal["rnd"] | None = None
    # what they are paid is multiplied by this, a number or a schedule, as of learning_rate; before, the standard
    # deviation of its discounted sums is 1
    curiosity_scale: NonNegativeFloat | Decay | Points = 10.0
    curiosity_learning_rate: PositiveFloat = 1e-4  # of the network that learns what is not new
