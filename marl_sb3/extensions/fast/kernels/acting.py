"""What is computed in rollouts, in few calls: for few rows, a call from Python costs as much as a net."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_sb3.compiling import kernel, strict_entry
from marl_sb3.extensions.fast.kernels.distributions import sample
from marl_sb3.extensions.fast.kernels.layers import LINEAR
from marl_sb3.extensions.fast.kernels.mlp import Inputs, Net, forward
from marl_sb3.types import Array, BoolArray, FloatArray


@kernel
def one_hot(numbers: Array, sizes: Array) -> int:
    """Turn numbers into the positions of ones, in place; see `Inputs`.

    Args:
        numbers: (rows, parts) int64.
        sizes: (parts,) int64; the number of values of each part.

    Returns:
        The first row with a number that is out of range, where it stops; -1 if there is none.
    """
    for i in range(numbers.shape[0]):
        start = 0
        for k in range(sizes.shape[0]):
            if not 0 <= numbers[i, k] < sizes[k]:
                return i
            numbers[i, k] += start
            start += sizes[k]
    return -1


# Arrays in tuples cost more than arrays.


@kernel
def outputs_of(
    table: Array, hidden: int, last: int, indices: Array, floats: FloatArray, work: FloatArray
) -> FloatArray:
    """Run a net; arguments as in `Net`, `Inputs` and `forward`."""
    return forward(Net(table, hidden, last), Inputs(indices, floats), work)


@kernel
def outputs_of_both(
    pi: Array,
    vf: Array,
    hidden: int,
    indices: Array,
    floats: FloatArray,
    pi_work: FloatArray,
    vf_work: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Run actor and critic in one call."""
    inputs = Inputs(indices, floats)
    return forward(Net(pi, hidden, LINEAR), inputs, pi_work), forward(Net(vf, hidden, LINEAR), inputs, vf_work)


@kernel
def draw(
    pi: Array,
    vf: Array,
    hidden: int,
    indices: Array,
    floats: FloatArray,
    pi_work: FloatArray,
    vf_work: FloatArray,
    allowed: FloatArray,
    sizes: Array,
    noise: FloatArray,
) -> tuple[Array, FloatArray, FloatArray]:
    """Run actor and critic, and draw from categorical distributions; arguments as of `outputs_of_both` and `sample`.

    Returns:
        Actions (rows, sub-distributions) int64, values (rows,) and log-probabilities (rows,).
    """
    inputs = Inputs(indices, floats)
    outputs = forward(Net(pi, hidden, LINEAR), inputs, pi_work)
    of_critic = forward(Net(vf, hidden, LINEAR), inputs, vf_work)
    values = np.empty(of_critic.shape[0], np.float32)
    for i in range(values.shape[0]):
        values[i] = of_critic[i, 0]
    actions, log_probs = sample(outputs, allowed, sizes, noise)
    return actions, values, log_probs


@strict_entry
def estimate(
    rewards: FloatArray,
    values: FloatArray,
    starts: FloatArray,
    acted: BoolArray,
    next_values: FloatArray,
    not_done: FloatArray,
    gamma: Any,
    decay: Any,
    advantages: FloatArray,
) -> None:
    """GAE with the bits of `TurnAwareRollout.compute_returns_and_advantage`.

    Args:
        rewards: (steps, rows) float32, as also the values, whether an episode starts, and, as bool, who acted.
        values: see `rewards`.
        starts: see `rewards`.
        acted: see `rewards`.
        next_values: (rows,) float32; the values after the last transitions. Changed.
        not_done: (rows,) float32; 1 where the last transition did not end the episode, 0 where it did. Changed.
        gamma: the discount, float32.
        decay: the discount times lambda, float32.
        advantages: (steps, rows) float32; filled.
    """
    steps, rows = rewards.shape
    advantage = np.zeros(rows, np.float32)
    for step in range(steps - 1, -1, -1):
        for i in range(rows):
            if acted[step, i]:
                delta = rewards[step, i] + gamma * next_values[i] * not_done[i] - values[step, i]
                advantage[i] = delta + decay * not_done[i] * advantage[i]
                next_values[i] = values[step, i]
                not_done[i] = np.float32(1.0) - starts[step, i]
            advantages[step, i] = advantage[i]
