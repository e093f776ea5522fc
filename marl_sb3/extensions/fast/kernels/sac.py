"""A gradient step of SAC (Haarnoja et al. 2018) and of TQC (Kuznetsov et al. 2020), as in SB3, and their actions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel, strict_kernel
from marl_sb3.extensions.fast.kernels.layers import vector_at
from marl_sb3.extensions.fast.kernels.mlp import (
    Net,
    backward,
    forward,
    last_layer,
    outputs_size,
    parameters_size,
    plain,
)
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer, count_steps, take_step
from marl_sb3.extensions.fast.kernels.replay import (
    Batch,
    Critics,
    Memory,
    action_gradients,
    evaluate,
    joined,
    learn_actor,
    learn_critic,
    lowest,
    move_share,
    quantile_loss,
    squared_errors,
    values,
    works,
)
from marl_sb3.extensions.fast.kernels.threads import next_task, share
from marl_sb3.types import Array, FloatArray

_Scalar = Any  # a float, once compiled

# What `update` returns.
ENT_COEF, ENT_COEF_LOSS, ACTOR_LOSS, CRITIC_LOSS, NUM_STATS = range(5)

_f = np.float32
_ZERO, _HALF, _ONE, _TWO = _f(0.0), _f(0.5), _f(1.0), _f(2.0)
_HALF_LOG_TWO_PI = _f(0.5 * math.log(2.0 * math.pi))
_LOG_STD_MIN, _LOG_STD_MAX = _f(-20.0), _f(2.0)
_SQUASH_EPS = _f(1e-6)

# --- Actors: Gaussians squashed by tanh ------------------------------------------------------------------------------


class ActorNet(NamedTuple):
    """A squashed Gaussian actor: a net, and two linear layers on its outputs."""

    latent: Net  # the net
    mean: Net  # (1, 4) int64; the layer of the means, as a table of `Net`
    log_std: Net  # (1, 4) int64; the layer of the log standard deviations


class Sampled(NamedTuple):
    """Actions of an actor, and what their gradients need; (rows, n) float32 unless said otherwise."""

    work: FloatArray  # (rows, outputs) of all layers of the latent net, flat; of a chunk of rows, chunk by chunk
    mean: FloatArray
    log_std: FloatArray  # before it is limited
    std: FloatArray  # standard deviations
    gaussian: FloatArray  # the actions before they are squashed
    actions: FloatArray  # squashed, from -1 to 1
    scaled: FloatArray  # (gaussian - mean) / std
    log_probs: FloatArray  # (rows,), of the actions


def sampled(rows: int, size: int, outputs: int) -> Sampled:
    """Return memory for actions of `size` numbers, of an actor whose latent net has so many `outputs` in all layers."""
    a, b, c, d, e, f = np.zeros((6, rows, size), np.float32)
    return Sampled(np.zeros(rows * outputs, np.float32), a, b, c, d, e, f, np.zeros(rows, np.float32))


@inner_kernel
def _between(given: Sampled, begin: int, end: int) -> Sampled:
    """Return some rows; views."""
    outputs = given.work.shape[0] // max(given.mean.shape[0], 1)
    return Sampled(
        given.work[begin * outputs : end * outputs],
        given.mean[begin:end],
        given.log_std[begin:end],
        given.std[begin:end],
        given.gaussian[begin:end],
        given.actions[begin:end],
        given.scaled[begin:end],
        given.log_probs[begin:end],
    )


@strict_kernel
def _squashing_slope(action: _Scalar) -> tuple[_Scalar, _Scalar]:
    """Return the slope of tanh where it is `action`, and the slope plus the 1e-6 whose logarithm SB3 takes.

    Near 1 and -1 the slope consists of rounding errors, which therefore have to be PyTorch's.
    """
    square = action * action
    slope = _ONE - square
    return slope, slope + _SQUASH_EPS


@inner_kernel
def sample(actor: ActorNet, observations: FloatArray, noise: FloatArray, made: Sampled) -> None:
    """Draw actions for (rows, inputs) observations, by (rows, n) standard normal noise; `made` is filled."""
    rows, size = noise.shape
    latent = forward(actor.latent, plain(observations), made.work)
    forward(actor.mean, plain(latent), made.mean.reshape(rows * size))
    forward(actor.log_std, plain(latent), made.log_std.reshape(rows * size))
    mean, std, gaussian = made.mean, made.std, made.gaussian
    for i in range(rows):
        total = _ZERO
        for j in range(size):
            limited = min(max(made.log_std[i, j], _LOG_STD_MIN), _LOG_STD_MAX)
            std[i, j] = np.exp(limited)
            gaussian[i, j] = mean[i, j] + std[i, j] * noise[i, j]
            action = _f(math.tanh(float(gaussian[i, j])))
            # From the rounded action, as in PyTorch: added to a large mean, noise loses digits.
            z = (gaussian[i, j] - mean[i, j]) / std[i, j]
            _, kept = _squashing_slope(action)
            total -= _HALF * z * z + limited + _HALF_LOG_TWO_PI + np.log(kept)
            made.scaled[i, j], made.actions[i, j] = z, action
        made.log_probs[i] = total


@kernel
def sampled_actions(actor: ActorNet, observations: FloatArray, noise: FloatArray) -> FloatArray:
    """(rows, n) actions from -1 to 1, for (rows, inputs) float32 observations and (rows, n) standard normal noise."""
    rows, size = noise.shape
    work = np.empty(rows * outputs_size(actor.latent), np.float32)
    parts, log_probs = np.empty((6, rows, size), np.float32), np.empty(rows, np.float32)
    made = Sampled(work, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], log_probs)
    sample(actor, observations, noise, made)
    return made.actions


@inner_kernel
def actor_gradients(
    actor: ActorNet,
    observations: FloatArray,
    sampled: Sampled,
    noise: FloatArray,
    by_action: FloatArray,
    by_log_prob: _Scalar,
    grad: FloatArray,
) -> None:
    """Compute the gradients of the actor's parameters, in the order of its layers.

    Args:
        by_action: (rows, n) gradients of the actions through the critics.
        by_log_prob: the gradient of each log-probability.
        grad: (parameters,); filled.
    """
    rows, size = noise.shape
    by_mean, by_log_std = np.empty(rows * size, np.float32), np.empty(rows * size, np.float32)
    for i in range(rows):
        for j in range(size):
            action, z, std = sampled.actions[i, j], sampled.scaled[i, j], sampled.std[i, j]
            slope, kept = _squashing_slope(action)
            through = by_action[i, j] * slope + by_log_prob * _TWO * action * slope / kept
            # The log-probability depends on the mean directly and through the action: both cancel.
            by_mean[i * size + j] = through
            by_std = through * noise[i, j] + by_log_prob * ((z * z - z * noise[i, j] - _ONE) / std)
            inside = _LOG_STD_MIN <= sampled.log_std[i, j] <= _LOG_STD_MAX
            by_log_std[i * size + j] = by_std * std if inside else _ZERO
    sizes = parameters_size(actor.latent), parameters_size(actor.mean)
    latent = last_layer(actor.latent, sampled.work, rows)
    below, more = np.empty_like(latent), np.empty_like(latent)
    # Linear layers need no activations for the way back: any array of their size will do.
    backward(actor.mean, plain(latent), by_mean, by_mean, grad[sizes[0] : sizes[0] + sizes[1]], below)
    backward(actor.log_std, plain(latent), by_log_std, by_log_std, grad[sizes[0] + sizes[1] :], more)
    deltas = np.empty_like(sampled.work)
    delta = last_layer(actor.latent, deltas, rows)
    for i in range(rows):
        for j in range(delta.shape[1]):
            delta[i, j] = below[i, j] + more[i, j]
    backward(actor.latent, plain(observations), sampled.work, deltas, grad[: sizes[0]], np.empty((0, 0), np.float32))


# --- Losses ----------------------------------------------------------------------------------------------------------


class Entropy(NamedTuple):
    """The entropy coefficient."""

    optimizer: Optimizer  # of its logarithm; without parameters if it is fixed
    value: float  # of a fixed one
    target: float  # the entropy that a learned one aims at


class Drawn(NamedTuple):
    """What the threads of an update share."""

    now: Sampled  # for the observations
    following: Sampled  # for the next observations
    memory: Memory


# The phases of an update: the last one steps the actor and moves the targets.
_ACTS, _EVALUATES, _AIMS, _LEARNS_VALUES, _IMPROVES, _PHASES = range(1, 7)


@inner_kernel
def _entropy_step(entropy: Entropy, log_probs: FloatArray, stats: Array) -> None:
    """Update a learned entropy coefficient; `stats` has its value before that."""
    if entropy.optimizer.table.shape[0] == 0:
        stats[ENT_COEF] = entropy.value
        return
    log_ent_coef = vector_at(entropy.optimizer.table[0, 1], 1)[0]
    surplus = np.float64(0.0)
    for i in range(log_probs.shape[0]):
        surplus += log_probs[i] + entropy.target
    surplus /= log_probs.shape[0]
    ent_coef = float(np.exp(log_ent_coef))
    stats[ENT_COEF], stats[ENT_COEF_LOSS] = ent_coef, -log_ent_coef * surplus
    take_step(entropy.optimizer, np.full(1, -surplus, np.float32), 1.0)


@inner_kernel
def _quantile_targets(memory: Memory, begin: int, end: int, batch: Batch, bonus: FloatArray) -> None:
    """Compute what TQC's critics learn, for some rows: the lowest of all critics' next quantiles together.

    Args:
        bonus: (rows,), subtracted from the next values.
    """
    count, _, quantiles = memory.following.shape
    pooled, kept = np.empty(count * quantiles, np.float32), memory.targets.shape[1]
    for i in range(begin, end):
        for k in range(count):
            for j in range(quantiles):
                pooled[k * quantiles + j] = memory.following[k, i, j]
        pooled.sort()
        for j in range(kept):
            memory.targets[i, j] = batch.rewards[i] + batch.discounts[i] * (pooled[j] - bonus[i])


@inner_kernel
def _quantile_slopes(found: FloatArray, targets: FloatArray, critics: int, slopes: FloatArray) -> _Scalar:
    """Compute one critic's share of TQC's loss of so many critics; `slopes` is filled with its gradients.

    Args:
        found: (rows, quantiles) of the actions in the batch.
        targets: (rows, n).
        slopes: (rows, quantiles).
    """
    rows, quantiles = found.shape
    total, scale = np.float64(0.0), 1.0 / (rows * critics * quantiles * targets.shape[1])
    for i in range(rows):
        total += quantile_loss(found[i], targets[i], scale, slopes[i])
    return total * scale


@inner_kernel
def _value_slopes(found: FloatArray, quantiles: bool, rows: int, slopes: FloatArray) -> _Scalar:
    """Return the sum of the values of actions in some of a minibatch's `rows`.

    Args:
        found: (critics, n, outputs).
        slopes: of the same shape; filled with the gradients of minus the mean over the minibatch.
    """
    count, some, outputs = found.shape
    total = np.float64(0.0)
    if quantiles:
        scale = _f(1.0 / (rows * count * outputs))
        for k in range(count):
            for i in range(some):
                for j in range(outputs):
                    total += found[k, i, j]
                    slopes[k, i, j] = -scale
        return total / (count * outputs)
    least, whose = lowest(found)
    for i in range(some):
        total += least[i]
        for k in range(count):
            slopes[k, i, 0] = -_ONE / _f(rows) if k == whose[i] else _ZERO
    return total


# --- The tasks of an update ------------------------------------------------------------------------------------------


@inner_kernel
def _act(actor: ActorNet, batch: Batch, noise: FloatArray, next_noise: FloatArray, drawn: Drawn, task: int) -> None:
    """Draw the actions of a chunk of observations, or of next observations."""
    chunks = drawn.memory.chunks
    begin, end = share(len(batch.rewards), task % chunks, chunks)
    if task < chunks:
        sample(actor, batch.observations[begin:end], noise[begin:end], _between(drawn.now, begin, end))
    elif task < 2 * chunks:
        observations, made = batch.next_observations[begin:end], _between(drawn.following, begin, end)
        sample(actor, observations, next_noise[begin:end], made)


@inner_kernel
def _aim(batch: Batch, quantiles: bool, ent_coef: float, drawn: Drawn, chunk: int) -> None:
    """Compute what the critics learn from the rows of a chunk."""
    memory, bonus = drawn.memory, _f(ent_coef) * drawn.following.log_probs
    begin, end = share(len(batch.rewards), chunk, memory.chunks)
    if quantiles:
        _quantile_targets(memory, begin, end, batch, bonus)
        return
    least, _ = lowest(memory.following[:, begin:end])
    for i in range(begin, end):
        memory.targets[i, 0] = batch.rewards[i] + batch.discounts[i] * (least[i - begin] - bonus[i])


@inner_kernel
def _learn_values(
    critics: Critics, optimizer: Optimizer, batch: Batch, quantiles: bool, memory: Memory, k: int
) -> None:
    """Take the step of one critic."""
    found, count = memory.found[k], critics.tables.shape[0]
    slopes = np.empty_like(found)
    if quantiles:
        memory.notes[0, k] = _quantile_slopes(found, memory.targets, count, slopes)
    else:
        memory.notes[0, k] = 0.5 * squared_errors(found, memory.targets, 0.5, slopes)
    learn_critic(critics, k, joined(batch.observations, batch.actions), memory.work[k], slopes, optimizer)


@inner_kernel
def _actor_gradients(
    actor: ActorNet,
    critics: Critics,
    batch: Batch,
    noise: FloatArray,
    ent_coef: float,
    quantiles: bool,
    drawn: Drawn,
    chunk: int,
) -> None:
    """Compute a chunk's share in the gradients of the actor."""
    memory, rows = drawn.memory, noise.shape[0]
    begin, end = share(len(batch.rewards), chunk, memory.chunks)
    observations, made = batch.observations[begin:end], _between(drawn.now, begin, end)
    inputs, work = joined(observations, made.actions), works(critics, end - begin)
    found = values(critics, inputs, work)
    slopes = np.empty_like(found)
    memory.notes[1, chunk] = _value_slopes(found, quantiles, rows, slopes)
    by_action = action_gradients(critics, inputs, work, slopes, noise.shape[1])
    grad, by_log_prob = memory.actor_grads[chunk], _f(ent_coef / rows)
    actor_gradients(actor, observations, made, noise[begin:end], by_action, by_log_prob, grad)


