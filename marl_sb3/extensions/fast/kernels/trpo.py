"""A whole update of TRPO for plain MLPs, as a float32 kernel compiled by numba.

It has two tasks, the step of the actor and the training of the critic, for which two threads may make the call, see
`threads`: neither reads what the other one changes. Where both have layers in common, which the actor's step moves, they
are one task. So the number of threads changes no result.

The Hessian of the KL divergence at the present policy is J^T F J, with the Jacobian J of the parameters of the
distribution and its Fisher matrix F (Schulman et al. 2015, https://arxiv.org/abs/1502.05477, appendix C). It is
multiplied with a vector by a forward pass of derivatives in the vector's direction (the R-operator, Pearlmutter 1994,
https://doi.org/10.1162/neco.1994.6.1.147), by F, and by an ordinary backward pass. The rest is as in sb3-contrib's
`trpo.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel
from marl_sb3.extensions.fast.kernels.distributions import softmax
from marl_sb3.extensions.fast.kernels.layers import (
    LINEAR,
    activate,
    clear,
    matrix,
    matrix_at,
    through_activation,
    vector_at,
)
from marl_sb3.extensions.fast.kernels.mlp import (
    Inputs,
    Net,
    backward,
    forward,
    last_layer,
    multiply,
    outputs_size,
    parameters_size,
    plain,
)
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer, count_steps, norm, step_between, sum_of_squares
from marl_sb3.extensions.fast.kernels.ppo import (
    CRITIC,
    GRAD_NORM,
    LOSS,
    NUM_STATS,
    POLICY_LOSS,
    VALUE_LOSS,
    Nets,
    Samples,
    Settings,
    gather,
    policy_losses,
    value_losses,
)
from marl_sb3.extensions.fast.kernels.threads import next_task
from marl_sb3.types import Array, FloatArray

OBJECTIVE, DIVERGENCE, SUCCESS, CRITIC_STEPS = range(4)  # the places of an outcome
BLOCK_ROWS = 512  # that pass through the actor at once, so that the cache holds their derivatives

_RESIDUAL = 1e-10  # sb3-contrib's residual_tol: squared residuals below it end the conjugate gradients
_f = np.float32
_ZERO, _HALF, _ONE, _TWO = _f(0.0), _f(0.5), _f(1.0), _f(2.0)
_START = _f(1e-4)  # the scale of the noise from which they begin


class Region(NamedTuple):
    """Hyperparameters of the actor's step, as in sb3-contrib."""

    cg_max_steps: int
    cg_damping: float
    line_search_shrinking_factor: float
    line_search_max_iter: int
    target_kl: float


class Actor(NamedTuple):
    """The actor while it takes its step. Its parameters are those of `nets.pi`, of the trunk, and `log_std`."""

    nets: Nets
    samples: Samples  # N of them; the advantages are those that the objective has
    settings: Settings  # of the surrogate
    work: FloatArray  # activations of trunk and actor, of a block of samples after the other
    spare: FloatArray  # (2, as `work`, of one block): their gradients; their derivatives in a direction
    # The distributions before the step: log-probabilities, and probabilities; or the means, twice.
    before: FloatArray  # (2, N, outputs of the actor)
    log_std: FloatArray  # (n,) before the step


@inner_kernel
def _rows(samples: Samples, begin: int, end: int) -> Samples:
    """Return some of the samples; views."""
    return Samples(
        Inputs(samples.inputs.indices[begin:end], samples.inputs.floats[begin:end]),
        samples.int_actions[begin:end],
        samples.float_actions[begin:end],
        samples.allowed[begin:end],
        samples.log_probs[begin:end],
        samples.advantages[begin:end],
        samples.returns[begin:end],
        samples.values[begin:end],
    )


@inner_kernel
def add(target: FloatArray, factor: float, source: FloatArray) -> None:
    """target += factor * source."""
    for i in range(target.shape[0]):
        target[i] += _f(factor) * source[i]


