"""The rules of Waterworld and what its pursuers see, for one pond at a time, compiled; and E ponds as a batch.

The functions get the arrays of a record and its settings: they are compiled once, for ponds of all sizes. P pursuers, F
foods and K poisons stand on the object axis in this order: N = P + F + K. Lengths are in sides of the square, times in
seconds. Sums run in a fixed order, and each operation is rounded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit
from typing_extensions import override

from marl_sb3.compiling import ENVS, carray, pointer
from marl_sb3.core.state.randomness import generator_state, set_generator_state
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.envs.compiled.batch import CompiledBatch, run_envs
from marl_sb3.envs.compiled.random import generator_of, random, words_of
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome, fields_of
from marl_sb3.types import Array
from marl_sb3.types import FloatArray as Float32Array

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

if TYPE_CHECKING:
    from marl_sb3.envs.waterworld.env import Parameters, WaterworldEnv

_STEP_S = 1 / 15  # of simulated time
_ELASTICITY = 0.999  # of walls
# What lies deeper than _SLOP in a wall or an obstacle is pushed out by this part of the depth in the next step: the
# constants of pymunk's default space, at 750 pixels to a side.
_SLOP = 0.1 / 750
_PUSH = 1 - 0.9 ** (60 * _STEP_S)
_MAX_DRAWS = 1000  # of a position that is clear of obstacles, where there may be none
_ALMOST_ONE = 1 - 1e-4  # A wall that is farther away than this part of the range is not sensed.
_NONE = 2.0  # more than any distance

_EVENTS = (("food_encounters", int), ("fed", bool), ("captures", int), ("poison_hits", int))
_ENCOUNTERS, _FED, _CAPTURES, _HITS = range(4)

_FLOATS = """sensor_range obstacle_radius pursuer_max_accel pursuer_speed poison_reward food_reward encounter_reward
thrust_penalty local_ratio bound"""
_INTS = "n_coop max_cycles n_pursuers n_evaders n_foods_and_poisons n_objects n_obstacles n_sensors"
# A record begins with the settings, its own size, that of an observation, and where each array of `Pond` begins in it.
_SETTINGS = np.dtype(
    [
        *((name, "f8") for name in _FLOATS.split()),
        *((name, "i8") for name in (*_INTS.split(), "bytes", "seen")),
        ("at", "i8", (20,)),
    ],
    align=True,
)


# Inlined, since a call would pass on the 120 numbers of a `Pond`: that takes four times as long.
def _function(function: Any) -> Any:
    return njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, forceinline=True)(function)  # type: ignore[call-overload]


class Pond(NamedTuple):
    """Arrays of one pond, views of a record. P pursuers, F foods and K poisons are N objects; n obstacles, S rays."""

    positions: FloatArray  # (2, N); x and y of every centre
    velocities: FloatArray  # (2, N); per second
    pushes: FloatArray  # (2, N); what walls and obstacles add to the next move
    obstacles: FloatArray  # (2, n); centres
    touching: Array  # (P, F + K) uint8; which pursuer touched what in the latest step
    counters: IntArray  # (F,); how many pursuers hold a food, less what `_meet_food` says
    poisoned: Array  # (P,) uint8; who touched a new poison in the latest step
    radii: FloatArray  # (N + n,); obstacles come last
    max_speeds: FloatArray  # (N,), along each axis; those of foods and poisons at the start
    speed_sums: FloatArray  # (N,); with that of a pursuer
    touch_distances_squared: FloatArray  # (F + K,)
    reaches_squared: FloatArray  # (N + n,); what is farther away is not sensed
    clearances_squared: FloatArray  # (F + K,); from obstacles, of new places
    rays: FloatArray  # (4, S): x, y, and the part of the range by which x and y come nearer to a wall; 0: they do not
    thrusts: FloatArray  # (P,); what a step writes before it reads it, as the rest
    moved: Array  # (F + K,) uint8; what is put somewhere else
    nearest: FloatArray  # (S,); distances along the rays of what they meet
    met: IntArray  # (S,); what that is
    known_obstacles: FloatArray  # (2, n); centres, NaN where each episode has its own
    timesteps: IntArray  # (1,) of the episode
    settings: Array  # (1,) records of them


# --- The rules -------------------------------------------------------------------------------------------------------


@_function
def _thrust(pond: Pond, settings: Any, actions: Float32Array) -> None:
    """Add the pursuers' thrusts to their velocities, and keep their lengths."""
    most, fastest = settings.pursuer_max_accel, settings.pursuer_speed
    for agent in range(len(actions)):
        x, y = np.float64(actions[agent, 0]) * most, np.float64(actions[agent, 1]) * most
        length = math.sqrt(x * x + y * y)
        if length > most:
            shorter = most / length
            x, y, length = x * shorter, y * shorter, most
        pond.thrusts[agent] = length
        pond.velocities[0, agent] = min(max(pond.velocities[0, agent] + x, -fastest), fastest)
        pond.velocities[1, agent] = min(max(pond.velocities[1, agent] + y, -fastest), fastest)


