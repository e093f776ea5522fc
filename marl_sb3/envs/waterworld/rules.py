"""The parameters of Waterworld, named as those of PettingZoo's `waterworld_v4`, and its rules for E ponds at once.

Arrays go in and come out; draws come from each pond's own generator. Both the `ParallelEnv` (E = 1) and the batched env
use the rules. Every array has the ponds as its leading axis (E). P pursuers, F foods and K poisons stand on the object
axis in this order: N = P + F + K. Lengths are in sides of the square, times in seconds, and x and y have an axis of
their own, so that arithmetic runs along the objects.

Sums run in a fixed order and nothing goes through BLAS: a pond's numbers do not depend on how many others there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marl_sb3.core.config import shown
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, BoolArray

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
        if not _is_sequence(centres) or not all(_is_sequence(centre) and _is_place(centre) for centre in centres):
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

NAMES = tuple(field.name for field in fields(Parameters))


def _is_number(value: Any, lowest: float, highest: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and lowest <= value <= highest


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_place(centre: Sequence[Any]) -> bool:
    return len(centre) == 2 and all(_is_number(value, 0, 1) for value in centre)


def _refused(name: str, accepted: str, value: Any) -> ConfigError:
    return ConfigError(f"{name} must be {accepted}; received {shown(value)}", key=f"env.{name}")


FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

STEP_S = 1 / 15  # of simulated time
FOOD_SIZE, POISON_SIZE = 2.0, 0.75  # in radii of a pursuer
WALL_ELASTICITY = 0.999
# What lies deeper than _SLOP in a wall or an obstacle is pushed out by this part of the depth in the next step: the
# constants of pymunk's default space, at 750 pixels to a side.
_SLOP = 0.1 / 750
_PUSH = 1 - 0.9 ** (60 * STEP_S)
_MAX_DRAWS = 1000  # of a position that is clear of obstacles, where there may be none


class Pond:
    """What all ponds of the same parameters share."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters  # as given
        counts = (parameters.n_pursuers, parameters.n_evaders, parameters.n_poisons)
        radius, speeds = parameters.radius, (parameters.pursuer_speed, parameters.evader_speed, parameters.poison_speed)
        self.radii = np.repeat([radius, FOOD_SIZE * radius, POISON_SIZE * radius], counts)  # (N,), of what moves
        # (N,), along each axis; those of foods and poisons at the start
        self.max_speeds = np.repeat(np.array(speeds, dtype=np.float64), counts)
        self.touch_distances_squared = (self.radii[parameters.n_pursuers :] + radius) ** 2  # (F + K,)
        self.start_speeds = np.where(np.arange(parameters.n_objects) < parameters.n_pursuers, 0.0, self.max_speeds)


@dataclass(slots=True)
class PondState:
    """E ponds in the middle of their episodes. `step` and `begin_episode` write into these arrays."""

    positions: FloatArray  # (E, 2, N) float64; x and y of every centre
    velocities: FloatArray  # (E, 2, N) float64; per second
    pushes: FloatArray  # (E, 2, N) float64; what walls and obstacles add to the next move
    obstacles: FloatArray  # (E, 2, n_obstacles) float64; centres
    touching: BoolArray  # (E, P, F + K) bool; which pursuer touched what in the latest step
    counters: IntArray  # (E, F) int64; how many pursuers hold a food, less what `_eat` says
    poisoned: BoolArray  # (E, P) bool; who touched a new poison in the latest step
    timesteps: IntArray  # (E,) int64; env steps since the start of the episode


class Events(NamedTuple):
    """What happened to each pursuer in a step: (E, P) arrays."""

    food_encounters: IntArray  # int64; foods that it began to touch
    fed: BoolArray  # bool; it was paid `food_reward`
    captures: IntArray  # int64; foods that it has eaten and left: they are somewhere else now
    poison_hits: IntArray  # int64; poisons that it began to touch


def empty_state(num_ponds: int, parameters: Parameters) -> PondState:
    """Return E ponds without objects in sensible places: `begin_episode` puts them there."""
    shape = (num_ponds, 2, parameters.n_objects)
    per_pair = (num_ponds, parameters.n_pursuers, parameters.n_foods_and_poisons)
    return PondState(
        positions=np.zeros(shape),
        velocities=np.zeros(shape),
        pushes=np.zeros(shape),
        obstacles=np.zeros((num_ponds, 2, parameters.n_obstacles)),
        touching=np.zeros(per_pair, dtype=np.bool_),
        counters=np.zeros((num_ponds, parameters.n_evaders), dtype=np.int64),
        poisoned=np.zeros((num_ponds, parameters.n_pursuers), dtype=np.bool_),
        timesteps=np.zeros(num_ponds, dtype=np.int64),
    )


