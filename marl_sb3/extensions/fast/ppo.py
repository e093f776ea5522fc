"""`stable_baselines3.PPO` and `A2C` with the same results, faster, and with more metrics; and their learners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples
from stable_baselines3.common.utils import explained_variance
from torch.nn import functional as F
from typing_extensions import override

from marl_sb3.core.on_policy import MaskedDictRolloutBuffer, MaskedRolloutBuffer, OnPolicyLearner, flat_samples
from marl_sb3.core.vec_env import map_arrays
from marl_sb3.extensions.fast.coverage import has_replaced_methods, replaced_method
from marl_sb3.extensions.fast.fused_on_policy import FusedOnPolicy, FusedRollouts
from marl_sb3.output import print_text
from marl_sb3.types import Array

_KNOWN_BUFFERS = (RolloutBuffer, DictRolloutBuffer, MaskedRolloutBuffer, MaskedDictRolloutBuffer)


class DeviceRollout:
    """The samples of a rollout buffer as tensors, and minibatches of them in the order that SB3 would draw.

    Args:
        rollout: a full buffer. If its class is unknown or its methods are replaced, its `get` makes the minibatches.
    """

    def __init__(self, rollout: Any, device: th.device) -> None:
        self._rollout = rollout
        is_replaced = has_replaced_methods(rollout) or any(map(replaced_method, _KNOWN_BUFFERS))
        self._is_known = type(rollout) in _KNOWN_BUFFERS and not is_replaced
        self.values: Array = flat_samples(rollout, "values").reshape(-1)  # (samples,) the values of the rollout
        self.returns: Array = flat_samples(rollout, "returns").reshape(-1)  # (samples,) its returns
        if not self._is_known:
            return
        actions = flat_samples(rollout, "actions").astype(np.float32, copy=False)
        log_probs, advantages = (flat_samples(rollout, name).reshape(-1) for name in ("log_probs", "advantages"))
        columns = actions, self.values, log_probs, advantages, self.returns  # as in `RolloutBufferSamples`
        to_device: Any = partial(th.as_tensor, device=device)
        self._columns = [to_device(column) for column in columns]
        self._observations: Any = map_arrays(to_device, flat_samples(rollout, "observations"))

    def minibatches(self, batch_size: int) -> Iterator[Any]:
        """Yield the minibatches of one pass over the samples, in SB3's order."""
        if not self._is_known:
            yield from self._rollout.get(batch_size)
            return
        samples = len(self.returns)
        kind: Any = DictRolloutBufferSamples if isinstance(self._observations, dict) else RolloutBufferSamples
        # SB3's stream of random numbers.
        order = th.as_tensor(np.random.permutation(samples), device=self._columns[0].device)  # noqa: NPY002
        for start in range(0, samples, batch_size):
            chosen = order[start : start + batch_size]
            if hasattr(self._rollout, "samples_drawn"):
                self._rollout.samples_drawn += len(chosen)
            observations = map_arrays(lambda tensor, chosen=chosen: tensor[chosen], self._observations)  # type: ignore[misc]
            yield kind(observations, *(column[chosen] for column in self._columns))


class PPO(FusedOnPolicy, FusedRollouts, stable_baselines3.PPO):
    """A drop-in for `stable_baselines3.PPO`: same arguments, same logger keys, same files.

    The *fused* path runs whole updates of plain MLPs in compiled kernels, see `TwoPaths`.
    """

    # of the latest update, means over its minibatches: `gradients_global_norm` (before clipping) and
    # `vf_loss_unclipped`
    update_stats: dict[str, float]

    def _train_torch(self) -> None:
        """Update by PyTorch, with the same operations as SB3's `ppo.py`.

        Statistics stay tensors until the end, where SB3 waits for the device five times in each minibatch. A `train`
        that somebody has put into SB3's class updates itself.
        """
        if replaced_method(stable_baselines3.PPO) is not None:
            super()._train_torch()
            return
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
        self.record_update(means, clip_range)
        if clip_range_vf is not None:
            self.logger.record("train/clip_range_vf", clip_range_vf)

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
                    print_text(f"Early stopping at step {epoch} due to reaching max kl: {stats['approx_kl']:.2f}")
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

    @override
    def record_update(self, means: Mapping[str, float], clip_range: float) -> None:
        super().record_update(means, clip_range)
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


class PPOLearner(OnPolicyLearner):
    """Trains by PPO, which leaves the advantage of a minibatch of one as it is."""

    least_transitions = 1


class A2C(FusedOnPolicy, FusedRollouts, stable_baselines3.A2C):
    """A drop-in for `stable_baselines3.A2C` (Mnih et al. 2016): same arguments, same logger keys, same files.

    The *fused* path runs the update of a plain MLP in PPO's compiled kernels, see `TwoPaths`.
    """

    @override
    def record_update(self, means: Mapping[str, float], clip_range: float) -> None:
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name in ("explained_variance", "entropy_loss", "policy_loss", "value_loss"):
            self.logger.record(f"train/{name}", means[name])
        self._record_std()


class A2CLearner(OnPolicyLearner):
    """Trains by A2C. Its rollouts are short: as in SB3, metrics are reported once per hundred rollouts."""

    rollouts_per_report: ClassVar[int] = 100
    takes_common_steps: ClassVar[bool] = False