@_function
def _touch(pond: Pond, thing: int, agent: int) -> tuple[bool, bool]:
    """Note whether a pursuer touches a food or poison; returns whether it begins or ceases to do so."""
    other = len(pond.touching) + thing
    x = pond.positions[0, other] - pond.positions[0, agent]
    y = pond.positions[1, other] - pond.positions[1, agent]
    now, before = x * x + y * y < pond.touch_distances_squared[thing], pond.touching[agent, thing] != 0
    pond.touching[agent, thing] = now
    return now and not before, before and not now


@_function
def _meet_food(pond: Pond, food: int, n_coop: int, events: FloatArray) -> None:
    """Count who holds a food, who is paid for it, and who takes it away.

    A pursuer counts when it begins to touch a food, and is paid if there are `n_coop` then. The first one that ceases
    to touch a food with `n_coop` is paid again and takes it away; the counter starts again from 0. Those that held the
    food, too, still count less one each when they cease: as in `waterworld_v4`, where such a food therefore needs more
    pursuers the next time.
    """
    first, ceasing = -1, 0
    for agent in range(len(pond.touching)):
        began, ceased = _touch(pond, food, agent)
        if began:
            pond.counters[food] += 1
            events[4 * agent + _ENCOUNTERS] += 1.0
            if pond.counters[food] >= n_coop:
                events[4 * agent + _FED] = 1.0
        if ceased:
            first = agent if ceasing == 0 else first
            ceasing += 1
    if ceasing > 0 and pond.counters[food] >= n_coop:
        events[4 * first + _FED] = 1.0
        events[4 * first + _CAPTURES] += 1.0
        pond.moved[food] = 1
        pond.counters[food] = 1  # 0, and the one that takes it is not counted
    pond.counters[food] -= ceasing


@_function
def _meet(pond: Pond, n_coop: int, events: FloatArray) -> None:
    """Find what the pursuers begin and cease to touch, and what is eaten or spent."""
    foods = len(pond.counters)
    for thing in range(len(pond.moved)):
        pond.moved[thing] = 0
    for agent in range(len(pond.poisoned)):
        pond.poisoned[agent] = 0
    for food in range(foods):
        _meet_food(pond, food, n_coop, events)
    for thing in range(foods, len(pond.moved)):
        for agent in range(len(pond.touching)):
            began, _ = _touch(pond, thing, agent)
            if began:
                events[4 * agent + _HITS] += 1.0
                pond.moved[thing] = pond.poisoned[agent] = 1


@_function
def _bounce_off_walls(pond: Pond) -> None:
    """Turn back what runs into a wall, and set `pushes` for what lies in one."""
    for axis in range(2):
        for thing in range(pond.positions.shape[1]):
            at, radius, speed = pond.positions[axis, thing], pond.radii[thing], pond.velocities[axis, thing]
            low, high = radius - at, at - (1 - radius)
            if (low > 0 and speed < 0) or (high > 0 and speed > 0):
                pond.velocities[axis, thing] = speed * -_ELASTICITY
            pond.pushes[axis, thing] = max(low - _SLOP, 0.0) * _PUSH - max(high - _SLOP, 0.0) * _PUSH


@_function
def _bounce_off_obstacles(pond: Pond, obstacle_radius: float) -> None:
    """Turn back what runs into an obstacle, without loss, and add to `pushes` what lies in one."""
    for obstacle in range(pond.obstacles.shape[1]):
        for thing in range(pond.positions.shape[1]):
            x = pond.positions[0, thing] - pond.obstacles[0, obstacle]
            y = pond.positions[1, thing] - pond.obstacles[1, obstacle]
            squared, reach = x * x + y * y, pond.radii[thing] + obstacle_radius
            if not squared < reach * reach:
                continue
            distance = math.sqrt(squared)
            x, y = (1.0, 0.0) if distance == 0 else (x / distance, y / distance)  # in the very centre: to the right
            speed = pond.velocities[0, thing] * x + pond.velocities[1, thing] * y
            change, push = -2 * min(speed, 0.0), max(reach - distance - _SLOP, 0.0) * _PUSH
            pond.velocities[0, thing] += change * x
            pond.velocities[1, thing] += change * y
            pond.pushes[0, thing] += push * x
            pond.pushes[1, thing] += push * y


