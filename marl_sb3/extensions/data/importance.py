"""How much each column of a table distinguishes its best rows, and how much of it may be chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from marl_sb3.types import Array

_N_SHUFFLES = 500
_GRID = np.linspace(0, 1, 41)
_BANDWIDTH = 0.1  # of the kernels, as a share of the rows


def importances(columns: Mapping[str, Sequence[float | str | None]]) -> dict[str, tuple[float, float]]:
    """How much each parameter distinguishes the best quarter of the trials of a search from all of them.

    The importance is that of Watanabe et al., "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in
    Arbitrary Subspaces", IJCAI 2023: the Pearson divergence of the distribution of the parameter in the best trials
    from that in all trials, as a share of the sum over all parameters. The distributions of numbers are those of their
    ranks: the divergence is the same on any scale, and one bandwidth fits all.

    Args:
        columns: for each parameter its value in each trial, best trial first: numbers, or choices as text; None, which
            counts as a choice, where a trial lacks it.

    Returns:
        For each parameter its importance, and the 95 % quantile of what it would be if the values of the trials were
        shuffled, so that no parameter mattered.
    """
    n = max((len(column) for column in columns.values()), default=0)
    n_best = math.ceil(n / 4)
    rng = np.random.default_rng(0)  # the same trials give the same result
    shuffled = rng.permuted(np.tile(np.arange(n), (_N_SHUFFLES, 1)), axis=1)
    shares = (np.vstack([np.arange(n), shuffled]) < n_best) / max(n_best, 1)  # (1 + shuffles, n): their own order first
    divergences = {name: _divergences(shares, _densities(column)) for name, column in columns.items()}
    total = sum(each[0] for each in divergences.values()) or 1.0
    return {name: (float(d[0] / total), float(np.quantile(d[1:], 0.95) / total)) for name, d in divergences.items()}


def _divergences(shares: Array, densities: Array) -> Array:
    """For each row of shares, the Pearson divergence of the weighted mean of the densities from their mean."""
    among_all = densities.mean(axis=0)
    result: Array = ((shares @ densities - among_all) ** 2 / among_all).sum(axis=1)
    return result


def _densities(column: Sequence[float | str | None]) -> Array:
    """(n, cells): around each value a distribution over the ranks of numbers, or over choices."""
    is_number = np.array([isinstance(value, int | float) for value in column])
    numbers = np.array([value for value in column if isinstance(value, int | float)], dtype=float)
    _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ranks = ((np.cumsum(counts) - counts / 2) / max(len(numbers), 1))[places]
    kernels = np.exp(-0.5 * ((ranks[:, None] - _GRID) / _BANDWIDTH) ** 2)
    among_ranks = np.zeros((len(column), len(_GRID)))
    among_ranks[is_number] = kernels / kernels.sum(axis=1, keepdims=True)
    texts = np.array([str(value) for value in column])
    among_choices = (texts[:, None] == np.unique(texts[~is_number])).astype(float)
    cells = np.hstack([among_ranks, among_choices])
    return cells[:, cells.any(axis=0)]
