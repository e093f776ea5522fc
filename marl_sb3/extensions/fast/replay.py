"""DQN, SAC, TD3 and DDPG: drop-ins for SB3's classes that act and update in kernels where these cover the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import stable_baselines3
import torch as th
import torch.nn.functional as F
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import RolloutReturn
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn
from typing_extensions import override

from marl_sb3.core.learners.learner import blas_threads
from marl_sb3.core.off_policy.off_policy import OffPolicyLearner
from marl_sb3.core.sb3.private import has_step_hook
from marl_sb3.extensions.fast.coverage import PathStillValid, valid_for_replay, why_not_nets, why_not_policy
from marl_sb3.extensions.fast.dueling import DUELING_DQN, take_plain
from marl_sb3.extensions.fast.frames import OF_FRAMES, stacked_frames
from marl_sb3.extensions.fast.prioritized import DrawsByPriority
from marl_sb3.extensions.fast.torch_updates import faster_images
from marl_sb3.extensions.fast.update_path import TwoPaths, load_blas, require_rows
from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.extensions.fast.fused_replay import FusedReplayUpdate


class FusedOffPolicy(TwoPaths, OffPolicyAlgorithm):
    """A base class, in front of SB3's class of the algorithm: updates and the actions of rollouts run in the kernels.

    Where these cover the policy: see `TwoPaths`.
    """

    covered_policy: ClassVar[type[BasePolicy]]  # the class of its policy; its subclasses may compute something else
    # the names of all networks that the kernels run, in the algorithm and in the policy
    network_names: ClassVar[Sequence[str]]
    update_class: ClassVar[str]  # the name of the class in `fused_replay` that acts and updates by the kernels
    _of_rollout: FusedReplayUpdate | None = None  # what acts in the present rollout, if the kernels do
    _is_read: bool = False  # whether it was looked up since the policy may have changed
    _reads_again: bool = False  # whether callbacks may change the policy within a rollout
    _acting: FusedReplayUpdate | None = None  # what acts, while an action is chosen
    # threads that a gradient step may have, which change no result; None: as many as PyTorch has, and cores
    update_threads: int | None = None
    stacked_frames = staticmethod(stacked_frames)

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        require_rows(env)
        wrapped: VecEnv = super(FusedOffPolicy, FusedOffPolicy)._wrap_env(env, verbose, monitor_wrapper)
        return wrapped

    def networks(self) -> list[Any]:
        """Return the networks that the kernels run."""
        return [getattr(self, name) for name in self.network_names]

    @override
    def coverage(self) -> PathStillValid | str:
        reason = why_not_policy(self, self.covered_policy, self.network_names)
        return reason or self._coverage_of_nets(self.policy.activation_fn)  # type: ignore[arg-type]

    def _coverage_of_nets(self, activation: type[nn.Module]) -> PathStillValid | str:
        """Return the same for the nets and optimizers of a policy that is covered."""
        raise NotImplementedError

    def _in_kernels_form(self, validity: PathStillValid) -> FusedReplayUpdate:
        from marl_sb3.extensions.fast import fused_replay

        update: FusedReplayUpdate = getattr(fused_replay, self.update_class)(self)
        return update

    def use_threads(self, threads: int) -> None:
        """Share the next gradient steps among so many threads; see `AlgorithmTraits`."""
        self.update_threads = threads

    def acting_kernels(self) -> Any:
        """See `TwoPaths.acting_kernels`; None too if a subclass of a user's explores in its own way."""
        return self.kernels() if type(self).predict.__module__.startswith(f"{__package__}.") else None

    @override
    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        update: FusedReplayUpdate | None = self.kernels()
        if update is None:
            with faster_images(self, self.replay_buffer, "sample"):
                super().train(gradient_steps=gradient_steps, batch_size=batch_size)
            return
        assert self.replay_buffer is not None
        self._update_learning_rate(update.optimizers)
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

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, *args: Any, **kwargs: Any) -> RolloutReturn:
        """See `OffPolicyAlgorithm.collect_rollouts`; on the fused path the kernels choose the actions."""
        self._is_read = False
        self._reads_again = has_step_hook(callback)
        return super().collect_rollouts(env, callback, *args, **kwargs)

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[Array, Array]:
        if not self._is_read or self._reads_again:  # not earlier: callbacks may change the policy
            self._of_rollout = self.kernels()
            self._is_read = True
        self._acting = self._of_rollout
        try:
            return super()._sample_action(*args, **kwargs)
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


