"""How RecurrentPPO acts: with the states of its LSTMs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from typing_extensions import override

from marl_sb3.core.acting.policy import Decision, PolicyInputs, RolloutPolicy, decision_of
from marl_sb3.core.sb3.inference import States


class RecurrentRolloutPolicy(RolloutPolicy):
    """Acts as `RecurrentPPO.collect_rollouts` does; on the fused path by the kernels, if they cover the policy.

    The states are hidden and cell state of the actor's LSTM, then those of the critic's.
    """

    @override
    def initial_states(self, rows: int) -> States:
        lstm: Any = self.algorithm.policy.lstm_actor
        return tuple(np.zeros((lstm.num_layers, rows, lstm.hidden_size), dtype=np.float32) for _ in range(4))

    def _act_by_torch(self, inputs: PolicyInputs) -> Decision:
        hidden_pi, cell_pi, hidden_vf, cell_vf = self._tensors(inputs.states)
        with th.no_grad():
            chosen, estimates, of_chosen, after = self.algorithm.policy(
                self._tensor(inputs.observations),
                RNNStates((hidden_pi, cell_pi), (hidden_vf, cell_vf)),
                self._starts(inputs),
                **inputs.masked,
            )
        sampled, values, log_probs = chosen.cpu().numpy(), estimates.cpu().numpy().reshape(-1), of_chosen.cpu().numpy()
        states = tuple(state.cpu().numpy() for state in (*after.pi, *after.vf))
        return decision_of(self.algorithm, sampled, values, log_probs, states)

    def _memory(self, inputs: PolicyInputs) -> tuple[Any, ...]:
        return self._tensors(inputs.states)[2:], self._starts(inputs)

    def _tensors(self, states: States) -> tuple[th.Tensor, ...]:
        return tuple(th.as_tensor(np.ascontiguousarray(state), device=self.algorithm.device) for state in states)

    def _starts(self, inputs: PolicyInputs) -> th.Tensor:
        return th.as_tensor(inputs.starts, dtype=th.float32, device=self.algorithm.device)
