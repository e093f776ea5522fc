"""All seeds that follow from the seed of a run, of a search or of an evaluation, and what keeps them apart."""

from __future__ import annotations

from typing import Any

import numpy as np

_SEED_BITS = 31  # some envs, such as Atari's, pass the seed to a signed 32-bit C integer


class Stream:
    """How the spawn keys of NumPy's `SeedSequence` end, by what is drawn; the whole keys stand beside.

    Two streams of the same seed need other keys: they differ in their ends, or in how many numbers they have.
    """

    NUMBERED = ()  # (number): policies, lost envs, rounds of shards, workers, trials of a search
    EPISODES = ()  # (env, episode)
    ROLLBACKS = ()  # (count, count): episodes of env `count` in a training that has gone wrong `count` times
    ASSIGNMENTS = (1,)  # (env, episode, 1)
    SHARDS = (0, 0)  # (shard, 0, 0)
    OPPONENTS = (0, 0)  # (env, agent, 0, 0) in evaluations
    EXPLORATION = (0, 0, 0, 0)
    LEAGUE = (0,)  # (env, episode, agent, step, 0)
    SAMPLERS = (1,)  # (trial, 1), of the seed of a search as those below
    FINALS = (2,)  # (training, 2)
    FINAL_EVALUATIONS = (3,)  # (training, 3)
    POPULATION = (4,)  # (trial, 4)


FIRST_CLONED = 1000  # the number in `Stream.NUMBERED` of the first policy that is cloned
SEARCH_EVALUATIONS = 2**31  # the number in `Stream.NUMBERED` of the evaluations of a search
IMITATED_MINIBATCHES = 0x1417A7E  # stands beside the seed of a policy, whose other draws have the seed alone


def spawned(seed: Any, stream: tuple[int, ...], *numbers: int) -> np.random.SeedSequence:
    """Return the sequence of a `Stream` of a seed; None as a seed: from the operating system's entropy."""
    return np.random.SeedSequence(seed, spawn_key=(*numbers, *stream))


def seed_of(sequence: np.random.SeedSequence) -> int:
    """Return the seed in [0, 2**31) of a sequence."""
    return int(sequence.generate_state(1)[0]) >> (32 - _SEED_BITS)


def episode_seed(run_seed: int, env_index: int, episode_index: int) -> int:
    """Return the seed of one episode, in [0, 2**31).

    It depends on the arguments alone, and not on the number of envs or earlier episodes. Seeds are hashes of (env,
    episode) pairs: the probability that two of n seeds are equal is about n**2 / 2**32.
    """
    return seed_of(spawned(run_seed, Stream.EPISODES, env_index, episode_index))


def shard_seed(run_seed: int, shard: int) -> int:
    """Return the run seed of the envs in one shard, in [0, 2**31)."""
    return seed_of(spawned(run_seed, Stream.SHARDS, shard))


def assignment_rng(run_seed: int, env_index: int, episode_index: int) -> np.random.Generator:
    """Return the generator by which an `Assignment` chooses the policies of an episode."""
    return np.random.default_rng(spawned(run_seed, Stream.ASSIGNMENTS, env_index, episode_index))


def fresh_seed() -> int:
    """Return a seed in [0, 2**31) from the operating system's entropy."""
    return seed_of(np.random.SeedSequence())


def derived_seed(seed: int, number: int) -> int:
    """Return one of many seeds that follow from a seed, in [0, 2**32)."""
    return int(spawned(seed, Stream.NUMBERED, number).generate_state(1)[0])
