"""IQL: implicit Q-learning, from recorded transitions alone or going on online (Kostrikov, Nair and Levine 2021).

Section 4 of arXiv 2110.06169. No value is ever asked of an action that the data do not have: V is an upper expectile of
Q over the actions of the data, Q regresses on V of the next observation, and the policy clones those actions that are
better than V says. For `Box` actions it is the policy of the paper, a Gaussian with a mean squashed by tanh and a
deviation that does not depend on the observation; for `Discrete` ones a categorical distribution, and a critic has a
value of each action.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution, make_proba_distribution
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BaseModel, BasePolicy
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    create_mlp,
    get_actor_critic_arch,
)
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import get_parameters_by_name, polyak_update
from torch import nn
from typing_extensions import override

MAX_WEIGHT = 100.0  # of an action of the data, as in the code of the paper's authors
_LOG_STD = (-5.0, 2.0)  # the same: bounds of the logarithm of the deviation

# --- The losses ------------------------------------------------------------------------------------------------------


def expectile_loss(errors: th.Tensor, expectile: float) -> th.Tensor:
    """Return the mean of |expectile - 1(u < 0)| u^2 over errors u = Q - V: formulas (3) and (5) of the paper.

    With an expectile of 0.5 it is half of the mean squared error; near 1, V approaches the best action of the data.
    """
    return (th.where(errors < 0, 1.0 - expectile, expectile) * errors**2).mean()


def advantage_weights(advantages: th.Tensor, beta: float) -> th.Tensor:
    """Return exp(beta A), at most `MAX_WEIGHT`: how much the policy clones actions of advantage A = Q - V; (7)."""
    return th.exp(beta * advantages).clamp(max=MAX_WEIGHT)


# --- Networks --------------------------------------------------------------------------------------------------------


class Heads(BaseModel):
    """Some networks on the same features of observations, which no other model has a part in.

    Args:
        number: of networks.
        outputs: of each.
        layers: widths of the hidden ones.
        activation_fn: between them.
        more_inputs: numbers that each gets besides the features.
        settings: of `BaseModel`.
    """

    features_extractor: BaseFeaturesExtractor

    def __init__(
        self,
        number: int,
        outputs: int,
        layers: list[int],
        activation_fn: type[nn.Module],
        more_inputs: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.features_extractor = self.make_features_extractor()
        inputs = self.features_extractor.features_dim + more_inputs
        made = [nn.Sequential(*create_mlp(inputs, outputs, layers, activation_fn)) for _ in range(number)]
        self.networks = nn.ModuleList(made)

    def of_each(self, obs: Any, *more: th.Tensor) -> list[th.Tensor]:
        """Return the (rows, outputs) outputs of each network."""
        inputs = th.cat([self.extract_features(obs, self.features_extractor), *more], dim=1)
        return [network(inputs) for network in self.networks]

    def forward(self, obs: Any) -> th.Tensor:
        """Return the (rows, outputs) outputs, of several networks the lowest ones."""
        return th.stack(self.of_each(obs)).amin(dim=0)


class OfActions(Heads):
    """Critics of actions in a Box, which they take after the features."""

    @override
    def forward(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, ...]:  # type: ignore[override]
        """Return the (rows, 1) values of each critic for actions from -1 to 1; see SB3's `ContinuousCritic`."""
        return tuple(self.of_each(obs, actions))


