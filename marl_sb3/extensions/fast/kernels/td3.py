"""A gradient step of TD3 (Fujimoto et al. 2018) and DDPG (Lillicrap et al. 2016), as in SB3, and their actions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel
from marl_sb3.extensions.fast.kernels.mlp import Net, backward, forward, last_layer, outputs_size, plain
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer, count_steps
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
    put,
    squared_errors,
    values,
    works,
)
from marl_sb3.extensions.fast.kernels.threads import next_task, share
from marl_sb3.types import Array, FloatArray

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


# --- The tasks of an update ------------------------------------------------------------------------------------------

# The phases: the last ones step the actor and move the targets.
_ACTS, _EVALUATES, _LEARNS_VALUES, _IMPROVES, _STEPS, _PHASES = range(1, 7)


@inner_kernel
def _act(actor_target: Net, batch: Batch, smoothing: Smoothing, memory: Memory, chunk: int) -> None:
    """Choose the next actions of a chunk, and smooth them."""
    begin, end = share(len(batch.rewards), chunk, memory.chunks)
    chosen, kept = chosen_actions(actor_target, batch.next_observations[begin:end]), memory.next_actions[begin:end]
    noise, clip = smoothing.noise[begin:end], _f(smoothing.clip)
    for i in range(end - begin):
        for j in range(kept.shape[1]):
            added = min(max(noise[i, j], -clip), clip)
            kept[i, j] = min(max(chosen[i, j] + added, -_ONE), _ONE)


@inner_kernel
def _learn_values(critics: Critics, optimizer: Optimizer, batch: Batch, memory: Memory, k: int) -> None:
    """Take the step of one critic."""
    least, _ = lowest(memory.following)
    targets, slopes = np.empty_like(memory.targets), np.empty_like(memory.found[k])
    for i in range(targets.shape[0]):
        targets[i, 0] = batch.rewards[i] + batch.discounts[i] * least[i]
    memory.notes[0, k] = squared_errors(memory.found[k], targets, 1.0, slopes)
    learn_critic(critics, k, joined(batch.observations, batch.actions), memory.work[k], slopes, optimizer)


@inner_kernel
def _actor_gradients(actor: Net, critics: Critics, batch: Batch, memory: Memory, chunk: int) -> None:
    """Compute a chunk's share in the gradients of the actor, whose actions the first critic values."""
    begin, end = share(len(batch.rewards), chunk, memory.chunks)
    observations, rows, size = batch.observations[begin:end], end - begin, memory.next_actions.shape[1]
    work = np.empty(rows * outputs_size(actor), np.float32)
    inputs = joined(observations, forward(actor, plain(observations), work))
    first = Critics(critics.tables[:1], critics.hidden)
    critic_work = works(first, rows)
    memory.notes[1, chunk] = values(first, inputs, critic_work).sum()
    slopes = np.full((1, rows, 1), -_ONE / _f(batch.rewards.shape[0]), np.float32)
    by_action = action_gradients(first, inputs, critic_work, slopes, size)
    deltas = np.empty_like(work)
    put(by_action, last_layer(actor, deltas, rows))
    backward(actor, plain(observations), work, deltas, memory.actor_grads[chunk], np.empty((0, 0), np.float32))


# --- The update ------------------------------------------------------------------------------------------------------


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
    memory: Memory,
    stats: Array,
    thread: int,
    threads: int,
) -> None:
    """Take one gradient step of the critics, and `with_actor` of the actor.

    Several threads may call this for the same step; the first one has to.

    Args:
        moved: targets that are moved after a step of the actor; see `move_towards`.
        memory: of all threads.
        stats: (NUM_STATS,) float64; filled, but for the actor's loss without a step of it.
        thread: which of the threads this one is, from 0.
    """
    tasks = memory.notes.shape[1]
    first = thread * tasks // threads
    for phase in range(1, _PHASES + 1 if with_actor else _LEARNS_VALUES + 1):
        task = next_task(memory.counters, tasks, phase, first, -1)
        while task >= 0:
            if phase == _ACTS and task < memory.chunks:
                _act(actor_target, batch, smoothing, memory, task)
            elif phase == _EVALUATES and task < critics.tables.shape[0]:
                evaluate(critics, critic_targets, batch, memory.next_actions, memory, task)
            elif phase == _LEARNS_VALUES and task < critics.tables.shape[0]:
                _learn_values(critics, critic_optimizer, batch, memory, task)
            elif phase == _IMPROVES and task < memory.chunks:
                _actor_gradients(actor, critics, batch, memory, task)
            elif phase == _STEPS:
                learn_actor(memory, task, actor_optimizer)
            elif phase == _PHASES:
                move_share(moved, tau, task, tasks)
            task = next_task(memory.counters, tasks, phase, first, task)
    if thread == 0:
        count_steps(critic_optimizer, 1)
        stats[CRITIC_LOSS] = memory.notes[0].sum()
        if with_actor:
            count_steps(actor_optimizer, 1)
            stats[ACTOR_LOSS] = -memory.notes[1].sum() / batch.rewards.shape[0]
