"""A whole update of PPO, MaskablePPO or A2C for plain MLPs, as a float32 kernel compiled by numba.

With minibatches of a hundred rows PyTorch spends its time on dispatch: dozens of small operations each. Here a whole
update is one call. Matrix products are BLAS's; everything else is loops that LLVM vectorises.

Several threads may make the call for one update, see `threads`. Their number changes no result: a minibatch is always
divided into the same tasks, each with memory of its own, and sums run over tasks in their order.

Formulas: Schulman et al. 2017 (https://arxiv.org/abs/1707.06347), eq. 7 and 9, as in SB3's `ppo.py`; of A2C, the policy
gradient, as in SB3's `a2c.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel, strict_kernel
from marl_sb3.extensions.fast.kernels.distributions import (
    categorical_deltas,
    categorical_log_probs,
    forbid,
    gaussian_delta,
    gaussian_log_prob,
    softmax_of_columns,
    turned,
)
from marl_sb3.extensions.fast.kernels.layers import LINEAR, TANH, clear, exp, vector_at
from marl_sb3.extensions.fast.kernels.mlp import (
    Inputs,
    Net,
    backward,
    forward,
    last_layer,
    outputs_size,
    parameters_size,
    plain,
)
from marl_sb3.extensions.fast.kernels.optimizers import (
    ADAM,
    Optimizer,
    clipping,
    count_steps,
    step_between,
    sum_of_squares,
)
from marl_sb3.extensions.fast.kernels.threads import counters, next_task, share
from marl_sb3.types import Array, FloatArray

# What the nets of a task are; with layers in common, actor and critic cannot be apart.
BOTH, ACTOR, CRITIC = range(3)

_GRADIENTS, _SUMS, _STEPS = range(3)  # the phases of a minibatch

# The columns of the statistics of a minibatch.
POLICY_LOSS, VALUE_LOSS, ENTROPY_LOSS, APPROX_KL, CLIP_FRACTION, GRAD_NORM, LOSS, UNCLIPPED_VALUE_LOSS = range(8)
NUM_STATS = 8

_f = np.float32
_ZERO, _ONE, _TWO = _f(0.0), _f(1.0), _f(2.0)
_ADV_EPS = _f(1e-8)


class Nets(NamedTuple):
    """Actor and critic."""

    trunk: Net  # layers that both have in common, before their own; an empty table: they have none
    pi: Net
    vf: Net
    log_std: int  # address of a Gaussian's log standard deviations
    gaussian: bool  # whether actions are real numbers
    sizes: Array  # (sub-distributions,) int64; number of categories of each; empty for a Gaussian


class Settings(NamedTuple):
    """Hyperparameters of an update, as in SB3."""

    normalize_advantage: bool
    clipped: bool  # whether the loss is PPO's clipped surrogate; if not, it is A2C's policy gradient
    clip_range: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    clip_range_vf: float  # infinite: values are not clipped
    kl_limit: float  # the update ends in a minibatch whose approximate KL is above it; SB3's is 1.5 * target_kl


class Samples(NamedTuple):
    """A rollout of N samples. Arrays that are not used have no columns."""

    inputs: Inputs  # see `Inputs`
    int_actions: Array  # (N, sub-distributions) int64
    float_actions: FloatArray  # (N, action size) float32
    allowed: FloatArray  # (N, sum of sizes) float32; action masks, 1 where an action was allowed, 0 where it was not
    log_probs: FloatArray  # (N,) float32, of the actions when they were taken
    advantages: FloatArray  # (N,) float32
    returns: FloatArray  # (N,) float32
    values: FloatArray  # (N,) float32, of the critic when the actions were taken; (0,) if they are not clipped


class Memory(NamedTuple):
    """Workspace of an update for its largest minibatch, which its threads share; see `memory`."""

    chunks: int  # at most; parts of the rows of a minibatch
    least_rows: int  # of a chunk, where there are several
    batch: Samples  # rows of the minibatch, for the actor, then for the critic
    trunk: tuple[FloatArray, FloatArray]  # activations of the common layers, and their gradients, see `mlp`
    pi: tuple[FloatArray, FloatArray]
    vf: tuple[FloatArray, FloatArray]
    grads: FloatArray  # (chunks, parameters) float32
    # (minibatches, tasks, NUM_STATS) float64; each task's share in the statistics of a minibatch; GRAD_NORM squared
    notes: Array
    counters: Array  # see `threads`


def memory(
    nets: Nets, samples: Samples, parameters: int, minibatches: int, rows: int, chunks: int, least_rows: int
) -> Memory:
    """Return memory for an update.

    Args:
        samples: the rollout.
        parameters: number of their values.
        minibatches: in all epochs.
        rows: of the largest minibatch.
        chunks: see `Memory`; they decide how results are rounded.
        least_rows: see `Memory`.
    """
    parts = 1 if len(nets.trunk.table) else 2
    empty = [np.empty((parts * rows, *array.shape[1:]), array.dtype) for array in (*samples.inputs, *samples[1:])]
    sizes = [rows * int(net.table[:, 1].sum()) for net in nets[:3]]
    trunk, pi, vf = [(np.empty(size, np.float32), np.empty(size, np.float32)) for size in sizes]
    return Memory(
        chunks,
        least_rows,
        Samples(Inputs(*empty[:2]), *empty[2:]),
        trunk,
        pi,
        vf,
        np.zeros((chunks, parameters), np.float32),
        np.zeros((minibatches, parts * chunks, NUM_STATS)),
        counters(parts * chunks),
    )


@inner_kernel
def gather(samples: Samples, order: Array, part: int, batch: Samples) -> None:
    """Copy samples into the arrays of `batch`, without the advantages: those that the nets of a task need."""
    _gather_rows(samples.inputs.indices, order, batch.inputs.indices)
    _gather_rows(samples.inputs.floats, order, batch.inputs.floats)
    if part != CRITIC:
        _gather_rows(samples.int_actions, order, batch.int_actions)
        _gather_rows(samples.float_actions, order, batch.float_actions)
        _gather_rows(samples.allowed, order, batch.allowed)
        _gather_numbers(samples.log_probs, order, batch.log_probs)
    if part != ACTOR:
        _gather_numbers(samples.returns, order, batch.returns)
        if samples.values.shape[0] > 0:
            _gather_numbers(samples.values, order, batch.values)


@inner_kernel
def _gather_rows(source: Array, order: Array, target: Array) -> None:
    columns = source.shape[1]
    if columns == 0:
        return
    for i in range(order.shape[0]):
        row = order[i]
        for j in range(columns):
            target[i, j] = source[row, j]


@inner_kernel
def _gather_numbers(source: FloatArray, order: Array, target: FloatArray) -> None:
    for i in range(order.shape[0]):
        target[i] = source[order[i]]


@inner_kernel
def gather_advantages(source: FloatArray, order: Array, begin: int, normalise: bool, target: FloatArray) -> None:
    """Copy a chunk's advantages, normalised over the minibatch: (advantages - mean) / (std + 1e-8), as torch does.

    Args:
        source: (N,); those of the rollout.
        order: the samples of the minibatch.
        begin: the first one of the chunk.
        normalise: whether to do so; the std is the unbiased one.
        target: (rows of the chunk,); filled.
    """
    n, rows = order.shape[0], target.shape[0]
    if not (normalise and n > 1):
        _gather_numbers(source, order[begin : begin + rows], target)
        return
    advantages = np.empty(n, np.float32)
    _gather_numbers(source, order, advantages)
    mean = np.float64(0.0)
    for i in range(n):
        mean += advantages[i]
    mean /= n
    variance = np.float64(0.0)
    for i in range(n):
        difference = advantages[i] - mean
        variance += difference * difference
    scale = _ONE / (_f(math.sqrt(variance / (n - 1))) + _ADV_EPS)
    for i in range(rows):
        target[i] = (advantages[begin + i] - _f(mean)) * scale


@inner_kernel
def policy_losses(
    nets: Nets,
    batch: Samples,
    rows: int,
    pi_out: FloatArray,
    log_std: FloatArray,
    settings: Settings,
    pi_delta: FloatArray,
    log_std_grad: FloatArray,
    notes: Array,
) -> None:
    """Compute a chunk's share in the actor's parts of the loss, into `notes`, and its gradients of the outputs."""
    inverse_rows = _ONE / _f(rows)
    by_entropy = -_f(settings.ent_coef) * inverse_rows
    size, sizes, entropy = pi_out.shape[0], nets.sizes, 0.0
    log_probs, by_log_prob = np.empty(size, np.float32), np.empty(size, np.float32)
    clear(log_std_grad)
    if nets.gaussian:
        for i in range(size):
            log_probs[i] = gaussian_log_prob(pi_out, log_std, batch.float_actions, i)
        _surrogate(batch, rows, log_probs, settings, by_log_prob, notes)
        for i in range(size):
            entropy += gaussian_delta(
                pi_out, log_std, batch.float_actions, i, by_log_prob[i], by_entropy, pi_delta, log_std_grad
            )
    else:
        logits = np.empty((pi_out.shape[1], size), np.float32)
        deltas = np.empty_like(logits)
        forbid(pi_out, batch.allowed)
        turned(pi_out, logits)
        softmax_of_columns(logits, deltas, sizes)
        categorical_log_probs(logits, sizes, batch.int_actions, log_probs)
        _surrogate(batch, rows, log_probs, settings, by_log_prob, notes)
        entropy = categorical_deltas(logits, sizes, batch.int_actions, by_log_prob, by_entropy, deltas)
        turned(deltas, pi_delta)
    notes[ENTROPY_LOSS] = -entropy / rows


@inner_kernel
def _surrogate(
    batch: Samples, rows: int, log_probs: FloatArray, settings: Settings, by_log_prob: FloatArray, notes: Array
) -> None:
    """Compute a chunk's share in the policy loss, into `notes`, and its gradients of the log-probabilities."""
    low, high, clip = _ONE - _f(settings.clip_range), _ONE + _f(settings.clip_range), _f(settings.clip_range)
    inverse_rows = _ONE / _f(rows)
    policy_loss = kl = clipped = np.float64(0.0)
    before, advantages = batch.log_probs, batch.advantages
    if settings.clipped:
        for i in range(log_probs.shape[0]):
            log_ratio = log_probs[i] - before[i]
            ratio = exp(log_ratio)
            bounded = low if ratio < low else (high if ratio > high else ratio)
            plain, bound = advantages[i] * ratio, advantages[i] * bounded
            # As torch differentiates min(plain, bound): the gradient is 0 where the bound is the smaller one.
            holds = bound < plain
            by_log_prob[i] = _ZERO if holds else -plain * inverse_rows
            policy_loss -= bound if holds else plain
            kl += (ratio - _ONE) - log_ratio
            clipped += _ONE if abs(ratio - _ONE) > clip else _ZERO
    else:
        for i in range(log_probs.shape[0]):
            by_log_prob[i] = -advantages[i] * inverse_rows
            policy_loss -= advantages[i] * log_probs[i]
    notes[POLICY_LOSS] = policy_loss / rows
    notes[APPROX_KL] = kl / rows
    notes[CLIP_FRACTION] = clipped / rows


