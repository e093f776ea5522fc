"""A2C, TRPO and RecurrentPPO among the actions that a mask allows, as sb3-contrib's MaskablePPO does it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import sb3_contrib
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.maskable.distributions import MaskableMultiCategoricalDistribution
from sb3_contrib.common.recurrent.buffers import create_sequencers
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.distributions import MultiCategoricalDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from typing_extensions import override

from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.core.on_policy.sequences import MemoryDictRolloutBuffer, MemoryRolloutBuffer
from marl_sb3.core.sb3.policies import with_arguments_of_bases, with_kin
from marl_sb3.extensions.fast.contrib import (
    TRPO,
    MaskablePPOLearner,
    MemoryPolicy,
    RecurrentPPO,
    RecurrentPPOLearner,
    TRPOLearner,
)
from marl_sb3.extensions.fast.ppo import A2C, A2CLearner
from marl_sb3.extensions.fast.torch_updates import replaced_methods
from marl_sb3.extensions.fast.update_path import LearnsInTrainings
from marl_sb3.types import Array
from marl_sb3.wrappers.observations import choices_of

if TYPE_CHECKING:  # base classes of mixins, to type checkers
    _Memory = MemoryRolloutBuffer
else:
    _Memory = object

# --- Updates ----------------------------------------------------------------------------------------------------------


@contextmanager
def masks_in_update(algorithm: Any, method: str) -> Iterator[None]:
    """Give a method of the policy the masks of the latest minibatch: updates of SB3 tell it none.

    Args:
        algorithm: its rollout buffer yields minibatches with `action_masks`.
        method: takes `action_masks`.
    """
    buffer, policy, factor = algorithm.rollout_buffer, algorithm.policy, getattr(algorithm, "sub_sampling_factor", 1)
    draw, compute, latest = buffer.get, getattr(policy, method), [None]

    def get(*arguments: Any, **settings: Any) -> Iterator[Any]:
        for batch in draw(*arguments, **settings):
            latest[0] = batch.action_masks[::factor]
            yield batch

    def with_masks(*arguments: Any, **settings: Any) -> Any:
        found = compute(*arguments, **settings, action_masks=latest[0])
        if not isinstance(found, MaskableMultiCategoricalDistribution):
            return found
        made = MultiCategoricalDistribution([int(size) for size in found.action_dims])
        made.distribution = list(found.distributions)
        return made  # SB3's, of which it computes KL divergences

    with replaced_methods((buffer, "get", get), (policy, method, with_masks)):
        yield


class TakesMasks(OnPolicyAlgorithm):
    """A base class in front of an algorithm whose policy takes action masks: so do its `predict` and its updates."""

    predict: Any = sb3_contrib.MaskablePPO.predict
    takes_joined_actions = False
    masked_method: ClassVar[str] = "evaluate_actions"  # of the policy, which SB3's updates call

    def _train_torch(self) -> None:
        with masks_in_update(self, self.masked_method):
            super()._train_torch()  # type: ignore[misc]


# --- A2C and TRPO -----------------------------------------------------------------------------------------------------

_GSDE = ("use_sde", "sde_sample_freq")  # which SB3 refuses for other actions than those in a Box


class MaskedRollouts(TakesMasks):
    """A base class in front of A2C or TRPO: policies, buffers and SB3's own rollouts of MaskablePPO."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = sb3_contrib.MaskablePPO.policy_aliases
    collect_rollouts = sb3_contrib.MaskablePPO.collect_rollouts

    def _setup_model(self) -> None:
        if self.rollout_buffer_class is None:
            is_dict = isinstance(self.observation_space, spaces.Dict)
            self.rollout_buffer_class = MaskableDictRolloutBuffer if is_dict else MaskableRolloutBuffer
        policy_class: Any = self.policy_class

        def without_gsde(*arguments: Any, use_sde: bool, **settings: Any) -> Any:
            return policy_class(*arguments, **settings)

        vars(self)["policy_class"] = without_gsde
        super()._setup_model()
        self.policy_class = policy_class

    def learn(self, *arguments: Any, **settings: Any) -> Any:
        """See `sb3_contrib.MaskablePPO.learn`: the env has `action_masks()`."""
        own: Any = sb3_contrib.MaskablePPO.learn
        return own(self, *arguments, **{"tb_log_name": type(self).__name__, **settings})


@with_arguments_of_bases(*_GSDE)
class MaskableA2C(MaskedRollouts, A2C):
    """`A2C` that chooses among the actions that a mask allows; its files and arguments are those of A2C.

    The *fused* path runs the update of a plain MLP in the kernels of MaskablePPO, see `TwoPaths`.
    """


class MaskableA2CLearner(A2CLearner):
    """See `A2CLearner`. An env without action masks is refused when its agents act first."""

    buffer_classes = MaskablePPOLearner.buffer_classes


@with_arguments_of_bases(*_GSDE)
class MaskableTRPO(MaskedRollouts, TRPO):
    """`TRPO` that chooses among the actions that a mask allows; its files and arguments are those of TRPO.

    The distributions of its surrogate, of the KL divergence with its Hessian-vector products, and of the line search
    are those among the allowed actions. The *fused* path runs the update of a plain MLP in the kernels of TRPO.
    """

    masked_method = "get_distribution"


class MaskableTRPOLearner(TRPOLearner):
    """See `TRPOLearner`. An env without action masks is refused when its agents act first."""

    buffer_classes = MaskablePPOLearner.buffer_classes


