"""How policies act in training: on-policy with values and log-probabilities, off-policy with exploration."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from marl_sb3.acting.actor import Actions, Batch, Decider, RowActor, zero_actions_of
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.sb3.inference import States
from marl_sb3.types import Array, BoolArray, FloatArray, Observations
from marl_sb3.vec_env.observations import map_arrays


class ForwardPass(Protocol):
    """Computes actions and values in a rollout. Observations are batches, (rows, ...)."""

    def act(self, observations: Any, action_masks: BoolArray | None = None) -> tuple[Array, FloatArray, FloatArray]:
        """Sampled actions (rows, *action shape), values (rows,) and log-probabilities (rows,).

        Args:
            observations: (rows, ...).
            action_masks: (rows, n) True where an action is allowed; only for policies that take masks.
        """

    def values(self, observations: Any) -> FloatArray:
        """(rows,) values."""

    def final_values(self, observations: Any) -> FloatArray:
        """(rows,) values of the observations that agents were truncated on."""


class TorchForwardPass:
    """By the torch modules, with the operations of SB3's `collect_rollouts`."""

    def __init__(self, algorithm: OnPolicyAlgorithm) -> None:
        self._algorithm = algorithm

    def act(
        self, observations: Observations, action_masks: BoolArray | None = None
    ) -> tuple[Array, FloatArray, FloatArray]:
        """See `ForwardPass.act`."""
        arguments = {} if action_masks is None else {"action_masks": action_masks}
        with th.no_grad():
            actions, values, log_probs = self._algorithm.policy(self._tensor(observations), **arguments)
        return actions.cpu().numpy(), values.cpu().numpy().reshape(-1), log_probs.cpu().numpy()

    def values(self, observations: Observations) -> FloatArray:
        """See `ForwardPass.values`."""
        with th.no_grad():
            values = self._algorithm.policy.predict_values(self._tensor(observations))
        result: FloatArray = values.cpu().numpy().reshape(-1)
        return result

    def final_values(self, observations: Observations) -> FloatArray:
        """See `ForwardPass.final_values`; computed one by one as in SB3: the last bits depend on the batch size."""
        rows = len(next(iter(observations.values())) if isinstance(observations, dict) else observations)
        values = [self._final_value(observations, row) for row in range(rows)]
        return np.concatenate(values)

    def _final_value(self, observations: Observations, row: int) -> FloatArray:
        observation = map_arrays(lambda array: array[row], observations)
        with th.no_grad():
            value = self._algorithm.policy.predict_values(self._algorithm.policy.obs_to_tensor(observation)[0])
        result: FloatArray = value.cpu().numpy().reshape(-1)
        return result

    def _tensor(self, observations: Observations) -> th.Tensor | dict[str, th.Tensor]:
        return obs_as_tensor(observations, self._algorithm.device)


def forward_pass(algorithm: OnPolicyAlgorithm) -> ForwardPass:
    """Return the fastest forward pass that covers the policy, with its present parameters."""
    fused: Any = algorithm.fused_policy() if hasattr(algorithm, "fused_policy") else None
    if fused is None:
        return TorchForwardPass(algorithm)
    fused.read_parameters()
    return fused  # type: ignore[no-any-return]


class OnPolicyDecision(NamedTuple):
    """A decision in a rollout; (rows, ...) each.

    Attributes:
        actions: the actions as the env takes them.
        sampled: the actions as the policy sampled them, from which it learns.
        values: (rows,) values of the observations.
        log_probs: (rows,) log-probabilities of `sampled`.
    """

    actions: Array
    sampled: Array
    values: FloatArray
    log_probs: FloatArray


class OnPolicyDecider(Decider[OnPolicyDecision], Protocol):
    """A `Decider` that also estimates values."""

    def read_weights(self) -> None:
        """Note that the weights may have changed since the latest step."""

    def values(self, batch: Batch) -> FloatArray:
        """(rows,) values."""

    def final_values(self, batch: Batch) -> FloatArray:
        """(rows,) values of the observations that agents were truncated on."""


class ForwardPassDecider:
    """Chooses actions by the policy's forward pass, with the random draws of SB3's `collect_rollouts`.

    For policies without memory and without masks.
    """

    _forward_pass: ForwardPass

    takes_masks = False

    def __init__(self, algorithm: OnPolicyAlgorithm) -> None:
        self._algorithm = algorithm
        self.read_weights()

    def read_weights(self) -> None:
        """See `OnPolicyDecider.read_weights`."""
        self._forward_pass = forward_pass(self._algorithm)

    def initial_states(self, rows: int) -> States:
        """See `Decider.initial_states`."""
        return ()

    def decide(self, batch: Batch) -> tuple[OnPolicyDecision, States]:
        """See `Decider.decide`."""
        return on_policy_decision(self._algorithm, *self._forward_pass.act(batch.observations)), ()

    def no_decision(self, rows: int) -> OnPolicyDecision:
        """See `Decider.no_decision`."""
        return no_on_policy_decision(self._algorithm, rows)

    def values(self, batch: Batch) -> FloatArray:
        """See `OnPolicyDecider.values`."""
        return self._forward_pass.values(batch.observations)

    def final_values(self, batch: Batch) -> FloatArray:
        """See `OnPolicyDecider.final_values`."""
        return self._forward_pass.final_values(batch.observations)


