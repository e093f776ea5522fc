"""The algorithms of sb3-contrib: MaskablePPO, RecurrentPPO, TRPO, QR-DQN (also with masks), TQC.

Imported only where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import sb3_contrib
import torch as th
import torch.nn.functional as F
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from sb3_contrib.qrdqn.policies import QRDQNPolicy, QuantileNetwork
from sb3_contrib.tqc.policies import TQCPolicy
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from torch import nn
from typing_extensions import override

from marl_sb3.core.acting.actor import Actor
from marl_sb3.core.acting.policy import Decision, PolicyInputs, RolloutPolicy, decision_of
from marl_sb3.core.on_policy.on_policy import OnPolicyLearner
from marl_sb3.core.on_policy.sequences import (
    ActionMaskDictRolloutBuffer,
    ActionMaskRolloutBuffer,
    MemoryDictRolloutBuffer,
    MemoryRolloutBuffer,
    SequenceDictRolloutBuffer,
    SequenceRolloutBuffer,
    WholeSequences,
)
from marl_sb3.core.sb3.inference import States
from marl_sb3.core.sb3.policies import CELLS, GRU, with_arguments_of_bases, with_kin
from marl_sb3.core.sb3.private import calls_lstm_as_sb3
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.extensions.fast.coverage import PathStillValid, actor_critic_coverage, first_reason
from marl_sb3.extensions.fast.dueling import Dueling, take_plain
from marl_sb3.extensions.fast.fused_on_policy import FusedOnPolicy, FusedRollouts
from marl_sb3.extensions.fast.hybrid import PartsDistribution, with_mixin
from marl_sb3.extensions.fast.joined_actions import JoinedActions
from marl_sb3.extensions.fast.masked_q import MaskedQLearning
from marl_sb3.extensions.fast.replay import QLearning, SoftActorCritic
from marl_sb3.extensions.fast.torch_updates import replaced_methods
from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.extensions.fast.fused_policy import FusedRolloutUpdate
    from marl_sb3.extensions.fast.fused_recurrent import FusedRecurrentPolicy, FusedSequenceUpdate

    # base classes of mixins, for type checkers alone
    _Maskable = MaskableActorCriticPolicy
    _Buffer = MaskableRolloutBuffer
else:
    _Maskable = _Buffer = object


# --- Actions of several parts with masks: those of the choices, Box parts have none -----------------------------------


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


# --- Algorithms -------------------------------------------------------------------------------------------------------


class ContribPPOLearner(OnPolicyLearner):
    """Trains by sb3-contrib's variants of PPO, which normalise the advantages of each minibatch."""

    @property
    @override
    def least_minibatch(self) -> int:
        return self.least_transitions


class MaskablePPO(FusedOnPolicy, sb3_contrib.MaskablePPO, HybridMaskedActions):
    """A drop-in for `sb3_contrib.MaskablePPO`: same arguments, same logger keys, same files.

    The *fused* path runs the update of a plain MLP in PPO's compiled kernels, see `TwoPaths`.
    """

    hybrid_mixin = HybridMaskablePolicy

    @override
    def _setup_model(self) -> None:
        if isinstance(self.action_space, JoinedActions):
            is_dict = isinstance(self.observation_space, spaces.Dict)
            stock = MaskableDictRolloutBuffer if is_dict else MaskableRolloutBuffer
            self.rollout_buffer_class = with_mixin(self.rollout_buffer_class or stock, JoinedMasks, "Joined")
        super()._setup_model()

    @override
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """See `sb3_contrib.MaskablePPO.predict`, and that of the base class."""
        given = (observation, state, episode_start, deterministic, action_masks)
        actions, after = self.predict_arrays(*given)
        return self.env_actions(actions), after


class MaskablePPOLearner(ContribPPOLearner):
    """See `OnPolicyLearner`. An env without action masks is refused when its agents act first."""

    buffer_classes = (ActionMaskRolloutBuffer, ActionMaskDictRolloutBuffer)


