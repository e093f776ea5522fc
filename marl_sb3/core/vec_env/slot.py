"""One env of a vec env: its seeds, its agents' turns and ends, checks of what it returns, its actions and its state."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.core.envs.faults import RAISED, ask_for_state, close_in_words, raise_in_words
from marl_sb3.core.vec_env.observations import AgentLayout, put, same, taken, zero_observations
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.core.vec_env.slot_states import CONFIGURE, OTHER_SPACES, ActionLog, EnvSettings, SlotState, same_tree
from marl_sb3.errors import CheckpointError, ConfigError, EnvError, EnvNumericError, EnvRaisedError, described
from marl_sb3.types import AgentID, Array, Observations
from marl_sb3.wrappers.checks import LARGEST_FLOAT32, observation_fault, reward_fault
from marl_sb3.wrappers.observations import EnvView

_log = logging.getLogger(__name__)
_NOBODY: Mapping[AgentID, Any] = MappingProxyType({})
_STEP_PARTS = ("observation", "reward", "terminated flag", "truncated flag", "info")


class EndedAgents(set[AgentID]):
    """The agents that have ended in the running episode.

    An agent that has ended, has left the env's `agents`, and is among them again later lives again: its next action
    begins a new trajectory. One that stays in `agents` after its end has not left, and remains ended.
    """

    _absent: frozenset[AgentID] = frozenset()  # ended, and not in `agents` after the latest step

    def see_present(self, present: Collection[AgentID]) -> None:
        """Take the env's `agents` after a step, or where an episode is continued."""
        if self:
            self.difference_update(self._absent.intersection(present))
            self._absent = frozenset(self.difference(present))

    def is_over(self, agent: AgentID, present: Collection[AgentID]) -> bool:
        """Whether an agent has ended and, by the env's `agents` after a step that is not taken in yet, stays so."""
        return agent in self and not (agent in self._absent and agent in present)


@dataclass(slots=True)
class SlotStep:
    """The result of one step of one env."""

    # agent -> observation, for the agents that act next; after an episode's last step, of the next reset
    observations: Mapping[AgentID, Any]
    # agent -> reward, for the agents that have not ended, whether or not they acted; 0 for an agent without an entry
    rewards: Mapping[AgentID, Any]
    infos: Mapping[str, Any]  # the infos of the step
    # agent -> (terminated, truncated), for the agents that ended in this step, whether or not they acted
    ends: Mapping[AgentID, tuple[bool, bool]]
    # agent -> last observation, for the agents that ended, if the env returned one
    final_observations: Mapping[AgentID, Any]
    reset_infos: Mapping[str, Any] | None = None  # the infos of the next episode's reset; None if the episode continues
    waited: Collection[AgentID] = ()  # the agents in play that did not act
    # whether there is a reward for an agent that has not acted yet, and so belongs to no action
    pays_early: bool = False
    # the env's state at the end of the episode; None if the episode continues or nobody asks
    final_env_state: Array | None = None


