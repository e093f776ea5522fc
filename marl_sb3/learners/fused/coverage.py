"""What the fused kernels cover: plain MLPs on vectors, trained by Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from torch import nn

ACTIVATIONS = (nn.Tanh, nn.ReLU)  # in the order of the constants in `layers`


def why_not_optimizer(
    optimizer: th.optim.Optimizer, kinds: Sequence[type[th.optim.Optimizer]] = (th.optim.Adam,)
) -> str | None:
    """Return the reason why the kernels do not cover an optimizer, as a string; None if they do.

    Args:
        kinds: classes that are covered.
    """
    settings = optimizer.param_groups[0]
    return first_reason(
        {
            f"optimizer {type(optimizer).__name__}": type(optimizer) not in kinds,
            "several parameter groups": len(optimizer.param_groups) != 1,
            "momentum": settings.get("momentum") or settings.get("centered"),
            "weight decay": settings.get("weight_decay") != 0,
            "amsgrad or maximize": settings.get("amsgrad") or settings.get("maximize"),
            "hooks of the optimizer": optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks,
        }
    )


def first_reason(reasons: Mapping[str, Any]) -> str | None:
    """Return the first reason that applies, from a mapping of reasons to whether they do; None if none does."""
    return next((reason for reason, applies in reasons.items() if applies), None)


def is_plain_mlp(net: nn.Module, activation: type[nn.Module]) -> bool:
    """Whether a net is a sequence of linear layers, an activation after each."""
    layers = list(net.children())
    kinds = [nn.Linear, activation] * (len(layers) // 2)
    return type(net) is nn.Sequential and [type(layer) for layer in layers] == kinds


def modules_without_hooks(network: nn.Module) -> list[nn.Module] | None:
    """Return a module and all its parts, in a fixed order; None if one of them has hooks."""
    found: list[nn.Module] = []
    waiting: list[nn.Module] = [network]  # a loop of its own: `modules()` takes ten times as long
    while waiting:
        module = waiting.pop()
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return None
        found.append(module)
        waiting.extend(part for part in module._modules.values() if part is not None)
    return found


def has_hooks(network: nn.Module) -> bool:
    """Whether a module or a part of it has hooks."""
    return modules_without_hooks(network) is None


def are_trained_float32(network: nn.Module) -> bool:
    """Whether all parameters are float32 and none is frozen."""
    return all(p.requires_grad and p.dtype == th.float32 for p in network.parameters())


def covers_observations(policy: BasePolicy) -> bool:
    """Whether the policy turns its observations into one vector of floats, or of zeros and ones."""
    space = policy.observation_space
    if isinstance(space, spaces.Box):
        return not (policy.normalize_images and is_image_space(space))
    if isinstance(space, spaces.MultiDiscrete):
        return len(space.nvec.shape) == 1 and not space.start.any()
    return isinstance(space, spaces.MultiBinary) or (isinstance(space, spaces.Discrete) and space.start == 0)
