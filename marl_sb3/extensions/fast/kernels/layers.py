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
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from marl_sb3.compiling import carray, inner_kernel, load_blas, pointer, precise_kernel
from marl_sb3.types import Array, FloatArray

load_blas()

TANH, RELU, LINEAR = range(3)  # activations

_f = np.float32
_ZERO, _ONE, _TWO = _f(0.0), _f(1.0), _f(2.0)
# For `tanh`: minimax polynomials on 0..0.625 and 0.625..9.1; above 9.1 the nearest float32 is 1.
_TANH_SMALL, _TANH_LARGE = _f(0.625), _f(9.1)
_T3, _T5, _T7, _T9, _T11 = _f(-0.3333328), _f(0.13331406), _f(-0.053736515), _f(0.020628167), _f(-0.0056922967)
_R0, _R1, _R2 = _f(1.0000076293945312), _f(0.4999546706676483), _f(0.12511205673217773)
_R3, _R4, _R5 = _f(0.02068271115422249), _f(0.0027249676641076803), _f(0.00020077719818800688)
_R6, _R7, _R8 = _f(3.967293014284223e-05), _f(-1.5761467011543573e-06), _f(3.643144452780689e-07)

# For `exp`: log2(e); log(2) as a number of few digits and the rest; exp(x) = 1 + x + x^2 (E2 + E3 x + ...) near 0.
_LOG2_E, _LN2_HIGH, _LN2_LOW = _f(1.442695041), _f(0.693359375), _f(-2.12194440e-4)
_E2, _E3, _E4, _E5, _E6 = _f(0.5), _f(0.16666577), _f(0.041666465), _f(0.0083631815), _f(0.0013933658)
_LEAST, _MOST = _f(-104.0), _f(89.0)  # beyond, the nearest float32 is 0 or infinity
_ROUNDING = _f(12582912.0)  # 1.5 * 2^23: what is added to it is rounded to whole numbers
_BIAS, _MANTISSA = np.int32(127), np.int32(23)  # of float32

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


@inner_kernel
def ints_at(address: int, rows: int, columns: int) -> Any:
    """Return the (rows, columns) int64 numbers from an address on; a view."""
    return carray(pointer(address), (rows, columns), np.int64)


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


@intrinsic
def _float_of(typing_context: Any, bits: Any) -> Any:
    """Return the float32 that has these bits, an int32."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), code


_from_bits: Any = _float_of  # type checkers know it only as Python would call it


@precise_kernel
def exp(x: _Scalar) -> _Scalar:
    """Return e^x within 2 ulp; loops over it are vectorised, over the C library's function they are not.

    2^n exp(r) with a whole n and |r| <= log(2) / 2. Numbers below 2^-126 lose digits.
    """
    x = _LEAST if x < _LEAST else (_MOST if x > _MOST else x)  # lets NaN through
    n = (x * _LOG2_E + _ROUNDING) - _ROUNDING
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    value = _ONE + r + r * r * (_E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * _E6))))
    whole = np.int32(n)
    half = np.int32(whole >> 1)  # 2^n may be out of range where the result is not
    rest = np.int32(whole - half)
    return value * _from_bits(np.int32((half + _BIAS) << _MANTISSA)) * _from_bits(np.int32((rest + _BIAS) << _MANTISSA))


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


@inner_kernel
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
