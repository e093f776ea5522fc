"""Which policies of algorithms with a replay buffer the fused kernels can train; PyTorch trains the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from marl_sb3.learners.coverage import ACTIVATIONS, Reliance, covers_observations, first_reason, name_of
from marl_sb3.learners.tables import linears

_SB3 = ("stable_baselines3", "sb3_contrib")
_OF_POLICY = ("activation_fn", "observation_space", "action_space", "normalize_images")


def why_not_policy(algorithm: Any, policy_class: type[BasePolicy], networks: Sequence[str]) -> str | None:
    """Return the reason why the kernels do not cover a policy and its networks, as a string; None if they do.

    Args:
        policy_class: the class that is covered; its subclasses may compute something else.
        networks: the names of all networks that the kernels run, in the algorithm and in the policy.
    """
    policy = algorithm.policy
    if type(policy) is not policy_class:
        return f"policy class {type(policy).__name__}"
    used = [getattr(algorithm, name) for name in networks]
    foreign = next((type(each) for each in used if type(each).__module__.partition(".")[0] not in _SB3), None)
    if foreign is not None:
        return f"network class {foreign.__name__}"
    extractors = [network.features_extractor for network in used]
    return first_reason(
        {
            f"device {algorithm.device}": algorithm.device.type != "cpu",
            "gSDE": algorithm.use_sde,
            "a policy that acts by another network": any(
                getattr(policy, name) is not network for name, network in zip(networks, used, strict=True)
            ),
            f"features extractor {type(extractors[0]).__name__}": any(
                type(extractor) is not FlattenExtractor for extractor in extractors
            ),
            f"activation {name_of(policy.activation_fn)}": policy.activation_fn not in ACTIVATIONS,
            f"observation space {policy.observation_space}": not covers_observations(policy),
        }
    )


def why_not_nets(
    nets: Iterable[nn.Module], activation: type[nn.Module], last: Sequence[type[nn.Module]] = (nn.Linear,)
) -> str | None:
    """Return the reason why the kernels do not cover these nets; None if they are plain MLPs.

    Args:
        activation: after each hidden layer.
        last: the types of the modules that follow the hidden layers.
    """
    for net in nets:
        kinds = [type(layer) for layer in (net if type(net) is nn.Sequential else [net])]
        hidden = len(kinds) - len(last)
        if kinds != [nn.Linear, activation] * (hidden // 2) + list(last):
            return "layers other than linear ones and activations"
    return None


def replay_reliance(
    algorithm: Any,
    trained: Sequence[tuple[th.optim.Optimizer, Sequence[nn.Module]]],
    targets: Sequence[nn.Module],
    settings: Sequence[tuple[Any, Sequence[str]]],
    others: Sequence[tuple[th.optim.Optimizer, th.Tensor]] = (),
) -> Reliance:
    """Return what the kernels rely on, for an algorithm whose nets are plain MLPs.

    Args:
        trained: each optimizer with the nets that it trains, in order.
        targets: the nets that no optimizer trains.
        settings: see `Reliance`; besides those that all algorithms have.
        others: more optimizers, each with the one tensor that it trains.
    """
    held = [(optimizer, _parameters(nets)) for optimizer, nets in trained]
    held += [(optimizer, [tensor]) for optimizer, tensor in others]
    nets = [net for _, each in trained for net in each] + [*targets]
    return Reliance(
        algorithm,
        [layer for net in nets for layer in linears(net)],
        others=[tensor for _, tensor in others],
        trained=held,
        settings=[(algorithm, ["device", "use_sde"]), (algorithm.policy, _OF_POLICY), *settings],
    )


def _parameters(nets: Sequence[nn.Module]) -> list[Any]:
    return [tensor for net in nets for layer in linears(net) for tensor in layer._parameters.values()]
