"""MaskablePPO (Huang and Ontanon 2020): PPO that chooses among the actions that a mask allows, by sb3-contrib."""

from __future__ import annotations

import sb3_contrib
from stable_baselines3.common.buffers import RolloutBuffer

from marl_sb3.learners.buffers.maskable import ActionMaskDictRolloutBuffer, ActionMaskRolloutBuffer
from marl_sb3.learners.deciders import Batch
from marl_sb3.learners.on_policy_actor import (
    ForwardPassDecider,
    OnPolicyDecider,
    OnPolicyDecision,
    on_policy_decision,
)
from marl_sb3.learners.ppo.fused.algorithm import FusedUpdates
from marl_sb3.learners.ppo.fused.update import FusedUpdate, UpdatePlan
from marl_sb3.learners.ppo.learner import ContribPPOLearner
from marl_sb3.learners.ppo.ppo import ppo_plan, record_ppo
from marl_sb3.learners.sb3.predict import States


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


class MaskablePPOLearner(ContribPPOLearner):
    """See `OnPolicyLearner`. An env without action masks is refused when its agents act first."""

    @staticmethod
    def buffer_class(*, is_dict: bool) -> type[RolloutBuffer]:
        """See `OnPolicyLearner.buffer_class`."""
        return ActionMaskDictRolloutBuffer if is_dict else ActionMaskRolloutBuffer

    def _make_decider(self) -> OnPolicyDecider:
        return MaskedDecider(self.algorithm)


class MaskedDecider(ForwardPassDecider):
    """A `ForwardPassDecider` for policies that take masks."""

    takes_masks = True

    def decide(self, batch: Batch) -> tuple[OnPolicyDecision, States]:
        """See `Decider.decide`."""
        sampled = self._forward_pass.act(batch.observations, action_masks=batch.masks)
        return on_policy_decision(self._algorithm, *sampled), ()