@inner_kernel
def move(parameters: Array, origin: FloatArray, factor: float, direction: FloatArray) -> None:
    """Set parameters to origin + factor * direction.

    Args:
        parameters: (parameters, 2) int64; number of values and address of each.
        origin: (values,), as `direction`.
    """
    place = 0
    for k in range(parameters.shape[0]):
        values = vector_at(parameters[k, 1], parameters[k, 0])
        for i in range(values.shape[0]):
            values[i] = origin[place + i] + _f(factor) * direction[place + i]
        place += values.shape[0]


# --- Passes through the actor ----------------------------------------------------------------------------------------


@inner_kernel
def derivatives(
    net: Net, inputs: Inputs, below: FloatArray, work: FloatArray, direction: FloatArray, derived: FloatArray
) -> FloatArray:
    """Differentiate a net's outputs in a direction of its parameters, after `forward`: the R-operator.

    Args:
        inputs: those of `forward`.
        below: (rows, inputs) derivatives of the inputs; with no rows, they do not depend on the parameters.
        work: filled by `forward`.
        direction: (parameters,).
        derived: as `work`; filled with the derivatives of all activations.

    Returns:
        Those of the last layer, (rows, outputs), a view of `derived`.
    """
    rows, layers, offset, place = inputs.floats.shape[0], net.table.shape[0], 0, 0
    given = inputs.floats
    for layer in range(layers):
        n_in, n_out, weight, _ = net.table[layer]
        here, of_bias = (
            matrix(derived, offset, rows, n_out),
            direction[place + n_in * n_out : place + (n_in + 1) * n_out],
        )
        if layer == 0:
            multiply(inputs, direction[place:].ctypes.data, n_in, here)
        else:
            np.dot(given, matrix(direction, place, n_out, n_in).T, here)
        if below.shape[0] > 0:
            more = np.empty_like(here)
            np.dot(below, matrix_at(weight, n_out, n_in).T, more)
            here += more
        activate(here, of_bias, LINEAR)
        given, below = matrix(work, offset, rows, n_out), here
        through_activation(here, given, net.hidden if layer < layers - 1 else net.last, np.empty(n_out, np.float32))
        offset += rows * n_out
        place += (n_in + 1) * n_out
    return below


@inner_kernel
def _outputs(actor: Actor, begin: int, end: int) -> tuple[Samples, Inputs, FloatArray, FloatArray]:
    """Return a block of samples, what `nets.pi` sees of them, and the memory of the trunk's and its activations."""
    nets, own = actor.nets, _rows(actor.samples, begin, end)
    of_trunk = outputs_size(nets.trunk)
    size = of_trunk + outputs_size(nets.pi)
    work, middle = actor.work[begin * size : end * size], (end - begin) * of_trunk
    seen = plain(last_layer(nets.trunk, work[:middle], end - begin)) if of_trunk > 0 else own.inputs
    return own, seen, work[:middle], work[middle:]


@inner_kernel
def _return(actor: Actor, own: Samples, seen: Inputs, trunk: FloatArray, pi: FloatArray, grad: FloatArray) -> None:
    """Compute a block's gradients of the parameters, but `log_std`, from those of the actor's outputs."""
    nets, rows, middle = actor.nets, own.log_probs.shape[0], parameters_size(actor.nets.pi)
    deltas, none = actor.spare[0], np.empty((0, 0), np.float32)
    if trunk.shape[0] > 0:
        below = last_layer(nets.trunk, deltas, rows)
        backward(nets.pi, seen, pi, deltas[trunk.shape[0] :], grad[:middle], below)
        backward(nets.trunk, own.inputs, trunk, deltas, grad[middle : middle + parameters_size(nets.trunk)], none)
    else:
        backward(nets.pi, seen, pi, deltas, grad[:middle], none)