class IQLPolicy(BasePolicy):
    """Actor, critics with a target, and a value of observations; each has a features extractor of its own.

    The arguments are those of SB3's `SACPolicy`, and this.

    Args:
        net_arch: widths of hidden layers; as a mapping, `pi` are those of the actor, `qf` of the critics and of the
            value.
        log_std_init: the first logarithm of the deviation of actions in a Box.
    """

    default_extractor: ClassVar[type[BaseFeaturesExtractor]] = FlattenExtractor
    critic: Any
    critic_target: Any

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        log_std_init: float = 0.0,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        n_critics: int = 2,
    ) -> None:
        extractor = features_extractor_class or self.default_extractor
        seen: dict[str, Any] = {
            "observation_space": observation_space,
            "action_space": action_space,
            "features_extractor_class": extractor,
            "features_extractor_kwargs": features_extractor_kwargs,
            "normalize_images": normalize_images,
        }
        self._is_box = isinstance(action_space, spaces.Box)
        super().__init__(
            optimizer_class=optimizer_class, optimizer_kwargs=optimizer_kwargs, squash_output=self._is_box, **seen
        )
        if net_arch is None:
            net_arch = [] if extractor is NatureCNN else [256, 256]
        self._own = {
            "net_arch": net_arch,
            "activation_fn": activation_fn,
            "log_std_init": log_std_init,
            "n_critics": n_critics,
        }
        of_actor, of_critics = get_actor_critic_arch(net_arch)
        number = get_action_dim(action_space) if self._is_box else int(action_space.n)  # type: ignore[attr-defined]
        self.action_dist = make_proba_distribution(action_space)
        self.actor = Heads(1, number, of_actor, activation_fn, **seen)
        if self._is_box:
            self.actor.log_std = nn.Parameter(th.full((number,), float(log_std_init)))
        critic: Any = OfActions if self._is_box else Heads
        outputs, more_inputs = (1, number) if self._is_box else (number, 0)
        self.critic, self.critic_target = (
            critic(n_critics, outputs, of_critics, activation_fn, more_inputs, **seen) for _ in range(2)
        )
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.critic_target.set_training_mode(False)
        self.value_net = Heads(1, 1, of_critics, activation_fn, **seen)
        for each in (self.actor, self.critic, self.value_net):
            each.optimizer = optimizer_class(each.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    @property
    def log_std(self) -> th.Tensor:
        """The logarithm of the deviation of each number of an action in a Box, from -1 to 1, within its bounds."""
        return self.actor.log_std.clamp(*_LOG_STD)  # type: ignore[operator]

    def get_distribution(self, obs: Any) -> Distribution:
        """Return the distribution of actions; of those in a Box, scaled to [-1, 1], before they are clipped to that."""
        outputs = self.actor(obs)
        distribution: Any = self.action_dist
        if self._is_box:
            return distribution.proba_distribution(th.tanh(outputs), self.log_std)  # type: ignore[no-any-return]
        return distribution.proba_distribution(outputs)  # type: ignore[no-any-return]

    def forward(self, obs: Any, deterministic: bool = False) -> th.Tensor:
        """Return actions, those in a Box scaled to [-1, 1]."""
        actions = self.get_distribution(obs).get_actions(deterministic)
        return actions.clamp(-1.0, 1.0) if self._is_box else actions

    @override
    def _predict(self, observation: Any, deterministic: bool = False) -> th.Tensor:
        return self(observation, deterministic)  # type: ignore[no-any-return]

    def q_values(self, critic: Any, obs: Any, actions: th.Tensor) -> th.Tensor:
        """Return the (rows, critics) values of (rows, ...) actions as they are in a replay buffer.

        Args:
            critic: `critic` or `critic_target`.
        """
        if self._is_box:
            return th.cat(critic(obs, actions), dim=1)
        return th.cat([of_all.gather(1, actions.long()) for of_all in critic.of_each(obs)], dim=1)

    @override
    def set_training_mode(self, mode: bool) -> None:
        for each in (self.actor, self.critic, self.value_net):  # the target stays as it is, as in SB3's policies
            each.set_training_mode(mode)
        self.training = mode

    @override
    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            **super()._get_constructor_parameters(),
            **self._own,
            "lr_schedule": self._dummy_schedule,  # a policy that is loaded alone does not learn
            "optimizer_class": self.optimizer_class,
            "optimizer_kwargs": self.optimizer_kwargs,
            "features_extractor_class": self.features_extractor_class,
            "features_extractor_kwargs": self.features_extractor_kwargs,
        }


class IQLCnnPolicy(IQLPolicy):
    """An `IQLPolicy` for images."""

    default_extractor = NatureCNN


class IQLMultiInputPolicy(IQLPolicy):
    """An `IQLPolicy` for `Dict` observations."""

    default_extractor = CombinedExtractor


# --- The algorithm ---------------------------------------------------------------------------------------------------


