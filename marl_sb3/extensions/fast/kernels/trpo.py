"""A whole update of TRPO or MaskableTRPO for plain MLPs, as a float32 kernel compiled by numba.

It has two tasks, the step of the actor and the training of the critic, for which two threads may make the call, see
`threads`: neither reads what the other one changes. Layers in common, which the actor's step moves, make them one task.

The Hessian of the KL divergence at the present policy is J^T F J, with the Jacobian J of what determines the
distribution, and F its Fisher matrix (Schulman et al. 2015, https://arxiv.org/abs/1502.05477, appendix C). A vector is
multiplied by J in a forward pass of derivatives in its direction (the R-operator, Pearlmutter 1994,
https://doi.org/10.1162/neco.1994.6.1.147), then by F, and by J^T in an ordinary backward pass. All else is as in
sb3-contrib's `trpo.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel
from marl_sb3.extensions.fast.kernels import layers, mlp, optimizers, ppo
from marl_sb3.extensions.fast.kernels.distributions import softmax
from marl_sb3.extensions.fast.kernels.mlp import Inputs, Net
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer
from marl_sb3.extensions.fast.kernels.ppo import Nets, Samples, Settings
from marl_sb3.extensions.fast.kernels.threads import next_task
from marl_sb3.types import Array, FloatArray

OBJECTIVE, DIVERGENCE, SUCCESS, CRITIC_STEPS = range(4)  # the places of an outcome
_RESIDUAL = 1e-10  # sb3-contrib's residual_tol: a squared residual below it ends the conjugate gradients
_f = np.float32
_ZERO, _HALF, _ONE, _TWO = _f(0.0), _f(0.5), _f(1.0), _f(2.0)


class Actor(NamedTuple):
    """The actor's step and its memory. A vector has the values of `log_std`, of the trunk and of `Nets.pi`."""

    nets: Nets
    settings: Settings  # of the surrogate, and of the critic's loss
    parameters: Array  # (parameters, 2) int64; number of values and address of each
    origin: FloatArray  # a vector; the values before the step
    direction: FloatArray  # a vector; where the conjugate gradients begin, changed to where they end
    samples: Samples  # N of them, with advantages as the objective has them
    before: FloatArray  # (2, N, outputs); log-probabilities and probabilities, or means, before the step; filled
    trunk: FloatArray  # (3, N * outputs of all layers); activations, their gradients, and derivatives in a direction
    pi: FloatArray  # the same
    cg_max_steps: int  # hyperparameters, as in sb3-contrib
    cg_damping: float
    line_search_shrinking_factor: float
    line_search_max_iter: int
    target_kl: float


class Update(NamedTuple):
    """An update, whose threads share all of this."""

    actor: Actor
    optimizer: Optimizer  # its parameters are the critic's
    rollout: Samples  # all samples, for the critic
    orders: Array  # (epochs of the critic, N) int64; the order of samples in each
    bounds: Array  # (minibatches + 1,) int64; where in the order of an epoch each minibatch begins, and N
    counters: Array  # of two tasks, see `threads`
    outcome: Array  # (4,) float64; filled
    notes: Array  # (epochs * minibatches, NUM_STATS) float64; the critic's statistics; filled


@inner_kernel
def derivatives(net: Net, inputs: Inputs, below: FloatArray, space: FloatArray, direction: FloatArray) -> FloatArray:
    """Differentiate a net's outputs in a direction of its parameters, after `forward`: the R-operator.

    Args:
        inputs: those of `forward`.
        below: (rows, inputs) derivatives of the inputs; with no rows, these do not depend on the parameters.
        space: see `Actor`; the derivatives are filled.
        direction: (parameters,).

    Returns:
        The derivatives of the outputs, (rows, outputs); a view of `space`.
    """
    rows, given, offset, place, last = inputs.floats.shape[0], inputs.floats, 0, 0, net.table.shape[0] - 1
    for layer in range(last + 1):
        n_in, n_out, weight, _ = net.table[layer]
        here = layers.matrix(space[2], offset, rows, n_out)
        if layer == 0:
            mlp.multiply(inputs, direction[place:].ctypes.data, n_in, here)
        else:
            np.dot(given, layers.matrix(direction, place, n_out, n_in).T, here)
        if below.shape[0] > 0:
            more = np.empty_like(here)
            np.dot(below, layers.matrix_at(weight, n_out, n_in).T, more)
            here += more
        place += (n_in + 1) * n_out
        layers.activate(here, direction[place - n_out : place], layers.LINEAR)
        given, below = layers.matrix(space[0], offset, rows, n_out), here
        layers.through_activation(here, given, net.hidden if layer < last else net.last, np.empty(n_out, np.float32))
        offset += rows * n_out
    return below