@inner_kernel
def objective(actor: Actor, begins: bool, grad: FloatArray) -> tuple[float, float]:
    """Return the surrogate objective, and the KL divergence of the present policy from the one before the step.

    Args:
        begins: whether the present policy is that one, which is noted.
        grad: (values of the parameters,) the objective's gradient; filled where `begins`.
    """
    nets, rows, notes = actor.nets, actor.samples.log_probs.shape[0], np.zeros(NUM_STATS)
    log_std, share = vector_at(nets.log_std, actor.log_std.shape[0]), np.zeros_like(grad)
    of_log_std, value, divergence = share[grad.shape[0] - log_std.shape[0] :], 0.0, 0.0
    for begin in range(0, rows, BLOCK_ROWS):
        end = min(begin + BLOCK_ROWS, rows)
        own, seen, trunk, pi = _outputs(actor, begin, end)
        if trunk.shape[0] > 0:
            forward(nets.trunk, own.inputs, trunk)
        outputs = forward(nets.pi, seen, pi)
        delta = last_layer(nets.pi, actor.spare[0][trunk.shape[0] :], end - begin)
        policy_losses(nets, own, rows, outputs, log_std, actor.settings, delta, of_log_std, notes)
        value -= notes[POLICY_LOSS]
        before, probabilities = actor.before[0, begin:end], actor.before[1, begin:end]
        if begins:
            _return(actor, own, seen, trunk, pi, share)
            add(grad, -1.0, share)
            for i in range(end - begin):
                for j in range(outputs.shape[1]):
                    before[i, j] = outputs[i, j]
            softmax(before, probabilities, nets.sizes)
        elif nets.gaussian:
            divergence += _gaussian_divergence(outputs, log_std, before, actor.log_std)
        else:
            divergence += _categorical_divergence(outputs, nets.sizes, before, probabilities)
    return value, divergence / rows


@inner_kernel
def _categorical_divergence(logits: FloatArray, sizes: Array, before: FloatArray, probabilities: FloatArray) -> float:
    """Return the sum of the rows' KL divergences from earlier distributions, as PyTorch computes them; see `Actor`."""
    now, total = np.empty_like(logits), np.float64(0.0)
    softmax(logits, now, sizes)
    for i in range(now.shape[0]):
        for j in range(now.shape[1]):
            if now[i, j] != _ZERO:
                total += np.inf if probabilities[i, j] == _ZERO else now[i, j] * (logits[i, j] - before[i, j])
    return total


@inner_kernel
def _gaussian_divergence(
    means: FloatArray, log_std: FloatArray, before: FloatArray, log_std_before: FloatArray
) -> float:
    """Return the sum of the rows' KL divergences, means over the numbers of an action, as sb3-contrib has them."""
    total = np.float64(0.0)
    for i in range(means.shape[0]):
        for d in range(means.shape[1]):
            z = (means[i, d] - before[i, d]) * np.exp(-log_std_before[d])
            log_ratio = _TWO * (log_std[d] - log_std_before[d])
            total += _HALF * (np.exp(log_ratio) + z * z - _ONE - log_ratio)
    return total / means.shape[1]


@inner_kernel
def _through_fisher(actor: Actor, derived: FloatArray, probabilities: FloatArray, delta: FloatArray) -> None:
    """Multiply derivatives of the actor's outputs by the Fisher matrix of each row's distribution, over the rows.

    Args:
        derived: (rows of a block, outputs).
        probabilities: those of the block, see `Actor`.
        delta: (rows of a block, outputs); filled.
    """
    nets, inverse_rows = actor.nets, _ONE / _f(actor.samples.log_probs.shape[0])
    for i in range(derived.shape[0]):
        if nets.gaussian:
            for d in range(derived.shape[1]):
                delta[i, d] = derived[i, d] * np.exp(-_TWO * actor.log_std[d]) * inverse_rows / _f(derived.shape[1])
        start = 0
        for k in range(nets.sizes.shape[0]):
            mean, end = _ZERO, start + nets.sizes[k]
            for j in range(start, end):
                mean += probabilities[i, j] * derived[i, j]
            for j in range(start, end):
                delta[i, j] = probabilities[i, j] * (derived[i, j] - mean) * inverse_rows
            start = end


