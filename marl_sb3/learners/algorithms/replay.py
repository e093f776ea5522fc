"""DQN, SAC, TD3 and DDPG: drop-ins for SB3's classes whose updates run in kernels where these cover the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import stable_baselines3
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from marl_sb3.learners.coverage import Reliance
from marl_sb3.learners.off_policy import OffPolicyLearner
from marl_sb3.learners.replay.fused.coverage import replay_reliance, why_not_nets, why_not_policy
from marl_sb3.learners.replay.fused.q_update import QUpdate
from marl_sb3.learners.replay.fused.sac_update import SACUpdate
from marl_sb3.learners.replay.fused.td3_update import TD3Update
from marl_sb3.learners.threads import blas_threads, load_blas
from marl_sb3.learners.update_path import TwoPaths
from marl_sb3.metrics import Result
from marl_sb3.sb3.private import has_step_hook
from marl_sb3.types import Array

if TYPE_CHECKING:  # base class of the mixin for type checkers: the algorithms have its attributes

    class _Base(TwoPaths, OffPolicyAlgorithm): ...

else:
    _Base = TwoPaths


class FusedReplayUpdate(Protocol):
    """Acts and updates in kernels, in the memory of the algorithm's networks and optimizers."""

    @property
    def optimizers(self) -> Sequence[th.optim.Optimizer]:
        """The optimizers, whose learning rates follow the schedule."""

    def begin(self) -> None:
        """Begin an update, with the optimizers' present settings."""

    def step(self, samples: Any, gradient_step: int) -> None:
        """Take one gradient step.

        Args:
            samples: a minibatch of the replay buffer.
            gradient_step: number of the step in this update, from 0.
        """

    def recorded(self) -> dict[str, float]:
        """Return what SB3 records of the update, under its names: means over the gradient steps."""

    def explore(self, observations: Any) -> Array:
        """Choose actions as `predict` does that is not deterministic; with the same random numbers."""


class FusedReplayUpdates(_Base):
    """Mixin of an SB3 algorithm: updates and the actions of rollouts are computed in kernels where these cover it.

    See `TwoPaths`.
    """

    _of_rollout: FusedReplayUpdate | None = None  # what acts in the present rollout, if the kernels do
    _is_read: bool = False  # whether it was looked up since the policy may have changed
    _reads_again: bool = False  # whether callbacks may change the policy within a rollout
    _acting: FusedReplayUpdate | None = None  # what acts, while an action is chosen

    def fused_update(self) -> FusedReplayUpdate | None:
        """Return the policy in the kernels' form, if updates take the fused path.

        Raises:
            ConfigError: see `takes_fused_path`.
        """
        update: FusedReplayUpdate | None = self._kernels()
        return update

    def exploring_kernels(self) -> FusedReplayUpdate | None:
        """Return what explores in kernels; None if a subclass explores in its own way."""
        return self.fused_update() if type(self).predict is FusedReplayUpdates.predict else None

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """See `OffPolicyAlgorithm.train`."""
        update = self.fused_update()
        if update is None:
            super().train(gradient_steps=gradient_steps, batch_size=batch_size)
            return
        assert self.replay_buffer is not None
        self._update_learning_rate(list(update.optimizers))
        update.begin()
        for gradient_step in range(gradient_steps):
            samples = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            update.step(samples, gradient_step)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, value in update.recorded().items():
            self.logger.record(name, value)

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """See `OffPolicyAlgorithm.learn`; small matrix products are fastest with one thread."""
        if self.takes_fused_path():
            load_blas()
        with blas_threads(1):
            return super().learn(*args, **kwargs)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: ReplayBuffer,
        action_noise: ActionNoise | None = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutReturn:
        """See `OffPolicyAlgorithm.collect_rollouts`; on the fused path the kernels choose the actions."""
        self._is_read = False
        self._reads_again = has_step_hook(callback)
        return super().collect_rollouts(
            env, callback, train_freq, replay_buffer, action_noise, learning_starts, log_interval
        )

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[Array, Array]:
        if not self._is_read or self._reads_again:  # not earlier: callbacks may change the policy
            self._of_rollout = self.fused_update()
            self._is_read = True
        self._acting = self._of_rollout
        try:
            return super()._sample_action(learning_starts, action_noise, n_envs)
        finally:
            self._acting = None

    def predict(
        self,
        observation: Any,
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = False,
    ) -> tuple[Array, tuple[Array, ...] | None]:
        """See `BaseAlgorithm.predict`; in the kernels for the actions of a rollout, by PyTorch for all others."""
        if self._acting is None:
            return super().predict(observation, state, episode_start, deterministic)
        return self._acting.explore(observation), state


