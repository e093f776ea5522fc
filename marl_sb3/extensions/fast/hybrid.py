"""Policies whose actions have several parts, in a Tuple or Dict space: their distributions, networks and algorithms.

A distribution of independent parts: its log-probabilities, entropies and divergences are the sums of those of SB3's
distributions of the parts. All Box parts together are one DiagGaussian.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    make_proba_distribution,
)
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
from torch import nn
from torch.distributions import Distribution as TorchDistribution
from torch.distributions.kl import kl_divergence, register_kl
from typing_extensions import override

from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast.joined_actions import JoinedActions, joined_actions
from marl_sb3.extensions.fast.update_path import require_rows
from marl_sb3.types import Array

# --- Distributions ---------------------------------------------------------------------------------------------------


class IndependentParts(TorchDistribution):
    """Independent distributions of PyTorch, for their divergence; each has one row per observation."""

    def __init__(self, parts: Sequence[TorchDistribution]) -> None:
        self.parts = parts
        super().__init__(validate_args=False)


@register_kl(IndependentParts, IndependentParts)  # type: ignore[no-untyped-call, untyped-decorator]
def _divergence(p: IndependentParts, q: IndependentParts) -> th.Tensor:
    """Return the (rows,) sums of the divergences of all parts."""
    of_parts = [kl_divergence(mine, other) for mine, other in zip(p.parts, q.parts, strict=True)]
    return th.stack([of_part.reshape(len(of_part), -1).sum(dim=1) for of_part in of_parts]).sum(dim=0)


class PartsDistribution(Distribution):
    """A base class of distributions of `JoinedActions`.

    The network gives the parameters of the discrete parts in their order, then the means of the numbers of all Boxes.

    Attributes:
        distributions: PyTorch's distributions of the parts: of each choice, and one of the numbers of Boxes.
        distribution: all of them as one.
    """

    distributions: list[TorchDistribution]

    def __init__(self, space: JoinedActions) -> None:
        Distribution.__init__(self)  # type: ignore[no-untyped-call]  # not that of a subclass's other base
        self.space = space
        self.action_dim = space.shape[0]
        discrete = [part for part in space.parts if not isinstance(part.space, spaces.Box)]
        self._columns = [list(range(*part.columns.indices(self.action_dim))) for part in discrete]
        self._is_discrete = [isinstance(part.space, spaces.Discrete) for part in discrete]  # has no axis for choices
        self.parts: list[Any] = [self._made(part.space) for part in discrete]
        self._sizes = [_parameters(part) for part in self.parts]
        if len(space.real_columns):
            self._columns.append(space.real_columns.tolist())
            self.parts.append(DiagGaussianDistribution(len(space.real_columns)))
            self._sizes.append(len(space.real_columns))
            self._is_discrete.append(False)

    def _made(self, space: spaces.Space[Any]) -> Any:
        """Return SB3's distribution of a discrete part."""
        return make_proba_distribution(space)

    def proba_distribution_net(self, latent_dim: int) -> Any:
        """Return the layer that gives the parameters."""
        return nn.Linear(latent_dim, sum(self._sizes))

    def proba_distribution(self, action_logits: th.Tensor, log_std: th.Tensor | None = None) -> Any:
        """Take over the parameters of (rows, ...) actions."""
        parts = [copy.copy(part) for part in self.parts]  # a copy of this distribution keeps its own, as SB3's do
        for part, given in zip(parts, th.split(action_logits, self._sizes, dim=1), strict=True):
            part.proba_distribution(given, *([log_std] if isinstance(part, DiagGaussianDistribution) else []))
        self.parts = parts
        self._note_parts()
        return self

    def _note_parts(self) -> None:
        found = [getattr(part, "distributions", None) or part.distribution for part in self.parts]
        self.distributions = [each for own in found for each in (own if isinstance(own, list) else [own])]
        self.distribution = IndependentParts(self.distributions)

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return the (rows,) sums of the log-probabilities, or densities, of all parts of (rows, n) actions."""
        taken = [actions[:, columns] for columns in self._columns]
        own = [each[:, 0] if one else each for each, one in zip(taken, self._is_discrete, strict=True)]
        return th.stack([part.log_prob(each) for part, each in zip(self.parts, own, strict=True)]).sum(dim=0)

    def entropy(self) -> th.Tensor:
        """Return the (rows,) sums of the entropies of all parts."""
        return th.stack([part.entropy() for part in self.parts]).sum(dim=0)

    def sample(self) -> th.Tensor:
        """Return (rows, n) actions."""
        return self._together([part.sample() for part in self.parts])

    def mode(self) -> th.Tensor:
        """Return the (rows, n) most likely actions."""
        return self._together([part.mode() for part in self.parts])

    def _together(self, values: Sequence[th.Tensor]) -> th.Tensor:
        columns = [column for of_part in self._columns for column in of_part]
        order = np.argsort(columns).tolist()
        return th.cat([value.reshape(len(value), -1).float() for value in values], dim=1)[:, order]

    def actions_from_params(self, *parameters: Any, deterministic: bool = False) -> th.Tensor:
        """Return actions for parameters; see `proba_distribution`."""
        actions: th.Tensor = self.proba_distribution(*parameters).get_actions(deterministic=deterministic)
        return actions

    def log_prob_from_params(self, *parameters: Any) -> tuple[th.Tensor, th.Tensor]:
        """Return sampled actions for parameters, and their log-probabilities."""
        actions = self.actions_from_params(*parameters)
        return actions, self.log_prob(actions)


def _parameters(part: Any) -> int:
    """How many numbers SB3's distribution takes of a network."""
    sizes = part.action_dims if hasattr(part, "action_dims") else part.action_dim
    return int(np.sum(sizes))


