"""Restore the state of a training that an evaluation changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch as th

from marl_sb3.acting.bundle import PolicyBundle
from marl_sb3.sb3.noise import preserve_noise
from marl_sb3.storage.process_rng import preserve_rng
from marl_sb3.training.algorithm import MultiAgentAlgorithm


@contextmanager
def preserve_training_state(algo: MultiAgentAlgorithm | PolicyBundle, seed: int | None = None) -> Iterator[None]:
    """Restore on exit what acting changes: global random generators, and the modes and noise of policies.

    Inside, the generators of PyTorch (and of CUDA, if it is in use), NumPy and Python are seeded.

    Args:
        algo: the algorithm or bundle that acts.
        seed: seed of the generators; None: from the operating system's entropy.
    """
    modes = [(module, module.training) for a in algo.policies.values() for module in a.policy.modules()]
    with preserve_rng(), preserve_noise(algo.policies.values()):
        try:
            _seed_generators(seed)
            yield
        finally:
            for module, training in modes:
                module.training = training


def _seed_generators(seed: int | None) -> None:
    of_torch, of_numpy, of_python = np.random.SeedSequence(seed).generate_state(3).tolist()
    th.default_generator.manual_seed(of_torch)
    if th.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # Not before the first use of CUDA: PyTorch would keep the seed for that use, possibly by a training.
        th.cuda.manual_seed_all(of_torch)
    np.random.seed(of_numpy)  # noqa: NPY002 - SB3 uses the global generator
    random.seed(of_python)
