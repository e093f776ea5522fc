"""The policy that fits observations, and CNNs for images that SB3's do not take, such as small ones and floats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from torch import nn

from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.processors import LEAST_PIXELS, Space, parts_of

_LEAST_OF_GRIDS = 5  # the shortest side of arrays that are taken for images: convolutions gain nothing in smaller ones


def fitting_policy(
    algorithm: type[Any], space: Space, policy_kwargs: Mapping[str, Any] | None
) -> tuple[str, dict[str, str]] | None:
    """Return the policy that fits what it observes, by SB3's name, and what its `policy_kwargs` get besides.

    `MultiInputPolicy` takes Dicts, `CnnPolicy` images. Where one of these is not for SB3's `NatureCNN`, all go through
    `ImageFeatures`. With a features extractor of the user's, SB3's policies for Boxes are the same.

    Returns:
        None for `MlpPolicy`, which takes all else; also images, where the algorithm has no CNNs.
    """
    has_parts, parts = isinstance(space, spaces.Dict), parts_of(space).values()
    images = [each for each in parts if _axes(each) is not None or (has_parts and is_image_space(each))]
    if "features_extractor_class" in (policy_kwargs or {}):
        images = []
    are_for_sb3 = all(is_image_space(each) and sorted(each.shape or ())[1] >= LEAST_PIXELS for each in images)
    network = {} if are_for_sb3 else {"features_extractor_class": "image_cnn"}
    if has_parts:
        return "MultiInputPolicy", network
    has_cnn = any(name.startswith("Cnn") for name in getattr(algorithm, "policy_aliases", ()))
    return ("CnnPolicy", network) if images and has_cnn else None


def _axes(space: Space, frames: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the sizes of the axes of images, and their order with height and width last; None: they are no images.

    Images are (height, width, channels) or (channels, height, width) of floats, truth values or uint8. Channels are
    first where they are fewer than pixels, or stand beside a square. uint8 from 0 to 255 may also be (height, width) or
    (frames, height, width, channels).

    Args:
        frames: how many `frame_stack` has put side by side along the last axis, which get one of their own.
    """
    if not isinstance(space, spaces.Box) or (space.dtype.kind not in "fb" and space.dtype != np.uint8):
        return None
    shape, has_pixels = (
        space.shape,
        space.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all()),
    )
    if len(shape) == 3:
        frames = 1 if has_pixels else frames  # they are channels of SB3's images
        first, height, width = *shape[:2], shape[2] // frames
        is_first = first < min(height, width) or first != height == width
        sizes, order = ((first, height, frames, width), (2, 0, 1, 3)) if is_first else (shape, (2, 0, 1))
    elif has_pixels and len(shape) == 2:
        sizes, order = (shape[0], frames, shape[1] // frames), (1, 0, 2)
    elif has_pixels and len(shape) == 4:
        sizes, order = shape, (0, 3, 1, 2)
    else:
        return None
    return (sizes, order) if min(sizes[axis] for axis in order[-2:]) >= _LEAST_OF_GRIDS else None


class ImageFeatures(BaseFeaturesExtractor):
    """A CNN for each image of the observations; the other parts of a Dict are appended.

    Images with sides of at least 36 pixels go through SB3's `NatureCNN`. Its strides would leave nothing of smaller
    ones: these have three convolutions of 2 x 2 and a layer, as in MiniGrid's documentation
    (https://minigrid.farama.org/content/training/).

    Args:
        observation_space: as SB3 prepares it, a Dict or an image as `_axes` says.
        features_dim: the features of each image; None: 512 of `NatureCNN`, 128 of smaller ones.
        frames: see `arguments_for`.
        shapes: see `arguments_for`.
    """

    def __init__(
        self,
        observation_space: Space,
        features_dim: int | None = None,
        frames: int = 1,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        networks: list[nn.Module] = []
        self._parts: list[tuple[str, Any]] = []  # the key of each part; and whether SB3 has transposed it, its axes
        size = 0
        for key, part in parts_of(observation_space).items():
            shape = tuple((shapes or {}).get(key, part.shape or ()))
            axes = _axes(part if shape == part.shape else spaces.Box(0, 255, shape, np.uint8), frames)
            self._parts.append((key, axes and (shape != part.shape, *axes)))
            if axes is None:
                networks.append(nn.Flatten())
                size += int(get_flattened_obs_dim(part))
                continue
            *channels, height, width = (axes[0][axis] for axis in axes[1])
            is_small = min(height, width) < LEAST_PIXELS
            size += (features := features_dim or (128 if is_small else 512))
            if is_small:
                layers: list[nn.Module] = []
                for before, after in pairwise((math.prod(channels), 16, 32, 64)):
                    layers += [nn.Conv2d(before, after, kernel_size=2), nn.ReLU()]
                layers += [nn.Flatten(), nn.Linear(64 * (height - 3) * (width - 3), features), nn.ReLU()]
                networks.append(nn.Sequential(*layers))
            else:
                pixels = spaces.Box(-np.inf, np.inf, (math.prod(channels), height, width), np.float32)
                networks.append(NatureCNN(pixels, features, normalized_image=True))
        super().__init__(observation_space, size)
        self.networks = nn.ModuleList(networks)

    @classmethod
    def arguments_for(cls, processing: Processing) -> dict[str, Any]:
        """Return how many frames the processing of a policy stacks, and the shapes before SB3 transposes them."""
        parts = parts_of(processing.observation_space)
        return {"frames": processing.settings.frame_stack, "shapes": {key: part.shape for key, part in parts.items()}}

    def forward(self, observations: Any) -> th.Tensor:
        """(rows, features) of observations as SB3 prepares them: (rows, ...), or a mapping of such parts."""
        features = []
        for (key, layout), network in zip(self._parts, self.networks, strict=True):
            seen = observations[key] if isinstance(observations, dict) else observations
            if layout is not None:
                is_transposed, sizes, order = layout
                scaled = seen if seen.dim() == 4 else seen / 255  # SB3 knows images by their three axes
                apart = (scaled.permute(0, 2, 3, 1) if is_transposed else scaled).reshape(-1, *sizes)
                seen = apart.permute(0, *(axis + 1 for axis in order)).flatten(1, -3)
            features.append(network(seen))
        return th.cat(features, dim=1)
