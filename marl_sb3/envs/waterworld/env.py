"""Waterworld as a PettingZoo `ParallelEnv`, and as arrays: pursuers eat food, avoid poison and save thrust.

Its rules, and what the agents see, are in `rules`; this file gives them agents, spaces, episodes and pictures.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

import numpy as np
from gymnasium.spaces import Box
from msgspec import Meta
from typing_extensions import override

from marl_sb3.core.config.values import Fraction, accepts, words
from marl_sb3.core.envs.batched import BatchedEnv
from marl_sb3.envs.compiled.originals import why_not_own
from marl_sb3.envs.drawn import DrawnEnv, Image, Infos, StepResult, blend, refused
from marl_sb3.types import AgentID, Array

if TYPE_CHECKING:
    from marl_sb3.envs.waterworld.rules import BatchedWaterworld


# --- Parameters ------------------------------------------------------------------------------------------------------

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
    """The arguments of `WaterworldEnv`, checked, named as those of PettingZoo's `waterworld_v4`.

    Lengths are in sides of the square, times in seconds.

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

    bound = float(BOUND)

    @property
    def radii(self) -> Array:
        """Those of pursuers, foods, poisons and obstacles, in this order."""
        sizes = self.radius, FOOD_SIZE * self.radius, POISON_SIZE * self.radius, self.obstacle_radius
        return np.repeat(sizes, [self.n_pursuers, self.n_evaders, self.n_poisons, self.n_obstacles])

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


# --- The env ---------------------------------------------------------------------------------------------------------


class WaterworldEnv(DrawnEnv):
    """Pursuers in a square with obstacles, foods and poisons: the rules of PettingZoo 1.25's `waterworld_v4`.

    Observation of each agent: `8 * n_sensors + 2` float32, see `rules.see`; `5 * n_sensors + 2` without
    `speed_features`. Actions: thrust along x and y, two float32 in -1..1; one that is longer than 1 counts as 1. All
    agents are truncated after `max_cycles` steps. `infos` says what happened to each agent: "food_encounters" (foods
    that it began to touch), "fed" (it got `food_reward`), "captures" (foods that it ate and left), "poison_hits".

    Args:
        render_mode: "human" (a window; needs pygame), "rgb_array" or None.
        **parameters: the fields of `Parameters`.

    Raises:
        ConfigError: if an argument is not accepted, or pygame is missing for "human".
    """

    title = "waterworld"
    accepted_action = ACTION
    metadata: ClassVar[dict[str, Any]] = {
        "name": "waterworld_v0",
        "render_modes": ["human", "rgb_array"],
        "render_fps": 15,
        "is_parallelizable": True,
        "custom_metrics": {
            "food_encounters": {"key": "food_encounters"},
            "captures": {"key": "captures"},
            "poison_hits": {"key": "poison_hits"},
        },
    }

    def __init__(self, *, render_mode: str | None = None, **parameters: Any) -> None:
        self.parameters = Parameters(**parameters)
        super().__init__(render_mode)
        self.possible_agents = list(self.parameters.agents)
        self.metadata = {**self.metadata, "legend": legend(self.parameters)}  # type: ignore[misc]  # has its agents

        bounds = Box(-BOUND, BOUND, (self.parameters.observation_size,))
        self.observation_spaces = dict.fromkeys(self.possible_agents, bounds)
        self.action_spaces = dict.fromkeys(self.possible_agents, Box(-1, 1, (2,)))

    @staticmethod
    def why_not_batched(env_kwargs: Mapping[str, Any]) -> str | None:
        """Say which part of the env has been replaced, so that the compiled one differs; None: no part."""
        return why_not_own(__name__)

    @classmethod
    def make_batched(cls, num_envs: int, **env_kwargs: Any) -> BatchedEnv:
        """`num_envs` envs as arrays; see `marl_sb3.core.envs.batched`."""
        from marl_sb3.envs.waterworld.rules import BatchedWaterworld  # numba takes time to import

        return BatchedWaterworld(num_envs, cls(**env_kwargs))

    @cached_property
    def batch(self) -> BatchedWaterworld:
        """The pond of this env, as a batch of one."""
        from marl_sb3.envs.waterworld.rules import BatchedWaterworld

        return BatchedWaterworld(1, self)

    @override
    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Array], Infos]:
        if seed is None and self._rng is not None:
            self._rng = self.batch.generator(0)  # the steps have drawn from it
        return super().reset(seed, options)

    def _first_state(self, rng: np.random.Generator) -> Any:
        self.batch.begin_with(0, rng)
        return self.batch.states[0]

    def _observed(self) -> Array:
        seen: Array = self.batch.observations()[0]
        return seen

    def step(self, actions: dict[AgentID, Array]) -> StepResult:
        """Move everything. `actions` has two numbers in -1..1 for each agent; they are rounded to float32.

        Raises:
            EnvError: if no episode is running, or an action is missing or not accepted.
        """
        self._require_episode()
        thrusts = self._read(actions, _thrust, ACTION, int(self._state.timesteps))
        made = self.batch.step(np.array([thrusts]))
        infos = {agent: {key: found[0].item() for key, found in own.items()} for agent, own in made.infos.items()}
        return self._stepped(made.rewards[0].tolist(), bool(made.truncated[0, 0]), infos)

    @override
    def scene(self) -> dict[str, Any]:
        self._require_reset("scene()")
        own, places = self.parameters, np.round(self._state.positions.T, 5)
        ends = [own.n_pursuers, own.n_pursuers + own.n_evaders]
        pursuers, foods, poisons = (part.tolist() for part in np.split(places, ends))
        return {
            "kind": "waterworld",
            "pursuers": pursuers,
            "foods": foods,
            "poisons": poisons,
            "obstacles": self._state.obstacles.T.tolist(),
            "radius": own.radius,
            "food_size": FOOD_SIZE,  # in radii
            "poison_size": POISON_SIZE,
            "obstacle_radius": own.obstacle_radius,
            "sensor_range": own.sensor_range,
            "n_sensors": own.n_sensors,
        }

    def render_state(self, state: Any) -> Array | None:
        """Render the record of an env of these parameters."""
        return self._shown(render_rgb(state.positions, state.obstacles, self.parameters))


