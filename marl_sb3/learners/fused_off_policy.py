"""What the algorithms with a replay buffer share that can act and update in kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq
from stable_baselines3.common.vec_env import VecEnv

from marl_sb3.learners.coverage import ACTIVATIONS
from marl_sb3.learners.kernel_tables import OptimizerTable
from marl_sb3.learners.threads import blas_threads, load_blas
from marl_sb3.learners.update_path import TwoPaths
from marl_sb3.sb3.private import has_step_hook
from marl_sb3.types import Array, FloatArray

if TYPE_CHECKING:
    from marl_sb3.kernels.optimizers import Optimizer
    from marl_sb3.kernels.replay import Batch

    class _Base(TwoPaths, OffPolicyAlgorithm):  # for type checkers: the algorithms have its attributes
        """SB3's algorithm."""

else:
    _Base = TwoPaths


class FusedReplayUpdate:
    """Acts and updates in kernels, in the memory of the algorithm's networks and optimizers.

    Args:
        algorithm: one that the kernels cover; a new object is made when its modules or optimizers are replaced.
        kernel: the module of its kernels.
        optimizers: its optimizers.

    Attributes:
        optimizers: those optimizers, whose learning rates follow the schedule.
    """

    def __init__(self, algorithm: Any, kernel: ModuleType, optimizers: Sequence[th.optim.Optimizer]) -> None:
        _note_compiling(kernel)
        self._algorithm = algorithm
        self._hidden = ACTIVATIONS.index(algorithm.policy.activation_fn)
        self.optimizers = list(optimizers)
        self._tables = [OptimizerTable(optimizer) for optimizer in optimizers]
        self._present: list[Optimizer] = []
        self._stats: list[Any] = []

    def begin(self) -> None:
        """Begin an update, with the optimizers' present settings."""
        self._present = [table.present() for table in self._tables]
        self._stats = []

    def step(self, samples: Any, gradient_step: int) -> None:
        """Take one gradient step.

        Args:
            samples: a minibatch of the replay buffer.
            gradient_step: number of the step in this update, from 0.
        """
        raise NotImplementedError

    def recorded(self) -> dict[str, float]:
        """Return what SB3 records of the update, under its names: means over the gradient steps."""
        raise NotImplementedError

    def explore(self, observations: Any) -> Array:
        """Choose actions as `predict` does that is not deterministic; with the same random numbers."""
        raise NotImplementedError


@cache
def _note_compiling(kernel: ModuleType) -> None:
    from marl_sb3.kernels.cache import note_compiling

    note_compiling(kernel.update)


class FusedOffPolicy(_Base):
    """Mixin of an SB3 algorithm: updates and the actions of rollouts are computed in kernels where these cover it.

    See `TwoPaths`.
    """

    _of_rollout: FusedReplayUpdate | None = None  # what acts in the present rollout, if the kernels do
    _is_read: bool = False  # whether it was looked up since the policy may have changed
    _reads_again: bool = False  # whether callbacks may change the policy within a rollout
    _acting: FusedReplayUpdate | None = None  # what acts, while an action is chosen

    def acting_kernels(self) -> Any:
        """See `TwoPaths.acting_kernels`; None too if a subclass explores in its own way."""
        return self.kernels() if type(self).predict is FusedOffPolicy.predict else None

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """See `OffPolicyAlgorithm.train`."""
        update: FusedReplayUpdate | None = self.kernels()
        if update is None:
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
            self._of_rollout = self.kernels()
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


# --- What the kernels take -------------------------------------------------------------------------------------------


def features(network: BaseModel, observations: Array | th.Tensor) -> FloatArray:
    """(rows, inputs) float32: what the first layer of a network sees of (rows, ...) observations."""
    if isinstance(network.observation_space, spaces.Box):
        array = observations.numpy() if isinstance(observations, th.Tensor) else observations
        return np.ascontiguousarray(array.reshape(len(array), -1), dtype=np.float32)
    with th.no_grad():
        extractor: Any = network.features_extractor
        found: FloatArray = network.extract_features(th.as_tensor(observations), extractor).numpy()
    return found


def batch_of(samples: Any, network: BaseModel, gamma: float) -> Batch:
    """Return a minibatch of SB3's replay buffers in the kernels' form."""
    from marl_sb3.kernels.replay import Batch

    discounts = gamma if samples.discounts is None else samples.discounts.numpy().reshape(-1)
    discounts = (1.0 - samples.dones.numpy().reshape(-1)) * discounts
    return Batch(
        features(network, samples.observations),
        samples.actions.numpy(),
        features(network, samples.next_observations),
        samples.rewards.numpy().reshape(-1),
        discounts.astype(np.float32, copy=False),
    )


def env_actions(algorithm: Any, actions: FloatArray) -> Array:
    """Return (rows, n) actions from -1 to 1 as the env takes them, (rows, *action shape)."""
    unscaled: Array = algorithm.policy.unscale_action(actions.reshape(-1, *algorithm.action_space.shape))
    return unscaled


def standard_normal(rows: int, size: int) -> FloatArray:
    """(rows, size) float32 numbers, drawn as `torch.distributions.Normal` draws them."""
    noise: FloatArray = th.normal(th.zeros(rows, size), th.ones(rows, size)).numpy()
    return noise
