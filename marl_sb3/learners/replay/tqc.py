"""`sb3_contrib.TQC` with updates in kernels where these cover the policy."""

from __future__ import annotations

import sb3_contrib
from sb3_contrib.tqc.policies import TQCPolicy

from marl_sb3.learners.coverage import Reliance
from marl_sb3.learners.replay.fused.sac_update import SACUpdate
from marl_sb3.learners.replay.fused_updates import FusedUpdates
from marl_sb3.learners.replay.sac import soft_actor_critic_coverage


class TQC(FusedUpdates, sb3_contrib.TQC):
    """A drop-in for `sb3_contrib.TQC`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        return soft_actor_critic_coverage(self, TQCPolicy)

    def _in_kernels_form(self) -> SACUpdate:
        return SACUpdate(self)
