"""`stable_baselines3.SAC` with updates in kernels where these cover the policy."""

from __future__ import annotations

from typing import Any

import stable_baselines3
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.sac.policies import SACPolicy
from torch import nn

from marl_sb3.learners.coverage import Reliance
from marl_sb3.learners.replay.fused.coverage import replay_reliance, why_not_nets, why_not_policy
from marl_sb3.learners.replay.fused.sac_update import SACUpdate
from marl_sb3.learners.replay.fused_updates import FusedUpdates

_EPSILON = 1e-6  # of SB3's distribution, and of the kernels


class SAC(FusedUpdates, stable_baselines3.SAC):
    """A drop-in for `stable_baselines3.SAC`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        return soft_actor_critic_coverage(self, SACPolicy)

    def _in_kernels_form(self) -> SACUpdate:
        return SACUpdate(self)


def soft_actor_critic_coverage(algorithm: Any, policy_class: type[BasePolicy]) -> Reliance | str:
    """Return what the kernels rely on to train a SAC or TQC, or the reason why they cannot."""
    actor, critic, target = algorithm.actor, algorithm.critic, algorithm.critic_target
    reason = why_not_policy(algorithm, policy_class, ["actor", "critic", "critic_target"])
    if reason is not None:
        return reason
    distribution = actor.action_dist
    if type(distribution) is not SquashedDiagGaussianDistribution or distribution.epsilon != _EPSILON:
        return f"distribution {type(distribution).__name__}"
    activation, critics = algorithm.policy.activation_fn, [*critic.q_networks, *target.q_networks]
    reason = why_not_nets([actor.latent_pi], activation, last=(nn.Linear, activation))
    learned = algorithm.ent_coef_optimizer is not None
    return (
        reason
        or why_not_nets([actor.mu, actor.log_std, *critics], activation)
        or replay_reliance(
            algorithm,
            [
                (actor.optimizer, [actor.latent_pi, actor.mu, actor.log_std]),
                (critic.optimizer, [*critic.q_networks]),
            ],
            [*target.q_networks],
            [
                (algorithm, ["actor", "critic", "critic_target", "ent_coef_optimizer", "log_ent_coef"]),
                (actor, ["optimizer", "action_dist"]),
                (distribution, ["epsilon"]),
                (critic, ["optimizer"]),
            ],
            [(algorithm.ent_coef_optimizer, algorithm.log_ent_coef)] if learned else [],
        )
    )
