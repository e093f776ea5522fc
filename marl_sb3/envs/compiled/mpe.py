"""Particles of mpe2 as compiled envs: its simple_spread and simple_reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numba import njit
from typing_extensions import override

from marl_sb3.core.envs import EnvFactory, make_env
from marl_sb3.envs.compiled.batch import CompiledBatch
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome
from marl_sb3.envs.compiled.twins import Twin
from marl_sb3.types import Array

_DT, _SLOWER, _MARGIN = 0.1, 1 - 0.25, 1e-3
_MOVES = 5  # none, left, right, down, up
_INFINITE = np.float32(np.inf)


def _called(function: Any) -> Any:
    """Compile a function that rules call: without fastmath, as they are."""
    return njit(nogil=True, error_model="numpy")(function)


# --- What all worlds have --------------------------------------------------------------------------------------------


def _stand_anywhere(state: Any, rng: np.random.Generator) -> None:
    """Begin an episode: agents, then landmarks stand anywhere, at rest."""
    state.timestep = 0
    state.velocities[:] = 0.0
    for places in (state.places, state.landmarks):
        for index in range(len(places)):
            places[index] = rng.uniform(-1, +1, 2)


@_called
def _steer(forces: Array, agent: int, move: int, strength: float) -> None:
    """Set the force of an agent to that of its move."""
    forces[agent, 0] = forces[agent, 1] = 0.0
    if move > 0:
        forces[agent, (move - 1) // 2] = -strength if move % 2 == 1 else strength


@_called
def _move(state: Any, agent: int) -> None:
    for axis in range(2):
        state.places[agent, axis] += state.velocities[agent, axis] * _DT
        state.velocities[agent, axis] = state.velocities[agent, axis] * _SLOWER + state.forces[agent, axis] * _DT


@_called
def _distance(places: Array, a: int, others: Array, b: int) -> float:
    x, y = places[a, 0] - others[b, 0], places[a, 1] - others[b, 1]
    return math.sqrt(x * x + y * y)


@_called
def _push(places: Array, a: int, others: Array, b: int, touch: float) -> tuple[float, float]:
    """Return the force on `a` of what it touches at a distance of `touch`."""
    x, y, distance = places[a, 0] - others[b, 0], places[a, 1] - others[b, 1], _distance(places, a, others, b)
    deep = -(distance - touch) / _MARGIN
    # NumPy's `logaddexp(0, deep)`
    soft = deep + math.log1p(math.exp(-deep)) if deep > 0 else math.log1p(math.exp(deep))
    return 100.0 * x / distance * (soft * _MARGIN), 100.0 * y / distance * (soft * _MARGIN)


@_called
def _write_relative(observed: Array, at: int, places: Array, index: int, state: Any, agent: int) -> int:
    """Write where something is from an agent's place; returns where to go on."""
    for axis in range(2):
        observed[at + axis] = places[index, axis] - state.places[agent, axis]
    return at + 2


