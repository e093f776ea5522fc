"""RMSprop, as in PyTorch's `_single_tensor_rmsprop` and in SB3's `RMSpropTFLike`, as a float32 kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_sb3.kernels.cache import inner_kernel
from marl_sb3.types import FloatArray

ADAM, RMSPROP, RMSPROP_TF = range(3)  # optimizers

_f = np.float32
_Scalar = Any  # a float32, once compiled


@inner_kernel
def rmsprop(
    theta: FloatArray,
    grad: FloatArray,
    v: FloatArray,
    scale: _Scalar,
    learning_rate: float,
    alpha: float,
    eps: float,
    tf_like: bool,
) -> None:
    """Take one step of RMSprop with the gradient times `scale`; if `tf_like`, epsilon is added before the root."""
    rate, keep, new, small = _f(learning_rate), _f(alpha), _f(1.0 - alpha), _f(eps)
    for i in range(theta.shape[0]):
        g = grad[i] * scale
        square = keep * v[i] + new * g * g
        v[i] = square
        root = np.sqrt(square + small) if tf_like else np.sqrt(square) + small
        theta[i] -= rate * g / root
