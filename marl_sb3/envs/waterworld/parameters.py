"""The parameters of Waterworld, named as those of PettingZoo's `waterworld_v4`.

Lengths are in sides of the square, times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import numpy as np
from msgspec import Meta

from marl_sb3.core.config.values import Fraction, accepts, words
from marl_sb3.envs.drawn import refused

FOOD_SIZE, POISON_SIZE = 2.0, 0.75  # in radii of a pursuer
BOUND = np.float32(np.sqrt(2))  # of an observation: the speed of two that swim straight at each other along a diagonal

ACTION = "with two numbers in -1..1"  # how a pursuer must act

Number = Annotated[int, Meta(ge=0, le=1000)]
PositiveNumber = Annotated[int, Meta(ge=1, le=1000)]
# Squares of such numbers stay far from overflow.
Acceleration = Annotated[float, Meta(ge=0, le=1e6, description="a number from 0 to 1e+06")]
Reward = Annotated[float, Meta(ge=-1e6, le=1e6, description="a number from -1e+06 to 1e+06")]


@dataclass(frozen=True)
class Parameters:
    """The arguments of `WaterworldEnv`, checked. The sides of the square are 1 long.

    Raises:
        ConfigError: a value is not accepted; the key is that of the setting (`env.n_pursuers`, say).
    """

    n_pursuers: PositiveNumber = 2  # agents
    n_evaders: Number = 5  # foods
    n_poisons: Number = 10
    n_obstacles: Number = 1
    n_coop: PositiveNumber = 1  # pursuers that have to touch a food at the same time in order to eat it
    n_sensors: PositiveNumber = 30  # of each pursuer, evenly spaced
    sensor_range: Annotated[float, Meta(ge=0.001, le=2)] = 0.2  # the diagonal is 1.41 long
    # of a pursuer; a food's is twice, a poison's is 3/4 of it
    radius: Annotated[float, Meta(ge=0.0001, le=0.1)] = 0.015
    obstacle_radius: Fraction = 0.1
    obstacle_coord: Sequence[Sequence[float]] | None = ((0.5, 0.5),)  # centres; None: anew in each episode
    pursuer_max_accel: Acceleration = 0.01  # most velocity that one action adds, per second
    # most velocity along each axis, per second; faster ones would pass through obstacles
    pursuer_speed: Annotated[float, Meta(ge=0.001, le=1)] = 0.2
    evader_speed: Fraction = 0.1  # most initial velocity along each axis, per second
    poison_speed: Fraction = 0.1  # the same
    poison_reward: Reward = -1.0  # for each poison touched
    food_reward: Reward = 10.0  # in a step in which a food is eaten
    encounter_reward: Reward = 0.01  # in each step, for each food touched
    thrust_penalty: Reward = -0.5  # times the length of the thrust
    local_ratio: Fraction = 1.0  # share of a reward that only the pursuer who earned it gets; the rest is averaged
    speed_features: Annotated[bool, Meta(description="a boolean")] = True  # sensors read speeds, too
    max_cycles: Annotated[int, Meta(ge=1, le=10**9)] = 500  # env steps of an episode

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            if name != "obstacle_coord" and not accepts(kind, getattr(self, name)):
                raise refused(name, words(kind), getattr(self, name))
        centres: Any = self.obstacle_coord
        if centres is None:
            return
        pairs = _is_sequence(centres) and all(_is_sequence(centre) and len(centre) == 2 for centre in centres)
        if not pairs or not all(accepts(Fraction, value) for centre in centres for value in centre):
            raise refused("obstacle_coord", "a list of [x, y] with numbers from 0 to 1, or null", centres)
        if len(centres) != self.n_obstacles:
            accepted = f"as many centres as n_obstacles ({self.n_obstacles}), or null for random ones"
            raise refused("obstacle_coord", accepted, centres)

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


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