class ParticleBatch(CompiledBatch):
    """E envs of one kind.

    Args:
        template: one of the originals.
        settings: field of the state -> attribute of the original.
    """

    def __init__(self, num_envs: int, rules: CompiledRules, template: Any, settings: Mapping[str, str]) -> None:
        super().__init__(num_envs, rules, template)
        for field, attribute in settings.items():
            self.states[field] = attrgetter(attribute)(template.unwrapped)

    @override
    def reset(
        self,
        env_indices: Sequence[int],
        seeds: Sequence[int],
        options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        super().reset(env_indices, seeds)  # the original takes options, and does nothing with them

    @override
    def env_states(self) -> Array:
        return self.observations().reshape(self.num_envs, -1)


@dataclass(frozen=True)
class ParticleTwin(Twin):
    """Steps envs with discrete actions, of which all is seen."""

    raw: str  # the class of the originals, `module:name`
    arguments: Sequence[str]  # those that it covers; `dynamic_rescaling` is for rendering
    rules: Callable[[Any], CompiledRules]  # returns the rules of an original
    settings: Mapping[str, str]  # see `ParticleBatch`

    @override
    def refusal(self, env: Any, env_kwargs: Mapping[str, Any]) -> str | None:
        raw = env.unwrapped
        found = f"{type(raw).__module__}:{type(raw).__qualname__}"
        if found != self.raw:
            return f"the env is a {found}, and not {self.raw}"
        others = [name for name in env_kwargs if name not in self.arguments]
        return f"the argument {others[0]} is given" if others else None

    @override
    def make(self, factory: EnvFactory, num_envs: int, **env_kwargs: Any) -> CompiledBatch:
        template = make_env(factory, 0, env_kwargs)
        return ParticleBatch(num_envs, self.rules(template.unwrapped), template, self.settings)


def _state(agents: int, landmarks: int, *others: Any) -> np.dtype[Any]:
    of_agents = [(name, "f8", (agents, 2)) for name in ("places", "velocities", "forces")]
    return np.dtype([("timestep", "i8"), ("limit", "i8"), *others, *of_agents, ("landmarks", "f8", (landmarks, 2))])


# --- simple_spread ---------------------------------------------------------------------------------------------------

_TOUCH = 0.15 + 0.15  # the distance at which two agents touch


def _step_spread(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    """Step the world: forces, movements, and rewards."""
    count = len(actions)
    for agent in range(count):
        _steer(state.forces, agent, actions[agent], 5.0)
    for a in range(count):
        for b in range(a + 1, count):
            x, y = _push(state.places, a, state.places, b, _TOUCH)
            state.forces[a, 0], state.forces[a, 1] = x + state.forces[a, 0], y + state.forces[a, 1]
            state.forces[b, 0], state.forces[b, 1] = -x + state.forces[b, 0], -y + state.forces[b, 1]
    for agent in range(count):
        _move(state, agent)
    of_all = 0.0
    for landmark in range(count):
        nearest = np.inf
        for agent in range(count):
            nearest = min(nearest, _distance(state.places, agent, state.landmarks, landmark))
        of_all -= nearest
    state.timestep += 1
    for agent in range(count):
        own = 0.0
        for other in range(count):
            if other != agent and _distance(state.places, other, state.places, agent) < _TOUCH:
                own -= 1.0
        outcome.rewards[agent] = of_all * (1 - state.local_ratio) + own * state.local_ratio
        outcome.truncated[agent] = state.timestep >= state.limit


def _observe_spread(state: Any, observations: Array) -> None:
    """Write the velocity, the place, and where landmarks and others are from there; agents say nothing: zeros."""
    count = len(observations)
    for agent in range(count):
        for axis in range(2):
            observations[agent, axis] = state.velocities[agent, axis]
            observations[agent, 2 + axis] = state.places[agent, axis]
        at = 4
        for landmark in range(count):
            at = _write_relative(observations[agent], at, state.landmarks, landmark, state, agent)
        for other in range(count):
            if other != agent:
                at = _write_relative(observations[agent], at, state.places, other, state, agent)
        for rest in range(at, observations.shape[1]):
            observations[agent, rest] = 0.0


@lru_cache(maxsize=64)
def _spread_rules(count: int) -> CompiledRules:
    return CompiledRules(
        agents=[f"agent_{index}" for index in range(count)],
        observation_space=Box(-_INFINITE, _INFINITE, (4 + 2 * count + 4 * (count - 1),), np.float32),
        action_space=Discrete(_MOVES),
        state=_state(count, count, ("local_ratio", "f8")),
        begin=_stand_anywhere,
        step=_step_spread,
        observe=_observe_spread,
        settings=["limit", "local_ratio", "forces"],  # the forces of a step are not read in the next
    )


SIMPLE_SPREAD = ParticleTwin(
    raw="mpe2.simple_spread.simple_spread:raw_env",
    arguments=("N", "local_ratio", "max_cycles", "dynamic_rescaling"),
    rules=lambda raw: _spread_rules(len(raw.possible_agents)),
    settings={"limit": "max_cycles", "local_ratio": "local_ratio"},
)

# --- simple_reference ------------------------------------------------------------------------------------------------

_WORDS = 10


def _begin_reference(state: Any, rng: np.random.Generator) -> None:
    """Begin an episode: each agent knows the landmark that the other one should go to; nobody has said a word."""
    for agent in range(2):
        state.goals[agent], state.said[agent] = rng.integers(3), -1
    _stand_anywhere(state, rng)


def _step_reference(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    """Step the world: each action is a movement and a word."""
    for agent in range(2):
        _steer(state.forces, agent, actions[agent] % _MOVES, 5.0)
        _move(state, agent)
        state.said[agent] = actions[agent] // _MOVES
    state.timestep += 1
    first = _distance(state.places, 1, state.landmarks, state.goals[0])
    second = _distance(state.places, 0, state.landmarks, state.goals[1])
    of_all = (-first - second) / 2
    for agent in range(2):
        own = -first if agent == 0 else -second
        outcome.rewards[agent] = of_all * (1 - state.local_ratio) + own * state.local_ratio
        outcome.truncated[agent] = state.timestep >= state.limit


def _observe_reference(state: Any, observations: Array) -> None:
    """Write the velocity, where landmarks are, the color of the other's landmark, and the word it has said."""
    for agent in range(2):
        for axis in range(2):
            observations[agent, axis] = state.velocities[agent, axis]
        at = 2
        for landmark in range(3):
            at = _write_relative(observations[agent], at, state.landmarks, landmark, state, agent)
        for color in range(3):
            observations[agent, at + color] = 0.75 if color == state.goals[agent] else 0.25
        for word in range(_WORDS):
            observations[agent, at + 3 + word] = 1.0 if word == state.said[1 - agent] else 0.0


@lru_cache(maxsize=1)
def _reference_rules() -> CompiledRules:
    return CompiledRules(
        agents=["agent_0", "agent_1"],
        observation_space=Box(-_INFINITE, _INFINITE, (2 + 6 + 3 + _WORDS,), np.float32),
        action_space=Discrete(_MOVES * _WORDS),
        state=_state(2, 3, ("local_ratio", "f8"), ("goals", "i8", (2,)), ("said", "i8", (2,))),
        begin=_begin_reference,
        step=_step_reference,
        observe=_observe_reference,
        bounds={"goals": (0, 2)},
        settings=["limit", "local_ratio", "forces"],
    )


SIMPLE_REFERENCE = ParticleTwin(
    raw="mpe2.simple_reference.simple_reference:raw_env",
    arguments=("local_ratio", "max_cycles", "dynamic_rescaling"),
    rules=lambda raw: _reference_rules(),
    settings={"limit": "max_cycles", "local_ratio": "local_ratio"},
)
