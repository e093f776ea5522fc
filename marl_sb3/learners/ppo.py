"""`stable_baselines3.PPO` with the same results, fewer waits and more to report."""

from __future__ import annotations

from typing import Any

import numpy as np
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import explained_variance
from torch.nn import functional as F


class PPO(stable_baselines3.PPO):
    """A drop-in for `stable_baselines3.PPO`: same arguments, same weights bit for bit, same logger keys.

    Attributes:
        update_stats: of the latest update, means over its minibatches: `gradients_global_norm` (before clipping) and
            `vf_loss_unclipped`.
    """

    update_stats: dict[str, float]

    def train(self) -> None:
        """Update the policy from the rollout buffer; the loss is that of SB3's `ppo.py`, operation by operation.

        Statistics stay tensors until the end: SB3 waits for the device five times in each minibatch.
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        clip_range = self.clip_range(self._current_progress_remaining)  # type: ignore[operator]
        clip_range_vf = None
        if self.clip_range_vf is not None:
            clip_range_vf = self.clip_range_vf(self._current_progress_remaining)  # type: ignore[operator]
        minibatches: list[dict[str, th.Tensor]] = []
        for epoch in range(self.n_epochs):
            first_of_epoch = len(minibatches)
            finished = self._train_epoch(epoch, clip_range, clip_range_vf, minibatches)
            self._n_updates += 1
            if not finished:
                break
        self._log_update(minibatches, first_of_epoch, clip_range, clip_range_vf)

    def _train_epoch(
        self, epoch: int, clip_range: float, clip_range_vf: float | None, minibatches: list[dict[str, th.Tensor]]
    ) -> bool:
        """One pass over the rollout buffer; False if `target_kl` stopped it."""
        for batch in self.rollout_buffer.get(self.batch_size):
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

    def _log_update(
        self,
        minibatches: list[dict[str, th.Tensor]],
        first_of_epoch: int,
        clip_range: float,
        clip_range_vf: float | None,
    ) -> None:
        """Record what SB3 records, under its names; `first_of_epoch` is where the last epoch begins."""
        stats = _means_by_name(minibatches)
        last_epoch = _means_by_name(minibatches[first_of_epoch:])
        buffer = self.rollout_buffer
        self.logger.record("train/entropy_loss", stats["entropy_loss"])
        self.logger.record("train/policy_gradient_loss", stats["policy_loss"])
        self.logger.record("train/value_loss", stats["value_loss"])
        self.logger.record("train/approx_kl", last_epoch["approx_kl"])
        self.logger.record("train/clip_fraction", stats["clip_fraction"])
        self.logger.record("train/loss", minibatches[-1]["loss"].item())
        self.logger.record(
            "train/explained_variance", explained_variance(buffer.values.flatten(), buffer.returns.flatten())
        )
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", th.exp(self.policy.log_std).mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", clip_range)
        if clip_range_vf is not None:
            self.logger.record("train/clip_range_vf", clip_range_vf)
        self.update_stats = {
            "gradients_global_norm": stats.get("gradients_global_norm", np.nan),
            "vf_loss_unclipped": stats.get("vf_loss_unclipped", stats["value_loss"]),
        }


def _means_by_name(minibatches: list[dict[str, th.Tensor]]) -> dict[str, float]:
    """The mean over minibatches of each statistic, with one transfer from the device for each."""
    names = minibatches[0]
    return {
        name: float(
            np.mean(th.stack([stats[name] for stats in minibatches if name in stats]).cpu().numpy(), dtype=np.float64)
        )
        for name in names
    }
