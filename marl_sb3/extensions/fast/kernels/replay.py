"""What algorithms with a replay buffer share, as kernels: how they draw, minibatches, quantile losses and critics."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel
from marl_sb3.extensions.fast.kernels.layers import LINEAR, RELU, TANH, matrix, matrix_at
from marl_sb3.extensions.fast.kernels.mlp import (
    Net,
    backward,
    forward,
    last_layer,
    outputs_size,
    parameters_size,
    plain,
)
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer, move_towards, step_between
from marl_sb3.extensions.fast.kernels.threads import counters, share
from marl_sb3.types import Array, FloatArray

_Scalar = Any  # a float, once compiled

_f = np.float32
_ZERO, _HALF, _ONE = _f(0.0), _f(0.5), _f(1.0)


# --- Sum trees: numbers are drawn in proportion to their size, and changed, in logarithmic time ----------------------

# A tree of capacity c, a power of 2, is an array (2 c,) float64: the numbers stand from c on, and each number before is
# the sum of the two that stand at twice its place. The sum of all is at place 1.


@kernel
def sum_up(tree: Array) -> None:
    """Compute all sums from the numbers."""
    for node in range(tree.shape[0] // 2 - 1, 0, -1):
        tree[node] = tree[2 * node] + tree[2 * node + 1]


@kernel
def put_in_tree(tree: Array, places: Array, numbers: Array) -> None:
    """Set the numbers at (n,) places, from 0 on; of a place that is there twice, the last one stays.

    The sums above are computed anew from their two parts, so that no rounding adds up over many changes.
    """
    capacity = tree.shape[0] // 2
    for i in range(places.shape[0]):
        node = capacity + places[i]
        tree[node] = numbers[i]
        while node > 1:
            node //= 2
            tree[node] = tree[2 * node] + tree[2 * node + 1]


@kernel
def draw_from_tree(tree: Array, fractions: Array) -> Array:
    """Return the (n,) places at which the running sum of the numbers passes so many n-ths of the sum of all.

    Args:
        fractions: (n,) from 0 to 1, one within each n-th: the k-th draw is at (k + fraction) / n of the whole.
    """
    capacity, number = tree.shape[0] // 2, fractions.shape[0]
    places = np.empty(number, np.int64)
    for k in range(number):
        rest, node = (k + fractions[k]) / number * tree[1], 1
        while node < capacity:
            node *= 2
            # Rounding must not lead to a number of 0, which stands for nothing: there, the sum has ended before.
            if rest >= tree[node] and tree[node + 1] > 0.0:
                rest -= tree[node]
                node += 1
        places[k] = node - capacity
    return places


# --- Minibatches -----------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """A minibatch."""

    observations: FloatArray  # (rows, inputs) float32
    actions: Array  # (rows, n); float32, for DQN and QR-DQN int64
    next_observations: FloatArray  # (rows, inputs) float32
    rewards: FloatArray  # (rows,) float32
    # (rows,) float32; what the value of the next observation counts: 0 where the episode was terminated
    discounts: FloatArray


@inner_kernel
def quantile_loss(current: FloatArray, targets: FloatArray, scale: float, delta: FloatArray) -> _Scalar:
    """Compute the quantile Huber loss of one row (Dabney et al. 2018, eq. 10), summed over all pairs.

    Args:
        current: (quantiles,); the estimates.
        targets: (target quantiles,).
        scale: multiplies the gradient.
        delta: (quantiles,); filled with the gradient.

    Returns:
        The sum, not scaled.
    """
    quantiles, total, factor = current.shape[0], np.float64(0.0), _f(scale)
    for i in range(quantiles):
        level, slope, loss = _f((i + 0.5) / quantiles), _ZERO, _ZERO
        for j in range(targets.shape[0]):
            error = targets[j] - current[i]
            size = abs(error)
            weight = abs(level - (_ONE if error < _ZERO else _ZERO))
            small = size <= _ONE
            loss += weight * (_HALF * error * error if small else size - _HALF)
            slope -= weight * (error if small else (_ONE if error > _ZERO else -_ONE))
        delta[i] = slope * factor
        total += loss
    return total


# --- Critics ---------------------------------------------------------------------------------------------------------


class Critics(NamedTuple):
    """The critics of SAC, TQC or TD3, which value observations and actions together; all of the same shape."""

    tables: Array  # (critics, layers, 4) int64; see `Net`
    hidden: int  # activation of the hidden layers


@inner_kernel
def critic(critics: Critics, k: int) -> Net:
    """Return the k-th critic."""
    return Net(critics.tables[k], critics.hidden, LINEAR)


@inner_kernel
def joined(observations: FloatArray, actions: FloatArray) -> FloatArray:
    """Return the critics' inputs, (rows, inputs + n)."""
    rows, columns, more = observations.shape[0], observations.shape[1], actions.shape[1]
    made = np.empty((rows, columns + more), np.float32)
    for i in range(rows):
        for j in range(columns):
            made[i, j] = observations[i, j]
        for j in range(more):
            made[i, columns + j] = actions[i, j]
    return made


