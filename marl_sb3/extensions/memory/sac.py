"""RecurrentSAC: SAC whose actor and critics have a memory each, from sequences with stored states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import stable_baselines3
import torch as th
from stable_baselines3.common.distributions import Distribution, SquashedDiagGaussianDistribution
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN, Actor, SACPolicy
from typing_extensions import override

from marl_sb3.core.sb3.policies import with_arguments_of_bases, with_kin
from marl_sb3.extensions.memory.algorithms import WithMemory, minimise
from marl_sb3.extensions.memory.networks import MemoryNetwork, PolicyWithMemory, Remembering, Tensors
from marl_sb3.extensions.memory.sequences import Observed, SequenceBatch

# --- The policy ------------------------------------------------------------------------------------------------------


class RecurrentActor(Remembering, Actor):
    """SB3's `Actor` of SAC with a memory, without gSDE."""

    action_dist: SquashedDiagGaussianDistribution  # type: ignore[assignment]

    def gaussian(self, outputs: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Return mean and logarithm of the deviation of actions before they are squashed, (rows, numbers) each."""
        hidden = self.latent_pi(outputs)
        return self.mu(hidden), th.clamp(self.log_std(hidden), LOG_STD_MIN, LOG_STD_MAX)  # type: ignore[operator]

    @override
    def get_action_dist_params(self, obs: Any) -> tuple[th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        """See the method of SB3's actor; for (rows, ...) observations at the start of an episode."""
        rows = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        starts = th.ones(rows, dtype=th.bool, device=self.device)
        return *self.gaussian(self.step(obs, self.memory.initial(rows), starts)[0]), {}

    def sample(self, outputs: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Draw actions from -1 to 1, (T, B, numbers), with their log-probabilities, (T, B).

        Args:
            outputs: of the memory, (T, B, size).
        """
        actions, log_probs = self.action_dist.log_prob_from_params(*self.gaussian(outputs.flatten(0, 1)))
        return actions.reshape(*outputs.shape[:2], -1), log_probs.reshape(outputs.shape[:2])


class RecurrentCritic(Remembering, ContinuousCritic):
    """SB3's `ContinuousCritic` with a memory, which its Q networks share; actions come after it."""

    def values(self, outputs: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """Return the Q values of actions, (..., numbers) from -1 to 1, for (..., size) outputs: (..., critics)."""
        inputs = th.cat([outputs, actions], dim=-1)
        return th.cat([network(inputs) for network in self.q_networks], dim=-1)

    @override
    def forward(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, ...]:
        """Return the (rows, 1) Q values of each critic for (rows, ...) observations at the start of an episode."""
        states = self.memory.initial(len(actions))
        starts = th.ones(len(actions), dtype=th.bool, device=self.device)
        return th.split(self.values(self.step(obs, states, starts)[0], actions), 1, dim=1)


@with_arguments_of_bases("log_std_init", "use_expln", "clip_mean", "share_features_extractor")
class RecurrentSACPolicy(PolicyWithMemory, SACPolicy):
    """SB3's `SACPolicy` with memory: see there for the other arguments.

    Args:
        lstm_hidden_size: size of a layer of each memory: that of the actor, and that of the critics.
        n_lstm_layers: number of their layers.
        cell: `lstm` or `gru`.
    """

    actor: RecurrentActor
    critic: RecurrentCritic
    critic_target: RecurrentCritic

    @property
    def lstm_critic(self) -> MemoryNetwork:
        """The memory of the critics, as sb3-contrib's recurrent policies have it."""
        return self.critic.memory

    @property
    @override
    def num_states(self) -> int:
        return 4

    @override
    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> RecurrentActor:
        settings = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return RecurrentActor(memory_kwargs=self.memory_kwargs, **settings).to(self.device)

    @override
    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> RecurrentCritic:
        settings = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return RecurrentCritic(memory_kwargs=self.memory_kwargs, **settings).to(self.device)

    @override
    def remember(self, observations: Observed, states: Tensors, starts: th.Tensor) -> tuple[th.Tensor, Tensors]:
        outputs, after = self.actor.step(observations, states[:2], starts)
        of_critic = self.critic.step(observations, states[2:], starts)[1] if states[2:] else ()
        return outputs, (*after, *of_critic)

    @override
    def choose(self, outputs: th.Tensor, deterministic: bool) -> th.Tensor:
        return self.actor.action_dist.actions_from_params(*self.actor.gaussian(outputs), deterministic=deterministic)

    def get_distribution(
        self, obs: Observed, lstm_states: Tensors, episode_starts: th.Tensor
    ) -> tuple[Distribution, Tensors]:
        """Return the distribution of actions, and the state after them; see sb3-contrib's recurrent policies."""
        starts = episode_starts.reshape(lstm_states[0].shape[1], -1)[:, 0] > 0
        outputs, after = self.actor.step(obs, lstm_states, starts)
        return self.actor.action_dist.proba_distribution(*self.actor.gaussian(outputs)), after


# --- The algorithm ---------------------------------------------------------------------------------------------------


class RecurrentSAC(WithMemory, stable_baselines3.SAC):
    """SAC with LSTMs or GRUs, which learns from sequences of transitions: see `WithMemory`.

    The arguments are those of `stable_baselines3.SAC`, and these.

    Args:
        buffer_size: number of transitions that the replay buffer holds, each with the recurrent states before it: of
            the actor and of the critics.
        batch_size: number of sequences in a minibatch.
    """

    policy_aliases: ClassVar[dict[str, Any]] = with_kin(
        RecurrentSACPolicy, "RecurrentSAC", stable_baselines3.SAC.policy_aliases
    )
    policy: RecurrentSACPolicy
    actor: RecurrentActor
    critic: RecurrentCritic
    critic_target: RecurrentCritic

    @staticmethod
    @override
    def bytes_per_transition(values: Mapping[str, Any]) -> int:
        return 2 * WithMemory.bytes_per_transition(values)

    @override
    def optimizers(self) -> list[th.optim.Optimizer]:
        learned = [] if self.ent_coef_optimizer is None else [self.ent_coef_optimizer]
        return [self.actor.optimizer, self.critic.optimizer, *learned]

    @override
    def learn_from(self, batch: SequenceBatch, gradient_step: int) -> dict[str, float]:
        outputs = self.actor.unroll(batch, batch.states[:2])
        actions, log_probs = self.actor.sample(outputs[: len(batch.actions)])
        ent_coef, recorded = self._learn_entropy(batch, log_probs.detach())
        targets = self.targets(batch, outputs.detach(), ent_coef)
        critic_loss = self.critic_loss(batch, targets)
        minimise(critic_loss, self.critic.optimizer)
        actor_loss = self.actor_loss(batch, actions, log_probs, ent_coef)
        minimise(actor_loss, self.actor.optimizer)
        if gradient_step % self.target_update_interval == 0:
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        losses = {"actor_loss": actor_loss.item(), "critic_loss": critic_loss.item()}
        return {"ent_coef": ent_coef.item(), **losses, **recorded}

    def _learn_entropy(self, batch: SequenceBatch, log_probs: th.Tensor) -> tuple[th.Tensor, dict[str, float]]:
        """Return the entropy coefficient as it is; then take a step with it, if it is learned."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor, {}
        ent_coef = th.exp(self.log_ent_coef.detach())
        loss = -(self.log_ent_coef * (batch.weights * (log_probs + self.target_entropy)).sum()).mean()  # type: ignore[operator]
        minimise(loss, self.ent_coef_optimizer)
        return ent_coef, {"ent_coef_loss": loss.item()}

    @th.no_grad()
    def targets(self, batch: SequenceBatch, outputs: th.Tensor, ent_coef: th.Tensor) -> th.Tensor:
        """Return the (T, B) returns that the critics are to estimate, as in `stable_baselines3.SAC`.

        Args:
            outputs: of the actor's memory, for all observations of the batch.
        """
        actions, log_probs = self.actor.sample(outputs)
        of_critics = self.critic_target.values(self.critic_target.unroll(batch, batch.states[2:]), actions)
        following = of_critics.min(dim=-1).values - ent_coef * log_probs
        return batch.returns + batch.discounts * batch.after(following)

    def critic_loss(self, batch: SequenceBatch, targets: th.Tensor) -> th.Tensor:
        """Return half of the squared errors of the critics, summed over them."""
        outputs = self.critic.unroll(batch, batch.states[2:])[: len(batch.actions)]
        errors = self.critic.values(outputs, batch.actions) - targets[..., None]
        return 0.5 * (batch.weights[..., None] * errors**2).sum()

    def actor_loss(
        self, batch: SequenceBatch, actions: th.Tensor, log_probs: th.Tensor, ent_coef: th.Tensor
    ) -> th.Tensor:
        """Return the loss of (T, B, numbers) actions that the actor has drawn; the critics' memory gets no gradient."""
        with th.no_grad():
            outputs = self.critic.unroll(batch, batch.states[2:])[: len(batch.actions)]
        values = self.critic.values(outputs, actions).min(dim=-1).values
        return (batch.weights * (ent_coef * log_probs - values)).sum()
