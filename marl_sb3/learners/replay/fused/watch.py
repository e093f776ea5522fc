"""Notice whether a policy is still the one that was described to the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch as th

from marl_sb3.learners.fused.coverage import modules_without_hooks, why_not_optimizer
from marl_sb3.learners.fused.tables import Tables


class Watch:
    """Remembers a policy that the kernels cover: to look whether it has changed takes less time than a new check.

    Args:
        algorithm: has the policy.
        tables: describe its layers.
        optimizers: of its parameters.
    """

    def __init__(self, algorithm: Any, tables: Tables, optimizers: Sequence[th.optim.Optimizer]) -> None:
        self._algorithm = algorithm
        self._policy = algorithm.policy
        self._tables = tables
        self._optimizers = optimizers
        self._parameters = [[*map(id, optimizer.param_groups[0]["params"])] for optimizer in optimizers]
        self._modules = modules_without_hooks(self._policy) or []
        self._members = [len(vars(module)) for module in self._modules]

    def is_unchanged(self, optimizers: Sequence[th.optim.Optimizer]) -> bool:
        """Whether modules, parameters and optimizers are the same objects, without hooks, replaced methods and such.

        Args:
            optimizers: those that the algorithm has now.
        """
        return (
            self._algorithm.policy is self._policy
            and self._tables.are_valid()
            and modules_without_hooks(self._policy) == self._modules
            and [len(vars(module)) for module in self._modules] == self._members
            and self._have_same_parameters(optimizers)
        )

    def _have_same_parameters(self, optimizers: Sequence[th.optim.Optimizer]) -> bool:
        if len(optimizers) != len(self._optimizers):
            return False
        for now, before, parameters in zip(optimizers, self._optimizers, self._parameters, strict=True):
            if now is not before or why_not_optimizer(now) is not None:
                return False
            if [*map(id, now.param_groups[0]["params"])] != parameters:
                return False
        return True
