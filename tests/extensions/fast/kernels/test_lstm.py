"""Sequences of LSTMs in kernels: outputs and gradients are PyTorch's, by hand-made cases."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch as th
from numba import njit
from torch import nn

from marl_sb3.extensions.fast.fused_recurrent import lstm_table, sequences_of
from marl_sb3.extensions.fast.kernels.lstm import (
    DELTAS,
    HIDDEN,
    return_sequences,
    run_sequences,
    sequence_memory,
    times,
    times_transposed,
)
from marl_sb3.extensions.fast.kernels.mlp import Inputs
from marl_sb3.types import Array

WIDE = 130  # no multiple of four, and large enough for products that are not BLAS's


@pytest.mark.parametrize("rows", [1, 3, 14, 15, 22, 33])
@pytest.mark.parametrize("copies", [False, True])
def test_products_of_a_few_rows(rows: int, copies: bool) -> None:
    rng = np.random.default_rng(rows)
    inputs, outputs, weight = (
        rng.normal(size=shape).astype(np.float32) for shape in ((rows, WIDE), (rows, 4 * WIDE), (4 * WIDE, WIDE))
    )
    products = np.full((rows, 4 * WIDE), np.nan, np.float32)
    copy = np.ascontiguousarray(weight.T) if copies else np.empty((0, 4 * WIDE), np.float32)
    called(times_transposed, inputs, weight, copy, products)
    np.testing.assert_allclose(products, inputs @ weight.T, atol=1e-4)
    products = np.full((rows, WIDE), np.nan, np.float32)
    called(times, outputs, weight, products)
    np.testing.assert_allclose(products, outputs @ weight, atol=3e-4)


@cache
def entry(inner: Any) -> Any:
    """Make an entry point for Python of an inner kernel, which has none."""
    return njit(lambda *given: inner(*given))  # noqa: PLW0108 - numba takes the first one only


def called(inner: Any, *arguments: Any) -> None:
    entry(inner)(*arguments)


# Lengths of sequences, in their order; an episode starts with those of which the state is zero.
LENGTHS = {"one of one step": [1], "of different lengths": [2, 5, 1, 5, 3], "all of one step": [1, 1, 1], "one": [6]}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("seen", ["numbers", "categories"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_outputs_and_gradients_are_those_of_pytorch(lengths: list[int], seen: str, layers: int) -> None:
    size, columns, rows = 3, 4, sum(lengths)
    th.manual_seed(0)
    lstm = nn.LSTM(columns, size, layers)
    rng = np.random.default_rng(1)
    if seen == "numbers":
        floats, indices = rng.normal(size=(rows, columns)).astype(np.float32), np.empty((rows, 0), np.int64)
        dense = floats
    else:
        floats, indices = np.empty((rows, 0), np.float32), rng.integers([0, 2], [2, 4], size=(rows, 2))
        dense = np.zeros((rows, columns), np.float32)
        np.put_along_axis(dense, indices, 1.0, axis=1)
    states = rng.normal(size=(2, layers, len(lengths), size)).astype(np.float32)
    states[:, :, ::2] = 0.0
    wanted = rng.normal(size=(rows, size)).astype(np.float32)
    of_sequence, order, active = in_time(lengths)
    moved = np.ascontiguousarray(lstm.weight_ih_l0.detach().numpy().T)
    table = lstm_table(lstm, {lstm.weight_ih_l0.data_ptr(): moved.ctypes.data} if seen == "categories" else {})
    places, kept = sequence_memory(layers, size, rows + 2, len(lengths) + 1)
    inputs = Inputs(indices[order], floats[order])
    given = [np.ascontiguousarray(each[:, of_sequence]) for each in states]
    called(run_sequences, table, size, inputs, active, *given, places)
    kept[6 * layers + DELTAS][: rows * size] = wanted[order].reshape(-1)
    grad = np.full(sum(each.numel() for each in lstm.parameters()), np.nan, np.float32)
    outputs = kept[6 * (layers - 1) + HIDDEN][: rows * size].reshape(rows, size)
    called(return_sequences, table, size, inputs, active, places, grad)

    expected, start = np.empty((rows, size), np.float32), 0
    for i, length in enumerate(lengths):
        part = slice(start, start + length)
        found, _ = lstm(
            th.from_numpy(dense[part])[:, None], tuple(th.from_numpy(each[:, i : i + 1]) for each in states)
        )
        expected[part] = found[:, 0].detach().numpy()
        (found[:, 0] * th.from_numpy(wanted[part])).sum().backward()
        start += length
    np.testing.assert_allclose(outputs, expected[order], atol=1e-6)
    place = 0
    for name, parameter in lstm.named_parameters():
        own = parameter.grad.numpy()
        own = own.T if (seen, name) == ("categories", "weight_ih_l0") else own
        np.testing.assert_allclose(grad[place : place + own.size].reshape(own.shape), own, atol=1e-5, err_msg=name)
        place += own.size
    assert place == len(grad)


def in_time(lengths: list[int]) -> tuple[Array, Array, Array]:
    """The sequences from the longest one, their rows in the order of kernels, and how many have each step."""
    starts = np.cumsum([0, *lengths[:-1]])
    by_length = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    rows = [starts[i] + step for step in range(max(lengths)) for i in by_length if lengths[i] > step]
    active = [sum(length > step for length in lengths) for step in range(max(lengths))]
    return np.array(by_length), np.array(rows), np.array(active)


def test_minibatches_are_cut_where_episodes_rows_and_they_themselves_begin() -> None:
    """Two rows of five samples, an episode starts at 0, 3, 5 and 6; minibatches of 4, the last one of 2."""
    first, row_first = np.zeros(10, bool), np.zeros(10, bool)
    first[[0, 3, 5, 6]] = row_first[[0, 5]] = True
    order = np.roll(np.arange(10), -1)  # 1 2 | 3 4 ; 5 | 6 7 8 ; 9 | 0
    made, needed = sequences_of(order[None], np.array([0, 4, 8, 10]), first, row_first)
    assert made.orders.tolist() == [[1, 3, 2, 4, 6, 5, 7, 8, 9, 0]]
    assert np.split(made.active, made.step_bounds[1:-1])[0].tolist() == [2, 2]
    assert made.active.tolist() == [2, 2, 2, 1, 1, 2]
    assert made.step_bounds.tolist() == [0, 2, 5, 6]
    assert made.begin_bounds.tolist() == [0, 2, 4, 6]
    # 1 and 9 go on from stored states; where episodes start, states are zero.
    assert [-1 if place < 0 else int(needed[place]) for place in made.begins] == [1, -1, -1, -1, 9, -1]