class IQL(OffPolicyAlgorithm):
    """Implicit Q-learning, with actions in a Box or a Discrete space.

    The arguments that are not here are those of `stable_baselines3.SAC`. `python -m marl_sb3.imitate` trains it on
    recorded episodes alone; in a training, the replay buffer may have them from the start (`replay_data`).

    Args:
        learning_starts: agent steps with random actions before the first update; the policy explores by itself.
        expectile: of Q over the actions of the data that V is, above 0 and below 1.
        beta: how steeply actions are preferred by their advantage; with 0 all are cloned alike.
    """

    accepted_actions: ClassVar[tuple[type[spaces.Space[Any]], ...]] = (spaces.Discrete, spaces.Box)
    learns_offline: ClassVar[bool] = True  # `imitate` trains it by its own losses
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": IQLPolicy,
        "CnnPolicy": IQLCnnPolicy,
        "MultiInputPolicy": IQLMultiInputPolicy,
    }
    policy: IQLPolicy
    replay_buffer: Any

    def __init__(
        self,
        policy: str | type[IQLPolicy],
        env: Any,
        learning_rate: float | Schedule = 3e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 0,
        batch_size: int = 256,
        tau: float = 0.005,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: Any = None,
        replay_buffer_class: Any = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        expectile: float = 0.7,
        beta: float = 3.0,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate,
            buffer_size,
            learning_starts,
            batch_size,
            tau,
            gamma,
            train_freq,
            gradient_steps,
            action_noise=action_noise,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            optimize_memory_usage=optimize_memory_usage,
            n_steps=n_steps,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            sde_support=False,
            supported_action_spaces=self.accepted_actions,
            support_multi_env=True,
        )
        self.expectile, self.beta = expectile, beta
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        super()._setup_model()
        self._batch_norms, self._target_batch_norms = (
            get_parameters_by_name(each, ["running_"]) for each in (self.policy.critic, self.policy.critic_target)
        )

    @override
    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        policy = self.policy
        policy.set_training_mode(True)
        self._update_learning_rate([each.optimizer for each in (policy.actor, policy.critic, policy.value_net)])
        found: list[dict[str, float]] = []
        for _ in range(gradient_steps):
            found.append(self.learn_from(self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)))
            polyak_update(policy.critic.parameters(), policy.critic_target.parameters(), self.tau)
            polyak_update(self._batch_norms, self._target_batch_norms, 1.0)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name in found[0] if found else ():
            self.logger.record(f"train/{name}", np.mean([each[name] for each in found]))

    def learn_from(self, batch: Any) -> dict[str, float]:
        """Take a gradient step each with V, the policy and Q, in the order of the authors' code.

        Args:
            batch: what a replay buffer of SB3 samples; `dones` are terminations.

        Returns:
            What is to be recorded of it, by name.
        """
        policy, seen = self.policy, batch.observations
        with th.no_grad():
            values = policy.q_values(policy.critic_target, seen, batch.actions).amin(dim=1, keepdim=True)
        value_loss = expectile_loss(values - policy.value_net(seen), self.expectile)
        _minimise(value_loss, policy.value_net.optimizer)
        with th.no_grad():
            weights = advantage_weights(values - policy.value_net(seen), self.beta)[:, 0]
        actor_loss = self.actor_loss(batch, weights)
        _minimise(actor_loss, policy.actor.optimizer)
        critic_loss = self.critic_loss(batch)
        _minimise(critic_loss, policy.critic.optimizer)
        losses = {"value_loss": value_loss, "actor_loss": actor_loss, "critic_loss": critic_loss}
        return {name: loss.item() for name, loss in {**losses, "advantage_weight": weights.mean()}.items()}

    def actor_loss(self, batch: Any, weights: th.Tensor) -> th.Tensor:
        """Return the mean of -weight log pi(a|s), (7), for (rows,) weights."""
        is_box = isinstance(self.action_space, spaces.Box)
        actions = batch.actions if is_box else batch.actions.long().flatten()
        return -(weights * self.policy.get_distribution(batch.observations).log_prob(actions)).mean()

    def critic_loss(self, batch: Any) -> th.Tensor:
        """Return the mean of (r + gamma V(s') - Q(s, a))^2, (6), summed over the critics; V(s') is 0 after an end."""
        discounts = self.gamma if batch.discounts is None else batch.discounts  # of returns over several steps
        with th.no_grad():
            following = self.policy.value_net(batch.next_observations)
            targets = batch.rewards + (1 - batch.dones) * discounts * following
        values = self.policy.q_values(self.policy.critic, batch.observations, batch.actions)
        errors: th.Tensor = targets - values
        return (errors**2).mean(dim=0).sum()

    @override
    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_batch_norms", "_target_batch_norms"]

    @override
    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        optimizers = [f"policy.{name}.optimizer" for name in ("actor", "critic", "value_net")]
        return ["policy", *optimizers], []


def _minimise(loss: th.Tensor, optimizer: th.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
