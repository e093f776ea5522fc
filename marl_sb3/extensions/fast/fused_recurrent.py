"""Run sb3-contrib's recurrent policies on the kernels: acting step by step, and whole updates of RecurrentPPO.

Import this only where kernels are used; see `fused_policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from torch import nn
from typing_extensions import override

from marl_sb3.compiling import note_compiling
from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.core.sb3.inference import States
from marl_sb3.extensions.fast.coverage import lstms_of
from marl_sb3.extensions.fast.fused_policy import FusedPolicy, FusedRolloutUpdate
from marl_sb3.extensions.fast.kernel_tables import layer_table, parameters_of
from marl_sb3.extensions.fast.kernels import acting, recurrent_ppo
from marl_sb3.extensions.fast.kernels import lstm as lstm_kernel
from marl_sb3.extensions.fast.kernels.layers import LINEAR
from marl_sb3.extensions.fast.kernels.mlp import Inputs, Net
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer
from marl_sb3.types import Array, BoolArray, FloatArray

# --- Acting ----------------------------------------------------------------------------------------------------------


class FusedRecurrentPolicy(FusedPolicy):
    """A policy of sb3-contrib whose nets get the outputs of LSTMs; it acts by the kernels, one step at a time.

    Recurrent states are hidden and cell state of the actor's LSTM, then those of the critic's. Without LSTM,
    a critic has a linear layer in its place: the trunk of the nets, which only the critic uses.

    Args:
        policy: a `RecurrentActorCriticPolicy` that the kernels cover.
        trains: whether they cover its updates too.
    """

    def __init__(self, policy: Any, trains: bool) -> None:
        self.trains = trains
        lstms, linear = lstms_of(policy), policy.critic
        first_layers = [linear.weight] if linear is not None else []
        super().__init__(policy, [*(lstm.weight_ih_l0 for lstm in lstms), *first_layers])
        of_actor, of_critic = map(parameters_of, self._layers)
        log_std = [policy.log_std] if self.is_gaussian else []
        first, *others = (list(lstm.parameters()) for lstm in lstms)
        moved = self.copies.addresses()
        if linear is not None:
            others.append(parameters_of([linear]))
            self.nets = self.nets._replace(trunk=Net(layer_table([linear], moved), LINEAR, LINEAR))
        self.parameters = [*first, *of_actor, *log_std, *chain(*others), *of_critic]
        self.lstm_tables = [lstm_table(lstm, moved) for lstm in lstms]  # (layers, 5) each, see `lstm_step`

    @override
    def act(self, inputs: PolicyInputs) -> tuple[Array, FloatArray, FloatArray, States]:
        seen = self.inputs(inputs.observations)
        of_actor = self._remember(0, seen, inputs)
        of_critic = of_actor if len(self.lstm_tables) == 1 else self._remember(1, seen, inputs)
        outputs, values = self._outputs(0, of_actor[0][-1]), self._values(seen, of_critic)
        return *self._sample(outputs, values, inputs.masks), (*of_actor, *of_critic)

    @override
    def values(self, inputs: PolicyInputs) -> FloatArray:
        seen = self.inputs(inputs.observations)
        states = inputs.states[2:] if len(self.nets.trunk.table) else self._remember(1, seen, inputs)
        return self._values(seen, states).reshape(-1).copy()

    def _remember(self, which: int, seen: Inputs, inputs: PolicyInputs) -> States:
        """Return the states of actor (0) or critic (1), who may share an LSTM, after a step: (layers, rows, size)."""
        note_compiling(lstm_kernel.lstm_step, "LSTMs: about 3 s of one core")
        hidden, cell = (np.ascontiguousarray(state) for state in inputs.states[2 * which : 2 * which + 2])
        table = self.lstm_tables[min(which, len(self.lstm_tables) - 1)]
        return lstm_kernel.lstm_step(table, seen, inputs.starts, hidden, cell)

    def _values(self, seen: Inputs, states: States) -> FloatArray:
        """Return values, (rows, 1), of observations for the latest states of the critic's LSTM, if it has one."""
        trunk, below = self.nets.trunk, states[0][-1]
        if len(trunk.table):
            work = np.empty(below.size, np.float32)
            below = acting.outputs_of(*trunk, *seen, work)
        return self._outputs(1, below)

    def _outputs(self, which: int, below: FloatArray) -> FloatArray:
        """Return the outputs of the MLP of actor (0) or critic (1): a view of its workspace."""
        net = (self.nets.pi, self.nets.vf)[which]
        none = np.empty((len(below), 0), np.int64)
        return acting.outputs_of(*net, none, below, self._work(len(below))[which])


def lstm_table(lstm: nn.LSTM, moved: Mapping[int, int]) -> Array:
    """(layers, 5) int64, see `lstm_step`."""
    rows = []
    for layer in range(lstm.num_layers):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        addresses = [getattr(lstm, f"{name}_l{layer}").data_ptr() for name in names]
        rows.append([lstm.input_size if layer == 0 else lstm.hidden_size, *(moved.get(a, a) for a in addresses)])
    return np.array(rows, dtype=np.int64)


# --- Updates ---------------------------------------------------------------------------------------------------------