@inner_kernel
def _parts(actor: Actor, vector: FloatArray) -> tuple[Inputs, FloatArray, FloatArray, FloatArray]:
    """Return what `Nets.pi` sees, observations or the outputs of the trunk, and the three parts of a vector; views."""
    nets, seen = actor.nets, actor.samples.inputs
    end = vector.shape[0] - mlp.parameters_size(nets.pi)
    middle = end - mlp.parameters_size(nets.trunk)
    if middle < end:
        seen = mlp.plain(mlp.last_layer(nets.trunk, actor.trunk[0], seen.floats.shape[0]))
    return seen, vector[:middle], vector[middle:end], vector[end:]


@inner_kernel
def _return(actor: Actor, vector: FloatArray) -> None:
    """Compute the gradients of all parameters but `log_std` from those of the outputs."""
    seen, _, of_trunk, of_pi = _parts(actor, vector)
    nets, rows, shares, none = actor.nets, seen.floats.shape[0], of_trunk.shape[0] > 0, np.empty((0, 0), np.float32)
    below = mlp.last_layer(nets.trunk, actor.trunk[1], rows) if shares else none
    mlp.backward(nets.pi, seen, actor.pi[0], actor.pi[1], of_pi, below)
    if shares:
        mlp.backward(nets.trunk, actor.samples.inputs, actor.trunk[0], actor.trunk[1], of_trunk, none)


@inner_kernel
def objective(actor: Actor, vector: FloatArray) -> tuple[float, FloatArray]:
    """Return the surrogate objective and the actor's outputs.

    Args:
        vector: the gradient of the opposite; filled in the place of `log_std`. That of the outputs is in `actor.pi`.
    """
    nets, rows, notes = actor.nets, actor.samples.log_probs.shape[0], np.zeros(ppo.NUM_STATS)
    if nets.trunk.table.shape[0] > 0:
        mlp.forward(nets.trunk, actor.samples.inputs, actor.trunk[0])
    seen, of_log_std, _, _ = _parts(actor, vector)
    outputs, delta = mlp.forward(nets.pi, seen, actor.pi[0]), mlp.last_layer(nets.pi, actor.pi[1], rows)
    log_std = layers.vector_at(nets.log_std, of_log_std.shape[0])
    ppo.policy_losses(nets, actor.samples, rows, outputs, log_std, actor.settings, delta, of_log_std, notes)
    return -notes[ppo.POLICY_LOSS], outputs


@inner_kernel
def divergence(actor: Actor, outputs: FloatArray) -> float:
    """Return the mean KL divergence from the policy before the step, as PyTorch and sb3-contrib compute it.

    That of a Gaussian is also a mean over the numbers of an action.
    """
    nets, (rows, n) = actor.nets, outputs.shape
    total, now, log_std = np.float64(0.0), np.empty_like(outputs), layers.vector_at(nets.log_std, n)
    softmax(outputs, now, nets.sizes)
    for i in range(rows):
        for j in range(n):
            before, probability = actor.before[0, i, j], actor.before[1, i, j]
            if nets.gaussian:
                z, log_ratio = (
                    (outputs[i, j] - before) * np.exp(-actor.origin[j]),
                    _TWO * (log_std[j] - actor.origin[j]),
                )
                total += _HALF * (np.exp(log_ratio) + z * z - _ONE - log_ratio) / _f(n)
            elif now[i, j] != _ZERO:
                total += np.inf if probability == _ZERO else now[i, j] * (outputs[i, j] - before)
    return float(total / rows)


@inner_kernel
def multiply_hessian(actor: Actor, vector: FloatArray, product: FloatArray) -> None:
    """Multiply a vector by the Hessian of the KL divergence, plus damping; `product` is filled."""
    seen, of_log_std, of_trunk, of_pi = _parts(actor, vector)
    nets, (_, rows, n) = actor.nets, actor.before.shape
    below = np.empty((0, 0), np.float32)
    if of_trunk.shape[0] > 0:
        below = derivatives(nets.trunk, actor.samples.inputs, below, actor.trunk, of_trunk)
    derived, delta = derivatives(nets.pi, seen, below, actor.pi, of_pi), mlp.last_layer(nets.pi, actor.pi[1], rows)
    for i in range(rows):  # by the Fisher matrix of each row's distribution
        for j in range(of_log_std.shape[0]):
            delta[i, j] = derived[i, j] * np.exp(-_TWO * actor.origin[j]) / _f(rows * n)
        start = 0
        for k in range(nets.sizes.shape[0]):
            mean, end = _ZERO, start + nets.sizes[k]
            for j in range(start, end):
                mean += actor.before[1, i, j] * derived[i, j]
            for j in range(start, end):
                delta[i, j] = actor.before[1, i, j] * (derived[i, j] - mean) / _f(rows)
            start = end
    _return(actor, product)
    for j in range(of_log_std.shape[0]):
        product[j] = _TWO / _f(n) * of_log_std[j]
    product += _f(actor.cg_damping) * vector


