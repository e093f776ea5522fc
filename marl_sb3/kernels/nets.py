"""Forward and backward pass of actor and critic, as float32 kernels compiled by numba.

All parameters of a policy lie in one flat array `theta`, and their gradients in another one of the same layout. A net
(actor or critic) is a table with a row per layer: `[inputs, outputs, weight offset, bias offset]`. Weights are stored
as (inputs, outputs), transposed with respect to PyTorch, so that a one-hot input selects an adjoining row. Activations
of layer l are in a workspace at `offsets[l]`, (rows, outputs) each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marl_sb3.kernels.cache import inner_kernel, kernel
from marl_sb3.kernels.layers import LINEAR, activate, clear, matrix, through_activation
from marl_sb3.types import Array, FloatArray


class Nets(NamedTuple):
    """Shape of a policy.

    Attributes:
        pi: the actor's layers, a table as above.
        vf: the critic's.
        log_std: offset in `theta` of a Gaussian's log standard deviations.
        sizes: (sub-distributions,) int64; number of categories of each; empty for a Gaussian.
        gaussian: whether actions are real numbers.
        activation: TANH or RELU.
        one_hot: whether inputs are given by the positions of their ones.
    """

    pi: Array
    vf: Array
    log_std: int
    sizes: Array
    gaussian: bool
    activation: int
    one_hot: bool


@kernel
def workspace(table: Array, rows: int) -> tuple[Array, int]:
    """Return the offset of each layer's activations, and the size of the workspace in numbers."""
    offsets = np.empty(table.shape[0], np.int64)
    size = 0
    for layer in range(table.shape[0]):
        offsets[layer] = size
        size += rows * table[layer, 1]
    return offsets, size


@inner_kernel
def first_layer(indices: Array, floats: FloatArray, one_hot: bool, weight: FloatArray, out: FloatArray) -> None:
    """out: (rows, outputs) = inputs @ weight, where one-hot inputs are given by the positions of their ones."""
    if not one_hot:
        np.dot(floats, weight, out)
        return
    rows, outputs = out.shape
    for i in range(rows):
        row = out[i]
        first = weight[indices[i, 0]]
        for j in range(outputs):
            row[j] = first[j]
        for k in range(1, indices.shape[1]):
            more = weight[indices[i, k]]
            for j in range(outputs):
                row[j] += more[j]


@kernel
def forward(
    theta: FloatArray,
    table: Array,
    offsets: Array,
    work: FloatArray,
    indices: Array,
    floats: FloatArray,
    one_hot: bool,
    rows: int,
    activation: int,
) -> FloatArray:
    """Run a net; returns its last layer, (rows, outputs), a view of `work`."""
    layers = table.shape[0]
    out = matrix(work, offsets[0], rows, table[0, 1])
    for layer in range(layers):
        inputs, outputs, w, b = table[layer, 0], table[layer, 1], table[layer, 2], table[layer, 3]
        weight = matrix(theta, w, inputs, outputs)
        here = matrix(work, offsets[layer], rows, outputs)
        if layer == 0:
            first_layer(indices, floats, one_hot, weight, here)
        else:
            np.dot(out, weight, here)
        activate(here, theta[b : b + outputs], activation if layer < layers - 1 else LINEAR)
        out = here
    return out


@kernel
def forward_both(
    theta: FloatArray,
    pi: Array,
    pi_offsets: Array,
    pi_work: FloatArray,
    vf: Array,
    vf_offsets: Array,
    vf_work: FloatArray,
    indices: Array,
    floats: FloatArray,
    one_hot: bool,
    rows: int,
    activation: int,
) -> tuple[FloatArray, FloatArray]:
    """Run `forward` of actor and critic in one call: for few rows a call from Python costs as much as the network."""
    return (
        forward(theta, pi, pi_offsets, pi_work, indices, floats, one_hot, rows, activation),
        forward(theta, vf, vf_offsets, vf_work, indices, floats, one_hot, rows, activation),
    )


@inner_kernel
def _first_layer_gradient(
    indices: Array, floats: FloatArray, one_hot: bool, delta: FloatArray, grad: FloatArray
) -> None:
    """grad: (inputs, outputs) = inputs.T @ delta."""
    if not one_hot:
        np.dot(floats.T, delta, grad)
        return
    for i in range(grad.shape[0]):
        clear(grad[i])
    rows, outputs = delta.shape
    for i in range(rows):
        row = delta[i]
        for k in range(indices.shape[1]):
            target = grad[indices[i, k]]
            for j in range(outputs):
                target[j] += row[j]


@inner_kernel
def backward(
    theta: FloatArray,
    grad: FloatArray,
    table: Array,
    offsets: Array,
    work: FloatArray,
    delta_work: FloatArray,
    indices: Array,
    floats: FloatArray,
    one_hot: bool,
    rows: int,
    activation: int,
) -> None:
    """Compute the gradients of a net's parameters from those of its outputs.

    `delta_work` has the layout of `work`. On entry its last layer holds the loss's gradient with respect to the net's
    outputs; on return `grad` holds the gradient with respect to the parameters.
    """
    layers = table.shape[0]
    for layer in range(layers - 1, -1, -1):
        inputs, outputs, w, b = table[layer, 0], table[layer, 1], table[layer, 2], table[layer, 3]
        delta = matrix(delta_work, offsets[layer], rows, outputs)
        values = matrix(work, offsets[layer], rows, outputs)
        through_activation(delta, values, activation if layer < layers - 1 else LINEAR, grad[b : b + outputs])
        weight_grad = matrix(grad, w, inputs, outputs)
        if layer == 0:
            _first_layer_gradient(indices, floats, one_hot, delta, weight_grad)
            continue
        below = matrix(work, offsets[layer - 1], rows, inputs)
        np.dot(below.T, delta, weight_grad)
        weight = matrix(theta, w, inputs, outputs)
        delta_below = matrix(delta_work, offsets[layer - 1], rows, inputs)
        np.dot(delta, weight.T, delta_below)
