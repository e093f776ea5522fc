"""Which policies of algorithms with a replay buffer the fused kernels can train; PyTorch trains the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch as th
from stable_baselines3.common.policies import BaseModel, BasePolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from marl_sb3.learners.fused.coverage import (
    ACTIVATIONS,
    covers_observations,
    first_reason,
    has_hooks,
    why_not_optimizer,
)
from marl_sb3.learners.fused.tables import linears


def why_not_policy(
    algorithm: Any, policy_class: type[BasePolicy], networks: Sequence[BaseModel], replaceable: Sequence[str]
) -> str | None:
    """Return the reason why the kernels do not cover a policy and its networks, as a string; None if they do.

    Args:
        policy_class: the class that is covered; its subclasses may compute something else.
        networks: all of the policy that the kernels run.
        replaceable: the methods of the networks that the kernels stand for.
    """
    policy = algorithm.policy
    if type(policy) is not policy_class:
        return f"policy class {type(policy).__name__}"
    extractors = [network.features_extractor for network in networks]
    return first_reason(
        {
            f"device {algorithm.device}": algorithm.device.type != "cpu",
            "gSDE": algorithm.use_sde,
            f"features extractor {type(extractors[0]).__name__}": any(
                type(extractor) is not FlattenExtractor for extractor in extractors
            ),
            f"activation {_name(policy.activation_fn)}": policy.activation_fn not in ACTIVATIONS,
            "hooks of the network": has_hooks(policy),
            "replaced methods of the policy": any(
                name in vars(network) for network in [policy, *networks] for name in replaceable
            ),
            f"observation space {policy.observation_space}": not covers_observations(policy),
        }
    )


def _name(activation: Any) -> str:
    return getattr(activation, "__name__", repr(activation))


def why_not_nets(
    nets: Iterable[nn.Module], activation: type[nn.Module], last: Sequence[type[nn.Module]] = (nn.Linear,)
) -> str | None:
    """Return the reason why the kernels do not cover these nets; None if they are plain MLPs.

    Args:
        activation: after each hidden layer.
        last: the types of the modules that follow the hidden layers.
    """
    for net in nets:
        layers = _layers(net)
        kinds = [type(layer) for layer in layers]
        hidden = len(layers) - len(last)
        if kinds != [nn.Linear, activation] * (hidden // 2) + list(last):
            return "layers other than linear ones and activations"
        if not all(map(_is_in_order, linears(net))):
            return "frozen, non-float32 or transposed parameters"
    return None


def _layers(net: nn.Module) -> list[nn.Module]:
    return list(net) if type(net) is nn.Sequential else [net]


def _is_in_order(layer: nn.Linear) -> bool:
    """Whether the kernels find in memory what the sizes of a layer promise."""
    shapes = (layer.out_features, layer.in_features), (layer.out_features,)
    parameters = list(layer._parameters.values())
    return list(layer._parameters) == ["weight", "bias"] and all(map(_is_trained_array, parameters, shapes))


def _is_trained_array(parameter: Any, shape: tuple[int, ...]) -> bool:
    return (
        parameter is not None
        and parameter.requires_grad
        and parameter.dtype == th.float32
        and parameter.shape == shape
        and parameter.is_contiguous()
    )


def why_not_trained(optimizer: th.optim.Optimizer, nets: Iterable[nn.Module]) -> str | None:
    """Return the reason why the kernels do not cover an optimizer of these nets, in this order; None if they do."""
    layers = [layer for net in nets for layer in linears(net)]
    parameters: list[Any] = [parameter for layer in layers for parameter in layer._parameters.values()]
    return why_not_optimizer(optimizer) or why_not_parameters(optimizer, parameters)


def why_not_parameters(optimizer: th.optim.Optimizer, parameters: Sequence[th.Tensor]) -> str | None:
    """Return a reason if an optimizer is not of these parameters, in this order; else None."""
    given = optimizer.param_groups[0]["params"]
    same = len(given) == len(parameters) and all(one is other for one, other in zip(given, parameters, strict=True))
    return None if same else "an optimizer of other parameters"
