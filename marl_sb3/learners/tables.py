"""Describe PyTorch's networks and optimizers to the kernels of `mlp`: sizes and addresses."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from torch import nn

from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.kernels.mlp import Adam


class _Places:
    """Tensors and their addresses. The memory stays alive, also if a tensor gets another one by `tensor.data = ...`."""

    def __init__(self, tensors: Sequence[th.Tensor]) -> None:
        self.addresses = [tensor.data_ptr() for tensor in tensors]
        self._tensors = list(tensors)
        self._memory = [tensor.detach() for tensor in tensors]

    def are_of(self, tensors: Sequence[th.Tensor]) -> bool:
        """Whether these are the same tensors, at the same addresses."""
        same = len(tensors) == len(self._tensors) and all(map(operator.is_, tensors, self._tensors))
        return same and [tensor.data_ptr() for tensor in tensors] == self.addresses


def _begun_state(optimizer: th.optim.Optimizer, parameter: th.Tensor) -> dict[str, Any]:
    state: dict[str, Any] = optimizer.state[parameter]
    if not state:
        state["step"] = th.tensor(0.0)
        state["exp_avg"] = th.zeros_like(parameter, memory_format=th.preserve_format)
        state["exp_avg_sq"] = th.zeros_like(parameter, memory_format=th.preserve_format)
    return state


class Tables:
    """Makes tables of addresses.

    The tables are valid as long as PyTorch does not put other tensors or other memory in the place of these, as `to()`
    does, and `load_state_dict` of an optimizer; `Reliance` notices that and keeps the memory of the layers alive.
    """

    def __init__(self) -> None:
        self._adams: dict[th.optim.Optimizer, tuple[_Places, Array]] = {}

    def of_layers(self, layers: Iterable[nn.Linear]) -> Array:
        """(layers, 4) int64: inputs, outputs, addresses of weight and bias."""
        rows = [
            (layer.in_features, layer.out_features, *(tensor.data_ptr() for tensor in _tensors(layer)))
            for layer in layers
        ]
        return np.array(rows, dtype=np.int64)

    def of_adam(self, optimizer: th.optim.Optimizer) -> Adam:
        """Return the parameters of an Adam with their moments and counts of steps, which begin at zero."""
        from marl_sb3.kernels.mlp import Adam

        group = optimizer.param_groups[0]
        first, second = group["betas"]
        table = self._adam_table(optimizer)
        return Adam(table, float(group["lr"]), float(first), float(second), float(group["eps"]))

    def _adam_table(self, optimizer: th.optim.Optimizer) -> Array:
        parameters: list[th.Tensor] = optimizer.param_groups[0]["params"]
        states = [_begun_state(optimizer, parameter) for parameter in parameters]
        tensors = [
            tensor
            for parameter, state in zip(parameters, states, strict=True)
            for tensor in (parameter, state["exp_avg"], state["exp_avg_sq"], state["step"])
        ]
        known = self._adams.get(optimizer)
        if known is None or not known[0].are_of(tensors):
            places, sizes = _Places(tensors), [parameter.numel() for parameter in parameters]
            table = np.column_stack([sizes, np.reshape(places.addresses, (-1, 4))]).astype(np.int64)
            known = self._adams[optimizer] = places, table
        return known[1]

    def of_targets(self, sources: Iterable[nn.Linear], targets: Iterable[nn.Linear]) -> Array:
        """(parameters, 3) int64 of pairs of layers: number of values, addresses of the source and of the target."""
        rows = [
            (own.numel(), own.data_ptr(), other.data_ptr())
            for source, target in zip(sources, targets, strict=True)
            for own, other in zip(_tensors(source), _tensors(target), strict=True)
        ]
        return np.array(rows, dtype=np.int64)


def linears(net: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a plain MLP, or the one layer that `net` is."""
    parts = net if isinstance(net, nn.Sequential) else [net]
    return [part for part in parts if isinstance(part, nn.Linear)]


def _tensors(layer: nn.Linear) -> list[Any]:
    return list(layer._parameters.values())
