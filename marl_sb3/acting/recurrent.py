"""How RecurrentPPO acts: with the states of its LSTMs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from marl_sb3.acting.actor import Batch
from marl_sb3.acting.policy import (
    OnPolicyDecision,
    no_on_policy_decision,
    on_policy_decision,
)
from marl_sb3.sb3.inference import States
from marl_sb3.types import Array, FloatArray
from marl_sb3.vec_env.observations import map_arrays


class RecurrentDecider:
    """Chooses actions as `RecurrentPPO.collect_rollouts` does; on the fused path by the kernels, if they cover it.

    The states are hidden and cell state of the actor's LSTM, then those of the critic's.
    """

    takes_masks = False

    def __init__(self, algorithm: OnPolicyAlgorithm) -> None:
        self._algorithm = algorithm
        self.read_weights()

    def read_weights(self) -> None:
        """See `OnPolicyDecider.read_weights`."""
        self._policy: Any = self._algorithm.policy
        self._fused: Any = self._algorithm.fused_policy() if hasattr(self._algorithm, "fused_policy") else None
        if self._fused is not None:
            self._fused.read_parameters()

    def initial_states(self, rows: int) -> States:
        """See `Decider.initial_states`."""
        lstm = self._policy.lstm_actor
        return tuple(np.zeros((lstm.num_layers, rows, lstm.hidden_size), dtype=np.float32) for _ in range(4))

    def decide(self, batch: Batch) -> tuple[OnPolicyDecision, States]:
        """See `Decider.decide`."""
        if self._fused is not None:
            chosen, after_step = self._fused.decide(_array(batch), batch.starts, batch.states)
            return on_policy_decision(self._algorithm, *chosen), after_step
        observations = obs_as_tensor(batch.observations, self._algorithm.device)
        hidden_pi, cell_pi, hidden_vf, cell_vf = self._tensors(batch.states)
        with th.no_grad():
            actions, values, log_probs, after = self._policy(
                observations, RNNStates((hidden_pi, cell_pi), (hidden_vf, cell_vf)), self._starts(batch)
            )
        sampled = actions.cpu().numpy(), values.cpu().numpy().reshape(-1), log_probs.cpu().numpy()
        states = tuple(state.cpu().numpy() for state in (*after.pi, *after.vf))
        return on_policy_decision(self._algorithm, *sampled), states

    def no_decision(self, rows: int) -> OnPolicyDecision:
        """See `Decider.no_decision`."""
        return no_on_policy_decision(self._algorithm, rows)

    def values(self, batch: Batch) -> FloatArray:
        """See `OnPolicyDecider.values`."""
        if self._fused is not None:
            values: FloatArray = self._fused.values_of(_array(batch), batch.starts, batch.states)
            return values
        return self._values(obs_as_tensor(batch.observations, self._algorithm.device), batch)

    def final_values(self, batch: Batch) -> FloatArray:
        """See `OnPolicyDecider.final_values`; PyTorch's one by one, as sb3-contrib does."""
        if self._fused is not None:
            values: FloatArray = self._fused.values_of(_array(batch), batch.starts, batch.states)
            return values
        rows = np.eye(len(batch.starts), dtype=bool)
        return np.concatenate([self._final_value(batch.of_rows(row)) for row in rows])

    def _final_value(self, batch: Batch) -> FloatArray:
        observation = map_arrays(lambda array: array[0], batch.observations)
        return self._values(self._policy.obs_to_tensor(observation)[0], batch)

    def _values(self, observations: Any, batch: Batch) -> FloatArray:
        with th.no_grad():
            values = self._policy.predict_values(observations, self._tensors(batch.states)[2:], self._starts(batch))
        result: FloatArray = values.cpu().numpy().reshape(-1)
        return result

    def _tensors(self, states: States) -> tuple[th.Tensor, ...]:
        return tuple(th.as_tensor(np.ascontiguousarray(state), device=self._algorithm.device) for state in states)

    def _starts(self, batch: Batch) -> th.Tensor:
        return th.as_tensor(batch.starts, dtype=th.float32, device=self._algorithm.device)


def _array(batch: Batch) -> Array:
    """Return the observations, which are no mapping: the kernels cover no `Dict` space."""
    assert isinstance(batch.observations, np.ndarray)
    return batch.observations
