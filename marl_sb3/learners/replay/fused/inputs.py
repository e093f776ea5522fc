"""Observations, minibatches and kernels, in the form in which the fused updates need them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BaseModel

from marl_sb3.types import Array, FloatArray

if TYPE_CHECKING:
    from marl_sb3.kernels.batch import Batch


def features(network: BaseModel, observations: Array | th.Tensor) -> FloatArray:
    """(rows, inputs) float32: what the first layer of a network sees of (rows, ...) observations."""
    if isinstance(network.observation_space, spaces.Box):
        array = observations.numpy() if isinstance(observations, th.Tensor) else observations
        return np.ascontiguousarray(array.reshape(len(array), -1), dtype=np.float32)
    with th.no_grad():
        extractor: Any = network.features_extractor
        found: FloatArray = network.extract_features(th.as_tensor(observations), extractor).numpy()
    return found


def batch_of(samples: Any, network: BaseModel, gamma: float) -> Batch:
    """Return a minibatch of SB3's replay buffers in the kernels' form."""
    from marl_sb3.kernels.batch import Batch

    discounts = gamma if samples.discounts is None else samples.discounts.numpy().reshape(-1)
    discounts = (1.0 - samples.dones.numpy().reshape(-1)) * discounts
    return Batch(
        features(network, samples.observations),
        samples.actions.numpy(),
        features(network, samples.next_observations),
        samples.rewards.numpy().reshape(-1),
        discounts.astype(np.float32, copy=False),
    )


def env_actions(algorithm: Any, actions: FloatArray) -> Array:
    """Return (rows, n) actions from -1 to 1 as the env takes them, (rows, *action shape)."""
    unscaled: Array = algorithm.policy.unscale_action(actions.reshape(-1, *algorithm.action_space.shape))
    return unscaled


def standard_normal(rows: int, size: int) -> FloatArray:
    """(rows, size) float32 numbers, drawn as `torch.distributions.Normal` draws them."""
    noise: FloatArray = th.normal(th.zeros(rows, size), th.ones(rows, size)).numpy()
    return noise


@cache
def kernel_module(name: str) -> ModuleType:
    """Import the module of an algorithm's kernels; says so if they have to be compiled."""
    from marl_sb3.kernels.cache import note_compiling

    module = import_module(f"marl_sb3.kernels.{name}")
    note_compiling(module.update)
    return module
