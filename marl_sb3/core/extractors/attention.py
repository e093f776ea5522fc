"""A transformer over the latest observations, which `frame_stack` stacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from torch import nn
from torch.nn import functional

from marl_sb3.core.policies import layers, refuse_dict
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.processors import WHOLE, FrameStack
from marl_sb3.errors import ConfigError

_KEY = "policy_kwargs.features_extractor_kwargs"


class AttentionFeatures(BaseFeaturesExtractor):
    """A transformer over stacked frames, after GTrXL (Parisotto et al. 2020, https://arxiv.org/abs/1910.06764).

    Each frame becomes a vector, to which that of its place is added; blocks of attention and of a position-wise network
    follow, both with normalised inputs and GRU gates; the newest frame's vector is the result. Unlike GTrXL, it has no
    memory of its own: it sees the frames, with places counted from the newest one.

    The filling of `frame_stack` at the start of an episode is masked: frames that say so by their number `filler`, else
    frames of zeros before the first frame that has another number. Observations of zeros there look the same, to every
    network. The newest frame is never masked.

    Args:
        observation_space: a Box of stacked frames, the newest last: along the channels of an image, or the last axis.
        frames: number of frames.
        frame_shape: shape of a frame, with the channels first if it is an image; numbers behind the frames are added
            to the result, and channels behind them by their first pixel. None: there are only frames.
        filler: index of a number, in a vector of `frame_shape`, that is not 0 in the filling alone. None: the filling
            is zeros.
        embed_dim: size of the vectors.
        num_layers: number of blocks.
        num_heads: number of heads of attention.
        head_dim: size of a head. None: `embed_dim / num_heads`.
        feedforward_dim: width of the position-wise networks, which have one hidden layer.
        positions: vectors of the places: `learned`, or `sinusoidal` as in Vaswani et al. 2017, section 3.5.
        gate_bias: at first the gates let a share of about sigmoid(-gate_bias) through.
        net_arch: widths of the layers that each frame goes through first; images go through SB3's `NatureCNN`.
        activation_fn: after each of them.

    Raises:
        ConfigError: there are no stacked frames, or the heads do not divide `embed_dim`.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        frames: int = 1,
        frame_shape: Sequence[int] | None = None,
        filler: int | None = None,
        embed_dim: int = 64,
        num_layers: int = 1,
        num_heads: int = 4,
        head_dim: int | None = None,
        feedforward_dim: int = 128,
        positions: str = "learned",
        gate_bias: float = 2.0,
        net_arch: Sequence[int] = (),
        activation_fn: type[nn.Module] = nn.Tanh,
    ) -> None:
        refuse_dict("attention", observation_space)
        if head_dim is None and embed_dim % num_heads:
            words = f"num_heads is {num_heads} and embed_dim {embed_dim}"
            raise ConfigError(f"{words}; accepted: heads that divide embed_dim, or a head_dim", key=_KEY)
        is_image = is_image_space(observation_space)
        frame = _frame_shape(observation_space, frames, is_image) if frame_shape is None else tuple(frame_shape)
        total = int(get_flattened_obs_dim(observation_space))
        appended = (total - frames * math.prod(frame)) // (math.prod(frame[1:]) if is_image else 1)
        super().__init__(observation_space, embed_dim + appended)
        self._frames, self._frame, self._is_image, self._appended = frames, frame, is_image, appended
        self._filler = filler
        self.embed: nn.Module
        if is_image:
            self.embed = NatureCNN(spaces.Box(0, 255, frame, observation_space.dtype), embed_dim, normalized_image=True)  # type: ignore[arg-type]
        else:
            width = [math.prod(frame), *net_arch][-1]
            self.embed = nn.Sequential(*layers(math.prod(frame), net_arch, activation_fn), nn.Linear(width, embed_dim))
        if positions == "learned":
            self.positions = nn.Parameter(0.02 * th.randn(frames, embed_dim))
        else:
            distance = th.arange(frames - 1, -1, -1.0)[:, None]  # from the newest frame
            angles = distance * th.exp(th.arange(0, embed_dim, 2) * (-math.log(10_000.0) / embed_dim))
            waves = th.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :embed_dim]
            self.register_buffer("positions", waves, persistent=False)
        size = embed_dim // num_heads if head_dim is None else head_dim
        self.blocks = nn.ModuleList(
            _Block(embed_dim, num_heads, size, feedforward_dim, gate_bias) for _ in range(num_layers)
        )

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """(rows, features) of (rows, ...) observations, as SB3 prepares them."""
        frames, appended = self._split(observations)
        flat = frames.flatten(2)
        is_real = (flat != 0).any(dim=2) if self._filler is None else flat[:, :, self._filler] == 0
        visible = is_real.int().cumsum(dim=1) > 0
        visible = th.cat([visible[:, :-1], th.ones_like(visible[:, -1:])], dim=1)
        embedded: th.Tensor = self.embed(frames.flatten(0, 1) if self._is_image else frames.flatten(2))
        vectors = embedded.reshape(-1, self._frames, embedded.shape[-1]) + self.positions
        for block in self.blocks[:-1]:
            vectors = block(vectors, vectors, visible)
        newest: th.Tensor = self.blocks[-1](vectors[:, -1:], vectors, visible)[:, 0]
        return th.cat([newest, appended], dim=1) if self._appended else newest

    @classmethod
    def arguments_for(cls, processing: Processing) -> dict[str, Any]:
        """Return the arguments that say which frames the observations of a policy have, by its processing."""
        stack = processing.processors.get("frame_stack")
        if not isinstance(stack, FrameStack) or WHOLE not in stack.frame_shapes:
            return {}
        frames = {"frames": processing.settings.frame_stack, "frame_shape": stack.frame_shapes[WHOLE]}
        return {**frames, "filler": stack.fillers[WHOLE]} if WHOLE in stack.fillers else frames

    def _split(self, observations: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Return the frames, (rows, frames, *frame shape), and the numbers behind them, (rows, numbers)."""
        number, shape = self._frames, self._frame
        if self._is_image:
            channels = number * shape[0]
            return observations[:, :channels].reshape(-1, number, *shape), observations[:, channels:, 0, 0]
        flat, size = observations.flatten(1), number * math.prod(shape)
        frames = flat[:, :size].reshape(-1, math.prod(shape[:-1]), number, shape[-1])
        return frames.transpose(1, 2), flat[:, size:]


def _frame_shape(space: spaces.Space[Any], frames: int, is_image: bool) -> tuple[int, ...]:
    """Return the shape of a frame where there are only frames."""
    shape = space.shape or ()
    length = 0 if not isinstance(space, spaces.Box) or not shape else shape[0] if is_image else shape[-1]
    if frames < 2 or not length or length % frames:
        words = f"the features extractor attention reads stacked frames, but the observations are {space}"
        raise ConfigError(f"{words}, of {frames} frames; accepted: frame_stack of at least 2", key="frame_stack")
    return (length // frames, *shape[1:]) if is_image else (*shape[:-1], length // frames)


class _Block(nn.Module):
    """Attention and a position-wise network, each on normalised inputs, through a ReLU and a gate."""

    def __init__(self, size: int, num_heads: int, head_dim: int, feedforward_dim: int, gate_bias: float) -> None:
        super().__init__()
        self._heads, self._head_dim = num_heads, head_dim
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.query = nn.Linear(size, num_heads * head_dim, bias=False)
        self.key_value = nn.Linear(size, 2 * num_heads * head_dim, bias=False)
        self.merge = nn.Linear(num_heads * head_dim, size, bias=False)
        hidden = nn.Linear(size, feedforward_dim), nn.ReLU()
        self.network = nn.Sequential(*hidden, nn.Linear(feedforward_dim, size))
        self.gates = nn.ModuleList(_Gate(size, gate_bias) for _ in range(2))

    def forward(self, wanted: th.Tensor, vectors: th.Tensor, visible: th.Tensor) -> th.Tensor:
        """Return (rows, wanted, size).

        Args:
            wanted: (rows, wanted, size) those of the vectors that are computed.
            vectors: (rows, frames, size), which they look at.
            visible: (rows, frames) bool.
        """
        query = self._by_head(self.query(self.norms[0](wanted)))
        key, value = map(self._by_head, self.key_value(self.norms[0](vectors)).chunk(2, dim=2))
        scores = query @ key.transpose(2, 3) / math.sqrt(self._head_dim)
        weights = scores.masked_fill(~visible[:, None, None, :], -math.inf).softmax(dim=3)
        seen = self.merge((weights @ value).transpose(1, 2).flatten(2))
        after: th.Tensor = self.gates[0](wanted, functional.relu(seen))
        result: th.Tensor = self.gates[1](after, functional.relu(self.network(self.norms[1](after))))
        return result

    def _by_head(self, vectors: th.Tensor) -> th.Tensor:
        """(rows, frames, heads * size) as (rows, heads, frames, size)."""
        rows, frames, _ = vectors.shape
        return vectors.reshape(rows, frames, self._heads, self._head_dim).transpose(1, 2)


class _Gate(nn.Module):
    """The GRU gate of GTrXL, its equations in section 3.2: from the vectors as they were, and what is new."""

    def __init__(self, size: int, bias: float) -> None:
        super().__init__()
        self.of_new = nn.Linear(size, 3 * size, bias=False)
        self.of_old = nn.Linear(size, 2 * size, bias=False)
        self.of_reset = nn.Linear(size, size, bias=False)
        self.bias = nn.Parameter(th.full((size,), float(bias)))

    def forward(self, old: th.Tensor, new: th.Tensor) -> th.Tensor:
        """(rows, frames, size), like both arguments."""
        reset_new, update_new, candidate = self.of_new(new).chunk(3, dim=2)
        reset_old, update_old = self.of_old(old).chunk(2, dim=2)
        reset, update = th.sigmoid(reset_new + reset_old), th.sigmoid(update_new + update_old - self.bias)
        return (1 - update) * old + update * th.tanh(candidate + self.of_reset(reset * old))