@with_arguments_of_bases()
class MemoryPolicy(RecurrentActorCriticPolicy):
    """A `RecurrentActorCriticPolicy` of which actor and critic may have GRUs.

    Its layers keep sb3-contrib's names, `lstm_actor` and `lstm_critic`, and the settings `lstm_hidden_size`,
    `n_lstm_layers`, `shared_lstm`, `enable_critic_lstm` and `lstm_kwargs` hold for both kinds of cells.

    Args:
        cell: `lstm`, then it is sb3-contrib's policy bit for bit, or `gru`.

    Raises:
        ConfigError: there is no such cell.
    """

    plain: ClassVar[type[BasePolicy]] = RecurrentActorCriticPolicy  # sb3-contrib's, which files hold with LSTMs

    def __init__(self, *arguments: Any, cell: str = "lstm", **settings: Any) -> None:
        if cell not in list(CELLS):  # it may have no hash
            refuse("cell", cell, " or ".join(CELLS), "policy_kwargs.cell")
        super().__init__(*arguments, **settings)
        if cell == "lstm":
            return
        for name in ("lstm_actor", "lstm_critic"):
            if (lstm := getattr(self, name)) is not None:
                setattr(self, name, GRU(lstm.input_size, lstm.hidden_size, lstm.num_layers, **self.lstm_kwargs))
        make: Any = self.optimizer_class
        self.optimizer = make(self.parameters(), lr=self.optimizer.param_groups[0]["lr"], **self.optimizer_kwargs)


MEMORY_POLICIES = with_kin(MemoryPolicy, "Memory", sb3_contrib.RecurrentPPO.policy_aliases)


class RecurrentRolloutPolicy(RolloutPolicy):
    """Acts as `RecurrentPPO.collect_rollouts` does; on the fused path by the kernels, if they cover the policy.

    The states are hidden and cell state of the actor's LSTM, then those of the critic's.
    """

    @override
    def initial_states(self, rows: int) -> States:
        lstm: Any = self.algorithm.policy.lstm_actor
        return tuple(np.zeros((lstm.num_layers, rows, lstm.hidden_size), dtype=np.float32) for _ in range(4))

    def _act_by_torch(self, inputs: PolicyInputs) -> Decision:
        hidden_pi, cell_pi, hidden_vf, cell_vf = self._tensors(inputs.states)
        with th.no_grad():
            chosen, estimates, of_chosen, after = self.algorithm.policy(
                self._tensor(inputs.observations),
                RNNStates((hidden_pi, cell_pi), (hidden_vf, cell_vf)),
                self._starts(inputs),
                **inputs.masked,
            )
        sampled, values, log_probs = chosen.cpu().numpy(), estimates.cpu().numpy().reshape(-1), of_chosen.cpu().numpy()
        states = tuple(state.cpu().numpy() for state in (*after.pi, *after.vf))
        return decision_of(self.algorithm, sampled, values, log_probs, states)

    def _memory(self, inputs: PolicyInputs) -> tuple[Any, ...]:
        return self._tensors(inputs.states)[2:], self._starts(inputs)

    def _tensors(self, states: States) -> tuple[th.Tensor, ...]:
        return tuple(th.as_tensor(np.ascontiguousarray(state), device=self.algorithm.device) for state in states)

    def _starts(self, inputs: PolicyInputs) -> th.Tensor:
        return th.as_tensor(inputs.starts, dtype=th.float32, device=self.algorithm.device)


