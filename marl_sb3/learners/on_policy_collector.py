"""Act for one policy by its SB3 on-policy algorithm, and fill its rollout buffer.

The order of random draws and of floating point operations is that of SB3's `on_policy_algorithm.py`, so that one shared
policy trains bit for bit as SB3 does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecTransposeImage

from marl_sb3.learners.actor import noise_matrices, of_acting_rows, read_noise_matrices, set_noise_matrices
from marl_sb3.learners.buffers.rollout import (
    MaskedDictRolloutBuffer,
    MaskedRolloutBuffer,
    OpenTransitions,
    open_state,
    read_open,
)
from marl_sb3.learners.forward_pass import forward_pass
from marl_sb3.learners.numeric_faults import naming_faults
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.step import VecStep


@dataclass
class _Decision:
    """What a policy thought and did in one step, (rows, ...) each; zeros in rows that do not act."""

    acted: BoolArray
    observations: Observations
    actions: Array
    values: Array
    log_probs: Array


class OnPolicyCollector:
    """See `Collector`; the rollout is that of `algorithm.rollout_buffer`.

    Args:
        rows: the rows of the policy.
        algorithm: its SB3 algorithm, whose buffer is made for these rows.
        records: whether its learner learns; if not it only acts.
    """

    def __init__(self, rows: PolicyRows, algorithm: OnPolicyAlgorithm, records: bool) -> None:
        self.rows = rows
        self.algorithm = algorithm
        self.records = records
        self._step = 0  # within the rollout
        self._starts: BoolArray = np.ones(rows.num_rows, dtype=bool)
        self._open: OpenTransitions | None = None  # of the latest rollout, for the next one
        self._forward_pass = forward_pass(algorithm)

    @property
    def buffer(self) -> MaskedRolloutBuffer | MaskedDictRolloutBuffer:
        """The rollout buffer."""
        return self.algorithm.rollout_buffer  # type: ignore[return-value]

    @property
    def _policy(self) -> Any:
        return self.algorithm.policy

    @property
    def steps_left(self) -> int:
        """See `Collector.steps_left`."""
        return self.algorithm.n_steps - self._step if self.records else 0

    def begin_episodes(self) -> None:
        """See `Collector.begin_episodes`."""
        self._starts = np.ones(self.rows.num_rows, dtype=bool)
        self._open = None

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """See `Collector.restart_envs`."""
        rows = np.zeros((self.rows.num_envs, len(self.rows.agents)), dtype=bool)
        rows[list(env_indices)] = True
        lost = rows.reshape(-1)
        self._starts = self._starts | lost
        if self._under_way:
            self.buffer.break_off(lost)
        if self._open is not None:
            self._open = replace(self._open, rows=self._open.rows & ~lost)

    def begin_rollout(self) -> None:
        """See `Collector.begin_rollout`."""
        self._step = 0
        self._policy.set_training_mode(False)
        self.buffer.reset()
        if self.algorithm.use_sde:
            with naming_faults(self.rows.policy_id, "rollout"):
                self._policy.reset_noise(self.rows.num_rows)

    def read_weights(self) -> None:
        """See `Collector.read_weights`."""
        self._forward_pass = forward_pass(self.algorithm)

    # --- Acting ------------------------------------------------------------------------------------------------------

    def act(self, groups: Sequence[Observations], to_act: BoolArray) -> Array:
        """See `Collector.act`; a policy that learns opens a transition for each row that acts."""
        frequency = self.algorithm.sde_sample_freq
        if self.algorithm.use_sde and frequency > 0 and self._step % frequency == 0:
            self._policy.reset_noise(self.rows.num_rows)
        acting = self.rows.of_agents(to_act)
        with naming_faults(self.rows.policy_id, f"rollout, step {self._step}"):
            decision = self._decide(self._prepared(self.rows.observations(groups)), acting)
        if self.records:
            self._store(decision)
        self._step += 1
        return self._env_actions(decision.actions)

    def _prepared(self, observations: Observations) -> Observations:
        env = self.algorithm.env
        return env.transpose_observations(observations) if isinstance(env, VecTransposeImage) else observations

    def _decide(self, observations: Observations, acting: BoolArray) -> _Decision:
        rows, space = len(acting), self.algorithm.action_space
        nothing = [np.zeros((rows, *(space.shape or ())), dtype=space.dtype)]
        nothing += [np.zeros(rows, dtype=np.float32) for _ in range(2)]
        decided = of_acting_rows(self._forward_pass.act, observations, acting, self._policy, nothing)
        return _Decision(acting, observations, *decided)

    def _store(self, decision: _Decision) -> None:
        self.buffer.begin_step(
            decision.observations,
            decision.actions,
            self._starts,
            decision.values,
            decision.log_probs,
            decision.acted,
        )
        if self._open is not None:
            self.buffer.put_open(self._open)
            self._open = None
        self._starts = self._starts & ~decision.acted
        self.algorithm.num_timesteps += int(decision.acted.sum())

    def _env_actions(self, actions: Array) -> Array:
        """Actions within the bounds of the env, as in `OnPolicyAlgorithm.collect_rollouts`."""
        space = self.algorithm.action_space
        if not isinstance(space, spaces.Box):
            return actions
        if self._policy.squash_output:
            return self._policy.unscale_action(actions)  # type: ignore[no-any-return]
        return np.clip(actions, space.low, space.high)

    # --- What came of it ---------------------------------------------------------------------------------------------

    def observe(self, step: VecStep) -> None:
        """See `Collector.observe`."""
        if not self.records:
            return
        rewards = self.rows.of_agents(step.rewards).copy()  # the step's own stay as they are: others read them
        self._add_values_at_time_limits(step, rewards)
        self.buffer.pay(rewards)
        ended = self.rows.of_agents(step.terminated | step.truncated)
        self.buffer.end(ended)
        self._starts = self._starts | ended

    def _add_values_at_time_limits(self, step: VecStep, rewards: Array) -> None:
        """Truncation is not termination: bootstrap from the value of the final observation (SB3 issue 633)."""
        wanted = self.rows.mine & step.truncated & ~step.terminated
        if wanted.any():
            observations = self._prepared(step.final_observations.stacked(wanted))
            values = self._forward_pass.final_values(observations)
            rewards[self.rows.of_agents(wanted)] += self.algorithm.gamma * values

    def finish_rollout(self, groups: Sequence[Observations], to_act: BoolArray) -> None:
        """Compute returns and advantages.

        The transition of a row that waits is not over: it opens the next rollout. What its agent did before leads to
        the value that the policy saw when the transition began.
        """
        if not self.records:
            return
        acting = self.rows.of_agents(to_act)
        values = self._values(self._prepared(self.rows.observations(groups)), acting)
        starts = self._starts
        self._open = self.buffer.take_open(~acting)
        if self._open is not None:
            values = np.where(self._open.rows, self._open.columns["values"], values)
            starts = np.where(self._open.rows, self._open.columns["episode_starts"] > 0, starts)
        self.buffer.compute_returns_and_advantage(last_values=th.as_tensor(values), dones=starts)

    def _values(self, observations: Observations, acting: BoolArray) -> Array:
        nothing = np.zeros(len(acting), dtype=np.float32)
        (values,) = of_acting_rows(
            lambda seen: (self._forward_pass.values(seen),), observations, acting, self._policy, [nothing]
        )
        return values

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Where the rollout stands; its arrays and its noise only while they are still needed."""
        return {
            "starts": self._starts,
            "step": self._step,
            "open": None if self._open is None else open_state(self._open),
            "begun": self.buffer.begun_state() if self._under_way else None,
            "noise": noise_matrices(self._policy) if self._under_way and self.algorithm.use_sde else None,
        }

    @property
    def _under_way(self) -> bool:
        return self.records and 0 < self._step < self.algorithm.n_steps

    def read_state(self, state: StateReader) -> Callable[[], None]:
        """Check what `get_state` returned; see `Part.read_state`.

        Raises:
            CheckpointError: it is not the state of such a rollout.
        """
        step = state.integer("step", 0, self.algorithm.n_steps) if self.records else 0
        starts = state.array("starts", np.bool_, (self.rows.num_rows,))
        waiting = None if state.value("open") is None else read_open(state.fields("open"), self.buffer)
        set_begun = self._read_begun(state, step) if 0 < step < self.algorithm.n_steps else None

        def put_back() -> None:
            self._policy.set_training_mode(False)
            self._step, self._starts, self._open = step, starts, waiting
            self.buffer.reset()
            if set_begun is not None:
                set_begun()

        return put_back

    def _read_begun(self, state: StateReader, steps: int) -> Callable[[], None]:
        """The rollout that is under way, and the noise of gSDE that was drawn for it."""
        set_begun = self.buffer.read_begun(state.fields("begun"), steps)
        use_sde, policy = self.algorithm.use_sde, self._policy
        noise = read_noise_matrices(policy, self.rows.num_rows, state, "noise") if use_sde else None

        def put_back() -> None:
            set_begun()
            if noise is not None:
                set_noise_matrices(policy, noise)

        return put_back
