"""Which optimizers the kernels have, and the names of their state in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike


class OptimizerKind(NamedTuple):
    """An optimizer that the kernels have.

    Attributes:
        number: its constant in `rmsprop`.
        moments: names of its moments in PyTorch's state: of the first one, if it has one, and of the second one.
        initial: the second moment before the first step.
        steps_in_tensor: whether the number of steps is a tensor.
    """

    number: int
    moments: tuple[str, ...]
    initial: float
    steps_in_tensor: bool


OPTIMIZERS: dict[type[th.optim.Optimizer], OptimizerKind] = {
    th.optim.Adam: OptimizerKind(0, ("exp_avg", "exp_avg_sq"), 0.0, True),
    th.optim.RMSprop: OptimizerKind(1, ("square_avg",), 0.0, True),
    RMSpropTFLike: OptimizerKind(2, ("square_avg",), 1.0, False),
}
