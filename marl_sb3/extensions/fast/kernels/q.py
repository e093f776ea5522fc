"""A gradient step of DQN (Mnih et al. 2015) and of QR-DQN (Dabney et al. 2018), as in SB3, and their greedy actions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel
from marl_sb3.extensions.fast.kernels.layers import clear
from marl_sb3.extensions.fast.kernels.mlp import (
    Net,
    backward,
    forward,
    last_layer,
    outputs_size,
    parameters_size,
    plain,
)
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer, clipping, norm, take_step
from marl_sb3.extensions.fast.kernels.replay import Batch, quantile_loss
from marl_sb3.types import Array, BoolArray, FloatArray

_Scalar = Any  # a float, once compiled

_f = np.float32
_ZERO, _HALF, _ONE = _f(0.0), _f(0.5), _f(1.0)


class Drawn(NamedTuple):
    """How the transitions of a minibatch were drawn, and what their losses tell."""

    weights: FloatArray  # (rows,) float32; of their losses, 1 where all were drawn as often
    errors: FloatArray  # (rows,) float32, filled: the sizes of their TD errors; with quantiles, their losses


@inner_kernel
def _best_action(outputs: FloatArray, row: int, quantiles: int) -> int:
    """Return the action with the highest mean over the quantiles; outputs: (rows, quantiles * actions)."""
    actions = outputs.shape[1] // quantiles
    best, best_value = 0, _f(-np.inf)
    for action in range(actions):
        value = _ZERO
        for k in range(quantiles):
            value += outputs[row, k * actions + action]
        if value > best_value:
            best, best_value = action, value
    return best


@inner_kernel
def _forbid(outputs: FloatArray, masks: BoolArray) -> None:
    """Set the outputs of forbidden actions to minus infinity; masks: (rows, actions), or (0, 0): all are allowed."""
    for i in range(masks.shape[0]):
        for j in range(outputs.shape[1]):
            if not masks[i, j % masks.shape[1]]:
                outputs[i, j] = -np.inf


@kernel
def greedy_actions(net: Net, observations: FloatArray, quantiles: int, masks: BoolArray) -> Array:
    """(rows,) int64: the best actions for (rows, inputs) float32 observations, of those that are allowed."""
    rows = observations.shape[0]
    outputs = forward(net, plain(observations), np.empty(rows * outputs_size(net), np.float32))
    _forbid(outputs, masks)
    actions = np.empty(rows, np.int64)
    for i in range(rows):
        actions[i] = _best_action(outputs, i, quantiles)
    return actions


@inner_kernel
def _td_loss(batch: Batch, outputs: FloatArray, following: FloatArray, drawn: Drawn, delta: FloatArray) -> _Scalar:
    """Compute DQN's loss, smooth L1, and the gradients of the outputs, which go into `delta`."""
    rows = outputs.shape[0]
    total, scale = np.float64(0.0), _ONE / _f(rows)
    for i in range(rows):
        action = batch.actions[i, 0]
        best = following[i, 0]
        for j in range(1, following.shape[1]):
            best = max(best, following[i, j])
        error = outputs[i, action] - (batch.rewards[i] + batch.discounts[i] * best)
        size, weight = abs(error), drawn.weights[i]
        total += weight * (_HALF * error * error if size < _ONE else size - _HALF)
        delta[i, action] = weight * ((error if size < _ONE else (_ONE if error > _ZERO else -_ONE)) * scale)
        drawn.errors[i] = size
    return total / rows


@inner_kernel
def _quantile_loss(
    batch: Batch, outputs: FloatArray, following: FloatArray, quantiles: int, drawn: Drawn, delta: FloatArray
) -> _Scalar:
    """Compute QR-DQN's loss, and the gradients of the outputs, which go into `delta`."""
    rows, actions = outputs.shape[0], outputs.shape[1] // quantiles
    current, targets = np.empty(quantiles, np.float32), np.empty(quantiles, np.float32)
    slopes = np.empty(quantiles, np.float32)
    total, scale = np.float64(0.0), 1.0 / (rows * quantiles)
    for i in range(rows):
        action, best = batch.actions[i, 0], _best_action(following, i, quantiles)
        for k in range(quantiles):
            current[k] = outputs[i, k * actions + action]
            targets[k] = batch.rewards[i] + batch.discounts[i] * following[i, k * actions + best]
        loss, weight = quantile_loss(current, targets, scale, slopes), drawn.weights[i]
        total += weight * loss
        for k in range(quantiles):
            delta[i, k * actions + action] = weight * slopes[k]
        drawn.errors[i] = loss / quantiles
    return total * scale


@kernel
def update(
    online: Net,
    target: Net,
    optimizer: Optimizer,
    batch: Batch,
    quantiles: int,
    max_grad_norm: float,
    masks: BoolArray,
    drawn: Drawn,
) -> tuple[float, float]:
    """Take one gradient step.

    Args:
        quantiles: of QR-DQN; 0 for DQN.
        max_grad_norm: infinite: gradients are not clipped.
        masks: (rows, actions); which actions count after the next observations. (0, 0): all.
        drawn: how the minibatch was drawn; its errors are filled.

    Returns:
        The loss, and the norm of the gradients before they are clipped.
    """
    rows = batch.rewards.shape[0]
    work = np.empty(rows * outputs_size(online), np.float32)
    deltas = np.empty_like(work)
    # The target network runs first: `work` has then the activations that `backward` needs.
    following = forward(target, plain(batch.next_observations), deltas).copy()
    _forbid(following, masks)
    inputs = plain(batch.observations)
    outputs = forward(online, inputs, work)
    clear(deltas)
    delta = last_layer(online, deltas, rows)
    if quantiles > 0:
        loss = _quantile_loss(batch, outputs, following, quantiles, drawn, delta)
    else:
        loss = _td_loss(batch, outputs, following, drawn, delta)
    grad = np.empty(parameters_size(online), np.float32)
    backward(online, inputs, work, deltas, grad, np.empty((0, 0), np.float32))
    size = norm(grad)
    take_step(optimizer, grad, clipping(size, max_grad_norm))
    return loss, size
