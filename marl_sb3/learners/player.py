"""Act for the rows of one policy without learning, as in evaluations."""

from __future__ import annotations

from marl_sb3.learners.actor import RowActor
from marl_sb3.learners.deciders import Actions
from marl_sb3.learners.required_masks import required_masks
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import RowProcessing
from marl_sb3.types import Array
from marl_sb3.vec_env.step import VecStep


class Player:
    """Chooses actions of the env from observations of the env.

    Args:
        actor: acts for the rows, in episodes that have just begun.
        processing: of their observations and actions; its running statistics stand still.

    Attributes:
        rows: the rows.
    """

    def __init__(self, actor: RowActor[Actions], processing: RowProcessing) -> None:
        self.rows: PolicyRows = actor.rows
        self._actor = actor
        self._processing = processing
        actor.begin_rollout()

    def act(self, step: VecStep) -> Array:
        """`(rows, *action shape)` for the latest step; rows that do not act hold filler that no env reads.

        Raises:
            ConfigError: the policy needs action masks, and the env gives none.
        """
        acting = self.rows.of_agents(step.to_act)
        masks = required_masks(self.rows, step, self._actor.algorithm_name) if self._actor.takes_masks else None
        decision = self._actor.act(self._processing.look(step), acting, masks)
        return self._processing.act(decision.actions, acting)

    def observe(self, step: VecStep) -> None:
        """Note the rewards and ends of a step."""
        self._processing.observe(step)
        self._actor.end_episodes(self.rows.of_agents(step.terminated | step.truncated))
