"""Compiled rules draw what NumPy's generator of the episode would draw."""

from __future__ import annotations

import numpy as np
from compiling_once import from_python

from marl_sb3.compiling import seed_words
from marl_sb3.envs.compiled.random import generator_of, integers, random, seed_generator, uniform, words_of


def test_numbers_are_those_of_numpy() -> None:
    for seed in (*range(100), 2**31 - 1, 2**64):
        rng = np.random.default_rng(seed)
        rng.random(seed % 5)
        words = words_of(rng)
        assert [random(words) for _ in range(5)] == rng.random(5).tolist()
        assert [uniform(words, -0.05, 3.0) for _ in range(5)] == rng.uniform(-0.05, 3.0, 5).tolist()
        assert words.tolist() == words_of(rng).tolist()
        assert generator_of(words).random(3).tolist() == rng.random(3).tolist()


def test_integers_are_those_of_numpy() -> None:
    most = [3, 1, 2, 3, 10, 2**31 + 1, 3, 2**32 - 1, 2**32, 7, 3 * 2**30]  # of some, a half of the draws is rejected
    for seed in range(100):
        rng = np.random.default_rng(seed)
        words, half = words_of(rng), np.zeros(2, np.uint64)
        assert [integers(words, each, half) for each in most] == [rng.integers(each) for each in most]
        assert random(words) == rng.random()  # of a whole word
        assert half.tolist() == [rng.bit_generator.state["has_uint32"], rng.bit_generator.state["uinteger"]]


def test_generators_of_seeds_are_those_of_numpy() -> None:
    for seed in (*range(50), 2**31 - 1, 2**32, 2**63 - 1):
        words = np.empty(4, np.uint64)
        from_python(seed_generator)(seed, words)
        assert words.tolist() == words_of(np.random.default_rng(seed)).tolist()


def test_seeds_of_episodes_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for words in (1, 2, 5, 6):
        entropy = rng.integers(2**32, size=words, dtype=np.uint64)
        sequence = np.random.SeedSequence(sum(int(word) << 32 * k for k, word in enumerate(entropy)), spawn_key=(7, 12))
        given = np.array([*entropy, *[0] * (4 - words), 7, 12], np.uint64)
        found = np.empty(9, np.uint64)
        from_python(seed_words)(given, found)
        assert found.tolist() == sequence.generate_state(9).tolist()
