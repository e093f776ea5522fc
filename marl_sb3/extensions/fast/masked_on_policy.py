"""A2C and TRPO among the actions that a mask allows, as sb3-contrib's MaskablePPO does it; and their learners."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import sb3_contrib
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.maskable.distributions import MaskableMultiCategoricalDistribution
from stable_baselines3.common.distributions import Distribution, MultiCategoricalDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from typing_extensions import override

from marl_sb3.extensions.fast.contrib import TRPO, MaskablePPOLearner, TRPOLearner
from marl_sb3.extensions.fast.ppo import A2C, A2CLearner
from marl_sb3.extensions.fast.torch_updates import replaced_methods

_Algorithm = TypeVar("_Algorithm", bound=type[Any])


@contextmanager
def masks_in_update(algorithm: Any, method: str, changed: Callable[[Any], Any] | None = None) -> Iterator[None]:
    """Give a method of the policy the masks of the latest minibatch: updates of SB3 tell it none.

    Args:
        algorithm: its rollout buffer yields minibatches with `action_masks`.
        method: takes `action_masks`.
        changed: replaces each result of the method; None: they stay.
    """
    buffer, policy, factor = algorithm.rollout_buffer, algorithm.policy, getattr(algorithm, "sub_sampling_factor", 1)
    draw, compute, latest = buffer.get, getattr(policy, method), [None]

    def get(*arguments: Any, **settings: Any) -> Iterator[Any]:
        for batch in draw(*arguments, **settings):
            latest[0] = batch.action_masks[::factor]
            yield batch

    def with_masks(*arguments: Any, **settings: Any) -> Any:
        found = compute(*arguments, **settings, action_masks=latest[0])
        return found if changed is None else changed(found)

    with replaced_methods((buffer, "get", get), (policy, method, with_masks)):
        yield


def without_gsde(algorithm: _Algorithm) -> _Algorithm:
    """Take gSDE, which SB3 refuses for other actions than those in a Box, out of the arguments of an algorithm."""
    init, signature = algorithm.__init__, inspect.signature(algorithm.__init__)

    def __init__(self: Any, *arguments: Any, **settings: Any) -> None:  # noqa: N807
        init(self, *arguments, **settings)

    kept = [each for name, each in signature.parameters.items() if name not in ("use_sde", "sde_sample_freq")]
    vars(__init__)["__signature__"] = signature.replace(parameters=kept)
    algorithm.__init__ = __init__
    return algorithm


class TakesMasks(OnPolicyAlgorithm):
    """A base class in front of an algorithm whose policy takes action masks: so does its `predict`."""

    predict: Any = sb3_contrib.MaskablePPO.predict
    takes_joined_actions = False


class MaskedRollouts(TakesMasks):
    """A base class in front of A2C or TRPO: policies, buffers and SB3's own rollouts of MaskablePPO."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = sb3_contrib.MaskablePPO.policy_aliases
    collect_rollouts = sb3_contrib.MaskablePPO.collect_rollouts

    def _setup_model(self) -> None:
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        make: Any = self.policy_class  # which takes no gSDE
        self.policy = make(self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs)
        self.policy = self.policy.to(self.device)
        if self.rollout_buffer_class is None:
            is_dict = isinstance(self.observation_space, spaces.Dict)
            self.rollout_buffer_class = MaskableDictRolloutBuffer if is_dict else MaskableRolloutBuffer
        made: Any = self.rollout_buffer_class
        of_run = {"gamma": self.gamma, "gae_lambda": self.gae_lambda, "n_envs": self.n_envs}
        self.rollout_buffer = made(
            self.n_steps,
            self.observation_space,
            self.action_space,
            self.device,
            **of_run,
            **self.rollout_buffer_kwargs,
        )

    def learn(self, *arguments: Any, **settings: Any) -> Any:
        """See `sb3_contrib.MaskablePPO.learn`: the env has `action_masks()`."""
        own: Any = sb3_contrib.MaskablePPO.learn
        return own(self, *arguments, **{"tb_log_name": type(self).__name__, **settings})


@without_gsde
class MaskableA2C(MaskedRollouts, A2C):
    """`A2C` that chooses among the actions that a mask allows; its files and arguments are those of A2C.

    The *fused* path runs the update of a plain MLP in the kernels of MaskablePPO, see `TwoPaths`.
    """

    @override
    def _train_torch(self) -> None:
        with masks_in_update(self, "evaluate_actions"):
            super()._train_torch()


class MaskableA2CLearner(A2CLearner):
    """See `A2CLearner`. An env without action masks is refused when its agents act first."""

    buffer_classes = MaskablePPOLearner.buffer_classes


@without_gsde
class MaskableTRPO(MaskedRollouts, TRPO):
    """`TRPO` that chooses among the actions that a mask allows; its files and arguments are those of TRPO.

    The distributions of its surrogate, of the KL divergence with its Hessian-vector products, and of the line search
    are those among the allowed actions. The *fused* path runs the update of a plain MLP in the kernels of TRPO.
    """

    @override
    def _train_torch(self) -> None:
        with masks_in_update(self, "get_distribution", _of_stock):
            super()._train_torch()


def _of_stock(distribution: Any) -> Distribution:
    """Return a distribution of several choices as SB3's, of which it computes KL divergences; others as they are."""
    if not isinstance(distribution, MaskableMultiCategoricalDistribution):
        return distribution  # type: ignore[no-any-return]
    made = MultiCategoricalDistribution([int(size) for size in distribution.action_dims])
    made.distribution = list(distribution.distributions)
    return made


class MaskableTRPOLearner(TRPOLearner):
    """See `TRPOLearner`. An env without action masks is refused when its agents act first."""

    buffer_classes = MaskablePPOLearner.buffer_classes
