"""How likely a policy finds recorded actions: the loss of behaviour cloning, and the same loss beside that of PPO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from marl_sb3.core.sb3.inference import initial_states
from marl_sb3.core.sb3.private import progress_remaining
from marl_sb3.core.state.fields import Fields, Stateful
from marl_sb3.core.state.randomness import generator
from marl_sb3.core.vec_env.observations import taken
from marl_sb3.core.vec_env.seeding import IMITATED_MINIBATCHES
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.data.demonstrations import Demonstrations
from marl_sb3.types import Array, PolicyID

# --- The loss ---------------------------------------------------------------------------------------------------------


class Minibatch(NamedTuple):
    """Transitions of recorded episodes as tensors."""

    observations: Any  # (n, ...)
    actions: th.Tensor  # (n, action size), or (n,) of a Discrete space
    masks: Array | None = None  # (n, choices) bool; None: all actions are allowed
    counted: th.Tensor | None = None  # (n,) bool; False where a shorter episode is filled up; None: all count
    sequences: int = 0  # the number of episodes, for policies with memory: n is a multiple of it

    @property
    def number(self) -> int:
        """The number of transitions that count."""
        return len(self.actions) if self.counted is None else int(self.counted.sum())


def require_masks(data: Demonstrations, policy_id: PolicyID, algorithm: Any) -> None:
    """Refuse data without action masks.

    Raises:
        ConfigError: the data have none.
    """
    if data.masks is None:
        words = f"{type(algorithm).__name__} needs action masks, which the data do not have"
        accepted = "data with action masks, or an algorithm that needs none"
        raise ConfigError(f"policy {policy_id!r}: {words}; accepted: {accepted}", key="algo")


class ActionLoss:
    """What behaviour cloning minimises for one kind of policy: a loss of each recorded action.

    Args:
        algorithm: the SB3 algorithm of the policy.
        takes_masks: whether the policy needs action masks.
    """

    _networks: ClassVar[Sequence[str]] = ()  # of a policy; the first that it has is trained; none: all of it is

    def __init__(self, algorithm: Any, takes_masks: bool) -> None:
        self.algorithm = algorithm
        self.policy = algorithm.policy
        self._takes_masks = takes_masks
        name = next((each for each in self._networks if hasattr(self.policy, each)), "")
        self.trained: Any = getattr(self.policy, name, self.policy)  # the module that is trained
        self._target: Any = getattr(self.policy, f"{name}_target", None)  # what follows it
        self.in_sequences = _remembers(self.policy)  # then minibatches are whole episodes

    def losses(self, batch: Minibatch, with_entropy: bool = False) -> tuple[th.Tensor, th.Tensor | None]:
        """Return the (n,) losses of the actions, and the (n,) entropies of the policy.

        The entropies are None if the policy has none, and without `with_entropy`.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Bring the network that follows the trained one up to date, if there is one."""
        if self._target is not None:
            self._target.load_state_dict(self.trained.state_dict())

    def together(self, data: Demonstrations, size: int) -> int:
        """Return how many of what `batch` takes make a minibatch of about so many transitions."""
        return max(1, round(size / data.lengths.mean())) if self.in_sequences else size

    def batch(self, data: Demonstrations, chosen: Array) -> Minibatch:
        """Return transitions as tensors on the device of the algorithm; for policies with memory whole episodes.

        Args:
            chosen: (n,) indices of transitions, or of episodes. Shorter ones are filled up with their first transition.
        """
        counted, sequences, device = None, 0, self.algorithm.device
        if self.in_sequences:
            lengths, sequences = data.lengths[chosen], len(chosen)
            steps = np.arange(lengths.max())
            is_there = steps < lengths[:, None]
            counted = th.as_tensor(is_there.reshape(-1), device=device)
            chosen = (data.begins[chosen][:, None] + np.where(is_there, steps, 0)).reshape(-1)
        actions = th.as_tensor(data.actions[chosen], device=device)
        whole = isinstance(self.algorithm.action_space, spaces.Discrete)
        actions = actions.long().flatten() if whole else actions.float().reshape(len(chosen), -1)  # as SB3's buffers
        masks = data.masks[chosen] if self._takes_masks and data.masks is not None else None
        return Minibatch(
            obs_as_tensor(taken(data.seen, data.places[chosen]), device), actions, masks, counted, sequences
        )

    def _memory(self, batch: Minibatch) -> tuple[Any, ...]:
        """Return hidden and cell state at the start of an episode, and that no row starts one; () without memory."""
        if not self.in_sequences:
            return ()
        states = initial_states(self.algorithm, batch.sequences)
        device = self.policy.device
        return tuple(th.as_tensor(each, device=device) for each in states), th.zeros(batch.sequences, device=device)

    def mean(self, batch: Minibatch, entropy_coefficient: float = 0.0) -> tuple[th.Tensor, th.Tensor]:
        """Return the mean loss of a minibatch; with what entropy takes off it, and without."""
        losses, entropies = self.losses(batch, with_entropy=entropy_coefficient > 0)
        counted = slice(None) if batch.counted is None else batch.counted
        mean = losses[counted].mean()
        return mean if entropies is None else mean - entropy_coefficient * entropies[counted].mean(), mean


class _Likelihood(ActionLoss):
    """Actor-critic policies: the negative log-likelihood of the action."""

    @override
    def losses(self, batch: Minibatch, with_entropy: bool = False) -> tuple[th.Tensor, th.Tensor | None]:
        distribution = self._distribution(batch)
        losses = -distribution.log_prob(batch.actions)
        entropies = distribution.entropy() if with_entropy else None
        if with_entropy and entropies is None:  # of a squashed Gaussian: estimated, as SB3 does
            entropies = -distribution.log_prob(distribution.sample())
        return losses, entropies

    def _distribution(self, batch: Minibatch) -> Any:
        masks = {} if batch.masks is None else {"action_masks": batch.masks}
        found = self.policy.get_distribution(batch.observations, *self._memory(batch), **masks)
        return found[0] if self.in_sequences else found


# Tanh reaches its bounds only at infinity: recorded actions at a bound are taken to be this far inside.
_MARGIN = 1e-3


class _SquashedLikelihood(_Likelihood):
    """SAC, TQC and CrossQ: the negative log-likelihood of the action, scaled to [-1, 1]."""

    _networks = ("actor",)

    @override
    def losses(self, batch: Minibatch, with_entropy: bool = False) -> tuple[th.Tensor, th.Tensor | None]:
        limit = 1.0 - _MARGIN
        return super().losses(batch._replace(actions=batch.actions.clamp(-limit, limit)), with_entropy)

    @override
    def _distribution(self, batch: Minibatch) -> Any:
        mean, log_std, more = self.trained.get_action_dist_params(batch.observations)
        return self.trained.action_dist.proba_distribution(mean, log_std, **more)


class _SquashedWithMemory(_SquashedLikelihood):
    """RecurrentSAC: as SAC."""

    _distribution = _Likelihood._distribution


class _SquaredError(ActionLoss):
    """TD3 and DDPG: the squared error of the action, scaled to [-1, 1], summed over its parts."""

    _networks = ("actor",)

    @override
    def losses(self, batch: Minibatch, with_entropy: bool = False) -> tuple[th.Tensor, th.Tensor | None]:
        return ((self.trained(batch.observations) - batch.actions) ** 2).sum(dim=1), None


_FORBIDDEN = -1e8  # sb3-contrib's logit of an action that a mask forbids


class _QValues(ActionLoss):
    """DQN and QRDQN: the cross-entropy of the action, with the Q values as logits."""

    _networks = ("q_net", "quantile_net")

    @override
    def losses(self, batch: Minibatch, with_entropy: bool = False) -> tuple[th.Tensor, th.Tensor | None]:
        values: th.Tensor = self.trained(batch.observations, *self._memory(batch))
        values = values if values.dim() == 2 else values.mean(dim=1)  # of quantiles
        if batch.masks is not None:
            values = values.masked_fill(~th.as_tensor(batch.masks, device=values.device), _FORBIDDEN)
        entropies = -(values.softmax(1) * values.log_softmax(1)).sum(1) if with_entropy else None
        return F.cross_entropy(values, batch.actions, reduction="none"), entropies


def _remembers(policy: Any) -> bool:
    return hasattr(policy, "lstm_hidden_state_shape")


# What a policy has -> its loss; the first that applies.
_KINDS: tuple[tuple[Callable[[Any], bool], type[ActionLoss]], ...] = (
    (lambda policy: hasattr(policy, "lstm_actor"), _Likelihood),
    (lambda policy: _remembers(policy) and hasattr(policy, "critic"), _SquashedWithMemory),
    (lambda policy: hasattr(policy, "get_distribution") and not _remembers(policy), _Likelihood),
    (lambda policy: hasattr(policy, "q_net"), _QValues),
    (lambda policy: hasattr(policy, "quantile_net") and not _remembers(policy), _QValues),
    (lambda policy: hasattr(getattr(policy, "actor", None), "get_action_dist_params"), _SquashedLikelihood),
    (lambda policy: hasattr(policy, "actor_target"), _SquaredError),
)


def action_loss(policy_id: PolicyID, algorithm: Any, *, takes_masks: bool = False) -> ActionLoss:
    """Return the loss for the policy of an algorithm.

    Raises:
        ConfigError: the policy cannot learn actions.
    """
    found = next((kind for applies, kind in _KINDS if applies(algorithm.policy)), None)
    if found is None:
        words = f"{type(algorithm.policy).__name__} of {type(algorithm).__name__} cannot be trained on recorded actions"
        accepted = "a policy with get_distribution, with Q values of actions, or with an actor, as SB3's have"
        raise ConfigError(f"policy {policy_id!r}: {words}; accepted: {accepted}", key="algo")
    return found(algorithm, takes_masks)


# --- Beside the loss of an algorithm with rollouts --------------------------------------------------------------------


class ImitationLoss(Stateful):
    """Adds `coefficient` times the loss of recorded actions to each gradient step of an on-policy algorithm.

    For each minibatch of the algorithm it draws as many recorded transitions, or whole episodes for a policy with
    memory. The gradient is added to that of the algorithm's own loss, after this was limited to `max_grad_norm`, and
    the sum is limited once more.

    Args:
        loss: of the policy.
        coefficient: a number, or a schedule of the progress that remains.
        seed: of the draws, which are independent of all others.
    """

    fields: ClassVar[Fields] = {"generator": generator("_generator")}

    data: Demonstrations | None = None  # set it before the first step

    def __init__(self, loss: ActionLoss, coefficient: float | Callable[[float], float], seed: int | None) -> None:
        self._loss, self._coefficient = loss, coefficient
        self._generator = np.random.default_rng(None if seed is None else [seed, IMITATED_MINIBATCHES])
        self._of_update: list[th.Tensor] = []
        loss.policy.optimizer.register_step_pre_hook(lambda *_: self._add_gradient())

    @property
    def coefficient(self) -> float:
        """The present coefficient."""
        own = self._coefficient
        return float(own(progress_remaining(self._loss.algorithm)) if callable(own) else own)

    def _add_gradient(self) -> None:
        algorithm, coefficient, data = self._loss.algorithm, self.coefficient, self.data
        assert data is not None, "read_data() comes first"
        size = getattr(algorithm, "batch_size", algorithm.n_steps * algorithm.n_envs)  # A2C's is its rollout
        most = len(data.lengths) if self._loss.in_sequences else len(data)
        drawn = self._generator.integers(most, size=self._loss.together(data, size))
        mean, _ = self._loss.mean(self._loss.batch(data, drawn))
        self._of_update.append(mean.detach())
        if coefficient == 0.0:
            return
        (coefficient * mean).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._loss.policy.parameters(), algorithm.max_grad_norm)

    def recorded(self) -> Mapping[str, float]:
        """Return what the update that is over has to record, under the names of SB3's logger."""
        if not self._of_update:
            return {}
        mean = th.stack(self._of_update).mean().item()
        self._of_update = []
        return {"train/imitation_loss": mean, "train/imitation_coefficient": self.coefficient}
