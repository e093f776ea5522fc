"""`stable_baselines3.SAC` with updates in kernels where these cover the policy."""

from __future__ import annotations

from typing import Any

import stable_baselines3
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.sac.policies import SACPolicy
from torch import nn

from marl_sb3.learners.fused.coverage import why_not_optimizer
from marl_sb3.learners.replay.fused.coverage import (
    why_not_nets,
    why_not_parameters,
    why_not_policy,
    why_not_trained,
)
from marl_sb3.learners.replay.fused.sac_update import SACUpdate
from marl_sb3.learners.replay.fused_updates import FusedUpdates


class SAC(FusedUpdates, stable_baselines3.SAC):
    """A drop-in for `stable_baselines3.SAC`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def why_not_fused(self) -> str | None:
        """See `TwoPaths.why_not_fused`."""
        return why_not_soft_actor_critic(self, SACPolicy)

    def _make_fused(self) -> SACUpdate:
        return SACUpdate(self)


def why_not_soft_actor_critic(algorithm: Any, policy_class: type[BasePolicy]) -> str | None:
    """Return the reason why the kernels do not cover a SAC or TQC, as a string; None if they do."""
    actor, critic, target = algorithm.actor, algorithm.critic, algorithm.critic_target
    replaceable = ("forward", "action_log_prob", "get_action_dist_params", "_predict")
    reason = why_not_policy(algorithm, policy_class, [actor, critic, target], replaceable)
    if reason is not None:
        return reason
    activation = algorithm.policy.activation_fn
    return (
        why_not_nets([actor.latent_pi], activation, last=(nn.Linear, activation))
        or why_not_nets([actor.mu, actor.log_std, *critic.q_networks, *target.q_networks], activation)
        or why_not_trained(actor.optimizer, [actor.latent_pi, actor.mu, actor.log_std])
        or why_not_trained(critic.optimizer, critic.q_networks)
        or _why_not_entropy(algorithm)
    )


def _why_not_entropy(algorithm: Any) -> str | None:
    optimizer = algorithm.ent_coef_optimizer
    if optimizer is None:
        return None
    return why_not_optimizer(optimizer) or why_not_parameters(optimizer, [algorithm.log_ent_coef])
