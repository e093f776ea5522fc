"""The fused way is as close to PyTorch as PyTorch is to itself with weights changed by one ulp, at any scale.

The short version of `benchmarks/fused_accuracy.py`; docs/fused_accuracy.md has the whole table.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch as th
from numba import njit

from marl_sb3.extensions.fast.kernels import acting, layers

MOST = 3.0  # times the distance that one ulp makes


@pytest.fixture
def accuracy(benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = benchmark("fused_accuracy")
    monkeypatch.setattr(module, "ULP_SEEDS", (1, 2))
    return module


@pytest.mark.parametrize("name", ["tanh-1", "tanh-100", "tanh-1e6", "tanh-ram", "tanh-saturated", "relu-1e6"])
def test_gradients_are_as_close_as_one_ulp(name: str, accuracy: ModuleType) -> None:
    found = accuracy.gradient_distances(accuracy.CASES[name])
    assert found.fused < MOST * found.ulp
    assert found.fused_64 < MOST * max(found.ulp, found.torch_64)


@pytest.mark.parametrize("name", ["tanh-100", "tanh-1e6", "tanh-gaussian-1e4"])
def test_weights_after_several_updates_are_as_close_as_one_ulp(name: str, accuracy: ModuleType) -> None:
    found = accuracy.weight_distances(accuracy.CASES[name], rollouts=2)
    assert found.fused < MOST * found.ulp
    assert found.fused_64 < MOST * max(found.ulp, found.torch_64)


def kernel_tanh(x: np.ndarray) -> np.ndarray:
    """The hidden layer of a net whose weights are 1 and whose biases are 0."""
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    layer = (1, 1, one.ctypes.data, zero.ctypes.data)
    none, floats = np.empty((len(x), 0), np.int64), x.astype(np.float32).reshape(-1, 1)
    net = np.array([layer, layer]), layers.TANH, layers.LINEAR
    return acting.outputs_of(*net, none, floats, np.empty(2 * len(x), np.float32)).reshape(-1).copy()


def test_tanh_is_within_three_ulp_of_the_true_value() -> None:
    x = np.concatenate([np.logspace(-37, -1, 20_000), np.linspace(0.1, 12, 200_000)]).astype(np.float32)
    true = np.tanh(x.astype(np.float64))
    ulp = np.spacing(np.nextafter(true.astype(np.float32), np.float32(0))).astype(np.float64)
    assert (np.abs(kernel_tanh(x) - true) / ulp).max() < 3
    np.testing.assert_array_equal(kernel_tanh(-x), -kernel_tanh(x))


def test_tanh_saturates_where_pytorchs_does() -> None:
    x = np.concatenate([np.linspace(5, 12, 100_000), np.logspace(1, 38, 1_000), [np.inf]]).astype(np.float32)
    found, expected = kernel_tanh(x), th.tanh(th.as_tensor(x)).numpy()
    assert np.abs(found - expected).max() <= 2**-24  # neighbours below 1
    assert (found != expected).mean() < 0.02
    surely = (x < 8.9) | (x > 9.1)
    np.testing.assert_array_equal((found == 1)[surely], (expected == 1)[surely])
    assert (found[x > 9.1] == 1).all()


def test_tanh_keeps_what_is_tiny_or_no_number() -> None:
    x = np.array([0.0, 1e-45, -1e-40, np.nan, -np.inf], np.float32)
    np.testing.assert_array_equal(kernel_tanh(x), np.array([0.0, 1e-45, -1e-40, np.nan, -1.0], np.float32))


def test_exp_is_within_two_ulp_of_the_true_value_and_ends_in_zero_and_infinity() -> None:
    @njit
    def exp_of(x: np.ndarray, result: np.ndarray) -> None:
        for i in range(len(x)):
            result[i] = exp(x[i])

    exp, ends = layers.exp, [np.nan, -np.inf, -1e8, -104.5, 0.0, 88.73, 1e8, np.inf]
    x = np.concatenate([np.linspace(-87, 88.7, 200_000), np.linspace(-1, 1, 200_000), ends]).astype(np.float32)
    found = np.empty_like(x)
    exp_of(x, found)
    true = np.exp(x[: -len(ends)].astype(np.float64))
    assert (np.abs(found[: -len(ends)] - true) / np.spacing(true.astype(np.float32))).max() < 2
    np.testing.assert_array_equal(found[-len(ends) :], np.float32([np.nan, 0, 0, 0, 1, np.inf, np.inf, np.inf]))