_FORBIDDEN = -1e8  # the logit of a forbidden action, as in sb3-contrib: its probability is 0 in 32 bits

# --- RecurrentPPO: policies -------------------------------------------------------------------------------------------


def _taking_masks(name: str) -> Any:
    """Let a method of the base classes take action masks besides, as its last argument."""
    most = len(inspect.signature(getattr(RecurrentActorCriticPolicy, name)).parameters) - 1

    def masked(self: Any, *arguments: Any, action_masks: Any = None, **settings: Any) -> Any:
        if len(arguments) > most:
            *arguments, action_masks = arguments  # type: ignore[assignment]
        with self._masked(action_masks):
            return getattr(super(MaskableMemoryPolicy, self), name)(*arguments, **settings)

    return masked


class MaskableMemoryPolicy(MemoryPolicy):
    """A `MemoryPolicy` whose methods take action masks besides; without them it computes what that does.

    Masks are (rows, choices), laid out as for sb3-contrib's MaskablePPO: of several choices one after the other, of a
    MultiBinary space two for each bit, that for 0 first. In sequences there is a mask for each step.
    """

    _allowed: th.Tensor | None  # the masks of the call that is under way

    def _build(self, lr_schedule: Any) -> None:
        self._allowed = None
        super()._build(lr_schedule)

    @contextmanager
    def _masked(self, action_masks: Any) -> Iterator[None]:
        before = self._allowed  # of `predict`, which calls `get_distribution`
        if action_masks is not None:
            masks = th.as_tensor(action_masks, device=self.device)
            self._allowed = masks.reshape(-1, sum(choices_of(self.action_space) or ())) > 0
        try:
            yield
        finally:
            self._allowed = before

    @override
    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Any:
        if self._allowed is None:
            return super()._get_action_dist_from_latent(latent_pi)
        logits, allowed = self.action_net(latent_pi), self._allowed
        if isinstance(self.action_space, spaces.MultiBinary):  # there is one logit for each bit
            of_bits = allowed.reshape(*logits.shape, 2)
            logits = logits.masked_fill(~of_bits[..., 0], -_FORBIDDEN).masked_fill(~of_bits[..., 1], _FORBIDDEN)
        else:
            logits = logits.masked_fill(~allowed, _FORBIDDEN)
        distribution: Any = self.action_dist
        return distribution.proba_distribution(action_logits=logits)

    forward = _taking_masks("forward")
    get_distribution = _taking_masks("get_distribution")
    evaluate_actions = _taking_masks("evaluate_actions")
    predict = _taking_masks("predict")


# --- RecurrentPPO: rollout buffers ------------------------------------------------------------------------------------


class _WithMasks(_Memory):
    """A mixin for buffers of sequences: each transition holds the mask that its action was chosen with."""

    of_transition = (*MemoryRolloutBuffer.of_transition, "action_masks")
    of_sample = (*MemoryRolloutBuffer.of_sample, "action_masks")
    action_masks: Array  # (buffer_size, n_envs, n) float32, 1 where an action was allowed

    def reset(self) -> None:
        """Empty the buffer."""
        shape = (self.buffer_size, self.n_envs, sum(choices_of(self.action_space) or ()))
        if getattr(self, "action_masks", np.empty(0)).shape != shape:  # `get` has flattened them
            self.action_masks = np.ones(shape, dtype=np.float32)
        super().reset()

    def more_columns(self, inputs: PolicyInputs) -> Mapping[str, Array]:
        masks = np.ones(self.action_masks.shape[1:], np.float32) if inputs.masks is None else inputs.masks
        return {**super().more_columns(inputs), "action_masks": masks}

    def _get_samples(self, batch_inds: Array, env_change: Array, env: Any = None) -> Any:  # type: ignore[override]
        """Return a minibatch of sequences with masks, (padded steps, choices), all true in padding."""
        samples: Any = super()._get_samples(batch_inds, env_change, env)
        _, pad, _ = create_sequencers(self.episode_starts[batch_inds], env_change[batch_inds], self.device)
        masks = pad(self.action_masks[batch_inds], padding_value=1.0)
        return SimpleNamespace(**samples._asdict(), action_masks=masks.reshape(-1, masks.shape[-1]))


class MaskedMemoryRolloutBuffer(_WithMasks, MemoryRolloutBuffer):
    """A `MemoryRolloutBuffer` with masks."""


class MaskedMemoryDictRolloutBuffer(_WithMasks, MemoryDictRolloutBuffer):  # type: ignore[misc]
    """The same for `Dict` observations."""


# --- RecurrentPPO: the algorithm --------------------------------------------------------------------------------------


@with_arguments_of_bases(*_GSDE)
class MaskableRecurrentPPO(LearnsInTrainings, TakesMasks, RecurrentPPO):
    """`RecurrentPPO` that chooses among the actions that a mask allows; it learns in marl_sb3's trainings.

    Its arguments and networks are those of RecurrentPPO, with LSTMs or GRUs. See `TwoPaths`.
    """

    policy_aliases: ClassVar[dict[str, type[Any]]] = with_kin(
        MaskableMemoryPolicy, "MaskableMemory", sb3_contrib.RecurrentPPO.policy_aliases
    )


class MaskableRecurrentPPOLearner(RecurrentPPOLearner):
    """See `RecurrentPPOLearner`. An env without action masks is refused when its agents act first."""

    buffer_classes = (MaskedMemoryRolloutBuffer, MaskedMemoryDictRolloutBuffer)
