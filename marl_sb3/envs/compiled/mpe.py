"""Particles of mpe2 as compiled envs: simple_spread, simple_reference, simple_speaker_listener and simple_tag."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo.utils.conversions import aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper
from typing_extensions import override

from marl_sb3.compiling import OBSERVE, strict_entry
from marl_sb3.core.config.algorithms import place_of
from marl_sb3.core.envs.registry import EnvFactory, make_env
from marl_sb3.envs.compiled.batch import CompiledBatch
from marl_sb3.envs.compiled.originals import why_not_original
from marl_sb3.envs.compiled.random import integers, random, uniform
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome
from marl_sb3.envs.compiled.twins import Twin, TwinBatch
from marl_sb3.types import Array

# Around an original, and the modules of what all of them call.
_LAYERS = [aec_to_parallel_wrapper, OrderEnforcingWrapper, AssertOutOfBoundsWrapper]
_MODULES = (
    *(f"pettingzoo.utils.{name}" for name in ("agent_selector", "env", "conversions")),
    *(f"pettingzoo.utils.wrappers.{name}" for name in ("base", "order_enforcing", "assert_out_of_bounds")),
    *(f"mpe2._mpe_utils.{name}" for name in ("core", "scenario", "simple_env")),
)
_DT, _SLOWER, _MARGIN = 0.1, 1 - 0.25, 1e-3
_MOVES = 5  # none, left, right, down, up
_INFINITE = np.float32(np.inf)


# --- What all worlds have --------------------------------------------------------------------------------------------


@strict_entry
def _start_anywhere(state: Any, rng: Array, border: float) -> None:
    """Begin an episode: agents, then landmarks stand anywhere, at rest; the latter within a border."""
    state.timestep = 0
    for index in range(len(state.places)):
        for axis in range(2):
            state.velocities[index, axis] = 0.0
            state.places[index, axis] = uniform(rng, -1.0, 1.0)
    for index in range(len(state.landmarks)):
        for axis in range(2):
            state.landmarks[index, axis] = uniform(rng, -border, border)


@strict_entry
def _steer(forces: Array, agent: int, move: int, strength: float) -> None:
    """Set the force of an agent to that of its move."""
    forces[agent, 0] = forces[agent, 1] = 0.0
    if move > 0:
        forces[agent, (move - 1) // 2] = -strength if move % 2 == 1 else strength


@strict_entry
def _move(state: Any, agent: int) -> None:
    for axis in range(2):
        state.places[agent, axis] += state.velocities[agent, axis] * _DT
        state.velocities[agent, axis] = state.velocities[agent, axis] * _SLOWER + state.forces[agent, axis] * _DT


@strict_entry
def _distance(places: Array, a: int, others: Array, b: int) -> float:
    x, y = places[a, 0] - others[b, 0], places[a, 1] - others[b, 1]
    return math.sqrt(x * x + y * y)


@strict_entry
def _push(places: Array, a: int, others: Array, b: int, touch: float) -> tuple[float, float]:
    """Return the force on `a` of what it touches at a distance of `touch`."""
    x, y, distance = places[a, 0] - others[b, 0], places[a, 1] - others[b, 1], _distance(places, a, others, b)
    deep = -(distance - touch) / _MARGIN
    # NumPy's `logaddexp(0, deep)`
    soft = deep + math.log1p(math.exp(-deep)) if deep > 0 else math.log1p(math.exp(deep))
    return 100.0 * x / distance * (soft * _MARGIN), 100.0 * y / distance * (soft * _MARGIN)


@strict_entry
def _write_relative(observed: Array, at: int, places: Array, index: int, state: Any, agent: int) -> int:
    """Write where something is from an agent's place; returns where to go on."""
    for axis in range(2):
        observed[at + axis] = places[index, axis] - state.places[agent, axis]
    return at + 2


class ParticleBatch(TwinBatch):
    """E envs of one kind."""

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
        self.run(OBSERVE)
        widths = [self.spaces_of(agent)[0].shape or () for agent in self.possible_agents]
        return np.concatenate([self.observed[:, at, :width] for at, (width,) in enumerate(widths)], axis=1)


