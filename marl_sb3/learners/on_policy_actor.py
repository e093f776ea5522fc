"""Act in the rollouts of an on-policy algorithm: choose actions, with their values and log-probabilities."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from marl_sb3.learners.actor import RowActor
from marl_sb3.learners.deciders import Batch, Decider, zero_actions_of
from marl_sb3.learners.forward_pass import ForwardPass, forward_pass
from marl_sb3.learners.sb3.predict import States
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.types import Array, BoolArray, FloatArray, Observations


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
