"""A compiled env that uses all that compiled rules may use: real numbers, chance in steps, both kinds of ends."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.envs.compiled import CompiledBatch, CompiledRules, Outcome
from marl_sb3.envs.compiled.random import random, uniform
from marl_sb3.types import Array

AGENTS = ("a", "b")


def begin(state: Any, rng: np.random.Generator) -> None:
    state.places[:] = rng.uniform(-1, 1, 2)
    state.timestep = 0


def step(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    state.timestep += 1
    for agent in range(2):
        state.places[agent] += 0.5 * actions[agent, 0] + 0.1 * actions[agent, 1] + uniform(rng, -0.2, 0.2)
        outcome.rewards[agent] = 1.0 - abs(state.places[agent]) + 0.001 * random(rng)
        if state.timestep == state.poisoned:
            outcome.rewards[agent] = np.nan
    lost = abs(state.places[0]) > 2.5 or abs(state.places[1]) > 2.5
    for agent in range(2):
        outcome.terminated[agent] = lost
        outcome.truncated[agent] = state.timestep == 9 and not lost
    if state.partial and state.timestep == 3:
        outcome.terminated[0] = True
    outcome.infos[0] = state.places[0]
    outcome.infos[1] = state.places[1]
    outcome.infos[2] = lost


def observe(state: Any, observations: Array) -> None:
    for agent in range(2):
        observations[agent, 0] = state.places[agent]
        observations[agent, 1] = state.places[1 - agent]
        observations[agent, 2] = state.timestep / 9
        if state.blind == state.timestep and state.blind > 0:
            observations[agent, 0] = np.nan


RULES = CompiledRules(
    agents=AGENTS,
    observation_space=spaces.Box(-10, 10, (3,), np.float32),
    action_space=spaces.Box(-1, 1, (2,), np.float32),
    state=np.dtype(
        [(name, np.int64) for name in ("timestep", "poisoned", "partial", "blind")] + [("places", np.float64, (2,))]
    ),
    begin=begin,
    step=step,
    observe=observe,
    infos=(("a", "place", float), ("b", "place", float), ("a", "lost", bool)),
    bounds={"timestep": (0, 9)},
)


class Drifting(ParallelEnv):  # type: ignore[misc]  # PettingZoo ships no types
    """Only its batch steps.

    Args:
        faults: fields of the state that are set in all envs.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "drifting",
        "custom_metrics": {
            "sum": {"key": "place"},
            "mean": {"key": "place", "agent": "a", "reduce": "mean"},
            "least": {"key": "place", "reduce": "min"},
            "most": {"key": "place", "reduce": "max"},
            "last": {"key": "lost", "agent": "a", "reduce": "last"},
            "absent": {"key": "elsewhere"},
        },
    }
    render_mode = None

    def __init__(self, **faults: int) -> None:
        self.possible_agents = list(AGENTS)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return RULES.observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return RULES.action_space

    @classmethod
    def make_batched(cls, num_envs: int, **faults: int) -> CompiledBatch:
        batch = CompiledBatch(num_envs, RULES, cls())
        for name, value in faults.items():
            batch.states[name] = value
        return batch
