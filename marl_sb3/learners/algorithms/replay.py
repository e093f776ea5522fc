"""DQN, SAC, TD3 and DDPG: drop-ins for SB3's classes whose updates run in kernels where these cover the policy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import stable_baselines3
import torch as th
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.policies import BaseModel, BasePolicy
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from marl_sb3.learners.coverage import Reliance, replay_reliance, why_not_nets, why_not_policy
from marl_sb3.learners.fused_off_policy import (
    FusedOffPolicy,
    FusedReplayUpdate,
    batch_of,
    env_actions,
    features,
    standard_normal,
)
from marl_sb3.learners.kernel_tables import layer_table, linears, target_table
from marl_sb3.sb3.private import num_updates
from marl_sb3.types import Array

# --- DQN, and what it shares with QR-DQN -----------------------------------------------------------------------------


class DQN(FusedOffPolicy, stable_baselines3.DQN):
    """A drop-in for `stable_baselines3.DQN`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        reason = why_not_policy(self, DQNPolicy, ["q_net", "q_net_target"])
        if reason is not None:
            return reason
        net, target = self.q_net.q_net, self.q_net_target.q_net
        settings = [(self, ["q_net", "q_net_target"]), (self.policy, ["optimizer"])]
        return why_not_nets([net, target], self.policy.activation_fn) or replay_reliance(
            self, [(self.policy.optimizer, [net])], [target], settings
        )

    def _in_kernels_form(self, reliance: Reliance) -> QUpdate:
        return QUpdate(self, self.q_net, self.q_net.q_net, self.q_net_target.q_net, 0)


class QUpdate(FusedReplayUpdate):
    """Gradient steps of a net of Q values or of their quantiles.

    Args:
        algorithm: a DQN or QRDQN that the kernels cover.
        network: its network; `net` is the MLP in it, `target` that of the target network.
        quantiles: of QR-DQN; 0 for DQN.
    """

    def __init__(self, algorithm: Any, network: BaseModel, net: nn.Module, target: nn.Module, quantiles: int) -> None:
        from marl_sb3.kernels import q
        from marl_sb3.kernels.layers import LINEAR
        from marl_sb3.kernels.mlp import Net

        super().__init__(algorithm, q, [algorithm.policy.optimizer])
        self._kernel = q
        self._network = network
        self._quantiles = quantiles
        self._online, self._target = (Net(layer_table(linears(each)), self._hidden, LINEAR) for each in (net, target))

    def step(self, samples: Any, gradient_step: int) -> None:
        """See `FusedReplayUpdate.step`."""
        limit = self._algorithm.max_grad_norm
        batch = batch_of(samples, self._network, self._algorithm.gamma)
        max_grad_norm = math.inf if limit is None else float(limit)
        (optimizer,) = self._present
        loss, _ = self._kernel.update(self._online, self._target, optimizer, batch, self._quantiles, max_grad_norm)
        self._stats.append(loss)

    def recorded(self) -> dict[str, float]:
        """See `FusedReplayUpdate.recorded`."""
        return {"train/loss": float(np.mean(self._stats))}

    def explore(self, observations: Any) -> Array:
        """See `FusedReplayUpdate.explore`: epsilon-greedy."""
        algorithm = self._algorithm
        if np.random.rand() < algorithm.exploration_rate:  # noqa: NPY002 - SB3's stream of random numbers
            return np.array([algorithm.action_space.sample() for _ in range(len(observations))])
        inputs = features(self._network, observations)
        return self._kernel.greedy_actions(self._online, inputs, max(self._quantiles, 1))


# --- SAC, and what it shares with TQC --------------------------------------------------------------------------------

_EPSILON = 1e-6  # of SB3's distribution, and of the kernels