@inner_kernel
def put(source: FloatArray, target: FloatArray) -> None:
    """Copy (rows, n) numbers."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@inner_kernel
def works(critics: Critics, rows: int) -> FloatArray:
    """Return a workspace for each critic, (critics, n)."""
    return np.empty((critics.tables.shape[0], rows * outputs_size(critic(critics, 0))), np.float32)


@inner_kernel
def values_of(net: Net, inputs: FloatArray, work: FloatArray, found: FloatArray) -> None:
    """Run one critic; found: (rows, outputs), filled."""
    put(forward(net, plain(inputs), work), found)


@inner_kernel
def values(critics: Critics, inputs: FloatArray, work: FloatArray) -> FloatArray:
    """Run all critics.

    Args:
        inputs: (rows, inputs + n).
        work: of `works`.

    Returns:
        (critics, rows, outputs).
    """
    count, outputs = critics.tables.shape[0], critics.tables[0, critics.tables.shape[1] - 1, 1]
    found = np.empty((count, inputs.shape[0], outputs), np.float32)
    for k in range(count):
        values_of(critic(critics, k), inputs, work[k], found[k])
    return found


@inner_kernel
def learn_critic(
    critics: Critics, k: int, inputs: FloatArray, work: FloatArray, slopes: FloatArray, optimizer: Optimizer
) -> None:
    """Take a step of the optimizer, which is not counted, for the k-th critic alone.

    Args:
        work: (n,), filled by `values_of`.
        slopes: (rows, outputs) gradients of the values.
        optimizer: its parameters are those of all critics.
    """
    net, deltas = critic(critics, k), np.empty_like(work)
    size = parameters_size(net)
    grad = np.empty(critics.tables.shape[0] * size, np.float32)
    put(slopes, last_layer(net, deltas, inputs.shape[0]))
    begin, end = k * size, (k + 1) * size
    backward(net, plain(inputs), work, deltas, grad[begin:end], np.empty((0, 0), np.float32))
    step_between(optimizer, grad, 1.0, begin, end, 1)


@inner_kernel
def action_gradients(
    critics: Critics, inputs: FloatArray, work: FloatArray, slopes: FloatArray, actions: int
) -> FloatArray:
    """Return the gradients of the last `actions` inputs, (rows, actions), summed over critics.

    A row goes back through those critics alone whose values have a gradient: where the lowest value counts, one.

    Args:
        work: filled by `values`.
        slopes: (n, rows, outputs) gradients of the values of the first n critics.
    """
    rows, columns = inputs.shape
    found = np.zeros((rows, actions), np.float32)
    for k in range(slopes.shape[0]):
        picked = _sloping(slopes[k])
        if picked.shape[0] == 0:
            continue
        below = _input_gradients(critic(critics, k), work[k], slopes[k], picked, columns)
        for i in range(picked.shape[0]):
            for j in range(actions):
                found[picked[i], j] += below[i, columns - actions + j]
    return found


@inner_kernel
def _sloping(slopes: FloatArray) -> Array:
    """Return the rows with a gradient that is not 0, NaN included."""
    picked, count = np.empty(slopes.shape[0], np.int64), 0
    for i in range(slopes.shape[0]):
        for j in range(slopes.shape[1]):
            if slopes[i, j] != _ZERO:
                picked[count] = i
                count += 1
                break
    return picked[:count]


@inner_kernel
def _input_gradients(net: Net, work: FloatArray, slopes: FloatArray, picked: Array, columns: int) -> FloatArray:
    """Return the gradients of a net's inputs, (n, columns), for n picked rows of (rows, outputs) `slopes`.

    Args:
        work: of all rows, filled by `forward`.
        picked: (n,) numbers of rows.
    """
    rows, count, layers = slopes.shape[0], picked.shape[0], net.table.shape[0]
    delta, offset = np.empty((count, slopes.shape[1]), np.float32), rows * outputs_size(net)
    for i in range(count):
        for j in range(slopes.shape[1]):
            delta[i, j] = slopes[picked[i], j]
    for layer in range(layers - 1, -1, -1):
        n_in, n_out, weight, _ = net.table[layer]
        offset -= rows * n_out
        _slope_of(delta, matrix(work, offset, rows, n_out), picked, net.hidden if layer < layers - 1 else net.last)
        below = np.empty((count, n_in), np.float32)
        np.dot(delta, matrix_at(weight, n_out, n_in), below)
        delta = below
    return delta


@inner_kernel
def _slope_of(delta: FloatArray, given: FloatArray, picked: Array, kind: int) -> None:
    """Multiply (n, outputs) gradients by the slopes of an activation at n picked rows of `given`, its outputs."""
    for i in range(delta.shape[0]):
        row, value = delta[i], given[picked[i]]
        if kind == TANH:
            for j in range(row.shape[0]):
                row[j] *= _ONE - value[j] * value[j]
        elif kind == RELU:
            for j in range(row.shape[0]):
                row[j] = _ZERO if value[j] <= _ZERO else row[j]


@inner_kernel
def lowest(found: FloatArray) -> tuple[FloatArray, Array]:
    """Return the lowest value of all critics, (rows,), and which critic's it is; found: (critics, rows, 1)."""
    count, rows = found.shape[0], found.shape[1]
    least, whose = np.empty(rows, np.float32), np.zeros(rows, np.int64)
    for i in range(rows):
        least[i] = found[0, i, 0]
        for k in range(1, count):
            if found[k, i, 0] < least[i]:
                least[i], whose[i] = found[k, i, 0], k
    return least, whose