@_function
def _clear_place(pond: Pond, clearance_squared: float, rng: Array) -> tuple[float, float]:
    """Return a position that is farther from all obstacles; any, if none is found."""
    x = y = 0.0
    for _ in range(_MAX_DRAWS):
        x, y = random(rng), random(rng)
        clear = True
        for obstacle in range(pond.obstacles.shape[1]):
            right, up = pond.obstacles[0, obstacle] - x, pond.obstacles[1, obstacle] - y
            clear = clear and right * right + up * up > clearance_squared
        if clear:
            break
    return x, y


@_function
def _replace(pond: Pond, rng: Array) -> None:
    """Put what is marked in `moved` somewhere else, with other velocities."""
    for number in range(len(pond.moved)):
        if pond.moved[number]:
            thing = len(pond.touching) + number
            x, y = _clear_place(pond, pond.clearances_squared[number], rng)
            pond.positions[0, thing], pond.positions[1, thing] = x, y
            for axis in range(2):
                pond.velocities[axis, thing] = (2 * random(rng) - 1) * pond.max_speeds[thing]
                pond.pushes[axis, thing] = 0.0


@_function
def _of_mean(rewards: FloatArray, local_ratio: float) -> Any:
    """Return what each pursuer gets of the mean."""
    total = rewards[0]
    for agent in range(1, len(rewards)):
        total += rewards[agent]
    return total / len(rewards) * (1 - local_ratio)


@_function
def _pay(pond: Pond, settings: Any, events: FloatArray, rewards: FloatArray) -> None:
    """Write what each pursuer is paid.

    As `waterworld_v4` does through PettingZoo's parallel API, the thrust of the last pursuer is paid for twice: once
    with all thrusts, once with what happened in the step.
    """
    ratio, last, penalties = settings.local_ratio, len(rewards) - 1, pond.thrusts
    for agent in range(last + 1):
        penalties[agent] *= settings.thrust_penalty
        rewards[agent] = penalties[agent] if agent == last else 0.0
    mean = _of_mean(rewards, ratio)
    for agent in range(last + 1):
        foods = 0.0
        for food in range(len(pond.counters)):
            foods += pond.touching[agent, food]
        own = settings.food_reward * events[4 * agent + _FED] + settings.encounter_reward * foods
        own += settings.poison_reward * events[4 * agent + _HITS]
        rewards[agent] = own + (rewards[agent] if ratio == 1 else rewards[agent] * ratio + mean)
    of_penalties, of_all = _of_mean(penalties, ratio), _of_mean(rewards, ratio)
    for agent in range(last + 1):
        if ratio == 1:
            rewards[agent] = penalties[agent] + rewards[agent]
        else:
            rewards[agent] = (penalties[agent] * ratio + of_penalties) + (rewards[agent] * ratio + of_all)


@_function
def step_pond(pond: Pond, actions: Float32Array, rng: Array, outcome: Outcome) -> None:
    """Move everything once.

    Args:
        pond: changed.
        actions: (P, 2) in -1..1. Not checked.
        rng: words of the pond's generator; for new places of what was eaten or touched.
        outcome: of zeros; its infos are (4 P,), what has happened to each pursuer.
    """
    settings, events = pond.settings[0], outcome.infos
    _thrust(pond, settings, actions)
    for axis in range(2):
        for thing in range(pond.positions.shape[1]):
            pond.positions[axis, thing] += pond.velocities[axis, thing] * _STEP_S + pond.pushes[axis, thing]
    _meet(pond, settings.n_coop, events)
    _bounce_off_walls(pond)
    _bounce_off_obstacles(pond, settings.obstacle_radius)
    _replace(pond, rng)
    _pay(pond, settings, events, outcome.rewards)
    pond.timesteps[0] += 1
    for agent in range(len(pond.thrusts)):
        outcome.truncated[agent] = pond.timesteps[0] == settings.max_cycles