class RecurrentPPO(FusedRollouts, sb3_contrib.RecurrentPPO):
    """A drop-in for `sb3_contrib.RecurrentPPO`: same arguments, same logger keys, same files.

    The *fused* path runs the update of plain MLPs behind LSTMs in compiled kernels, see `TwoPaths`. Where they do not
    cover it, PyTorch computes it, from sequences that are cut where episodes start: the LSTM gets each in one call, and
    sb3-contrib calls it once per time step as soon as a minibatch contains the start of an episode.

    `policy_kwargs={"cell": "gru"}` lets it have GRUs instead, see `MemoryPolicy`.
    """

    policy_aliases: ClassVar[dict[str, type[Any]]] = MEMORY_POLICIES
    rollout_policy = RecurrentRolloutPolicy

    @override
    def coverage(self) -> PathStillValid | str:
        """See `TwoPaths.coverage`; the layers do not matter where PyTorch computes them."""
        buffer = type(self.rollout_buffer)
        reason = first_reason(
            {
                f"policy class {type(self.policy).__name__}": not calls_lstm_as_sb3(self.policy),
                f"rollout buffer {buffer.__name__}": not issubclass(buffer, WholeSequences),
            }
        )
        if reason is not None:
            return reason
        for trains in (True, False):
            covered = actor_critic_coverage(self, trains=trains)
            if isinstance(covered, PathStillValid) and covered.why_not() is None:
                return covered
        return PathStillValid(self, [], settings=[(self, ["rollout_buffer"])])

    @override
    def why_slow(self) -> str | None:
        if self.update_path != "auto":
            return None
        covered = actor_critic_coverage(self, trains=True)
        return self.why_not_fused() or (covered if isinstance(covered, str) else covered.why_not())

    @override
    def _in_kernels_form(self, validity: PathStillValid) -> Any:
        if not validity.layers:
            return None
        from marl_sb3.extensions.fast.fused_recurrent import FusedRecurrentPolicy

        return FusedRecurrentPolicy(self.policy, validity.trains)

    @override
    def _update_class(self, fused: FusedRecurrentPolicy) -> type[FusedSequenceUpdate] | None:
        # A buffer that has made minibatches holds its transitions in another form.
        if not fused.trains or self.rollout_buffer.generator_ready:
            return None
        from marl_sb3.extensions.fast.fused_recurrent import FusedSequenceUpdate

        return FusedSequenceUpdate

    @override
    def _begin_update(self) -> FusedRolloutUpdate | None:
        update = super()._begin_update()
        if update is None and isinstance(self.rollout_buffer, WholeSequences):
            self.rollout_buffer.whole_sequences = self.takes_fused_path()
        return update

    @override
    def _inputs(self, known: dict[str, Any], observations: Array, starts: Array) -> PolicyInputs:
        of_actor, of_critic = known.get("lstm_states") or self._last_lstm_states  # type: ignore[misc]
        states = tuple(state.numpy() for state in (*of_actor, *of_critic))
        return PolicyInputs(observations, np.asarray(starts, dtype=bool), None, states)

    @override
    def _remembered(self, inputs: PolicyInputs, states: States) -> dict[str, Any]:
        hidden, cell, of_critic, critics_cell = map(th.from_numpy, states)
        starts = th.as_tensor(inputs.starts, dtype=th.float32)
        return {"lstm_states": RNNStates((hidden, cell), (of_critic, critics_cell)), "episode_starts": starts}

    @override
    def _add(self, known: dict[str, Any], step: tuple[Any, ...]) -> None:
        known["rollout_buffer"].add(*step, lstm_states=self._last_lstm_states)
        self._last_lstm_states = known["lstm_states"]

    def _setup_model(self) -> None:
        take_plain(self, "cell", "lstm")
        super()._setup_model()
        stock: Any = self.rollout_buffer
        is_dict = isinstance(self.observation_space, spaces.Dict)
        self.rollout_buffer = (SequenceDictRolloutBuffer if is_dict else SequenceRolloutBuffer)(
            self.n_steps,
            self.observation_space,
            self.action_space,
            stock.hidden_state_shape,
            self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
        )


class RecurrentPPOLearner(ContribPPOLearner):
    """See `OnPolicyLearner`."""

    buffer_classes = (MemoryRolloutBuffer, MemoryDictRolloutBuffer)
    rollout_policy = RecurrentRolloutPolicy


