"""Compiled envs that use all that rules may use: real numbers, chance, both kinds of ends, different spaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.envs.compiled.batch import CompiledBatch
from marl_sb3.envs.compiled.random import random, uniform
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome
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


# Agents with different spaces


def begin_uneven(state: Any, rng: np.random.Generator) -> None:
    state.places[:] = rng.integers(5, size=3)
    state.timestep = 0


def step_uneven(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    state.timestep += 1
    for agent in range(3):
        if actions[agent, 0] > 0:
            state.places[agent] = (state.places[agent] + 1) % 5
    met = state.places[0] == state.places[1] and state.places[2] == state.places[1]
    for agent in range(3):
        outcome.rewards[agent] = state.places[agent] - 0.3 * state.timestep
        outcome.terminated[agent] = met
        outcome.truncated[agent] = state.timestep == 6 and not met
    if actions[1, 1] > 0:
        outcome.rewards[1] += 1.0


def observe_uneven(state: Any, observations: Array) -> None:
    for agent in range(3):
        observations[agent, 0] = state.places[agent]
    observations[1, 1] = state.places[0]
    observations[1, 2] = state.places[2]


def of_both(side: spaces.Space[Any], guide: spaces.Space[Any]) -> dict[str, spaces.Space[Any]]:
    return {"left": side, "guide": guide, "right": side}


UNEVEN = CompiledRules(
    agents=("left", "guide", "right"),
    observation_space=of_both(*(spaces.Box(0, 5, (size,), np.float32) for size in (1, 3))),
    action_space=of_both(spaces.Discrete(2), spaces.MultiDiscrete([2, 3])),
    state=np.dtype([("timestep", np.int64), ("places", np.int64, (3,))]),
    begin=begin_uneven,
    step=step_uneven,
    observe=observe_uneven,
    bounds={"places": (0, 4)},
)
UNEVEN_CATEGORIES = replace(
    UNEVEN,
    observation_space=of_both(spaces.Discrete(5), spaces.MultiDiscrete([5, 5, 5])),
    action_space=of_both(*(spaces.Box(-1, 1, (size,), np.float32) for size in (1, 2))),
)


# With masks


def allow_uneven(state: Any, allowed: Array) -> None:
    for agent in range(3):
        allowed[agent, 0] = state.timestep != state.blocked
        allowed[agent, 1] = state.places[agent] < 4 and allowed[agent, 0]
    allowed[1, 2] = state.timestep % 2 == 1
    allowed[1, 3] = True
    allowed[1, 4] = state.places[0] > 1


MASKED = replace(
    UNEVEN,
    state=np.dtype([("timestep", np.int64), ("blocked", np.int64), ("places", np.int64, (3,))]),
    allow=allow_uneven,
)


class Uneven(ParallelEnv):  # type: ignore[misc]  # PettingZoo ships no types
    """Its rules in plain Python; two of three agents have the same spaces."""

    metadata: ClassVar[dict[str, Any]] = {"name": "uneven"}
    render_mode = None
    rules: ClassVar[CompiledRules] = UNEVEN

    def __init__(self) -> None:
        self.possible_agents = list(self.rules.agents)
        self.state_of_env: Any = np.zeros(1, self.rules.state).view(np.recarray)[0]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.rules.spaces_of(agent)[0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.rules.spaces_of(agent)[1]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.rules.begin(self.state_of_env, np.random.default_rng(seed))
        self.agents = list(self.possible_agents)
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self) -> dict[str, Any]:
        observed = np.zeros((3, 3))
        self.rules.observe(self.state_of_env, observed)
        by_agent = zip(self.possible_agents, map(self.observation_space, self.possible_agents), observed, strict=True)
        return {a: np.resize(row, space.shape or ()).astype(space.dtype) for a, space, row in by_agent}

    def step(self, actions: Any) -> Any:
        done = np.zeros((3, 2))
        for row, agent in zip(done, self.possible_agents, strict=True):
            row[: np.size(actions[agent])] = actions[agent]
        outcome = Outcome(np.zeros(3), np.zeros(3, np.bool_), np.zeros(3, np.bool_), np.zeros(0))
        self.rules.step(self.state_of_env, done, np.zeros(0), outcome)
        agents = self.agents
        if outcome.terminated.any() or outcome.truncated.any():
            self.agents = []
        of_agents = (dict(zip(agents, array.tolist(), strict=True)) for array in outcome[:3])
        return self.seen(), *of_agents, {agent: {} for agent in agents}

    @classmethod
    def make_batched(cls, num_envs: int) -> CompiledBatch:
        return CompiledBatch(num_envs, cls.rules, cls())


class Masked(Uneven):
    """Only its batch has the masks; in the step `blocked`, they forbid everything."""

    rules = MASKED

    def __init__(self, blocked: int = -1) -> None:
        super().__init__()

    @classmethod
    def make_batched(cls, num_envs: int, blocked: int = -1) -> CompiledBatch:
        batch = CompiledBatch(num_envs, cls.rules, cls())
        batch.states["blocked"] = blocked
        return batch


class UnevenCategories(Uneven):
    rules = UNEVEN_CATEGORIES

    @classmethod
    def make_batched(cls, num_envs: int) -> CompiledBatch:
        return CompiledBatch(num_envs, cls.rules, cls())
