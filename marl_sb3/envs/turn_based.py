"""An `AECEnv`, whose agents take turns, as a `ParallelEnv` in which one agent acts in each step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel
from pettingzoo.utils.env_logger import EnvLogger

from marl_sb3.types import AgentID


class _OnceEach(logging.Filter):
    """Lets each message pass once: PettingZoo logs the same words at every illegal move of a policy that learns."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is a new one."""
        message = record.getMessage()
        is_new = message not in self._seen
        self._seen.add(message)
        return is_new


_ONCE_EACH = _OnceEach()


@dataclass
class _Told:
    """What the env says of its agents between one action and the next, by agent."""

    observations: dict[AgentID, Any] = field(default_factory=dict)
    rewards: dict[AgentID, float] = field(default_factory=dict)
    terminated: dict[AgentID, bool] = field(default_factory=dict)
    truncated: dict[AgentID, bool] = field(default_factory=dict)
    infos: dict[AgentID, dict[str, Any]] = field(default_factory=dict)

    def add(self, agent: AgentID, last: tuple[Any, float, bool, bool, dict[str, Any]]) -> None:
        """Keep what `AECEnv.last` returned in the agent's turn."""
        self.observations[agent], self.rewards[agent], *flags, self.infos[agent] = last
        self.terminated[agent], self.truncated[agent] = flags

    def as_step(self) -> tuple[dict[AgentID, Any], ...]:
        """The five dictionaries that `ParallelEnv.step` returns."""
        return self.observations, self.rewards, self.terminated, self.truncated, self.infos


class TurnBasedEnv(ParallelEnv):  # type: ignore[misc]
    """Its `agents` are those that act in the next step: the one agent whose turn it is.

    An agent is paid when its next turn comes, or its end: all that it has earned since its last action, as
    `AECEnv.last` defines it. Its end comes with its dead turn, the turn in which PettingZoo's loops pass `None`; these
    turns are no steps. An agent that the env removes without a dead turn is reported in the same way. Rewards and ends
    may therefore belong to agents that did not act in the step.
    """

    def __init__(self, env: AECEnv) -> None:
        EnvLogger.get_logger().addFilter(_ONCE_EACH)
        self.env: Any = env
        self.possible_agents: list[AgentID] = getattr(env, "possible_agents", None)  # type: ignore[assignment]
        self.agents: list[AgentID] = []
        self.metadata = getattr(env, "metadata", None)
        self.render_mode = getattr(env, "render_mode", None)
        self._in_play: set[AgentID] = set()  # have acted and have not ended

    @property
    def unwrapped(self) -> Any:
        """The env below its wrappers."""
        return self.env.unwrapped

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The env's observation space of an agent."""
        space: spaces.Space[Any] = self.env.observation_space(agent)
        return space

    def action_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The env's action space of an agent."""
        space: spaces.Space[Any] = self.env.action_space(agent)
        return space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Begin an episode; the observation and the info are those of the agent that acts first."""
        self.env.reset(seed=seed, options=options)
        self._in_play = set()
        told = _Told()
        self._go_to_next_turn(told)
        return told.observations, told.infos

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Let the agent act whose turn it is.

        Returns:
            Observations, rewards, terminations, truncations and infos of the agents that have ended and of the one that
            acts next. An agent that has acted and waits has the reward 0: it is paid at its next turn.
        """
        ((agent, action),) = actions.items()
        self.env.step(action)
        self._in_play.add(agent)
        told = _Told(rewards={agent: 0.0}, terminated={agent: False}, truncated={agent: False})
        self._go_to_next_turn(told)
        self._report_removed(told)
        return told.as_step()

    def _go_to_next_turn(self, told: _Told) -> None:
        """Take the dead turns of agents that have ended, until it is the turn of one that acts or nobody is left."""
        self.agents = []
        left: set[AgentID] = set()
        while self.env.agents and not self.agents:
            agent = self.env.agent_selection
            if agent in left:
                raise RuntimeError(f"agent {agent!r} has ended, but step(None) gives it another turn")
            last = self.env.last()
            told.add(agent, last)
            if last[2] or last[3]:
                left.add(agent)
                self._in_play.discard(agent)
                self.env.step(None)
            else:
                self.agents = [agent]

    def _report_removed(self, told: _Told) -> None:
        """Report the end of agents in play that the env has removed without a dead turn, if it flagged them."""
        env = self.env
        for agent in self._in_play.difference(env.agents):
            flags = env.terminations.get(agent, False), env.truncations.get(agent, False)
            if any(flags):
                earned = env._cumulative_rewards.get(agent, 0.0)
                told.add(agent, (env.observe(agent), earned, *flags, env.infos.get(agent, {})))
                self._in_play.discard(agent)

    def render(self) -> Any:
        """What the env renders."""
        return self.env.render()

    def state(self) -> Any:
        """The env's global state."""
        return self.env.state()

    def close(self) -> None:
        """Close the env."""
        self.env.close()


def as_parallel(env: AECEnv) -> ParallelEnv:
    """A `ParallelEnv` of a turn-based env.

    If the env's metadata says `is_parallelizable`, the order of turns within a cycle does not matter, and all agents
    act at once, as in PettingZoo's own parallel versions of such envs. Otherwise one agent acts in each step.
    """
    metadata = getattr(env, "metadata", None)
    simultaneous = isinstance(metadata, Mapping) and metadata.get("is_parallelizable", False)
    return aec_to_parallel(env) if simultaneous else TurnBasedEnv(env)
