"""Run whole updates of TRPO on the kernels. Import this only where kernels are used; see `fused_policy`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.utils import explained_variance
from typing_extensions import override

from marl_sb3.compiling import note_compiling
from marl_sb3.core.on_policy.rollout import flat_samples
from marl_sb3.extensions.fast.fused_policy import FusedPolicy, FusedRolloutUpdate
from marl_sb3.extensions.fast.kernel_tables import parameters_of
from marl_sb3.extensions.fast.kernels import trpo
from marl_sb3.extensions.fast.kernels.mlp import Inputs
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer
from marl_sb3.extensions.fast.kernels.ppo import NUM_STATS, VALUE_LOSS, Samples
from marl_sb3.extensions.fast.kernels.threads import counters
from marl_sb3.types import Array, FloatArray


class FusedTrustRegionUpdate(FusedRolloutUpdate):
    """An update of TRPO or MaskableTRPO by the kernels; the optimizer trains the critic alone."""

    def __init__(self, algorithm: Any, fused: FusedPolicy) -> None:
        self._algorithm, self._outcome = algorithm, np.zeros(4)  # see `kernels.trpo`
        of_critic = copy(fused)
        of_critic.parameters = parameters_of(fused._layers[1])
        super().__init__(algorithm, of_critic)  # draws the order of the actor's samples, as of an only epoch

    @override
    def _prepare(
        self, optimizer: Optimizer, orders: Array, bounds: Array
    ) -> tuple[Callable[[Array, int, int], int], float, int]:
        note_compiling(trpo.train, "the update of TRPO: about 9 s of one core")
        fused, size, epochs = self._fused, orders.shape[1], self._algorithm.n_critic_updates
        # The surrogate is that of PPO without clipping; `target_kl` ends no update.
        self.settings = self.settings._replace(clipped=True, clip_range=np.inf, vf_coef=1.0, kl_limit=np.inf)
        actor = self._actor(orders[0, :: self._algorithm.sub_sampling_factor])
        critics_orders = np.array([self._draw_order(size) for _ in range(epochs)], np.int64).reshape(epochs, size)
        self.samples_drawn += epochs * size
        self._stats = np.zeros((epochs * self._minibatches, NUM_STATS))
        memory = counters(2), self._outcome, self._stats.copy()
        update = trpo.Update(actor, optimizer, self._samples, critics_orders, bounds, *memory)
        flops = 6.0 * sum(each.numel() for each in fused.parameters) * int(np.diff(bounds).max())
        return partial(trpo.train, update), flops, 1 if len(fused.nets.trunk.table) else 2

    def _actor(self, kept: Array) -> trpo.Actor:
        """Return the actor with these of the samples, and with the random numbers that sb3-contrib draws for it."""
        algorithm, fused, ((indices, floats), *others) = self._algorithm, self._fused, self._samples
        samples = Samples(Inputs(indices[kept], floats[kept]), *(each[kept] if len(each) else each for each in others))
        advantages = th.from_numpy(samples.advantages)
        if self.settings.normalize_advantage:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        of_critic, moved = {*map(id, fused.parameters)}, fused.copies.addresses()
        of_actor = [each for each in fused.policy.parameters() if id(each) not in of_critic]
        sizes = [each.numel() for each in of_actor]

        def vector(parts: Iterable[th.Tensor]) -> FloatArray:
            """Return a number for each value of these parameters, in the order in which the kernel has them."""
            shaped = (part.detach().view_as(each) for part, each in zip(parts, of_actor, strict=True))
            turned = (part.T if of.data_ptr() in moved else part for part, of in zip(shaped, of_actor, strict=True))
            return th.cat([part.flatten() for part in turned]).numpy()

        trunk, pi = (np.empty((3, len(kept) * int(net.table[:, 1].sum())), np.float32) for net in fused.nets[:2])
        return trpo.Actor(
            fused.nets,
            self.settings,
            np.array([(each.numel(), moved.get(each.data_ptr(), each.data_ptr())) for each in of_actor]),
            vector(of_actor),
            vector(th.split(1e-4 * th.randn(sum(sizes)), sizes)),
            samples._replace(advantages=advantages.numpy()),
            np.zeros((2, len(kept), int(fused.nets.pi.table[-1, 1])), np.float32),
            trunk,
            pi,
            int(algorithm.cg_max_steps),
            float(algorithm.cg_damping),
            float(algorithm.line_search_shrinking_factor),
            int(algorithm.line_search_max_iter),
            float(algorithm.target_kl),
        )

    @override
    def means(self) -> dict[str, float]:
        values = flat_samples(self._rollout, "values").reshape(-1)
        return {
            "policy_objective": float(self._outcome[trpo.OBJECTIVE]),
            "value_loss": float(self._stats[: self._done, VALUE_LOSS].mean()),
            "kl_divergence_loss": float(self._outcome[trpo.DIVERGENCE]),
            "explained_variance": float(explained_variance(values, self._samples.returns)),
            "is_line_search_success": float(self._outcome[trpo.SUCCESS]),
        }
