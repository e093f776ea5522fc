"""A gradient step of TD3 (Fujimoto et al. 2018) and DDPG (Lillicrap et al. 2016), as in SB3, and their actions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel
from marl_sb3.extensions.fast.kernels.mlp import (
    Net,
    backward,
    forward,
    last_layer,
    outputs_size,
    parameters_size,
    plain,
)
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer, move_towards, take_step
from marl_sb3.extensions.fast.kernels.replay import (
    Batch,
    Critics,
    action_gradients,
    gradients,
    joined,
    lowest,
    squared_errors,
    values,
    works,
)
from marl_sb3.types import Array, FloatArray

_Scalar = Any  # a float, once compiled

# What `update` returns.
ACTOR_LOSS, CRITIC_LOSS, NUM_STATS = range(3)

_f = np.float32
_ONE = _f(1.0)


class Smoothing(NamedTuple):
    """What is added to the next actions."""

    noise: FloatArray  # (rows, n) float32
    clip: float  # the noise lies between minus and plus this


@kernel
def chosen_actions(actor: Net, observations: FloatArray) -> FloatArray:
    """(rows, n) actions from -1 to 1, for (rows, inputs) float32 observations."""
    return forward(actor, plain(observations), np.empty(observations.shape[0] * outputs_size(actor), np.float32)).copy()


@inner_kernel
def _smoothed(actions: FloatArray, smoothing: Smoothing) -> None:
    clip = _f(smoothing.clip)
    for i in range(actions.shape[0]):
        for j in range(actions.shape[1]):
            noise = min(max(smoothing.noise[i, j], -clip), clip)
            actions[i, j] = min(max(actions[i, j] + noise, -_ONE), _ONE)


@inner_kernel
def _update_actor(actor: Net, optimizer: Optimizer, critics: Critics, observations: FloatArray, size: int) -> _Scalar:
    """Take a gradient step of the actor; returns its loss."""
    rows = observations.shape[0]
    work = np.empty(rows * outputs_size(actor), np.float32)
    inputs = joined(observations, forward(actor, plain(observations), work))
    first = Critics(critics.tables[:1], critics.hidden)
    critic_work = works(first, rows)
    found = values(first, inputs, critic_work)
    slopes = np.full((1, rows, 1), -_ONE / _f(rows), np.float32)
    by_action = action_gradients(first, inputs, critic_work, slopes, size)
    deltas = np.empty_like(work)
    delta = last_layer(actor, deltas, rows)
    for i in range(rows):
        for j in range(size):
            delta[i, j] = by_action[i, j]
    grad = np.empty(parameters_size(actor), np.float32)
    backward(actor, plain(observations), work, deltas, grad, np.empty((0, 0), np.float32))
    take_step(optimizer, grad, 1.0)
    return -float(found.mean())


@kernel
def update(
    actor: Net,
    actor_target: Net,
    actor_optimizer: Optimizer,
    critics: Critics,
    critic_targets: Critics,
    critic_optimizer: Optimizer,
    batch: Batch,
    smoothing: Smoothing,
    with_actor: bool,
    moved: Array,
    tau: float,
) -> Array:
    """Take one gradient step of the critics, and `with_actor` of the actor.

    Args:
        moved: targets that are moved after a step of the actor; see `move_towards`.

    Returns:
        (NUM_STATS,) float64; the actor's loss is NaN without a step of it.
    """
    rows, size = batch.actions.shape
    stats = np.full(NUM_STATS, np.nan)
    next_actions = chosen_actions(actor_target, batch.next_observations)
    _smoothed(next_actions, smoothing)
    work = works(critics, rows)
    targets, _ = lowest(values(critic_targets, joined(batch.next_observations, next_actions), work))
    for i in range(rows):
        targets[i] = batch.rewards[i] + batch.discounts[i] * targets[i]
    inputs = joined(batch.observations, batch.actions)
    found = values(critics, inputs, work)
    slopes = np.empty_like(found)
    stats[CRITIC_LOSS] = squared_errors(found, targets, 1.0, slopes)
    take_step(critic_optimizer, gradients(critics, inputs, work, slopes), 1.0)
    if with_actor:
        stats[ACTOR_LOSS] = _update_actor(actor, actor_optimizer, critics, batch.observations, size)
        move_towards(moved, tau)
    return stats
