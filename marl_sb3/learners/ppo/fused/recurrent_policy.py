"""Run sb3-contrib's `RecurrentActorCriticPolicy` on the kernels in a rollout, one step at a time."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from torch import nn

from marl_sb3.learners.ppo.fused.policy import FusedPolicy, Inputs
from marl_sb3.sb3.inference import States
from marl_sb3.types import Array, BoolArray, FloatArray

_Weights = list[tuple[FloatArray, FloatArray, FloatArray]]  # of each layer: by input, by hidden state, bias


class FusedRecurrentPolicy(FusedPolicy):
    """A `FusedPolicy` whose nets get the outputs of LSTMs. States are those of `RecurrentDecider`.

    Args:
        policy: a policy that the kernels cover, see `memory_coverage`.
    """

    def __init__(self, policy: Any) -> None:
        self._lstm_kernel = _compiled_lstm()
        self._lstms: list[nn.LSTM] = [policy.lstm_actor]
        if not policy.shared_lstm:
            self._lstms.append(policy.lstm_critic)
        self._lstm_weights: list[_Weights] = []
        super().__init__(policy)

    def read_parameters(self) -> None:
        """See `FusedPolicy.read_parameters`."""
        self._lstm_weights = [_weights_of(lstm) for lstm in self._lstms]
        super().read_parameters()

    def decide(
        self, observations: Array, starts: BoolArray, states: States
    ) -> tuple[tuple[Array, FloatArray, FloatArray], States]:
        """Sample actions as the policy's `forward` does, from the same stream of random numbers.

        Args:
            observations: (rows, *observation shape).
            starts: (rows,) bool; True where an episode starts.
            states: before the step.

        Returns:
            What `FusedPolicy.act` returns, and the states after the step.
        """
        rows, inputs = len(observations), self.inputs(observations)
        of_actor = self._remember(0, inputs, starts, states[:2])
        of_critic = of_actor if len(self._lstms) == 1 else self._remember(1, inputs, starts, states[2:])
        values = self._net("vf", of_critic, rows).reshape(-1).copy()
        actions, log_probs = self._sample(self._net("pi", of_actor, rows), None)
        return (actions, values, log_probs), (*of_actor, *of_critic)

    def values_of(self, observations: Array, starts: BoolArray, states: States) -> FloatArray:
        """(rows,) values of observations; arguments as for `decide`."""
        after = self._remember(len(self._lstms) - 1, self.inputs(observations), starts, states[2:])
        return self._net("vf", after, len(observations)).reshape(-1).copy()

    def _remember(self, which: int, inputs: Inputs, starts: BoolArray, states: States) -> States:
        """Return hidden and cell state of an LSTM after a step, (layers, rows, size) each."""
        hidden, cell = (np.ascontiguousarray(state) for state in states)
        new_hidden, new_cell = np.empty_like(hidden), np.empty_like(cell)
        indices, floats, one_hot = inputs.indices, inputs.floats, self.one_hot
        for layer, weights in enumerate(self._lstm_weights[which]):
            step = self._lstm_kernel.lstm_step
            new_hidden[layer], new_cell[layer] = step(
                indices, floats, one_hot, starts, hidden[layer], cell[layer], *weights
            )
            floats, one_hot = new_hidden[layer], False
        return new_hidden, new_cell

    def _net(self, key: str, states: States, rows: int) -> FloatArray:
        """Return the outputs of a net: a view of its workspace, which the next call overwrites."""
        table, none = self.pi_table if key == "pi" else self.vf_table, np.empty((rows, 0), np.int64)
        offsets, work = self._workspace(key, rows)
        outputs: FloatArray = self._kernel.forward(
            self.theta, table, offsets, work, none, states[0][-1], False, rows, self.activation
        )
        return outputs


def _weights_of(lstm: nn.LSTM) -> _Weights:
    listed = []
    for layer in range(lstm.num_layers):
        by_input, by_hidden, bias, more_bias = (
            getattr(lstm, f"{name}_l{layer}").detach().numpy()
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        listed.append((np.ascontiguousarray(by_input.T), np.ascontiguousarray(by_hidden.T), bias + more_bias))
    return listed


@lru_cache(maxsize=1)
def _compiled_lstm() -> ModuleType:
    """Return the module of the kernel, compiled or loaded from the cache of an earlier process."""
    from marl_sb3.kernels import lstm as lstm_kernel

    lstm_kernel.warm_up()
    return lstm_kernel