@inner_kernel
def multiply_hessian(actor: Actor, vector: FloatArray, damping: float, product: FloatArray) -> None:
    """Multiply a vector by the Hessian of the KL divergence, plus damping, after `objective`.

    Args:
        vector: (values of the parameters,).
        product: (values of the parameters,); filled.
    """
    nets, rows, size, n = actor.nets, actor.samples.log_probs.shape[0], vector.shape[0], actor.log_std.shape[0]
    middle, share = parameters_size(nets.pi), np.zeros_like(vector)
    clear(product)
    add(product, damping, vector)
    for d in range(size - n, size):  # the second derivative of a Gaussian's divergence by log_std is 2
        product[d] += _TWO / _f(n) * vector[d]
    for begin in range(0, rows, BLOCK_ROWS):
        end = min(begin + BLOCK_ROWS, rows)
        own, seen, trunk, pi = _outputs(actor, begin, end)
        derived, below = actor.spare[1], np.empty((0, 0), np.float32)
        if trunk.shape[0] > 0:
            below = derivatives(nets.trunk, own.inputs, below, trunk, vector[middle:], derived)
        of_outputs = derivatives(nets.pi, seen, below, pi, vector[:middle], derived[trunk.shape[0] :])
        delta = last_layer(nets.pi, actor.spare[0][trunk.shape[0] :], end - begin)
        _through_fisher(actor, of_outputs, actor.before[1, begin:end], delta)
        _return(actor, own, seen, trunk, pi, share)
        add(product, 1.0, share)


# --- The update ------------------------------------------------------------------------------------------------------


@inner_kernel
def solve(actor: Actor, gradient: FloatArray, x: FloatArray, region: Region, product: FloatArray) -> None:
    """Solve Hessian x = gradient by conjugate gradients, as sb3-contrib's `conjugate_gradient_solver`.

    Args:
        x: (values of the parameters,) where they begin; changed to the solution.
        product: memory, as `x`.
    """
    multiply_hessian(actor, x, region.cg_damping, product)
    residual = gradient - product
    squared, p = sum_of_squares(residual), residual.copy()
    if squared < _RESIDUAL:
        return
    for i in range(region.cg_max_steps):
        multiply_hessian(actor, p, region.cg_damping, product)
        alpha = squared / np.dot(p, product)
        add(x, alpha, p)
        add(residual, -alpha, product)
        before, squared = squared, sum_of_squares(residual)
        if i == region.cg_max_steps - 1 or squared < _RESIDUAL:
            return
        for j in range(p.shape[0]):
            p[j] = residual[j] + _f(squared / before) * p[j]


@inner_kernel
def step_actor(actor: Actor, parameters: Array, noise: FloatArray, region: Region, outcome: Array) -> None:
    """Take the largest step within the trust region that improves the objective, or none.

    Args:
        parameters: see `move`.
        noise: (values of the parameters,) normally distributed numbers, in the order of the parameters.
        outcome: (4,); filled in the places of the actor.
    """
    size = noise.shape[0]
    gradient, direction, origin, product = np.zeros(size, np.float32), noise * _START, noise.copy(), noise.copy()
    before, _ = objective(actor, True, gradient)
    solve(actor, gradient, direction, region, product)
    multiply_hessian(actor, direction, region.cg_damping, product)
    longest, place = math.sqrt(2.0 * region.target_kl / np.dot(direction, product)), 0
    for k in range(parameters.shape[0]):
        values = vector_at(parameters[k, 1], parameters[k, 0])
        for i in range(values.shape[0]):
            origin[place + i] = values[i]
        place += values.shape[0]
    coefficient = 1.0
    for _ in range(region.line_search_max_iter):
        move(parameters, origin, coefficient * longest, direction)
        value, divergence = objective(actor, False, gradient)
        if divergence < region.target_kl and value > before:
            outcome[OBJECTIVE], outcome[DIVERGENCE], outcome[SUCCESS] = value, divergence, 1.0
            return
        coefficient *= region.line_search_shrinking_factor
    move(parameters, origin, 0.0, origin)
    outcome[OBJECTIVE], outcome[DIVERGENCE], outcome[SUCCESS] = before, 0.0, 0.0


