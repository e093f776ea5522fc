"""Resize images by averaging over areas, many at once."""

from __future__ import annotations

from functools import cache

import numpy as np

from marl_sb3.types import Array


def resize(images: Array, height: int, width: int) -> Array:
    """Resize a batch of images.

    Every new pixel is the mean of the area that it covers; a pixel that it covers in part counts in part. For whole
    numbers of type integer the mean is rounded.

    Args:
        images: (n, old height, old width, channels).
        height: new height.
        width: new width.

    Returns:
        (n, height, width, channels) of the same dtype.
    """
    rows, columns = _weights(images.shape[1], height), _weights(images.shape[2], width)
    mixed = np.einsum("hi,nijc->nhjc", rows, images, optimize=True)
    mixed = np.einsum("wj,nhjc->nhwc", columns, mixed, optimize=True)
    resized: Array = (np.rint(mixed) if images.dtype.kind in "iu" else mixed).astype(images.dtype)
    return resized


@cache
def _weights(old: int, new: int) -> Array:
    """(new, old): the part of each old pixel in each new one; every row sums to 1."""
    edges = np.arange(new + 1) * (old / new)
    upper = np.minimum(edges[1:, None], np.arange(1, old + 1))
    lower = np.maximum(edges[:-1, None], np.arange(old))
    overlap = np.maximum(upper - lower, 0.0)
    weights: Array = (overlap / overlap.sum(axis=1, keepdims=True)).astype(np.float64)
    return weights
