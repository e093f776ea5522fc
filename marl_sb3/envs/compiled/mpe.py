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
from marl_sb3.envs.compiled.random import integers, random, uniform
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome
from marl_sb3.envs.compiled.twins import Twin, TwinBatch, counted
from marl_sb3.types import AgentID, Array

_LAYERS = [aec_to_parallel_wrapper, OrderEnforcingWrapper, AssertOutOfBoundsWrapper]  # around an original
_DT, _SLOWER, _MARGIN = 0.1, 1 - 0.25, 1e-3
_MOVES = 5  # none, left, right, down, up
_STRENGTH = 5.0  # of agents without one of their own


# --- What all worlds have --------------------------------------------------------------------------------------------


def _start(state: Any, rng: Array) -> None:
    """Begin an episode: agents, then landmarks stand anywhere, at rest; the latter within a border."""
    for index in range(len(state.places)):
        for axis in range(2):
            state.velocities[index, axis] = 0.0
            state.places[index, axis] = uniform(rng, -1.0, 1.0)
    for index in range(len(state.landmarks)):
        for axis in range(2):
            state.landmarks[index, axis] = uniform(rng, -state.border, state.border)


_start_anywhere = strict_entry(_start)


@strict_entry
def _steer(state: Any, agent: int, move: int) -> None:
    """Set the force of an agent to that of its move."""
    state.forces[agent, 0] = state.forces[agent, 1] = 0.0
    if move > 0:
        strength = state.strengths[agent]
        state.forces[agent, (move - 1) // 2] = -strength if move % 2 == 1 else strength


@strict_entry
def _distance(places: Array, a: int, others: Array, b: int) -> float:
    x, y = places[a, 0] - others[b, 0], places[a, 1] - others[b, 1]
    return math.sqrt(x * x + y * y)


@strict_entry
def _push(state: Any, a: int, others: Array, b: int, touch: float) -> tuple[float, float]:
    """Add the force on an agent of what it touches at a distance of `touch`; returns that force."""
    x, y = state.places[a, 0] - others[b, 0], state.places[a, 1] - others[b, 1]
    distance = _distance(state.places, a, others, b)
    deep = -(distance - touch) / _MARGIN
    # NumPy's `logaddexp(0, deep)`
    soft = deep + math.log1p(math.exp(-deep)) if deep > 0 else math.log1p(math.exp(deep))
    x, y = 100.0 * x / distance * (soft * _MARGIN), 100.0 * y / distance * (soft * _MARGIN)
    state.forces[a, 0], state.forces[a, 1] = x + state.forces[a, 0], y + state.forces[a, 1]
    return x, y


@strict_entry
def _steer_and_push(state: Any, actions: Array) -> None:
    """Set the force on each agent: what it wants, and what it touches."""
    count = len(actions)
    for agent in range(count):
        _steer(state, agent, actions[agent])
    for a in range(count):
        for b in range(a + 1, count):
            x, y = _push(state, a, state.places, b, state.sizes[a] + state.sizes[b])
            state.forces[b, 0], state.forces[b, 1] = -x + state.forces[b, 0], -y + state.forces[b, 1]
        for obstacle in range(state.obstacles):
            _push(state, a, state.landmarks, obstacle, state.sizes[a] + state.obstacle_size)


@strict_entry
def _move(state: Any, agent: int) -> None:
    for axis in range(2):
        state.places[agent, axis] += state.velocities[agent, axis] * _DT
        state.velocities[agent, axis] = state.velocities[agent, axis] * _SLOWER + state.forces[agent, axis] * _DT


@strict_entry
def _touches(state: Any, a: int, b: int) -> bool:
    return bool(_distance(state.places, a, state.places, b) < state.sizes[a] + state.sizes[b])


@strict_entry
def _see(seen: Array, state: Any, agent: int, landmarks: int, others: int) -> int:
    """Write an agent's velocity, its place if there are others, and where landmarks and others are from there.

    Returns:
        Where to go on.
    """
    at = 4 if others > 0 else 2
    for axis in range(2):
        seen[axis] = state.velocities[agent, axis]
        if others > 0:
            seen[2 + axis] = state.places[agent, axis]
        for landmark in range(landmarks):
            seen[at + 2 * landmark + axis] = state.landmarks[landmark, axis] - state.places[agent, axis]
    at += 2 * landmarks
    for other in range(others):
        if other != agent:
            for axis in range(2):
                seen[at + axis] = state.places[other, axis] - state.places[agent, axis]
            at += 2
    return at


class ParticleBatch(TwinBatch):
    """E envs of one kind."""

    @override
    def env_states(self) -> Array:
        self.run(OBSERVE)
        widths = [self.spaces_of(agent)[0].shape or () for agent in self.possible_agents]
        return np.concatenate([self.observed[:, at, :width] for at, (width,) in enumerate(widths)], axis=1)


@dataclass(frozen=True)
class ParticleTwin(Twin):
    """Steps envs with discrete actions, of which all is seen."""

    arguments: Sequence[str]  # those that it covers, besides `max_cycles` and what is for rendering
    beneath = ("pettingzoo.", "mpe2._mpe_utils.")
    batch = ParticleBatch

    @override
    def inner(self, env: Any, env_kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]] | str:
        covered = (*self.arguments, "max_cycles", "dynamic_rescaling")
        if others := [name for name in env_kwargs if name not in covered]:
            return f"the argument {others[0]} is given"
        original, layers = env.unwrapped, [type(env)]
        inner = getattr(env, "aec_env", original)
        while inner is not original:
            layers.append(type(inner))
            inner = inner.env
        if layers != _LAYERS:
            return f"the env is wrapped in {', '.join(each.__name__ for each in layers)}"
        return original, env_kwargs