# --- The sensors -----------------------------------------------------------------------------------------------------


@_function
def _see_walls(pond: Pond, agent: int, seen: Float32Array) -> None:
    """Write how far the walls are along each ray, (S,)."""
    at_x, at_y, rays = pond.positions[0, agent], pond.positions[1, agent], pond.rays
    for ray in range(len(seen)):
        nearest = 1.0
        if rays[2, ray] != 0:
            nearest = min(nearest, ((1.0 if rays[0, ray] > 0 else 0.0) - at_x) * rays[2, ray])
        if rays[3, ray] != 0:
            nearest = min(nearest, ((1.0 if rays[1, ray] > 0 else 0.0) - at_y) * rays[3, ray])
        # Negative for a pursuer that has pushed its centre into the wall.
        seen[ray] = max(nearest, -pond.settings[0].bound) if nearest < _ALMOST_ONE else 1.0


class Kind(NamedTuple):
    """Things of which the nearest one on each ray is seen."""

    places: FloatArray  # (2, things)
    first: int  # its own among them, as the next two
    end: int
    itself: int  # the one that sees; -1: it is not among them
    offset: int  # of the first place in tables of all things


@_function
def _meet_rays(pond: Pond, agent: int, kind: Kind, far: float) -> bool:
    """Find the nearest thing on each ray; returns whether any is near."""
    at_x, at_y, rays, nearest, met = (
        pond.positions[0, agent],
        pond.positions[1, agent],
        pond.rays,
        pond.nearest,
        pond.met,
    )
    is_any, is_first = False, True
    for thing in range(kind.first, kind.end):
        if thing == kind.itself:
            continue
        right, up, radius = kind.places[0, thing] - at_x, kind.places[1, thing] - at_y, pond.radii[kind.offset + thing]
        was_first, is_first = is_first, False
        if right * right + up * up > pond.reaches_squared[kind.offset + thing]:
            continue
        if not is_any:
            is_any = True
            for ray in range(len(met)):
                nearest[ray], met[ray] = _NONE, -1
        # An object of which only the rim is in range reads 1, as if it were not there. `argmin` of `waterworld_v4`
        # then finds the first object of the kind: of the others, no speed is read.
        for ray in range(len(met)):
            along = right * rays[0, ray] + up * rays[1, ray]
            beside = abs(up * rays[0, ray] - right * rays[1, ray])
            if along >= 0 and beside <= radius and (along < far or (was_first and along <= far + radius)):
                distance = min(along / far, 1.0)
                if distance < nearest[ray]:
                    nearest[ray], met[ray] = distance, thing
    return is_any


@_function
def _see_kind(pond: Pond, agent: int, kind: Kind, far: float, seen: Float32Array, nothing: float) -> None:
    """Write the distances of what the rays meet into `seen`, and the speeds if it has room for them."""
    many, velocities, rays = len(pond.met), pond.velocities, pond.rays
    is_any = _meet_rays(pond, agent, kind, far)
    for ray in range(many):
        seen[ray] = pond.nearest[ray] if is_any and pond.met[ray] >= 0 else nothing
    for ray in range(len(seen) - many):
        seen[many + ray] = 0.0
        if is_any and pond.met[ray] >= 0:
            thing = pond.met[ray]
            right, up = velocities[0, thing] - velocities[0, agent], velocities[1, thing] - velocities[1, agent]
            seen[many + ray] = (right * rays[0, ray] + up * rays[1, ray]) / pond.speed_sums[thing]


