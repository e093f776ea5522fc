"""One PPO update by the fused kernels, in three parts: prepare, run (in parallel with others), write back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.utils import explained_variance

from marl_sb3.learners.buffers.rollout import flat_samples
from marl_sb3.learners.ppo.fused.policy import FusedPolicy, require_in_range
from marl_sb3.learners.sb3.private import progress_remaining

if TYPE_CHECKING:
    from marl_sb3.learners.ppo.fused.kernel import Samples, Settings
    from marl_sb3.learners.ppo.ppo import PPO


class TorchUpdate:
    """An update by PyTorch, all of it in `run`."""

    def __init__(self, train: Callable[[], None]) -> None:
        self.run = train


class FusedUpdate:
    """An update by the kernels.

    Args:
        algorithm: the PPO to update; its rollout buffer is full.

    Attributes:
        clip_range: the clip range of this update.
        samples_drawn: number of agent steps in all minibatches.
    """

    def __init__(self, algorithm: PPO, fused: FusedPolicy) -> None:
        from marl_sb3.learners.ppo.fused import kernel

        self._kernel = kernel
        self._fused = fused
        self._samples = _rollout_samples(algorithm.rollout_buffer, fused)
        samples = len(self._samples.returns)
        values = flat_samples(algorithm.rollout_buffer, "values").reshape(-1)
        self._explained_variance = float(explained_variance(values, self._samples.returns))
        # SB3 draws the order of an epoch at its start. Drawing all at once gives the same numbers.
        orders = [np.random.permutation(samples) for _ in range(algorithm.n_epochs)]  # noqa: NPY002
        self._orders = np.stack(orders).astype(np.int64, copy=False)
        self._settings = _settings(algorithm, samples)
        self.clip_range = self._settings.clip_range
        rows = self._settings.batch_size
        self._batch = kernel.Samples(*(np.empty_like(array[:rows]) for array in self._samples))
        self._stats = np.zeros((algorithm.n_epochs * -(-samples // rows), kernel.NUM_STATS))
        fused.read_parameters()
        self._m, self._v, self._steps_before = fused.read_adam()
        self.samples_drawn = samples * algorithm.n_epochs
        self._steps = 0

    def run(self) -> None:
        """Compute the update, without holding the GIL."""
        self._steps = self._kernel.train(
            self._fused.theta,
            self._m,
            self._v,
            self._steps_before,
            self._fused.nets,
            self._samples,
            self._batch,
            self._orders,
            self._settings,
            self._stats,
        )

    def write_back(self) -> None:
        """Copy parameters and Adam's state into the torch objects, after `run`."""
        self._fused.write_parameters()
        self._fused.write_adam(self._m, self._v, self._steps_before + self._steps)

    @property
    def num_grad_updates(self) -> int:
        """Optimizer steps taken."""
        return self._steps

    @property
    def is_finite(self) -> bool:
        """Whether every loss and gradient is finite; if not, the update stopped before it applied the first bad one."""
        used = self._stats[: self._steps]
        return bool(np.isfinite(used[:, [self._kernel.LOSS, self._kernel.GRAD_NORM]]).all())

    def means(self) -> dict[str, float]:
        """Return means of statistics over minibatches, named as in `PPO`; the KL is of the last epoch, as in SB3."""
        kernel, stats = self._kernel, self._stats[: self._steps]
        batches = len(self._stats) // len(self._orders)
        columns = {
            "policy_loss": kernel.POLICY_LOSS,
            "value_loss": kernel.VALUE_LOSS,
            "entropy_loss": kernel.ENTROPY_LOSS,
            "clip_fraction": kernel.CLIP_FRACTION,
            "gradients_global_norm": kernel.GRAD_NORM,
        }
        means = {name: float(stats[:, column].mean()) for name, column in columns.items()}
        means["approx_kl"] = float(stats[-batches:, kernel.APPROX_KL].mean())
        means["last_loss"] = float(stats[-1, kernel.LOSS])
        means["explained_variance"] = self._explained_variance
        return means


def _settings(algorithm: PPO, samples: int) -> Settings:
    from marl_sb3.learners.ppo.fused.kernel import Settings

    progress = progress_remaining(algorithm)
    optimizer: dict[str, Any] = algorithm.policy.optimizer.param_groups[0]
    return Settings(
        batch_size=min(algorithm.batch_size, samples),
        normalize_advantage=bool(algorithm.normalize_advantage),
        clip_range=float(algorithm.clip_range(progress)),  # type: ignore[operator]
        ent_coef=float(algorithm.ent_coef),
        vf_coef=float(algorithm.vf_coef),
        max_grad_norm=float(algorithm.max_grad_norm),
        learning_rate=float(algorithm.lr_schedule(progress)),
        beta1=float(optimizer["betas"][0]),
        beta2=float(optimizer["betas"][1]),
        eps=float(optimizer["eps"]),
    )


def _rollout_samples(rollout: Any, fused: FusedPolicy) -> Samples:
    from marl_sb3.learners.ppo.fused.kernel import Samples

    inputs = fused.inputs(flat_samples(rollout, "observations"))
    actions = flat_samples(rollout, "actions")
    if not fused.is_gaussian:
        require_in_range(actions.astype(np.int64, copy=False), fused.sizes, "action", fused.policy.action_space)
    none = np.empty((len(actions), 0))
    return Samples(
        indices=inputs.indices,
        floats=inputs.floats,
        int_actions=(none if fused.is_gaussian else actions).astype(np.int64, copy=False),
        float_actions=(actions if fused.is_gaussian else none).astype(np.float32, copy=False),
        log_probs=flat_samples(rollout, "log_probs").reshape(-1),
        advantages=flat_samples(rollout, "advantages").reshape(-1),
        returns=flat_samples(rollout, "returns").reshape(-1),
    )
