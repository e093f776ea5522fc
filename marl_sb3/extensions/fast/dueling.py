"""Dueling networks (Wang et al. 2016, https://arxiv.org/abs/1511.06581): what a state is worth, and what actions add.

The policies are SB3's with the argument `dueling`. The last hidden layer is there twice: one is followed by the value
of the state, the other one by the advantages of the actions, from which their mean is subtracted (eq. 9 of the paper).
Gradients are not rescaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import stable_baselines3
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import create_mlp
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn
from typing_extensions import override

from marl_sb3.core.sb3.policies import with_arguments_of_bases, with_kin


def take_plain(algorithm: Any, argument: str, default: Any) -> None:
    """Let an algorithm have SB3's policy if the argument that ours has besides is the default: files hold that."""
    kind, settings = algorithm.policy_class, algorithm.policy_kwargs
    if hasattr(kind, "plain") and settings.get(argument, default) == default:
        algorithm.policy_class = vars(kind).get("plain", kind)
        algorithm.policy_kwargs = {name: value for name, value in settings.items() if name != argument}


class DuelingLayers(nn.Module):
    """The layers behind a features extractor: (rows, features) to (rows, quantiles * actions) values.

    Args:
        features: numbers of the extractor.
        actions: how many there are.
        quantiles: values of each action; 1 for DQN.
        net_arch: widths of the hidden layers, the last of which is there twice. Without any, both streams are linear.
        activation: of the hidden layers.
    """

    def __init__(
        self, features: int, actions: int, quantiles: int, net_arch: Sequence[int], activation: type[nn.Module]
    ) -> None:
        super().__init__()
        shared, last = [*net_arch[:-1]], [*net_arch[-1:]]
        width = shared[-1] if shared else features
        self.shared = nn.Sequential(*create_mlp(features, -1, shared, activation)) if shared else nn.Identity()
        self.value = nn.Sequential(*create_mlp(width, quantiles, last, activation))
        self.advantage = nn.Sequential(*create_mlp(width, quantiles * actions, last, activation))
        self.quantiles, self.actions = quantiles, actions

    def forward(self, features: th.Tensor) -> th.Tensor:
        """Return the values of the actions, those of the first quantile first."""
        shared = self.shared(features)
        advantages = self.advantage(shared).view(-1, self.quantiles, self.actions)
        centred = advantages - advantages.mean(dim=2, keepdim=True)
        values: th.Tensor = self.value(shared)[:, :, None] + centred
        return values.flatten(1)


class Dueling(BasePolicy):
    """A base class in front of a policy of DQN or QR-DQN, whose networks may be dueling ones.

    Args:
        dueling: whether they are; if not, it is SB3's policy bit for bit.
    """

    def __init__(self, *arguments: Any, dueling: bool = False, **settings: Any) -> None:
        self.dueling = dueling
        super().__init__(*arguments, **settings)

    def made(self, network: Any, layers: str) -> Any:
        """Return a network whose layers, which it has by this name, are dueling ones if they are to be."""
        if self.dueling:
            settings = getattr(network, "n_quantiles", 1), network.net_arch, network.activation_fn
            own = DuelingLayers(network.features_dim, int(network.action_space.n), *settings)
            setattr(network, layers, own.to(self.device))
        return network

    @override
    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "dueling": self.dueling}


@with_arguments_of_bases()
class DuelingDQNPolicy(Dueling, DQNPolicy):
    """A policy of DQN, see `Dueling`."""

    plain: ClassVar[type[BasePolicy]] = DQNPolicy  # SB3's, which files hold if the networks are not dueling

    @override
    def make_q_net(self) -> QNetwork:
        return self.made(super().make_q_net(), "q_net")  # type: ignore[no-any-return]


DUELING_DQN = with_kin(DuelingDQNPolicy, "Dueling", stable_baselines3.DQN.policy_aliases)
