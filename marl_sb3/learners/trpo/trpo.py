"""`sb3_contrib.TRPO` with the same results, faster."""

from __future__ import annotations

import sb3_contrib

from marl_sb3.learners.ppo.fused.algorithm import FusedRollouts
from marl_sb3.learners.ppo.fused.coverage import why_not_acting


class TRPO(FusedRollouts, sb3_contrib.TRPO):
    """A drop-in for `sb3_contrib.TRPO`: same arguments, same logger keys, same files.

    On the *fused* path PPO's compiled kernels choose the actions of a plain MLP in rollouts, see `TwoPaths`. Updates
    are always sb3-contrib's.
    """

    def why_not_fused(self) -> str | None:
        """See `TwoPaths.why_not_fused`."""
        return why_not_acting(self)