def begin_episode(state: PondState, index: int, pond: Pond, rng: np.random.Generator) -> None:
    """Start an episode in one pond, in place: all objects anywhere, also on each other; pursuers at rest."""
    parameters = pond.parameters
    places, directions = rng.random((2, 2, parameters.n_objects))
    state.positions[index] = places
    state.velocities[index] = (2 * directions - 1) * pond.start_speeds
    if parameters.obstacle_coord is None:
        state.obstacles[index] = rng.random((2, parameters.n_obstacles))
    elif parameters.n_obstacles:
        state.obstacles[index] = np.transpose(parameters.obstacle_coord)
    for array in (state.pushes, state.touching, state.counters, state.poisoned, state.timesteps):
        array[index] = 0


def step(
    state: PondState, pond: Pond, actions: FloatArray, rngs: Sequence[np.random.Generator]
) -> tuple[FloatArray, Events]:
    """Move everything in every pond once, in place; return the rewards, (E, P) float64, and what happened.

    It does not know how long an episode is: the caller compares `state.timesteps` with its limit.

    Args:
        state: E ponds; changed in place.
        pond: what they share.
        actions: (E, P, 2) float64 in -1..1. Not checked.
        rngs: one generator for each pond; for new places of what was eaten or touched.
    """
    parameters = pond.parameters
    thrusts = _thrust(state, parameters, actions)
    state.positions += state.velocities * STEP_S + state.pushes
    events, moved = _meet(state, pond)
    _bounce_off_walls(state, pond.radii)
    _bounce_off_obstacles(state, pond)
    _replace(state, pond, moved, rngs)
    state.timesteps += 1
    return _rewards(state, parameters, thrusts, events), events


def refused_action(agent: AgentID, received: str) -> str:
    """Return what to say of an action that `step` does not accept."""
    return f"{agent} must act with two numbers in -1..1; received {received}"


def _thrust(state: PondState, parameters: Parameters, actions: FloatArray) -> FloatArray:
    """Add the pursuers' thrusts to their velocities; return the lengths of the thrusts, (E, P)."""
    most = parameters.pursuer_max_accel
    thrusts = actions.swapaxes(1, 2) * most
    lengths: FloatArray = np.sqrt(thrusts[:, 0] ** 2 + thrusts[:, 1] ** 2)
    too_long = lengths > most
    if too_long.any():
        thrusts *= np.divide(most, lengths, out=np.ones_like(lengths), where=too_long)[:, None]
        lengths = np.minimum(lengths, most)
    own = state.velocities[:, :, : parameters.n_pursuers]
    np.clip(own + thrusts, -parameters.pursuer_speed, parameters.pursuer_speed, out=own)
    return lengths


def _meet(state: PondState, pond: Pond) -> tuple[Events, BoolArray]:
    """Find what the pursuers begin and cease to touch; return the events, and what is eaten or spent, (E, F + K)."""
    n_pursuers, n_foods = pond.parameters.n_pursuers, pond.parameters.n_evaders
    positions = state.positions
    apart = positions[:, :, None, n_pursuers:] - positions[:, :, :n_pursuers, None]  # (E, 2, P, F + K)
    touching: BoolArray = apart[:, 0] ** 2 + apart[:, 1] ** 2 < pond.touch_distances_squared
    began, ceased = touching & ~state.touching, state.touching & ~touching
    state.touching = touching

    fed, taken = _eat(state.counters, began[..., :n_foods], ceased[..., :n_foods], pond.parameters.n_coop)
    hits = began[..., n_foods:]
    state.poisoned = np.any(hits, axis=2)
    events = Events(began[..., :n_foods].sum(axis=2), fed, taken.sum(axis=2), hits.sum(axis=2))
    return events, np.concatenate((taken.any(axis=1), hits.any(axis=1)), axis=1)


def _eat(counters: IntArray, began: BoolArray, ceased: BoolArray, n_coop: int) -> tuple[BoolArray, BoolArray]:
    """Count who holds which food, in place; return who is paid, (E, P), and who takes what away, (E, P, F).

    A pursuer counts when it begins to touch a food, and is paid if there are `n_coop` then. The first one that ceases
    to touch a food with `n_coop` is paid again and takes it away; the counter starts again from 0. Those that held the
    food, too, still count less one each when they cease: as in `waterworld_v4`, where such a food therefore needs more
    pursuers the next time.

    Args:
        counters: (E, F) int64; changed in place.
        began: (E, P, F); who begins to touch what.
        ceased: (E, P, F); who ceases to touch what.
        n_coop: pursuers that a food takes.
    """
    held = counters[:, None] + began.cumsum(axis=1)
    paid = (began & (held >= n_coop)).any(axis=2)
    counters += began.sum(axis=1)
    order = ceased.cumsum(axis=1)
    taken: BoolArray = ceased & (order == 1) & (counters >= n_coop)[:, None]
    was_taken = taken.any(axis=1)
    np.copyto(counters, 1, where=was_taken)  # 0, and the one that takes it is not counted
    counters -= order[:, -1]
    return paid | taken.any(axis=2), taken