@dataclass(frozen=True)
class ParticleTwin(Twin):
    """Steps envs with discrete actions, of which all is seen."""

    arguments: Sequence[str]  # those that it covers; `dynamic_rescaling` is for rendering

    @override
    def refusal(self, env: Any, env_kwargs: Mapping[str, Any]) -> str | None:
        raw = env.unwrapped
        found = place_of(type(raw))
        if found != self.original:
            return f"the env is a {found}, and not {self.original}"
        others = [name for name in env_kwargs if name not in self.arguments]
        if others:
            return f"the argument {others[0]} is given"
        layers = [type(env)]
        inner = getattr(env, "aec_env", raw)
        while inner is not raw:
            layers.append(type(inner))
            inner = inner.env
        if layers != _LAYERS:
            return f"the env is wrapped in {', '.join(each.__name__ for each in layers)}"
        modules = *_MODULES, type(raw).__module__
        return why_not_original(modules, raw, lambda made: made.raw_env(**env_kwargs))

    @override
    def make(self, factory: EnvFactory, num_envs: int, **env_kwargs: Any) -> CompiledBatch:
        template = make_env(factory, 0, env_kwargs)
        return ParticleBatch(num_envs, self, template, template.unwrapped)


def _state(agents: int, landmarks: int, *others: Any) -> np.dtype[Any]:
    of_agents = [(name, "f8", (agents, 2)) for name in ("places", "velocities", "forces")]
    return np.dtype([("timestep", "i8"), ("limit", "i8"), *others, *of_agents, ("landmarks", "f8", (landmarks, 2))])


def _seen(width: int) -> Box:
    return Box(-_INFINITE, _INFINITE, (width,), np.float32)


# --- simple_spread ---------------------------------------------------------------------------------------------------

_TOUCH = 0.15 + 0.15  # the distance at which two agents touch


def _start_spread(state: Any, rng: Array) -> None:
    _start_anywhere(state, rng, 1.0)


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


def _spread_rules(raw: Any) -> CompiledRules:
    count = len(raw.possible_agents)
    return CompiledRules(
        agents=[f"agent_{index}" for index in range(count)],
        observation_space=_seen(4 + 2 * count + 4 * (count - 1)),
        action_space=Discrete(_MOVES),
        state=_state(count, count, ("local_ratio", "f8")),
        start=_start_spread,
        step=_step_spread,
        observe=_observe_spread,
        settings=["limit", "local_ratio", "forces"],  # the forces of a step are not read in the next
    )


SIMPLE_SPREAD = ParticleTwin(
    original="mpe2.simple_spread.simple_spread:raw_env",
    arguments=("N", "local_ratio", "max_cycles", "dynamic_rescaling"),
    rules=_spread_rules,
    settings=lambda raw: {"limit": raw.max_cycles, "local_ratio": raw.local_ratio},
)

# --- simple_reference ------------------------------------------------------------------------------------------------

_WORDS = 10


def _start_reference(state: Any, rng: Array) -> None:
    """Begin an episode: each agent knows the landmark that the other one should go to; nobody has said a word."""
    half = np.zeros(2, np.uint64)
    for agent in range(2):
        state.goals[agent], state.said[agent] = integers(rng, 3, half), -1
    _start_anywhere(state, rng, 1.0)


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


def _reference_rules(raw: Any) -> CompiledRules:
    return CompiledRules(
        agents=["agent_0", "agent_1"],
        observation_space=_seen(2 + 6 + 3 + _WORDS),
        action_space=Discrete(_MOVES * _WORDS),
        state=_state(2, 3, ("local_ratio", "f8"), ("goals", "i8", (2,)), ("said", "i8", (2,))),
        start=_start_reference,
        step=_step_reference,
        observe=_observe_reference,
        bounds={"goals": (0, 2)},
        settings=["limit", "local_ratio", "forces"],
    )


