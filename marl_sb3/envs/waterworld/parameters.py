"""The parameters of Waterworld, named as those of PettingZoo's `waterworld_v4`.

Lengths are in sides of the square, times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_sb3.errors import ConfigError, shown
from marl_sb3.types import AgentID

FOOD_SIZE, POISON_SIZE = 2.0, 0.75  # in radii of a pursuer
BOUND = np.float32(np.sqrt(2))  # of an observation: the speed of two that swim straight at each other along a diagonal
_MAX_NUMBER = 1e6  # of rewards and speeds; squares of such numbers stay far from overflow


@dataclass(frozen=True)
class Parameters:
    """The arguments of `WaterworldEnv`, checked. The sides of the square are 1 long.

    Raises:
        ConfigError: a value is not accepted; the key is that of the setting (`env.n_pursuers`, say).
    """

    n_pursuers: int = 2  # agents
    n_evaders: int = 5  # foods
    n_poisons: int = 10
    n_obstacles: int = 1
    n_coop: int = 1  # pursuers that have to touch a food at the same time in order to eat it
    n_sensors: int = 30  # of each pursuer, evenly spaced
    sensor_range: float = 0.2
    radius: float = 0.015  # of a pursuer; a food's is twice, a poison's is 3/4 of it
    obstacle_radius: float = 0.1
    obstacle_coord: Sequence[Sequence[float]] | None = ((0.5, 0.5),)  # centres; None: anew in each episode
    pursuer_max_accel: float = 0.01  # most velocity that one action adds, per second
    pursuer_speed: float = 0.2  # most velocity along each axis, per second
    evader_speed: float = 0.1  # most initial velocity along each axis, per second
    poison_speed: float = 0.1  # the same
    poison_reward: float = -1.0  # for each poison touched
    food_reward: float = 10.0  # in a step in which a food is eaten
    encounter_reward: float = 0.01  # in each step, for each food touched
    thrust_penalty: float = -0.5  # times the length of the thrust
    local_ratio: float = 1.0  # share of a reward that only the pursuer who earned it gets; the rest is averaged
    speed_features: bool = True  # sensors read speeds, too
    max_cycles: int = 500  # env steps of an episode

    def __post_init__(self) -> None:
        for name, (fewest, most) in _COUNTS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not fewest <= value <= most:
                raise _refused(name, f"an integer from {fewest} to {most}", value)
        for name, (lowest, highest) in _RANGES.items():
            value = getattr(self, name)
            if not _is_number(value, lowest, highest):
                raise _refused(name, f"a number from {lowest:g} to {highest:g}", value)
        if not isinstance(self.speed_features, bool):
            raise _refused("speed_features", "a boolean", self.speed_features)
        centres: Any = self.obstacle_coord
        if centres is None:
            return
        pairs = _is_sequence(centres) and all(_is_sequence(centre) and len(centre) == 2 for centre in centres)
        if not pairs or not all(_is_number(value, 0, 1) for centre in centres for value in centre):
            raise _refused("obstacle_coord", "a list of [x, y] with numbers from 0 to 1, or null", centres)
        if len(centres) != self.n_obstacles:
            words = f"as many centres as n_obstacles ({self.n_obstacles}), or null for random ones"
            raise _refused("obstacle_coord", words, centres)

    @property
    def n_foods_and_poisons(self) -> int:
        """How many objects swim by themselves."""
        return self.n_evaders + self.n_poisons

    @property
    def n_objects(self) -> int:
        """Of everything that moves."""
        return self.n_pursuers + self.n_foods_and_poisons

    @property
    def observation_size(self) -> int:
        """How many numbers a pursuer sees."""
        return (8 if self.speed_features else 5) * self.n_sensors + 2

    @property
    def agents(self) -> tuple[str, ...]:
        """`pursuer_0`, `pursuer_1`, ..."""
        return tuple(f"pursuer_{number}" for number in range(self.n_pursuers))


_COUNTS = {
    "n_pursuers": (1, 1000),
    "n_evaders": (0, 1000),
    "n_poisons": (0, 1000),
    "n_obstacles": (0, 1000),
    "n_coop": (1, 1000),
    "n_sensors": (1, 1000),
    "max_cycles": (1, 10**9),
}
_RANGES = {
    "sensor_range": (0.001, 2.0),  # the diagonal is 1.41 long
    "radius": (0.0001, 0.1),
    "obstacle_radius": (0.0, 1.0),
    "pursuer_max_accel": (0.0, _MAX_NUMBER),
    "pursuer_speed": (0.001, 1.0),  # faster ones would pass through obstacles
    "evader_speed": (0.0, 1.0),
    "poison_speed": (0.0, 1.0),
    "poison_reward": (-_MAX_NUMBER, _MAX_NUMBER),
    "food_reward": (-_MAX_NUMBER, _MAX_NUMBER),
    "encounter_reward": (-_MAX_NUMBER, _MAX_NUMBER),
    "thrust_penalty": (-_MAX_NUMBER, _MAX_NUMBER),
    "local_ratio": (0.0, 1.0),
}


def _is_number(value: Any, lowest: float, highest: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and lowest <= value <= highest


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _refused(name: str, accepted: str, value: Any) -> ConfigError:
    return ConfigError(f"{name} must be {accepted}; received {shown(value)}", key=f"env.{name}")


def refused_action(agent: AgentID, received: str) -> str:
    """Return what to say of an action that is not accepted."""
    return f"{agent} must act with two numbers in -1..1; received {received}"