def _bounce_off_walls(state: PondState, radii: FloatArray) -> None:
    """Turn back what runs into a wall, and set `pushes` for what lies in one."""
    depths_low, depths_high = radii - state.positions, state.positions - (1 - radii)
    into = (depths_low > 0) & (state.velocities < 0) | (depths_high > 0) & (state.velocities > 0)
    np.multiply(state.velocities, -WALL_ELASTICITY, out=state.velocities, where=into)
    state.pushes = _push(depths_low) - _push(depths_high)


def _push(depths: FloatArray) -> FloatArray:
    pushes: FloatArray = np.maximum(depths - _SLOP, 0) * _PUSH
    return pushes


def _bounce_off_obstacles(state: PondState, pond: Pond) -> None:
    """Turn back what runs into an obstacle, without loss, and add to `pushes` what lies in one."""
    reaches = pond.radii + pond.parameters.obstacle_radius
    for centre in np.moveaxis(state.obstacles, 2, 0):  # (E, 2)
        apart = state.positions - centre[:, :, None]
        distances_squared = apart[:, 0] ** 2 + apart[:, 1] ** 2
        ponds, objects = np.nonzero(distances_squared < reaches**2)
        if ponds.size:
            distances = np.sqrt(distances_squared[ponds, objects])
            x, y = apart[ponds, 0, objects], apart[ponds, 1, objects]
            nowhere = distances == 0  # in the very centre: to the right
            across = np.where(nowhere, 1.0, distances)
            _bounce(state, ponds, objects, np.where(nowhere, 1.0, x / across), y / across, reaches[objects] - distances)


def _bounce(state: PondState, ponds: Array, objects: Array, x: FloatArray, y: FloatArray, depths: FloatArray) -> None:
    """Mirror the velocities of these objects that point against the normal (x, y)."""
    speed = state.velocities[ponds, 0, objects] * x + state.velocities[ponds, 1, objects] * y
    change = -2 * np.minimum(speed, 0)
    pushes = _push(depths)
    for axis, normal in enumerate((x, y)):
        state.velocities[ponds, axis, objects] += change * normal
        state.pushes[ponds, axis, objects] += pushes * normal


def _replace(state: PondState, pond: Pond, moved: BoolArray, rngs: Sequence[np.random.Generator]) -> None:
    """Put foods and poisons that are marked in `moved`, (E, F + K), somewhere else, with other velocities."""
    for index, number in np.argwhere(moved).tolist():
        thing = pond.parameters.n_pursuers + number
        rng = rngs[index]
        clearance = 2 * pond.radii[thing] + pond.parameters.obstacle_radius
        state.positions[index, :, thing] = _clear_place(rng, state.obstacles[index], clearance)
        state.velocities[index, :, thing] = (2 * rng.random(2) - 1) * pond.max_speeds[thing]
        state.pushes[index, :, thing] = 0


def _clear_place(rng: np.random.Generator, obstacles: FloatArray, clearance: float) -> FloatArray:
    """Return a position, (2,), farther than `clearance` from all obstacles, (2, n); any, if none is found."""
    for _ in range(_MAX_DRAWS):
        place = rng.random(2)
        apart = obstacles - place[:, None]
        if (apart[0] ** 2 + apart[1] ** 2 > clearance**2).all():
            break
    return place


def _rewards(state: PondState, parameters: Parameters, thrusts: FloatArray, events: Events) -> FloatArray:
    """Return what each pursuer is paid, (E, P).

    As `waterworld_v4` does through PettingZoo's parallel API, the thrust of the last pursuer is paid for twice: once
    with all thrusts, once with what happened in the step.
    """
    foods = state.touching[..., : parameters.n_evaders].sum(axis=2)
    earned = (
        parameters.food_reward * events.fed
        + parameters.encounter_reward * foods
        + parameters.poison_reward * events.poison_hits
    )
    penalties = parameters.thrust_penalty * thrusts
    last = np.zeros_like(penalties)
    last[:, -1] = penalties[:, -1]
    share = parameters.local_ratio
    return _shared(penalties, share) + _shared(earned + _shared(last, share), share)


def _shared(rewards: FloatArray, local_ratio: float) -> FloatArray:
    """Return each pursuer's own part of its reward and its part of the mean: (E, P)."""
    if local_ratio == 1:
        return rewards
    total: FloatArray = reduce(np.add, rewards.T)  # in this order for any number of ponds
    shared: FloatArray = rewards * local_ratio + (total / rewards.shape[1] * (1 - local_ratio))[:, None]
    return shared
