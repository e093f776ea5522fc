"""`sb3_contrib.TQC` with updates in kernels where these cover the policy."""

from __future__ import annotations

import sb3_contrib
from sb3_contrib.tqc.policies import TQCPolicy

from marl_sb3.learners.replay.fused.sac_update import SACUpdate
from marl_sb3.learners.replay.fused_updates import FusedUpdates
from marl_sb3.learners.replay.sac import why_not_soft_actor_critic


class TQC(FusedUpdates, sb3_contrib.TQC):
    """A drop-in for `sb3_contrib.TQC`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def why_not_fused(self) -> str | None:
        """See `TwoPaths.why_not_fused`."""
        return why_not_soft_actor_critic(self, TQCPolicy)

    def _make_fused(self) -> SACUpdate:
        return SACUpdate(self)
