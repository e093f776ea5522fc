"""One step of an LSTM layer, as a float32 kernel compiled by numba.

Formulas: Hochreiter and Schmidhuber 1997, with the gates of PyTorch's LSTM in its order: input, forget, cell, output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_sb3.kernels.cache import inner_kernel, kernel
from marl_sb3.kernels.layers import tanh
from marl_sb3.kernels.nets import first_layer
from marl_sb3.types import Array, BoolArray, FloatArray

_f = np.float32
_ZERO, _HALF = _f(0.0), _f(0.5)
_Scalar = Any  # a float32, once compiled


@inner_kernel
def _sigmoid(x: _Scalar) -> _Scalar:
    return _HALF + _HALF * tanh(_HALF * x)


@kernel
def lstm_step(
    indices: Array,
    floats: FloatArray,
    one_hot: bool,
    starts: BoolArray,
    hidden: FloatArray,
    cell: FloatArray,
    by_input: FloatArray,
    by_hidden: FloatArray,
    bias: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Take one step in every row.

    Args:
        indices: (rows, ones) int64; one-hot inputs, by the positions of their ones.
        floats: (rows, inputs) float32; other inputs.
        one_hot: which of the two is used.
        starts: (rows,) bool; where an episode starts: the state counts as zero there.
        hidden: (rows, size) hidden state before the step.
        cell: (rows, size) cell state before the step.
        by_input: (inputs, 4 * size) weights.
        by_hidden: (size, 4 * size) weights.
        bias: (4 * size,).

    Returns:
        Hidden and cell state after the step, (rows, size) each. The hidden state is the output.
    """
    rows, size = hidden.shape
    kept = np.empty_like(hidden)
    for i in range(rows):
        for j in range(size):
            kept[i, j] = _ZERO if starts[i] else hidden[i, j]
    gates = np.empty((rows, 4 * size), np.float32)
    first_layer(indices, floats, one_hot, by_input, gates)
    remembered = np.dot(kept, by_hidden)
    new_cell = np.empty_like(hidden)
    for i in range(rows):
        row, more = gates[i], remembered[i]
        for j in range(4 * size):
            row[j] += more[j] + bias[j]
        for j in range(size):
            before = _ZERO if starts[i] else cell[i, j]
            after = _sigmoid(row[size + j]) * before + _sigmoid(row[j]) * tanh(row[2 * size + j])
            new_cell[i, j] = after
            kept[i, j] = _sigmoid(row[3 * size + j]) * tanh(after)
    return kept, new_cell


def warm_up() -> None:
    """Call the kernel once, so that it is compiled: all policies use the same types of arguments."""
    index, floats, state = np.zeros((1, 0), np.int64), np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
    weights, bias = np.zeros((1, 4), np.float32), np.zeros(4, np.float32)
    lstm_step(index, floats, False, np.zeros(1, np.bool_), state, state.copy(), weights, weights.copy(), bias)
