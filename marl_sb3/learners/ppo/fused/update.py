"""One update by the fused kernels, in three parts: prepare, run (in parallel with others), write back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import explained_variance

from marl_sb3.experience.rollout import flat_samples, minibatch_starts
from marl_sb3.learners.ppo.fused.policy import FusedPolicy, require_in_range
from marl_sb3.types import Array, FloatArray

if TYPE_CHECKING:
    from marl_sb3.kernels.minibatch import Samples
    from marl_sb3.kernels.ppo import Settings


class UpdatePlan(NamedTuple):
    """The minibatches and the loss of an update.

    Attributes:
        n_epochs: passes over the rollout.
        batch_size: transitions in a minibatch; None: all.
        clip_range: of PPO's clipped surrogate loss; None: the policy gradient, as in A2C.
    """

    n_epochs: int
    batch_size: int | None
    clip_range: float | None


class TorchUpdate:
    """An update by PyTorch, all of it in `run`."""

    def __init__(self, train: Callable[[], None]) -> None:
        self.run = train


class FusedUpdate:
    """An update by the kernels.

    Args:
        algorithm: the algorithm to update; its rollout buffer is full.
        fused: its policy.
        plan: its minibatches and loss.

    Attributes:
        n_epochs: see `UpdatePlan`.
        clip_range: that of this update; 0 if nothing is clipped.
        samples_drawn: number of agent steps in all minibatches.
    """

    def __init__(self, algorithm: OnPolicyAlgorithm, fused: FusedPolicy, plan: UpdatePlan) -> None:
        from marl_sb3.kernels import ppo as kernel
        from marl_sb3.kernels.minibatch import Samples

        self._kernel = kernel
        self._fused = fused
        self._rollout = algorithm.rollout_buffer
        self._samples = _rollout_samples(self._rollout, fused)
        samples = len(self._samples.returns)
        self.n_epochs = plan.n_epochs
        # SB3 draws the order of an epoch at its start. Drawing all at once gives the same numbers.
        orders = [np.random.permutation(samples) for _ in range(plan.n_epochs)]  # noqa: NPY002
        self._orders = np.stack(orders).astype(np.int64, copy=False)
        self._bounds = _bounds(self._rollout, samples, plan.batch_size)
        self._settings = _settings(algorithm, fused, plan)
        self.clip_range = self._settings.clip_range
        rows = int(np.diff(self._bounds).max())
        self._batch = Samples(*(np.empty_like(array[:rows]) for array in self._samples))
        self._stats = np.zeros((plan.n_epochs * (len(self._bounds) - 1), kernel.NUM_STATS))
        fused.read_parameters()
        self._m, self._v, self._steps_before = fused.read_moments()
        self.samples_drawn = samples * plan.n_epochs
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
            self._bounds,
            self._settings,
            self._stats,
        )

    def write_back(self) -> None:
        """Copy parameters and the optimizer's state into the torch objects, after `run`."""
        self._fused.write_parameters()
        self._fused.write_moments(self._m, self._v, self._steps_before + self._steps)

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
        values = flat_samples(self._rollout, "values").reshape(-1)
        means["explained_variance"] = float(explained_variance(values, self._samples.returns))
        return means


def _bounds(rollout: Any, samples: int, batch_size: int | None) -> Array:
    """Return where each minibatch begins, and the number of samples."""
    return np.append(minibatch_starts(samples, batch_size, getattr(rollout, "least_minibatch", 1)), samples)


def _settings(algorithm: Any, fused: FusedPolicy, plan: UpdatePlan) -> Settings:
    from marl_sb3.kernels.ppo import Settings

    optimizer: dict[str, Any] = algorithm.policy.optimizer.param_groups[0]
    beta1, beta2 = optimizer["betas"] if "betas" in optimizer else (0.0, optimizer["alpha"])
    return Settings(
        normalize_advantage=bool(algorithm.normalize_advantage),
        clipped=plan.clip_range is not None,
        clip_range=float(plan.clip_range or 0.0),
        ent_coef=float(algorithm.ent_coef),
        vf_coef=float(algorithm.vf_coef),
        max_grad_norm=float(algorithm.max_grad_norm),
        optimizer=fused.optimizer_kind.number,
        learning_rate=float(optimizer["lr"]),
        beta1=float(beta1),
        beta2=float(beta2),
        eps=float(optimizer["eps"]),
    )


def _rollout_samples(rollout: Any, fused: FusedPolicy) -> Samples:
    from marl_sb3.kernels.minibatch import Samples

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
        allowed=_masks(rollout, len(actions)),
        log_probs=flat_samples(rollout, "log_probs").reshape(-1),
        advantages=flat_samples(rollout, "advantages").reshape(-1),
        returns=flat_samples(rollout, "returns").reshape(-1),
    )


def _masks(rollout: Any, samples: int) -> FloatArray:
    """Return the action masks, (samples, n) float32; no columns for a policy without masks."""
    if not hasattr(rollout, "action_masks"):
        return np.empty((samples, 0), np.float32)
    masks: FloatArray = flat_samples(rollout, "action_masks").reshape(samples, -1)
    return masks


def record_std(algorithm: OnPolicyAlgorithm) -> None:
    """Record the standard deviation of a Gaussian policy, as SB3 does."""
    if hasattr(algorithm.policy, "log_std"):
        algorithm.logger.record("train/std", th.exp(algorithm.policy.log_std).mean().item())
