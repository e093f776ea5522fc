"""One step of an LSTM in PyTorch's memory, as a float32 kernel compiled by numba.

Formulas: Hochreiter and Schmidhuber 1997, with the gates of PyTorch's LSTM in its order: input, forget, cell, output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel
from marl_sb3.extensions.fast.kernels.layers import matrix_at, tanh, vector_at
from marl_sb3.extensions.fast.kernels.mlp import Inputs, multiply, plain
from marl_sb3.types import Array, BoolArray, FloatArray

_f = np.float32
_ZERO, _HALF = _f(0.0), _f(0.5)
_Scalar = Any  # a float32, once compiled


@inner_kernel
def _sigmoid(x: _Scalar) -> _Scalar:
    return _HALF + _HALF * tanh(_HALF * x)


@kernel
def lstm_step(
    table: Array, inputs: Inputs, starts: BoolArray, hidden: FloatArray, cell: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Take one step in every row.

    Args:
        table: (layers, 5) int64; inputs, and addresses of PyTorch's `weight_ih`, `weight_hh`, `bias_ih` and `bias_hh`.
        inputs: see `Inputs`.
        starts: (rows,) bool; where an episode starts: the state counts as zero there.
        hidden: (layers, rows, size) hidden state before the step.
        cell: (layers, rows, size) cell state before the step.

    Returns:
        Hidden and cell state after the step. The hidden state of the last layer is the output.
    """
    layers, rows, size = hidden.shape
    new_hidden, new_cell = np.empty_like(hidden), np.empty_like(cell)
    gates, remembered = np.empty((rows, 4 * size), np.float32), np.empty((rows, 4 * size), np.float32)
    for layer in range(layers):
        columns, by_input, by_hidden, bias, more_bias = table[layer]
        multiply(inputs if layer == 0 else plain(new_hidden[layer - 1]), by_input, columns, gates)
        kept = new_hidden[layer]
        for i in range(rows):
            for j in range(size):
                kept[i, j] = _ZERO if starts[i] else hidden[layer, i, j]
        np.dot(kept, matrix_at(by_hidden, 4 * size, size).T, remembered)
        one, other = vector_at(bias, 4 * size), vector_at(more_bias, 4 * size)
        for i in range(rows):
            row, more = gates[i], remembered[i]
            for j in range(4 * size):
                row[j] += more[j] + (one[j] + other[j])
            for j in range(size):
                before = _ZERO if starts[i] else cell[layer, i, j]
                after = _sigmoid(row[size + j]) * before + _sigmoid(row[j]) * tanh(row[2 * size + j])
                new_cell[layer, i, j] = after
                kept[i, j] = _sigmoid(row[3 * size + j]) * tanh(after)
    return new_hidden, new_cell
