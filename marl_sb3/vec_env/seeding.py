"""Seeds of episodes: run seed -> env index -> episode index, through `numpy.random.SeedSequence`."""

from __future__ import annotations

import numpy as np

_SEED_BITS = 31  # `reset(seed=...)` ends in a signed 32-bit C integer in some envs (the Atari ones, say)


def episode_seed(run_seed: int, env_index: int, episode_index: int) -> int:
    """The seed of one episode, in [0, 2**31).

    It depends on nothing else: not on the number of envs, nor on what ran before. Seeds of different
    (env, episode) pairs are hashes of the pair, so that two of n coincide with a chance of about n**2 / 2**32.
    """
    sequence = np.random.SeedSequence(run_seed, spawn_key=(env_index, episode_index))
    return int(sequence.generate_state(1)[0]) >> (32 - _SEED_BITS)


def fresh_seed() -> int:
    """A seed from the operating system's entropy, in [0, 2**31)."""
    return int(np.random.SeedSequence().generate_state(1)[0]) >> (32 - _SEED_BITS)
