"""The settings of a policy with a central critic; commands read them before they import PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Self

from msgspec import Meta
from typing_extensions import override

from marl_sb3.core.config.settings import PolicySection
from marl_sb3.core.config.values import PositiveInt
from marl_sb3.errors import ConfigError, shown

_Widths = Annotated[Sequence[PositiveInt], Meta(min_length=1, max_length=100)]


@dataclass(frozen=True)
class CentralSettings(PolicySection):
    """A critic that sees the whole env in training; see `docs/how_to/teams.md`."""

    parts = MappingProxyType[str, Any]({"central_critic": "marl_sb3.extensions.central.twin:CriticSelector"})

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

    @classmethod
    @override
    def of(cls, values: Mapping[str, Any]) -> Self:
        made = super().of(values)
        for name in made.changed():
            if not made.central_critic:
                raise ConfigError(f"{name} is {shown(values[name])}, but central_critic is not set", key=name)
        return made
