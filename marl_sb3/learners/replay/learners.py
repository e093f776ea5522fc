"""The learners of the algorithms with a replay buffer, which differ in their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from marl_sb3.learners.off_policy import OffPolicyLearner
from marl_sb3.metrics import Result


class QLearner(OffPolicyLearner):
    """DQN (Mnih et al. 2015) and QR-DQN (Dabney et al. 2018): Q values of discrete actions.

    `exploration_rate` is the probability of random actions.
    """

    recorded_as: ClassVar[Mapping[str, str]] = {**OffPolicyLearner.recorded_as, "qf_loss": "train/loss"}
    metric_names: ClassVar[Sequence[str]] = ("qf_loss", "exploration_rate", *OffPolicyLearner.metric_names)

    def _more_metrics(self, recorded: Mapping[str, Any]) -> Result:
        algorithm: Any = self.algorithm
        return {"exploration_rate": algorithm.exploration_rate}


class ActorCriticLearner(OffPolicyLearner):
    """TD3 (Fujimoto et al. 2018) and DDPG (Lillicrap et al. 2016): deterministic actors that explore by action noise.

    `actor_loss` is None if the actor was not updated: TD3 updates it once in `policy_delay` gradient steps.
    """

    recorded_as: ClassVar[Mapping[str, str]] = {
        **OffPolicyLearner.recorded_as,
        "actor_loss": "train/actor_loss",
        "critic_loss": "train/critic_loss",
    }
    metric_names: ClassVar[Sequence[str]] = ("actor_loss", "critic_loss", *OffPolicyLearner.metric_names)


class EntropyLearner(ActorCriticLearner):
    """SAC (Haarnoja et al. 2018), and TQC and CrossQ, which train other critics: stochastic actors, an entropy bonus.

    `ent_coef_loss` is None if the entropy coefficient is not learned.
    """

    recorded_as: ClassVar[Mapping[str, str]] = {
        **ActorCriticLearner.recorded_as,
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
