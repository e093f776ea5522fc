"""The policy of one agent: checks and processes its inputs, a single observation or a batch, and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import is_image_space

from marl_sb3.core.acting.actor import env_actions
from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.core.envs import MASK
from marl_sb3.core.processing import REWARD, Memory, Processing
from marl_sb3.core.sb3 import States, inference, initial_states, takes_masks
from marl_sb3.core.vec_env import ZeroBased, forbidden_place, forbidden_words, mask_fault
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, BoolArray, FloatArray, Observations, PolicyID
from marl_sb3.wrappers import OBSERVATION, choices_of, named_parts


@dataclass(frozen=True)
class AgentPolicy:
    """The policy of one agent, and what it is asked with, which is checked when it is needed.

    Attributes:
        agent: the agent's id.
        place: the agent's index among the agents of its policy.
        policy_id: the id of its policy.
        algorithm: the SB3 algorithm of that policy.
        processing: of the policy's observations and actions.
        observation_space: the agent's observation space in the env.
        action_space: the agent's action space in the env.
        observation: a single observation of the env, or a batch of n.
        given: the other inputs, by the names of the arguments of `PolicyByAgent`; those of a batch have n rows. None
            is the same as to leave it out.
    """

    agent: AgentID
    place: int
    policy_id: PolicyID
    algorithm: BaseAlgorithm
    processing: Processing
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    observation: Any
    given: Mapping[str, Any]

    @cached_property
    def prepared(self) -> tuple[PolicyInputs, Memory]:
        """The checked inputs of the policy, with n rows or 1, and the memory of the processing with this observation.

        Raises:
            ConfigError: an input does not fit the policy; the message names it and the agent.
        """
        recurrent, memory = initial_states(self.algorithm, self.rows), self.processing.initial(self.rows)
        states = self._states("state", (*recurrent, *memory.values()), "predict_with_state")
        starts, masks, observations = self._starts(), self._masks(), self._rows()
        remembered = self._rewarded(dict(zip(memory, states[len(recurrent) :], strict=True)), memory, starts)
        with self.misfit_refused():
            seen, after = self.processing.observe(observations, remembered, np.full(self.rows, self.place))
        return PolicyInputs(seen, starts, masks, states[: len(recurrent)]), after

    # --- Answers -----------------------------------------------------------------------------------------------------

    def require_mask(self) -> None:
        """Refuse to act without an action mask if the policy takes one."""
        if self.prepared[0].masks is None and takes_masks(self.algorithm):
            accepted = "action_masks={agent: mask}, or an observation {observation, action_mask}"
            raise self.error(f"action mask missing for {self._its_policy}; accepted: {accepted}")

    def acted(self, actions: Array, after: States) -> tuple[Any, States]:
        """Return what the agent does, and its state afterwards.

        Args:
            actions: (rows, ...) of its policy.
            after: recurrent state after these actions.

        Returns:
            The action or actions as the env takes them, and the state for `predict_with_state`.
        """
        memory = self.processing.acted(self.prepared[1], actions)
        of_env = env_actions(actions, self.processing.rescale, ZeroBased(self.action_space))
        return of_env.reshape((*self.shape, *actions.shape[1:])), (*after, *memory.values())

    def value(self) -> Any:
        """See `PolicyByAgent.value`."""
        if self.given.get("state") is not None and inference.critic_states(self.algorithm, 1):
            raise self.error(
                f"{self._its_policy} has a critic with an LSTM of its own, whose state is not in what "
                "predict_with_state returns; accepted: value_with_state, or no state"
            )
        return self.value_with_state()[0]

    def value_with_state(self) -> tuple[Any, States]:
        """See `PolicyByAgent.value_with_state`."""
        if not hasattr(self.algorithm.policy, "predict_values"):
            raise self.error(f"{self._its_policy} has no values of observations; accepted: q_values")
        inputs, _ = self.prepared
        own = self._states("critic_state", inference.critic_states(self.algorithm, self.rows), "value_with_state")
        with self.misfit_refused():
            values, after = inference.values(self.algorithm, inputs.observations, own or inputs.states, inputs.starts)
        return self._of_shape(values), after

    def distribution(self) -> Distribution:
        """See `PolicyByAgent.distribution`."""
        if not inference.has_distribution(self.algorithm):
            raise self.error(f"{self._its_policy} chooses actions without a distribution; accepted: q_values")
        observations, starts, masks, states, _ = self.prepared[0]
        with self.misfit_refused():
            return inference.distribution(self.algorithm, observations, states, starts, masks)

    def log_prob(self) -> Any:
        """See `PolicyByAgent.log_prob`."""
        return self._of_shape(inference.log_prob(self.algorithm, self.distribution(), self._actions()))

    def q_values(self) -> FloatArray:
        """See `PolicyByAgent.q_values`."""
        if not isinstance(self.algorithm, OffPolicyAlgorithm):
            raise self.error(f"{self._its_policy} has no Q values; accepted: value")
        is_given = self.given.get("actions") is not None
        if is_given and isinstance(self.algorithm.action_space, spaces.Discrete):
            raise self.error(f"{self._its_policy} has a Q value of each action; leave the agent out of actions")
        observations, taken = self.prepared[0].observations, self._actions() if is_given else None
        with self.misfit_refused():
            found = inference.q_values(self.algorithm, observations, taken)
        return found if self.shape else found[0]

    def _of_shape(self, values: FloatArray) -> Any:
        """(n,) for a batch; a number for a single observation."""
        return values if self.shape else np.float32(values[0])

    # --- The observation ---------------------------------------------------------------------------------------------

    @cached_property
    def _shown(self) -> tuple[Any, Any]:
        """The observation, in the form in which the env's wrappers give it, and the action mask; None if there is none.

        An observation may be PettingZoo's pair of an observation and a mask.
        """
        keys = self.observation_space.spaces if isinstance(self.observation_space, spaces.Dict) else ()
        observation, mask = self.observation, self.given.get("action_masks")
        if isinstance(observation, Mapping) and MASK not in keys and set(observation) == {OBSERVATION, MASK}:
            mask = observation[MASK] if mask is None and takes_masks(self.algorithm) else mask
            observation = observation[OBSERVATION]
        return named_parts(observation) if keys and isinstance(observation, (Mapping, tuple)) else observation, mask

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """(n,) for a batch of n observations, () for a single one."""
        space, observation = self.observation_space, self._shown[0]
        if isinstance(space, spaces.Dict) and isinstance(observation, Mapping):
            name, space = next(iter(space.spaces.items()))
            observation = observation.get(name)
        whole = np.shape(observation)
        return whole[:1] if len(whole) > len(space.shape or ()) else ()

    @property
    def rows(self) -> int:
        """The number of observations."""
        return self.shape[0] if self.shape else 1

    def _rows(self) -> Observations:
        """Return the observations as a batch, as the processing takes it."""
        space, observation = self.observation_space, self._shown[0]
        if not isinstance(space, spaces.Dict):
            rows: Any = self._rows_of(observation, space)
        elif isinstance(observation, Mapping) and set(observation) == set(space.spaces):
            rows = {key: self._rows_of(observation[key], part) for key, part in space.spaces.items()}
        else:
            raise self.misfit("it has other keys")
        with self.misfit_refused():
            return ZeroBased(space).from_env(rows)  # type: ignore[no-any-return]

    def _rows_of(self, observation: Any, space: spaces.Space[Any]) -> Array:
        array, own = np.asarray(observation), space.shape or ()
        accepted = {own}
        if is_image_space(space) and not self.processing.processors:  # SB3 takes channels first or last
            accepted |= {own[-1:] + own[:-1], own[1:] + own[:1]}
        row = array.shape[len(self.shape) :]
        if array.shape[: len(self.shape)] != self.shape or row not in accepted:
            raise self.misfit(f"its shape is {array.shape}")
        rows = array.reshape(self.rows, *row)
        return rows.astype(space.dtype) if self.processing.processors else rows

    def _rewarded(self, memory: Memory, initial: Memory, starts: BoolArray) -> Memory:
        """Return the memory with the reward, if the policy sees it; the initial memory where an episode starts."""
        starts = starts | (self.given.get("state") is None)
        if REWARD in memory and not starts.all():
            reward = self.given.get("rewards")
            given = None if reward is None else np.asarray(reward)
            if given is None or given.dtype.kind not in "iuf" or given.shape != self.shape:
                accepted = f"{self.rows} numbers" if self.shape else "a number"
                raise self.error(f"rewards is {reward!r:.200}; accepted: {accepted}, which {self._its_policy} sees")
            memory = {**memory, REWARD: given.astype(np.float32).reshape(-1, 1)}
        return {
            name: np.where(starts.reshape(-1, *[1] * (array.ndim - 1)), initial[name], array)
            for name, array in memory.items()
        }

    # --- The other inputs --------------------------------------------------------------------------------------------

    def _states(self, argument: str, fresh: States, method: str) -> States:
        """Check the arrays of a state; without one, return the fresh ones.

        Args:
            argument: name of the argument.
            fresh: the state at the start of an episode; () for a policy without one.
            method: the method that returns such states, for messages.
        """
        state = self.given.get(argument)
        if state is None:
            return fresh
        if not fresh:
            raise self.error(f"a {argument} was given, but {self._its_policy} has none")
        fits = isinstance(state, (tuple, list)) and [np.shape(part) for part in state] == [own.shape for own in fresh]
        if not fits:
            raise self.error(
                f"the {argument} does not fit {self._its_policy}; accepted: None, or what {method} returned for the "
                f"agent: {len(fresh)} arrays of shape {', '.join(str(own.shape) for own in fresh)}"
            )
        return tuple(np.asarray(part, dtype=own.dtype) for part, own in zip(state, fresh, strict=True))

    def _starts(self) -> BoolArray:
        given = self.given.get("episode_starts")
        starts = np.asarray(False if given is None else given)
        if starts.dtype != np.bool_ or starts.shape not in ((), self.shape):
            accepted = f"a boolean{f', or {self.rows} of them' if self.shape else ''}"
            raise self.error(f"episode_starts is {given!r:.200}; accepted: {accepted}")
        return np.broadcast_to(starts, (self.rows,))

    def _masks(self) -> BoolArray | None:
        """(rows, n); None if none was given."""
        given = self._shown[1]
        if given is None:
            return None
        if not takes_masks(self.algorithm):
            raise self.error(f"an action mask was given, but {self._its_policy} takes none; leave the agent out")
        choices = choices_of(self.action_space) or ()
        masks, size = np.asarray(given), sum(choices)
        if masks.shape != (*self.shape, size):
            accepted = f"{(*self.shape, size)}, for {self.action_space}"
            raise self.error(f"the action mask has shape {masks.shape}; accepted: {accepted}")
        fault = mask_fault(masks.reshape(-1), masks.size, self.action_space)
        if fault is not None:
            raise self.error(fault)
        allowed = masks.astype(np.bool_).reshape(-1, size)
        nowhere = forbidden_place(allowed[None], choices)
        if nowhere is not None:
            raise self.error(forbidden_words(nowhere[2], choices))
        return allowed

    def _actions(self) -> Array:
        """Return the actions, which are those of the env, as (rows, ...) actions of the policy's `predict`."""
        given, space = self.given.get("actions"), self.action_space
        array, own = np.asarray(given), space.shape or ()
        fits = given is not None and array.shape == (*self.shape, *own)
        rows = array.reshape(self.rows, *own) if fits else ()
        if not fits or not all(space.contains(np.asarray(action, dtype=space.dtype)[()]) for action in rows):
            accepted = f"{f'{self.rows} actions' if self.shape else 'an action'} of {space}"
            raise self.error(f"actions is {given!r:.200}; accepted: {accepted}")
        zero_based: Array = ZeroBased(space).from_env(rows)
        return zero_based if self.processing.rescale is None else self.processing.rescale.reverse(zero_based)

    # --- Messages ----------------------------------------------------------------------------------------------------

    def error(self, words: str) -> ConfigError:
        """Make the error of an argument of this agent."""
        return ConfigError(f"agent {self.agent!r}: {words}")

    def misfit(self, why: str) -> ConfigError:
        """Make the error of an observation that does not fit."""
        return self.error(f"the observation does not fit {self.observation_space}: {why}")

    @contextmanager
    def misfit_refused(self) -> Iterator[None]:
        """Turn errors of SB3 and PyTorch about an observation into a `ConfigError`."""
        try:
            yield
        except (ValueError, RuntimeError, TypeError) as error:
            raise self.misfit(str(error)) from error

    @property
    def _its_policy(self) -> str:
        """The policy and its algorithm."""
        return f"its policy {self.policy_id!r} ({type(self.algorithm).__name__})"
