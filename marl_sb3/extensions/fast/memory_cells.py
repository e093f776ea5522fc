"""Policies with memory whose cell is an LSTM or a GRU (Cho et al. 2014): sb3-contrib's, with the argument `cell`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import torch as th
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy
from torch import nn
from typing_extensions import override

from marl_sb3.errors import refuse
from marl_sb3.extensions.fast.dueling import with_arguments_of_base, with_kin

Cell = Literal["lstm", "gru"]
Memory = tuple[th.Tensor, th.Tensor]


class GRU(nn.GRU):
    """A GRU that is called as an LSTM is: it has no cell state, and returns the one that it is given.

    All that keeps the states of LSTMs keeps those of a GRU in this way: rollouts, checkpoints, `predict`, ONNX graphs.
    A cell state begins as zeros, and so it stays.
    """

    @override
    def forward(self, inputs: th.Tensor, states: Memory) -> tuple[th.Tensor, Memory]:  # type: ignore[override]
        """Run over sequences.

        Args:
            inputs: (steps, rows, size).
            states: hidden and cell state, (layers, rows, hidden size) each.

        Returns:
            The outputs of the last layer, (steps, rows, hidden size), and the states after the last step.
        """
        hidden, cell = states
        outputs, hidden = super().forward(inputs, hidden)
        return outputs, (hidden, cell)


@with_arguments_of_base
class MemoryPolicy(RecurrentActorCriticPolicy):
    """A `RecurrentActorCriticPolicy` of which actor and critic may have GRUs.

    Its layers keep sb3-contrib's names, `lstm_actor` and `lstm_critic`, and the settings `lstm_hidden_size`,
    `n_lstm_layers`, `shared_lstm`, `enable_critic_lstm` and `lstm_kwargs` hold for both kinds of cells.

    Args:
        cell: `lstm`, then it is sb3-contrib's policy bit for bit, or `gru`.

    Raises:
        ConfigError: there is no such cell.
    """

    plain: ClassVar[type[BasePolicy]] = RecurrentActorCriticPolicy  # sb3-contrib's, which files hold with LSTMs

    def __init__(self, *arguments: Any, cell: Cell = "lstm", **settings: Any) -> None:
        if cell not in get_args(Cell):
            refuse("cell", cell, " or ".join(get_args(Cell)), "policy_kwargs.cell")
        super().__init__(*arguments, **settings)
        if cell == "lstm":
            return
        for name in ("lstm_actor", "lstm_critic"):
            if (lstm := getattr(self, name)) is not None:
                setattr(self, name, GRU(lstm.input_size, lstm.hidden_size, lstm.num_layers, **self.lstm_kwargs))
        make: Any = self.optimizer_class
        self.optimizer = make(self.parameters(), lr=self.optimizer.param_groups[0]["lr"], **self.optimizer_kwargs)


MEMORY_POLICIES = with_kin(MemoryPolicy, "Memory", RecurrentPPO.policy_aliases)
