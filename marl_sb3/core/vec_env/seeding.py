"""All seeds that follow from the seed of a run."""

from __future__ import annotations

import numpy as np

_SEED_BITS = 31  # some envs, such as Atari's, pass the seed to a signed 32-bit C integer


def episode_seed(run_seed: int, env_index: int, episode_index: int) -> int:
    """Return the seed of one episode, in [0, 2**31).

    It depends on the arguments alone, and not on the number of envs or earlier episodes. Seeds are hashes of (env,
    episode) pairs: the probability that two of n seeds are equal is about n**2 / 2**32.
    """
    sequence = np.random.SeedSequence(run_seed, spawn_key=(env_index, episode_index))
    return int(sequence.generate_state(1)[0]) >> (32 - _SEED_BITS)


def shard_seed(run_seed: int, shard: int) -> int:
    """Return the run seed of the envs in one shard, in [0, 2**31)."""
    sequence = np.random.SeedSequence(run_seed, spawn_key=(shard, 0, 0))  # three numbers: no other key has so many
    return int(sequence.generate_state(1)[0]) >> (32 - _SEED_BITS)


def assignment_rng(run_seed: int, env_index: int, episode_index: int) -> np.random.Generator:
    """Return the generator by which an `Assignment` chooses the policies of an episode."""
    # Three numbers as those of shards, whose last one is 0.
    return np.random.default_rng(np.random.SeedSequence(run_seed, spawn_key=(env_index, episode_index, 1)))


def fresh_seed() -> int:
    """Return a seed in [0, 2**31) from the operating system's entropy."""
    return int(np.random.SeedSequence().generate_state(1)[0]) >> (32 - _SEED_BITS)


def derived_seed(seed: int, number: int) -> int:
    """Return one of many seeds that follow from a seed."""
    return int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1)[0])
