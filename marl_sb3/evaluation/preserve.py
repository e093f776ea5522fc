"""Restore, after an evaluation, all state of a training that acting changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

import numpy as np
import torch as th

from marl_sb3.storage.process_rng import preserve_rng
from marl_sb3.training.algorithm import MultiAgentAlgorithm


@contextmanager
def preserve_training_state(algo: MultiAgentAlgorithm, seed: int | None = None) -> Iterator[None]:
    """Put back, at the end, what acting changes: global random generators, and the modes and noise of policies.

    Inside, the generators of PyTorch (CUDA's too, where it is in use), NumPy and Python are seeded.

    Args:
        algo: whose policies may act.
        seed: for the generators; None takes the operating system's entropy.
    """
    modes = [(module, module.training) for a in algo.policies.values() for module in a.policy.modules()]
    # gSDE's noise is kept by the distribution of the actions: a new one is drawn on a copy.
    noisy = [(a.policy, a.policy.action_dist) for a in algo.policies.values() if getattr(a, "use_sde", False)]
    with preserve_rng():
        try:
            for policy, distribution in noisy:
                policy.action_dist = copy(distribution)
            _seed_generators(seed)
            yield
        finally:
            for module, training in modes:
                module.training = training
            for policy, distribution in noisy:
                policy.action_dist = distribution


def _seed_generators(seed: int | None) -> None:
    of_torch, of_numpy, of_python = np.random.SeedSequence(seed).generate_state(3).tolist()
    th.default_generator.manual_seed(of_torch)
    if th.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # Otherwise the seed would wait for the first use of CUDA, a training's perhaps.
        th.cuda.manual_seed_all(of_torch)
    np.random.seed(of_numpy)  # noqa: NPY002 - the global one is meant: SB3's
    random.seed(of_python)
