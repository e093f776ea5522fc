"""Optuna's samplers and pruners for a search."""

from __future__ import annotations

import numpy as np
import optuna

from marl_sb3.tuning.search import Search


def sampler(search: Search, index: int) -> optuna.samplers.BaseSampler:
    """The sampler for one trial, seeded by the search's seed and the trial's index."""
    seed = int(np.random.SeedSequence(search.seed, spawn_key=(index, 1)).generate_state(1)[0])
    if search.sampler == "tpe":
        # constant_liar counts running trials as bad ones, so that workers do not try similar settings at once.
        n_startup_trials = min(10, max(1, search.trials // 3))
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=n_startup_trials, constant_liar=True)
    if search.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def pruner(search: Search) -> optuna.pruners.BasePruner:
    """The pruner; it prunes no trial in its first third, because low learning rates start slowly."""
    third = max(1, search.evaluations // 3)
    if search.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=third + 1, n_min_trials=2)
    if search.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=third, reduction_factor=3)
    return optuna.pruners.NopPruner()
