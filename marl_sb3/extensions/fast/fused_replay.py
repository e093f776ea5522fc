"""Act and update by the kernels, for algorithms with a replay buffer. Import this only where kernels are used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BaseModel
from typing_extensions import override

from marl_sb3.compiling import note_compiling
from marl_sb3.core.learners.learner import available_cores
from marl_sb3.core.sb3.private import num_updates
from marl_sb3.extensions.fast.coverage import ACTIVATIONS
from marl_sb3.extensions.fast.kernel_tables import OptimizerTable, layer_table, linears, target_table
from marl_sb3.extensions.fast.kernels import q, sac, td3
from marl_sb3.extensions.fast.kernels.layers import LINEAR, TANH
from marl_sb3.extensions.fast.kernels.mlp import Net
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer
from marl_sb3.extensions.fast.kernels.replay import Batch, Critics, Memory, memory
from marl_sb3.extensions.fast.kernels.threads import counters
from marl_sb3.extensions.fast.update_path import CHUNK_ROWS, MOST_CHUNKS, in_threads
from marl_sb3.types import Array, BoolArray, FloatArray

_NO_MASKS: BoolArray = np.empty((0, 0), np.bool_)
_WORTH_THREADS = 5e7  # floating-point operations, about a millisecond; another thread begins within 0.1


class FusedReplayUpdate:
    """Acts and updates in kernels, in the memory of the algorithm's networks and optimizers.

    Args:
        algorithm: one that the kernels cover; a new object is made when its modules or optimizers are replaced.
        kernel: the module of its kernels.
        optimizers: its optimizers.
    """

    compiling_s = 8  # of one core, about

    def __init__(self, algorithm: Any, kernel: ModuleType, optimizers: Sequence[th.optim.Optimizer]) -> None:
        self._kernel = kernel
        self._algorithm = algorithm
        self._hidden = ACTIVATIONS.index(algorithm.policy.activation_fn)
        self.optimizers = list(optimizers)  # those optimizers, whose learning rates follow the schedule
        self._tables = [OptimizerTable(optimizer) for optimizer in optimizers]
        self._present: list[Optimizer] = []
        self._stats: list[Any] = []
        self._memory: Memory | None = None  # of gradient steps; made anew for minibatches of another size

    def begin(self) -> None:
        """Begin an update, with the optimizers' present settings."""
        note_compiling(self._kernel.update, f"the update: about {self.compiling_s} s of one core")
        self._present = [table.present() for table in self._tables]
        self._stats = []

    def step(self, samples: Any, gradient_step: int) -> None:
        """Take one gradient step.

        Args:
            samples: a minibatch of the replay buffer.
            gradient_step: number of the step in this update, from 0.
        """
        raise NotImplementedError

    def _shared(self, critics: Critics, actions: Array, targets: int, parameters: int) -> Memory:
        """Return the memory of one more gradient step: a thread that comes late for another one finds that one done.

        Args:
            actions: (rows, n) of the minibatch.
            targets: numbers that each row of a critic learns from.
            parameters: of the actor.
        """
        rows, size = actions.shape
        if self._memory is None or self._memory.targets.shape != (rows, targets):
            chunks = max(1, min(MOST_CHUNKS, rows // CHUNK_ROWS))
            self._memory = memory(chunks, rows, size, critics, targets, parameters)
        return self._memory._replace(counters=counters(self._memory.notes.shape[1]))

    def _threads(self, shared: Memory, parameters: int) -> int:
        """Return how many threads a gradient step takes, by the number of the actor's parameters: critics are alike."""
        flops = 20.0 * shared.targets.shape[0] * parameters
        most = self._algorithm.update_threads or min(th.get_num_threads(), available_cores())
        return min(most, shared.notes.shape[1]) if flops > _WORTH_THREADS else 1

    def recorded(self) -> dict[str, float]:
        """Return what SB3 records of the update, under its names: means over the gradient steps."""
        raise NotImplementedError

    def explore(self, observations: Any) -> Array:
        """Choose actions as `predict` does that is not deterministic; with the same random numbers."""
        raise NotImplementedError


class QUpdate(FusedReplayUpdate):
    """Gradient steps of a net of Q values or of their quantiles.

    Args:
        algorithm: a DQN or QRDQN that the kernels cover.
    """

    compiling_s = 5

    def __init__(self, algorithm: Any) -> None:
        super().__init__(algorithm, q, [algorithm.policy.optimizer])
        self._network, _ = networks = algorithm.networks()
        self._quantiles: int = getattr(algorithm, "n_quantiles", 0)  # 0: DQN
        nets = (linears(getattr(network, algorithm.network_names[0])) for network in networks)
        self._online, self._target = (Net(layer_table(layers), self._hidden, LINEAR) for layers in nets)

    @override
    def step(self, samples: Any, gradient_step: int) -> None:
        limit = self._algorithm.max_grad_norm
        batch = batch_of(samples, self._network, self._algorithm.gamma)
        max_grad_norm = math.inf if limit is None else float(limit)
        masks = getattr(self._algorithm.replay_buffer, "drawn_masks", _NO_MASKS)
        nets = self._online, self._target, self._present[0]
        weights = self._algorithm.importance_weights(len(batch.rewards))
        drawn = q.Drawn(weights, np.empty_like(weights))
        loss, _ = q.update(*nets, batch, self._quantiles, max_grad_norm, masks, drawn)
        self._algorithm.note_errors(drawn.errors)
        self._stats.append(loss)

    @override
    def recorded(self) -> dict[str, float]:
        return {"train/loss": float(np.mean(self._stats))}

    def explore(self, observations: Any, action_masks: BoolArray | None = None) -> Array:
        """See `FusedReplayUpdate.explore`: epsilon-greedy, among those that (rows, actions) masks allow."""
        algorithm = self._algorithm
        if np.random.rand() < algorithm.exploration_rate:  # noqa: NPY002 - SB3's stream of random numbers
            each = [None] * len(observations) if action_masks is None else action_masks.astype(np.int8)
            return np.array([algorithm.action_space.sample(mask) for mask in each])
        return self.greedy(observations, action_masks)

    def greedy(self, observations: Any, action_masks: BoolArray | None = None) -> Array:
        """Choose the best actions, (rows,), among those that (rows, actions) masks allow; None: all."""
        masks = _NO_MASKS if action_masks is None else action_masks
        inputs = features(self._network, observations)
        return q.greedy_actions(self._online, inputs, max(self._quantiles, 1), np.ascontiguousarray(masks))


class SACUpdate(FusedReplayUpdate):
    """Gradient steps of actor, critics and entropy coefficient.

    Args:
        algorithm: a SAC or TQC that the kernels cover.
    """

    compiling_s = 10
    _sampled: tuple[sac.Sampled, sac.Sampled] | None = None  # memory for now and next; made anew with another size

    def __init__(self, algorithm: Any) -> None:
        learned = [] if algorithm.ent_coef_optimizer is None else [algorithm.ent_coef_optimizer]
        super().__init__(algorithm, sac, [algorithm.actor.optimizer, algorithm.critic.optimizer, *learned])
        actor, hidden = algorithm.actor, self._hidden
        self._actor = sac.ActorNet(
            Net(layer_table(linears(actor.latent_pi)), hidden, hidden),
            Net(layer_table([actor.mu]), LINEAR, LINEAR),
            Net(layer_table([actor.log_std]), LINEAR, LINEAR),
        )
        critics = algorithm.critic, algorithm.critic_target
        self._critics, self._targets = (_critics(each, hidden) for each in critics)
        self._moved = target_table(*(each.q_networks for each in critics))
        heads = 2 * int(self._actor.mean.table[0, 1])
        self._actor_sizes = _sizes(self._actor.latent, heads), int(self._actor.latent.table[:, 1].sum())

    @override
    def begin(self) -> None:
        super().begin()
        algorithm, learned = self._algorithm, self._present[2:]
        if learned:
            self._entropy = sac.Entropy(learned[0], 0.0, float(algorithm.target_entropy))
        else:
            none = self._present[0]._replace(table=np.empty((0, 5), np.int64))
            self._entropy = sac.Entropy(none, algorithm.ent_coef_tensor.item(), 0.0)
        of_net = getattr(algorithm, "top_quantiles_to_drop_per_net", None)  # of TQC
        self._quantiles = of_net is not None
        self._targets_per_row = 1
        if of_net is not None:
            self._targets_per_row = int(self._critics.tables[:, -1, 1].sum() - of_net * algorithm.critic.n_critics)

    @override
    def step(self, samples: Any, gradient_step: int) -> None:
        algorithm = self._algorithm
        batch = batch_of(samples, algorithm.actor, algorithm.gamma)
        shape = batch.actions.shape
        noise, next_noise = standard_normal(*shape), standard_normal(*shape)
        moved = self._moved if gradient_step % algorithm.target_update_interval == 0 else self._moved[:0]
        actor_optimizer, critic_optimizer = self._present[:2]
        nets = self._actor, actor_optimizer, self._critics, self._targets, critic_optimizer
        settings = self._quantiles, moved, float(algorithm.tau)
        (rows, size), (parameters, outputs) = shape, self._actor_sizes
        if self._sampled is None or self._sampled[0].actions.shape != (rows, size):
            self._sampled = sac.sampled(rows, size, outputs), sac.sampled(rows, size, outputs)
        shared = self._shared(self._critics, batch.actions, self._targets_per_row, parameters)
        drawn, stats = sac.Drawn(*self._sampled, shared), np.full(sac.NUM_STATS, np.nan)
        self._stats.append(stats)
        arguments = *nets, self._entropy, batch, noise, next_noise, *settings, drawn, stats
        in_threads(lambda *thread: sac.update(*arguments, *thread), self._threads(shared, parameters))

    @override
    def recorded(self) -> dict[str, float]:
        means = np.mean(self._stats, axis=0)
        columns = {"ent_coef": sac.ENT_COEF, "actor_loss": sac.ACTOR_LOSS, "critic_loss": sac.CRITIC_LOSS}
        if len(self.optimizers) == 3:
            columns["ent_coef_loss"] = sac.ENT_COEF_LOSS
        return {f"train/{name}": float(means[column]) for name, column in columns.items()}

    def explore(self, observations: Any) -> Array:
        """See `FusedReplayUpdate.explore`: actions drawn from the actor's distributions."""
        algorithm = self._algorithm
        inputs = features(algorithm.actor, observations)
        noise = standard_normal(len(inputs), int(np.prod(algorithm.action_space.shape)))
        return unscaled_actions(algorithm, sac.sampled_actions(self._actor, inputs, noise))


def _critics(critic: Any, hidden: int) -> Critics:
    return Critics(np.stack([layer_table(linears(net)) for net in critic.q_networks]), hidden)


def _sizes(net: Net, heads: int = 0) -> int:
    """Return the number of parameters of a net, and of `heads` linear outputs on top of it."""
    inputs, outputs = net.table[:, 0], net.table[:, 1]
    return int(((inputs + 1) * outputs).sum() + heads * (outputs[-1] + 1))


class TD3Update(FusedReplayUpdate):
    """Gradient steps of critics and actor.

    Args:
        algorithm: a TD3 or DDPG that the kernels cover.
    """

    def __init__(self, algorithm: Any) -> None:
        super().__init__(algorithm, td3, [algorithm.actor.optimizer, algorithm.critic.optimizer])
        critics = algorithm.critic, algorithm.critic_target
        actors = algorithm.actor, algorithm.actor_target
        self._actor, self._actor_target = (Net(layer_table(linears(each.mu)), self._hidden, TANH) for each in actors)
        self._critics, self._targets = (_critics(each, self._hidden) for each in critics)
        nets = ([*critic.q_networks, actor.mu] for critic, actor in zip(critics, actors, strict=True))
        self._moved = target_table(*nets)

    @override
    def begin(self) -> None:
        super().begin()
        self._updates_before = num_updates(self._algorithm)
        self._with_actor: list[bool] = []

    @override
    def step(self, samples: Any, gradient_step: int) -> None:
        algorithm = self._algorithm
        batch = batch_of(samples, algorithm.actor, algorithm.gamma)
        noise = th.empty(batch.actions.shape).normal_(0, algorithm.target_policy_noise).numpy()
        self._with_actor.append((self._updates_before + gradient_step + 1) % algorithm.policy_delay == 0)
        smoothing, tau = td3.Smoothing(noise, float(algorithm.target_noise_clip)), float(algorithm.tau)
        actor_optimizer, critic_optimizer = self._present
        nets = self._actor, self._actor_target, actor_optimizer, self._critics, self._targets, critic_optimizer
        shared = self._shared(self._critics, batch.actions, 1, parameters := _sizes(self._actor))
        stats = np.full(td3.NUM_STATS, np.nan)
        self._stats.append(stats)
        arguments = *nets, batch, smoothing, self._with_actor[-1], self._moved, tau, shared, stats
        in_threads(lambda *thread: td3.update(*arguments, *thread), self._threads(shared, parameters))

    def recorded(self) -> dict[str, float]:
        """See `FusedReplayUpdate.recorded`; the actor's loss is missing if it was not updated."""
        stats = np.array(self._stats)
        actor_losses = stats[self._with_actor, td3.ACTOR_LOSS]
        found = {"train/critic_loss": float(stats[:, td3.CRITIC_LOSS].mean())}
        return {"train/actor_loss": float(actor_losses.mean()), **found} if len(actor_losses) else found

    def explore(self, observations: Any) -> Array:
        """See `FusedReplayUpdate.explore`: the actor's actions, to which the rollout adds noise."""
        algorithm = self._algorithm
        return unscaled_actions(algorithm, td3.chosen_actions(self._actor, features(algorithm.actor, observations)))


# --- What the kernels take -------------------------------------------------------------------------------------------


def features(network: BaseModel, observations: Array | th.Tensor) -> FloatArray:
    """(rows, inputs) float32: what the first layer of a network sees of (rows, ...) observations."""
    if isinstance(network.observation_space, spaces.Box):
        array = observations.numpy() if isinstance(observations, th.Tensor) else observations
        return np.ascontiguousarray(array.reshape(len(array), -1), dtype=np.float32)
    with th.no_grad():
        extractor: Any = network.features_extractor
        seen: FloatArray = network.extract_features(th.as_tensor(observations), extractor).numpy()
    return seen


def batch_of(samples: Any, network: BaseModel, gamma: float) -> Batch:
    """Return a minibatch of SB3's replay buffers in the kernels' form."""
    discounts = gamma if samples.discounts is None else samples.discounts.numpy().reshape(-1)
    discounts = (1.0 - samples.dones.numpy().reshape(-1)) * discounts
    return Batch(
        features(network, samples.observations),
        samples.actions.numpy(),
        features(network, samples.next_observations),
        samples.rewards.numpy().reshape(-1),
        discounts.astype(np.float32, copy=False),
    )


def unscaled_actions(algorithm: Any, actions: FloatArray) -> Array:
    """Return (rows, n) actions from -1 to 1 as the env takes them, (rows, *action shape)."""
    unscaled: Array = algorithm.policy.unscale_action(actions.reshape(-1, *algorithm.action_space.shape))
    return unscaled


def standard_normal(rows: int, size: int) -> FloatArray:
    """(rows, size) float32 numbers, drawn as `torch.distributions.Normal` draws them."""
    noise: FloatArray = th.empty(rows, size).normal_().numpy()
    return noise