class EnvSlot:
    """One env with its seeds, its agents' turns and ends, its action log and its state.

    It alone decides who is in play. Everything that the env returns is checked in the step that returns it.

    The env's `agents` are those that act in the next step. An agent that has acted and is not among them waits for
    its next turn until a flag says that it has ended; meanwhile it may be paid, and it may end. The next episode begins
    when all agents that were in play have ended and none is to act. An agent that has ended may live again within the
    episode, see `EndedAgents`.

    Args:
        env: the env, as its factory made it.
        view: its agents and spaces as policies see them.
        index: the env's index, from which the seeds of its episodes are derived.
        layout: the places of the agents in the arrays of the vec env.
        row: index of the env in the arrays; those of a worker hold a part of all envs.

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
        self, env: ParallelEnv, view: EnvView, index: int, run_seed: int, layout: AgentLayout, row: int
    ) -> None:
        self.env = env
        self.view = view
        self.index = index
        self.row = row
        self.layout = layout
        self.to_act: list[AgentID] = []
        self.in_play: set[AgentID] = set()
        self.ended = EndedAgents()
        self.shown: Mapping[AgentID, Any] = {}
        self.reset_infos: Mapping[str, Any] = {}
        methods = (getattr(_owner(env, name), name, None) for name in ("configure", "set_task"))
        configure, set_task = (method if callable(method) else None for method in methods)
        self.settings = EnvSettings(configure, type(env.unwrapped).__name__, set_task=set_task)
        self.horizon: int | None = None
        self.shows_env_state = False
        self._steps = 0
        self._last_seen: dict[AgentID, Any] = {}  # only with a horizon: agents that wait are truncated on it
        self._log = ActionLog(layout.groups)
        self._spaces: dict[AgentID, spaces.Space[Any]] = {
            agent: env.observation_space(agent) for agent in env.possible_agents
        }
        self._episode_seed: int | None = None
        self._mentioned_unearned = False
        self.seed(run_seed)

    def seed(self, run_seed: int) -> None:
        """Make the next reset episode 0 of this run seed."""
        self.run_seed, self.episode = run_seed, -1

    def reset(self, options: Mapping[str, Any] | None = None) -> Mapping[AgentID, Any]:
        """Begin the next episode.

        Returns:
            The observations of the agents that act first, by agent.
        """
        if self.settings.coming:
            self._change_settings()
        self.episode += 1
        self._episode_seed = episode_seed(self.run_seed, self.index, self.episode)
        self._steps, self._last_seen = 0, {}
        self.in_play, self.ended = set(), EndedAgents()
        try:
            returned = self.env.reset(seed=self._episode_seed, options=options)
        except RAISED as error:
            self._blame(error, "reset()")
            raise
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise self.error(f"reset() returned {_outline(returned)}, not (observations, infos)")
        if not getattr(self.env, "agents", None):
            raise self.error("no agent is live after reset()")
        observations, infos = returned
        for agent in self.env.agents:
            self._check_observation(agent, observations)
        self._check_infos(self.env.agents, infos)
        self.shown, self.reset_infos = self.view.of(observations, infos) if self.view.differs else returned
        self._log.begin()
        self._find_turns()
        return self.shown

    def _change_settings(self) -> None:
        try:
            self.settings.begin_episode()
        except RAISED as error:
            self._blame(error, CONFIGURE)
            raise
        for agent, first in self._spaces.items():
            space = self.env.observation_space(agent)
            if space != first:
                raise self.error(f"{OTHER_SPACES}: it observes {space}, and before {first}", agent)

    def step(self, actions: Sequence[Array]) -> SlotStep:
        """Step the env, and begin its next episode if this one is over.

        Args:
            actions: per group, (A_group, *action_space.shape); only those of the agents `to_act` are used.

        Raises:
            EnvError: the env raised an exception, or returned something wrong; names env, episode, step and agent.
        """
        self._log.record(actions)
        places = self.layout.places
        acting = {}
        for agent in self.to_act:
            place = places[agent]
            acting[agent] = actions[place.group][place.group_column]
        if self.horizon is not None:
            self._last_seen.update({agent: deepcopy(self.shown[agent]) for agent in acting})
        self._steps += 1
        try:
            returned = self.env.step(self.view.to_env(acting) if self.view.acts_otherwise else acting)
        except RAISED as error:
            self._blame(error, "step()", acting)
            raise
        if not (isinstance(returned, tuple) and len(returned) == 5):
            raise self.error(f"step() returned {_outline(returned)}, not a tuple of 5 dictionaries")
        self.in_play.update(acting)
        ends = self._checked_ends(acting, returned)
        observations, rewards, _, _, infos = returned
        if self.view.differs:
            observations, infos = self.view.of(observations, infos)
        self.shown = observations
        step = SlotStep(observations, rewards, infos, _NOBODY, _NOBODY)  # the usual case: no agent ends
        if len(rewards) > len(acting):
            step.rewards = {agent: reward for agent, reward in rewards.items() if self._is_paid(agent)}
            step.pays_early = any(reward for agent, reward in step.rewards.items() if agent not in self.in_play)
        if len(self.in_play) > len(acting):
            step.waited = self.in_play.difference(acting)
        for agent, flags in ends.items():
            self._end(agent, step, *flags)
        self._find_turns()
        if self.in_play and not self.to_act:
            agent = min(self.in_play)
            raise self.error("is neither terminated nor truncated, but no agent is left to act", agent)
        if self.horizon is not None and self._steps >= self.horizon:
            self._truncate_all(step)
        if not self.to_act:
            step.infos = deepcopy(infos)  # a copy: the env is reset before the infos are read
            if self.shows_env_state:
                step.final_env_state = self.env_state()
            step.observations = self.reset()
            step.reset_infos = self.reset_infos
        return step

    def _truncate_all(self, step: SlotStep) -> None:
        """End the episode for all agents in play: they are truncated, on what they saw last."""
        for agent in [agent for agent in self.layout.possible_agents if agent in self.in_play]:
            self._end(agent, step, terminated=False, truncated=True)
            if agent not in step.final_observations:
                step.final_observations = {**step.final_observations, agent: self._last_seen[agent]}
        self.to_act = []

    def _end(self, agent: AgentID, step: SlotStep, terminated: bool, truncated: bool) -> None:
        step.ends = {**step.ends, agent: (terminated, truncated)}
        if agent in step.observations:
            final = deepcopy(step.observations[agent])  # the env may reuse its array
            step.final_observations = {**step.final_observations, agent: final}
        self.in_play.discard(agent)
        self.ended.add(agent)

    def _find_turns(self) -> None:
        present, ended = self.env.agents, self.ended
        if ended:
            ended.see_present(present)
        if ended or present != self.to_act:
            self.to_act = [agent for agent in self.layout.possible_agents if agent in present and agent not in ended]

    # --- Checks ------------------------------------------------------------------------------------------------------

    def _checked_ends(
        self, acting: Mapping[AgentID, Any], returned: tuple[Any, ...]
    ) -> Mapping[AgentID, tuple[bool, bool]]:
        """Check what a step returned; returns (terminated, truncated) of the agents that end."""
        observations, rewards, terminated, truncated, infos = returned
        present, ends = self.env.agents, {}
        for agent in acting:
            try:
                reward, flags = rewards[agent], (terminated[agent], truncated[agent])
            except (KeyError, IndexError, TypeError):
                raise self._missing(agent, returned) from None
            if not isinstance(reward, float) or not -LARGEST_FLOAT32 <= reward <= LARGEST_FLOAT32:
                self._check_reward(agent, reward)
            if flags[0] or flags[1]:
                ends[agent] = bool(flags[0]), bool(flags[1])
            if agent in ends or agent in observations or agent in present:
                self._check_observation(agent, observations)  # one that waits now need not be shown anything
        if len(self.in_play) > len(acting) or len(terminated) > len(acting) or len(rewards) > len(acting):
            ends |= self._checked_ends_of_waiting(acting, returned)
        for agent in present:
            if agent not in acting:
                self._check_observation(agent, observations)
        self._check_infos(acting, infos)
        return ends

    def _checked_ends_of_waiting(
        self, acting: Mapping[AgentID, Any], returned: tuple[Any, ...]
    ) -> dict[AgentID, tuple[bool, bool]]:
        """Check rewards and ends of agents that did not act: another agent's action, or none, may have ended them."""
        observations, rewards, terminated, truncated, _ = returned
        for agent, reward in rewards.items():
            if agent not in acting and self._is_paid(agent):
                self._check_reward(agent, reward)
        ends = {}
        for agent in {**terminated, **truncated}:
            flags = bool(terminated.get(agent)), bool(truncated.get(agent))
            if not any(flags) or agent in acting or agent in self.ended:
                continue
            if flags[1] and agent in self.in_play:
                self._check_observation(agent, observations)  # the return bootstraps from it
            if agent not in self._spaces:
                raise self._unknown(agent)
            ends[agent] = flags
        self._mention_unearned(rewards)
        return ends

    def _is_paid(self, agent: AgentID) -> bool:
        """Whether rewards of an agent count: from the reset to its end, also before its first action."""
        return agent in self.in_play or (agent in self._spaces and not self.ended.is_over(agent, self.env.agents))

    def _mention_unearned(self, rewards: Mapping[AgentID, Any]) -> None:
        """Warn once per env about rewards of agents that have not acted or have ended: these belong to no action."""
        unearned = [agent for agent, reward in rewards.items() if reward and agent not in self.in_play]
        if unearned and not self._mentioned_unearned:
            self._mentioned_unearned = True
            agent = unearned[0]
            early = "counts in the return, but nothing is learned from it: the agent has not acted yet"
            problem = early if self._is_paid(agent) else "is not counted: the agent is not in play"
            _log.warning("%s", self.error(f"reward {rewards[agent]} {problem}", agent))

    def _check_reward(self, agent: AgentID, reward: Any) -> None:
        if fault := reward_fault(reward):
            raise self.error(f"reward {fault}", agent, reward)

    def _check_observation(self, agent: AgentID, observations: Any) -> None:
        if agent not in self._spaces:
            raise self._unknown(agent)
        try:
            observation = observations[agent]
        except (KeyError, IndexError, TypeError):
            raise self._missing(agent, (observations,)) from None
        if fault := observation_fault(self._spaces[agent], observation):
            raise self.error(f"observation {fault}", agent, observation)

    def _check_infos(self, agents: Collection[AgentID], infos: Any) -> None:
        if type(infos) is not dict and not isinstance(infos, Mapping):  # `type` is ten times faster
            raise self.error(f"infos are {type(infos).__name__}, not a dictionary by agent")
        for agent in agents:
            info = infos.get(agent, _NOBODY)
            if type(info) is not dict and not isinstance(info, Mapping):
                raise self.error(f"info is {info!r}, not a dictionary", agent)

    def _unknown(self, agent: AgentID) -> EnvError:
        return self.error(f"is live but not in possible_agents {self.env.possible_agents}", agent)

    def _missing(self, agent: AgentID, returned: tuple[Any, ...]) -> EnvError:
        """Make the error for the first part of what the env returned that has nothing for an agent."""
        whole = len(returned) > 1  # only then, all agents of the parts from the second on have acted
        for what, values in list(zip(_STEP_PARTS, returned, strict=False))[whole:]:
            try:
                values[agent]
            except (KeyError, IndexError, TypeError):  # `values` may be of any type
                known = list(values) if isinstance(values, Mapping) else type(values).__name__
                return self.error(f"{what} is missing (there is one for {known})", agent)
        raise AssertionError("a part has nothing for the agent")

    def error(self, problem: str, agent: AgentID | None = None, value: Any = None) -> EnvError:
        """Make the error for a fault of the env; its message names env, episode, step and agent."""
        parts = list(value.values()) if isinstance(value, Mapping) else [value]
        arrays = [np.asarray(part) for part in parts if isinstance(part, (float, np.ndarray, np.floating))]
        is_finite = all(array.dtype.kind != "f" or np.isfinite(array).all() for array in arrays)
        who = "" if agent is None else f", agent {agent!r}"
        return (EnvError if is_finite else EnvNumericError)(f"{self._where()}{who}: {problem}")

    def _blame(self, error: BaseException, call: str, agents: Collection[AgentID] = ()) -> None:
        """Raise an `EnvRaisedError` if the env caused this exception; names the agent if one alone was acting."""
        alone = f", agent {next(iter(agents))!r}" if len(agents) == 1 < len(self._spaces) else ""
        raise_in_words(error, call, f"{self.where_and_seed()}{alone}")

    def where_and_seed(self) -> str:
        """Env, episode, step and seed, for messages."""
        if self.episode < 0:
            return f"env {self.index}, before its first episode"
        return f"{self._where()}, seed {self._episode_seed}"

    def _where(self) -> str:
        return f"env {self.index}, episode {self.episode}, step {self._steps}"

    # --- Calls -------------------------------------------------------------------------------------------------------

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method `name` of the env, or read an attribute; see `MultiAgentVecEnv.call`.

        Raises:
            AttributeError: neither the env nor a wrapper has it.
        """
        if name == "render":
            return self._rendered()
        if name == "set_wrapper_attr":
            return setattr(_owner(self.env, args[0]), *args)
        if name == "has_wrapper":
            return any(isinstance(layer, *args) for layer in _layers(self.env))
        if name == "get_wrapper_attr":
            return getattr(_owner(self.env, *args), *args)
        found = getattr(_owner(self.env, name), name)
        return found(*args, **kwargs) if callable(found) or args or kwargs else found

    def _rendered(self) -> Any:
        try:
            return self.env.render()
        except RAISED as error:
            self._blame(error, "render()")
            raise

    def env_state(self) -> Array:
        """Return a copy of what the env's `state()` returns.

        Raises:
            ConfigError: the env has no `state()`.
            EnvError: it is no array of numbers.
        """
        try:
            state = np.array(self.env.state())
        except NotImplementedError as error:
            raise ConfigError(f"env_state: {error}; accepted: an env with a method state()", key="env_state") from error
        except RAISED as error:
            self._blame(error, "state()")
            raise
        if state.dtype.kind not in "biuf":
            raise self.error(f"state() has dtype {state.dtype}; accepted: an array of numbers")
        return state

    def close(self) -> None:
        """Close the env; its exceptions are logged."""
        close_in_words(self.env.close, self.where_and_seed())

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> SlotState:
        """Return the state for `set_state`: the env's own state, or its seed and its actions."""
        # Looked up in the class: wrappers forward attributes to inner envs, which lack their state.
        has_own = all(callable(getattr(type(self.env), name, None)) for name in ("get_state", "set_state"))
        own = ask_for_state(self.env.get_state, self.where_and_seed()) if has_own else None
        return SlotState(
            self.run_seed,
            self.episode,
            self.layout.flags(self.to_act),
            self.layout.flags(self.in_play),
            self.layout.flags(self.ended),
            self.shown_arrays(),
            own,
            self._log.actions() if own is None else None,
            self.settings.get_state(),
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
        why = self.settings.restore(state.settings, self.index) or self._restore(state)
        self.settings.coming = dict(state.settings["coming"])
        if why is not None:
            self.run_seed = state.run_seed
            self.continue_at(state.episode + 1)
            self.reset()
        return why

    def continue_at(self, episode: int) -> None:
        """Make the next reset begin this episode of the run seed."""
        self.episode = episode - 1

    def _restore(self, state: SlotState) -> str | None:
        if state.own is None and state.actions is None:
            return "the checkpoint does not hold its episode, which is too long, or was stepped in a batch"
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
            if self.episode == state.episode:  # otherwise, the episode has ended too early
                self.step(actions)
        flags = self.layout.flags
        is_same = (
            self.episode == state.episode
            and np.array_equal(flags(self.to_act), state.to_act)
            and np.array_equal(flags(self.in_play), state.in_play)
            and same(self.shown_arrays(), state.observations)
        )
        return None if is_same else "the same seed and actions led to a different state"

    def _set_own(self, state: SlotState, own: Mapping[str, Any]) -> str | None:
        self.env.set_state(own)
        if not same_tree(self.env.get_state(), own):
            return "after set_state(), its get_state() returns another state"
        flagged = self.layout.flagged
        to_act, in_play, ended = flagged(state.to_act), set(flagged(state.in_play)), set(flagged(state.ended))
        if set(self.env.agents) - ended != set(to_act):
            return "other agents act next than in the saved state"
        if self.horizon is not None and in_play - set(to_act):
            return "episode_horizon needs what the agents that wait have seen last"
        self.episode += 1
        self._steps = state.steps
        self.to_act, self.in_play, self.ended = to_act, in_play, EndedAgents(ended)
        self.ended.see_present(self.env.agents)
        places = self.layout.places
        self.shown = {
            agent: taken(state.observations[places[agent].group], places[agent].group_column) for agent in to_act
        }
        self._log.drop()
        return None

    def shown_arrays(self) -> tuple[Observations, ...]:
        """Return observations per group, (A_group, ...); zeros where an agent does not act next."""
        arrays = tuple([taken(group, 0) for group in zero_observations(self.layout.groups, num_envs=1)])
        for agent in self.to_act:
            place = self.layout.places[agent]
            put(self.shown[agent], arrays[place.group], place.group_column)
        return arrays


def _layers(env: Any) -> Iterator[Any]:
    """Yield the env's wrappers from the outermost inwards, then the env itself."""
    while env is not None:
        yield env
        env = getattr(env, "__dict__", {}).get("env")


def _owner(env: Any, name: str) -> Any:
    """Return the outermost layer that defines `name`; the innermost layer if none does."""
    found = list(_layers(env))
    return next((layer for layer in found if name in layer.__dict__ or hasattr(type(layer), name)), found[-1])


def _outline(returned: Any) -> str:
    return f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
