"""Compiled rules draw what NumPy's generator of the episode would draw."""

from __future__ import annotations

import numpy as np

from marl_sb3.envs.compiled.random import generator_of, random, uniform, words_of


def test_numbers_are_those_of_numpy() -> None:
    for seed in (*range(100), 2**31 - 1, 2**64):
        rng = np.random.default_rng(seed)
        rng.random(seed % 5)
        words = words_of(rng)
        assert [random(words) for _ in range(5)] == rng.random(5).tolist()
        assert [uniform(words, -0.05, 3.0) for _ in range(5)] == rng.uniform(-0.05, 3.0, 5).tolist()
        assert words.tolist() == words_of(rng).tolist()
        assert generator_of(words).random(3).tolist() == rng.random(3).tolist()
