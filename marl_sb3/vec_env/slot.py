"""One env of a vec env: its seeds, its agents' turns and ends, its actions and its state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from pettingzoo import ParallelEnv

from marl_sb3.errors import CheckpointError, EnvRaisedError, described
from marl_sb3.types import AgentID, Array, Observations
from marl_sb3.vec_env.interface import episode_seed
from marl_sb3.vec_env.observations import AgentLayout, map_arrays, put, same, taken, zero_observations
from marl_sb3.vec_env.slot_states import (
    ActionLog,
    EnvSettings,
    SlotState,
    own_state,
    put_back,
    require_settings,
    set_own_state,
)
from marl_sb3.wrappers.ended_agents import EndedAgents

_NOBODY: Mapping[AgentID, Any] = MappingProxyType({})


@dataclass(slots=True)
class SlotStep:
    """The result of one step of one env.

    Attributes:
        observations: agent -> observation, for the agents that act next; after an episode's last step, of the next
            reset.
        rewards: agent -> reward, for the agents in play, whether or not they acted; 0 for an agent without an entry.
        ends: agent -> (terminated, truncated), for the agents that ended in this step, whether or not they acted.
        final_observations: agent -> last observation, for the agents that ended, if the env returned one.
        infos: the infos of the step.
        reset_infos: the infos of the next episode's reset; None if the episode continues.
        waited: the agents in play that did not act.
        final_env_state: the env's state at the end of the episode; None if the episode continues or nobody asks.
    """

    observations: Mapping[AgentID, Any]
    rewards: Mapping[AgentID, Any]
    infos: Mapping[str, Any]
    ends: Mapping[AgentID, tuple[bool, bool]]
    final_observations: Mapping[AgentID, Any]
    reset_infos: Mapping[str, Any] | None = None
    waited: Collection[AgentID] = ()
    final_env_state: Array | None = None


class EnvSlot:
    """One env with its seeds, its agents' turns and ends, its action log and its state.

    The env's `agents` are those that act in the next step. An agent that has acted and is not among them waits for
    its next turn until a flag says that it has ended; meanwhile it may be paid, and it may end. The next episode begins
    when all agents that were in play have ended and none is to act. An agent that has ended may live again within the
    episode, see `EndedAgents`.

    Args:
        env: the env with the wrappers that every env gets.
        index: of the env, from which the seeds of its episodes are derived.
        layout: the places of the agents in the arrays of the vec env.
        row: index of the env in the arrays; None: the same. The arrays of a worker hold a part of all envs.

    Attributes:
        env: the env.
        episode: index of the running episode; -1 before the first.
        to_act: the agents that act in the next step, in the order of `possible_agents`.
        in_play: the agents that have acted in the episode and have not ended.
        ended: the agents that have ended in the episode.
        settings: the settings from `configure`.
        shown: agent -> observation, for the agents that act in the next step; it may have further agents.
        reset_infos: the infos of the latest reset.
        shows_env_state: whether the state of the env at the end of an episode is kept.
        horizon: env steps after which all agents are truncated; None: the env alone ends its episodes.
    """

    def __init__(
        self, env: ParallelEnv, index: int, run_seed: int, layout: AgentLayout, row: int | None = None
    ) -> None:
        self.env = env
        self.index = index
        self.row = index if row is None else row
        self.layout = layout
        self.to_act: list[AgentID] = []
        self.in_play: set[AgentID] = set()
        self.ended = EndedAgents()
        self.shown: Mapping[AgentID, Any] = {}
        self.reset_infos: Mapping[str, Any] = {}
        self.settings = EnvSettings()
        self.horizon: int | None = None
        self.shows_env_state = False
        self._steps = 0
        self._last_seen: dict[AgentID, Any] = {}  # only with a horizon: agents that wait are truncated on it
        self._agents = layout.agents
        self._log = ActionLog(layout.groups)
        self.seed(run_seed)

    def seed(self, run_seed: int) -> None:
        """Make the next reset episode 0 of this run seed."""
        self.run_seed, self.episode = run_seed, -1

    def require_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse settings that the env cannot take; see `settings.require_settings`."""
        require_settings(self.env.unwrapped, self.env.settings_method(), settings)

    def reset(self, options: Mapping[str, Any] | None = None) -> Mapping[AgentID, Any]:
        """Begin the next episode.

        Returns:
            The observations of the agents that act first, by agent.
        """
        self.episode += 1
        if self.settings.coming:
            self.env.apply_settings(self.settings.begin_episode())
        chosen = episode_seed(self.run_seed, self.index, self.episode)
        self.shown, self.reset_infos = self.env.reset(seed=chosen, options=options)
        self.in_play, self.ended = set(), EndedAgents()
        self._steps, self._last_seen = 0, {}
        self._log.begin()
        self._find_turns()
        return self.shown

    def step(self, actions: Sequence[Array]) -> SlotStep:
        """Step the env, and begin its next episode if this one is over.

        Args:
            actions: per group, (A_group, *action_space.shape); only those of the agents `to_act` are used.
        """
        self._log.record(actions)
        places = self.layout.places
        given = {agent: actions[places[agent].group][places[agent].group_column] for agent in self.to_act}
        return self._step(given)

    def _step(self, actions: Mapping[AgentID, Any]) -> SlotStep:
        if self.horizon is not None:
            self._last_seen.update({agent: deepcopy(self.shown[agent]) for agent in actions})
        self._steps += 1
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self.shown = observations
        self.in_play.update(actions)
        if len(rewards) > len(actions):
            rewards = {agent: reward for agent, reward in rewards.items() if agent in self.in_play}
        step = SlotStep(observations, rewards, infos, _NOBODY, _NOBODY)  # the usual case: no agent ends
        if len(self.in_play) > len(actions):
            step.waited = self.in_play.difference(actions)
        for agent in actions:
            if terminated[agent] or truncated[agent]:
                self._end(agent, step, bool(terminated[agent]), bool(truncated[agent]))
        if len(self.in_play) + len(step.ends) > len(actions) or len(terminated) > len(actions):
            self._end_waiting(actions, step, terminated, truncated)
        self._find_turns()
        if self.horizon is not None and self._steps >= self.horizon:
            self._truncate_all(step)
        if not self.to_act:
            step.infos = deepcopy(infos)  # a copy: the env is reset before the infos are read
            if self.shows_env_state:
                step.final_env_state = self.env.global_state()
            step.observations = self.reset()
            step.reset_infos = self.reset_infos
        return step

    def _truncate_all(self, step: SlotStep) -> None:
        """End the episode for all agents in play: they are truncated, on what they saw last."""
        for agent in [agent for agent in self._agents if agent in self.in_play]:
            self._end(agent, step, terminated=False, truncated=True)
            if agent not in step.final_observations:
                step.final_observations = {**step.final_observations, agent: self._last_seen[agent]}
        self.to_act = []

    def _end_waiting(
        self,
        actions: Mapping[AgentID, Any],
        step: SlotStep,
        terminated: Mapping[AgentID, Any],
        truncated: Mapping[AgentID, Any],
    ) -> None:
        """End agents that did not act: they may end by another agent's action, or before their first action."""
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
        ended.look_at(present)
        if ended or present != self.to_act:
            self.to_act = [agent for agent in self._agents if agent in present and agent not in ended]

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> SlotState:
        """Return the state for `set_state`: the env's own state, or its seed and its actions."""
        own = own_state(self.env)
        return SlotState(
            self.run_seed,
            self.episode,
            self.layout.flags(self.to_act),
            self.layout.flags(self.in_play),
            self.layout.flags(self.ended),
            self.shown_arrays(),
            own,
            self._log.actions() if own is None else None,
            self.settings,
            self._steps,
        )

    def set_state(self, state: SlotState) -> str | None:
        """Restore a state that has been checked.

        Returns:
            None, or the reason why this is not possible; the env has then begun its next episode.

        Raises:
            CheckpointError: the env's own `set_state` refused its state.
            EnvError: the env could not begin its next episode.
        """
        kept = put_back(self.settings, state.settings, self.env.unwrapped, self.env.settings_method(), self.index)
        why = kept or self._restore(state)
        self.settings.coming = dict(state.settings.coming)
        if why is not None:
            self.run_seed = state.run_seed
            self.continue_at(state.episode + 1)
            self.reset()
        return why

    def continue_at(self, episode: int) -> None:
        """Make the next reset begin this episode of the run seed."""
        self.episode = episode - 1
        self.env.continue_at(episode)

    def _restore(self, state: SlotState) -> str | None:
        if state.own is None and state.actions is None:
            return "its episode is too long to be kept in a checkpoint"
        self.run_seed = state.run_seed
        self.continue_at(state.episode)
        try:
            return self._replay(state) if state.own is None else self._set_own(state, state.own)
        except CheckpointError:
            raise
        except EnvRaisedError as error:
            return str(error)
        except Exception as error:  # an env that does not repeat itself may raise anything
            return described(error)

    def _replay(self, state: SlotState) -> str | None:
        assert state.actions is not None
        self.reset()
        for actions in zip(*state.actions, strict=True):
            if self.episode != state.episode:
                break  # the episode has ended too early
            self.step(actions)
        same_turns = np.array_equal(self.layout.flags(self.to_act), state.to_act) and np.array_equal(
            self.layout.flags(self.in_play), state.in_play
        )
        if self.episode == state.episode and same_turns and same(self.shown_arrays(), state.observations):
            return None
        return "the same seed and actions led to a different state"

    def _set_own(self, state: SlotState, own: Mapping[str, Any]) -> str | None:
        why = set_own_state(self.env, own)
        if why is not None:
            return why
        flagged = self.layout.flagged
        to_act, in_play, ended = flagged(state.to_act), set(flagged(state.in_play)), set(flagged(state.ended))
        if set(self.env.agents) - ended != set(to_act):
            return "other agents act next than in the saved state"
        if self.horizon is not None and in_play - set(to_act):
            return "episode_horizon needs what the agents that wait have seen last"
        self.episode += 1
        self._steps = state.steps
        self.to_act, self.in_play, self.ended = to_act, in_play, EndedAgents(ended)
        self.ended.look_at(self.env.agents)
        self.env.adopt(in_play, ended)
        places = self.layout.places
        self.shown = {
            agent: taken(state.observations[places[agent].group], places[agent].group_column) for agent in to_act
        }
        self._log.drop()
        return None

    def shown_arrays(self) -> tuple[Observations, ...]:
        """Return observations per group, (A_group, ...); zeros where an agent does not act next."""
        arrays = tuple(
            map_arrays(lambda array: array[0], group) for group in zero_observations(self.layout.groups, num_envs=1)
        )
        for agent in self.to_act:
            place = self.layout.places[agent]
            put(self.shown[agent], arrays[place.group], place.group_column)
        return arrays
