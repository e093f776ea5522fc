"""`sb3_contrib.QRDQN` with updates in kernels where these cover the policy."""

from __future__ import annotations

import sb3_contrib
from sb3_contrib.qrdqn.policies import QRDQNPolicy

from marl_sb3.learners.replay.fused.coverage import why_not_nets, why_not_policy, why_not_trained
from marl_sb3.learners.replay.fused.q_update import QUpdate
from marl_sb3.learners.replay.fused_updates import FusedUpdates


class QRDQN(FusedUpdates, sb3_contrib.QRDQN):
    """A drop-in for `sb3_contrib.QRDQN`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def why_not_fused(self) -> str | None:
        """See `TwoPaths.why_not_fused`."""
        policy = self.policy
        networks = [self.quantile_net, self.quantile_net_target]
        reason = why_not_policy(self, QRDQNPolicy, networks, ("forward", "_predict"))
        if reason is not None:
            return reason
        nets = [network.quantile_net for network in networks]
        return why_not_nets(nets, policy.activation_fn) or why_not_trained(policy.optimizer, nets[:1])

    def _make_fused(self) -> QUpdate:
        target = self.quantile_net_target.quantile_net
        return QUpdate(self, self.quantile_net, self.quantile_net.quantile_net, target, self.n_quantiles)
