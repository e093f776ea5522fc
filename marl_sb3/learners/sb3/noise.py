"""The exploration noise of gSDE, which SB3 keeps in a policy's action distribution.

gSDE (Raffin et al. 2021, https://arxiv.org/abs/2005.05719) draws one matrix per row and uses it for several steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import StateDependentNoiseDistribution

from marl_sb3.storage.state import StateReader
from marl_sb3.types import Array, BoolArray


def uses_noise(algorithm: BaseAlgorithm) -> bool:
    """Whether the algorithm explores by gSDE."""
    return bool(getattr(algorithm, "use_sde", False))


def draw_noise(algorithm: Any, rows: int) -> None:
    """Draw a matrix for each of so many rows."""
    algorithm.policy.reset_noise(rows)


def is_noise_due(algorithm: Any, step: int) -> bool:
    """Whether SB3 draws new matrices before this step of a rollout, counted from 0."""
    every: int = algorithm.sde_sample_freq
    return every > 0 and step % every == 0


@contextmanager
def noise_of_rows(policy: Any, acting: BoolArray) -> Iterator[None]:
    """Let the acting rows use their own matrices.

    SB3 finds a row's matrix by its position in the batch, and gives all rows the same one if the batch has another
    length. A batch of the acting rows alone therefore needs their matrices picked out. Policies without gSDE are left
    alone.

    Args:
        policy: an SB3 policy whose noise was drawn for all rows.
        acting: (rows,) bool; the rows that are evaluated inside, in this order.
    """
    distribution: Any = getattr(policy, "action_dist", None)
    if not _has_noise_for(distribution, len(acting)) or acting.all():
        yield
        return
    drawn = distribution.exploration_mat, distribution.exploration_matrices
    rows = th.as_tensor(np.flatnonzero(acting), device=drawn[1].device)
    distribution.exploration_matrices = drawn[1][rows]
    if len(rows) == 1:  # SB3 reads the single matrix for a batch of one
        distribution.exploration_mat = distribution.exploration_matrices[0]
    try:
        yield
    finally:
        distribution.exploration_mat, distribution.exploration_matrices = drawn


def _has_noise_for(distribution: Any, rows: int) -> bool:
    """Whether there is a matrix per row; if a callback drew another number of them, all rows share one, as in SB3."""
    return isinstance(distribution, StateDependentNoiseDistribution) and len(distribution.exploration_matrices) == rows


@contextmanager
def preserve_noise(algorithms: Iterable[Any]) -> Iterator[None]:
    """Put the noise of these algorithms back at the end: inside, it is drawn on a copy of the distribution."""
    noisy = [(a.policy, a.policy.action_dist) for a in algorithms if uses_noise(a)]
    try:
        for policy, distribution in noisy:
            policy.action_dist = copy(distribution)
        yield
    finally:
        for policy, distribution in noisy:
            policy.action_dist = distribution


# --- State -----------------------------------------------------------------------------------------------------------


def noise_matrices(policy: Any) -> Array:
    """(rows + 1, features, actions): the matrix for a single observation, and one for each row."""
    drawn = policy.action_dist
    matrices: Array = th.cat([drawn.exploration_mat[None], drawn.exploration_matrices]).detach().cpu().numpy()
    return matrices


def read_noise_matrices(policy: Any, rows: int, state: StateReader, name: str) -> Callable[[], None]:
    """Check what `noise_matrices` returned for so many rows.

    Returns:
        What puts it back.

    Raises:
        CheckpointError: it does not fit the policy.
    """
    own = policy.action_dist.exploration_mat
    matrices = state.array(name, own.detach().cpu().numpy().dtype, (rows + 1, *own.shape))

    def put_back() -> None:
        drawn = th.as_tensor(matrices, device=own.device)
        policy.action_dist.exploration_mat, policy.action_dist.exploration_matrices = drawn[0], drawn[1:]

    return put_back
