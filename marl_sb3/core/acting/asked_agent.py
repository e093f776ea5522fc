"""One agent whose policy is asked: checks and processes its inputs, a single observation or a batch, and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import is_image_space

from marl_sb3.core.acting.actor import env_actions
from marl_sb3.core.acting.policy import PolicyInputs, PredictingPolicy
from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.processors import REWARD, RowMemory, require_choices
from marl_sb3.core.sb3 import inference
from marl_sb3.core.sb3.inference import States, initial_states, takes_masks
from marl_sb3.core.vec_env.masks import forbidden_place, forbidden_words, mask_fault
from marl_sb3.core.vec_env.observations import ZeroBased, joined_observations
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, BoolArray, FloatArray, Observations, PolicyID
from marl_sb3.wrappers.observations import OBSERVATION, choices_of, env_action, named_parts

ByAgent: TypeAlias = Mapping[AgentID, Any]
Given: TypeAlias = ByAgent | None


class AgentInputs(NamedTuple):
    """What policies are asked with, by agent; the methods of `PolicyByAgent` describe the arguments of these names.

    An agent with `actions` has taken these: none is chosen for it.
    """

    observations: ByAgent
    state: Given = None
    episode_starts: Given = None
    action_masks: Given = None
    rewards: Given = None
    actions: Given = None
    critic_state: Given = None


class RequestedOutputs(NamedTuple):
    """What is asked of policies, by the names of `PolicyAnswer`."""

    actions: bool = False
    deterministic: bool = False  # the most likely actions instead of sampled ones
    values: bool = False
    critic_state: bool = False  # together with the values
    distributions: bool = False
    log_probs: bool = False  # those of the actions that are given, or else chosen
    q_values: bool = False  # those of the actions that are given, or else of the most likely ones


@dataclass(frozen=True)
class PolicyAnswer:
    """What policies answer, by agent, as the methods of `PolicyByAgent` return it; empty where it was not wanted."""

    actions: dict[AgentID, Any] = field(default_factory=dict)
    state: dict[AgentID, States] = field(default_factory=dict)
    values: dict[AgentID, Any] = field(default_factory=dict)
    critic_state: dict[AgentID, States] = field(default_factory=dict)
    distributions: dict[AgentID, Distribution] = field(default_factory=dict)
    log_probs: dict[AgentID, Any] = field(default_factory=dict)
    q_values: dict[AgentID, FloatArray] = field(default_factory=dict)


@dataclass
class AskedAgent:
    """One agent whose policy is asked; what is given is checked when it is needed."""

    agent: AgentID
    place: int  # the agent's index among the agents of its policy
    policy_id: PolicyID
    algorithm: BaseAlgorithm
    processing: Processing
    observation_space: spaces.Space[Any]  # the agent's own in the env, and so is the next one
    action_space: spaces.Space[Any]
    given: Mapping[str, Any]  # inputs by the names of `AgentInputs`, with n rows for a batch; None: nothing is given
    want: RequestedOutputs
    chosen: tuple[Any, States] | None = None  # actions as the env takes them, and the state afterwards; None: not asked
    fault: ConfigError | None = None  # why none could be chosen

    @cached_property
    def prepared(self) -> tuple[PolicyInputs, RowMemory]:
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

    @property
    def chooses(self) -> bool:
        """Whether an action is to be chosen."""
        return self.want.actions and self.given.get("actions") is None

    def require_mask(self) -> None:
        """Refuse to act without an action mask if the policy takes one."""
        if self.prepared[0].masks is None and takes_masks(self.algorithm, needed=True):
            accepted = "action_masks={agent: mask}, or an observation {observation, action_mask}"
            raise self.error(f"action mask missing for {self._its_policy}; accepted: {accepted}")

    def put_chosen(self, actions: Array, recurrent: States) -> None:
        """Note what its policy has chosen: (rows, ...) actions, and the recurrent state after these."""
        memory = self.processing.acted(self.prepared[1], actions)
        of_env = env_actions(actions, self.processing.rescale, ZeroBased(self.action_space))
        self.chosen = of_env.reshape((*self.shape, *actions.shape[1:])), (*recurrent, *memory.values())

    def add_to(self, answer: PolicyAnswer) -> None:
        """Put what is wanted of this agent into an answer.

        Raises:
            ConfigError: its policy does not have it, or an input does not fit the policy.
        """
        agent, want = self.agent, self.want
        if self.fault is not None:
            raise self.fault
        if self.chosen is not None:
            actions, state = self.chosen
            answer.actions[agent] = env_action(self.action_space, actions)
            if state:
                answer.state[agent] = state
        elif want.actions:
            answer.actions[agent] = self.given["actions"]
        if want.values:
            answer.values[agent], critic_state = self._values()
            if critic_state:
                answer.critic_state[agent] = critic_state
        if want.distributions:
            answer.distributions[agent] = self._distribution()
        if want.log_probs:
            log_probs = inference.log_prob(self.algorithm, self._distribution(), self._actions())
            answer.log_probs[agent] = self._of_shape(log_probs)
        if want.q_values:
            answer.q_values[agent] = self._q_values()

    def _values(self) -> tuple[Any, States]:
        has_state = self.given.get("state") is not None
        if has_state and not self.want.critic_state and inference.critic_states(self.algorithm, 1):
            raise self.error(
                f"{self._its_policy} has a critic with an LSTM of its own, whose state is not in what "
                "predict_with_state returns; accepted: value_with_state, or no state"
            )
        if not hasattr(self.algorithm.policy, "predict_values"):
            raise self.error(f"{self._its_policy} has no values of observations; accepted: q_values")
        inputs, _ = self.prepared
        fresh = inference.critic_states(self.algorithm, self.rows)
        states = self._states("critic_state", fresh, "value_with_state") or inputs.states
        with self.misfit_refused():
            values, after = inference.values(self.algorithm, inputs.observations, states, inputs.starts)
        return self._of_shape(values), after

    def _distribution(self) -> Distribution:
        if not inference.has_distribution(self.algorithm):
            raise self.error(f"{self._its_policy} chooses actions without a distribution; accepted: q_values")
        observations, starts, masks, states, _ = self.prepared[0]
        with self.misfit_refused():
            return inference.distribution(self.algorithm, observations, states, starts, masks)

    def _q_values(self) -> FloatArray:
        if not isinstance(self.algorithm, OffPolicyAlgorithm):
            raise self.error(f"{self._its_policy} has no Q values; accepted: value")
        is_given = self.given.get("actions") is not None
        if is_given and isinstance(self.algorithm.action_space, spaces.Discrete):
            raise self.error(f"{self._its_policy} has a Q value of each action; leave the agent out of actions")
        if self.given.get("state") is not None and inference.critic_states(self.algorithm, 1):
            raise self.error(f"{self._its_policy} has critics with a memory of their own; accepted: no state")
        (seen, starts, _, states, _), actions = self.prepared[0], self._actions() if is_given else None
        with self.misfit_refused():
            values = inference.q_values(self.algorithm, seen, actions, states, starts)
        return values if self.shape else values[0]

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
        observation, mask = self.given["observations"], self.given.get("action_masks")
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
        array, shape = np.asarray(observation), space.shape or ()
        accepted = {shape}
        if is_image_space(space) and not self.processing.processors:  # SB3 takes channels first or last
            accepted |= {shape[-1:] + shape[:-1], shape[1:] + shape[:1]}
        row = array.shape[len(self.shape) :]
        if array.shape[: len(self.shape)] != self.shape or row not in accepted:
            raise self.misfit(f"its shape is {array.shape}")
        rows = array.reshape(self.rows, *row)
        if (sizes := choices_of(space)) is not None:  # on a GPU, PyTorch would end the process
            with self.misfit_refused():
                require_choices(ZeroBased(space).from_env(rows).reshape(self.rows, -1), np.array(sizes))
        return rows.astype(space.dtype) if self.processing.processors else rows

    def _rewarded(self, memory: RowMemory, initial: RowMemory, starts: BoolArray) -> RowMemory:
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
        fits = isinstance(state, (tuple, list)) and [np.shape(part) for part in state] == [part.shape for part in fresh]
        if not fits:
            raise self.error(
                f"the {argument} does not fit {self._its_policy}; accepted: None, or what {method} returned for the "
                f"agent: {len(fresh)} arrays of shape {', '.join(str(part.shape) for part in fresh)}"
            )
        return tuple(np.asarray(part, dtype=new.dtype) for part, new in zip(state, fresh, strict=True))

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
        given, space = self.chosen[0] if self.chosen is not None else self.given.get("actions"), self.action_space
        array, shape = getattr(space, "from_env", np.asarray)(given), space.shape or ()
        fits = given is not None and array.shape == (*self.shape, *shape)
        rows = array.reshape(self.rows, *shape) if fits else ()
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


def act_together(asked: Sequence[AskedAgent]) -> None:
    """Choose the actions of agents of one policy by one call of its network; all of them or none are deterministic.

    An observation that does not fit the policy becomes the `fault` of its agent.
    """
    inputs = [one.prepared[0] for one in asked]
    masks = [part.masks for part in inputs if part.masks is not None]  # all agents have some, or none has
    try:
        together = PolicyInputs(
            joined_observations([part.observations for part in inputs]),
            np.concatenate([part.starts for part in inputs]),
            np.concatenate(masks) if masks else None,
            tuple(np.concatenate(parts, axis=1) for parts in zip(*(part.states for part in inputs), strict=True)),
        )
        actions, states, *_ = PredictingPolicy(asked[0].algorithm, asked[0].want.deterministic).act(together)
    except (ValueError, RuntimeError, TypeError) as error:
        if len(asked) == 1:
            asked[0].fault = asked[0].misfit(str(error))
            asked[0].fault.__cause__ = error
        else:
            for one in asked:  # alone: the error then names its agent
                act_together([one])
        return
    ends = np.cumsum([0, *(one.rows for one in asked)]).tolist()
    for one, (first, last) in zip(asked, pairwise(ends), strict=True):
        one.put_chosen(np.asarray(actions)[first:last], tuple(state[:, first:last] for state in states))
