"""The settings of a policy that learns from recorded data; commands read them before they import PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from typing_extensions import override

from marl_sb3.core.config.algorithms import Decay, Points
from marl_sb3.core.config.settings import PolicySection
from marl_sb3.core.config.values import Count, Fraction, NonNegativeFloat
from marl_sb3.errors import ConfigError, shown


@dataclass(frozen=True)
class DataSettings(PolicySection):
    """Recorded episodes that a policy learns from beside its own; see `docs/how_to/learning_from_data.md`."""

    parts = MappingProxyType[str, Any](
        {
            "imitation_data": "marl_sb3.extensions.data.recorded_data:ImitationData",
            "replay_data": "marl_sb3.extensions.data.recorded_data:ReplayData",
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

    @classmethod
    @override
    def of(cls, values: Mapping[str, Any]) -> Self:
        made = super().of(values)
        for name in made.changed():
            path = "imitation_data" if name.startswith("imitation") else "replay_data"
            if getattr(made, path) is None:
                raise ConfigError(f"{name} is {shown(values[name])}, but there is no {path}", key=name)
        return made
