"""One env of a vec env: its seeds, its agents' turns and ends, and the start of its next episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pettingzoo import ParallelEnv

from marl_sb3.types import AgentID
from marl_sb3.vec_env.seeding import episode_seed

_NOBODY: Mapping[AgentID, Any] = MappingProxyType({})


@dataclass(slots=True)
class SlotStep:
    """What one step of one env means to its agents.

    Attributes:
        observations: of the agents that act next, by agent; after an episode's last step those of the next reset.
        rewards: of the agents in play, whether or not they acted; an agent without an entry was paid nothing.
        ends: (terminated, truncated) of the agents that ended in this step, on whoever's move.
        final_observations: what the agents that ended saw last, as far as the env says.
        infos: what the env said in this step.
        reset_infos: what the env said when its next episode began; None if the episode goes on.
    """

    observations: Mapping[AgentID, Any]
    rewards: Mapping[AgentID, Any]
    infos: Mapping[str, Any]
    ends: Mapping[AgentID, tuple[bool, bool]]
    final_observations: Mapping[AgentID, Any]
    reset_infos: Mapping[str, Any] | None = None


class EnvSlot:
    """Follows who acts, who waits and who has ended in one `ParallelEnv`, and begins its episodes.

    The env's `agents` are those that act in the next step. An agent that has acted and is not among them waits for
    its next turn until a flag says that it has ended; meanwhile it may be paid, and it may end. An agent that has
    ended does not come back before the next episode, which begins when all agents that were in play have ended.

    Args:
        env: the env, in the wrappers that every env wears.
        index: which env of the vec env it is.
        run_seed: the seed that the seeds of all its episodes follow from.

    Attributes:
        env: the env.
        episode: index of the running episode; -1 before the first.
        to_act: the agents that act in the next step, in the order of `possible_agents`.
        in_play: the agents that have acted in the episode and have not ended.
        ended: the agents that have ended in the episode.
        reset_infos: what the env said at its latest reset.
    """

    def __init__(self, env: ParallelEnv, index: int, run_seed: int) -> None:
        self.env = env
        self.index = index
        self.to_act: list[AgentID] = []
        self.in_play: set[AgentID] = set()
        self.ended: set[AgentID] = set()
        self.reset_infos: Mapping[str, Any] = {}
        self._agents: Sequence[AgentID] = tuple(env.possible_agents)
        self.seed(run_seed)

    def seed(self, run_seed: int) -> None:
        """Make the next reset episode 0 of this run seed."""
        self.run_seed, self.episode = run_seed, -1

    def continue_at(self, run_seed: int, episode: int) -> None:
        """Make the next reset this episode of this run seed."""
        self.run_seed, self.episode = run_seed, episode - 1
        self.env.continue_at(episode)

    def adopt(self, to_act: Sequence[AgentID], in_play: set[AgentID], ended: set[AgentID]) -> None:
        """The env has put itself into the middle of its next episode: take over where its agents stand."""
        self.episode += 1
        self.to_act, self.in_play, self.ended = list(to_act), in_play, ended
        self.env.adopt(in_play, ended)

    def reset(self, options: Mapping[str, Any] | None = None) -> Mapping[AgentID, Any]:
        """Begin the next episode.

        Returns:
            The observations of the agents that act first, by agent.
        """
        self.episode += 1
        chosen = episode_seed(self.run_seed, self.index, self.episode)
        observations: Mapping[AgentID, Any]
        observations, self.reset_infos = self.env.reset(seed=chosen, options=options)
        self.in_play, self.ended = set(), set()
        self._find_turns()
        return observations

    def step(self, actions: Mapping[AgentID, Any]) -> SlotStep:
        """Step the env, and begin its next episode if this one is over.

        Args:
            actions: of the agents `to_act`.
        """
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self.in_play.update(actions)
        if len(rewards) > len(actions):
            rewards = {agent: reward for agent, reward in rewards.items() if agent in self.in_play}
        step = SlotStep(observations, rewards, infos, _NOBODY, _NOBODY)  # so it is in most steps
        for agent in actions:
            if terminated[agent] or truncated[agent]:
                self._end(agent, step, bool(terminated[agent]), bool(truncated[agent]))
        if len(self.in_play) + len(step.ends) > len(actions) or len(terminated) > len(actions):
            self._end_waiting(actions, step, terminated, truncated)
        self._find_turns()
        if not self.to_act:
            step.infos = deepcopy(infos)  # the reset comes before anyone reads them
            step.observations = self.reset()
            step.reset_infos = self.reset_infos
        return step

    def _end_waiting(
        self,
        actions: Mapping[AgentID, Any],
        step: SlotStep,
        terminated: Mapping[AgentID, Any],
        truncated: Mapping[AgentID, Any],
    ) -> None:
        """Agents that did not act may end on another agent's move, or before they have acted at all."""
        for agent in {**terminated, **truncated}:
            flags = bool(terminated.get(agent)), bool(truncated.get(agent))
            if any(flags) and agent not in actions and agent not in self.ended and agent in self._agents:
                self._end(agent, step, *flags)

    def _end(self, agent: AgentID, step: SlotStep, terminated: bool, truncated: bool) -> None:
        step.ends = {**step.ends, agent: (terminated, truncated)}
        if agent in step.observations:
            final = deepcopy(step.observations[agent])  # the env may reuse its array
            step.final_observations = {**step.final_observations, agent: final}
        self.in_play.discard(agent)
        self.ended.add(agent)

    def _find_turns(self) -> None:
        present, ended = self.env.agents, self.ended
        if ended or present != self.to_act:
            self.to_act = [agent for agent in self._agents if agent in present and agent not in ended]