def _rules(
    raw: Any, widths: Mapping[AgentID, int], choices: Any, functions: Sequence[Any], *fields: Any, **settings: Any
) -> CompiledRules:
    """Return the rules of a world.

    Args:
        raw: the original.
        widths: agent -> how many numbers it sees.
        choices: how many actions each of the agents has.
        functions: `start`, `step` and `observe`.
        fields: what an episode changes, besides places and velocities.
        settings: of the world.
    """
    moved, landmarks = [each for each in raw.world.agents if each.movable], max(len(raw.world.landmarks), 1)
    start, step, observe = functions
    places = (len(moved), 2)
    return counted(
        [*fields, ("places", "f8", places), ("velocities", "f8", places), ("landmarks", "f8", (landmarks, 2))],
        {
            "limit": raw.max_cycles,
            "border": 1.0,
            "strengths": [float(each.accel or _STRENGTH) for each in moved],
            "sizes": [float(each.size) for each in moved],
            "obstacles": 0,  # landmarks that agents touch
            "obstacle_size": 0.0,
            "forces": np.zeros(places),  # those of a step are not read in the next
            **settings,
        },
        agents=[*widths],
        observation_space={name: Box(-np.inf, np.inf, (width,), np.float32) for name, width in widths.items()},
        action_space=dict(zip(widths, map(Discrete, choices), strict=True)),
        start=start,
        step=step,
        observe=observe,
        bounds={name: (0, 2) for name, *_ in fields if name.startswith("goal")},
    )


# --- simple_spread ---------------------------------------------------------------------------------------------------