@inner_kernel
def value_losses(
    batch: Samples, rows: int, vf_out: FloatArray, settings: Settings, vf_delta: FloatArray, notes: Array
) -> None:
    """Compute a chunk's share in the value loss, into `notes`, and its gradients of the critic's outputs."""
    by_value = _TWO * _f(settings.vf_coef) * (_ONE / _f(rows))
    value_loss, returns = np.float64(0.0), batch.returns
    for i in range(vf_out.shape[0]):
        error = vf_out[i, 0] - returns[i]
        value_loss += error * error
        vf_delta[i, 0] = by_value * error
    notes[UNCLIPPED_VALUE_LOSS] = notes[VALUE_LOSS] = value_loss / rows
    if settings.clip_range_vf < np.inf:
        notes[VALUE_LOSS] = _clipped_value_loss(batch, vf_out, _f(settings.clip_range_vf), by_value, vf_delta) / rows


# Each operation is rounded: else LLVM may take out `before` where values are not clipped, in a loop over single rows
# and not in one over several, and which of the two runs depends on where the arrays happen to be.
@strict_kernel
def _clipped_value_loss(batch: Samples, vf_out: FloatArray, clip: Any, by_value: Any, vf_delta: FloatArray) -> float:
    """Return the sum of squared errors of clipped values, with their gradients; that of a clipped one is 0, as torch's.

    Args:
        clip: `clip_range_vf`.
        by_value: the factor of an error in its gradient.
    """
    loss, before, returns = np.float64(0.0), batch.values, batch.returns
    for i in range(vf_out.shape[0]):
        change = vf_out[i, 0] - before[i]
        error = before[i] + max(-clip, min(clip, change)) - returns[i]
        loss += error * error
        vf_delta[i, 0] = by_value * error if abs(change) <= clip else _ZERO
    return loss


