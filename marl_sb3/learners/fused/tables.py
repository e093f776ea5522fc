"""Describe PyTorch's networks and optimizers to the kernels of `mlp`: sizes and addresses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from torch import nn

from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.learners.fused.mlp import Adam


class Tables:
    """Makes tables of addresses, and keeps the tensors alive that they point to.

    The tables are valid as long as PyTorch does not put other tensors in the place of these, as `to()` and
    `load_state_dict` of an optimizer do. Making new ones takes microseconds.
    """

    def __init__(self) -> None:
        self._kept: list[th.Tensor] = []

    def _address(self, tensor: Any) -> int:
        self._kept.append(tensor)
        return int(tensor.data_ptr())

    def of_layers(self, layers: Iterable[nn.Linear]) -> Array:
        """(layers, 4) int64: inputs, outputs, addresses of weight and bias."""
        rows = [
            (layer.in_features, layer.out_features, *map(self._address, layer._parameters.values())) for layer in layers
        ]
        return np.array(rows, dtype=np.int64)

    def of_adam(self, optimizer: th.optim.Optimizer) -> Adam:
        """Return the parameters of an Adam with their moments and counts of steps, which begin at zero."""
        from marl_sb3.learners.fused.mlp import Adam

        group = optimizer.param_groups[0]
        rows = []
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state["step"] = th.tensor(0.0)
                state["exp_avg"] = th.zeros_like(parameter, memory_format=th.preserve_format)
                state["exp_avg_sq"] = th.zeros_like(parameter, memory_format=th.preserve_format)
            tensors = (parameter, state["exp_avg"], state["exp_avg_sq"], state["step"])
            rows.append((parameter.numel(), *map(self._address, tensors)))
        first, second = group["betas"]
        table = np.array(rows, dtype=np.int64)
        return Adam(table, float(group["lr"]), float(first), float(second), float(group["eps"]))

    def of_targets(self, networks: Sequence[tuple[Iterable[nn.Module], Iterable[nn.Module]]]) -> Array:
        """(parameters, 3) int64 of pairs of nets, sources and targets: number of values, addresses of both."""
        rows = [
            (source.numel(), self._address(source), self._address(target))
            for network, follower in networks
            for source, target in zip(_parameters(network), _parameters(follower), strict=True)
        ]
        return np.array(rows, dtype=np.int64)


def linears(net: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a plain MLP, or the one layer that `net` is."""
    parts = net if isinstance(net, nn.Sequential) else [net]
    return [part for part in parts if isinstance(part, nn.Linear)]


def _parameters(nets: Iterable[nn.Module]) -> list[Any]:
    return [parameter for net in nets for layer in linears(net) for parameter in layer._parameters.values()]