class SAC(FusedOffPolicy, stable_baselines3.SAC):
    """A drop-in for `stable_baselines3.SAC`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        return soft_actor_critic_coverage(self, SACPolicy)

    def _in_kernels_form(self, reliance: Reliance) -> SACUpdate:
        return SACUpdate(self)


def soft_actor_critic_coverage(algorithm: Any, policy_class: type[BasePolicy]) -> Reliance | str:
    """Return what the kernels rely on to train a SAC or TQC, or the reason why they cannot."""
    actor, critic, target = algorithm.actor, algorithm.critic, algorithm.critic_target
    reason = why_not_policy(algorithm, policy_class, ["actor", "critic", "critic_target"])
    if reason is not None:
        return reason
    distribution = actor.action_dist
    if type(distribution) is not SquashedDiagGaussianDistribution or distribution.epsilon != _EPSILON:
        return f"distribution {type(distribution).__name__}"
    activation, critics = algorithm.policy.activation_fn, [*critic.q_networks, *target.q_networks]
    reason = why_not_nets([actor.latent_pi], activation, last=(nn.Linear, activation))
    learned = algorithm.ent_coef_optimizer is not None
    return (
        reason
        or why_not_nets([actor.mu, actor.log_std, *critics], activation)
        or replay_reliance(
            algorithm,
            [
                (actor.optimizer, [actor.latent_pi, actor.mu, actor.log_std]),
                (critic.optimizer, [*critic.q_networks]),
            ],
            [*target.q_networks],
            [
                (algorithm, ["actor", "critic", "critic_target", "ent_coef_optimizer", "log_ent_coef"]),
                (actor, ["optimizer", "action_dist"]),
                (distribution, ["epsilon"]),
                (critic, ["optimizer"]),
            ],
            [(algorithm.ent_coef_optimizer, algorithm.log_ent_coef)] if learned else [],
        )
    )


class SACUpdate(FusedReplayUpdate):
    """Gradient steps of actor, critics and entropy coefficient.

    Args:
        algorithm: a SAC or TQC that the kernels cover.
    """

    def __init__(self, algorithm: Any) -> None:
        from marl_sb3.kernels import sac
        from marl_sb3.kernels.layers import LINEAR
        from marl_sb3.kernels.mlp import Net
        from marl_sb3.kernels.replay import Critics

        learned = [] if algorithm.ent_coef_optimizer is None else [algorithm.ent_coef_optimizer]
        super().__init__(algorithm, sac, [algorithm.actor.optimizer, algorithm.critic.optimizer, *learned])
        self._kernel = sac
        actor, hidden = algorithm.actor, self._hidden
        self._actor = sac.Actor(
            Net(layer_table(linears(actor.latent_pi)), hidden, hidden),
            Net(layer_table([actor.mu]), LINEAR, LINEAR),
            Net(layer_table([actor.log_std]), LINEAR, LINEAR),
        )
        critics = algorithm.critic, algorithm.critic_target
        self._critics, self._targets = (Critics(_critic_tables(each), hidden) for each in critics)
        self._moved = target_table(*([layer for net in each.q_networks for layer in linears(net)] for each in critics))

    def begin(self) -> None:
        """See `FusedReplayUpdate.begin`."""
        super().begin()
        algorithm, learned = self._algorithm, self._present[2:]
        if learned:
            self._entropy = self._kernel.Entropy(learned[0], 0.0, float(algorithm.target_entropy))
        else:
            none = self._present[0]._replace(table=np.empty((0, 5), np.int64))
            self._entropy = self._kernel.Entropy(none, algorithm.ent_coef_tensor.item(), 0.0)
        of_net = getattr(algorithm, "top_quantiles_to_drop_per_net", None)  # of TQC
        self._dropped = -1 if of_net is None else int(of_net * algorithm.critic.n_critics)

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
                self._present[0],
                self._critics,
                self._targets,
                self._present[1],
                self._entropy,
                batch,
                noise,
                next_noise,
                self._dropped,
                self._moved if moves else self._moved[:0],
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
        return env_actions(algorithm, self._kernel.sampled_actions(self._actor, inputs, noise))


def _critic_tables(critic: Any) -> Array:
    """(critics, layers, 4) int64, see `Critics`."""
    return np.stack([layer_table(linears(net)) for net in critic.q_networks])


# --- TD3 and DDPG ----------------------------------------------------------------------------------------------------


class TD3(FusedOffPolicy, stable_baselines3.TD3):
    """A drop-in for `stable_baselines3.TD3`: same arguments, same logger keys, same files. See `TwoPaths`."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        actors, critics = [self.actor, self.actor_target], [self.critic, self.critic_target]
        reason = why_not_policy(self, TD3Policy, ["actor", "actor_target", "critic", "critic_target"])
        if reason is not None:
            return reason
        activation = self.policy.activation_fn
        return (
            why_not_nets([actor.mu for actor in actors], activation, last=(nn.Linear, nn.Tanh))
            or why_not_nets([net for critic in critics for net in critic.q_networks], activation)
            or replay_reliance(
                self,
                [(self.actor.optimizer, [self.actor.mu]), (self.critic.optimizer, [*self.critic.q_networks])],
                [self.actor_target.mu, *self.critic_target.q_networks],
                [
                    (self, ["actor", "actor_target", "critic", "critic_target"]),
                    (self.actor, ["optimizer"]),
                    (self.critic, ["optimizer"]),
                ],
            )
        )

    def _in_kernels_form(self, reliance: Reliance) -> TD3Update:
        return TD3Update(self)


class DDPG(TD3, stable_baselines3.DDPG):
    """A drop-in for `stable_baselines3.DDPG`: same arguments, same logger keys, same files. See `TwoPaths`."""


class TD3Update(FusedReplayUpdate):
    """Gradient steps of critics and actor.

    Args:
        algorithm: a TD3 or DDPG that the kernels cover.
    """

    def __init__(self, algorithm: Any) -> None:
        from marl_sb3.kernels import td3
        from marl_sb3.kernels.layers import TANH
        from marl_sb3.kernels.mlp import Net
        from marl_sb3.kernels.replay import Critics

        super().__init__(algorithm, td3, [algorithm.actor.optimizer, algorithm.critic.optimizer])
        self._kernel = td3
        critics = algorithm.critic, algorithm.critic_target
        actors = algorithm.actor, algorithm.actor_target
        self._actor, self._actor_target = (Net(layer_table(linears(each.mu)), self._hidden, TANH) for each in actors)
        self._critics, self._targets = (Critics(_critic_tables(each), self._hidden) for each in critics)
        self._moved = target_table(
            *(
                [layer for net in [*critic.q_networks, actor.mu] for layer in linears(net)]
                for critic, actor in zip(critics, actors, strict=True)
            )
        )

    def begin(self) -> None:
        """See `FusedReplayUpdate.begin`."""
        super().begin()
        self._updates_before = num_updates(self._algorithm)
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
                self._present[0],
                self._critics,
                self._targets,
                self._present[1],
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
