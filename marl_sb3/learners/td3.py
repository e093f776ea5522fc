"""TD3 (Fujimoto et al. 2018) and DDPG (Lillicrap et al. 2016): deterministic actors that explore by action noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from marl_sb3.learners.off_policy import OffPolicyLearner


class TD3Learner(OffPolicyLearner):
    """`actor_loss` is None if the actor was not updated: TD3 does so once in `policy_delay` gradient steps."""

    recorded_as: ClassVar[Mapping[str, str]] = {
        **OffPolicyLearner.recorded_as,
        "actor_loss": "train/actor_loss",
        "critic_loss": "train/critic_loss",
    }
    metric_names: ClassVar[Sequence[str]] = ("actor_loss", "critic_loss", *OffPolicyLearner.metric_names)
