"""How RecurrentPPO acts: with the states of its LSTMs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates

from marl_sb3.acting.policy import Decision, PolicyInputs, RolloutPolicy
from marl_sb3.sb3.inference import States
from marl_sb3.types import FloatArray
from marl_sb3.vec_env.observations import map_arrays


class RecurrentRolloutPolicy(RolloutPolicy):
    """Acts as `RecurrentPPO.collect_rollouts` does; on the fused path by the kernels, if they cover the policy.

    The states are hidden and cell state of the actor's LSTM, then those of the critic's.
    """

    def initial_states(self, rows: int) -> States:
        """See `Policy.initial_states`."""
        lstm: Any = self.algorithm.policy.lstm_actor
        return tuple(np.zeros((lstm.num_layers, rows, lstm.hidden_size), dtype=np.float32) for _ in range(4))

    def act(self, inputs: PolicyInputs) -> Decision:
        """See `Policy.act`."""
        if self._kernels is not None:
            sampled, states = self._kernels.decide(inputs.observations, inputs.starts, inputs.states)
            actions, values, log_probs = sampled
            return self._decision(actions, values, log_probs, states)
        hidden_pi, cell_pi, hidden_vf, cell_vf = self._tensors(inputs.states)
        with th.no_grad():
            chosen, estimates, of_chosen, after = self.algorithm.policy(
                self._tensor(inputs.observations),
                RNNStates((hidden_pi, cell_pi), (hidden_vf, cell_vf)),
                self._starts(inputs),
            )
        states = tuple(state.cpu().numpy() for state in (*after.pi, *after.vf))
        return self._decision(
            chosen.cpu().numpy(), estimates.cpu().numpy().reshape(-1), of_chosen.cpu().numpy(), states
        )

    def values(self, inputs: PolicyInputs) -> FloatArray:
        """See `RolloutPolicy.values`."""
        if self._kernels is not None:
            return self._kernels.values_of(inputs.observations, inputs.starts, inputs.states)  # type: ignore[no-any-return]
        return self._values_after(self._tensor(inputs.observations), inputs)

    def final_values(self, inputs: PolicyInputs) -> FloatArray:
        """See `RolloutPolicy.final_values`."""
        if self._kernels is not None:
            return self.values(inputs)
        rows = np.eye(len(inputs.starts), dtype=bool)
        return np.concatenate([self._final_value(inputs.of_rows(row)) for row in rows])

    def _final_value(self, inputs: PolicyInputs) -> FloatArray:
        observation = map_arrays(lambda array: array[0], inputs.observations)
        return self._values_after(self.algorithm.policy.obs_to_tensor(observation)[0], inputs)

    def _values_after(self, observations: Any, inputs: PolicyInputs) -> FloatArray:
        policy: Any = self.algorithm.policy
        with th.no_grad():
            values = policy.predict_values(observations, self._tensors(inputs.states)[2:], self._starts(inputs))
        result: FloatArray = values.cpu().numpy().reshape(-1)
        return result

    def _tensors(self, states: States) -> tuple[th.Tensor, ...]:
        return tuple(th.as_tensor(np.ascontiguousarray(state), device=self.algorithm.device) for state in states)

    def _starts(self, inputs: PolicyInputs) -> th.Tensor:
        return th.as_tensor(inputs.starts, dtype=th.float32, device=self.algorithm.device)