# --- The update ------------------------------------------------------------------------------------------------------


@kernel
def update(
    actor: ActorNet,
    actor_optimizer: Optimizer,
    critics: Critics,
    critic_targets: Critics,
    critic_optimizer: Optimizer,
    entropy: Entropy,
    batch: Batch,
    noise: FloatArray,
    next_noise: FloatArray,
    quantiles: bool,
    moved: Array,
    tau: float,
    drawn: Drawn,
    stats: Array,
    thread: int,
    threads: int,
) -> None:
    """Take one gradient step of the entropy coefficient, of the critics and of the actor.

    Several threads may call this for the same step; the first one has to.

    Args:
        noise: (rows, n) standard normal, for the actions.
        next_noise: (rows, n) standard normal, for the next actions.
        quantiles: whether this is TQC.
        moved: targets that are moved at the end; see `move_towards`.
        drawn: the memory of all threads.
        stats: (NUM_STATS,) float64; filled.
        thread: which of the threads this one is, from 0.
    """
    memory, rows = drawn.memory, noise.shape[0]
    tasks = memory.notes.shape[1]
    first = thread * tasks // threads
    for phase in range(1, _PHASES + 1):
        task = next_task(memory.counters, tasks, phase, first, -1)
        while task >= 0:
            if phase == _ACTS:
                _act(actor, batch, noise, next_noise, drawn, task)
            elif phase == _EVALUATES:
                if task == 0:
                    _entropy_step(entropy, drawn.now.log_probs, stats)
                if task < critics.tables.shape[0]:
                    evaluate(critics, critic_targets, batch, drawn.following.actions, memory, task)
            elif phase == _AIMS and task < memory.chunks:
                _aim(batch, quantiles, stats[ENT_COEF], drawn, task)
            elif phase == _LEARNS_VALUES and task < critics.tables.shape[0]:
                _learn_values(critics, critic_optimizer, batch, quantiles, memory, task)
            elif phase == _IMPROVES and task < memory.chunks:
                _actor_gradients(actor, critics, batch, noise, stats[ENT_COEF], quantiles, drawn, task)
            elif phase == _PHASES:
                learn_actor(memory, task, actor_optimizer)
                move_share(moved, tau, task, tasks)
            task = next_task(memory.counters, tasks, phase, first, task)
    if thread == 0:
        count_steps(critic_optimizer, 1)
        count_steps(actor_optimizer, 1)
        stats[CRITIC_LOSS] = memory.notes[0].sum()
        stats[ACTOR_LOSS] = stats[ENT_COEF] * drawn.now.log_probs.mean() - memory.notes[1].sum() / rows
