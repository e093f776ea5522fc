"""The algorithms of sb3-contrib: MaskablePPO, RecurrentPPO, TRPO, QR-DQN, TQC. Imported only where they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import sb3_contrib
from gymnasium import spaces
from sb3_contrib.qrdqn.policies import QRDQNPolicy
from sb3_contrib.tqc.policies import TQCPolicy
from stable_baselines3.common.buffers import RolloutBuffer

from marl_sb3.acting.policy import RolloutPolicy
from marl_sb3.acting.recurrent import RecurrentRolloutPolicy
from marl_sb3.errors import ConfigError
from marl_sb3.experience.sequences import (
    ActionMaskDictRolloutBuffer,
    ActionMaskRolloutBuffer,
    MemoryDictRolloutBuffer,
    MemoryRolloutBuffer,
    SequenceDictRolloutBuffer,
    SequenceRolloutBuffer,
    WholeSequences,
)
from marl_sb3.learners.algorithms.ppo import ContribPPOLearner, ppo_plan, record_ppo
from marl_sb3.learners.algorithms.replay import QUpdate, SACUpdate, soft_actor_critic_coverage
from marl_sb3.learners.coverage import (
    Reliance,
    acting_coverage,
    first_reason,
    memory_coverage,
    replay_reliance,
    why_not_nets,
    why_not_policy,
)
from marl_sb3.learners.fused_off_policy import FusedOffPolicy
from marl_sb3.learners.fused_on_policy import FusedOnPolicy, FusedRollouts
from marl_sb3.learners.learner import Learner
from marl_sb3.learners.on_policy import OnPolicyLearner
from marl_sb3.learners.update_path import TwoPaths, UpdatePlan
from marl_sb3.metrics import Result
from marl_sb3.sb3.private import calls_lstm_as_sb3

if TYPE_CHECKING:
    from marl_sb3.learners.fused_policy import FusedRecurrentPolicy, FusedRolloutUpdate


class MaskablePPO(FusedOnPolicy, sb3_contrib.MaskablePPO):
    """A drop-in for `sb3_contrib.MaskablePPO`: same arguments, same logger keys, same files.

    The *fused* path runs the update of a plain MLP in PPO's compiled kernels, see `TwoPaths`.
    """

    def update_plan(self) -> UpdatePlan:
        """See `FusedOnPolicy.update_plan`."""
        return ppo_plan(self)

    def record_update(self, update: FusedRolloutUpdate) -> None:
        """See `FusedOnPolicy.record_update`."""
        record_ppo(self, update.means(), update.clip_range)


class MaskablePPOLearner(ContribPPOLearner):
    """See `OnPolicyLearner`. An env without action masks is refused when its agents act first."""

    @staticmethod
    def buffer_class(*, is_dict: bool) -> type[RolloutBuffer]:
        """See `OnPolicyLearner.buffer_class`."""
        return ActionMaskDictRolloutBuffer if is_dict else ActionMaskRolloutBuffer

    def _make_policy(self) -> RolloutPolicy:
        return RolloutPolicy(self.algorithm, takes_masks=True)


class RecurrentPPO(TwoPaths, sb3_contrib.RecurrentPPO):
    """A drop-in for `sb3_contrib.RecurrentPPO`: same arguments, same logger keys, same files.

    Its sequences are cut where episodes start. On the *fused* path the LSTM gets each sequence in one call; sb3-contrib
    calls it once per time step as soon as a minibatch contains the start of an episode. See `TwoPaths`.
    """

    _acts: tuple[FusedRecurrentPolicy, Reliance] | None = None  # the kernels that act, and what they rely on

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`; the layers do not matter, since PyTorch computes them."""
        buffer = type(self.rollout_buffer)
        reason = first_reason(
            {
                f"policy class {type(self.policy).__name__}": not calls_lstm_as_sb3(self.policy),
                f"rollout buffer {buffer.__name__}": not issubclass(buffer, WholeSequences),
            }
        )
        return reason or Reliance(self, [], settings=[(self, ["rollout_buffer", "policy"])])

    def _in_kernels_form(self) -> bool:
        return True

    def fused_policy(self) -> FusedRecurrentPolicy | None:
        """The policy in the kernels' layout, if they act in the rollouts of `MultiAgentAlgorithm`.

        Raises:
            ConfigError: see `TwoPaths.takes_fused_path`.
        """
        if not self.takes_fused_path():
            return None
        if self._acts is None or not self._acts[1].holds():
            from marl_sb3.learners.fused_policy import FusedRecurrentPolicy

            found = memory_coverage(self)
            covered = isinstance(found, Reliance) and found.why_not() is None
            self._acts = (FusedRecurrentPolicy(self.policy), found) if covered else None  # type: ignore[assignment]
        return None if self._acts is None else self._acts[0]

    def _setup_model(self) -> None:
        super()._setup_model()
        stock: Any = self.rollout_buffer
        is_dict = isinstance(self.observation_space, spaces.Dict)
        self.rollout_buffer = (SequenceDictRolloutBuffer if is_dict else SequenceRolloutBuffer)(
            self.n_steps,
            self.observation_space,
            self.action_space,
            stock.hidden_state_shape,
            self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
        )

    def train(self) -> None:
        """Update the policy from the rollout buffer, see `sb3_contrib.RecurrentPPO.train`."""
        buffer: Any = self.rollout_buffer
        if isinstance(buffer, WholeSequences):
            buffer.whole_sequences = self.takes_fused_path()
        super().train()


class RecurrentPPOLearner(ContribPPOLearner):
    """See `OnPolicyLearner`."""

    @staticmethod
    def buffer_class(*, is_dict: bool) -> type[RolloutBuffer]:
        """See `OnPolicyLearner.buffer_class`."""
        return MemoryDictRolloutBuffer if is_dict else MemoryRolloutBuffer

    def _make_policy(self) -> RolloutPolicy:
        return RecurrentRolloutPolicy(self.algorithm)


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


class QRDQN(FusedOffPolicy, sb3_contrib.QRDQN):
    """A drop-in for `sb3_contrib.QRDQN`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        reason = why_not_policy(self, QRDQNPolicy, ["quantile_net", "quantile_net_target"])
        if reason is not None:
            return reason
        net, target = self.quantile_net.quantile_net, self.quantile_net_target.quantile_net
        settings = [(self, ["quantile_net", "quantile_net_target", "n_quantiles"]), (self.policy, ["optimizer"])]
        return why_not_nets([net, target], self.policy.activation_fn) or replay_reliance(
            self, [(self.policy.optimizer, [net])], [target], settings
        )

    def _in_kernels_form(self) -> QUpdate:
        target = self.quantile_net_target.quantile_net
        return QUpdate(self, self.quantile_net, self.quantile_net.quantile_net, target, self.n_quantiles)


class TQC(FusedOffPolicy, sb3_contrib.TQC):
    """A drop-in for `sb3_contrib.TQC`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        return soft_actor_critic_coverage(self, TQCPolicy)

    def _in_kernels_form(self) -> SACUpdate:
        return SACUpdate(self)
