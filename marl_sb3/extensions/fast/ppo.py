"""`stable_baselines3.PPO` and `A2C` with the same results, faster, and with more metrics; and their learners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import stable_baselines3
import torch as th
from torch.nn import functional as F
from typing_extensions import override

from marl_sb3.core.on_policy.on_policy import OnPolicyLearner
from marl_sb3.extensions.fast.fused_on_policy import FusedRollouts
from marl_sb3.extensions.fast.torch_updates import minibatches, replaced_methods


class PPO(FusedRollouts, stable_baselines3.PPO):
    """A drop-in for `stable_baselines3.PPO`: same arguments, same logger keys, same files.

    The *fused* path runs whole updates of plain MLPs in compiled kernels, see `TwoPaths`.
    """

    # of the latest update, means over its minibatches: `gradients_global_norm` (before clipping) and
    # `vf_loss_unclipped`, if the loss is another one
    update_stats: dict[str, float]

    @override
    def _train_torch(self) -> None:
        """Update by SB3's own `train`, and note what it does not record of its minibatches."""
        policy: Any = self.policy
        draw = minibatches(self, self.rollout_buffer)
        evaluate, parameters = policy.evaluate_actions, policy.parameters
        found: dict[str, list[th.Tensor]] = {"gradients_global_norm": [], "vf_loss_unclipped": []}
        latest: list[Any] = [None]
        is_evaluated = [False]  # whether the policy has evaluated the minibatch, whose gradients are clipped next

        def get(batch_size: int) -> Iterator[Any]:
            for latest[0] in draw(batch_size):
                is_evaluated[0] = False
                yield latest[0]

        def evaluate_actions(*arguments: Any, **settings: Any) -> Any:
            values, log_probs, entropy = evaluate(*arguments, **settings)
            if self.clip_range_vf is not None:
                found["vf_loss_unclipped"].append(F.mse_loss(latest[0].returns, values.detach().flatten()))
            is_evaluated[0] = True
            return values, log_probs, entropy

        def with_gradients(*arguments: Any, **settings: Any) -> Iterator[th.nn.Parameter]:
            if is_evaluated[0]:  # SB3 asks for the parameters when their gradients are about to be clipped
                is_evaluated[0] = False
                gradients = [each.grad for each in parameters() if each.grad is not None]
                found["gradients_global_norm"].append(th.nn.utils.get_total_norm(gradients))
            of_policy: Iterator[th.nn.Parameter] = parameters(*arguments, **settings)
            return of_policy

        own = (self.rollout_buffer, "get", get), (policy, "evaluate_actions", evaluate_actions)
        with replaced_methods(*own, (policy, "parameters", with_gradients)):
            super()._train_torch()
        self.update_stats = {
            name: float(np.mean(th.stack(each).cpu().numpy(), dtype=np.float64)) for name, each in found.items() if each
        }

    @override
    def record_update(self, means: Mapping[str, float], clip_range: float) -> None:
        super().record_update(means, clip_range)
        self.update_stats = {
            name: means[name] for name in ("gradients_global_norm", "vf_loss_unclipped") if name in means
        }


class PPOLearner(OnPolicyLearner):
    """Trains by PPO, which leaves the advantage of a minibatch of one as it is."""

    least_transitions = 1


class A2C(FusedRollouts, stable_baselines3.A2C):
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