class FusedSequenceUpdate(FusedRolloutUpdate):
    """An update of RecurrentPPO by the kernels. Its sequences are those of `WholeSequences`, without padding."""

    _fused: FusedRecurrentPolicy

    @override
    def _draw_order(self, samples: int) -> Array:
        return np.roll(np.arange(samples), -np.random.randint(samples))  # noqa: NPY002 - as sb3-contrib draws

    @override
    def _prepare(
        self, optimizer: Optimizer, orders: Array, bounds: Array
    ) -> tuple[Callable[[Array, int, int], int], float, int]:
        note_compiling(recurrent_ppo.train, "the update of sequences: about 9 s of one core")
        fused, samples = self._fused, self._samples
        steps, rows, *starts = _transitions(self._rollout)
        sequences, needed = sequences_of(orders, bounds, *starts)
        needed_at = steps[needed], rows[needed]
        parts = ("pi", "vf")[: len(fused.lstm_tables)]
        hidden, cell = (
            np.stack([_states(self._rollout, f"{kind}_states_{part}", *needed_at) for part in parts])
            for kind in ("hidden", "cell")
        )
        lstms = recurrent_ppo.Lstms(np.stack(fused.lstm_tables), hidden, cell)
        tasks = 1 if fused.policy.shared_lstm else 2
        parameters = sum(each.numel() for each in fused.parameters)
        memory, self._kept = recurrent_ppo.memory(fused.nets, lstms, samples, sequences, parameters, tasks)
        arguments = fused.nets, lstms, optimizer, samples, sequences, memory, self.settings
        return partial(recurrent_ppo.train, *arguments), 6.0 * parameters * int(np.diff(bounds).max()), tasks


def _transitions(rollout: Any) -> tuple[Array, Array, BoolArray, BoolArray]:
    """Return the N transitions of a full buffer, of which no minibatch has been made, row after row.

    Returns:
        Lines in the buffer's arrays and rows there, int64; whether an episode starts with the transition; and whether
        those of its row begin with it, or go on after dropped ones.
    """
    acted = getattr(rollout, "acted", np.ones((rollout.buffer_size, rollout.n_envs), dtype=bool))
    row_first = acted & (np.cumsum(acted, axis=0) == 1)
    if getattr(rollout, "breaks", None) is not None:
        row_first |= acted & rollout.breaks
    rows, steps = np.nonzero(acted.T)
    return steps, rows, rollout.episode_starts[steps, rows] > 0, row_first[steps, rows]


def _states(rollout: Any, name: str, steps: Array, rows: Array) -> FloatArray:
    """Return the states before some transitions, (n, layers, size)."""
    states = getattr(rollout, name)
    # sb3-contrib swaps layers and rows when it makes minibatches; our buffers of transitions have them swapped.
    return np.ascontiguousarray(states[steps, rows] if hasattr(rollout, "acted") else states[steps, :, rows])


def sequences_of(
    orders: Array, bounds: Array, first: BoolArray, row_first: BoolArray
) -> tuple[recurrent_ppo.Sequences, Array]:
    """Cut minibatches into sequences, as sb3-contrib's `create_sequencers` does.

    Args:
        orders: (epochs, N) int64; the order of samples in each epoch.
        bounds: (minibatches + 1,) int64; where each minibatch begins in such an order, and N.
        first: (N,) bool; where an episode starts: the states are zero there.
        row_first: (N,) bool; where the transitions of a row begin, or go on after dropped ones.

    Returns:
        The sequences, and (beginnings,) int64: the samples before which their states are needed.
    """
    epochs, samples = orders.shape
    begins = (first | row_first)[orders]
    begins[:, bounds[:-1]] = True
    flat = orders.reshape(-1)
    starts = np.flatnonzero(begins)  # of sequences, in all epochs one after the other
    lengths = np.diff(starts, append=flat.size)
    batch_starts = (np.arange(epochs)[:, None] * samples + bounds[:-1]).reshape(-1)
    batch = np.searchsorted(batch_starts, starts, "right") - 1  # of each sequence
    by_length = np.lexsort((-lengths, batch))  # stable: sequences of one length stay in their order
    rank = np.empty_like(by_length)
    rank[by_length] = np.arange(len(by_length))
    within = np.arange(flat.size) - np.repeat(starts, lengths)
    batch_of_row = np.repeat(batch, lengths)
    in_time = np.lexsort((np.repeat(rank, lengths), within, batch_of_row))
    # The rows of a step lie side by side.
    step_starts = np.flatnonzero(np.diff(within[in_time], prepend=-1) | np.diff(batch_of_row[in_time], prepend=-1))
    active = np.diff(step_starts, append=flat.size)
    sources, which = np.unique(flat[starts[by_length]], return_inverse=True)
    which = np.where(first[flat[starts[by_length]]], -1, which)
    made = recurrent_ppo.Sequences(
        flat[in_time].reshape(epochs, samples),
        bounds,
        active,
        np.append(np.searchsorted(step_starts, batch_starts), len(active)),
        which,
        np.append(np.searchsorted(batch[by_length], np.arange(len(batch_starts))), len(which)),
    )
    return made, sources
