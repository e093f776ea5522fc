"""Fill the rollout buffer of an SB3 on-policy algorithm with the actor's decisions and the rewards for them.

The order of random draws and of floating point operations is that of SB3's `on_policy_algorithm.py`, so that one shared
policy trains bit for bit as SB3 does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecTransposeImage

from marl_sb3.acting.actor import Batch, required_masks
from marl_sb3.acting.policy import OnPolicyActor, OnPolicyDecision
from marl_sb3.experience.rollout import (
    CarriedTransitions,
    MaskedDictRolloutBuffer,
    MaskedRolloutBuffer,
    carried_state,
    read_carried,
)
from marl_sb3.learners.numeric_faults import policy_in_errors
from marl_sb3.processing import RowProcessing
from marl_sb3.storage.parts import Commit, Field, Fields, Stateful, computed, in_order, integer, part
from marl_sb3.storage.state import MAX_COUNT, StateReader
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.step import VecStep


class OnPolicyCollector(Stateful):
    """See `Collector`; the rollout is that of `algorithm.rollout_buffer`.

    Args:
        actor: acts for the rows of the policy.
        algorithm: the SB3 algorithm of the policy. Its rollout buffer has these rows.
        processing: of the rows' observations, rewards and actions.
        records: whether the policy is trained, so that experience is recorded.
    """

    def __init__(
        self, actor: OnPolicyActor, algorithm: OnPolicyAlgorithm, processing: RowProcessing, records: bool
    ) -> None:
        self.rows = actor.rows
        self.actor = actor
        self.algorithm = algorithm
        self.processing = processing
        self.records = records
        self._open: CarriedTransitions | None = None  # carried over from the latest rollout to the next

    @property
    def buffer(self) -> MaskedRolloutBuffer | MaskedDictRolloutBuffer:
        """The rollout buffer."""
        return self.algorithm.rollout_buffer  # type: ignore[return-value]

    @property
    def steps_left(self) -> int:
        """See `Collector.steps_left`."""
        return self.algorithm.n_steps - self.actor.step if self.records else 0

    def begin_episodes(self) -> None:
        """See `Collector.begin_episodes`."""
        self.actor.begin_episodes()
        self.processing.begin_episodes()
        self._open = None

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """See `Collector.restart_envs`."""
        self.actor.restart_envs(env_indices)
        self.processing.restart_envs(env_indices)
        lost = self.rows.of_envs(env_indices)
        if self._is_within(self.actor.step):
            self.buffer.break_off(lost)
        if self._open is not None:
            self._open = replace(self._open, rows=self._open.rows & ~lost)

    def begin_rollout(self) -> None:
        """See `Collector.begin_rollout`."""
        self.algorithm.policy.set_training_mode(False)
        self.buffer.reset()
        with policy_in_errors(self.rows.policy_id, "rollout"):
            self.actor.begin_rollout()

    def read_weights(self) -> None:
        """See `Collector.read_weights`."""
        self.actor.read_weights()

    # --- Acting ------------------------------------------------------------------------------------------------------

    def act(self, step: VecStep) -> Array:
        """See `Collector.act`; if the policy is trained, a transition is opened for each row that acts."""
        acting = self.rows.of_agents(step.to_act)
        observations = self._prepared(self.processing.look(step))
        seen = Batch(observations, self.actor.starts, self.masks(step), self.actor.states)
        with policy_in_errors(self.rows.policy_id, "rollout, step {step}", self.actor.step):
            decision = self.actor.act(observations, acting, seen.masks)
        if self.records:
            self._store(seen, acting, decision)
        return self.processing.act(decision.actions, acting)

    @property
    def takes_masks(self) -> bool:
        """See `Collector.takes_masks`."""
        return self.actor.takes_masks

    def masks(self, step: VecStep) -> BoolArray | None:
        """Return the (rows, n) action masks of a step; None for a policy without masks.

        Raises:
            ConfigError: the policy needs masks, an agent acts next, and the env gives none.
        """
        return required_masks(self.rows, step, type(self.algorithm).__name__) if self.takes_masks else None

    def _prepared(self, observations: Observations) -> Observations:
        env = getattr(self.algorithm, "env", None)
        return env.transpose_observations(observations) if isinstance(env, VecTransposeImage) else observations

    def _store(self, seen: Batch, acted: BoolArray, decision: OnPolicyDecision) -> None:
        _, sampled, values, log_probs = decision
        observations, starts, masks, states = seen
        self.buffer.begin_step(observations, sampled, starts, values, log_probs, acted, masks=masks, states=states)
        if self._open is not None:
            self.buffer.put_open(self._open)
            self._open = None
        self.algorithm.num_timesteps += int(np.count_nonzero(acted))

    # --- Rewards and ends --------------------------------------------------------------------------------------------

    def observe(self, step: VecStep) -> None:
        """See `Collector.observe`."""
        ended = self.rows.of_agents(step.terminated | step.truncated)
        rewards = self.processing.observe(step, self._discounted_values if self.records else None)
        if self.records:
            self.buffer.pay(rewards)
            self.buffer.end(ended)
        self.actor.end_episodes(ended)

    def _discounted_values(self, final_observations: Observations, rows: BoolArray) -> Array:
        values = self.actor.final_values(self._prepared(final_observations), rows)
        return self.algorithm.gamma * values

    def break_off(self, step: VecStep) -> None:
        """See `Collector.break_off`."""
        self.processing.observe(step)
        self.actor.end_episodes(self.rows.of_agents(step.terminated | step.truncated))
        self.actor.step = self.algorithm.n_steps

    def finish_rollout(self, step: VecStep) -> None:
        """Compute returns and advantages.

        The open transition of a row that waits is moved to the start of the next rollout. The return of the row's
        transition before it is bootstrapped from the value that the policy estimated when the open one began.
        """
        if not self.records:
            return
        acting = self.rows.of_agents(step.to_act)
        values: Array = self.actor.values(self._prepared(self.processing.look(step)), acting)
        starts = self.actor.starts
        self._open = self.buffer.take_open(~acting)
        if self._open is not None:
            values = np.where(self._open.rows, self._open.columns["values"], values)
            starts = np.where(self._open.rows, self._open.columns["episode_starts"] > 0, starts)
        self.buffer.compute_returns_and_advantage(last_values=th.as_tensor(values), dones=starts)

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        "actor": part("actor"),
        "processing": part("processing"),
        "step": integer("actor.step", 0, lambda self: self.algorithm.n_steps if self.records else MAX_COUNT),
        "open": Field(
            lambda self: None if self._open is None else carried_state(self._open),
            lambda self, state, name: self._read_open(state, name),
            lambda self, waiting: setattr(self, "_open", waiting),
        ),
        # The arrays of the rollout, only while they are still needed.
        "begun": computed(
            lambda self: self.buffer.begun_state() if self._is_within(self.actor.step) else None,
            lambda self, state, name: self._read_begun(state, name),
        ),
    }

    def _is_within(self, step: int) -> bool:
        return self.records and 0 < step < self.algorithm.n_steps

    def _read_open(self, state: StateReader, name: str) -> CarriedTransitions | None:
        return None if state.value(name) is None else read_carried(state.fields(name), self.buffer)

    def _read_begun(self, state: StateReader, name: str) -> Commit:
        step = state.integer("step")
        if not self._is_within(step):
            state.null(name)
            return self.buffer.reset
        return in_order([self.buffer.reset, self.buffer.read_begun(state.fields(name), step)])

    def state_was_set(self) -> None:
        """Prepare the policy to act."""
        self.algorithm.policy.set_training_mode(False)
