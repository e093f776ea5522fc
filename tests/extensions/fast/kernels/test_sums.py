"""The kernels of processing add up as NumPy does."""

from __future__ import annotations

import numpy as np

from marl_sb3.extensions.fast.kernels.processing import sum_of


def test_sums_are_those_of_numpy_to_the_last_bit() -> None:
    numbers = np.random.default_rng(0).normal(size=3000)
    python = sum_of.py_func  # type: ignore[attr-defined]
    for size in (1, 7, 8, 9, 20, 127, 128, 129, 140, 200, 257, 1000, 3000):
        assert python(numbers[:size]) == numbers[:size].sum()