@inner_kernel
def gradients(
    nets: Nets,
    part: int,
    batch: Samples,
    rows: int,
    settings: Settings,
    trunk_space: tuple[FloatArray, FloatArray],
    pi_space: tuple[FloatArray, FloatArray],
    vf_space: tuple[FloatArray, FloatArray],
    grad: FloatArray,
    notes: Array,
) -> None:
    """Compute the share of a chunk in the gradients of the loss of a minibatch.

    Args:
        part: BOTH, or of nets without common layers, ACTOR or CRITIC.
        batch: the chunk.
        rows: of the minibatch.
        trunk_space: two arrays for the activations of the common layers and their gradients, see `mlp`.
        pi_space: the same for the actor.
        vf_space: the same for the critic.
        grad: (parameters,); filled with the gradients for the actor, the critic, the common layers and `log_std`, in
            the places of the part.
        notes: (NUM_STATS,) float64; filled in the places of the part.
    """
    seen, size, shares = batch.inputs, batch.inputs.floats.shape[0], nets.trunk.table.shape[0] > 0
    inputs = plain(forward(nets.trunk, seen, trunk_space[0])) if shares else seen
    begin_vf = parameters_size(nets.pi)
    begin_trunk = begin_vf + parameters_size(nets.vf)
    begin_log_std = begin_trunk + parameters_size(nets.trunk)
    none = np.empty((0, 0), np.float32)
    below = last_layer(nets.trunk, trunk_space[1], size) if shares else none
    if part != CRITIC:
        work, deltas = pi_space
        pi_out, pi_delta = forward(nets.pi, inputs, work), last_layer(nets.pi, deltas, size)
        of_log_std = grad[begin_log_std:]
        log_std = vector_at(nets.log_std, of_log_std.shape[0])
        policy_losses(nets, batch, rows, pi_out, log_std, settings, pi_delta, of_log_std, notes)
        backward(nets.pi, inputs, work, deltas, grad[:begin_vf], below)
    if part != ACTOR:
        work, deltas = vf_space
        vf_out, vf_delta = forward(nets.vf, inputs, work), last_layer(nets.vf, deltas, size)
        value_losses(batch, rows, vf_out, settings, vf_delta, notes)
        more = np.empty_like(below)
        backward(nets.vf, inputs, work, deltas, grad[begin_vf:begin_trunk], more)
        if shares:
            below += more
            backward(nets.trunk, seen, trunk_space[0], trunk_space[1], grad[begin_trunk:begin_log_std], none)


