"""Updates of SAC and TQC by the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th

from marl_sb3.learners.coverage import ACTIVATIONS
from marl_sb3.learners.replay.fused.inputs import batch_of, env_actions, features, kernel_module, standard_normal
from marl_sb3.learners.tables import Tables, linears
from marl_sb3.types import Array


class SACUpdate:
    """Gradient steps of actor, critics and entropy coefficient, see `FusedReplayUpdate`.

    Args:
        algorithm: a SAC or TQC that the kernels cover.
    """

    def __init__(self, algorithm: Any) -> None:
        from marl_sb3.kernels.critics import Critics
        from marl_sb3.kernels.layers import LINEAR
        from marl_sb3.kernels.mlp import Net
        from marl_sb3.kernels.squashed_actor import Actor, sampled_actions

        self._kernel = kernel_module("sac")
        self._sampled_actions = sampled_actions
        self._algorithm = algorithm
        tables = self._tables = Tables()
        critics = algorithm.critic, algorithm.critic_target
        actor, hidden = algorithm.actor, ACTIVATIONS.index(algorithm.policy.activation_fn)
        self._actor = Actor(
            Net(tables.of_layers(linears(actor.latent_pi)), hidden, hidden),
            Net(tables.of_layers([actor.mu]), LINEAR, LINEAR),
            Net(tables.of_layers([actor.log_std]), LINEAR, LINEAR),
        )
        self._critics, self._targets = (
            Critics(np.stack([tables.of_layers(linears(net)) for net in each.q_networks]), hidden) for each in critics
        )
        self._moved = tables.of_targets(
            *([layer for net in critic.q_networks for layer in linears(net)] for critic in critics)
        )
        self._unmoved = self._moved[:0]

    @property
    def optimizers(self) -> list[th.optim.Optimizer]:
        """See `FusedReplayUpdate.optimizers`."""
        algorithm = self._algorithm
        learned = [] if algorithm.ent_coef_optimizer is None else [algorithm.ent_coef_optimizer]
        return [algorithm.actor.optimizer, algorithm.critic.optimizer, *learned]

    def begin(self) -> None:
        """See `FusedReplayUpdate.begin`."""
        from marl_sb3.kernels.mlp import Adam

        actor, critic, *learned = map(self._tables.of_adam, self.optimizers)
        self._actor_adam, self._critic_adam = actor, critic
        if learned:
            entropy = self._kernel.Entropy(learned[0], 0.0, float(self._algorithm.target_entropy))
        else:
            fixed = Adam(np.empty((0, 5), np.int64), 0.0, 0.0, 0.0, 0.0)
            entropy = self._kernel.Entropy(fixed, self._algorithm.ent_coef_tensor.item(), 0.0)
        self._entropy = entropy
        self._dropped = self._dropped_quantiles()
        self._stats: list[Array] = []

    def _dropped_quantiles(self) -> int:
        """Return how many quantiles of all critics together TQC leaves out; -1 for SAC."""
        of_net = getattr(self._algorithm, "top_quantiles_to_drop_per_net", None)
        return -1 if of_net is None else int(of_net * self._algorithm.critic.n_critics)

    def step(self, samples: Any, gradient_step: int) -> None:
        """See `FusedReplayUpdate.step`."""
        algorithm = self._algorithm
        batch = batch_of(samples, algorithm.actor, algorithm.gamma)
        shape = batch.actions.shape
        noise, next_noise = standard_normal(*shape), standard_normal(*shape)
        moves = gradient_step % algorithm.target_update_interval == 0
        self._stats.append(
            self._kernel.update(
                self._actor,
                self._actor_adam,
                self._critics,
                self._targets,
                self._critic_adam,
                self._entropy,
                batch,
                noise,
                next_noise,
                self._dropped,
                self._moved if moves else self._unmoved,
                float(algorithm.tau),
            )
        )

    def recorded(self) -> dict[str, float]:
        """See `FusedReplayUpdate.recorded`."""
        kernel, means = self._kernel, np.mean(self._stats, axis=0)
        found = {
            "train/ent_coef": means[kernel.ENT_COEF],
            "train/actor_loss": means[kernel.ACTOR_LOSS],
            "train/critic_loss": means[kernel.CRITIC_LOSS],
        }
        if len(self.optimizers) == 3:
            found["train/ent_coef_loss"] = means[kernel.ENT_COEF_LOSS]
        return {name: float(value) for name, value in found.items()}

    def explore(self, observations: Any) -> Array:
        """See `FusedReplayUpdate.explore`: actions drawn from the actor's distributions."""
        algorithm = self._algorithm
        inputs = features(algorithm.actor, observations)
        noise = standard_normal(len(inputs), int(np.prod(algorithm.action_space.shape)))
        return env_actions(algorithm, self._sampled_actions(self._actor, inputs, noise))
