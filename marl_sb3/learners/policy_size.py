"""A lower bound of the number of weights of a policy: a stranger's checkpoint may describe a huge network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from marl_sb3.learners.algorithms import is_recurrent
from marl_sb3.learners.spec import PolicySpec

_LAYERS = (64, 64)  # SB3's default `net_arch` but for `NatureCNN`
_CNN_FEATURES, _COMBINED_FEATURES = 512, 256  # of `NatureCNN` alone, and for an image in a Dict
_LSTM_SIZE = 256  # SB3's default `lstm_hidden_size`
_CHANNELS = 64  # of the last convolution of `NatureCNN`


def least_weights(spec: PolicySpec, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> int:
    """Return a lower bound of the number of weights of one of SB3's own policies.

    It counts the weight matrices of the actor or of the critic, whichever is larger. 0 for a network of the user's own.
    """
    if spec.has_own_network:
        return 0
    network = spec.hyperparameters.get("policy_kwargs") or {}
    extractor = _extractor(spec, network, observation_space)
    features, weights = _features(extractor, observation_space, network.get("features_extractor_kwargs") or {})
    if is_recurrent(spec.algorithm):
        size = network.get("lstm_hidden_size", _LSTM_SIZE)
        weights += _lstm(features, size, network.get("n_lstm_layers", 1))
        features = size
    layers = network.get("net_arch", [] if extractor == "NatureCNN" else list(_LAYERS))
    nets: list[Sequence[int]] = [layers]
    if isinstance(layers, Mapping):
        nets = [layers.get("pi", []), layers.get("vf", [])]
    ends = (_size(action_space), 1)
    return weights + max(_matrices([features, *net, end]) for net, end in zip(nets, ends, strict=False))


def _lstm(inputs: int, size: int, layers: int) -> int:
    """Return the number of weights between the inputs, the 4 gates and the outputs of each layer."""
    return 4 * size * (inputs + size) + (layers - 1) * 4 * size * 2 * size


def _matrices(widths: Sequence[int]) -> int:
    return sum(one * other for one, other in pairwise(widths))


def _extractor(spec: PolicySpec, network: Mapping[str, Any], space: spaces.Space[Any]) -> str:
    """Return the class name of the features extractor: the given one, or the default of the policy."""
    if "features_extractor_class" in network:
        return str(network["features_extractor_class"].__name__)
    if str(spec.policy).startswith("Cnn"):
        return "NatureCNN"
    return "CombinedExtractor" if isinstance(space, spaces.Dict) else "FlattenExtractor"


def _features(extractor: str, space: spaces.Space[Any], settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of features of an observation, and the number of weights of the features extractor."""
    if extractor == "NatureCNN":
        features = int(settings.get("features_dim", _CNN_FEATURES))
        return features, features * _outputs_of_cnn(space)
    if extractor == "FlattenExtractor" or not isinstance(space, spaces.Dict):
        return _size(space), 0
    images = [part for part in space.spaces.values() if is_image_space(part)]
    flat = [part for part in space.spaces.values() if not is_image_space(part)]
    features = int(settings.get("cnn_output_dim", _COMBINED_FEATURES))
    return features * len(images) + sum(map(_size, flat)), features * sum(map(_outputs_of_cnn, images))


def _outputs_of_cnn(space: spaces.Space[Any]) -> int:
    """Return the number of outputs of `NatureCNN`'s convolutions: (kernel, stride) 8, 4; 4, 2; 3, 1."""
    sizes = sorted(space.shape or ())[-2:]  # the smallest axis is the channels
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        sizes = [max(0, (size - kernel) // stride + 1) for size in sizes]
    return _CHANNELS * math.prod(sizes)


def _size(space: spaces.Space[Any]) -> int:
    """Return how many inputs SB3 makes of an observation or action of this space."""
    if isinstance(space, spaces.Dict):
        return sum(map(_size, space.spaces.values()))
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else math.prod(space.shape or ())