class HybridDistribution(PartsDistribution, DiagGaussianDistribution):
    """The distribution of `JoinedActions` with a Box; to SB3's policies, it has parameters as a DiagGaussian has."""

    @override
    def proba_distribution_net(self, latent_dim: int, log_std_init: float = 0.0) -> Any:
        real = len(self.space.real_columns)
        return super().proba_distribution_net(latent_dim), nn.Parameter(th.full((real,), float(log_std_init)))


class ChoicesDistribution(PartsDistribution, CategoricalDistribution):
    """The distribution of `JoinedActions` without a Box: it has no standard deviations."""


# --- Networks --------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:  # base classes of mixins, for type checkers alone
    _ActorCritic = ActorCriticPolicy
else:
    _ActorCritic = object


class HybridPolicy(_ActorCritic):
    """A mixin in front of SB3's policy of an on-policy algorithm: it acts in `JoinedActions`."""

    action_space: Any

    @override
    def _build(self, lr_schedule: Any) -> None:
        own = HybridDistribution if len(self.action_space.real_columns) else ChoicesDistribution
        self.action_dist = own(self.action_space)
        super()._build(lr_schedule)


@functools.cache
def with_mixin(stock: type[Any], mixin: type, prefix: str) -> type[Any]:
    """Return the subclass, with a mixin for `JoinedActions`, of a class of SB3; itself if it has the mixin.

    Args:
        prefix: of its name.
    """
    if issubclass(stock, mixin):
        return stock
    return type(prefix + stock.__name__, (mixin, stock), {"__doc__": mixin.__doc__})


# --- Envs of `learn` -------------------------------------------------------------------------------------------------


class JoinedVecEnv(VecEnvWrapper):
    """A VecEnv of Tuple or Dict actions that takes them as vectors, (rows, n), or as a list of the envs' actions."""

    def __init__(self, venv: VecEnv, space: JoinedActions) -> None:
        super().__init__(venv, action_space=space)
        self._space = space

    def reset(self) -> VecEnvObs:
        """Begin a new episode in every env."""
        return self.venv.reset()

    @override
    def step_async(self, actions: Array) -> None:
        self.venv.step_async(self._space.to_env(actions) if isinstance(actions, np.ndarray) else actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Return what the envs' step did."""
        return self.venv.step_wait()


# --- Algorithms ------------------------------------------------------------------------------------------------------


class HybridActions(OnPolicyAlgorithm):
    """A base class in front of an on-policy algorithm: its envs may have Tuple and Dict actions, nested ones too.

    Parts are Box, Discrete, MultiDiscrete and MultiBinary. `predict` returns the env's actions.
    """

    takes_joined_actions = True
    hybrid_mixin: type = HybridPolicy  # in front of its policies

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        require_rows(env)
        wrapped: VecEnv = super(HybridActions, HybridActions)._wrap_env(env, verbose, monitor_wrapper)
        space = joined_actions(wrapped.action_space)
        return wrapped if space is None else JoinedVecEnv(wrapped, space)

    @override
    def _setup_model(self) -> None:
        if isinstance(self.action_space, JoinedActions):
            if self.use_sde:
                words = f"use_sde is True, and the action space is {self.action_space}"
                raise ConfigError(f"{words}; accepted for actions of several parts: False", key="use_sde")
            self.policy_class = with_mixin(self.policy_class, self.hybrid_mixin, "Hybrid")
        super()._setup_model()

    def predict_arrays(self, observation: Any, *more: Any, **settings: Any) -> tuple[Array, Any]:
        """Return actions as vectors of `JoinedActions`, and the state; the arguments are those of `predict`."""
        return super().predict(observation, *more, **settings)

    @override
    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """See `BaseAlgorithm.predict`; of Tuple and Dict spaces, the env's action, or a list of them for a batch."""
        actions, after = self.predict_arrays(observation, state, episode_start, deterministic)
        return self.env_actions(actions), after

    def env_actions(self, actions: Array) -> Any:
        """Return what `predict` gives for what `predict_arrays` gives."""
        return self.action_space.to_env(actions) if isinstance(self.action_space, JoinedActions) else actions
