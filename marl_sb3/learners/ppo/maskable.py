"""MaskablePPO (Huang and Ontanon 2020): PPO that chooses among the actions that a mask allows, by sb3-contrib."""

from __future__ import annotations

from stable_baselines3.common.buffers import RolloutBuffer

from marl_sb3.learners.deciders import Batch
from marl_sb3.learners.on_policy_actor import (
    ForwardPassDecider,
    OnPolicyDecider,
    OnPolicyDecision,
    on_policy_decision,
)
from marl_sb3.learners.ppo.contrib import ContribPPOLearner
from marl_sb3.learners.sb3.predict import States


class MaskablePPOLearner(ContribPPOLearner):
    """See `OnPolicyLearner`. An env without action masks is refused when its agents act first."""

    @staticmethod
    def buffer_class(*, is_dict: bool) -> type[RolloutBuffer]:
        """See `OnPolicyLearner.buffer_class`."""
        from marl_sb3.learners.buffers import maskable

        return maskable.ActionMaskDictRolloutBuffer if is_dict else maskable.ActionMaskRolloutBuffer

    def _make_decider(self) -> OnPolicyDecider:
        return MaskedDecider(self.algorithm)


class MaskedDecider(ForwardPassDecider):
    """A `ForwardPassDecider` for policies that take masks."""

    takes_masks = True

    def decide(self, batch: Batch) -> tuple[OnPolicyDecision, States]:
        """See `Decider.decide`."""
        sampled = self._forward_pass.act(batch.observations, action_masks=batch.masks)
        return on_policy_decision(self._algorithm, *sampled), ()