def on_policy_decision(
    algorithm: OnPolicyAlgorithm, sampled: Array, values: FloatArray, log_probs: FloatArray
) -> OnPolicyDecision:
    """Return a decision with these sampled actions."""
    return OnPolicyDecision(env_actions(algorithm, sampled), sampled, values, log_probs)


def no_on_policy_decision(algorithm: OnPolicyAlgorithm, rows: int) -> OnPolicyDecision:
    """Return a decision of zeros."""
    actions = zero_actions_of(algorithm, rows)
    values, log_probs = (np.zeros(rows, dtype=np.float32) for _ in range(2))
    return OnPolicyDecision(actions, actions.copy(), values, log_probs)


def env_actions(algorithm: OnPolicyAlgorithm, sampled: Array) -> Array:
    """Return the actions within the bounds of the env, as in `OnPolicyAlgorithm.collect_rollouts`."""
    space = algorithm.action_space
    if not isinstance(space, spaces.Box):
        return sampled
    if algorithm.policy.squash_output:
        return algorithm.policy.unscale_action(sampled)
    return np.clip(sampled, space.low, space.high)


class OnPolicyActor(RowActor[OnPolicyDecision]):
    """A `RowActor` that also estimates the values of observations, with its rows' recurrent state."""

    def __init__(self, rows: PolicyRows, algorithm: OnPolicyAlgorithm, decider: OnPolicyDecider) -> None:
        super().__init__(rows, algorithm, decider)
        self._critic = decider

    def read_weights(self) -> None:
        """Note that the weights may have changed since the latest step, by a learner or a callback."""
        self._critic.read_weights()

    def values(self, observations: Observations, acting: BoolArray) -> FloatArray:
        """Return the (rows,) values of the observations that the rows act on next; 0 in rows that wait."""
        batch = Batch(observations, self.starts, None, self.states)
        if acting.all():
            return self._critic.values(batch)
        values = np.zeros(len(acting), dtype=np.float32)
        if acting.any():
            values[acting] = self._critic.values(batch.of_rows(acting))
        return values

    def final_values(self, observations: Observations, ended: BoolArray) -> FloatArray:
        """Return the values of truncated agents' final observations; called before `end_episodes`.

        Args:
            observations: (n, ...), of the rows that ended.
            ended: (rows,) bool; the n rows.
        """
        states = tuple(array[:, ended] for array in self.states)
        n = int(ended.sum())
        return self._critic.final_values(Batch(observations, np.zeros(n, dtype=bool), None, states))


class ExploringDecider:
    """Takes random actions until `learning_starts`, then those of `predict`.

    Args:
        warms_up: whether the first actions are random; a policy that is not trained acts by its weights.
    """

    takes_masks = False

    def __init__(self, algorithm: OffPolicyAlgorithm, warms_up: bool) -> None:
        self._algorithm = algorithm
        self._warms_up = warms_up
        self._is_read = False
        self._fused: Any = None  # what chooses the actions, if the kernels do

    def read_weights(self) -> None:
        """Note that the policy may have other weights than in the latest step, or other modules."""
        self._is_read = False

    def _read(self) -> None:
        exploring_kernels = getattr(self._algorithm, "exploring_kernels", None)
        self._fused = None if exploring_kernels is None else exploring_kernels()
        self._is_read = True

    def initial_states(self, rows: int) -> States:
        """See `Decider.initial_states`."""
        return ()

    def decide(self, batch: Batch) -> tuple[Actions, States]:
        """See `Decider.decide`."""
        algorithm = self._algorithm
        if self._is_warming_up():
            return Actions(np.array([algorithm.action_space.sample() for _ in range(len(batch.starts))])), ()
        if not self._is_read:
            self._read()
        if self._fused is not None:
            return Actions(self._fused.explore(batch.observations)), ()
        actions, _ = algorithm.predict(batch.observations, deterministic=False)
        return Actions(actions), ()

    def _is_warming_up(self) -> bool:
        algorithm = self._algorithm
        by_noise = algorithm.use_sde and algorithm.use_sde_at_warmup
        return self._warms_up and algorithm.num_timesteps < algorithm.learning_starts and not by_noise

    def no_decision(self, rows: int) -> Actions:
        """See `Decider.no_decision`."""
        return Actions(zero_actions_of(self._algorithm, rows))
