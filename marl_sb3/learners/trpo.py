"""TRPO (Schulman et al. 2015): `sb3_contrib.TRPO` with fused rollouts, and its learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import sb3_contrib
from gymnasium import spaces

from marl_sb3.errors import ConfigError
from marl_sb3.learners.coverage import Reliance
from marl_sb3.learners.learner import Learner
from marl_sb3.learners.on_policy import OnPolicyLearner
from marl_sb3.learners.ppo.fused.algorithm import FusedRollouts
from marl_sb3.learners.ppo.fused.coverage import acting_coverage
from marl_sb3.metrics import Result


class TRPO(FusedRollouts, sb3_contrib.TRPO):
    """A drop-in for `sb3_contrib.TRPO`: same arguments, same logger keys, same files.

    On the *fused* path PPO's compiled kernels choose the actions of a plain MLP in rollouts, see `TwoPaths`. Updates
    are always sb3-contrib's.
    """

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        return acting_coverage(self)


class TRPOLearner(OnPolicyLearner):
    """Actor and critic have losses of their own: there is no total one.

    The optimizer steps the critic alone; the step of the actor is not among `num_grad_updates_lifetime`.
    """

    recorded_as: ClassVar[Mapping[str, str]] = {
        "vf_loss": "train/value_loss",
        "mean_kl_loss": "train/kl_divergence_loss",
        "line_search_success": "train/is_line_search_success",
        "vf_explained_var": "train/explained_variance",
        "curr_lr": "train/learning_rate",
    }
    metric_names: ClassVar[Sequence[str]] = (
        "policy_loss",
        "vf_loss",
        "mean_kl_loss",
        "line_search_success",
        "vf_explained_var",
        *Learner.metric_names,
    )

    def _require_fit(self) -> None:
        algorithm: Any = self.algorithm
        if algorithm.sub_sampling_factor > 1 and isinstance(algorithm.observation_space, spaces.Dict):
            raise ConfigError(
                f"policy {self.policy_id!r}: sub_sampling_factor is {algorithm.sub_sampling_factor}, which TRPO cannot "
                "do with Dict observations; accepted: 1",
                key="sub_sampling_factor",
            )

    def _more_metrics(self, recorded: Mapping[str, Any]) -> Result:
        """TRPO maximises its objective; a loss is minimised."""
        objective = recorded.get("train/policy_objective")
        return {"policy_loss": None if objective is None else -objective}
