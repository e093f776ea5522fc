"""`stable_baselines3.PPO` with the same results, faster, and with more metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.common.vec_env import VecEnv
from torch.nn import functional as F

from marl_sb3.errors import NumericError
from marl_sb3.learners.ppo.device_rollout import DeviceRollout
from marl_sb3.learners.ppo.fused.coverage import why_not_fused
from marl_sb3.learners.ppo.fused.policy import FusedPolicy
from marl_sb3.learners.ppo.fused.rollout import collect_fused
from marl_sb3.learners.ppo.fused.update import FusedUpdate, TorchUpdate
from marl_sb3.learners.threads import blas_threads
from marl_sb3.learners.update_path import TwoPaths


class PPO(TwoPaths, stable_baselines3.PPO):
    """A drop-in for `stable_baselines3.PPO`: same arguments, same logger keys, same files.

    The *fused* path runs whole updates of plain MLPs in compiled kernels, see `TwoPaths`.

    Attributes:
        num_grad_updates: optimizer steps taken since the object was made.
        update_stats: of the latest update, means over its minibatches: `gradients_global_norm` (before clipping) and
            `vf_loss_unclipped`.
    """

    update_stats: dict[str, float]
    num_grad_updates: int = 0
    _fused: FusedPolicy | None = None

    def why_not_fused(self) -> str | None:
        """See `TwoPaths.why_not_fused`."""
        return why_not_fused(self)

    def fused_policy(self) -> FusedPolicy | None:
        """The policy in the kernels' layout, if updates take the fused path.

        Raises:
            ConfigError: see `TwoPaths.takes_fused_path`.
        """
        if not self.takes_fused_path():
            return None
        if self._fused is None or not self._fused.is_of(self.policy):
            self._fused = FusedPolicy(self.policy)
        return self._fused

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_fused"]

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """See `OnPolicyAlgorithm.collect_rollouts`; on the fused path the kernels also choose the actions."""
        fused = self.fused_policy()
        if fused is None:
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        return collect_fused(self, fused, env, callback, rollout_buffer, n_rollout_steps)

    def train(self) -> None:
        """Update the policy from the rollout buffer.

        Raises:
            NumericError: a loss or gradient is not finite (fused path only); the weights stay as before that minibatch.
        """
        update = self.prepare_update()
        with blas_threads(1):
            update.run()
        self.finish_update(update)
        if isinstance(update, FusedUpdate) and not update.is_finite:
            raise NumericError("a loss or a gradient is not finite; the update stopped at that minibatch")

    def prepare_update(self) -> FusedUpdate | TorchUpdate:
        """Do the part of an update that draws random numbers, in SB3's order, or that cannot run in parallel.

        Fused updates of several policies may then `run` at the same time; `finish_update` is called for one at a time.
        """
        fused = self.fused_policy()
        if fused is None:
            return TorchUpdate(self._train_torch)
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        return FusedUpdate(self, fused)

    def finish_update(self, update: FusedUpdate | TorchUpdate) -> None:
        """Write the results of a fused update into SB3's objects."""
        if isinstance(update, FusedUpdate):
            update.write_back()
            self._n_updates += self.n_epochs
            self.num_grad_updates += update.num_grad_updates
            self._record_update(update.means(), update.clip_range, None)

    def _train_torch(self) -> None:
        """Update by PyTorch, with the same operations as SB3's `ppo.py`.

        Statistics stay tensors until the end, where SB3 waits for the device five times in each minibatch.
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        clip_range = self.clip_range(self._current_progress_remaining)  # type: ignore[operator]
        clip_range_vf = None
        if self.clip_range_vf is not None:
            clip_range_vf = self.clip_range_vf(self._current_progress_remaining)  # type: ignore[operator]
        rollout = DeviceRollout(self.rollout_buffer, self.device)
        minibatches: list[dict[str, th.Tensor]] = []
        for epoch in range(self.n_epochs):
            first_of_epoch = len(minibatches)
            finished = self._train_epoch(epoch, rollout, clip_range, clip_range_vf, minibatches)
            self._n_updates += 1
            if not finished:
                break
        means = _means_by_name(minibatches)
        means["approx_kl"] = _means_by_name(minibatches[first_of_epoch:])["approx_kl"]  # SB3 logs the last epoch's
        means["last_loss"] = minibatches[-1]["loss"].item()
        means["explained_variance"] = explained_variance(rollout.values, rollout.returns)
        self._record_update(means, clip_range, clip_range_vf)

    def _train_epoch(
        self,
        epoch: int,
        rollout: DeviceRollout,
        clip_range: float,
        clip_range_vf: float | None,
        minibatches: list[dict[str, th.Tensor]],
    ) -> bool:
        """One pass over the rollout; False if `target_kl` stopped it."""
        for batch in rollout.minibatches(self.batch_size):
            loss, stats = self._loss(batch, clip_range, clip_range_vf)
            minibatches.append(stats)
            if self.target_kl is not None and stats["approx_kl"] > 1.5 * self.target_kl:
                if self.verbose >= 1:
                    print(f"Early stopping at step {epoch} due to reaching max kl: {stats['approx_kl']:.2f}")
                return False
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            stats["gradients_global_norm"] = norm
            self.policy.optimizer.step()
            self.num_grad_updates += 1
        return True

    def _loss(
        self, batch: Any, clip_range: float, clip_range_vf: float | None
    ) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        """The clipped surrogate loss of a minibatch (Schulman et al. 2017, eq. 9), and its parts."""
        actions = batch.actions
        if isinstance(self.action_space, spaces.Discrete):
            actions = batch.actions.long().flatten()
        values, log_prob, entropy = self.policy.evaluate_actions(batch.observations, actions)
        values = values.flatten()
        advantages = batch.advantages
        if self.normalize_advantage and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_ratio = log_prob - batch.old_log_prob
        ratio = th.exp(log_ratio)
        clipped = th.clamp(ratio, 1 - clip_range, 1 + clip_range)
        policy_loss = -th.min(advantages * ratio, advantages * clipped).mean()
        predicted = values
        if clip_range_vf is not None:
            predicted = batch.old_values + th.clamp(values - batch.old_values, -clip_range_vf, clip_range_vf)
        value_loss = F.mse_loss(batch.returns, predicted)
        entropy_loss = -th.mean(-log_prob) if entropy is None else -th.mean(entropy)
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        with th.no_grad():
            stats = {
                "policy_loss": policy_loss.detach(),
                "value_loss": value_loss.detach(),
                "entropy_loss": entropy_loss.detach(),
                "loss": loss.detach(),
                "clip_fraction": th.mean((th.abs(ratio - 1) > clip_range).float()),
                "approx_kl": th.mean((ratio - 1) - log_ratio),  # http://joschu.net/blog/kl-approx.html, k3
            }
            if clip_range_vf is not None:
                stats["vf_loss_unclipped"] = F.mse_loss(batch.returns, values)
        return loss, stats

    def _record_update(self, means: dict[str, float], clip_range: float, clip_range_vf: float | None) -> None:
        """Record what SB3 records, under its names."""
        self.logger.record("train/entropy_loss", means["entropy_loss"])
        self.logger.record("train/policy_gradient_loss", means["policy_loss"])
        self.logger.record("train/value_loss", means["value_loss"])
        self.logger.record("train/approx_kl", means["approx_kl"])
        self.logger.record("train/clip_fraction", means["clip_fraction"])
        self.logger.record("train/loss", means["last_loss"])
        self.logger.record("train/explained_variance", means["explained_variance"])
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", th.exp(self.policy.log_std).mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", clip_range)
        if clip_range_vf is not None:
            self.logger.record("train/clip_range_vf", clip_range_vf)
        self.update_stats = {
            name: means[name] for name in ("gradients_global_norm", "vf_loss_unclipped") if name in means
        }
        self.update_stats.setdefault("vf_loss_unclipped", means["value_loss"])


def _means_by_name(minibatches: list[dict[str, th.Tensor]]) -> dict[str, float]:
    """Return the mean of each statistic over minibatches, with one transfer from the device per statistic."""
    names = minibatches[0]
    return {
        name: float(
            np.mean(th.stack([stats[name] for stats in minibatches if name in stats]).cpu().numpy(), dtype=np.float64)
        )
        for name in names
    }