class DQN(FusedReplayUpdates, stable_baselines3.DQN):
    """A drop-in for `stable_baselines3.DQN`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        reason = why_not_policy(self, DQNPolicy, ["q_net", "q_net_target"])
        if reason is not None:
            return reason
        net, target = self.q_net.q_net, self.q_net_target.q_net
        settings = [(self, ["q_net", "q_net_target"]), (self.policy, ["optimizer"])]
        return why_not_nets([net, target], self.policy.activation_fn) or replay_reliance(
            self, [(self.policy.optimizer, [net])], [target], settings
        )

    def _in_kernels_form(self) -> QUpdate:
        return QUpdate(self, self.q_net, self.q_net.q_net, self.q_net_target.q_net, 0)


_EPSILON = 1e-6  # of SB3's distribution, and of the kernels


class SAC(FusedReplayUpdates, stable_baselines3.SAC):
    """A drop-in for `stable_baselines3.SAC`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        return soft_actor_critic_coverage(self, SACPolicy)

    def _in_kernels_form(self) -> SACUpdate:
        return SACUpdate(self)


def soft_actor_critic_coverage(algorithm: Any, policy_class: type[BasePolicy]) -> Reliance | str:
    """Return what the kernels rely on to train a SAC or TQC, or the reason why they cannot."""
    actor, critic, target = algorithm.actor, algorithm.critic, algorithm.critic_target
    reason = why_not_policy(algorithm, policy_class, ["actor", "critic", "critic_target"])
    if reason is not None:
        return reason
    distribution = actor.action_dist
    if type(distribution) is not SquashedDiagGaussianDistribution or distribution.epsilon != _EPSILON:
        return f"distribution {type(distribution).__name__}"
    activation, critics = algorithm.policy.activation_fn, [*critic.q_networks, *target.q_networks]
    reason = why_not_nets([actor.latent_pi], activation, last=(nn.Linear, activation))
    learned = algorithm.ent_coef_optimizer is not None
    return (
        reason
        or why_not_nets([actor.mu, actor.log_std, *critics], activation)
        or replay_reliance(
            algorithm,
            [
                (actor.optimizer, [actor.latent_pi, actor.mu, actor.log_std]),
                (critic.optimizer, [*critic.q_networks]),
            ],
            [*target.q_networks],
            [
                (algorithm, ["actor", "critic", "critic_target", "ent_coef_optimizer", "log_ent_coef"]),
                (actor, ["optimizer", "action_dist"]),
                (distribution, ["epsilon"]),
                (critic, ["optimizer"]),
            ],
            [(algorithm.ent_coef_optimizer, algorithm.log_ent_coef)] if learned else [],
        )
    )


class TD3(FusedReplayUpdates, stable_baselines3.TD3):
    """A drop-in for `stable_baselines3.TD3`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        actors, critics = [self.actor, self.actor_target], [self.critic, self.critic_target]
        reason = why_not_policy(self, TD3Policy, ["actor", "actor_target", "critic", "critic_target"])
        if reason is not None:
            return reason
        activation = self.policy.activation_fn
        return (
            why_not_nets([actor.mu for actor in actors], activation, last=(nn.Linear, nn.Tanh))
            or why_not_nets([net for critic in critics for net in critic.q_networks], activation)
            or replay_reliance(
                self,
                [(self.actor.optimizer, [self.actor.mu]), (self.critic.optimizer, [*self.critic.q_networks])],
                [self.actor_target.mu, *self.critic_target.q_networks],
                [
                    (self, ["actor", "actor_target", "critic", "critic_target"]),
                    (self.actor, ["optimizer"]),
                    (self.critic, ["optimizer"]),
                ],
            )
        )

    def _in_kernels_form(self) -> TD3Update:
        return TD3Update(self)


class DDPG(TD3, stable_baselines3.DDPG):
    """A drop-in for `stable_baselines3.DDPG`: same arguments, same logger keys, same files. See `TwoPaths`."""


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
