"""The particles of mpe2's simple_spread as compiled envs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from typing_extensions import override

from marl_sb3.core.envs import EnvFactory, make_env
from marl_sb3.envs.compiled.batch import CompiledBatch
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome
from marl_sb3.envs.compiled.twins import Twin
from marl_sb3.types import Array

_RAW = "mpe2.simple_spread.simple_spread:raw_env"
_ARGUMENTS = ("N", "local_ratio", "max_cycles", "dynamic_rescaling")  # the latter is for rendering
_DT, _SLOWER, _MARGIN = 0.1, 1 - 0.25, 1e-3
_TOUCH = 0.15 + 0.15  # the distance at which two agents touch


def _begin(state: Any, rng: np.random.Generator) -> None:
    """Begin an episode: all stand anywhere, at rest."""
    state.timestep = 0
    state.velocities[:] = 0.0
    for places in (state.places, state.landmarks):
        for index in range(len(places)):
            places[index] = rng.uniform(-1, +1, 2)


def _step(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    """Step the world: forces, movements, and rewards."""
    count = len(actions)
    for agent in range(count):
        state.forces[agent, 0] = state.forces[agent, 1] = 0.0
        if actions[agent] > 0:  # left, right, down, up
            state.forces[agent, (actions[agent] - 1) // 2] = -5.0 if actions[agent] % 2 == 1 else 5.0
    for a in range(count):
        for b in range(a + 1, count):
            x, y = state.places[a, 0] - state.places[b, 0], state.places[a, 1] - state.places[b, 1]
            distance = math.sqrt(x * x + y * y)
            deep = -(distance - _TOUCH) / _MARGIN
            # NumPy's `logaddexp(0, deep)`
            soft = deep + math.log1p(math.exp(-deep)) if deep > 0 else math.log1p(math.exp(deep))
            push_x, push_y = 100.0 * x / distance * (soft * _MARGIN), 100.0 * y / distance * (soft * _MARGIN)
            state.forces[a, 0], state.forces[a, 1] = push_x + state.forces[a, 0], push_y + state.forces[a, 1]
            state.forces[b, 0], state.forces[b, 1] = -push_x + state.forces[b, 0], -push_y + state.forces[b, 1]
    for agent in range(count):
        for axis in range(2):
            state.places[agent, axis] += state.velocities[agent, axis] * _DT
            state.velocities[agent, axis] = state.velocities[agent, axis] * _SLOWER + state.forces[agent, axis] * _DT
    of_all = 0.0
    for landmark in range(count):
        nearest = np.inf
        for agent in range(count):
            x = state.places[agent, 0] - state.landmarks[landmark, 0]
            y = state.places[agent, 1] - state.landmarks[landmark, 1]
            nearest = min(nearest, math.sqrt(x * x + y * y))
        of_all -= nearest
    state.timestep += 1
    for agent in range(count):
        own = 0.0
        for other in range(count):
            x = state.places[other, 0] - state.places[agent, 0]
            y = state.places[other, 1] - state.places[agent, 1]
            if other != agent and math.sqrt(x * x + y * y) < _TOUCH:
                own -= 1.0
        outcome.rewards[agent] = of_all * (1 - state.local_ratio) + own * state.local_ratio
        outcome.truncated[agent] = state.timestep >= state.limit


def _observe(state: Any, observations: Array) -> None:
    """Write the velocity, the place, and where landmarks and others are from there; agents say nothing: zeros."""
    count = len(observations)
    for agent in range(count):
        at = 4
        for axis in range(2):
            observations[agent, axis] = state.velocities[agent, axis]
            observations[agent, 2 + axis] = state.places[agent, axis]
        for landmark in range(count):
            for axis in range(2):
                observations[agent, at + axis] = state.landmarks[landmark, axis] - state.places[agent, axis]
            at += 2
        for other in range(count):
            if other != agent:
                for axis in range(2):
                    observations[agent, at + axis] = state.places[other, axis] - state.places[agent, axis]
                at += 2
        for rest in range(at, observations.shape[1]):
            observations[agent, rest] = 0.0


@lru_cache(maxsize=64)
def _rules(count: int) -> CompiledRules:
    settings = [("limit", "i8"), ("local_ratio", "f8")]
    arrays = [(name, "f8", (count, 2)) for name in ("places", "velocities", "landmarks", "forces")]
    infinite = np.float32(np.inf)
    return CompiledRules(
        agents=[f"agent_{index}" for index in range(count)],
        observation_space=Box(-infinite, infinite, (4 + 2 * count + 4 * (count - 1),), np.float32),
        action_space=Discrete(5),
        state=np.dtype([("timestep", "i8"), *settings, *arrays], align=True),
        begin=_begin,
        step=_step,
        observe=_observe,
        settings=["limit", "local_ratio", "forces"],  # the forces of a step are not read in the next
    )


class BatchedSpread(CompiledBatch):
    """E envs of simple_spread.

    Args:
        template: one of the originals.
    """

    def __init__(self, num_envs: int, template: Any) -> None:
        raw = template.unwrapped
        super().__init__(num_envs, _rules(len(raw.possible_agents)), template)
        self.states.limit, self.states.local_ratio = raw.max_cycles, raw.local_ratio

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


class SpreadTwin(Twin):
    """Steps envs of simple_spread with discrete actions, of which all is seen."""

    @override
    def refusal(self, env: Any, env_kwargs: Mapping[str, Any]) -> str | None:
        raw = env.unwrapped
        found = f"{type(raw).__module__}:{type(raw).__qualname__}"
        if found != _RAW:
            return f"the env is a {found}, and not {_RAW}"
        others = [name for name in env_kwargs if name not in _ARGUMENTS]
        return f"the argument {others[0]} is given" if others else None

    @override
    def make(self, factory: EnvFactory, num_envs: int, **env_kwargs: Any) -> CompiledBatch:
        return BatchedSpread(num_envs, make_env(factory, 0, env_kwargs))


SIMPLE_SPREAD = SpreadTwin()
