"""A turn-based env that plays what a list of moves says, and random lists of moves for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st
from pettingzoo import AECEnv
from turn_plans import AGENTS, KINDS


@dataclass
class Move:
    """Whose move it is, and what comes of it; the move of an agent that is not there, or has ended, is skipped."""

    agent: str  # who moves
    pay: Mapping[str, float] = field(default_factory=dict)  # reward by agent
    # how agents end, by agent: "terminated", "truncated" or "both"; "removed" is termination without a dead turn
    ends: Mapping[str, str] = field(default_factory=dict)
    joins: Sequence[str] = ()  # agents that appear, or that live again


@dataclass
class TurnPlan:
    """One episode: who is there at its start, who of them has ended already, and the moves; then all are truncated."""

    moves: Sequence[Move]
    present: Sequence[str] = AGENTS[:2]
    dead: Sequence[str] = ()


class TurnEnv(AECEnv):
    """An agent sees [its number, noise, the latest action]. Noise depends on the episode's seed and is drawn by move.

    Args:
        plans: for each env, the plans of its episodes, taken in turn.
    """

    metadata: ClassVar = {"name": "turns_v0", "render_modes": ["rgb_array"]}

    def __init__(self, plans: Sequence[Sequence[TurnPlan]], env_index: int = 0, render_mode: str | None = None) -> None:
        self.plans = plans[env_index]
        self.render_mode = render_mode
        self.possible_agents = list(AGENTS)
        self.episode = 0
        self.shown = spaces.Box(-1000, 1000, (3,), np.float32)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.shown

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.plan = self.plans[self.episode % len(self.plans)]
        self.episode += 1
        self.agents: list[str] = []
        self.terminations, self.truncations, self.infos = {}, {}, {}
        self.rewards, self._cumulative_rewards = {}, {}
        for agent in self.plan.present:
            self._join(agent)
            self.terminations[agent] = agent in self.plan.dead
        self.index = -1
        self.action = 0
        self._go_on()

    def _join(self, agent: str) -> None:
        if agent not in self.agents:
            self.agents.append(agent)
            self.terminations[agent] = self.truncations[agent] = False
            self.rewards[agent] = self._cumulative_rewards[agent] = 0
            self.infos[agent] = {}

    def _go_on(self) -> None:
        """To the next move of an agent that lives; dead agents take their turns first."""
        self.noise = self.rng.random()
        self.index += 1
        moves = self.plan.moves
        while self.index < len(moves) and not self._lives(moves[self.index].agent):
            self.index += 1
        if self.index < len(moves):
            self.agent_selection = moves[self.index].agent
        else:
            self.truncations.update((agent, True) for agent in self.agents if self._lives(agent))
            self.agent_selection = self.agents[0] if self.agents else ""
        self._deads_step_first()

    def _lives(self, agent: str) -> bool:
        return agent in self.agents and not (self.terminations[agent] or self.truncations[agent])

    def observe(self, agent: str) -> Any:
        return np.array([self.possible_agents.index(agent) + 1, self.noise, self.action], np.float32)

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        move = self.plan.moves[self.index]
        self.action = int(action)
        self._cumulative_rewards[agent] = 0
        for name in move.joins:
            self._join(name)
        self.rewards = {name: move.pay.get(name, 0.0) for name in self.agents}
        self._accumulate_rewards()
        for name, kind in move.ends.items():
            if name in self.agents:
                self._end(name, kind)
        self._go_on()

    def _end(self, agent: str, kind: str) -> None:
        self.terminations[agent] = kind != "truncated"
        self.truncations[agent] = kind in ("truncated", "both")
        if kind == "removed":
            self.agents.remove(agent)

    def render(self) -> Any:
        return np.full((8, 8, 3), self.index, dtype=np.uint8)


_NAMES = st.sampled_from(AGENTS)
_MOVES = st.builds(
    Move,
    _NAMES,
    st.dictionaries(_NAMES, st.integers(-9, 9).map(float), max_size=3),
    st.dictionaries(_NAMES, st.sampled_from(KINDS), max_size=2),
    st.lists(_NAMES, max_size=1),
)


@st.composite
def turn_plans(draw: Any) -> TurnPlan:
    """An episode in which somebody moves."""
    present = draw(st.lists(_NAMES, min_size=1, unique=True))
    mover = draw(st.sampled_from(present))
    dead = draw(st.lists(st.sampled_from(present), max_size=2).map(lambda names: [n for n in names if n != mover]))
    return TurnPlan(
        [*draw(st.lists(_MOVES, max_size=3)), Move(mover), *draw(st.lists(_MOVES, max_size=9))], present, dead
    )


def turn_env_plans() -> st.SearchStrategy[list[list[TurnPlan]]]:
    """The `plans` of 1 to 3 `TurnEnv`s."""
    return st.lists(st.lists(turn_plans(), min_size=1, max_size=3), min_size=1, max_size=3)
