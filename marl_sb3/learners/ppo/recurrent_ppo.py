"""`sb3_contrib.RecurrentPPO` with the same results, faster."""

from __future__ import annotations

from typing import Any

import sb3_contrib
from gymnasium import spaces

from marl_sb3.learners.buffers.sequences import SequenceDictRolloutBuffer, SequenceRolloutBuffer, WholeSequences
from marl_sb3.learners.fused.coverage import first_reason
from marl_sb3.learners.ppo.fused.coverage import why_no_fused_memory
from marl_sb3.learners.ppo.fused.recurrent_policy import FusedRecurrentPolicy
from marl_sb3.learners.sb3.private import calls_lstm_as_sb3
from marl_sb3.learners.update_path import TwoPaths


class RecurrentPPO(TwoPaths, sb3_contrib.RecurrentPPO):
    """A drop-in for `sb3_contrib.RecurrentPPO`: same arguments, same logger keys, same files.

    Its sequences are cut where episodes start. On the *fused* path the LSTM gets each sequence in one call; sb3-contrib
    calls it once per time step as soon as a minibatch contains the start of an episode. See `TwoPaths`.
    """

    _fused: FusedRecurrentPolicy | None = None

    def why_not_fused(self) -> str | None:
        """See `TwoPaths.why_not_fused`."""
        buffer = type(self.rollout_buffer)
        return first_reason(
            {
                f"policy class {type(self.policy).__name__}": not calls_lstm_as_sb3(self.policy),
                f"rollout buffer {buffer.__name__}": not issubclass(buffer, WholeSequences),
            }
        )

    def fused_policy(self) -> FusedRecurrentPolicy | None:
        """The policy in the kernels' layout, if they act in the rollouts of `MultiAgentAlgorithm`.

        Raises:
            ConfigError: see `TwoPaths.takes_fused_path`.
        """
        if not self.takes_fused_path() or why_no_fused_memory(self) is not None:
            return None
        if self._fused is None or not self._fused.is_of(self.policy):
            self._fused = FusedRecurrentPolicy(self.policy)
        return self._fused

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_fused"]

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
