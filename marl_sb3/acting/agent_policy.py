"""The policy of one agent: checks and processes its inputs, a single observation or a batch, and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import Distribution

from marl_sb3.acting.actor import env_actions
from marl_sb3.acting.policy import PolicyInputs
from marl_sb3.envs.gymnasium_envs import MASK
from marl_sb3.errors import ConfigError
from marl_sb3.processing import Memory, Processing
from marl_sb3.processing.processors import REWARD
from marl_sb3.sb3 import inference
from marl_sb3.sb3.inference import States, initial_states, takes_masks
from marl_sb3.types import AgentID, Array, BoolArray, FloatArray, Observations, PolicyID
from marl_sb3.vec_env.masks import forbidden_place, forbidden_words, mask_fault
from marl_sb3.vec_env.observations import ZeroBased, map_arrays
from marl_sb3.wrappers.observations import OBSERVATION, choices_of, named_parts


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
class AgentInputs:
    """What the policy of an agent is asked with, unchecked; see `PolicyByAgent`. None: there is no such input.

    The observation may be a single one or a batch, the others accordingly.
    """

    observation: Any
    state: Any = None
    episode_start: Any = None
    action_mask: Any = None
    reward: Any = None
    action: Any = None
    critic_state: Any = None


class Prepared(NamedTuple):
    """The checked inputs of an agent's policy.

    Attributes:
        inputs: as the policy takes them; `observations` is a single one or a batch of n, the others have n rows, or 1.
        shape: () for a single observation, (n,) for a batch.
        memory: of the processing, with this observation.
    """

    inputs: PolicyInputs
    shape: tuple[int, ...]
    memory: Memory

    @property
    def rows(self) -> int:
        """The number of observations."""
        return len(self.inputs.starts)


@dataclass(frozen=True)
class AgentPolicy:
    """The policy of one agent, which checks what it is asked.

    Attributes:
        agent: the agent's id.
        place: the agent's index among the agents of its policy.
        policy_id: the id of its policy.
        algorithm: the SB3 algorithm of that policy.
        processing: of the policy's observations and actions.
        observation_space: the agent's observation space in the env.
        action_space: the agent's action space in the env.
    """

    agent: AgentID
    place: int
    policy_id: PolicyID
    algorithm: BaseAlgorithm
    processing: Processing
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def acted(self, asked: Prepared, actions: Array, after: States) -> tuple[Any, States]:
        """Return what the agent does, and its state afterwards.

        Args:
            asked: its inputs.
            actions: (rows, ...) of its policy.
            after: recurrent state after these actions.

        Returns:
            The action or actions as the env takes them, and the state for `predict_with_state`.
        """
        memory = self.processing.acted(asked.memory, actions)
        of_env = env_actions(actions, self.processing.rescale, ZeroBased(self.action_space))
        return of_env.reshape((*asked.shape, *actions.shape[1:])), (*after, *memory.values())

    def prepared(self, given: AgentInputs, *, acts: bool = False) -> Prepared:
        """Check the inputs and process the observation.

        Args:
            given: the inputs.
            acts: whether an action is wanted: a policy that takes masks must have one then.

        Raises:
            ConfigError: an argument does not fit the policy; the message names it and the agent.
        """
        observation, action_mask = given.observation, given.action_mask
        if action_mask is None and takes_masks(self.algorithm):
            action_mask = observation[MASK] if self._has_mask(observation) else None
            if action_mask is None and acts:
                accepted = "action_masks={agent: mask}, or an observation {observation, action_mask}"
                raise self.error(f"action mask missing for {self.its_policy}; accepted: {accepted}")
        observation = self._flat(observation)
        shape = self._batch_shape(observation)
        states, memory = self._states(given.state, shape)
        starts = self._starts(given.episode_start, shape)
        masks = None if action_mask is None else self._masks(action_mask, shape)
        observation = ZeroBased(self.observation_space).from_env(observation)
        if self.processing.settings.changed():
            memory = self._rewarded(memory, starts | (given.state is None), given.reward, shape)
            observation, memory = self._processed(observation, memory, shape)
        return Prepared(PolicyInputs(observation, starts, masks, states), shape, memory)

    # --- Looking inside ----------------------------------------------------------------------------------------------

    def value(self, given: AgentInputs) -> Any:
        """See `PolicyByAgent.value`."""
        if given.state is not None and inference.critic_states(self.algorithm, 1):
            raise self.error(
                f"{self.its_policy} has a critic with an LSTM of its own, whose state is not in what "
                "predict_with_state returns; accepted: value_with_state, or no state"
            )
        return self.value_with_state(given)[0]

    def value_with_state(self, given: AgentInputs) -> tuple[Any, States]:
        """See `PolicyByAgent.value_with_state`."""
        if not inference.has_values(self.algorithm):
            raise self.error(f"{self.its_policy} has no values of observations; accepted: q_values")
        asked = self.prepared(given)
        observations, starts, _, states, _ = asked.inputs
        fresh = inference.critic_states(self.algorithm, asked.rows)
        states = self.arrays(given.critic_state, fresh, "critic_state", "value_with_state") or states
        with self.misfit_refused():
            values, after = inference.values(self.algorithm, observations, states, starts)
        return _of_shape(values, asked.shape), after

    def distribution(self, given: AgentInputs) -> Distribution:
        """See `PolicyByAgent.distribution`."""
        if not inference.has_distribution(self.algorithm):
            raise self.error(f"{self.its_policy} chooses actions without a distribution; accepted: q_values")
        observations, starts, masks, states, _ = self.prepared(given).inputs
        with self.misfit_refused():
            return inference.distribution(self.algorithm, observations, states, starts, masks)

    def log_prob(self, given: AgentInputs) -> Any:
        """See `PolicyByAgent.log_prob`."""
        of_actions, shape = self.distribution(given), self._batch_shape(self._flat(given.observation))
        taken = self.actions_of_policy(given.action, shape)
        return _of_shape(inference.log_prob(self.algorithm, of_actions, taken), shape)

    def q_values(self, given: AgentInputs) -> FloatArray:
        """See `PolicyByAgent.q_values`."""
        if not inference.has_q_values(self.algorithm):
            raise self.error(f"{self.its_policy} has no Q values; accepted: value")
        if given.action is not None and inference.has_q_value_of_each_action(self.algorithm):
            raise self.error(f"{self.its_policy} has a Q value of each action; leave the agent out of actions")
        asked = self.prepared(given)
        taken = None if given.action is None else self.actions_of_policy(given.action, asked.shape)
        with self.misfit_refused():
            found = inference.q_values(self.algorithm, asked.inputs.observations, taken)
        return found if asked.shape else found[0]

    # --- Checks ------------------------------------------------------------------------------------------------------

    def actions_of_policy(self, actions: Any, shape: tuple[int, ...]) -> Array:
        """Actions of the env, one or a batch, as a batch of actions that the policy's `predict` returns.

        Raises:
            ConfigError: they do not fit the action space.
        """
        rows = shape or (1,)
        wanted = (*shape, *(self.action_space.shape or ()))
        array = np.asarray(actions)
        if array.shape != wanted or not self._all_contained(array.reshape(*rows, *wanted[len(shape) :])):
            accepted = f"{'an action' if not shape else f'{shape[0]} actions'} of {self.action_space}"
            raise self.error(f"actions is {actions!r:.200}; accepted: {accepted}")
        of_policy = self.processing.policy_actions(ZeroBased(self.action_space).from_env(array))
        return of_policy.reshape(*rows, *wanted[len(shape) :])

    def _all_contained(self, actions: Array) -> bool:
        space = self.action_space
        return all(space.contains(np.asarray(action, dtype=space.dtype)[()]) for action in actions)

    @contextmanager
    def misfit_refused(self) -> Iterator[None]:
        """Turn errors of SB3 and PyTorch about an observation into a `ConfigError`."""
        try:
            yield
        except (ValueError, RuntimeError, TypeError) as error:
            raise self._misfit(str(error)) from error

    def _flat(self, observation: Any) -> Any:
        """What the policy sees of an observation that the env itself gave: see the wrappers of envs."""
        keys = self.observation_space.spaces if isinstance(self.observation_space, spaces.Dict) else ()
        if self._has_mask(observation):
            observation = observation[OBSERVATION]
        return named_parts(observation) if keys and isinstance(observation, (Mapping, tuple)) else observation

    def _has_mask(self, observation: Any) -> bool:
        """Whether it is PettingZoo's pair of an observation and a mask, which the policy does not see as one."""
        keys = self.observation_space.spaces if isinstance(self.observation_space, spaces.Dict) else ()
        return isinstance(observation, Mapping) and MASK not in keys and set(observation) == {OBSERVATION, MASK}

    # --- Processing --------------------------------------------------------------------------------------------------

    def _processed(self, observation: Any, memory: Memory, shape: tuple[int, ...]) -> tuple[Any, Memory]:
        """Return what the policy sees, one or a batch, and the memory after it."""
        rows = shape or (1,)
        seen, memory = self.processing.observe(self._rows(observation, rows), memory, np.full(rows, self.place))
        return seen if shape else map_arrays(lambda array: array[0], seen), memory

    def _rows(self, observation: Any, rows: tuple[int, ...]) -> Observations:
        """Return an observation, or a batch, as a batch."""
        space = self.processing.env_observation_space
        if not isinstance(space, spaces.Dict):
            return self._rows_of(observation, space, rows)
        if not isinstance(observation, Mapping) or set(observation) != set(space.spaces):
            raise self._misfit("it has other keys")
        return {key: self._rows_of(observation[key], part, rows) for key, part in space.spaces.items()}

    def _rows_of(self, observation: Any, space: spaces.Space[Any], rows: tuple[int, ...]) -> Array:
        array = np.asarray(observation)
        wanted = (*rows, *(space.shape or ()))
        if wanted not in (array.shape, (1, *array.shape)):
            raise self._misfit(f"its shape is {array.shape}")
        return array.reshape(wanted).astype(space.dtype)

    def _misfit(self, why: str) -> ConfigError:
        return self.error(f"the observation does not fit {self.observation_space}: {why}")

    def _rewarded(self, memory: Memory, starts: BoolArray, reward: Any, shape: tuple[int, ...]) -> Memory:
        """Return the memory with the reward, if the policy sees it; the initial memory where an episode starts."""
        initial = self.processing.initial(len(starts))
        if REWARD in memory and not starts.all():
            given = None if reward is None else np.asarray(reward)
            if given is None or given.dtype.kind not in "iuf" or given.shape != shape:
                accepted = f"{shape[0]} numbers" if shape else "a number"
                raise self.error(f"rewards is {reward!r:.200}; accepted: {accepted}, which {self.its_policy} sees")
            memory = {**memory, REWARD: given.astype(np.float32).reshape(-1, 1)}
        return {name: _where(starts, initial[name], array) for name, array in memory.items()}

    # --- What was given ----------------------------------------------------------------------------------------------

    def error(self, words: str) -> ConfigError:
        """Make the error of an argument of this agent."""
        return ConfigError(f"agent {self.agent!r}: {words}")

    @property
    def its_policy(self) -> str:
        """The policy and its algorithm, for messages."""
        return f"its policy {self.policy_id!r} ({type(self.algorithm).__name__})"

    def _batch_shape(self, observation: Any) -> tuple[int, ...]:
        """Return (n,) for a batch of n observations, () for a single one."""
        space = self.observation_space
        if isinstance(space, spaces.Dict) and isinstance(observation, Mapping):
            name, space = next(iter(space.spaces.items()))
            observation = observation.get(name)
        whole = np.shape(observation)
        return whole[:1] if len(whole) > len(space.shape or ()) else ()

    def _states(self, state: Any, shape: tuple[int, ...]) -> tuple[States, Memory]:
        """The recurrent state of the policy, and the memory of its processing."""
        rows = shape[0] if shape else 1
        recurrent, memory = initial_states(self.algorithm, rows), self.processing.initial(rows)
        given = self.arrays(state, (*recurrent, *memory.values()), "state", "predict_with_state")
        count = len(recurrent)
        return given[:count], dict(zip(memory, given[count:], strict=True))

    def arrays(self, state: Any, fresh: States, argument: str, method: str) -> States:
        """Check the arrays of a state.

        Args:
            state: as given; None: `fresh`.
            fresh: the state at the start of an episode; () for a policy without one.
            argument: name of the argument, for messages.
            method: the method that returns such states, for messages.

        Raises:
            ConfigError: it is not like `fresh`.
        """
        if state is None:
            return fresh
        if not fresh:
            raise self.error(f"a {argument} was given, but {self.its_policy} has none")
        fits = isinstance(state, (tuple, list)) and [np.shape(part) for part in state] == [own.shape for own in fresh]
        if not fits:
            raise self.error(
                f"the {argument} does not fit {self.its_policy}; accepted: None, or what {method} returned for the "
                f"agent: {len(fresh)} arrays of shape {', '.join(str(own.shape) for own in fresh)}"
            )
        return tuple(np.asarray(part, dtype=own.dtype) for part, own in zip(state, fresh, strict=True))

    def _starts(self, episode_start: Any, shape: tuple[int, ...]) -> BoolArray:
        starts = np.asarray(False if episode_start is None else episode_start)
        if starts.dtype != np.bool_ or starts.shape not in ((), shape):
            accepted = f"a boolean{f', or {shape[0]} of them' if shape else ''}"
            raise self.error(f"episode_starts is {episode_start!r:.200}; accepted: {accepted}")
        return np.broadcast_to(starts, shape or (1,))

    def _masks(self, action_mask: Any, shape: tuple[int, ...]) -> BoolArray:
        if not takes_masks(self.algorithm):
            raise self.error(f"an action mask was given, but {self.its_policy} takes none; leave the agent out")
        choices = choices_of(self.action_space) or ()
        masks, size = np.asarray(action_mask), sum(choices)
        if masks.shape != (*shape, size):
            accepted = f"{(*shape, size)}, for {self.action_space}"
            raise self.error(f"the action mask has shape {masks.shape}; accepted: {accepted}")
        fault = mask_fault(masks.reshape(-1), masks.size, self.action_space)
        if fault is not None:
            raise self.error(fault)
        allowed = masks.astype(np.bool_).reshape(-1, size)
        nowhere = forbidden_place(allowed[None], choices)
        if nowhere is not None:
            raise self.error(forbidden_words(nowhere[2], choices))
        return allowed


def _where(rows: BoolArray, one: Array, other: Array) -> Array:
    """(rows, ...): the first array in some rows, the other one elsewhere."""
    return np.where(rows.reshape(-1, *[1] * (one.ndim - 1)), one, other)


def _of_shape(values: FloatArray, shape: tuple[int, ...]) -> Any:
    """(n,) for a batch; a number for a single observation."""
    return values if shape else np.float32(values[0])