def _step_spread(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    count = len(actions)
    _steer_and_push(state, actions)
    for agent in range(count):
        _move(state, agent)
    of_all = 0.0
    for landmark in range(count):
        nearest = np.inf
        for agent in range(count):
            nearest = min(nearest, _distance(state.places, agent, state.landmarks, landmark))
        of_all -= nearest
    for agent in range(count):
        own = 0.0
        for other in range(count):
            if other != agent and _touches(state, other, agent):
                own -= 1.0
        outcome.rewards[agent] = of_all * (1 - state.local_ratio) + own * state.local_ratio


def _observe_spread(state: Any, observations: Array) -> None:
    """Write what all see; agents say nothing: zeros."""
    count = len(observations)
    for agent in range(count):
        for rest in range(_see(observations[agent], state, agent, count, count), observations.shape[1]):
            observations[agent, rest] = 0.0


def _spread_rules(raw: Any) -> CompiledRules:
    count, functions = len(raw.possible_agents), (_start, _step_spread, _observe_spread)
    widths = {f"agent_{index}": 4 + 2 * count + 4 * (count - 1) for index in range(count)}
    return _rules(raw, widths, [_MOVES] * count, functions, local_ratio=float(raw.local_ratio))


SIMPLE_SPREAD = ParticleTwin("mpe2.simple_spread.simple_spread:raw_env", _spread_rules, ("N", "local_ratio"))

# --- simple_reference ------------------------------------------------------------------------------------------------

_WORDS = 10


def _start_reference(state: Any, rng: Array) -> None:
    """Begin an episode: each agent knows the landmark that the other one should go to; nobody has said a word."""
    half = np.zeros(2, np.uint64)
    for agent in range(2):
        state.goals[agent], state.said[agent] = integers(rng, 3, half), -1
    _start_anywhere(state, rng)


def _step_reference(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    """Step the world: each action is a movement and a word."""
    for agent in range(2):
        _steer(state, agent, actions[agent] % _MOVES)
        _move(state, agent)
        state.said[agent] = actions[agent] // _MOVES
    first = _distance(state.places, 1, state.landmarks, state.goals[0])
    second = _distance(state.places, 0, state.landmarks, state.goals[1])
    of_all = (-first - second) / 2
    for agent in range(2):
        own = -first if agent == 0 else -second
        outcome.rewards[agent] = of_all * (1 - state.local_ratio) + own * state.local_ratio


def _observe_reference(state: Any, observations: Array) -> None:
    """Write the velocity, where landmarks are, the color of the other's landmark, and the word it has said."""
    for agent in range(2):
        at = _see(observations[agent], state, agent, 3, 0)
        for color in range(3):
            observations[agent, at + color] = 0.75 if color == state.goals[agent] else 0.25
        for word in range(_WORDS):
            observations[agent, at + 3 + word] = 1.0 if word == state.said[1 - agent] else 0.0


def _reference_rules(raw: Any) -> CompiledRules:
    widths, functions = dict.fromkeys(raw.possible_agents, 2 + 6 + 3 + _WORDS), (_start_reference, _step_reference)
    fields, ratio = [("goals", "i8", (2,)), ("said", "i8", (2,))], float(raw.local_ratio)
    return _rules(raw, widths, [_MOVES * _WORDS] * 2, (*functions, _observe_reference), *fields, local_ratio=ratio)


SIMPLE_REFERENCE = ParticleTwin(
    "mpe2.simple_reference.simple_reference:raw_env", _reference_rules, arguments=("local_ratio",)
)

# --- simple_speaker_listener -----------------------------------------------------------------------------------------


def _start_listening(state: Any, rng: Array) -> None:
    """Begin an episode: the speaker, who stands still, knows the landmark of the listener, and has said nothing."""
    state.goal, state.said = integers(rng, 3, np.zeros(2, np.uint64)), -1
    for _ in range(2):
        random(rng)  # the place of the speaker, which nobody sees
    _start_anywhere(state, rng)


def _step_listening(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    state.said = actions[0]
    _steer(state, 0, actions[1])
    _move(state, 0)
    x = state.places[0, 0] - state.landmarks[state.goal, 0]
    y = state.places[0, 1] - state.landmarks[state.goal, 1]
    for agent in range(2):
        outcome.rewards[agent] = -(x * x + y * y)


def _observe_listening(state: Any, observations: Array) -> None:
    """Write the color of the landmark; for the listener its velocity, where landmarks are, and the word it hears."""
    at = _see(observations[1], state, 0, 3, 0)
    for choice in range(3):
        observations[0, choice] = 0.65 if choice == state.goal else 0.15
        observations[1, at + choice] = 1.0 if choice == state.said else 0.0


def _listening_rules(raw: Any) -> CompiledRules:
    widths, functions = {"speaker_0": 3, "listener_0": 2 + 6 + 3}, (_start_listening, _step_listening)
    return _rules(raw, widths, (3, _MOVES), (*functions, _observe_listening), ("goal", "i8"), ("said", "i8"))


SIMPLE_SPEAKER_LISTENER = ParticleTwin(
    "mpe2.simple_speaker_listener.simple_speaker_listener:raw_env", _listening_rules, arguments=()
)

# --- simple_tag ------------------------------------------------------------------------------------------------------
# Adversaries come first, then the good agents that they chase.


@strict_entry
def _leaving(place: float) -> float:
    """Return what a good agent loses for a coordinate near the border or outside."""
    x = abs(place)
    if x < 0.9:
        return 0.0
    return (x - 0.9) * 10 if x < 1.0 else min(math.exp(2 * x - 2), 10.0)


def _step_tag(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    count = len(actions)
    _steer_and_push(state, actions)
    for agent in range(count):
        _move(state, agent)
        x, y, top = state.velocities[agent, 0], state.velocities[agent, 1], state.top_speeds[agent]
        speed = math.sqrt(x * x + y * y)
        if speed > top:
            state.velocities[agent, 0], state.velocities[agent, 1] = x / speed * top, y / speed * top
    hits, all_caught = 0.0, True
    for agent in range(state.adversaries, count):
        own = 0.0
        for adversary in range(state.adversaries):
            if _touches(state, agent, adversary):
                own -= 10.0
        hits -= own
        all_caught = all_caught and own < 0.0
        for axis in range(2):
            own -= _leaving(state.places[agent, axis])
        outcome.rewards[agent] = own
    for agent in range(count):
        if agent < state.adversaries:
            outcome.rewards[agent] = hits
        outcome.terminated[agent] = state.ends_when_caught > 0 and all_caught and state.timestep < state.limit


def _observe_tag(state: Any, observations: Array) -> None:
    """Write what all see, and the velocities of other good ones."""
    count = len(observations)
    for agent in range(count):
        at = _see(observations[agent], state, agent, state.obstacles, count)
        for other in range(state.adversaries, count):
            if other != agent:
                for axis in range(2):
                    observations[agent, at + axis] = state.velocities[other, axis]
                at += 2


def _tag_rules(raw: Any) -> CompiledRules:
    agents, obstacles = raw.world.agents, len(raw.world.landmarks)
    good = sum(not each.adversary for each in agents)
    width = 4 + 2 * obstacles + 2 * (len(agents) - 1) + 2 * good
    settings = {
        "adversaries": len(agents) - good,
        "obstacles": obstacles,
        "obstacle_size": float(raw.world.landmarks[0].size) if obstacles else 0.0,
        "top_speeds": [float(each.max_speed) for each in agents],
        "border": 0.9,
        "ends_when_caught": bool(raw.scenario.terminate_on_success),
    }
    widths = {each.name: width if each.adversary else width - 2 for each in agents}
    return _rules(raw, widths, [_MOVES] * len(agents), (_start, _step_tag, _observe_tag), **settings)


SIMPLE_TAG = ParticleTwin(
    original="mpe2.simple_tag.simple_tag:raw_env",
    rules=_tag_rules,
    arguments=("num_good", "num_adversaries", "num_obstacles", "terminate_on_success"),
)
