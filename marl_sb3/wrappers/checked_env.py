"""Check everything that an env returns, in the step that returns it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marl_sb3.envs.faults import RAISED, close_in_words, raise_in_words
from marl_sb3.errors import ConfigError, EnvError, EnvNumericError
from marl_sb3.types import AgentID, Array
from marl_sb3.wrappers.checks import observation_fault, reward_fault
from marl_sb3.wrappers.ended_agents import EndedAgents
from marl_sb3.wrappers.layers import attribute, layers, owner

_log = logging.getLogger(__name__)


def _holds_non_finite(value: Any) -> bool:
    parts = list(value.values()) if isinstance(value, Mapping) else [value]
    arrays = [np.asarray(part) for part in parts if isinstance(part, (float, np.ndarray, np.floating))]
    return any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays)


def _is_mapping(value: Any) -> bool:
    return type(value) is dict or isinstance(value, Mapping)  # `type` is ten times faster and almost always enough


_NO_INFO: dict[str, Any] = {}


def _outline(returned: Any) -> str:
    return f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__


class CheckedEnv(BaseParallelWrapper):  # type: ignore[misc]
    """Checks that the values of all agents are present, have the shapes of their spaces, and are finite.

    Raises:
        EnvError: from `reset` and `step`; names env, episode, step, agent, quantity and value.
        EnvRaisedError: from `reset`, `step` and `render`; the env raised an exception.
    """

    def __init__(self, env: ParallelEnv, env_index: int = 0) -> None:
        super().__init__(env)
        self._env_index = env_index
        self._episode = -1
        self._mentioned_unearned = False
        self._episode_step = 0
        self._seed: int | None = None
        self._spaces = {agent: env.observation_space(agent) for agent in env.possible_agents}
        self._in_play: set[AgentID] = set()  # have acted and have not ended
        self._ended = EndedAgents()

    def continue_at(self, episode: int) -> None:
        """Give the next reset this episode number."""
        self._episode = episode - 1

    def adopt(self, in_play: set[AgentID], ended: set[AgentID]) -> None:
        """Continue in the middle of an episode, in which some agents have acted and some have ended."""
        self._episode += 1
        self._in_play, self._ended = set(in_play), EndedAgents(ended)
        self._ended.look_at(self.env.agents)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Reset the env and check the first observations."""
        self._episode += 1
        self._episode_step = 0
        self._in_play, self._ended = set(), EndedAgents()
        self._seed = seed
        try:
            returned = self.env.reset(seed=seed, options=options)
        except RAISED as error:
            self._blame(error, "reset()")
            raise
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise self.error(f"reset() returned {_outline(returned)}, not (observations, infos)")
        observations, infos = returned
        if not getattr(self.env, "agents", None):
            raise self.error("no agent is live after reset()")
        for agent in self.env.agents:
            self._check_known(agent)
            self._check_observation(agent, observations)
        self._check_infos(self.env.agents, infos)
        return observations, infos

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[Mapping[str, Any], ...]:
        """Step the env; check the values of agents that acted or are live now."""
        self._episode_step += 1
        try:
            returned = self.env.step(actions)
        except RAISED as error:
            self._blame(error, "step()", actions)
            raise
        if not (isinstance(returned, tuple) and len(returned) == 5):
            raise self.error(f"step() returned {_outline(returned)}, not a tuple of 5 dictionaries")
        observations, rewards, terminated, truncated, infos = returned
        for agent in actions:
            self._check_reward(agent, self._of(agent, rewards, "reward"))
            flags = (self._of(agent, terminated, "terminated flag"), self._of(agent, truncated, "truncated flag"))
            if any(flags):
                self._ended.add(agent)
            if any(flags) or agent in observations or agent in self.env.agents:
                self._check_observation(agent, observations)  # one that waits now need not be shown anything
        self._in_play.update(actions)
        if len(self._in_play) > len(actions) or len(terminated) > len(actions) or len(rewards) > len(actions):
            self._check_waiting(actions, returned)
        for agent in self.env.agents:
            if agent not in actions:
                self._check_known(agent)
                self._check_observation(agent, observations)
        self._check_infos(actions, infos)
        if self._ended:
            self._in_play -= self._ended
            self._ended.look_at(self.env.agents)
        if self._in_play and self._ended.issuperset(self.env.agents):
            agent = min(self._in_play)
            raise self.error("is neither terminated nor truncated, but no agent is left to act", agent)
        return observations, rewards, terminated, truncated, infos

    def render(self) -> Any:
        """Return what the env renders."""
        try:
            return self.env.render()
        except RAISED as error:
            self._blame(error, "render()")
            raise

    def global_state(self) -> Array:
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

    def get_wrapper_attr(self, name: str) -> Any:
        """The attribute of the outermost wrapper that has it, or of the env; never called if it is a method.

        Raises:
            AttributeError: neither has it.
        """
        return attribute(self, name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Set an attribute of the outermost wrapper that defines it; of the env where none does."""
        setattr(owner(self, name), name, value)

    def has_wrapper(self, wrapper_class: type) -> bool:
        """Whether the env or one of its wrappers is an instance of `wrapper_class`."""
        return any(isinstance(layer, wrapper_class) for layer in layers(self))

    def settings_method(self) -> Callable[..., Any] | None:
        """The `configure(**settings)` of the outermost wrapper that has one, or of the env; None if there is none."""
        method = getattr(owner(self.env, "configure"), "configure", None)
        return method if callable(method) else None

    def apply_settings(self, settings: Mapping[str, Any]) -> None:
        """Call the env's `configure`, before the reset of an episode."""
        method = self.settings_method()
        assert method is not None, "settings are refused for envs without configure()"
        try:
            method(**settings)
        except RAISED as error:
            self._blame(error, "configure()")
            raise

    def close(self) -> None:
        """Close the env; see `close_in_words`."""
        close_in_words(self.env.close, self.where_and_seed())

    def _blame(self, error: BaseException, call: str, agents: Collection[AgentID] = ()) -> None:
        """Raise an `EnvRaisedError` if the env caused this exception; names the agent if one alone was acting."""
        alone = f", agent {next(iter(agents))!r}" if len(agents) == 1 < len(self._spaces) else ""
        raise_in_words(error, call, f"{self.where_and_seed()}{alone}")

    def where_and_seed(self) -> str:
        """Env, episode, step and seed, for messages."""
        if self._episode < 0:
            return f"env {self._env_index}, before its first episode"
        return f"{self._where()}, seed {self._seed}"

    def _check_waiting(self, actions: Mapping[AgentID, Any], returned: tuple[Any, ...]) -> None:
        """Check rewards and endings of agents that did not act in this step."""
        observations, rewards, terminated, truncated, _ = returned
        for agent, reward in rewards.items():
            if agent in self._in_play and agent not in actions:
                self._check_reward(agent, reward)
        for agent in {**terminated, **truncated}:
            if agent in actions or agent in self._ended:
                continue
            if truncated.get(agent) and agent in self._in_play:
                self._check_observation(agent, observations)  # the return bootstraps from it
            if terminated.get(agent) or truncated.get(agent):
                self._check_known(agent)
                self._ended.add(agent)
        self._mention_unearned(rewards)

    def _check_reward(self, agent: AgentID, reward: Any) -> None:
        fault = reward_fault(reward)
        if fault:
            raise self.error(f"reward {fault}", agent, reward)

    def _mention_unearned(self, rewards: Mapping[AgentID, Any]) -> None:
        """Warn once per env about rewards of agents that have not acted or have ended: these belong to no action."""
        unearned = [agent for agent, reward in rewards.items() if reward and agent not in self._in_play]
        if unearned and not self._mentioned_unearned:
            self._mentioned_unearned = True
            _log.warning(
                "%s",
                self.error(f"reward {rewards[unearned[0]]} is not counted: the agent is not in play", unearned[0]),
            )

    def _check_known(self, agent: AgentID) -> None:
        if agent not in self.env.possible_agents:
            raise self.error(f"is live but not in possible_agents {self.env.possible_agents}", agent)

    def _check_infos(self, agents: Iterable[AgentID], infos: Any) -> None:
        if not _is_mapping(infos):
            raise self.error(f"infos are {type(infos).__name__}, not a dictionary by agent")
        for agent in agents:
            if not _is_mapping(infos.get(agent, _NO_INFO)):
                raise self.error(f"info is {infos[agent]!r}, not a dictionary", agent)

    def _check_observation(self, agent: AgentID, observations: Mapping[AgentID, Any]) -> None:
        fault = observation_fault(self._spaces[agent], self._of(agent, observations, "observation"))
        if fault:
            raise self.error(f"observation {fault}", agent, observations[agent])

    def _of(self, agent: AgentID, values: Any, what: str) -> Any:
        try:
            return values[agent]
        except (KeyError, IndexError, TypeError):  # `values` may be of any type
            known = list(values) if isinstance(values, Mapping) else type(values).__name__
            raise self.error(f"{what} is missing (there is one for {known})", agent) from None

    def error(self, problem: str, agent: AgentID | None = None, value: Any = None) -> EnvError:
        """Make the error for a fault of the env; its message names env, episode, step and agent."""
        where = self._where()
        kind = EnvNumericError if _holds_non_finite(value) else EnvError
        return kind(f"{where}, agent {agent!r}: {problem}" if agent is not None else f"{where}: {problem}")

    def _where(self) -> str:
        return f"env {self._env_index}, episode {self._episode}, step {self._episode_step}"
