"""Which policies the fused kernels can train; PyTorch trains the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import nn

from marl_sb3.learners.buffers.rollout import MaskedRolloutBuffer

ACTIVATIONS = (nn.Tanh, nn.ReLU)  # in the order of the kernel's constants


def why_not_fused(algorithm: Any) -> str | None:
    """Return the reason why the kernels cannot train this `PPO`, as a string; None if they can.

    Only what is known to be covered is covered: policies with hooks, replaced layers or subclasses use PyTorch.
    """
    policy = algorithm.policy
    if type(policy) is not ActorCriticPolicy:
        return f"policy class {type(policy).__name__}"
    return _why_not_network(policy) or _why_not_optimizer(policy.optimizer) or _why_not_settings(algorithm)


def _why_not_settings(algorithm: Any) -> str | None:
    return _first(
        {
            f"device {algorithm.device}": algorithm.device.type != "cpu",
            "gSDE": algorithm.use_sde,
            "target_kl": algorithm.target_kl is not None,
            "clip_range_vf": algorithm.clip_range_vf is not None,
            f"rollout buffer {type(algorithm.rollout_buffer).__name__}": type(algorithm.rollout_buffer)
            not in (RolloutBuffer, MaskedRolloutBuffer),
        }
    )


def _why_not_optimizer(optimizer: th.optim.Optimizer) -> str | None:
    settings = optimizer.param_groups[0]
    return _first(
        {
            f"optimizer {type(optimizer).__name__}": type(optimizer) is not th.optim.Adam,
            "several parameter groups": len(optimizer.param_groups) != 1,
            "weight decay": settings.get("weight_decay") != 0,
            "amsgrad or maximize": settings.get("amsgrad") or settings.get("maximize"),
            "hooks of the optimizer": optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks,
        }
    )


def _why_not_network(policy: ActorCriticPolicy) -> str | None:
    extractors = (policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor)
    network = policy.mlp_extractor
    return _first(
        {
            f"features extractor {type(extractors[0]).__name__}": any(
                type(e) is not FlattenExtractor for e in extractors
            ),
            f"activation {policy.activation_fn.__name__}": policy.activation_fn not in ACTIVATIONS,
            "layers other than linear ones and activations": type(network) is not MlpExtractor
            or not _is_plain_mlp(network.policy_net, policy)
            or not _is_plain_mlp(network.value_net, policy)
            or type(policy.action_net) is not nn.Linear
            or type(policy.value_net) is not nn.Linear,
            "hooks of the network": any(_has_hooks(module) for module in policy.modules()),
            "replaced methods of the policy": any(name in vars(policy) for name in ("forward", "evaluate_actions")),
            "frozen or non-float32 parameters": not all(
                p.requires_grad and p.dtype == th.float32 for p in policy.parameters()
            ),
            f"observation space {policy.observation_space}": not _covers_observations(policy),
            f"action space {policy.action_space}": not _covers_actions(policy.action_space),
        }
    )


def _first(reasons: Mapping[str, Any]) -> str | None:
    return next((reason for reason, applies in reasons.items() if applies), None)


def _is_plain_mlp(net: nn.Module, policy: ActorCriticPolicy) -> bool:
    layers = list(net.children())
    kinds = [nn.Linear, policy.activation_fn] * (len(layers) // 2)
    return type(net) is nn.Sequential and [type(layer) for layer in layers] == kinds


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _covers_observations(policy: ActorCriticPolicy) -> bool:
    space = policy.observation_space
    if isinstance(space, spaces.Box):
        return not (policy.normalize_images and is_image_space(space))
    if isinstance(space, spaces.MultiDiscrete):
        return len(space.nvec.shape) == 1 and not space.start.any()
    return isinstance(space, spaces.MultiBinary) or (isinstance(space, spaces.Discrete) and space.start == 0)


def _covers_actions(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.MultiDiscrete):
        return len(space.nvec.shape) == 1 and not space.start.any()
    return isinstance(space, spaces.Box) or (isinstance(space, spaces.Discrete) and space.start == 0)
