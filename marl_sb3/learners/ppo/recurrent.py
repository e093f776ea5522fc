"""RecurrentPPO: PPO with LSTMs, by sb3-contrib."""

from __future__ import annotations

from typing import Any

import numpy as np
import sb3_contrib
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from marl_sb3.learners.buffers.recurrent import MemoryDictRolloutBuffer, MemoryRolloutBuffer
from marl_sb3.learners.buffers.sequences import SequenceDictRolloutBuffer, SequenceRolloutBuffer, WholeSequences
from marl_sb3.learners.coverage import Reliance, first_reason
from marl_sb3.learners.deciders import Batch
from marl_sb3.learners.on_policy_actor import (
    OnPolicyDecider,
    OnPolicyDecision,
    no_on_policy_decision,
    on_policy_decision,
)
from marl_sb3.learners.ppo.fused.coverage import memory_coverage
from marl_sb3.learners.ppo.fused.recurrent_policy import FusedRecurrentPolicy
from marl_sb3.learners.ppo.learner import ContribPPOLearner
from marl_sb3.learners.sb3.predict import States
from marl_sb3.learners.sb3.private import calls_lstm_as_sb3
from marl_sb3.learners.update_path import TwoPaths
from marl_sb3.types import Array, FloatArray
from marl_sb3.vec_env.observations import map_arrays


class RecurrentPPO(TwoPaths, sb3_contrib.RecurrentPPO):
    """A drop-in for `sb3_contrib.RecurrentPPO`: same arguments, same logger keys, same files.

    Its sequences are cut where episodes start. On the *fused* path the LSTM gets each sequence in one call; sb3-contrib
    calls it once per time step as soon as a minibatch contains the start of an episode. See `TwoPaths`.
    """

    _acts: tuple[FusedRecurrentPolicy, Reliance] | None = None  # the kernels that act, and what they rely on

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`; the layers do not matter, since PyTorch computes them."""
        buffer = type(self.rollout_buffer)
        reason = first_reason(
            {
                f"policy class {type(self.policy).__name__}": not calls_lstm_as_sb3(self.policy),
                f"rollout buffer {buffer.__name__}": not issubclass(buffer, WholeSequences),
            }
        )
        return reason or Reliance(self, [], settings=[(self, ["rollout_buffer", "policy"])])

    def _in_kernels_form(self) -> bool:
        return True

    def fused_policy(self) -> FusedRecurrentPolicy | None:
        """The policy in the kernels' layout, if they act in the rollouts of `MultiAgentAlgorithm`.

        Raises:
            ConfigError: see `TwoPaths.takes_fused_path`.
        """
        if not self.takes_fused_path():
            return None
        if self._acts is None or not self._acts[1].holds():
            found = memory_coverage(self)
            covered = isinstance(found, Reliance) and found.why_not() is None
            self._acts = (FusedRecurrentPolicy(self.policy), found) if covered else None  # type: ignore[assignment]
        return None if self._acts is None else self._acts[0]

    def _setup_model(self) -> None:
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

    def train(self) -> None:
        """Update the policy from the rollout buffer, see `sb3_contrib.RecurrentPPO.train`."""
        buffer: Any = self.rollout_buffer
        if isinstance(buffer, WholeSequences):
            buffer.whole_sequences = self.takes_fused_path()
        super().train()


class RecurrentPPOLearner(ContribPPOLearner):
    """See `OnPolicyLearner`."""

    @staticmethod
    def buffer_class(*, is_dict: bool) -> type[RolloutBuffer]:
        """See `OnPolicyLearner.buffer_class`."""
        return MemoryDictRolloutBuffer if is_dict else MemoryRolloutBuffer

    def _make_decider(self) -> OnPolicyDecider:
        return RecurrentDecider(self.algorithm)


class RecurrentDecider:
    """Chooses actions as `RecurrentPPO.collect_rollouts` does; on the fused path by the kernels, if they cover it.

    The states are hidden and cell state of the actor's LSTM, then those of the critic's.
    """

    takes_masks = False

    def __init__(self, algorithm: OnPolicyAlgorithm) -> None:
        self._algorithm = algorithm
        self.read_weights()

    def read_weights(self) -> None:
        """See `OnPolicyDecider.read_weights`."""
        self._policy: Any = self._algorithm.policy
        self._fused = self._algorithm.fused_policy() if isinstance(self._algorithm, RecurrentPPO) else None
        if self._fused is not None:
            self._fused.read_parameters()

    def initial_states(self, rows: int) -> States:
        """See `Decider.initial_states`."""
        lstm = self._policy.lstm_actor
        return tuple(np.zeros((lstm.num_layers, rows, lstm.hidden_size), dtype=np.float32) for _ in range(4))

    def decide(self, batch: Batch) -> tuple[OnPolicyDecision, States]:
        """See `Decider.decide`."""
        if self._fused is not None:
            chosen, after_step = self._fused.decide(_array(batch), batch.starts, batch.states)
            return on_policy_decision(self._algorithm, *chosen), after_step
        observations = obs_as_tensor(batch.observations, self._algorithm.device)
        hidden_pi, cell_pi, hidden_vf, cell_vf = self._tensors(batch.states)
        with th.no_grad():
            actions, values, log_probs, after = self._policy(
                observations, RNNStates((hidden_pi, cell_pi), (hidden_vf, cell_vf)), self._starts(batch)
            )
        sampled = actions.cpu().numpy(), values.cpu().numpy().reshape(-1), log_probs.cpu().numpy()
        states = tuple(state.cpu().numpy() for state in (*after.pi, *after.vf))
        return on_policy_decision(self._algorithm, *sampled), states

    def no_decision(self, rows: int) -> OnPolicyDecision:
        """See `Decider.no_decision`."""
        return no_on_policy_decision(self._algorithm, rows)

    def values(self, batch: Batch) -> FloatArray:
        """See `OnPolicyDecider.values`."""
        if self._fused is not None:
            return self._fused.values_of(_array(batch), batch.starts, batch.states)
        return self._values(obs_as_tensor(batch.observations, self._algorithm.device), batch)

    def final_values(self, batch: Batch) -> FloatArray:
        """See `OnPolicyDecider.final_values`; PyTorch's one by one, as sb3-contrib does."""
        if self._fused is not None:
            return self._fused.values_of(_array(batch), batch.starts, batch.states)
        rows = np.eye(len(batch.starts), dtype=bool)
        return np.concatenate([self._final_value(batch.of_rows(row)) for row in rows])

    def _final_value(self, batch: Batch) -> FloatArray:
        observation = map_arrays(lambda array: array[0], batch.observations)
        return self._values(self._policy.obs_to_tensor(observation)[0], batch)

    def _values(self, observations: Any, batch: Batch) -> FloatArray:
        with th.no_grad():
            values = self._policy.predict_values(observations, self._tensors(batch.states)[2:], self._starts(batch))
        result: FloatArray = values.cpu().numpy().reshape(-1)
        return result

    def _tensors(self, states: States) -> tuple[th.Tensor, ...]:
        return tuple(th.as_tensor(np.ascontiguousarray(state), device=self._algorithm.device) for state in states)

    def _starts(self, batch: Batch) -> th.Tensor:
        return th.as_tensor(batch.starts, dtype=th.float32, device=self._algorithm.device)


def _array(batch: Batch) -> Array:
    """Return the observations, which are no mapping: the kernels cover no `Dict` space."""
    assert isinstance(batch.observations, np.ndarray)
    return batch.observations
