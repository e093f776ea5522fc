"""Describe PyTorch's networks and optimizers to the kernels: sizes, addresses and settings.

Tables are valid as long as PyTorch does not put other tensors or other memory in the place of these, as `to()` does,
and `load_state_dict` of an optimizer. `PathStillValid` notices that and keeps the memory of the layers alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn

from marl_sb3.types import Array, FloatArray

if TYPE_CHECKING:
    from marl_sb3.extensions.fast.kernels.optimizers import Optimizer


def filled(kind: np.dtype[Any], fields: Mapping[str, Any]) -> Array:
    """Return (1,) records of a type: these fields, and zeros in all others."""
    made = np.zeros(1, kind)
    for name, value in fields.items():
        made[name] = value
    return made


# --- Layers ----------------------------------------------------------------------------------------------------------


def linears(net: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a plain MLP, or the one layer that `net` is."""
    parts = net if isinstance(net, nn.Sequential) else [net]
    return [part for part in parts if isinstance(part, nn.Linear)]


def parameters_of(layers: Iterable[nn.Linear]) -> list[Any]:
    """Return the weight and the bias of each layer."""
    return [tensor for layer in layers for tensor in layer._parameters.values()]


def layer_table(layers: Iterable[nn.Linear], moved: Mapping[int, int] | None = None) -> Array:
    """(layers, 4) int64: inputs, outputs, addresses of weight and bias.

    Args:
        moved: other addresses for some, see `TransposedCopies`.
    """
    rows = []
    for layer in layers:
        addresses = [tensor.data_ptr() for tensor in parameters_of([layer])]
        rows.append((layer.in_features, layer.out_features, *((moved or {}).get(each, each) for each in addresses)))
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def target_table(sources: Iterable[nn.Module], targets: Iterable[nn.Module]) -> Array:
    """(parameters, 3) int64 of pairs of nets: number of values, addresses of the source and of the target."""
    of_sources, of_targets = (
        parameters_of(layer for net in nets for layer in linears(net)) for nets in (sources, targets)
    )
    rows = [
        (source.numel(), source.data_ptr(), target.data_ptr())
        for source, target in zip(of_sources, of_targets, strict=True)
    ]
    return np.array(rows, dtype=np.int64)


class TransposedCopies:
    """Copies of (outputs, inputs) tensors as (inputs, outputs): for one-hot inputs, which select rows of them."""

    def __init__(self, tensors: Iterable[th.Tensor]) -> None:
        self._pairs: list[tuple[FloatArray, FloatArray]] = [
            (array := tensor.detach().numpy(), np.ascontiguousarray(array.T)) for tensor in tensors
        ]

    def addresses(self) -> dict[int, int]:
        """Return the address of each tensor with that of its copy."""
        return {tensor.ctypes.data: transposed.ctypes.data for tensor, transposed in self._pairs}

    def read(self) -> None:
        """Copy the tensors again, which may have changed."""
        for tensor, transposed in self._pairs:
            transposed[...] = tensor.T

    def write(self) -> None:
        """Copy the copies, which may have changed, into the tensors."""
        for tensor, transposed in self._pairs:
            tensor[...] = transposed.T


# --- Optimizers ------------------------------------------------------------------------------------------------------


class OptimizerKind(NamedTuple):
    """An optimizer that the kernels have."""

    number: int  # its constant in `kernels.optimizers`
    # the names of first and second moments and of the number of steps in PyTorch's state; None for what it does not
    # have, or not as a tensor
    tensors: tuple[str | None, str, str | None]
    initial: float  # the second moment before the first step


OPTIMIZERS: dict[type[th.optim.Optimizer], OptimizerKind] = {
    th.optim.Adam: OptimizerKind(0, ("exp_avg", "exp_avg_sq", "step"), 0.0),
    th.optim.RMSprop: OptimizerKind(1, (None, "square_avg", "step"), 0.0),
    RMSpropTFLike: OptimizerKind(2, (None, "square_avg", None), 1.0),
}


class OptimizerTable:
    """Describes an optimizer to the kernels; its state begins with the first description, as with a first step.

    Args:
        optimizer: of one of the classes in `OPTIMIZERS`.
        parameters: its parameters in the order of the kernels' gradients; None: in its own order.
    """

    def __init__(self, optimizer: th.optim.Optimizer, parameters: Sequence[th.Tensor] | None = None) -> None:
        self._optimizer = optimizer
        self._kind = OPTIMIZERS[type(optimizer)]
        self._parameters: Sequence[th.Tensor] = parameters or optimizer.param_groups[0]["params"]
        self._tensors: list[Any] = []
        self._memory: list[Any] = []  # kept alive, also if a tensor gets another one by `tensor.data = ...`
        self._addresses: list[int] = []
        self._table: Array = np.empty((0, 5), np.int64)

    def present(self, moved: Mapping[int, int] | None = None) -> Optimizer:
        """Return the optimizer with its present state and settings.

        Args:
            moved: other addresses for some of the parameters and moments, see `TransposedCopies`.
        """
        from marl_sb3.extensions.fast.kernels.optimizers import Optimizer

        group = self._optimizer.param_groups[0]
        beta1, beta2 = group["betas"] if "betas" in group else (0.0, group["alpha"])
        table = self._present_table()
        if moved:
            table = table.copy()
            for address, other in moved.items():
                table[table == address] = other
        return Optimizer(table, self._kind.number, float(group["lr"]), float(beta1), float(beta2), float(group["eps"]))

    def moments(self, parameter: th.Tensor) -> list[th.Tensor]:
        """Return the moments of a parameter."""
        state = self._begun_state(parameter)
        return [state[name] for name in self._kind.tensors[:2] if name is not None]

    def count_steps(self, steps: int) -> None:
        """Count steps that the kernels have taken, where they have not done so themselves."""
        if self._kind.tensors[2] is None:
            for parameter in self._parameters:
                self._optimizer.state[parameter]["step"] += steps

    def _begun_state(self, parameter: th.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self._optimizer.state[parameter]
        if not state:
            first, second, steps = self._kind.tensors
            state["step"] = 0 if steps is None else th.tensor(0.0)
            if first is not None:
                state[first] = th.zeros_like(parameter, memory_format=th.preserve_format)
            state[second] = th.full_like(parameter, self._kind.initial, memory_format=th.preserve_format)
        return state

    def _present_table(self) -> Array:
        states: list[Any] = [*map(self._optimizer.state.get, self._parameters)]
        if not all(states):
            states = [*map(self._begun_state, self._parameters)]
        tensors: list[Any] = [*self._parameters]
        for name in filter(None, self._kind.tensors):
            tensors += map(itemgetter(name), states)
        addresses = [*map(th.Tensor.data_ptr, tensors)]
        if addresses != self._addresses or not all(map(is_, tensors, self._tensors)):
            self._tensors, self._addresses = tensors, addresses
            self._memory = [tensor.detach() for tensor in tensors]
            sizes = [parameter.numel() for parameter in self._parameters]
            columns = iter(np.reshape(addresses, (-1, len(sizes))))
            absent = np.zeros_like(sizes)
            kept = [next(columns) if name else absent for name in ("parameter", *self._kind.tensors)]
            self._table = np.column_stack([sizes, *kept]).astype(np.int64)
        return self._table
