"""Adam, as in PyTorch's `_single_tensor_adam`, and the norm of gradients, as float32 kernels compiled by numba."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marl_sb3.kernels.cache import inner_kernel
from marl_sb3.types import FloatArray

_f = np.float32
_Scalar = Any  # a float32, once compiled


@inner_kernel
def norm(grad: FloatArray) -> float:
    """Return the norm of all gradients."""
    squares = np.float64(0.0)
    for i in range(grad.shape[0]):
        squares += np.float64(grad[i]) * np.float64(grad[i])
    return math.sqrt(squares)


@inner_kernel
def adam(
    theta: FloatArray,
    grad: FloatArray,
    m: FloatArray,
    v: FloatArray,
    scale: _Scalar,
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """Take one step of Adam with the gradient times `scale`; the first step is step 1."""
    step_size = _f(learning_rate / (1.0 - beta1**step))
    inverse_root = _f(1.0 / math.sqrt(1.0 - beta2**step))
    keep1, new1, keep2, new2, small = _f(beta1), _f(1.0 - beta1), _f(beta2), _f(1.0 - beta2), _f(eps)
    for i in range(theta.shape[0]):
        g = grad[i] * scale
        first = keep1 * m[i] + new1 * g
        second = keep2 * v[i] + new2 * g * g
        m[i] = first
        v[i] = second
        theta[i] -= step_size * first / (np.sqrt(second) * inverse_root + small)
