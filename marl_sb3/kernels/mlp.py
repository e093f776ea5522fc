"""Forward and backward pass of a plain MLP in PyTorch's memory, as float32 kernels compiled by numba.

The activations of all layers of a net lie in one flat array, `work`: (rows, outputs) of each layer, one after another.
Their gradients lie in another array of the same layout, and the gradients of the parameters in a third one: weight,
(outputs, inputs), and bias of each layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marl_sb3.kernels.cache import inner_kernel, kernel
from marl_sb3.kernels.layers import activate, matrix, through_activation
from marl_sb3.kernels.memory import matrix_at, vector_at
from marl_sb3.kernels.optimizers import adam
from marl_sb3.types import Array, FloatArray


class Net(NamedTuple):
    """A plain MLP.

    Attributes:
        table: (layers, 4) int64; inputs, outputs, address of the weight, address of the bias.
        hidden: activation after all layers but the last one: TANH, RELU or LINEAR.
        last: activation after the last one.
    """

    table: Array
    hidden: int
    last: int


class Adam(NamedTuple):
    """The parameters of an optimizer, in the order of their gradients, with Adam's state and settings.

    Attributes:
        table: (parameters, 5) int64; number of values, and addresses of the values, of both moments and of the number
            of steps taken.
    """

    table: Array
    learning_rate: float
    beta1: float
    beta2: float
    eps: float


@inner_kernel
def outputs_size(net: Net) -> int:
    """Return the outputs of all layers, for one row."""
    size = 0
    for layer in range(net.table.shape[0]):
        size += net.table[layer, 1]
    return size


@inner_kernel
def parameters_size(net: Net) -> int:
    """Return the number of parameters."""
    size = 0
    for layer in range(net.table.shape[0]):
        size += (net.table[layer, 0] + 1) * net.table[layer, 1]
    return size


@inner_kernel
def last_layer(net: Net, work: FloatArray, rows: int) -> FloatArray:
    """Return the part of `work` that belongs to the last layer, (rows, outputs); a view."""
    outputs = net.table[net.table.shape[0] - 1, 1]
    return matrix(work, rows * (outputs_size(net) - outputs), rows, outputs)


@kernel
def forward(net: Net, inputs: FloatArray, work: FloatArray) -> FloatArray:
    """Run a net on (rows, inputs); returns its last layer, (rows, outputs), a view of `work`."""
    rows, layers = inputs.shape[0], net.table.shape[0]
    below, offset = inputs, 0
    for layer in range(layers):
        n_in, n_out, weight, bias = net.table[layer]
        here = matrix(work, offset, rows, n_out)
        np.dot(below, matrix_at(weight, n_out, n_in).T, here)
        activate(here, vector_at(bias, n_out), net.hidden if layer < layers - 1 else net.last)
        below = here
        offset += rows * n_out
    return below


@kernel
def backward(
    net: Net, inputs: FloatArray, work: FloatArray, deltas: FloatArray, grad: FloatArray, below: FloatArray
) -> None:
    """Compute the gradients of a net's parameters and inputs from those of its outputs, after `forward`.

    Args:
        inputs: (rows, inputs).
        work: filled by `forward`.
        deltas: of the same layout; its last layer holds the gradients of the outputs. Changed.
        grad: (parameters,); filled. With no entries, the gradients of the parameters are left out.
        below: (rows, inputs); filled. With no rows, the gradients of the inputs are left out.
    """
    rows, layers = inputs.shape[0], net.table.shape[0]
    offset, place, wanted = rows * outputs_size(net), parameters_size(net), grad.shape[0] > 0
    for layer in range(layers - 1, -1, -1):
        n_in, n_out, weight, _ = net.table[layer]
        offset -= rows * n_out
        place -= (n_in + 1) * n_out
        delta, values = matrix(deltas, offset, rows, n_out), matrix(work, offset, rows, n_out)
        bias_grad = grad[place + n_in * n_out : place + (n_in + 1) * n_out] if wanted else np.empty(n_out, np.float32)
        through_activation(delta, values, net.hidden if layer < layers - 1 else net.last, bias_grad)
        given = inputs if layer == 0 else matrix(work, offset - rows * n_in, rows, n_in)
        if wanted:
            np.dot(delta.T, given, matrix(grad, place, n_out, n_in))
        if layer > 0:
            np.dot(delta, matrix_at(weight, n_out, n_in), matrix(deltas, offset - rows * n_in, rows, n_in))
        elif below.shape[0] > 0:
            np.dot(delta, matrix_at(weight, n_out, n_in), below)


@inner_kernel
def step_adam(optimizer: Adam, grad: FloatArray, scale: float) -> None:
    """Take one step of Adam with the gradients of all parameters, times `scale`."""
    place = 0
    for i in range(optimizer.table.shape[0]):
        size, values, first, second, count = optimizer.table[i]
        steps = vector_at(count, 1)
        steps[0] += np.float32(1.0)
        adam(
            vector_at(values, size),
            grad[place : place + size],
            vector_at(first, size),
            vector_at(second, size),
            np.float32(scale),
            int(steps[0]),
            optimizer.learning_rate,
            optimizer.beta1,
            optimizer.beta2,
            optimizer.eps,
        )
        place += size


@inner_kernel
def move_towards(table: Array, tau: float) -> None:
    """Move target parameters towards others: target = (1 - tau) * target + tau * source.

    Args:
        table: (parameters, 3) int64; number of values, address of the source, address of the target.
    """
    new, keep = np.float32(tau), np.float32(1.0 - tau)
    for i in range(table.shape[0]):
        size, source, target = table[i]
        to, given = vector_at(target, size), vector_at(source, size)
        for j in range(size):
            to[j] = keep * to[j] + new * given[j]
