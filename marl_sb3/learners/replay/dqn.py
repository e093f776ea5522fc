"""`stable_baselines3.DQN` with updates in kernels where these cover the policy."""

from __future__ import annotations

import stable_baselines3
from stable_baselines3.dqn.policies import DQNPolicy

from marl_sb3.learners.coverage import Reliance
from marl_sb3.learners.replay.fused.coverage import replay_reliance, why_not_nets, why_not_policy
from marl_sb3.learners.replay.fused.q_update import QUpdate
from marl_sb3.learners.replay.fused_updates import FusedUpdates


class DQN(FusedUpdates, stable_baselines3.DQN):
    """A drop-in for `stable_baselines3.DQN`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        reason = why_not_policy(self, DQNPolicy, ["q_net", "q_net_target"])
        if reason is not None:
            return reason
        net, target = self.q_net.q_net, self.q_net_target.q_net
        settings = [(self, ["q_net", "q_net_target"]), (self.policy, ["optimizer"])]
        return why_not_nets([net, target], self.policy.activation_fn) or replay_reliance(
            self, [(self.policy.optimizer, [net])], [target], settings
        )

    def _in_kernels_form(self) -> QUpdate:
        return QUpdate(self, self.q_net, self.q_net.q_net, self.q_net_target.q_net, 0)
