"""An LSTM in PyTorch's memory, as float32 kernels compiled by numba: one step, and sequences forwards and backwards.

Formulas: Hochreiter and Schmidhuber 1997, with the gates of PyTorch's LSTM in its order: input, forget, cell, output.

Sequences lie in time-major order without padding: the first steps of all of them, the longest one first, then the
second steps of those that have one, and so on. A row is a step of a sequence. The rows of a step thus lie side by side,
and follow those of the same sequences one step earlier.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_sb3.compiling import inlined, inner_kernel, kernel
from marl_sb3.extensions.fast.kernels.distributions import turned
from marl_sb3.extensions.fast.kernels.layers import clear, matrix, matrix_at, tanh, vector_at
from marl_sb3.extensions.fast.kernels.mlp import Inputs, add_to_rows, multiply, plain
from marl_sb3.types import Array, BoolArray, FloatArray

_f = np.float32
_ZERO, _HALF, _ONE = _f(0.0), _f(0.5), _f(1.0)
# BLAS packs a weight anew for each product. Between so many multiplications, for which it has kernels that do not, and
# so many rows, for which that pays, our own products are faster.
_SMALL_PRODUCT, _FEW_ROWS = 1_000_000, 32
_COPIED_SIZE = 128  # of an LSTM, at most, whose `weight_hh` is copied for BLAS's kernels of small products
_Scalar = Any  # a float32, once compiled


@inner_kernel
def _sigmoid(x: _Scalar) -> _Scalar:
    return _HALF + _HALF * tanh(_HALF * x)


# --- Products of a few rows ------------------------------------------------------------------------------------------


@inner_kernel
def _four_by_four(given: FloatArray, i: int, weight: FloatArray, products: FloatArray) -> None:
    """Fill four rows, from i on, of (rows, outputs) with those of (rows, inputs) times (outputs, inputs) transposed."""
    a0, a1, a2, a3 = given[i], given[i + 1], given[i + 2], given[i + 3]
    for j in range(0, weight.shape[0], 4):
        b0, b1, b2, b3 = weight[j], weight[j + 1], weight[j + 2], weight[j + 3]
        c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = _ZERO
        c20 = c21 = c22 = c23 = c30 = c31 = c32 = c33 = _ZERO
        for k in range(weight.shape[1]):
            x0, x1, x2, x3, y0, y1, y2, y3 = a0[k], a1[k], a2[k], a3[k], b0[k], b1[k], b2[k], b3[k]
            c00, c01, c02, c03 = c00 + x0 * y0, c01 + x0 * y1, c02 + x0 * y2, c03 + x0 * y3
            c10, c11, c12, c13 = c10 + x1 * y0, c11 + x1 * y1, c12 + x1 * y2, c13 + x1 * y3
            c20, c21, c22, c23 = c20 + x2 * y0, c21 + x2 * y1, c22 + x2 * y2, c23 + x2 * y3
            c30, c31, c32, c33 = c30 + x3 * y0, c31 + x3 * y1, c32 + x3 * y2, c33 + x3 * y3
        p0, p1, p2, p3 = products[i], products[i + 1], products[i + 2], products[i + 3]
        p0[j], p0[j + 1], p0[j + 2], p0[j + 3] = c00, c01, c02, c03
        p1[j], p1[j + 1], p1[j + 2], p1[j + 3] = c10, c11, c12, c13
        p2[j], p2[j + 1], p2[j + 2], p2[j + 3] = c20, c21, c22, c23
        p3[j], p3[j + 1], p3[j + 2], p3[j + 3] = c30, c31, c32, c33


@inner_kernel
def _two_by_four(given: FloatArray, i: int, weight: FloatArray, products: FloatArray) -> None:
    """Fill two rows, see `_four_by_four`."""
    a0, a1 = given[i], given[i + 1]
    for j in range(0, weight.shape[0], 4):
        b0, b1, b2, b3 = weight[j], weight[j + 1], weight[j + 2], weight[j + 3]
        c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = _ZERO
        for k in range(weight.shape[1]):
            x0, x1, y0, y1, y2, y3 = a0[k], a1[k], b0[k], b1[k], b2[k], b3[k]
            c00, c01, c02, c03 = c00 + x0 * y0, c01 + x0 * y1, c02 + x0 * y2, c03 + x0 * y3
            c10, c11, c12, c13 = c10 + x1 * y0, c11 + x1 * y1, c12 + x1 * y2, c13 + x1 * y3
        p0, p1 = products[i], products[i + 1]
        p0[j], p0[j + 1], p0[j + 2], p0[j + 3] = c00, c01, c02, c03
        p1[j], p1[j + 1], p1[j + 2], p1[j + 3] = c10, c11, c12, c13


@inner_kernel
def times_transposed(given: FloatArray, weight: FloatArray, transposed: FloatArray, products: FloatArray) -> None:
    """Multiply few rows with a weight.

    Args:
        given: (rows, inputs).
        weight: (outputs, inputs); the number of outputs is a multiple of four.
        transposed: (inputs, outputs), a copy of a small weight; no rows: there is none.
        products: (rows, outputs); filled.
    """
    rows = given.shape[0]
    if transposed.shape[0] > 0 and rows * weight.size <= _SMALL_PRODUCT:
        np.dot(given, transposed, products)
        return
    if rows > _FEW_ROWS:
        np.dot(given, weight.T, products)
        return
    for i in range(0, rows - 3, 4):
        _four_by_four(given, i, weight, products)
    if rows & 2:
        _two_by_four(given, rows & ~3, weight, products)
    if rows & 1:
        np.dot(given[rows - 1 :], weight.T, products[rows - 1 :])


@inner_kernel
def _add_four_of_four(given: FloatArray, i: int, weight: FloatArray, products: FloatArray) -> None:
    """Add to four rows, from i on, of (rows, inputs) those of (rows, outputs) times (outputs, inputs)."""
    p0, p1, p2, p3 = products[i], products[i + 1], products[i + 2], products[i + 3]
    a0, a1, a2, a3 = given[i], given[i + 1], given[i + 2], given[i + 3]
    for j in range(0, weight.shape[0], 4):
        b0, b1, b2, b3 = weight[j], weight[j + 1], weight[j + 2], weight[j + 3]
        x00, x01, x02, x03 = a0[j], a0[j + 1], a0[j + 2], a0[j + 3]
        x10, x11, x12, x13 = a1[j], a1[j + 1], a1[j + 2], a1[j + 3]
        x20, x21, x22, x23 = a2[j], a2[j + 1], a2[j + 2], a2[j + 3]
        x30, x31, x32, x33 = a3[j], a3[j + 1], a3[j + 2], a3[j + 3]
        for k in range(weight.shape[1]):
            y0, y1, y2, y3 = b0[k], b1[k], b2[k], b3[k]
            p0[k] += x00 * y0 + x01 * y1 + x02 * y2 + x03 * y3
            p1[k] += x10 * y0 + x11 * y1 + x12 * y2 + x13 * y3
            p2[k] += x20 * y0 + x21 * y1 + x22 * y2 + x23 * y3
            p3[k] += x30 * y0 + x31 * y1 + x32 * y2 + x33 * y3


@inner_kernel
def times(given: FloatArray, weight: FloatArray, products: FloatArray) -> None:
    """Multiply few rows with a weight.

    Args:
        given: (rows, outputs).
        weight: (outputs, inputs); the number of outputs is a multiple of four.
        products: (rows, inputs); filled.
    """
    rows = given.shape[0]
    if rows * weight.size <= _SMALL_PRODUCT or rows > _FEW_ROWS:
        np.dot(given, weight, products)
        return
    for i in range(0, rows - 3, 4):
        for row in range(i, i + 4):
            clear(products[row])
        _add_four_of_four(given, i, weight, products)
    for i in range(rows & ~3, rows):
        np.dot(given[i : i + 1], weight, products[i : i + 1])


# --- One step --------------------------------------------------------------------------------------------------------


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
    none = np.empty((0, 4 * size), np.float32)
    for layer in range(layers):
        columns, by_input, by_hidden, bias, more_bias = table[layer]
        multiply(inputs if layer == 0 else plain(new_hidden[layer - 1]), by_input, columns, gates)
        kept = new_hidden[layer]
        for i in range(rows):
            for j in range(size):
                kept[i, j] = _ZERO if starts[i] else hidden[layer, i, j]
        times_transposed(kept, matrix_at(by_hidden, 4 * size, size), none, remembered)
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


# --- Sequences -------------------------------------------------------------------------------------------------------


# Columns of the places of `sequence_memory`, in the line of a layer: arrays of
GATES = 0  # (rows, 4 size); after the way back, the gradients of their inputs
HIDDEN_BEFORE = 1  # (rows, size), hidden states before the step
CELL_BEFORE = 2  # (rows, size), cell states before the step
SQUASHED = 3  # (rows, size), tanh of the cell states after the step
HIDDEN = 4  # (rows, size), hidden states after the step: the outputs
TRANSPOSED = 5  # (size, 4 size), a copy of `weight_hh`; the place is 0 where it is too large
# And in the last line:
DELTAS, MORE_DELTAS = 0, 1  # (rows, size) each, gradients of outputs, in turns for each layer
RECALLED = 2  # (sequences, 4 size), what the gates of a step get from the step before it
HIDDEN_DELTA = 3  # (sequences, size), gradients that the states of a step get from the step after it
CELL_DELTA = 4  # (sequences, size)


def sequence_memory(layers: int, size: int, rows: int, sequences: int) -> tuple[Array, list[FloatArray]]:
    """Return memory for an LSTM of layers of a size, for so many rows in so many sequences at most.

    Returns:
        Its places, (layers + 1, 6) int64 addresses, and the arrays to which these belong, to be kept meanwhile.
    """
    of_layer = [4 * rows * size, *[rows * size] * 4, 4 * size * size if size <= _COPIED_SIZE else 0]
    of_all = [rows * size, rows * size, 4 * sequences * size, sequences * size, sequences * size, 0]
    kept = [np.empty(numbers, np.float32) for numbers in (*of_layer * layers, *of_all)]
    places = [each.ctypes.data if each.size else 0 for each in kept]
    return np.array(places).reshape(layers + 1, 6), kept


@inner_kernel
def _enter_cell(
    row: FloatArray,
    recalled: FloatArray,
    bias: FloatArray,
    before: FloatArray,
    after: FloatArray,
    squashed: FloatArray,
    hidden: FloatArray,
) -> None:
    """Take the step of one row.

    Args:
        row: (4 size,) what the gates get from the input; changed to the gates.
        recalled: (4 size,) what they get from the hidden state.
        bias: (4 size,).
        before: (size,) the cell state.
        after: (size,) filled with the cell state after the step.
        squashed: (size,) filled with its tanh.
        hidden: (size,) filled with the hidden state after the step.
    """
    size = before.shape[0]
    let_in, keep, new, let_out = row[:size], row[size : 2 * size], row[2 * size : 3 * size], row[3 * size :]
    for j in range(4 * size):
        row[j] += recalled[j] + bias[j]
    for j in range(2 * size):
        row[j] = _sigmoid(row[j])
    for j in range(size):
        new[j] = tanh(new[j])
    for j in range(size):
        let_out[j] = _sigmoid(let_out[j])
    for j in range(size):
        after[j] = keep[j] * before[j] + let_in[j] * new[j]
        squashed[j] = tanh(after[j])
        hidden[j] = let_out[j] * squashed[j]


@inner_kernel
def run_sequences(
    table: Array, size: int, inputs: Inputs, active: Array, hidden: FloatArray, cell: FloatArray, places: Array
) -> None:
    """Run over sequences.

    Args:
        table: see `lstm_step`.
        size: of each layer.
        inputs: of all rows, in the order of this module.
        active: (steps,) int64; the number of sequences that have a first step, a second one, ...; it never grows.
        hidden: (layers, sequences, size) hidden states at the beginnings.
        cell: (layers, sequences, size) cell states at the beginnings.
        places: see `sequence_memory`, which is filled; the outputs are the hidden states of the last layer.
    """
    layers, rows, steps, wide = table.shape[0], inputs.floats.shape[0], active.shape[0], 4 * size
    bias, nowhere = np.empty(wide, np.float32), np.empty(size, np.float32)
    recalled = matrix_at(places[layers, RECALLED], active[0], wide)
    for layer in range(layers):
        columns, by_input, by_hidden, one, other = table[layer]
        at = places[layer]
        gates, transposed = (
            matrix_at(at[GATES], rows, wide),
            matrix_at(at[TRANSPOSED], size * (at[TRANSPOSED] != 0), wide),
        )
        before, cells = matrix_at(at[HIDDEN_BEFORE], rows, size), matrix_at(at[CELL_BEFORE], rows, size)
        squashed, outputs = matrix_at(at[SQUASHED], rows, size), matrix_at(at[HIDDEN], rows, size)
        below = inputs if layer == 0 else plain(matrix_at(places[layer - 1, HIDDEN], rows, size))
        multiply(below, by_input, columns, gates)
        for j in range(wide):
            bias[j] = vector_at(one, wide)[j] + vector_at(other, wide)[j]
        for i in range(active[0]):
            for j in range(size):
                before[i, j] = hidden[layer, i, j]
                cells[i, j] = cell[layer, i, j]
        weight, first = matrix_at(by_hidden, wide, size), 0
        if at[TRANSPOSED]:
            turned(weight, transposed)
        for step in range(steps):
            after = first + active[step]
            go_on = active[step + 1] if step + 1 < steps else 0
            times_transposed(before[first:after], weight, transposed, recalled[: active[step]])
            for i in range(active[step]):
                here, there = first + i, after + i
                new_cell = cells[there] if i < go_on else nowhere
                _enter_cell(gates[here], recalled[i], bias, cells[here], new_cell, squashed[here], outputs[here])
                if i < go_on:
                    for j in range(size):
                        before[there, j] = outputs[here, j]
            first = after


@inner_kernel
def _leave_cell(
    row: FloatArray,
    before: FloatArray,
    squashed: FloatArray,
    delta: FloatArray,
    hidden_delta: FloatArray,
    cell_delta: FloatArray,
) -> None:
    """Go back over the step of one row.

    Args:
        row: (4 size,) the gates; changed to the gradients of their inputs.
        before: (size,) the cell state before the step.
        squashed: (size,) tanh of that after it.
        delta: (size,) gradients of the output.
        hidden_delta: (size,) gradients of the hidden state from the step after.
        cell_delta: (size,) gradients of the cell state after the step; changed to those of the one before it.
    """
    size = before.shape[0]
    let_in, keep, new, let_out = row[:size], row[size : 2 * size], row[2 * size : 3 * size], row[3 * size :]
    for j in range(size):
        i, f, g, o, root = let_in[j], keep[j], new[j], let_out[j], squashed[j]
        by_hidden = delta[j] + hidden_delta[j]
        by_cell = cell_delta[j] + by_hidden * o * (_ONE - root * root)
        let_in[j] = by_cell * g * i * (_ONE - i)
        keep[j] = by_cell * before[j] * f * (_ONE - f)
        new[j] = by_cell * i * (_ONE - g * g)
        let_out[j] = by_hidden * root * o * (_ONE - o)
        cell_delta[j] = by_cell * f


@inner_kernel
def return_sequences(table: Array, size: int, inputs: Inputs, active: Array, places: Array, grad: FloatArray) -> None:
    """Compute the gradients of all parameters from those of the outputs, after `run_sequences`.

    Args:
        table: that of `run_sequences`, as are `size`, `inputs` and `active`.
        places: filled by it; `DELTAS` are the gradients of the outputs. Changed.
        grad: (parameters,); filled with the gradients of `weight_ih`, `weight_hh`, `bias_ih` and `bias_hh` of each
            layer.
    """
    layers, rows, wide, place = table.shape[0], inputs.floats.shape[0], 4 * size, grad.shape[0]
    for layer in range(layers - 1, -1, -1):
        columns, by_input, by_hidden = table[layer, 0], table[layer, 1], table[layer, 2]
        at, which = places[layer], (layers - 1 - layer) % 2
        gates, before = matrix_at(at[GATES], rows, wide), matrix_at(at[HIDDEN_BEFORE], rows, size)
        _return_steps(matrix_at(by_hidden, wide, size), active, at, places[layers], which, gates)
        place -= (columns + size + 2) * wide
        of_hidden = place + columns * wide
        of_bias = of_hidden + size * wide
        bias, other = grad[of_bias : of_bias + wide], grad[of_bias + wide : of_bias + 2 * wide]
        clear(bias)
        for i in range(rows):
            row = gates[i]
            for j in range(wide):
                bias[j] += row[j]
        for j in range(wide):
            other[j] = bias[j]
        np.dot(gates.T, before, matrix(grad, of_hidden, wide, size))
        if layer == 0 and inputs.indices.shape[1] > 0:
            add_to_rows(gates, inputs.indices, matrix(grad, place, columns, wide))
        else:
            below = inputs.floats if layer == 0 else matrix_at(places[layer - 1, HIDDEN], rows, size)
            np.dot(gates.T, below, matrix(grad, place, wide, columns))
        if layer > 0:
            np.dot(gates, matrix_at(by_input, wide, columns), matrix_at(places[layers, 1 - which], rows, columns))


@inlined
def _return_steps(weight: FloatArray, active: Array, at: Array, at_all: Array, which: int, gates: FloatArray) -> None:
    """Go back over all steps of a layer.

    Args:
        weight: (4 size, size), `weight_hh`.
        active: see `run_sequences`.
        at: (6,) places of the layer.
        at_all: (6,) places of all layers.
        which: of the `DELTAS` are the gradients of its outputs.
        gates: (rows, 4 size), changed.
    """
    rows, size = gates.shape[0], weight.shape[1]
    squashed, cells = matrix_at(at[SQUASHED], rows, size), matrix_at(at[CELL_BEFORE], rows, size)
    deltas, by_hidden = matrix_at(at_all[which], rows, size), matrix_at(at_all[HIDDEN_DELTA], active[0], size)
    by_cell = matrix_at(at_all[CELL_DELTA], active[0], size)
    first, went_on = rows, 0
    for step in range(active.shape[0] - 1, -1, -1):
        first, last = first - active[step], first
        for i in range(went_on, active[step]):  # the last steps of sequences
            clear(by_hidden[i])
            clear(by_cell[i])
        went_on = active[step]
        for i in range(went_on):
            here = first + i
            _leave_cell(gates[here], cells[here], squashed[here], deltas[here], by_hidden[i], by_cell[i])
        if step > 0:
            times(gates[first:last], weight, by_hidden[:went_on])
