"""`stable_baselines3.PPO` and `A2C` with the same results, faster, and with more metrics; and their learners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np
import stable_baselines3
import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples
from torch.nn import functional as F
from typing_extensions import override

from marl_sb3.core.on_policy.on_policy import OnPolicyLearner
from marl_sb3.core.on_policy.rollout import MaskedDictRolloutBuffer, MaskedRolloutBuffer, flat_samples
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.extensions.fast.coverage import has_replaced_methods, replaced_method
from marl_sb3.extensions.fast.fused_on_policy import FusedRollouts

_KNOWN_BUFFERS = (RolloutBuffer, DictRolloutBuffer, MaskedRolloutBuffer, MaskedDictRolloutBuffer)
_SAMPLED = ("actions", "values", "log_probs", "advantages", "returns")  # in the order of `RolloutBufferSamples`


@contextmanager
def replaced_methods(*replacements: tuple[Any, str, Callable[..., Any]]) -> Iterator[None]:
    """Let functions take the places of methods inside the context: (object, name of its method, function) each."""
    before = [(vars(owner), name, vars(owner).get(name)) for owner, name, _ in replacements]
    for owner, name, function in replacements:
        vars(owner)[name] = function
    try:
        yield
    finally:
        for members, name, former in before:
            if former is None:
                del members[name]
            else:
                members[name] = former


def minibatches_on(device: th.device, rollout: Any) -> Callable[..., Iterable[Any]]:
    """Return the `get` of a full rollout buffer; for a GPU one that copies the samples to it once, not in each pass.

    Minibatches have SB3's order. The `get` of a class that is unknown, or whose methods are replaced, is left as it is.
    """
    is_replaced = has_replaced_methods(rollout) or any(map(replaced_method, _KNOWN_BUFFERS))
    if device.type == "cpu" or type(rollout) not in _KNOWN_BUFFERS or is_replaced:
        return rollout.get  # type: ignore[no-any-return]
    for name in ("observations", *_SAMPLED):  # as `get` does
        setattr(rollout, name, flat_samples(rollout, name))
    rollout.generator_ready = True
    to_device: Any = partial(th.as_tensor, device=device)
    seen: Any = map_arrays(to_device, rollout.observations)
    actions, *numbers = (to_device(getattr(rollout, name)) for name in _SAMPLED)
    columns = [actions.float(), *(column.reshape(-1) for column in numbers)]
    kind: Any = DictRolloutBufferSamples if isinstance(seen, dict) else RolloutBufferSamples

    def get(batch_size: int) -> Iterator[Any]:
        order = th.as_tensor(np.random.permutation(len(actions)), device=device)  # noqa: NPY002 - SB3's stream
        for chosen in order.split(batch_size):  # type: ignore[no-untyped-call]
            if hasattr(rollout, "samples_drawn"):
                rollout.samples_drawn += len(chosen)
            own = map_arrays(lambda tensor, chosen=chosen: tensor[chosen], seen)  # type: ignore[misc]
            yield kind(own, *(column[chosen] for column in columns))

    return get


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
        draw = minibatches_on(self.device, self.rollout_buffer)
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
