"""Run whole updates of TRPO on the kernels. Import this only where kernels are used; see `fused_policy`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
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


class FusedTrustRegionPolicy(FusedPolicy):
    """A policy whose optimizer trains the critic alone: `parameters` are the critic's.

    Attributes:
        of_actor: the other ones, which the actor's step moves, in the order of the kernel.
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__(policy)
        everything, self.parameters = self.parameters, parameters_of(self._layers[1])
        of_critic = {*map(id, self.parameters)}
        self.of_actor = [each for each in everything if id(each) not in of_critic]


class FusedTrustRegionUpdate(FusedRolloutUpdate):
    """An update of TRPO or MaskableTRPO by the kernels; `n_epochs` is 1, since the actor takes one step."""

    _fused: FusedTrustRegionPolicy

    def __init__(self, algorithm: Any, fused: FusedTrustRegionPolicy) -> None:
        self._algorithm = algorithm
        self._outcome = np.zeros(4)  # see `kernels.trpo`
        super().__init__(algorithm, fused)

    @override
    def _prepare(
        self, optimizer: Optimizer, orders: Array, bounds: Array
    ) -> tuple[Callable[[Array, int, int], int], float, int]:
        note_compiling(trpo.train, "the update of TRPO: about 9 s of one core")
        algorithm, fused, rollout = self._algorithm, self._fused, self._samples
        # The surrogate is that of PPO without clipping; `target_kl` ends no update.
        self.settings = self.settings._replace(clipped=True, clip_range=np.inf, vf_coef=1.0, kl_limit=np.inf)
        region = trpo.Region(
            int(algorithm.cg_max_steps),
            float(algorithm.cg_damping),
            float(algorithm.line_search_shrinking_factor),
            int(algorithm.line_search_max_iter),
            float(algorithm.target_kl),
        )
        samples = self._samples_of_actor(orders[0, :: algorithm.sub_sampling_factor])
        moved = fused.copies.addresses()
        table = np.array([(each.numel(), moved.get(each.data_ptr(), each.data_ptr())) for each in fused.of_actor])
        noise = self._noise()
        size, epochs = orders.shape[1], algorithm.n_critic_updates
        critics_orders = np.array([self._draw_order(size) for _ in range(epochs)], np.int64).reshape(epochs, size)
        self.samples_drawn += epochs * size
        self._stats = np.zeros((epochs * self._minibatches, NUM_STATS))
        nets, more = fused.nets, (counters(2), self._outcome)
        arguments = (
            nets,
            table,
            optimizer,
            samples,
            rollout,
            noise,
            critics_orders,
            bounds,
            self.settings,
            region,
            *more,
        )
        flops = 6.0 * sum(each.numel() for each in fused.parameters) * int(np.diff(bounds).max())
        return partial(trpo.train, *arguments), flops, 1 if len(nets.trunk.table) else 2

    def _samples_of_actor(self, kept: Array) -> Samples:
        """Return these of the samples, with advantages as sb3-contrib's objective has them."""
        (indices, floats), *others = self._samples
        samples = Samples(Inputs(indices[kept], floats[kept]), *(each[kept] if len(each) else each for each in others))
        advantages = th.from_numpy(samples.advantages)
        if self.settings.normalize_advantage:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return samples._replace(advantages=advantages.numpy())

    def _noise(self) -> FloatArray:
        """Draw where the conjugate gradients begin, as sb3-contrib does, in the order of the kernel's parameters."""
        policy, of_actor, moved = self._fused.policy, self._fused.of_actor, self._fused.copies.addresses()
        known = {*map(id, of_actor)}
        in_order = [each for each in policy.parameters() if id(each) in known]
        drawn = th.randn(sum(each.numel() for each in in_order)).split([each.numel() for each in in_order])
        parts = {id(each): part.view_as(each) for each, part in zip(in_order, drawn, strict=True)}
        turned = (parts[id(each)].T if each.data_ptr() in moved else parts[id(each)] for each in of_actor)
        return th.cat([part.flatten() for part in turned]).numpy()

    @override
    def _run_in_thread(self, thread: int, threads: int) -> None:
        self._done = self._train(self._stats, thread, threads)  # which task a thread takes is open: they share these

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
