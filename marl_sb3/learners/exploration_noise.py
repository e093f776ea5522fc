"""gSDE's noise where only some rows of a policy act."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.distributions import StateDependentNoiseDistribution

from marl_sb3.types import BoolArray


@contextmanager
def noise_of_rows(policy: Any, acting: BoolArray) -> Iterator[None]:
    """Let the acting rows use their own noise matrices.

    gSDE (Raffin et al. 2021, https://arxiv.org/abs/2005.05719) draws one matrix per row. SB3 finds a row's matrix by
    its position in the batch, and gives all rows the same one if the batch has another length. A batch of the acting
    rows alone therefore needs their matrices picked out. Policies without gSDE are left alone.

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