@inner_kernel
def solve(actor: Actor, gradient: FloatArray) -> float:
    """Find the direction with Hessian direction = gradient, as the conjugate gradients of sb3-contrib.

    Returns:
        The product of direction, Hessian and direction.
    """
    x, product = actor.direction, np.empty_like(gradient)
    multiply_hessian(actor, x, product)
    residual = gradient - product
    squared, p = optimizers.sum_of_squares(residual), residual.copy()
    for _ in range(actor.cg_max_steps):
        if squared < _RESIDUAL:
            break
        multiply_hessian(actor, p, product)
        alpha = _f(squared / np.dot(p, product))
        x += alpha * p
        residual -= alpha * product
        before, squared = squared, optimizers.sum_of_squares(residual)
        p *= _f(squared / before)
        p += residual
    multiply_hessian(actor, x, product)
    return float(np.dot(x, product))


@inner_kernel
def move(actor: Actor, factor: float, direction: FloatArray) -> None:
    """Set the parameters to their origin + factor * direction."""
    place = 0
    for k in range(actor.parameters.shape[0]):
        values = layers.vector_at(actor.parameters[k, 1], actor.parameters[k, 0])
        for i in range(values.shape[0]):
            values[i] = actor.origin[place + i] + _f(factor) * direction[place + i]
        place += values.shape[0]


@inner_kernel
def step_actor(actor: Actor, outcome: Array) -> None:
    """Take the largest step within the trust region that improves the objective, or none; `outcome` is filled."""
    gradient, nets = np.zeros_like(actor.origin), actor.nets
    before, outputs = objective(actor, gradient)
    for i in range(outputs.shape[0]):
        for j in range(outputs.shape[1]):
            actor.before[0, i, j] = outputs[i, j]
    softmax(actor.before[0], actor.before[1], nets.sizes)
    _return(actor, gradient)
    longest = math.sqrt(2.0 * actor.target_kl / solve(actor, -gradient))
    outcome[OBJECTIVE], coefficient = before, 1.0
    for _ in range(actor.line_search_max_iter):
        move(actor, coefficient * longest, actor.direction)
        value, outputs = objective(actor, gradient)
        kl = divergence(actor, outputs)
        if kl < actor.target_kl and value > before:
            outcome[OBJECTIVE], outcome[DIVERGENCE], outcome[SUCCESS] = value, kl, 1.0
            return
        coefficient *= actor.line_search_shrinking_factor
    move(actor, 0.0, actor.origin)


@inner_kernel
def fit_critic(update: Update) -> int:
    """Train the critic; returns the number of minibatches done, see `ppo.train`."""
    nets, settings, rollout, notes = update.actor.nets, update.actor.settings, update.rollout, update.notes
    net, seen, bounds, minibatches = nets.vf, rollout.inputs, update.bounds, update.bounds.shape[0] - 1
    if nets.trunk.table.shape[0] > 0:
        work = np.empty(seen.floats.shape[0] * mlp.outputs_size(nets.trunk), np.float32)
        seen = mlp.plain(mlp.forward(nets.trunk, seen, work))
    space = np.empty((2, np.diff(bounds).max() * mlp.outputs_size(net)), np.float32)
    grad, none, done, goes_on = np.empty(mlp.parameters_size(net), np.float32), np.empty((0, 0), np.float32), 0, True
    while goes_on and done < notes.shape[0]:
        k, of_batch = done % minibatches, notes[done]
        order = update.orders[done // minibatches, bounds[k] : bounds[k + 1]]
        inputs = Inputs(seen.indices[order], seen.floats[order])
        batch = Samples(inputs, *rollout[1:6], rollout.returns[order], rollout.values)
        outputs, delta = mlp.forward(net, inputs, space[0]), mlp.last_layer(net, space[1], order.shape[0])
        ppo.value_losses(batch, order.shape[0], outputs, settings, delta, of_batch)
        mlp.backward(net, inputs, space[0], space[1], grad, none)
        of_batch[ppo.LOSS], of_batch[ppo.GRAD_NORM] = of_batch[ppo.VALUE_LOSS], optimizers.norm(grad)
        goes_on, done = not ppo.ends(of_batch, settings), done + 1
        if goes_on:
            optimizers.step_between(update.optimizer, grad, 1.0, 0, grad.shape[0], done)
    optimizers.count_steps(update.optimizer, done if goes_on else done - 1)
    return done


@kernel
def train(update: Update, stats: Array, thread: int, threads: int) -> int:
    """One update, in place; several threads may call this for the same update. Arguments and result as of `ppo.train`.

    Each thread gets the statistics of all of the update.
    """
    tasks = 1 if update.actor.nets.trunk.table.shape[0] > 0 else 2
    task = next_task(update.counters, tasks, 1, thread % tasks, -1)
    while task >= 0:
        if task == 0:
            step_actor(update.actor, update.outcome)
        if task == tasks - 1:
            update.outcome[CRITIC_STEPS] = fit_critic(update)
        task = next_task(update.counters, tasks, 1, thread % tasks, task)
    for i in range(stats.shape[0]):
        for j in range(stats.shape[1]):
            stats[i, j] = update.notes[i, j]
    return int(update.outcome[CRITIC_STEPS])
