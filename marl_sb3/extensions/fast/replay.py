"""DQN, SAC, TD3 and DDPG: drop-ins for SB3's classes whose updates run in kernels where these cover the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import stable_baselines3
import torch as th
import torch.nn.functional as F
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn
from typing_extensions import override

from marl_sb3.core.off_policy.off_policy import OffPolicyLearner
from marl_sb3.extensions.fast.coverage import PathStillValid, valid_for_replay, why_not_nets
from marl_sb3.extensions.fast.dueling import DUELING_DQN, take_plain
from marl_sb3.extensions.fast.fused_off_policy import FusedOffPolicy
from marl_sb3.extensions.fast.prioritized import DrawsByPriority


class QLearning(DrawsByPriority, FusedOffPolicy):
    """What DQN and QR-DQN share."""

    update_class = "QUpdate"

    @override
    def _setup_model(self) -> None:
        take_plain(self, "dueling", False)
        super()._setup_model()

    def _coverage_of_nets(self, activation: type[nn.Module]) -> PathStillValid | str:
        net, target = (getattr(network, self.network_names[0]) for network in self.networks())
        settings = [(self, ["n_quantiles"])] if hasattr(self, "n_quantiles") else []
        return why_not_nets([net, target], activation) or valid_for_replay(
            self, [(self.policy, [net])], [target], settings
        )


class DQN(QLearning, stable_baselines3.DQN):
    """A drop-in for `stable_baselines3.DQN`: same arguments, same logger keys, same files. See `TwoPaths`."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = DUELING_DQN
    covered_policy = DQNPolicy
    network_names = ("q_net", "q_net_target")

    @override
    def losses(self, samples: Any) -> tuple[th.Tensor, th.Tensor]:
        discounts = self.gamma if samples.discounts is None else samples.discounts
        with th.no_grad():
            best = self.q_net_target(samples.next_observations).amax(dim=1, keepdim=True)
            targets = samples.rewards + (1 - samples.dones) * discounts * best
        values = self.q_net(samples.observations).gather(1, samples.actions.long())
        losses = F.smooth_l1_loss(values, targets, reduction="none").squeeze(1)
        return losses, (values - targets).abs().squeeze(1)


class ActorCriticLearner(OffPolicyLearner):
    """The `Learner` of SAC, TD3 and DDPG, whose critics may be central ones."""

    takes_parts: ClassVar[Sequence[str]] = ("replay_data", "central_critic", "curiosity")


_EPSILON = 1e-6  # of SB3's distribution, and of the kernels


class SoftActorCritic(FusedOffPolicy):
    """What SAC and TQC share."""

    network_names = ("actor", "critic", "critic_target")
    update_class = "SACUpdate"

    def _coverage_of_nets(self, activation: type[nn.Module]) -> PathStillValid | str:
        actor, critic, target = self.networks()
        distribution = actor.action_dist
        if type(distribution) is not SquashedDiagGaussianDistribution or distribution.epsilon != _EPSILON:
            return f"distribution {type(distribution).__name__}"
        trained = [(actor, [actor.latent_pi, actor.mu, actor.log_std]), (critic, [*critic.q_networks])]
        entropy = (self, ["ent_coef_optimizer", "log_ent_coef"])
        settings = [entropy, (actor, ["action_dist"]), (distribution, ["epsilon"])]
        algorithm: Any = self
        optimizer = algorithm.ent_coef_optimizer  # None if the entropy coefficient is not learned
        learned = [] if optimizer is None else [(optimizer, algorithm.log_ent_coef)]
        return (
            why_not_nets([actor.latent_pi], activation, last=(nn.Linear, activation))
            or why_not_nets([actor.mu, actor.log_std, *critic.q_networks, *target.q_networks], activation)
            or valid_for_replay(self, trained, [*target.q_networks], settings, learned)
        )


class SAC(SoftActorCritic, stable_baselines3.SAC):
    """A drop-in for `stable_baselines3.SAC`: same arguments, same logger keys, same files. See `TwoPaths`."""

    covered_policy = SACPolicy


class TD3(FusedOffPolicy, stable_baselines3.TD3):
    """A drop-in for `stable_baselines3.TD3`: same arguments, same logger keys, same files. See `TwoPaths`."""

    covered_policy = TD3Policy
    network_names = ("actor", "actor_target", "critic", "critic_target")
    update_class = "TD3Update"

    def _coverage_of_nets(self, activation: type[nn.Module]) -> PathStillValid | str:
        actor, actor_target, critic, critic_target = self.networks()
        trained, targets = [(actor, [actor.mu]), (critic, [*critic.q_networks])], [*critic_target.q_networks]
        return (
            why_not_nets([actor.mu, actor_target.mu], activation, last=(nn.Linear, nn.Tanh))
            or why_not_nets([*critic.q_networks, *targets], activation)
            or valid_for_replay(self, trained, [actor_target.mu, *targets])
        )


class DDPG(TD3, stable_baselines3.DDPG):
    """A drop-in for `stable_baselines3.DDPG`: same arguments, same logger keys, same files. See `TwoPaths`."""
