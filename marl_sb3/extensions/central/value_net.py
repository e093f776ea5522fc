"""A network of values in NumPy: for small layers and minibatches, PyTorch takes three times as long for the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from marl_sb3.core.state.state import State, StateReader
from marl_sb3.types import Array, FloatArray

_MEMORY = 0.95  # share of what was added up that stays with each update
_DELTA = 10.0  # errors beyond that count linearly (Huber's loss), as in the code of Yu et al. 2022
_LARGEST_NORM = 10.0  # of the gradient
_DECAYS, _EPSILON = (0.9, 0.999), 1e-5  # of Adam


class Units:
    """Running mean and standard deviation of numbers, those of long ago counting less.

    Args:
        shape: of the numbers.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.sums = np.zeros((2, *shape))  # what is added up of the numbers, and of their squares
        self.weight = 0.0  # and of ones

    def take_in(self, numbers: Array) -> None:
        """Count numbers, (n, *shape)."""
        now = numbers.astype(np.float64)
        of_now = np.stack([now.mean(axis=0), np.square(now).mean(axis=0)])
        self.sums = self.sums * _MEMORY + of_now * (1 - _MEMORY)
        self.weight = self.weight * _MEMORY + 1 - _MEMORY

    def of_numbers(self) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation, float32; 0 and 1 before the first numbers."""
        if not self.weight:
            return np.zeros_like(self.sums[0], np.float32), np.ones_like(self.sums[0], np.float32)
        mean, square = self.sums / self.weight
        std = np.sqrt(np.maximum(square - np.square(mean), 1e-4))
        return np.asarray(mean, np.float32), np.asarray(std, np.float32)

    def of(self, numbers: FloatArray) -> FloatArray:
        """(n, *shape) numbers in these units, at most 10 from 0."""
        mean, std = self.of_numbers()
        in_units: FloatArray = np.clip((numbers - mean) / std, -10, 10)
        return in_units

    def get_state(self) -> State:
        """Return the sums as plain data and arrays."""
        return {"sums": self.sums.copy(), "weight": self.weight}

    def read_state(self, saved: StateReader) -> None:
        """Take over what `get_state` returned."""
        saved.require_names(["sums", "weight"])
        self.sums, self.weight = saved.array("sums", np.float64, self.sums.shape), saved.number("weight", 0, 1)


class ValueNet:
    """Layers with ReLUs that estimate values of inputs, and learn them by Adam.

    The last layer learns values in units of their running mean and standard deviation, and keeps what it says when
    these change (PopArt, van Hasselt et al. 2016).

    Args:
        layers: PyTorch's, with the first weights.
        popart: whether the units change; if not, they are those of the returns.
    """

    def __init__(self, layers: Sequence[nn.Linear], popart: bool) -> None:
        self.sizes = [(layer.in_features, layer.out_features) for layer in layers]
        parts = [part.detach().numpy() for layer in layers for part in (layer.weight.T, layer.bias)]
        self.parameters: FloatArray = np.concatenate([part.reshape(-1) for part in parts])
        self.moments, self.steps = np.zeros((2, len(self.parameters)), np.float32), 0  # of Adam
        self.units, self.of_returns, self._popart = Units((self.inputs,)), Units(), popart
        self._grad, self._scratch = np.zeros_like(self.parameters), np.zeros_like(self.parameters)

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return self.sizes[0][0]

    def layers(self, flat: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """Return views of the weights, (inputs, outputs), and biases of the layers in a vector of all of them."""
        views, first = [], 0
        for inputs, outputs in self.sizes:
            bias = first + inputs * outputs
            views.append((flat[first:bias].reshape(inputs, outputs), flat[bias : bias + outputs]))
            first = bias + outputs
        return views

    def values(self, inputs: FloatArray) -> FloatArray:
        """Return the (n,) values of (n, inputs)."""
        mean, std = self.of_returns.of_numbers()
        values: FloatArray = self._forward(self.units.of(inputs))[-1][:, 0] * std + mean
        return values

    def _forward(self, seen: FloatArray) -> list[FloatArray]:
        """Return what goes into each layer, and what comes out of the last one."""
        found, layers = [seen], self.layers(self.parameters)
        for number, (weight, bias) in enumerate(layers, start=1):
            out = found[-1] @ weight
            out += bias
            found.append(np.maximum(out, 0, out=out) if number < len(layers) else out)
        return found

    # --- Learning ----------------------------------------------------------------------------------------------------

    def take_in(self, inputs: FloatArray, returns: FloatArray) -> None:
        """Change the units by new inputs, (n, inputs), and their returns, (n,): the values that they mean stay."""
        self.units.take_in(inputs)
        if not self._popart:
            return
        (mean, std), is_first = self.of_returns.of_numbers(), not self.of_returns.weight
        self.of_returns.take_in(returns)
        new_mean, new_std = self.of_returns.of_numbers()
        if not is_first:
            weight, bias = self.layers(self.parameters)[-1]
            weight *= std / new_std
            bias[:] = (bias * std + mean - new_mean) / new_std

    def learn(self, inputs: FloatArray, returns: FloatArray, minibatches: Sequence[Array], rate: float) -> float:
        """Learn minibatches, arrays of places, one after the other; returns the mean of their losses."""
        mean, std = self.of_returns.of_numbers()
        seen, targets = self.units.of(inputs), ((returns - mean) / std).astype(np.float32)[:, None]
        losses = [self._step(seen[chosen], targets[chosen], rate) for chosen in minibatches]
        return float(np.mean(losses) * np.square(std))

    def _step(self, seen: FloatArray, targets: FloatArray, rate: float) -> float:
        found, grad = self._forward(seen), self._grad
        error = found.pop() - targets
        slope = np.clip(error, -_DELTA, _DELTA)
        loss = float((slope * (error - slope / 2)).mean())
        slope /= len(seen)
        layers, grads = self.layers(self.parameters), self.layers(grad)
        for (weight, _), (weight_grad, bias_grad), before in zip(layers[::-1], grads[::-1], found[::-1], strict=True):
            np.dot(before.T, slope, out=weight_grad)
            slope.sum(axis=0, out=bias_grad)
            if before is not seen:
                slope = slope @ weight.T
                slope *= before > 0
        if (norm := float(np.sqrt(grad.dot(grad)))) > _LARGEST_NORM:
            grad *= np.float32(_LARGEST_NORM / (norm + 1e-6))
        self._descend(grad, rate)
        return loss

    def _descend(self, grad: FloatArray, rate: float) -> None:
        """Take a step of Adam, as PyTorch's, with few passes over the memory."""
        self.steps += 1
        (first, second), (mean, square), scratch = _DECAYS, self.moments, self._scratch
        mean *= np.float32(first)
        mean += np.multiply(grad, np.float32(1 - first), out=scratch)
        square *= np.float32(second)
        scratch *= grad
        scratch *= np.float32((1 - second) / (1 - first))
        square += scratch
        np.sqrt(square, out=scratch)
        scratch *= np.float32(1 / np.sqrt(1 - second**self.steps))
        scratch += np.float32(_EPSILON)
        np.divide(mean, scratch, out=scratch)
        scratch *= np.float32(rate / (1 - first**self.steps))
        self.parameters -= scratch

    # --- State -------------------------------------------------------------------------------------------------------

    def values_state(self) -> State:
        """Return weights and units, from which its values follow, as plain data and arrays."""
        units = {"units": self.units.get_state(), "returns": self.of_returns.get_state()}
        return {**units, "parameters": self.parameters.copy()}

    def read_values(self, saved: StateReader) -> None:
        """Take over what `values_state` returned."""
        self.units.read_state(saved.fields("units"))
        self.of_returns.read_state(saved.fields("returns"))
        self.parameters = saved.array("parameters", np.float32, self.parameters.shape)

    def get_state(self) -> State:
        """Return weights, units and what Adam remembers as plain data and arrays."""
        return {**self.values_state(), "moments": self.moments.copy(), "steps": self.steps}

    def read_state(self, saved: StateReader) -> None:
        """Take over what `get_state` returned.

        Raises:
            CheckpointError: it is of another network.
        """
        saved.require_names(["units", "returns", "parameters", "moments", "steps"])
        self.read_values(saved)
        moments = saved.array("moments", np.float32, self.moments.shape)
        if (moments[1] < 0).any():
            raise saved.error("moments", moments[1].min(), "squares that are not negative")
        self.moments, self.steps = moments, saved.integer("steps", 0)