@_function
def see(pond: Pond, observations: Float32Array) -> None:
    """Write what every pursuer sees, (P, size).

    An observation consists of blocks of `n_sensors` numbers and two flags:

    obstacle distance, wall distance, food distance, food speed, poison distance, poison speed, pursuer distance,
    pursuer speed (no speeds without `speed_features`); 1 where the pursuer touches a food, 1 where it has just touched
    a poison.

    Distances are parts of the range, 1 where nothing is sensed. Speeds are those of the object relative to the
    pursuer, along the ray, as parts of the sum of both maximum speeds; 0 where nothing is sensed. A single pursuer
    reads 0 for the distance of others.
    """
    agents, size = observations.shape
    many, far, things = pond.rays.shape[1], pond.settings[0].sensor_range, pond.positions.shape[1]
    wide = many * ((size - 2) // many - 2) // 3  # distances of a kind, and speeds if they are seen
    foods = agents + len(pond.counters)
    for agent in range(agents):
        seen = observations[agent]
        obstacles = Kind(pond.obstacles, 0, pond.obstacles.shape[1], -1, things)
        _see_kind(pond, agent, obstacles, far, seen[:many], 1.0)
        _see_walls(pond, agent, seen[many : 2 * many])
        at, end = 2 * many, 2 * many + wide
        _see_kind(pond, agent, Kind(pond.positions, agents, foods, -1, 0), far, seen[at:end], 1.0)
        at, end = end, end + wide
        _see_kind(pond, agent, Kind(pond.positions, foods, things, -1, 0), far, seen[at:end], 1.0)
        at, end = end, end + wide
        others = Kind(pond.positions, 0, agents, agent, 0)
        _see_kind(pond, agent, others, far, seen[at:end], 1.0 if agents > 1 else 0.0)
        touches = False
        for food in range(len(pond.counters)):
            touches = touches or pond.touching[agent, food] != 0
        seen[size - 2], seen[size - 1] = touches, pond.poisoned[agent]


# --- Ponds as records ------------------------------------------------------------------------------------------------


@_function
def _floats(address: int, rows: int, columns: int) -> Any:
    return carray(pointer(address), (rows, columns), np.float64)


@_function
def _vector(address: int, many: int) -> Any:
    return carray(pointer(address), (many,), np.float64)


@_function
def _pond(address: int) -> Pond:
    """Return the arrays of the record at an address."""
    settings = carray(pointer(address), (1,), _SETTINGS)
    own = settings[0]
    at, agents, things, others = own.at, own.n_pursuers, own.n_objects, own.n_foods_and_poisons
    return Pond(
        _floats(address + at[0], 2, things),
        _floats(address + at[1], 2, things),
        _floats(address + at[2], 2, things),
        _floats(address + at[3], 2, own.n_obstacles),
        carray(pointer(address + at[4]), (agents, others), np.uint8),
        carray(pointer(address + at[5]), (own.n_evaders,), np.int64),
        carray(pointer(address + at[6]), (agents,), np.uint8),
        _vector(address + at[7], things + own.n_obstacles),
        _vector(address + at[8], things),
        _vector(address + at[9], things),
        _vector(address + at[10], others),
        _vector(address + at[11], things + own.n_obstacles),
        _vector(address + at[12], others),
        _floats(address + at[13], 4, own.n_sensors),
        _vector(address + at[14], agents),
        carray(pointer(address + at[15]), (others,), np.uint8),
        _vector(address + at[16], own.n_sensors),
        carray(pointer(address + at[17]), (own.n_sensors,), np.int64),
        _floats(address + at[18], 2, own.n_obstacles),
        carray(pointer(address + at[19]), (1,), np.int64),
        settings,
    )


@_function
def _begin_pond(pond: Pond, rng: Array) -> None:
    """Begin an episode: all objects anywhere, also on each other; pursuers at rest."""
    agents, things = len(pond.touching), pond.positions.shape[1]
    for axis in range(2):
        for thing in range(things):
            pond.positions[axis, thing], pond.pushes[axis, thing] = random(rng), 0.0
    for axis in range(2):
        for thing in range(things):
            speed = (2 * random(rng) - 1) * pond.max_speeds[thing]
            pond.velocities[axis, thing] = speed * 0.0 if thing < agents else speed  # with the sign
    for axis in range(2):
        for obstacle in range(pond.obstacles.shape[1]):
            known = pond.known_obstacles[axis, obstacle]
            pond.obstacles[axis, obstacle] = random(rng) if math.isnan(known) else known
    for agent in range(agents):
        pond.poisoned[agent] = 0
        for thing in range(things - agents):
            pond.touching[agent, thing] = 0
    for food in range(len(pond.counters)):
        pond.counters[food] = 0
    pond.timesteps[0] = 0


def run(address: int) -> None:
    """See `run_envs`: all ponds of a batch have the same settings."""
    own = carray(pointer(carray(pointer(address), (1,), ENVS)[0].states_at), (1,), _SETTINGS)[0]
    agents = own.n_pursuers
    sizes = own.bytes, agents, 4 * agents, 0, (agents, 2), (agents, own.seen)
    run_envs(address, sizes, np.float32, np.float32, _pond, step_pond, see, None, _begin_pond)


_FARTHEST = 10.0  # limit of positions and speeds in a saved state; in an episode they stay far below it


def _fixed(own: Parameters) -> dict[str, Any]:
    """Return what is the same in all episodes, and what a step writes before it reads it, by the names of `Pond`."""
    counts, radii = (own.n_pursuers, own.n_evaders, own.n_poisons), own.radii
    speeds = np.array([own.pursuer_speed, own.evader_speed, own.poison_speed], dtype=np.float64).repeat(counts)
    others = radii[own.n_pursuers : own.n_objects]
    angles = np.linspace(0.0, 2.0 * np.pi, own.n_sensors, endpoint=False)
    across = np.stack((np.cos(angles), np.sin(angles)))
    # A ray along a wall never meets it.
    nearer = np.divide(1 / own.sensor_range, across, out=np.zeros_like(across), where=np.abs(across) > 1e-9)
    known = np.full((2, own.n_obstacles), np.nan)
    if own.obstacle_coord:
        known[:] = np.transpose(own.obstacle_coord)
    return {
        "radii": radii,
        "max_speeds": speeds,
        "speed_sums": speeds + own.pursuer_speed,
        "touch_distances_squared": (others + own.radius) ** 2,
        "clearances_squared": (2 * others + own.obstacle_radius) ** 2,
        "reaches_squared": (own.sensor_range + radii) ** 2 + radii**2,
        "rays": np.concatenate((across, nearer)),
        "thrusts": np.zeros(own.n_pursuers),
        "moved": np.zeros(own.n_foods_and_poisons, np.uint8),
        "nearest": np.zeros(own.n_sensors),
        "met": np.zeros(own.n_sensors, np.int64),
        "known_obstacles": known,
    }


def compiled_rules(template: WaterworldEnv) -> CompiledRules:
    """Return the rules of ponds with the parameters of a template."""
    own, settings = template.parameters, np.zeros((), _SETTINGS)
    values = {"settings": settings, **_fixed(own)}
    saved: list[Any] = [
        *((name, "f8", (2, own.n_objects)) for name in ("positions", "velocities", "pushes")),
        ("obstacles", "f8", (2, own.n_obstacles)),
        ("touching", "u1", (own.n_pursuers, own.n_foods_and_poisons)),
        ("counters", "i8", (own.n_evaders,)),
        ("poisoned", "u1", (own.n_pursuers,)),
        ("timesteps", "i8"),
    ]
    record: Any = np.dtype([*fields_of(values), *saved], align=True)
    for name in (*_FLOATS.split(), *_INTS.split()):
        settings[name] = getattr(own, name)
    settings["bytes"], settings["seen"] = record.itemsize, own.observation_size
    settings["at"] = [record.fields[name][1] for name in Pond._fields[:-1]]
    names = template.possible_agents
    return CompiledRules(
        agents=names,
        observation_space=template.observation_spaces[names[0]],
        action_space=template.action_spaces[names[0]],
        state=record,
        run=run,
        infos=[(agent, key, kind) for agent in names for key, kind in _EVENTS],
        bounds={
            **{name: (-_FARTHEST, _FARTHEST) for name, kind, *_ in saved if kind == "f8"},
            "timesteps": (0, own.max_cycles - 1),
        },
        settings=values,
    )


class BatchedWaterworld(CompiledBatch):
    """E ponds that step together.

    Args:
        template: a pond with the parameters of all of them; it renders them, too.
    """

    template: WaterworldEnv

    def __init__(self, num_envs: int, template: WaterworldEnv) -> None:
        super().__init__(num_envs, compiled_rules(template), template)
        self.limits = [(-1.0, 1.0, template.accepted_action)]

    def generator(self, env_index: int) -> np.random.Generator:
        """Return a generator that goes on as that of a pond."""
        return generator_of(self.rngs[env_index])

    @override
    def saved(self) -> dict[str, Array]:
        return {name: a.view(np.bool_) if a.dtype == np.uint8 else a for name, a in super().saved().items()}

    @override
    def get_state(self) -> State:
        rngs = [generator_state(self.generator(index)) for index in range(self.num_envs)]
        return {**super().get_state(), "rngs": rngs}

    @override
    def set_state(self, state: StateReader) -> None:
        saved, words = state.listed("rngs", self.num_envs), self.rngs.copy()
        for number in range(self.num_envs):
            rng = np.random.default_rng(0)
            set_generator_state(rng, saved, str(number))
            words[number] = words_of(rng)
        self.put(state, words)
