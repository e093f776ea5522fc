"""A whole update of RecurrentPPO for LSTMs and plain MLPs behind them, as a float32 kernel compiled by numba.

As in `ppo`, an update is one call, which several threads may make for the same update. A minibatch has two tasks, actor
and critic with an LSTM each, or one, if they share it: then the critic's loss trains the MLP behind it alone. A critic
without LSTM has a linear layer in its place, the trunk of the nets.

The sequences of a minibatch have no padding, see `lstm`. Losses are PPO's over all of their steps, which is what
sb3-contrib's `ppo_recurrent.py` computes where its mask is true.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marl_sb3.compiling import carray, inlined, inner_kernel, kernel, pointer
from marl_sb3.extensions.fast.kernels.layers import ints_at, matrix_at, vector_at
from marl_sb3.extensions.fast.kernels.lstm import DELTAS, HIDDEN, return_sequences, run_sequences, sequence_memory
from marl_sb3.extensions.fast.kernels.mlp import (
    Inputs,
    backward,
    forward,
    last_layer,
    outputs_size,
    parameters_size,
    plain,
)
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer, clipping, count_steps, step_between, sum_of_squares
from marl_sb3.extensions.fast.kernels.ppo import (
    ACTOR,
    BOTH,
    CRITIC,
    GRAD_NORM,
    NUM_STATS,
    Nets,
    Samples,
    Settings,
    combine,
    ends,
    gather,
    gather_advantages,
    policy_losses,
    value_losses,
)
from marl_sb3.extensions.fast.kernels.threads import counters, next_task
from marl_sb3.types import Array, FloatArray


class Lstms(NamedTuple):
    """The LSTM of the actor, that of the critic if it has one, and states from which their sequences may begin."""

    tables: Array  # (LSTMs, layers, 5) int64, see `lstm_step`
    hidden: FloatArray  # (LSTMs, beginnings, layers, size)
    cell: FloatArray  # (LSTMs, beginnings, layers, size)


class Sequences(NamedTuple):
    """The sequences of all minibatches, one minibatch after the other, in the order of `lstm`."""

    orders: Array  # (epochs, N) int64; the samples in each epoch
    bounds: Array  # (minibatches of an epoch + 1,) int64; where each of them begins in these, and N
    active: Array  # (steps,) int64, see `run_sequences`
    step_bounds: Array  # (minibatches + 1,) int64; where each one's begin in `active`
    begins: Array  # (sequences,) int64; where among the states of an LSTM each one's are, or -1: they are zero
    begin_bounds: Array  # (minibatches + 1,) int64; where each one's begin in `begins`


class Memory(NamedTuple):
    """Workspace of an update for its largest minibatch, which its threads share; see `memory`."""

    # Addresses: the kernel takes seconds longer to compile if it gets so many arrays.
    of_lstms: Array  # (tasks, layers + 1, 6) int64, see `sequence_memory`
    of_rest: Array  # (tasks, 15) int64, see `memory`
    sequences: int  # at most, in a minibatch
    grad: FloatArray  # (parameters,)
    notes: Array  # (minibatches, tasks, NUM_STATS) float64, see `ppo.Memory`
    counters: Array  # see `threads`


# Columns of `Memory.of_rest`, after the arrays of the rows of a minibatch, as in `Samples`: activations of the
# MLPs and their gradients, see `mlp`, and hidden and cell states at the beginnings of the sequences.
_PI, _PI_DELTAS, _VF, _VF_DELTAS, _HIDDEN, _CELL = range(9, 15)


def memory(
    nets: Nets, lstms: Lstms, samples: Samples, sequences: Sequences, parameters: int, tasks: int
) -> tuple[Memory, list[Array]]:
    """Return memory for an update, and arrays to be kept meanwhile.

    Args:
        parameters: number of their values.
        tasks: 1, if actor and critic share their LSTM, otherwise 2.
    """
    _, _, layers, size = lstms.hidden.shape
    rows, most = int(np.diff(sequences.bounds).max()), int(np.diff(sequences.begin_bounds).max())
    of_lstms, of_rest, kept = [], [], []
    for _ in range(tasks):
        places, arrays = sequence_memory(layers, size, rows, most)
        rest = [np.empty((rows, *array.shape[1:]), array.dtype) for array in (*samples.inputs, *samples[1:])]
        rest += [np.empty(rows * int(net.table[:, 1].sum()), np.float32) for net in nets[1:3] for _ in range(2)]
        rest += [np.empty((layers, most, size), np.float32) for _ in range(2)]
        of_lstms.append(places)
        of_rest.append([array.ctypes.data for array in rest])
        kept += [*arrays, *rest]
    notes = np.zeros((len(sequences.step_bounds) - 1, tasks, NUM_STATS))
    grad = np.zeros(parameters, np.float32)
    return Memory(np.stack(of_lstms), np.array(of_rest), most, grad, notes, counters(tasks)), kept


@inner_kernel
def _batch_at(samples: Samples, at: Array, rows: int) -> Samples:
    """Return room for the rows of a minibatch; views."""
    return Samples(
        Inputs(
            ints_at(at[0], rows, samples.inputs.indices.shape[1]),
            matrix_at(at[1], rows, samples.inputs.floats.shape[1]),
        ),
        ints_at(at[2], rows, samples.int_actions.shape[1]),
        matrix_at(at[3], rows, samples.float_actions.shape[1]),
        matrix_at(at[4], rows, samples.allowed.shape[1]),
        vector_at(at[5], rows),
        vector_at(at[6], rows),
        vector_at(at[7], rows),
        vector_at(at[8], rows),
    )


@inner_kernel
def _begin(states: FloatArray, begins: Array, target: FloatArray) -> None:
    """Copy (beginnings, layers, size) states to (layers, sequences, size), zeros where there are none."""
    for layer in range(target.shape[0]):
        for i in range(begins.shape[0]):
            for j in range(target.shape[2]):
                target[layer, i, j] = states[begins[i], layer, j] if begins[i] >= 0 else np.float32(0.0)


@inner_kernel
def _lstm_size(table: Array, size: int) -> int:
    """Return the number of parameters of an LSTM of layers of a size."""
    total = 0
    for layer in range(table.shape[0]):
        total += (table[layer, 0] + size + 2) * 4 * size
    return total


@inlined
def _gradients(
    nets: Nets,
    lstms: Lstms,
    samples: Samples,
    order: Array,
    active: Array,
    begins: Array,
    settings: Settings,
    memory: Memory,
    task: int,
    grad: FloatArray,
    notes: Array,
) -> None:
    """Compute the gradients of a task for a minibatch.

    Args:
        samples: the rollout.
        order: (rows,) the samples of the minibatch.
        active: see `run_sequences`.
        begins: (sequences,), see `Sequences`.
        grad: (parameters of the task,); filled with the gradients for the LSTM, the actor, `log_std` and the critic,
            without those that the other task has.
        notes: (NUM_STATS,) float64; filled in the places of the task.
    """
    part = BOTH if memory.notes.shape[1] == 1 else ACTOR + task
    has_lstm = part != CRITIC or nets.trunk.table.shape[0] == 0
    rows, layers, size = order.shape[0], lstms.hidden.shape[2], lstms.hidden.shape[3]
    table, at, at_lstm = lstms.tables[task if has_lstm else 0], memory.of_rest[task], memory.of_lstms[task]
    batch = _batch_at(samples, at, rows)
    below = matrix_at(at_lstm[layers, DELTAS], rows, size)
    gather(samples, order, part, batch)
    if has_lstm:
        hidden = carray(pointer(at[_HIDDEN]), (layers, memory.sequences, size), np.float32)
        cell = carray(pointer(at[_CELL]), (layers, memory.sequences, size), np.float32)
        _begin(lstms.hidden[task], begins, hidden)
        _begin(lstms.cell[task], begins, cell)
        run_sequences(table, size, batch.inputs, active, hidden, cell, at_lstm)
    else:
        forward(nets.trunk, batch.inputs, vector_at(at_lstm[layers - 1, HIDDEN], rows * size))
    outputs = plain(matrix_at(at_lstm[layers - 1, HIDDEN], rows, size))
    place = _lstm_size(table, size) if has_lstm else parameters_size(nets.trunk)
    of_vf = parameters_size(nets.vf)
    end = grad.shape[0] - (of_vf if part != ACTOR else 0)
    if part != CRITIC:
        gather_advantages(samples.advantages, order, 0, settings.normalize_advantage, batch.advantages)
        middle, room = place + parameters_size(nets.pi), rows * outputs_size(nets.pi)
        work, deltas, of_log_std = vector_at(at[_PI], room), vector_at(at[_PI_DELTAS], room), grad[middle:end]
        log_std = vector_at(nets.log_std, of_log_std.shape[0])
        pi_out, pi_delta = forward(nets.pi, outputs, work), last_layer(nets.pi, deltas, rows)
        policy_losses(nets, batch, rows, pi_out, log_std, settings, pi_delta, of_log_std, notes)
        backward(nets.pi, outputs, work, deltas, grad[place:middle], below)
    if part != ACTOR:
        room = rows * outputs_size(nets.vf)
        work, deltas = vector_at(at[_VF], room), vector_at(at[_VF_DELTAS], room)
        vf_out, vf_delta = forward(nets.vf, outputs, work), last_layer(nets.vf, deltas, rows)
        value_losses(batch, rows, vf_out, settings, vf_delta, notes)
        # As sb3-contrib detaches what the critic gets from the actor's LSTM.
        backward(nets.vf, outputs, work, deltas, grad[end:], below if part == CRITIC else below[:0])
    if has_lstm:
        return_sequences(table, size, batch.inputs, active, at_lstm, grad[:place])
    else:
        work, deltas = (
            vector_at(at_lstm[layers - 1, HIDDEN], rows * size),
            vector_at(at_lstm[layers, DELTAS], rows * size),
        )
        backward(nets.trunk, batch.inputs, work, deltas, grad[:place], below[:0])


@inner_kernel
def _bounds_of(nets: Nets, lstms: Lstms, parameters: int, task: int, tasks: int) -> tuple[int, int]:
    """Return where the parameters of a task begin and end."""
    of_critic = parameters_size(nets.trunk) + parameters_size(nets.vf)
    if lstms.tables.shape[0] == 2:
        of_critic += _lstm_size(lstms.tables[1], lstms.hidden.shape[3])
    middle = parameters - of_critic if tasks == 2 else parameters
    return (0, middle) if task == 0 else (middle, parameters)


@kernel
def train(
    nets: Nets,
    lstms: Lstms,
    optimizer: Optimizer,
    samples: Samples,
    sequences: Sequences,
    memory: Memory,
    settings: Settings,
    stats: Array,
    thread: int,
    threads: int,
) -> int:
    """One update, in place; several threads may call this for the same update, see `ppo.train`.

    A minibatch has two phases: gradients of both parts, and steps of the optimizer.

    Args:
        nets: the MLPs behind the LSTMs; the trunk is what the critic has in the place of an LSTM.
        lstms: those of actor and critic, or the one that they share.
        optimizer: its parameters are those of the actor's LSTM, of the actor, `log_std`, those of the critic's LSTM or
            trunk, if it has one of its own, and of the critic.
        samples: the rollout; the inputs are those of the LSTMs.
        memory: of all threads.
        stats: (epochs * minibatches, NUM_STATS) float64; filled. Each thread has its own.
        thread: which of the threads this one is, from 0.
        threads: number of threads.

    Returns:
        The number of minibatches done. The update stops before the step of the optimizer in the first one with a loss
        or gradient that is not finite, or a KL above its limit.
    """
    tasks, size, phase, done, goes_on, scale = memory.notes.shape[1], memory.grad.shape[0], 0, 0, True, 1.0
    minibatches = sequences.bounds.shape[0] - 1
    while goes_on and done < stats.shape[0]:
        k, notes = done % minibatches, memory.notes[done]
        order = sequences.orders[done // minibatches, sequences.bounds[k] : sequences.bounds[k + 1]]
        active = sequences.active[sequences.step_bounds[done] : sequences.step_bounds[done + 1]]
        begins = sequences.begins[sequences.begin_bounds[done] : sequences.begin_bounds[done + 1]]
        for steps in (False, True):
            phase += 1
            task = next_task(memory.counters, tasks, phase, thread % tasks, -1)
            while task >= 0:
                begin, end = _bounds_of(nets, lstms, size, task, tasks)
                if steps:
                    step_between(optimizer, memory.grad, scale, begin, end, done)
                else:
                    grad = memory.grad[begin:end]
                    _gradients(nets, lstms, samples, order, active, begins, settings, memory, task, grad, notes[task])
                    notes[task, GRAD_NORM] = sum_of_squares(grad)
                task = next_task(memory.counters, tasks, phase, thread % tasks, task)
            if not steps:
                combine(notes, settings, stats[done])
                goes_on = not ends(stats[done], settings)
                scale = clipping(stats[done, GRAD_NORM], settings.max_grad_norm)
                done += 1
                if not goes_on:
                    break
    if thread == 0:
        count_steps(optimizer, done if goes_on else done - 1)
    return done
