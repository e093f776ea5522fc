"""The layers of plain MLPs as float32 kernels compiled by numba, and tensors of PyTorch as the arrays that they take.

Kernels read and write PyTorch's own memory: a tensor is given by the address of its first number. Nothing is copied
between PyTorch and the kernels, and what either of them changes, the other one sees. Whoever gives addresses to a
kernel holds references to the tensors meanwhile, and has checked that they are contiguous float32 tensors of the given
size on the CPU.

tanh is within 3 units in the last place (ulp), and exactly 1 where the float32 nearest to it is: its slope, 1 - tanh^2,
then vanishes where PyTorch's does. See docs/fused_accuracy.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401 - numba calls its BLAS; see `load_blas`

from marl_sb3.compiling import carray, inner_kernel, kernel, pointer, precise_kernel
from marl_sb3.types import Array, FloatArray

TANH, RELU, LINEAR = range(3)  # activations

_f = np.float32
_ZERO, _ONE, _TWO = _f(0.0), _f(1.0), _f(2.0)
# For `tanh`: minimax polynomials on 0..0.625 and 0.625..9.1; above 9.1 the nearest float32 is 1.
_TANH_SMALL, _TANH_LARGE = _f(0.625), _f(9.1)
_T3, _T5, _T7, _T9, _T11 = _f(-0.3333328), _f(0.13331406), _f(-0.053736515), _f(0.020628167), _f(-0.0056922967)
_R0, _R1, _R2 = _f(1.0000076293945312), _f(0.4999546706676483), _f(0.12511205673217773)
_R3, _R4, _R5 = _f(0.02068271115422249), _f(0.0027249676641076803), _f(0.00020077719818800688)
_R6, _R7, _R8 = _f(3.967293014284223e-05), _f(-1.5761467011543573e-06), _f(3.643144452780689e-07)

_Scalar = Any  # a float32, once compiled

# --- Memory ----------------------------------------------------------------------------------------------------------


_Floats = Any  # an array of float32, once compiled


@inner_kernel
def vector_at(address: int, size: int) -> _Floats:
    """Return the (size,) float32 numbers from an address on; a view."""
    return carray(pointer(address), (size,), np.float32)


@inner_kernel
def matrix_at(address: int, rows: int, columns: int) -> _Floats:
    """Return the (rows, columns) float32 numbers from an address on; a view."""
    return carray(pointer(address), (rows, columns), np.float32)


# --- Layers ----------------------------------------------------------------------------------------------------------


@precise_kernel
def tanh(x: _Scalar) -> _Scalar:
    """1 - 2 / (exp(2|x|) + 1) with the sign of x; near 0, where that cancels, an odd polynomial.

    exp(|x| / 2) is a polynomial too. It is most accurate where |x| is large, for the sake of the slope, 1 - tanh^2.
    """
    size = abs(x)
    size = _TANH_LARGE if size > _TANH_LARGE else size  # lets NaN through
    root = _R5 + size * (_R6 + size * (_R7 + size * _R8))
    root = _R0 + size * (_R1 + size * (_R2 + size * (_R3 + size * (_R4 + size * root))))
    square = root * root
    large = _ONE - _TWO / (square * square + _ONE)
    w = size * size
    small = size + size * (w * (_T3 + w * (_T5 + w * (_T7 + w * (_T9 + w * _T11)))))
    return np.copysign(small if size < _TANH_SMALL else large, x)


@inner_kernel
def activate(values: FloatArray, bias: FloatArray, kind: int) -> None:
    """values: (rows, outputs), in place: act(values + bias)."""
    rows, outputs = values.shape
    for i in range(rows):
        row = values[i]
        if kind == TANH:
            for j in range(outputs):
                row[j] = tanh(row[j] + bias[j])
        elif kind == RELU:
            for j in range(outputs):
                v = row[j] + bias[j]
                row[j] = _ZERO if v < _ZERO else v  # lets NaN through
        else:
            for j in range(outputs):
                row[j] += bias[j]


# Loops instead of slice assignments: numba takes seconds to compile the error messages of those. Short rows are passed
# as array and index: making a slice costs as much as ten numbers.


@inner_kernel
def clear(array: Array) -> None:
    """Fill an array, (n,), with zeros."""
    for i in range(array.shape[0]):
        array[i] = 0


@inner_kernel
def matrix(flat: FloatArray, offset: int, rows: int, columns: int) -> FloatArray:
    """Return the matrix that begins at `offset`: a view of (rows, columns)."""
    return flat[offset : offset + rows * columns].reshape(rows, columns)


@kernel
def through_activation(delta: FloatArray, values: FloatArray, kind: int, bias_grad: FloatArray) -> None:
    """Multiply gradients, in place, by the slope of the activation, and sum them over the rows.

    Args:
        delta: (rows, outputs), gradients with respect to the outputs of the activation; changed to those with respect
            to its inputs.
        values: (rows, outputs) of the activation.
        kind: TANH, RELU or LINEAR.
        bias_grad: (outputs,); filled with the sum of `delta` over the rows.
    """
    clear(bias_grad)
    rows, outputs = delta.shape
    for i in range(rows):
        row, value = delta[i], values[i]
        if kind == TANH:
            for j in range(outputs):
                row[j] *= _ONE - value[j] * value[j]
                bias_grad[j] += row[j]
        elif kind == RELU:
            for j in range(outputs):
                row[j] = _ZERO if value[j] <= _ZERO else row[j]
                bias_grad[j] += row[j]
        else:
            for j in range(outputs):
                bias_grad[j] += row[j]
