"""`sb3_contrib.MaskablePPO` with the same results, faster."""

from __future__ import annotations

import sb3_contrib

from marl_sb3.learners.ppo.fused.algorithm import FusedUpdates
from marl_sb3.learners.ppo.fused.update import FusedUpdate, UpdatePlan
from marl_sb3.learners.ppo.ppo import ppo_plan, record_ppo


class MaskablePPO(FusedUpdates, sb3_contrib.MaskablePPO):
    """A drop-in for `sb3_contrib.MaskablePPO`: same arguments, same logger keys, same files.

    The *fused* path runs the update of a plain MLP in PPO's compiled kernels, see `TwoPaths`.
    """

    def update_plan(self) -> UpdatePlan:
        """See `FusedUpdates.update_plan`."""
        return ppo_plan(self)

    def record_update(self, update: FusedUpdate) -> None:
        """See `FusedUpdates.record_update`."""
        record_ppo(self, update.means(), update.clip_range)