@inner_kernel
def squared_errors(found: FloatArray, targets: FloatArray, scale: float, slopes: FloatArray) -> _Scalar:
    """Return a critic's mean squared error; `slopes` is filled with `scale` times its gradients.

    Args:
        found: (rows, 1).
        targets: (rows, 1).
        slopes: (rows, 1).
    """
    rows = found.shape[0]
    total, factor = np.float64(0.0), np.float32(2.0 * scale / rows)
    for i in range(rows):
        error = found[i, 0] - targets[i, 0]
        total += error * error
        slopes[i, 0] = factor * error
    return total / rows


# --- Updates that several threads share -------------------------------------------------------------------------------


class Memory(NamedTuple):
    """What the threads of an update share; how it is divided depends on the minibatch alone, never on the threads.

    Actors work on chunks of rows, which come one after the other; critics on all rows, each by itself.
    """

    counters: Array  # of `threads.counters`, new for each update
    chunks: int
    work: FloatArray  # (critics, n); see `works`
    found: FloatArray  # (critics, rows, outputs) of the actions in the minibatch
    following: FloatArray  # (critics, rows, outputs) of the next actions, by the targets
    targets: FloatArray  # (rows, n); what the critics learn
    next_actions: FloatArray  # (rows, actions)
    actor_grads: FloatArray  # (chunks, parameters of the actor)
    notes: Array  # (2, tasks) float64; the critics' losses, and what the chunks' actions are worth, summed over rows


def memory(chunks: int, rows: int, actions: int, critics: Critics, targets: int, parameters: int) -> Memory:
    """Return memory for updates.

    Args:
        chunks: of rows.
        rows: of a minibatch.
        actions: numbers in an action.
        targets: numbers that each row of a critic learns from.
        parameters: of the actor.
    """
    count, outputs = len(critics.tables), int(critics.tables[0, -1, 1])
    tasks, hidden = max(2 * chunks, count), int(critics.tables[0, :, 1].sum())
    numbers: Any = partial(np.zeros, dtype=np.float32)
    return Memory(
        counters(tasks),
        chunks,
        numbers((count, rows * hidden)),
        numbers((count, rows, outputs)),
        numbers((count, rows, outputs)),
        numbers((rows, targets)),
        numbers((rows, actions)),
        numbers((chunks, parameters)),
        np.zeros((2, tasks)),
    )


@inner_kernel
def evaluate(
    critics: Critics, targets: Critics, batch: Batch, next_actions: FloatArray, memory: Memory, k: int
) -> None:
    """Run one critic and its target, which values the next actions."""
    inputs = joined(batch.next_observations, next_actions)
    values_of(critic(targets, k), inputs, np.empty_like(memory.work[k]), memory.following[k])
    values_of(critic(critics, k), joined(batch.observations, batch.actions), memory.work[k], memory.found[k])


@inner_kernel
def learn_actor(memory: Memory, task: int, optimizer: Optimizer) -> None:
    """Take a step of the actor's optimizer, which is not counted, for a task's share of the parameters.

    The gradients of the chunks are added up in their order.
    """
    tasks, size = memory.notes.shape[1], memory.actor_grads.shape[1]
    begin, end = share(size, task, tasks)
    total = memory.actor_grads[0]
    for chunk in range(1, memory.chunks):
        more = memory.actor_grads[chunk]
        for i in range(begin, end):
            total[i] += more[i]
    step_between(optimizer, total, 1.0, begin, end, 1)


@inner_kernel
def move_share(moved: Array, tau: float, task: int, tasks: int) -> None:
    """Move a task's share of the targets; see `move_towards`."""
    for i in range(task, moved.shape[0], tasks):
        move_towards(moved[i : i + 1], tau)
