"""Networks for sets: what an agent sees of several entities, in any order and of any number up to a maximum.

A part of an observation that is a matrix, a Box of (entities, features), has a row for each entity. Rows are absent
where the part `NAME_mask` of a Dict says 0, or without such a part where all of their numbers are 0. The result does
not depend on the order of the rows, nor on those that are absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from marl_sb3.core.policies import layers
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.processors import WHOLE, parts_of
from marl_sb3.errors import ConfigError, require_known

MASK = "_mask"  # after the name of a part: which of its entities are there
_CLASS, _KWARGS = "policy_kwargs.features_extractor_class", "policy_kwargs.features_extractor_kwargs"
_FAR = -1e9  # below all scores; not infinite, so that a softmax of nothing else is no NaN
_AXES = 2

# Each takes (rows, entities, size) vectors, which are 0 where no entity is, and the (rows, entities, 1) bool that says
# where one is; they return (rows, size), zeros where there is none at all.
Pooling = Callable[[th.Tensor, th.Tensor], th.Tensor]


def _mean(vectors: th.Tensor, present: th.Tensor) -> th.Tensor:
    return vectors.sum(dim=1) / present.sum(dim=1).clamp(min=1)


def _max(vectors: th.Tensor, present: th.Tensor) -> th.Tensor:
    return vectors.masked_fill(~present, _FAR).amax(dim=1) * present.any(dim=1)


def _sum(vectors: th.Tensor, present: th.Tensor) -> th.Tensor:
    return vectors.sum(dim=1)


POOLINGS: Mapping[str, Pooling] = {"mean": _mean, "max": _max, "sum": _sum}


class _SetFeatures(BaseFeaturesExtractor):
    """Embeds each entity, pools the entities of each part, appends all other parts, and ends with layers.

    Attributes:
        name: of the features extractor, for messages.

    Args:
        observation_space: see the module.
        shape: (entities, features) of the matrix that an observation of one axis begins with; None: there is none.
        normalized: the parts whose numbers are normalised.
        embed: makes the network that embeds the entities of a part, of a number of features.
        size: of what it returns.
        pooling: a name in `POOLINGS`.
        pooled_arch: widths of the layers at the end.
        activation_fn: after each of them.

    Raises:
        ConfigError: there are no entities; a mask has another shape; entities are normalised, or a part is an image.
    """

    name: ClassVar[str]

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        shape: Sequence[int] | None,
        normalized: Sequence[str],
        embed: Callable[[int], nn.Module],
        size: int,
        pooling: str,
        pooled_arch: Sequence[int],
        activation_fn: type[nn.Module],
    ) -> None:
        require_known(pooling, POOLINGS, f"pooling is {pooling!r}", _KWARGS)
        parts = parts_of(observation_space)
        sets = {key: part.shape or () for key, part in parts.items() if _is_set(part)}
        if shape:
            sets = {WHOLE: tuple(shape)}
        masks = {key: f"{key}{MASK}" for key in sets if f"{key}{MASK}" in parts}
        _check(self.name, observation_space, {key: own[0] for key, own in sets.items()}, masks, normalized)
        flat = [key for key in parts if key not in sets and key not in masks.values()]
        behind = int(get_flattened_obs_dim(observation_space)) - math.prod(shape) if shape else 0
        pooled = len(sets) * size + behind + sum(int(get_flattened_obs_dim(parts[key])) for key in flat)
        super().__init__(observation_space, [pooled, *pooled_arch][-1])
        self._sets, self._masks, self._flat = sets, masks, flat
        self._pool = POOLINGS[pooling]
        self.embeddings = nn.ModuleList(embed(int(number)) for _, number in sets.values())
        self.layers = nn.Sequential(*layers(pooled, pooled_arch, activation_fn)) if pooled_arch else nn.Identity()

    @classmethod
    def arguments_for(cls, processing: Processing) -> dict[str, Any]:
        """Return what the processing of a policy does to entities: what it normalises, and appends numbers to."""
        told: dict[str, Any] = {}
        if processing.normalizer is not None:
            told["normalized"] = list(processing.normalizer.statistics)
        stack = processing.processors.get("frame_stack")
        before = processing.env_observation_space if stack is None else stack.space
        if _is_set(before) and not _is_set(processing.observation_space):
            told["shape"] = tuple(map(int, before.shape or ()))
        return told

    def forward(self, observations: Any) -> th.Tensor:
        """(rows, features) of observations as SB3 prepares them: (rows, ...), or a mapping of such parts."""
        parts: Mapping[str, th.Tensor] = observations if isinstance(observations, dict) else {WHOLE: observations}
        beside = [parts[key].flatten(1) for key in self._flat]
        vectors, present = [], []
        for (key, shape), embedding in zip(self._sets.items(), self.embeddings, strict=True):
            entities = parts[key]
            if entities.dim() == _AXES:  # a matrix with numbers behind it
                entities, behind = entities[:, : math.prod(shape)], entities[:, math.prod(shape) :]
                entities = entities.reshape(-1, *shape)
                beside.append(behind)
            is_there = parts[self._masks[key]] > 0.5 if key in self._masks else (entities != 0).any(dim=2)
            present.append(is_there[:, :, None])
            vectors.append(embedding(entities.masked_fill(~present[-1], 0.0)))
        related = self.relate(th.cat(vectors, dim=1), th.cat(present, dim=1))
        by_part = th.split(related, [shape[0] for shape in self._sets.values()], dim=1)
        pooled = [self._pool(own * there, there) for own, there in zip(by_part, present, strict=True)]
        features: th.Tensor = self.layers(th.cat([*pooled, *beside], dim=1))
        return features

    def relate(self, vectors: th.Tensor, present: th.Tensor) -> th.Tensor:
        """Return the vectors of all entities, (rows, entities, size), after they have seen each other."""
        return vectors


def _is_set(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == _AXES


def _check(
    name: str,
    space: spaces.Space[Any],
    entities: Mapping[str, int],
    masks: Mapping[str, str],
    normalized: Sequence[str],
) -> None:
    """Refuse what the network cannot read as sets.

    Args:
        entities: the number of rows of each part that is a set.
        masks: the part with the mask of such a part.
    """
    parts, who = parts_of(space), f"the features extractor {name}"
    if not entities:
        words = f"{who} reads matrices with a row for each entity, but the observation space is {space}"
        raise ConfigError(f"{words}; accepted: a Box of (entities, features), or a Dict that has one", key=_CLASS)
    for key, mask in masks.items():
        if not isinstance(parts[mask], (spaces.Box, spaces.MultiBinary)) or parts[mask].shape != (entities[key],):
            words = f"{who}: the part {mask!r}, which says what entities of {key!r} are there, is {parts[mask]}"
            raise ConfigError(f"{words}; accepted: a Box or MultiBinary of shape ({entities[key]},)", key=_CLASS)
    for key in normalized:
        if key in entities or key in masks.values():
            # Each row would be moved by a mean of its own, so that their order mattered, and absent ones were not 0.
            what = f"normalize_keys without {key!r}" if key else "normalize_observations=false"
            words = f"{who}: normalize_observations changes the entities, of which rows of zeros are absent"
            raise ConfigError(f"{words}; accepted: {what}", key="normalize_observations")
    if images := [key for key, part in parts.items() if is_image_space(part)]:
        words = f"{who}: the part {images[0]!r} is an image"
        raise ConfigError(f"{words}; accepted: matrices of entities, vectors, numbers and choices", key=_CLASS)


class DeepSetsFeatures(_SetFeatures):
    """The same layers for each entity, pooling, and more layers: Zaheer et al. 2017, https://arxiv.org/abs/1703.06114.

    Entities do not see each other. Sets of several parts have layers of their own, and are pooled apart. The other
    parts of a Dict are appended to what was pooled.

    Args:
        observation_space: a Box of (entities, features), or a Dict that has one; see the module.
        net_arch: widths of the layers that each entity goes through.
        pooling: `mean`, `max` or `sum` of the entities that are there; without any, zeros.
        pooled_arch: widths of the layers after pooling.
        activation_fn: after each layer.
        shape: see `arguments_for`; of a matrix with numbers behind it.
        normalized: see `arguments_for`.

    Raises:
        ConfigError: there are no entities; a mask has another shape; entities are normalised, or a part is an image.
    """

    name = "deep_sets"

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        net_arch: Sequence[int] = (64, 64),
        pooling: str = "mean",
        pooled_arch: Sequence[int] = (64,),
        activation_fn: type[nn.Module] = nn.ReLU,
        shape: Sequence[int] | None = None,
        normalized: Sequence[str] = (),
    ) -> None:
        def embed(features: int) -> nn.Module:
            return nn.Sequential(*layers(features, net_arch, activation_fn))

        size = net_arch[-1]
        super().__init__(observation_space, shape, normalized, embed, size, pooling, pooled_arch, activation_fn)


class SetAttentionFeatures(_SetFeatures):
    """Self-attention over entities, and pooling.

    The blocks are those of the Set Transformer (Lee et al. 2019, https://arxiv.org/abs/1810.00825). As in Baker et al.
    2019 (https://arxiv.org/abs/1909.07528), entities of all parts see each other, and each part has layers of its own
    before; here each is pooled apart, too. The other parts of a Dict are appended to what was pooled.

    Args:
        embed_dim: size of the vectors of entities.
        num_layers: number of blocks, each the set attention block of Lee et al.
        num_heads: number of heads of attention.
        head_dim: size of a head. None: `embed_dim / num_heads`.
        feedforward_dim: width of the hidden layer of each block.
        net_arch: widths of the layers that each entity goes through first; the others are those of `DeepSetsFeatures`.

    Raises:
        ConfigError: the heads do not divide `embed_dim`; or as `DeepSetsFeatures`.
    """

    name = "set_attention"

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        embed_dim: int = 64,
        num_layers: int = 1,
        num_heads: int = 4,
        head_dim: int | None = None,
        feedforward_dim: int = 128,
        net_arch: Sequence[int] = (),
        pooling: str = "mean",
        pooled_arch: Sequence[int] = (64,),
        activation_fn: type[nn.Module] = nn.ReLU,
        shape: Sequence[int] | None = None,
        normalized: Sequence[str] = (),
    ) -> None:
        if head_dim is None and embed_dim % num_heads:
            words = f"num_heads is {num_heads} and embed_dim {embed_dim}"
            raise ConfigError(f"{words}; accepted: heads that divide embed_dim, or a head_dim", key=_KWARGS)

        def embed(features: int) -> nn.Module:
            before = layers(features, net_arch, activation_fn) if net_arch else []
            return nn.Sequential(*before, nn.Linear([features, *net_arch][-1], embed_dim))

        super().__init__(observation_space, shape, normalized, embed, embed_dim, pooling, pooled_arch, activation_fn)
        size = embed_dim // num_heads if head_dim is None else head_dim
        self.blocks = nn.ModuleList(_Block(embed_dim, num_heads, size, feedforward_dim) for _ in range(num_layers))

    def relate(self, vectors: th.Tensor, present: th.Tensor) -> th.Tensor:
        """Return the vectors of all entities, (rows, entities, size), after they have seen each other."""
        for block in self.blocks:
            vectors = block(vectors, present)
        return vectors


class _Block(nn.Module):
    """The set attention block of Lee et al. 2019, equations 6 to 8: attention and a network, each added and normed."""

    def __init__(self, size: int, num_heads: int, head_dim: int, feedforward_dim: int) -> None:
        super().__init__()
        self._heads, self._head_dim = num_heads, head_dim
        self.query_key_value = nn.Linear(size, 3 * num_heads * head_dim)
        self.merge = nn.Linear(num_heads * head_dim, size)
        self.network = nn.Sequential(nn.Linear(size, feedforward_dim), nn.ReLU(), nn.Linear(feedforward_dim, size))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))

    def forward(self, vectors: th.Tensor, present: th.Tensor) -> th.Tensor:
        """(rows, entities, size), like the vectors; `present` is (rows, entities, 1) bool."""
        rows, entities, _ = vectors.shape
        by_head = self.query_key_value(vectors).reshape(rows, entities, 3 * self._heads, self._head_dim)
        query, key, value = by_head.transpose(1, 2).chunk(3, dim=1)
        scores = query @ key.transpose(2, 3) / math.sqrt(self._head_dim)
        weights = scores.masked_fill(~present[:, None, None, :, 0], _FAR).softmax(dim=3)
        seen = self.norms[0](vectors + self.merge((weights @ value).transpose(1, 2).flatten(2)))
        result: th.Tensor = self.norms[1](seen + self.network(seen))
        return result
