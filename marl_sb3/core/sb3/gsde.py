"""The exploration noise of gSDE, which SB3 keeps in a policy's action distribution.

gSDE (Raffin et al. 2021, https://arxiv.org/abs/2005.05719) draws one matrix per row and uses it for several steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from operator import attrgetter
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import StateDependentNoiseDistribution

from marl_sb3.core.state import Field, StateReader
from marl_sb3.types import Array, BoolArray


def uses_noise(algorithm: BaseAlgorithm) -> bool:
    """Whether the algorithm explores by gSDE."""
    return bool(getattr(algorithm, "use_sde", False))


def _noisy(policy: Any) -> Any:
    """The module with the action distribution: the actor of an off-policy policy, else the policy itself."""
    return policy.actor if isinstance(getattr(policy, "actor", None), th.nn.Module) else policy


@contextmanager
def noise_of_rows(policy: Any, acting: BoolArray) -> Iterator[None]:
    """Select the noise matrices of the acting rows inside the context.

    SB3 finds a row's matrix by the row's position in the batch, and uses one matrix for all rows if the batch has
    another length. A batch of only the acting rows therefore needs a selection of matrices. Without gSDE nothing
    changes.

    Args:
        policy: an SB3 policy whose noise was drawn for all rows.
        acting: (rows,) bool; the rows of the batch that is evaluated inside the context, in this order.
    """
    distribution: Any = getattr(_noisy(policy), "action_dist", None)
    noisy = isinstance(distribution, StateDependentNoiseDistribution)
    # If a callback drew another number of matrices, all rows share one, as in SB3.
    if not noisy or len(distribution.exploration_matrices) != len(acting) or acting.all():
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


@contextmanager
def preserve_noise(algorithms: Iterable[Any]) -> Iterator[None]:
    """Restore the noise of these algorithms on exit: inside, noise is drawn on a copy of the distribution."""
    found = [(_noisy(a.policy), _noisy(a.policy).action_dist) for a in algorithms if uses_noise(a)]
    try:
        for module, distribution in found:
            module.action_dist = copy(distribution)
        yield
    finally:
        for module, distribution in found:
            module.action_dist = distribution


# --- State -----------------------------------------------------------------------------------------------------------


def noise(path: str) -> Field:
    """The noise matrices of an algorithm, an attribute: that for a single observation, then one for each row drawn.

    None without gSDE.
    """
    get = attrgetter(path)

    def matrices(owner: Any) -> Array | None:
        if not uses_noise(get(owner)):
            return None
        drawn = _noisy(get(owner).policy).action_dist
        joined: Array = th.cat([drawn.exploration_mat[None], drawn.exploration_matrices]).detach().cpu().numpy()
        return joined

    def read(owner: Any, state: StateReader, name: str) -> Array | None:
        own = matrices(owner)
        return state.null(name) if own is None else state.array(name, own.dtype, (None, *own.shape[1:]))

    def put(owner: Any, saved: Array | None) -> None:
        if saved is not None:
            distribution = _noisy(get(owner).policy).action_dist
            drawn = th.as_tensor(saved, device=distribution.exploration_mat.device)
            distribution.exploration_mat, distribution.exploration_matrices = drawn[0], drawn[1:]

    return Field(matrices, read, put)
