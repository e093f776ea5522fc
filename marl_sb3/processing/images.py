"""Resize images and convert them to grayscale. Images are uint8 Boxes from 0 to 255 with channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.envs import area
from marl_sb3.errors import ConfigError
from marl_sb3.processing.by_key import Space, map_parts, parts_of, with_parts
from marl_sb3.processing.interface import Look, Memory, ObservationProcessor
from marl_sb3.types import Array, Observations

_LUMINANCE = np.array([0.2125, 0.7154, 0.0721])  # of ITU-R BT.709, as in Gymnasium's GrayscaleObservation
_AXES = 3


class Resize(ObservationProcessor):
    """Resizes images by averaging over areas.

    Args:
        space: the observation space; keys of a Dict that are no images stay unchanged.
        size: height and width of the results.

    Raises:
        ConfigError: there is no image.
    """

    def __init__(self, space: Space, size: tuple[int, int]) -> None:
        self._size = size
        images = _images_of(space, "resize", channels=None)
        self._functions = dict.fromkeys(images, self._resized)
        self.space = with_parts(space, {key: self._resized_space(box) for key, box in images.items()})

    def _resized_space(self, box: spaces.Box) -> Space:
        return spaces.Box(*(self._resized(bound[None])[0] for bound in (box.low, box.high)), dtype=np.uint8)

    def _resized(self, images: Array) -> Array:
        return area.resize(images, *self._size)

    def observe(self, look: Look) -> tuple[Observations, Memory]:
        """See `ObservationProcessor.observe`."""
        return map_parts(look.seen, self._functions), {}


class Grayscale(ObservationProcessor):
    """Converts RGB images to grayscale, with the weights and the rounding of Gymnasium's `GrayscaleObservation`.

    Args:
        space: the observation space; keys of a Dict that are no RGB images stay unchanged.

    Raises:
        ConfigError: there is no RGB image.
    """

    def __init__(self, space: Space) -> None:
        images = _images_of(space, "grayscale", channels=len(_LUMINANCE))
        self._functions = dict.fromkeys(images, _gray)
        boxes = {key: spaces.Box(0, 255, (*box.shape[:2], 1), np.uint8) for key, box in images.items()}
        self.space = with_parts(space, boxes)

    def observe(self, look: Look) -> tuple[Observations, Memory]:
        """See `ObservationProcessor.observe`."""
        return map_parts(look.seen, self._functions), {}


def _gray(images: Array) -> Array:
    gray: Array = np.sum(np.multiply(images, _LUMINANCE), axis=-1, keepdims=True)
    return gray.astype(np.uint8)


def _images_of(space: Space, setting: str, channels: int | None) -> dict[str, Any]:
    """Return the parts that are images with this number of channels; None: any number."""
    images = {key: box for key, box in parts_of(space).items() if _is_image(box, channels)}
    if not images:
        what = "an image" if channels is None else f"an image of {channels} channels"
        raise ConfigError(f"{setting}: the observation space is {space}; accepted: {what}, (height, width, channels) "
                          "of uint8 from 0 to 255", key=setting)  # fmt: skip
    return images


def _is_image(space: Space, channels: int | None) -> bool:
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == _AXES
        and channels in (None, space.shape[-1])
    )
