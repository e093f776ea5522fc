"""`predict` of one agent, for a single observation or a batch, with checked arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import ConfigError
from marl_sb3.learners.sb3.predict import States, initial_states, predict, takes_masks
from marl_sb3.types import AgentID, BoolArray, PolicyID
from marl_sb3.vec_env.masks import forbidden_place, forbidden_words, mask_fault
from marl_sb3.vec_env.zero_based import ZeroBased
from marl_sb3.wrappers.action_mask import MASK, OBSERVATION, choices_of
from marl_sb3.wrappers.flat_observations import named_parts


def require_known(agents: Iterable[AgentID], given: Mapping[str, Any]) -> None:
    """Refuse arguments that are no mappings by agent, and unknown agents.

    Args:
        agents: the agents that policies act for.
        given: name of an argument -> its value; None is skipped.

    Raises:
        ConfigError: an argument is wrong; the message names it.
    """
    known = list(agents)
    for argument, by_agent in given.items():
        if by_agent is None:
            continue
        if not isinstance(by_agent, Mapping):
            raise ConfigError(f"{argument} is {by_agent!r:.200}; accepted: a mapping by agent", key=argument)
        strangers = [agent for agent in by_agent if agent not in known]
        if strangers:
            words = f"{argument}: unknown agent {strangers[0]!r}; the env has {', '.join(known)}"
            raise ConfigError(words, key=argument)


@dataclass(frozen=True)
class AgentPredict:
    """The `predict` of one agent.

    Attributes:
        agent: the agent's id.
        policy_id: the id of its policy.
        algorithm: the SB3 algorithm of that policy.
        observation_space: the agent's observation space in the env.
        action_space: the agent's action space in the env.
    """

    agent: AgentID
    policy_id: PolicyID
    algorithm: BaseAlgorithm
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def __call__(
        self, observation: Any, state: Any, episode_start: Any, action_mask: Any, deterministic: bool
    ) -> tuple[Any, States]:
        """Return the action and the new recurrent state; see `PolicyBundle.predict_with_state`.

        Raises:
            ConfigError: an argument does not fit the policy; the message names it and the agent.
        """
        observation = self._flat(observation)
        shape = self._batch_shape(observation)
        states = self._states(state, shape)
        starts = self._starts(episode_start, shape)
        masks = None if action_mask is None else self._masks(action_mask, shape)
        try:
            counted = ZeroBased(self.observation_space).from_env(observation)
            actions, after = predict(self.algorithm, counted, states, starts, masks, deterministic)
        except (ValueError, RuntimeError, TypeError) as error:
            raise self._error(f"the observation does not fit {self.observation_space}: {error}") from error
        return ZeroBased(self.action_space).to_env(actions), after

    def _flat(self, observation: Any) -> Any:
        """What the policy sees of an observation that the env itself gave: see the wrappers of envs."""
        keys = self.observation_space.spaces if isinstance(self.observation_space, spaces.Dict) else ()
        if isinstance(observation, Mapping) and MASK not in keys and set(observation) == {OBSERVATION, MASK}:
            observation = observation[OBSERVATION]
        return named_parts(observation) if keys and isinstance(observation, (Mapping, tuple)) else observation

    def _error(self, words: str) -> ConfigError:
        return ConfigError(f"agent {self.agent!r}: {words}")

    @property
    def _policy(self) -> str:
        return f"its policy {self.policy_id!r} ({type(self.algorithm).__name__})"

    def _batch_shape(self, observation: Any) -> tuple[int, ...]:
        """Return (n,) for a batch of n observations, () for a single one."""
        space = self.observation_space
        if isinstance(space, spaces.Dict) and isinstance(observation, Mapping):
            name, space = next(iter(space.spaces.items()))
            observation = observation.get(name)
        whole = np.shape(observation)
        return whole[:1] if len(whole) > len(space.shape or ()) else ()

    def _states(self, state: Any, shape: tuple[int, ...]) -> States:
        fresh = initial_states(self.algorithm, *(shape or (1,)))
        if state is None:
            return fresh
        if not fresh:
            raise self._error(f"a state was given, but {self._policy} has none")
        fits = isinstance(state, (tuple, list)) and [np.shape(part) for part in state] == [own.shape for own in fresh]
        if not fits:
            raise self._error(
                f"the state does not fit {self._policy}; accepted: None, or what predict_with_state returned for the "
                f"agent: {len(fresh)} arrays of shape {fresh[0].shape}"
            )
        return tuple(np.asarray(part, dtype=np.float32) for part in state)

    def _starts(self, episode_start: Any, shape: tuple[int, ...]) -> BoolArray:
        starts = np.asarray(False if episode_start is None else episode_start)
        if starts.dtype != np.bool_ or starts.shape not in ((), shape):
            accepted = f"a boolean{f', or {shape[0]} of them' if shape else ''}"
            raise self._error(f"episode_starts is {episode_start!r:.200}; accepted: {accepted}")
        return np.broadcast_to(starts, shape or (1,))

    def _masks(self, action_mask: Any, shape: tuple[int, ...]) -> BoolArray:
        if not takes_masks(self.algorithm):
            raise self._error(f"an action mask was given, but {self._policy} takes none; leave the agent out")
        choices = choices_of(self.action_space) or ()
        masks, size = np.asarray(action_mask), sum(choices)
        if masks.shape != (*shape, size):
            accepted = f"{(*shape, size)}, for {self.action_space}"
            raise self._error(f"the action mask has shape {masks.shape}; accepted: {accepted}")
        fault = mask_fault(masks.reshape(-1), masks.size, self.action_space)
        if fault is not None:
            raise self._error(fault)
        allowed = masks.astype(np.bool_).reshape(-1, size)
        nowhere = forbidden_place(allowed[None], choices)
        if nowhere is not None:
            raise self._error(forbidden_words(nowhere[2], choices))
        return allowed
