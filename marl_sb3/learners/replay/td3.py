"""`stable_baselines3.TD3` and `DDPG` with updates in kernels where these cover the policy."""

from __future__ import annotations

import stable_baselines3
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from marl_sb3.learners.coverage import Reliance
from marl_sb3.learners.replay.fused.coverage import replay_reliance, why_not_nets, why_not_policy
from marl_sb3.learners.replay.fused.td3_update import TD3Update
from marl_sb3.learners.replay.fused_updates import FusedUpdates


class TD3(FusedUpdates, stable_baselines3.TD3):
    """A drop-in for `stable_baselines3.TD3`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        actors, critics = [self.actor, self.actor_target], [self.critic, self.critic_target]
        reason = why_not_policy(self, TD3Policy, ["actor", "actor_target", "critic", "critic_target"])
        if reason is not None:
            return reason
        activation = self.policy.activation_fn
        return (
            why_not_nets([actor.mu for actor in actors], activation, last=(nn.Linear, nn.Tanh))
            or why_not_nets([net for critic in critics for net in critic.q_networks], activation)
            or replay_reliance(
                self,
                [(self.actor.optimizer, [self.actor.mu]), (self.critic.optimizer, [*self.critic.q_networks])],
                [self.actor_target.mu, *self.critic_target.q_networks],
                [
                    (self, ["actor", "actor_target", "critic", "critic_target"]),
                    (self.actor, ["optimizer"]),
                    (self.critic, ["optimizer"]),
                ],
            )
        )

    def _in_kernels_form(self) -> TD3Update:
        return TD3Update(self)


class DDPG(TD3, stable_baselines3.DDPG):
    """A drop-in for `stable_baselines3.DDPG`: same arguments, same logger keys, same files. See `TwoPaths`."""
