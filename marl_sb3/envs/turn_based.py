"""An `AECEnv`, whose agents take turns, as a `ParallelEnv`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import BaseParallelWrapper
from pettingzoo.utils.conversions import aec_to_parallel
from pettingzoo.utils.env_logger import EnvLogger
from typing_extensions import override

from marl_sb3.doors import EnvKind
from marl_sb3.types import AgentID

_said: set[str] = set()


def _once_each(record: logging.LogRecord) -> bool:
    """Let each message pass once: PettingZoo logs the same words at every illegal move of a policy that learns."""
    known = len(_said)
    _said.add(record.getMessage())
    return len(_said) > known


# By agent, what `ParallelEnv.step` returns: observations, rewards, terminations, truncations and infos.
_Told = tuple[dict[AgentID, Any], ...]


class TurnBasedEnv(BaseParallelWrapper):  # type: ignore[misc]
    """Its `agents` are those that act in the next step: the one agent whose turn it is.

    An agent is paid when its next turn comes, or its end: all that it has earned since its last action, as
    `AECEnv.last` defines it. Its end comes with its dead turn, the turn in which PettingZoo's loops pass `None`; these
    turns are no steps. An agent that the env removes without a dead turn is reported in the same way. Rewards and ends
    may therefore belong to agents that did not act in the step.
    """

    def __init__(self, env: AECEnv) -> None:
        super().__init__(env)
        EnvLogger.get_logger().addFilter(_once_each)
        self.possible_agents: list[AgentID] = getattr(env, "possible_agents", None)  # type: ignore[assignment]
        self.agents: list[AgentID] = []
        self.metadata = getattr(env, "metadata", None)
        self.render_mode = getattr(env, "render_mode", None)
        self._live: set[AgentID] = set()  # have not ended
        # PettingZoo's own wrappers pass on each read of `agents` and the like: together, as long as a step of a game.
        self._state = env
        while type(self._state).__module__.startswith("pettingzoo.utils.wrappers."):
            self._state = self._state.env
        self._last = self._read_last if type(env).last is AECEnv.last else env.last

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Begin an episode; the observation and the info are those of the agent that acts first."""
        self.env.reset(seed=seed, options=options)
        self._live = set(self._state.agents)
        told: _Told = ({}, {}, {}, {}, {})
        self._go_to_next_turn(told)
        return told[0], told[4]

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Let the agent act whose turn it is.

        Returns:
            Observations, rewards, terminations, truncations and infos of the agents that have ended and of the one that
            acts next. An agent that has acted and waits has the reward 0: it is paid at its next turn.
        """
        ((agent, action),) = actions.items()
        self._live.update(self._state.agents)
        self.env.step(action)
        told: _Told = ({}, {agent: 0.0}, {agent: False}, {agent: False}, {})
        self._go_to_next_turn(told)
        self._report_removed(told)
        return told

    def _go_to_next_turn(self, told: _Told) -> None:
        """Take the dead turns of agents that have ended, until it is the turn of one that acts or nobody is left."""
        self.agents = []
        left: set[AgentID] = set()
        while self._state.agents and not self.agents:
            agent = self._state.agent_selection
            if agent in left:
                raise RuntimeError(f"agent {agent!r} has ended, but step(None) gives it another turn")
            last = self._last()
            for values, value in zip(told, last, strict=True):
                values[agent] = value
            if last[2] or last[3]:
                left.add(agent)
                self._live.discard(agent)
                self.env.step(None)
            else:
                self.agents = [agent]

    def _read_last(self) -> tuple[Any, ...]:
        """Read what `AECEnv.last` returns."""
        agent = (state := self._state).agent_selection
        of_agent = state._cumulative_rewards[agent], state.terminations[agent], state.truncations[agent]
        return (self.env.observe(agent), *of_agent, state.infos[agent])

    def _report_removed(self, told: _Told) -> None:
        """Report the end of agents that the env has removed without a dead turn, if it flagged them."""
        env = self._state
        for agent in self._live.difference(env.agents):
            flags = env.terminations.get(agent, False), env.truncations.get(agent, False)
            if any(flags):
                earned, info = env._cumulative_rewards.get(agent, 0.0), env.infos.get(agent, {})
                for values, value in zip(told, (self.env.observe(agent), earned, *flags, info), strict=True):
                    values[agent] = value
                self._live.discard(agent)


class TurnBasedKind(EnvKind):
    """Envs whose agents take turns.

    If the env's metadata says `is_parallelizable`, the order of turns within a cycle does not matter, and all agents
    act at once, as in PettingZoo's own parallel versions of such envs. Otherwise one agent acts in each step.
    """

    what = "a pettingzoo.AECEnv"

    @override
    def recognises(self, env: Any) -> bool:
        return isinstance(env, AECEnv) and not isinstance(env, ParallelEnv)

    @override
    def as_parallel(self, env: AECEnv) -> ParallelEnv:
        metadata = getattr(env, "metadata", None)
        simultaneous = isinstance(metadata, Mapping) and metadata.get("is_parallelizable", False)
        return aec_to_parallel(env) if simultaneous else TurnBasedEnv(env)


TURN_BASED = TurnBasedKind()