def _thrust(action: Any) -> Array:
    thrust = np.asarray(action, dtype=np.float64)
    if thrust.shape != (2,) or not (np.abs(thrust) <= 1).all():
        raise ValueError
    return thrust


def _signature() -> inspect.Signature:
    """Return what `WaterworldEnv.__init__` takes, `Parameters`' fields in the place of **parameters."""
    own, render_mode, _ = inspect.signature(WaterworldEnv.__init__).parameters.values()
    named = inspect.signature(Parameters).parameters.values()
    return inspect.Signature([own, *(one.replace(kind=one.KEYWORD_ONLY) for one in named), render_mode])


# Names and defaults stand in one place, and still `help` and messages about unknown arguments show them.
WaterworldEnv.__init__.__signature__ = _signature()  # type: ignore[attr-defined]


# --- Pictures --------------------------------------------------------------------------------------------------------

RGB = tuple[int, int, int]

SIDE_PX = 400

# Apart for colour-blind eyes, and poison has a shape of its own.
_WATER_RGB = (247, 250, 252)
_OBSTACLE_RGB = (170, 178, 189)
_FOOD_RGB = (0, 158, 115)
_POISON_RGB = (190, 45, 20)
_PURSUERS_RGB = ((0, 92, 200), (230, 140, 0), (150, 70, 170), (70, 180, 235), (90, 90, 90), (225, 110, 160))
_RAY_OPACITY = 0.25
_DIAMOND = 1.25  # half a diagonal, in radii: as large as the disc


def pursuer_rgb(number: int) -> RGB:
    """Return a pursuer's colour; the seventh has that of the first."""
    return _PURSUERS_RGB[number % len(_PURSUERS_RGB)]


def legend(parameters: Parameters) -> Mapping[str, RGB]:
    """Return the colours of agents and things."""
    agents = {agent: pursuer_rgb(number) for number, agent in enumerate(parameters.agents)}
    return {**agents, "food": _FOOD_RGB, "poison": _POISON_RGB}


def render_rgb(positions: Array, obstacles: Array, parameters: Parameters) -> Image:
    """Draw one pond.

    Args:
        positions: (2, N); x and y of pursuers, foods and poisons in this order, in sides of the square.
        obstacles: (2, n); centres.
        parameters: sizes and numbers.

    Returns:
        (400, 400, 3) uint8.
    """
    image = np.full((SIDE_PX, SIDE_PX, 3), _WATER_RGB, dtype=np.uint8)
    n_pursuers, n_foods, radius = parameters.n_pursuers, parameters.n_evaders, parameters.radius
    for centre in obstacles.T:
        _draw_disc(image, centre, parameters.obstacle_radius, _OBSTACLE_RGB)
    pursuers, foods, poisons = np.split(positions.T, [n_pursuers, n_pursuers + n_foods])
    for number, centre in enumerate(pursuers):
        _draw_rays(image, centre, parameters, pursuer_rgb(number))
    for centre in foods:
        _draw_disc(image, centre, FOOD_SIZE * radius, _FOOD_RGB)
        _draw_disc(image, centre, FOOD_SIZE * radius * 0.55, _WATER_RGB)
    for centre in poisons:
        half = _DIAMOND * (POISON_SIZE * radius)
        patch, across, up = _patch(image, centre, half)
        blend(patch, (half * SIDE_PX - np.abs(across) - np.abs(up)) / np.sqrt(2), _POISON_RGB)
    for number, centre in enumerate(pursuers):
        _draw_disc(image, centre, radius, pursuer_rgb(number))
    return image


def _draw_disc(image: Image, centre: Array, radius: float, colour: RGB) -> None:
    patch, across, up = _patch(image, centre, radius)
    blend(patch, radius * SIDE_PX - np.hypot(across, up), colour)


def _draw_rays(image: Image, centre: Array, parameters: Parameters, colour: RGB) -> None:
    patch, across, up = _patch(image, centre, parameters.sensor_range)
    distances = np.hypot(across, up)
    turns = np.arctan2(up, across) / (2 * np.pi) * parameters.n_sensors
    beside = np.sin((turns - np.rint(turns)) * 2 * np.pi / parameters.n_sensors) * distances  # the nearest ray
    depths = np.minimum(0.5 - np.abs(beside), parameters.sensor_range * SIDE_PX - distances)
    # Rays are not smoothed: that would double the size of a GIF.
    blend(patch, np.where(depths > 0, 0.5, -0.5), colour, _RAY_OPACITY)


def _patch(image: Image, centre: Array, reach: float) -> tuple[Image, Array, Array]:
    """Return the pixels that lie within `reach` of a centre, as a view, and how far they lie from it.

    Returns:
        (h, w, 3) uint8; (1, w) pixels to the right of the centre; (h, 1) pixels above it.
    """
    column, row = centre[0] * SIDE_PX - 0.5, (1 - centre[1]) * SIDE_PX - 0.5
    reach_px = reach * SIDE_PX + 1
    left, right, top, bottom = (
        int(np.clip(edge, 0, SIDE_PX))
        for edge in (column - reach_px, column + reach_px + 2, row - reach_px, row + reach_px + 2)
    )
    return image[top:bottom, left:right], np.arange(left, right)[None] - column, row - np.arange(top, bottom)[:, None]
