"""Updates of TD3 and DDPG by the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th

from marl_sb3.learners.coverage import ACTIVATIONS
from marl_sb3.learners.replay.fused.inputs import batch_of, env_actions, features, kernel_module
from marl_sb3.learners.tables import Tables, linears
from marl_sb3.sb3.private import num_updates
from marl_sb3.types import Array


class TD3Update:
    """Gradient steps of critics and actor, see `FusedReplayUpdate`.

    Args:
        algorithm: a TD3 or DDPG that the kernels cover.
    """

    def __init__(self, algorithm: Any) -> None:
        from marl_sb3.kernels.critics import Critics
        from marl_sb3.kernels.layers import TANH
        from marl_sb3.kernels.mlp import Net

        self._kernel = kernel_module("td3")
        self._algorithm = algorithm
        tables = self._tables = Tables()
        critics = algorithm.critic, algorithm.critic_target
        actors = algorithm.actor, algorithm.actor_target
        hidden = ACTIVATIONS.index(algorithm.policy.activation_fn)
        self._actor, self._actor_target = (Net(tables.of_layers(linears(actor.mu)), hidden, TANH) for actor in actors)
        self._critics, self._targets = (
            Critics(np.stack([tables.of_layers(linears(net)) for net in each.q_networks]), hidden) for each in critics
        )
        self._moved = tables.of_targets(
            *(
                [layer for net in [*critic.q_networks, actor.mu] for layer in linears(net)]
                for critic, actor in zip(critics, actors, strict=True)
            )
        )

    @property
    def optimizers(self) -> list[th.optim.Optimizer]:
        """See `FusedReplayUpdate.optimizers`."""
        return [self._algorithm.actor.optimizer, self._algorithm.critic.optimizer]

    def begin(self) -> None:
        """See `FusedReplayUpdate.begin`."""
        self._actor_adam, self._critic_adam = map(self._tables.of_adam, self.optimizers)
        self._updates_before = num_updates(self._algorithm)
        self._stats: list[Array] = []
        self._with_actor: list[bool] = []

    def step(self, samples: Any, gradient_step: int) -> None:
        """See `FusedReplayUpdate.step`."""
        algorithm = self._algorithm
        batch = batch_of(samples, algorithm.actor, algorithm.gamma)
        noise = th.empty(batch.actions.shape).normal_(0, algorithm.target_policy_noise).numpy()
        self._with_actor.append((self._updates_before + gradient_step + 1) % algorithm.policy_delay == 0)
        self._stats.append(
            self._kernel.update(
                self._actor,
                self._actor_target,
                self._actor_adam,
                self._critics,
                self._targets,
                self._critic_adam,
                batch,
                self._kernel.Smoothing(noise, float(algorithm.target_noise_clip)),
                self._with_actor[-1],
                self._moved,
                float(algorithm.tau),
            )
        )

    def recorded(self) -> dict[str, float]:
        """See `FusedReplayUpdate.recorded`; the actor's loss is missing if it was not updated."""
        kernel, stats = self._kernel, np.array(self._stats)
        actor_losses = stats[self._with_actor, kernel.ACTOR_LOSS]
        found = {"train/critic_loss": float(stats[:, kernel.CRITIC_LOSS].mean())}
        return {"train/actor_loss": float(actor_losses.mean()), **found} if len(actor_losses) else found

    def explore(self, observations: Any) -> Array:
        """See `FusedReplayUpdate.explore`: the actor's actions, to which the rollout adds noise."""
        algorithm = self._algorithm
        return env_actions(algorithm, self._kernel.chosen_actions(self._actor, features(algorithm.actor, observations)))