SIMPLE_REFERENCE = ParticleTwin(
    original="mpe2.simple_reference.simple_reference:raw_env",
    arguments=("local_ratio", "max_cycles", "dynamic_rescaling"),
    rules=_reference_rules,
    settings=lambda raw: {"limit": raw.max_cycles, "local_ratio": raw.local_ratio},
)

# --- simple_speaker_listener -----------------------------------------------------------------------------------------


def _start_listening(state: Any, rng: Array) -> None:
    """Begin an episode: the speaker, who stands still, knows the landmark of the listener, and has said nothing."""
    state.goal, state.said = integers(rng, 3, np.zeros(2, np.uint64)), -1
    for _ in range(2):
        random(rng)  # the place of the speaker, which nobody sees
    _start_anywhere(state, rng, 1.0)


def _step_listening(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    state.said = actions[0]
    _steer(state.forces, 0, actions[1], 5.0)
    _move(state, 0)
    state.timestep += 1
    x = state.places[0, 0] - state.landmarks[state.goal, 0]
    y = state.places[0, 1] - state.landmarks[state.goal, 1]
    for agent in range(2):
        outcome.rewards[agent] = -(x * x + y * y)
        outcome.truncated[agent] = state.timestep >= state.limit


def _observe_listening(state: Any, observations: Array) -> None:
    """Write the color of the landmark; for the listener its velocity, where landmarks are, and the word it hears."""
    at = 2
    for axis in range(2):
        observations[1, axis] = state.velocities[0, axis]
    for landmark in range(3):
        observations[0, landmark] = 0.65 if landmark == state.goal else 0.15
        at = _write_relative(observations[1], at, state.landmarks, landmark, state, 0)
    for word in range(3):
        observations[1, at + word] = 1.0 if word == state.said else 0.0


def _listening_rules(raw: Any) -> CompiledRules:
    widths = {"speaker_0": 3, "listener_0": 2 + 6 + 3}
    return CompiledRules(
        agents=[*widths],
        observation_space={name: _seen(width) for name, width in widths.items()},
        action_space={"speaker_0": Discrete(3), "listener_0": Discrete(_MOVES)},
        state=_state(1, 3, ("goal", "i8"), ("said", "i8")),
        start=_start_listening,
        step=_step_listening,
        observe=_observe_listening,
        bounds={"goal": (0, 2)},
        settings=["limit", "forces"],
    )


SIMPLE_SPEAKER_LISTENER = ParticleTwin(
    original="mpe2.simple_speaker_listener.simple_speaker_listener:raw_env",
    arguments=("max_cycles", "dynamic_rescaling"),
    rules=_listening_rules,
    settings=lambda raw: {"limit": raw.max_cycles},
)

# --- simple_tag ------------------------------------------------------------------------------------------------------

# Of adversaries, which come first, and of the good agents that they chase
_ADVERSARY, _GOOD = 0, 1
_SIZES, _STRENGTHS, _TOP_SPEEDS = (0.075, 0.05), (3.0, 4.0), (1.0, 1.3)
_OBSTACLE_SIZE = 0.2


def _start_tag(state: Any, rng: Array) -> None:
    _start_anywhere(state, rng, 0.9)


@strict_entry
def _gather_forces(state: Any, actions: Array) -> None:
    """Set the force on each agent: what it wants, and what it touches."""
    count = len(actions)
    for agent in range(count):
        _steer(state.forces, agent, actions[agent], _STRENGTHS[int(agent >= state.adversaries)])
    for a in range(count):
        size = _SIZES[int(a >= state.adversaries)]
        for b in range(a + 1, count):
            x, y = _push(state.places, a, state.places, b, size + _SIZES[int(b >= state.adversaries)])
            state.forces[a, 0], state.forces[a, 1] = x + state.forces[a, 0], y + state.forces[a, 1]
            state.forces[b, 0], state.forces[b, 1] = -x + state.forces[b, 0], -y + state.forces[b, 1]
        for obstacle in range(state.obstacles):
            x, y = _push(state.places, a, state.landmarks, obstacle, size + _OBSTACLE_SIZE)
            state.forces[a, 0], state.forces[a, 1] = x + state.forces[a, 0], y + state.forces[a, 1]


@strict_entry
def _leaving(place: float) -> float:
    """Return what a good agent loses for a coordinate near the border or outside."""
    x = abs(place)
    if x < 0.9:
        return 0.0
    return (x - 0.9) * 10 if x < 1.0 else min(math.exp(2 * x - 2), 10.0)


def _step_tag(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    """Step the world: forces, movements, and rewards."""
    count = len(actions)
    _gather_forces(state, actions)
    for agent in range(count):
        _move(state, agent)
        x, y, top = state.velocities[agent, 0], state.velocities[agent, 1], _TOP_SPEEDS[int(agent >= state.adversaries)]
        speed = math.sqrt(x * x + y * y)
        if speed > top:
            state.velocities[agent, 0], state.velocities[agent, 1] = x / speed * top, y / speed * top
    state.timestep += 1
    hits, all_caught = 0.0, True
    for agent in range(state.adversaries, count):
        own = 0.0
        for adversary in range(state.adversaries):
            if _distance(state.places, agent, state.places, adversary) < _SIZES[_GOOD] + _SIZES[_ADVERSARY]:
                own -= 10.0
        hits -= own
        all_caught = all_caught and own < 0.0
        for axis in range(2):
            own -= _leaving(state.places[agent, axis])
        outcome.rewards[agent] = own
    over = state.timestep >= state.limit
    for agent in range(count):
        if agent < state.adversaries:
            outcome.rewards[agent] = hits
        outcome.truncated[agent] = over
        outcome.terminated[agent] = state.ends_when_caught > 0 and all_caught and not over


def _observe_tag(state: Any, observations: Array) -> None:
    """Write the velocity, the place, where obstacles and others are from there, and velocities of other good ones."""
    count = len(observations)
    for agent in range(count):
        for axis in range(2):
            observations[agent, axis] = state.velocities[agent, axis]
            observations[agent, 2 + axis] = state.places[agent, axis]
        at = 4
        for obstacle in range(state.obstacles):
            at = _write_relative(observations[agent], at, state.landmarks, obstacle, state, agent)
        for other in range(count):
            if other != agent:
                at = _write_relative(observations[agent], at, state.places, other, state, agent)
        for other in range(state.adversaries, count):
            if other != agent:
                for axis in range(2):
                    observations[agent, at + axis] = state.velocities[other, axis]
                at += 2


def _tag_rules(raw: Any) -> CompiledRules:
    count, obstacles = len(raw.world.agents), len(raw.world.landmarks)
    adversaries = _adversaries(raw)
    good = count - adversaries
    width = 4 + 2 * obstacles + 2 * (count - 1) + 2 * good
    widths = {f"adversary_{index}": width for index in range(adversaries)}
    widths |= {f"agent_{index}": width - 2 for index in range(good)}
    settings = [(name, "i8") for name in ("adversaries", "obstacles", "ends_when_caught")]
    return CompiledRules(
        agents=[*widths],
        observation_space={name: _seen(own) for name, own in widths.items()},
        action_space=Discrete(_MOVES),
        state=_state(count, max(obstacles, 1), *settings),
        start=_start_tag,
        step=_step_tag,
        observe=_observe_tag,
        settings=["limit", "forces", *(name for name, _ in settings)],
    )


def _adversaries(raw: Any) -> int:
    return sum(agent.adversary for agent in raw.world.agents)


SIMPLE_TAG = ParticleTwin(
    original="mpe2.simple_tag.simple_tag:raw_env",
    arguments=(
        *("num_good", "num_adversaries", "num_obstacles"),
        *("max_cycles", "terminate_on_success", "dynamic_rescaling"),
    ),
    rules=_tag_rules,
    settings=lambda raw: {
        "adversaries": _adversaries(raw),
        "obstacles": len(raw.world.landmarks),
        "limit": raw.max_cycles,
        "ends_when_caught": raw.scenario.terminate_on_success,
    },
)