@inner_kernel
def fit_critic(
    nets: Nets, optimizer: Optimizer, rollout: Samples, orders: Array, bounds: Array, settings: Settings, stats: Array
) -> int:
    """Train the critic; arguments as those of `train`. Returns the number of minibatches done, see `ppo.train`."""
    rows, seen, most = rollout.returns.shape[0], rollout.inputs, 0
    if nets.trunk.table.shape[0] > 0:
        seen = plain(forward(nets.trunk, seen, np.empty(rows * outputs_size(nets.trunk), np.float32)))
    for k in range(bounds.shape[0] - 1):
        most = max(most, bounds[k + 1] - bounds[k])
    rollout = Samples(seen, *rollout[1:])
    whole = np.empty((most, seen.indices.shape[1]), np.int64), np.empty((most, seen.floats.shape[1]), np.float32)
    batch = Samples(Inputs(*whole), *rollout[1:6], np.empty(most, np.float32), rollout.values)
    space = np.empty((2, most * outputs_size(nets.vf)), np.float32)
    grad, none, done, goes_on = np.empty(parameters_size(nets.vf), np.float32), np.empty((0, 0), np.float32), 0, True
    while goes_on and done < stats.shape[0]:
        epoch, k = done // (bounds.shape[0] - 1), done % (bounds.shape[0] - 1)
        order, notes = orders[epoch, bounds[k] : bounds[k + 1]], stats[done]
        own = _rows(batch, 0, order.shape[0])
        gather(rollout, order, CRITIC, own)
        delta = last_layer(nets.vf, space[1], order.shape[0])
        value_losses(own, order.shape[0], forward(nets.vf, own.inputs, space[0]), settings, delta, notes)
        backward(nets.vf, own.inputs, space[0], space[1], grad, none)
        notes[LOSS], notes[GRAD_NORM] = notes[VALUE_LOSS], norm(grad)
        goes_on = np.isfinite(notes[LOSS]) and np.isfinite(notes[GRAD_NORM])
        done += 1
        if goes_on:
            step_between(optimizer, grad, 1.0, 0, grad.shape[0], done)
    count_steps(optimizer, done if goes_on else done - 1)
    return done


@kernel
def train(
    nets: Nets,
    parameters: Array,
    optimizer: Optimizer,
    samples: Samples,
    rollout: Samples,
    noise: FloatArray,
    orders: Array,
    bounds: Array,
    settings: Settings,
    region: Region,
    counters: Array,
    outcome: Array,
    stats: Array,
    thread: int,
    threads: int,
) -> int:
    """One update, in place; several threads may call this for the same update.

    Args:
        parameters: of the actor, see `move` and `Actor`.
        optimizer: its parameters are the critic's.
        samples: those of the actor, see `Actor`.
        rollout: all samples, for the critic.
        noise: see `step_actor`.
        orders: (epochs, N) int64; the order of samples in each epoch of the critic.
        bounds: (minibatches + 1,) int64; where in the order of an epoch each minibatch begins, and N.
        settings: of the surrogate and the value loss.
        counters: of two tasks, see `threads`.
        outcome: (4,) float64; filled.
        stats: (epochs * minibatches, NUM_STATS) float64; filled.
        thread: which of the threads this one is, from 0.
        threads: number of threads.

    Returns:
        The number of the critic's minibatches done, see `ppo.train`.
    """
    tasks, n = 1 if nets.trunk.table.shape[0] > 0 else 2, nets.pi.table[nets.pi.table.shape[0] - 1, 1]
    task = next_task(counters, tasks, 1, thread % tasks, -1)
    while task >= 0:
        if task == 0:
            rows, size = samples.log_probs.shape[0], outputs_size(nets.trunk) + outputs_size(nets.pi)
            work, spare = np.empty(rows * size, np.float32), np.empty((2, min(rows, BLOCK_ROWS) * size), np.float32)
            log_std = vector_at(nets.log_std, n if nets.gaussian else 0).copy()
            actor = Actor(nets, samples, settings, work, spare, np.empty((2, rows, n), np.float32), log_std)
            step_actor(actor, parameters, noise, region, outcome)
        if task == tasks - 1:
            outcome[CRITIC_STEPS] = fit_critic(nets, optimizer, rollout, orders, bounds, settings, stats)
        task = next_task(counters, tasks, 1, thread % tasks, task)
    return int(outcome[CRITIC_STEPS])