class QLearning(DrawsByPriority, FusedOffPolicy):
    """What DQN and QR-DQN share."""

    update_class = "QUpdate"

    @override
    def _setup_model(self) -> None:
        take_plain(self, "dueling", False)
        super()._setup_model()

    def _coverage_of_nets(self, activation: type[nn.Module]) -> PathStillValid | str:
        net, target = (getattr(network, self.network_names[0]) for network in self.networks())
        settings = [(self, ["n_quantiles"])] if hasattr(self, "n_quantiles") else []
        return why_not_nets([net, target], activation) or valid_for_replay(
            self, [(self.policy, [net])], [target], settings
        )


class DQN(QLearning, stable_baselines3.DQN):
    """A drop-in for `stable_baselines3.DQN`: same arguments, same logger keys, same files. See `TwoPaths`."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = DUELING_DQN
    covered_policy = DQNPolicy
    network_names = ("q_net", "q_net_target")

    @override
    def losses(self, samples: Any) -> tuple[th.Tensor, th.Tensor]:
        discounts = self.gamma if samples.discounts is None else samples.discounts
        with th.no_grad():
            best = self.q_net_target(samples.next_observations).amax(dim=1, keepdim=True)
            targets = samples.rewards + (1 - samples.dones) * discounts * best
        values = self.q_net(samples.observations).gather(1, samples.actions.long())
        losses = F.smooth_l1_loss(values, targets, reduction="none").squeeze(1)
        return losses, (values - targets).abs().squeeze(1)


class ActorCriticLearner(OffPolicyLearner):
    """The `Learner` of SAC, TD3 and DDPG, whose critics may be central ones."""

    takes_parts: ClassVar[Sequence[str]] = ("replay_data", "central_critic", "curiosity")


_EPSILON = 1e-6  # of SB3's distribution, and of the kernels


class SoftActorCritic(FusedOffPolicy):
    """What SAC and TQC share."""

    network_names = ("actor", "critic", "critic_target")
    update_class = "SACUpdate"
    replay_buffers: Mapping[Any, Any] = OF_FRAMES

    def _coverage_of_nets(self, activation: type[nn.Module]) -> PathStillValid | str:
        actor, critic, target = self.networks()
        distribution = actor.action_dist
        if type(distribution) is not SquashedDiagGaussianDistribution or distribution.epsilon != _EPSILON:
            return f"distribution {type(distribution).__name__}"
        trained = [(actor, [actor.latent_pi, actor.mu, actor.log_std]), (critic, [*critic.q_networks])]
        entropy = (self, ["ent_coef_optimizer", "log_ent_coef"])
        settings = [entropy, (actor, ["action_dist"]), (distribution, ["epsilon"])]
        algorithm: Any = self
        optimizer = algorithm.ent_coef_optimizer  # None if the entropy coefficient is not learned
        learned = [] if optimizer is None else [(optimizer, algorithm.log_ent_coef)]
        return (
            why_not_nets([actor.latent_pi], activation, last=(nn.Linear, activation))
            or why_not_nets([actor.mu, actor.log_std, *critic.q_networks, *target.q_networks], activation)
            or valid_for_replay(self, trained, [*target.q_networks], settings, learned)
        )


class SAC(SoftActorCritic, stable_baselines3.SAC):
    """A drop-in for `stable_baselines3.SAC`: same arguments, same logger keys, same files. See `TwoPaths`."""

    covered_policy = SACPolicy


class TD3(FusedOffPolicy, stable_baselines3.TD3):
    """A drop-in for `stable_baselines3.TD3`: same arguments, same logger keys, same files. See `TwoPaths`."""

    covered_policy = TD3Policy
    network_names = ("actor", "actor_target", "critic", "critic_target")
    replay_buffers: Mapping[Any, Any] = OF_FRAMES
    update_class = "TD3Update"

    def _coverage_of_nets(self, activation: type[nn.Module]) -> PathStillValid | str:
        actor, actor_target, critic, critic_target = self.networks()
        trained, targets = [(actor, [actor.mu]), (critic, [*critic.q_networks])], [*critic_target.q_networks]
        return (
            why_not_nets([actor.mu, actor_target.mu], activation, last=(nn.Linear, nn.Tanh))
            or why_not_nets([*critic.q_networks, *targets], activation)
            or valid_for_replay(self, trained, [actor_target.mu, *targets])
        )


class DDPG(TD3, stable_baselines3.DDPG):
    """A drop-in for `stable_baselines3.DDPG`: same arguments, same logger keys, same files. See `TwoPaths`."""