class TRPO(FusedRollouts, sb3_contrib.TRPO):
    """A drop-in for `sb3_contrib.TRPO`: same arguments, same logger keys, same files.

    The *fused* path runs the update of a plain MLP in compiled kernels, see `TwoPaths`. On PyTorch's path, frozen
    parameters, which sb3-contrib's update cannot have, stay as they are.
    """

    @override
    def _update_class(self, fused: Any) -> type[FusedRolloutUpdate]:
        from marl_sb3.extensions.fast.fused_trpo import FusedTrustRegionUpdate

        return FusedTrustRegionUpdate

    @override
    def record_update(self, means: Mapping[str, float], clip_range: float) -> None:
        for name, value in means.items():
            self.logger.record(f"train/{name}", value)
        self._record_std()
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def _compute_actor_grad(self, kl_div: th.Tensor, policy_objective: th.Tensor) -> Any:
        policy: Any = self.policy
        learned = [(name, each) for name, each in policy.named_parameters() if each.requires_grad]
        if all("value" in name for name, _ in learned):
            words = (
                "all parameters of TRPO's actor are frozen; accepted: some that learn, or policies_to_train without it"
            )
            raise ConfigError(words, key="policies_to_train")
        with replaced_methods((policy, "named_parameters", lambda: learned)):
            return super()._compute_actor_grad(kl_div, policy_objective)


class TRPOLearner(OnPolicyLearner):
    """The optimizer steps the critic alone; the step of the actor is not among `num_grad_updates_lifetime`."""

    takes_parts = ("central_critic", "curiosity")

    def _make_actor(self) -> Actor:
        algorithm: Any = self.algorithm
        if algorithm.sub_sampling_factor > 1 and isinstance(algorithm.observation_space, spaces.Dict):
            raise ConfigError(
                f"policy {self.policy_id!r}: sub_sampling_factor is {algorithm.sub_sampling_factor}, which TRPO cannot "
                "do with Dict observations; accepted: 1",
                key="sub_sampling_factor",
            )
        return super()._make_actor()


@with_arguments_of_bases()
class DuelingQRDQNPolicy(Dueling, QRDQNPolicy):
    """A policy of QR-DQN, see `Dueling`."""

    plain: ClassVar[type[BasePolicy]] = QRDQNPolicy

    @override
    def make_quantile_net(self) -> QuantileNetwork:
        return self.made(super().make_quantile_net(), "quantile_net")  # type: ignore[no-any-return]


class QRDQN(QLearning, sb3_contrib.QRDQN):
    """A drop-in for `sb3_contrib.QRDQN`: same arguments, same logger keys, same files. See `TwoPaths`."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = with_kin(
        DuelingQRDQNPolicy, "DuelingQRDQN", sb3_contrib.QRDQN.policy_aliases
    )
    covered_policy = QRDQNPolicy
    network_names = ("quantile_net", "quantile_net_target")

    @override
    def losses(self, samples: Any) -> tuple[th.Tensor, th.Tensor]:
        """See `DrawsByPriority.losses`; the loss stands for the error, as in Rainbow (Hessel et al. 2018)."""
        discounts = self.gamma if samples.discounts is None else samples.discounts
        rows = th.arange(len(samples.rewards), device=self.device)
        with th.no_grad():
            following = self.quantile_net_target(samples.next_observations)  # (rows, quantiles, actions)
            best = following.mean(dim=1).argmax(dim=1)
            targets = samples.rewards + (1 - samples.dones) * discounts * following[rows, :, best]
        quantiles = self.quantile_net(samples.observations)[rows, :, samples.actions[:, 0].long()]
        levels = (th.arange(self.n_quantiles, device=self.device) + 0.5) / self.n_quantiles
        errors = targets[:, None] - quantiles[:, :, None]
        huber = F.smooth_l1_loss(errors, th.zeros_like(errors), reduction="none")
        losses = (huber * (levels[:, None] - (errors < 0).float()).abs()).sum(dim=1).mean(dim=1)
        return losses, losses


class MaskableQRDQN(MaskedQLearning, QRDQN):
    """`QRDQN` that chooses among the actions that a mask allows; it learns in marl_sb3's trainings. See `TwoPaths`."""


class TQC(SoftActorCritic, sb3_contrib.TQC):
    """A drop-in for `sb3_contrib.TQC`: same arguments, same logger keys, same files. See `TwoPaths`."""

    covered_policy = TQCPolicy
