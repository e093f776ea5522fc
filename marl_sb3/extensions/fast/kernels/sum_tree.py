"""A sum tree as kernels: numbers are drawn in proportion to their size, and changed, in logarithmic time.

A tree of capacity c, a power of 2, is an array (2 c,) float64: the numbers stand from c on, and each number before is
the sum of the two that stand at twice its place. The sum of all is at place 1.
"""

from __future__ import annotations

import numpy as np

from marl_sb3.compiling import kernel
from marl_sb3.types import Array


@kernel
def sum_up(tree: Array) -> None:
    """Compute all sums from the numbers."""
    for node in range(tree.shape[0] // 2 - 1, 0, -1):
        tree[node] = tree[2 * node] + tree[2 * node + 1]


@kernel
def put(tree: Array, places: Array, numbers: Array) -> None:
    """Set the numbers at (n,) places, from 0 on; of a place that is there twice, the last one stays.

    The sums above are computed anew from their two parts, so that no rounding adds up over many changes.
    """
    capacity = tree.shape[0] // 2
    for i in range(places.shape[0]):
        node = capacity + places[i]
        tree[node] = numbers[i]
        while node > 1:
            node //= 2
            tree[node] = tree[2 * node] + tree[2 * node + 1]


@kernel
def draw(tree: Array, fractions: Array) -> Array:
    """Return the (n,) places at which the running sum of the numbers passes so many n-ths of the sum of all.

    Args:
        fractions: (n,) from 0 to 1, one within each n-th: the k-th draw is at (k + fraction) / n of the whole.
    """
    capacity, number = tree.shape[0] // 2, fractions.shape[0]
    places = np.empty(number, np.int64)
    for k in range(number):
        rest, node = (k + fractions[k]) / number * tree[1], 1
        while node < capacity:
            node *= 2
            # Rounding must not lead to a number of 0, which stands for nothing: there, the sum has ended before.
            if rest >= tree[node] and tree[node + 1] > 0.0:
                rest -= tree[node]
                node += 1
        places[k] = node - capacity
    return places
