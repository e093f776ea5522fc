"""`sb3_contrib.QRDQN` with updates in kernels where these cover the policy."""

from __future__ import annotations

import sb3_contrib
from sb3_contrib.qrdqn.policies import QRDQNPolicy

from marl_sb3.learners.coverage import Reliance
from marl_sb3.learners.replay.fused.coverage import replay_reliance, why_not_nets, why_not_policy
from marl_sb3.learners.replay.fused.q_update import QUpdate
from marl_sb3.learners.replay.fused_updates import FusedUpdates


class QRDQN(FusedUpdates, sb3_contrib.QRDQN):
    """A drop-in for `sb3_contrib.QRDQN`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        reason = why_not_policy(self, QRDQNPolicy, ["quantile_net", "quantile_net_target"])
        if reason is not None:
            return reason
        net, target = self.quantile_net.quantile_net, self.quantile_net_target.quantile_net
        settings = [(self, ["quantile_net", "quantile_net_target", "n_quantiles"]), (self.policy, ["optimizer"])]
        return why_not_nets([net, target], self.policy.activation_fn) or replay_reliance(
            self, [(self.policy.optimizer, [net])], [target], settings
        )

    def _in_kernels_form(self) -> QUpdate:
        target = self.quantile_net_target.quantile_net
        return QUpdate(self, self.quantile_net, self.quantile_net.quantile_net, target, self.n_quantiles)
