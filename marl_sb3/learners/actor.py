"""Choose actions for the rows of a policy: the one place that knows of rows that do not act."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import StateDependentNoiseDistribution

from marl_sb3.policies.placement import PolicyRows
from marl_sb3.storage.state import StateReader
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.observations import map_arrays


class PolicyActor:
    """Acts for the rows of one policy by SB3's `predict`, outside of its training; it owns the noise of gSDE.

    Args:
        rows: the rows of the policy, in any env with the agents of its training.
        algorithm: its SB3 algorithm.
        deterministic: the most likely actions instead of sampled ones.
    """

    def __init__(self, rows: PolicyRows, algorithm: BaseAlgorithm, deterministic: bool) -> None:
        self.rows = rows
        self._algorithm: Any = algorithm
        self._deterministic = deterministic
        self._step = 0

    def act(self, groups: Sequence[Observations], to_act: BoolArray) -> Array:
        """Choose actions.

        Args:
            groups: per group of agents, observations `(E, A_group, ...)`.
            to_act: (E, all agents) bool.

        Returns:
            `(rows, *action shape)`, as the env takes them; zeros in rows that do not act.
        """
        self._draw_noise()
        space = self._algorithm.action_space
        nothing = np.zeros((self.rows.num_rows, *(space.shape or ())), dtype=space.dtype)
        acting, policy = self.rows.of_agents(to_act), self._algorithm.policy
        (actions,) = of_acting_rows(self._predict, self.rows.observations(groups), acting, policy, [nothing])
        return actions

    def _draw_noise(self) -> None:
        """As often as in the training."""
        if getattr(self._algorithm, "use_sde", False):
            every = self._algorithm.sde_sample_freq
            if self._step == 0 or (every > 0 and self._step % every == 0):
                self._algorithm.policy.reset_noise(self.rows.num_rows)
        self._step += 1

    def _predict(self, observations: Observations) -> tuple[Array, ...]:
        actions, _ = self._algorithm.predict(observations, deterministic=self._deterministic)
        return (actions,)


def of_acting_rows(
    decide: Callable[[Observations], Sequence[Array]],
    observations: Observations,
    acting: BoolArray,
    policy: Any,
    nothing: Sequence[Array],
) -> Sequence[Array]:
    """What a policy decides for the rows that act.

    Filler observations of the other rows need not lie in the space: they stay out of the network.

    Args:
        decide: from observations (n, ...) to arrays of (n, ...).
        observations: (rows, ...).
        acting: (rows,) bool.
        policy: the SB3 policy behind `decide`.
        nothing: what the other rows get; arrays of (rows, ...), which are written to.
    """
    if acting.all():
        return decide(observations)
    if acting.any():
        with _noise_of_rows(policy, acting):
            decided = decide(map_arrays(lambda array: array[acting], observations))
        for everywhere, chosen in zip(nothing, decided, strict=True):
            everywhere[acting] = chosen
    return nothing


@contextmanager
def _noise_of_rows(policy: Any, acting: BoolArray) -> Iterator[None]:
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


def read_noise_matrices(policy: Any, rows: int, state: StateReader, name: str) -> Array:
    """What `noise_matrices` returned for so many rows.

    Raises:
        CheckpointError: it does not fit the policy.
    """
    drawn = policy.action_dist.exploration_mat
    return state.array(name, drawn.detach().cpu().numpy().dtype, (rows + 1, *drawn.shape))


def noise_matrices(policy: Any) -> Array:
    """(rows + 1, features, actions): gSDE's matrix for a single observation, and one for each row."""
    drawn = policy.action_dist
    matrices: Array = th.cat([drawn.exploration_mat[None], drawn.exploration_matrices]).detach().cpu().numpy()
    return matrices


def set_noise_matrices(policy: Any, matrices: Array) -> None:
    """Put back what `noise_matrices` returned."""
    drawn = th.as_tensor(matrices, device=policy.action_dist.exploration_mat.device)
    policy.action_dist.exploration_mat, policy.action_dist.exploration_matrices = drawn[0], drawn[1:]
