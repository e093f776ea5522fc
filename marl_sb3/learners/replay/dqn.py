"""`stable_baselines3.DQN` with updates in kernels where these cover the policy."""

from __future__ import annotations

import stable_baselines3
from stable_baselines3.dqn.policies import DQNPolicy

from marl_sb3.learners.replay.fused.coverage import why_not_nets, why_not_policy, why_not_trained
from marl_sb3.learners.replay.fused.q_update import QUpdate
from marl_sb3.learners.replay.fused_updates import FusedUpdates


class DQN(FusedUpdates, stable_baselines3.DQN):
    """A drop-in for `stable_baselines3.DQN`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def why_not_fused(self) -> str | None:
        """See `TwoPaths.why_not_fused`."""
        policy = self.policy
        reason = why_not_policy(self, DQNPolicy, [self.q_net, self.q_net_target], ("forward", "_predict"))
        if reason is not None:
            return reason
        nets = [self.q_net.q_net, self.q_net_target.q_net]
        return why_not_nets(nets, policy.activation_fn) or why_not_trained(policy.optimizer, nets[:1])

    def _make_fused(self) -> QUpdate:
        return QUpdate(self, self.q_net, self.q_net.q_net, self.q_net_target.q_net, 0)