# --- Tasks -----------------------------------------------------------------------------------------------------------


@inner_kernel
def _parts(nets: Nets) -> int:
    """Return into how many parts the nets are divided among tasks."""
    return 1 if nets.trunk.table.shape[0] > 0 else 2


@inner_kernel
def _begin_log_std(nets: Nets) -> int:
    return parameters_size(nets.pi) + parameters_size(nets.vf) + parameters_size(nets.trunk)


@inner_kernel
def _of_net(space: tuple[FloatArray, FloatArray], net: Net, begin: int, end: int) -> tuple[FloatArray, FloatArray]:
    """Return the memory of some rows."""
    size = outputs_size(net)
    return space[0][begin * size : end * size], space[1][begin * size : end * size]


@inner_kernel
def _chunk_gradients(
    nets: Nets, samples: Samples, memory: Memory, order: Array, settings: Settings, task: int, chunks: int, notes: Array
) -> None:
    """Run `gradients` for a task, if there are that many chunks."""
    part, chunk = task // memory.chunks + (_parts(nets) - 1), task % memory.chunks
    if chunk >= chunks:
        return
    rows, batch = order.shape[0], memory.batch
    begin, end = share(rows, chunk, chunks)
    first = (batch.returns.shape[0] // 2 if part == CRITIC else 0) + begin
    last = first + end - begin
    own = Samples(
        Inputs(batch.inputs.indices[first:last], batch.inputs.floats[first:last]),
        batch.int_actions[first:last],
        batch.float_actions[first:last],
        batch.allowed[first:last],
        batch.log_probs[first:last],
        batch.advantages[first:last],
        batch.returns[first:last],
        batch.values[first:last],
    )
    gather(samples, order[begin:end], part, own)
    if part != CRITIC:
        gather_advantages(samples.advantages, order, begin, settings.normalize_advantage, own.advantages)
    trunk, pi = _of_net(memory.trunk, nets.trunk, begin, end), _of_net(memory.pi, nets.pi, begin, end)
    vf = _of_net(memory.vf, nets.vf, begin, end)
    gradients(nets, part, own, rows, settings, trunk, pi, vf, memory.grads[chunk], notes)


@inner_kernel
def _parameters_of(nets: Nets, task: int, chunks: int) -> tuple[int, int]:
    """Return where the parameters begin and end that a task steps; `log_std` comes in addition for the first task."""
    middle, end = parameters_size(nets.pi), _begin_log_std(nets)
    if _parts(nets) == 1 or task < chunks:
        return share(end if _parts(nets) == 1 else middle, task, chunks)
    begin, end = share(end - middle, task - chunks, chunks)
    return middle + begin, middle + end


@inner_kernel
def _add_chunks(grads: FloatArray, chunks: int, begin: int, end: int) -> float:
    """Add up the chunks' gradients, in order, for some parameters; returns the sum of their squares."""
    total = grads[0, begin:end]
    for chunk in range(1, chunks):
        more = grads[chunk, begin:end]
        for i in range(end - begin):
            total[i] += more[i]
    return sum_of_squares(total)


@inner_kernel
def combine(notes: Array, settings: Settings, stats: Array) -> None:
    """Compute the statistics of a minibatch from those of its tasks."""
    for column in range(NUM_STATS):
        stats[column] = 0.0
        for task in range(notes.shape[0]):
            stats[column] += notes[task, column]
    stats[GRAD_NORM] = math.sqrt(stats[GRAD_NORM])
    stats[LOSS] = stats[POLICY_LOSS] + settings.ent_coef * stats[ENTROPY_LOSS] + settings.vf_coef * stats[VALUE_LOSS]


@inner_kernel
def ends(stats: Array, settings: Settings) -> bool:
    """Return whether an update ends in a minibatch with these statistics, before the step of the optimizer."""
    finite = np.isfinite(stats[GRAD_NORM]) and np.isfinite(stats[LOSS])
    return not finite or stats[APPROX_KL] > settings.kl_limit


@kernel
def train(
    nets: Nets,
    optimizer: Optimizer,
    samples: Samples,
    memory: Memory,
    orders: Array,
    bounds: Array,
    settings: Settings,
    stats: Array,
    thread: int,
    threads: int,
) -> int:
    """One update, in place; several threads may call this for the same update.

    A minibatch has three phases: gradients of nets and chunks of rows; sums over chunks; steps of the optimizer.

    Args:
        optimizer: its parameters are the actor's, the critic's, those of the common layers and `log_std`.
        samples: the rollout.
        memory: of all threads.
        orders: (epochs, N) int64; the order of samples in each epoch.
        bounds: (minibatches + 1,) int64; where in the order of an epoch each minibatch begins, and N.
        stats: (epochs * minibatches, NUM_STATS) float64; filled. Each thread has its own.
        thread: which of the threads this one is, from 0. It prefers the tasks whose memory is in its cache.
        threads: number of threads.

    Returns:
        The number of minibatches done. The update stops before the step of the optimizer in the first one with a loss
        or gradient that is not finite, or a KL above its limit.
    """
    tasks, begin_log_std, size = _parts(nets) * memory.chunks, _begin_log_std(nets), memory.grads.shape[1]
    first, phase, done, goes_on, scale = thread * tasks // threads, 0, 0, True, 1.0
    grad = memory.grads[0]
    while goes_on and done < stats.shape[0]:
        epoch, k = done // (bounds.shape[0] - 1), done % (bounds.shape[0] - 1)
        order, notes = orders[epoch, bounds[k] : bounds[k + 1]], memory.notes[done]
        chunks = max(1, min(memory.chunks, order.shape[0] // memory.least_rows))
        for kind in (_GRADIENTS, _SUMS, _STEPS):
            phase += 1
            task = next_task(memory.counters, tasks, phase, first, -1)
            while task >= 0:
                begin, end = _parameters_of(nets, task, memory.chunks)
                if kind == _GRADIENTS:
                    _chunk_gradients(nets, samples, memory, order, settings, task, chunks, notes[task])
                elif kind == _SUMS:
                    notes[task, GRAD_NORM] = _add_chunks(memory.grads, chunks, begin, end)
                    if task == 0:
                        notes[task, GRAD_NORM] += _add_chunks(memory.grads, chunks, begin_log_std, size)
                else:
                    step_between(optimizer, grad, scale, begin, end, done)
                    if task == 0:
                        step_between(optimizer, grad, scale, begin_log_std, size, done)
                task = next_task(memory.counters, tasks, phase, first, task)
            if kind == _SUMS:
                combine(notes, settings, stats[done])
                goes_on = not ends(stats[done], settings)
                scale = clipping(stats[done, GRAD_NORM], settings.max_grad_norm)
                done += 1
                if not goes_on:
                    break
    if thread == 0:
        count_steps(optimizer, done if goes_on else done - 1)
    return done


def warm_up() -> None:
    """Call `train`, so that it is compiled: all policies use the same types of arguments."""
    numbers = np.zeros((5, 4), np.float32)
    layer = np.array([[1, 1, numbers[0].ctypes.data, numbers[1].ctypes.data]])
    net = Net(layer, TANH, LINEAR)
    nets = Nets(Net(layer[:0], TANH, TANH), net, net, 0, False, np.ones(1, np.int64))
    addresses = [row.ctypes.data for row in numbers[1:]]
    index, none, one = np.zeros((1, 1), np.int64), np.empty((1, 0), np.float32), np.zeros(1, np.float32)
    samples = Samples(Inputs(index, none), index, none, none, one, one, one, one[:0])
    optimizer = Optimizer(np.array([[4, *addresses]]), ADAM, 1e-3, 0.9, 0.999, 1e-5)
    settings = Settings(True, True, 0.2, 0.0, 0.5, 0.5, np.inf, np.inf)
    stats = np.zeros((1, NUM_STATS))
    train(nets, optimizer, samples, memory(nets, samples, 4, 1, 1, 1, 1), index, np.arange(2), settings, stats, 0, 1)
