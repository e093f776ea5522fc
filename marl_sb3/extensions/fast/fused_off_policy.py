"""What the algorithms with a replay buffer share that can act and update by the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import RolloutReturn
from stable_baselines3.common.vec_env import VecEnv
from torch import nn
from typing_extensions import override

from marl_sb3.core.learners.learner import blas_threads
from marl_sb3.core.sb3.private import has_step_hook
from marl_sb3.extensions.fast.coverage import PathStillValid, why_not_policy
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
        """See `TwoPaths.acting_kernels`; None too if a subclass explores in its own way."""
        return self.kernels() if type(self).predict is FusedOffPolicy.predict else None

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
