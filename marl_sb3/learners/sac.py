"""SAC (Haarnoja et al. 2018), and TQC and CrossQ, which train other critics: stochastic actors, an entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from marl_sb3.learners.off_policy import OffPolicyLearner


class SACLearner(OffPolicyLearner):
    """`ent_coef_loss` is None if the entropy coefficient is not learned."""

    recorded_as: ClassVar[Mapping[str, str]] = {
        **OffPolicyLearner.recorded_as,
        "actor_loss": "train/actor_loss",
        "critic_loss": "train/critic_loss",
        "ent_coef": "train/ent_coef",
        "ent_coef_loss": "train/ent_coef_loss",
    }
    metric_names: ClassVar[Sequence[str]] = (
        "actor_loss",
        "critic_loss",
        "ent_coef",
        "ent_coef_loss",
        *OffPolicyLearner.metric_names,
    )
