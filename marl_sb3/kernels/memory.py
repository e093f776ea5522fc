"""Kernels read and write PyTorch's own memory: a tensor is given by the address of its first number.

Nothing is copied between PyTorch and the kernels, and what either of them changes, the other one sees. Whoever gives
addresses to a kernel holds references to the tensors meanwhile, and has checked that they are contiguous float32
tensors of the given size on the CPU.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from marl_sb3.kernels.cache import inner_kernel


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """Turn an integer into a pointer, for `carray`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), code


# Type checkers know numba's functions only as Python would call them.
pointer: Any = _pointer
carray: Any = numba.carray  # type: ignore[attr-defined]
_Floats = Any  # an array of float32, once compiled


@inner_kernel
def vector_at(address: int, size: int) -> _Floats:
    """Return the (size,) float32 numbers from an address on; a view."""
    return carray(pointer(address), (size,), np.float32)


@inner_kernel
def matrix_at(address: int, rows: int, columns: int) -> _Floats:
    """Return the (rows, columns) float32 numbers from an address on; a view."""
    return carray(pointer(address), (rows, columns), np.float32)
