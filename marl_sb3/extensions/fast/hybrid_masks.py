"""Actions of several parts with action masks: the masks are those of the choices, and Box parts have none.

Imported only where MaskablePPO is used, with sb3-contrib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import nn
from typing_extensions import override

from marl_sb3.extensions.fast.hybrid import PartsDistribution
from marl_sb3.extensions.fast.joined_actions import JoinedActions

if TYPE_CHECKING:  # base classes of mixins, for type checkers alone
    _Maskable = MaskableActorCriticPolicy
    _Buffer = MaskableRolloutBuffer
else:
    _Maskable = _Buffer = object


class MaskableHybridDistribution(PartsDistribution, MaskableDistribution):
    """The distribution of `JoinedActions` with masks for its choices, which sb3-contrib's policies apply."""

    @override
    def _made(self, space: spaces.Space[Any]) -> Any:
        return make_masked_proba_distribution(space)

    def apply_masking(self, masks: Any) -> None:
        """Forbid choices; see `MaskableDistribution.apply_masking`.

        Args:
            masks: (rows, sum of choices), true where one is allowed; None: all are.
        """
        discrete = [part for part in self.parts if not isinstance(part, DiagGaussianDistribution)]
        given: Any = [None] * len(discrete)
        if masks is not None:
            masks = th.as_tensor(masks).reshape(-1, sum(self.space.choices))
            given = th.split(masks, self._sizes[: len(discrete)], dim=1)
        for part, mask in zip(discrete, given, strict=True):
            part.apply_masking(mask)
        self._note_parts()


class HybridMaskablePolicy(_Maskable):
    """A mixin in front of sb3-contrib's policy with masks: it acts in `JoinedActions`."""

    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, *more: Any, **given: Any) -> None:
        object.__setattr__(self, "_joined", action_space)  # a module takes no attributes before it is made
        only_choices = spaces.MultiDiscrete(action_space.choices)  # sb3-contrib makes no distribution of a Box
        super().__init__(observation_space, only_choices, lr_schedule, *more, **given)

    @override
    def _build(self, lr_schedule: Any) -> None:
        self.action_space: Any = self.__dict__.pop("_joined")
        self.action_dist = MaskableHybridDistribution(self.action_space)
        real = len(self.action_space.real_columns)
        if real:
            self.log_std = nn.Parameter(th.zeros(real))
        super()._build(lr_schedule)

    @override
    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Any:
        return self.action_dist.proba_distribution(self.action_net(latent_pi), getattr(self, "log_std", None))


class JoinedMasks(_Buffer):
    """A mixin in front of sb3-contrib's buffer: its masks are those of the choices of `JoinedActions`."""

    @override
    def reset(self) -> None:
        space: Any = self.action_space
        self.action_space = spaces.MultiDiscrete(space.choices)  # sb3-contrib's buffer knows the masks of choices
        try:
            super().reset()
        finally:
            self.action_space = space
        self.actions = self.actions.astype(space.dtype, copy=False)  # made for whole numbers


class HybridMaskedActions(OnPolicyAlgorithm):
    """A base class behind sb3-contrib's MaskablePPO, which refuses each Box."""

    def __init__(self, *arguments: Any, supported_action_spaces: Any = None, **settings: Any) -> None:
        accepted = (*supported_action_spaces, JoinedActions)
        super().__init__(*arguments, **{**settings, "supported_action_spaces": accepted})
