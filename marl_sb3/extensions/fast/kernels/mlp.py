"""Forward and backward pass of a plain MLP in PyTorch's memory, as float32 kernels compiled by numba.

The activations of all layers of a net lie in one flat array, `work`: (rows, outputs) of each layer, one after another.
Their gradients lie in another array of the same layout, and the gradients of the parameters in a third one: weight,
(outputs, inputs), and bias of each layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel
from marl_sb3.extensions.fast.kernels.layers import activate, clear, matrix, matrix_at, through_activation, vector_at
from marl_sb3.types import Array, FloatArray


class Net(NamedTuple):
    """A plain MLP."""

    table: Array  # (layers, 4) int64; inputs, outputs, address of the weight, address of the bias
    hidden: int  # activation after all layers but the last one: TANH, RELU or LINEAR
    last: int  # activation after the last one


class Inputs(NamedTuple):
    """Inputs of a net: one of the two arrays is used, the other one has no columns."""

    # (rows, ones) int64; the positions of the ones of one-hot inputs. The first weight of a net with such inputs, and
    # its gradient, lie as (inputs, outputs): each of the ones selects a row.
    indices: Array
    floats: FloatArray  # (rows, inputs) float32


@inner_kernel
def plain(floats: FloatArray) -> Inputs:
    """Return (rows, inputs) float32 numbers as inputs."""
    return Inputs(np.empty((floats.shape[0], 0), np.int64), floats)


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


@inner_kernel
def _sum_rows(weight: FloatArray, indices: Array, sums: FloatArray) -> None:
    """Multiply one-hot inputs with a weight.

    Args:
        weight: (inputs, outputs).
        indices: (rows, ones); the positions of the ones.
        sums: (rows, outputs); filled.
    """
    rows, outputs = sums.shape
    for i in range(rows):
        row = sums[i]
        first = weight[indices[i, 0]]
        for j in range(outputs):
            row[j] = first[j]
        for k in range(1, indices.shape[1]):
            more = weight[indices[i, k]]
            for j in range(outputs):
                row[j] += more[j]


@inner_kernel
def add_to_rows(delta: FloatArray, indices: Array, grad: FloatArray) -> None:
    """grad: (inputs, outputs); filled with the gradient of `weight` in `_sum_rows` from that of `sums`."""
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
def multiply(inputs: Inputs, weight: int, columns: int, products: FloatArray) -> None:
    """products: (rows, outputs); filled with the products of (rows, columns) inputs and the weight at an address."""
    outputs = products.shape[1]
    if inputs.indices.shape[1] > 0:
        _sum_rows(matrix_at(weight, columns, outputs), inputs.indices, products)
    else:
        np.dot(inputs.floats, matrix_at(weight, outputs, columns).T, products)


@inner_kernel
def forward(net: Net, inputs: Inputs, work: FloatArray) -> FloatArray:
    """Run a net; returns its last layer, (rows, outputs), a view of `work`."""
    rows, layers = inputs.floats.shape[0], net.table.shape[0]
    n_in, n_out, weight, bias = net.table[0]
    here = matrix(work, 0, rows, n_out)
    multiply(inputs, weight, n_in, here)
    activate(here, vector_at(bias, n_out), net.hidden if layers > 1 else net.last)
    below, offset = here, rows * n_out
    for layer in range(1, layers):
        n_in, n_out, weight, bias = net.table[layer]
        here = matrix(work, offset, rows, n_out)
        np.dot(below, matrix_at(weight, n_out, n_in).T, here)
        activate(here, vector_at(bias, n_out), net.hidden if layer < layers - 1 else net.last)
        below = here
        offset += rows * n_out
    return below


@inner_kernel
def backward(
    net: Net, inputs: Inputs, work: FloatArray, deltas: FloatArray, grad: FloatArray, below: FloatArray
) -> None:
    """Compute the gradients of a net's parameters and inputs from those of its outputs, after `forward`.

    Args:
        inputs: those of `forward`.
        work: filled by `forward`.
        deltas: of the same layout; its last layer holds the gradients of the outputs. Changed.
        grad: (parameters,); filled.
        below: (rows, inputs); filled. With no rows, the gradients of the inputs are left out.
    """
    rows, layers = inputs.floats.shape[0], net.table.shape[0]
    offset, place = rows * outputs_size(net), parameters_size(net)
    for layer in range(layers - 1, -1, -1):
        n_in, n_out, weight, _ = net.table[layer]
        offset -= rows * n_out
        place -= (n_in + 1) * n_out
        delta, values = matrix(deltas, offset, rows, n_out), matrix(work, offset, rows, n_out)
        bias_grad = grad[place + n_in * n_out : place + (n_in + 1) * n_out]
        through_activation(delta, values, net.hidden if layer < layers - 1 else net.last, bias_grad)
        if layer > 0:
            given = matrix(work, offset - rows * n_in, rows, n_in)
            np.dot(delta.T, given, matrix(grad, place, n_out, n_in))
            np.dot(delta, matrix_at(weight, n_out, n_in), matrix(deltas, offset - rows * n_in, rows, n_in))
            continue
        if inputs.indices.shape[1] > 0:
            add_to_rows(delta, inputs.indices, matrix(grad, place, n_in, n_out))
        else:
            np.dot(delta.T, inputs.floats, matrix(grad, place, n_out, n_in))
        if below.shape[0] > 0:
            np.dot(delta, matrix_at(weight, n_out, n_in), below)
