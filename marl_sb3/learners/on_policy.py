"""Drive one SB3 on-policy algorithm from the joint loop: act, observe, update.

This and `rollout_buffer` are the places that know SB3's private members. The order of random draws and of floating
point operations is that of SB3's `on_policy_algorithm.py`, so that one shared policy trains bit for bit as SB3 does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecTransposeImage

from marl_sb3.learners.algorithm_state import optimizer_settings
from marl_sb3.learners.build import build_algorithm
from marl_sb3.learners.evaluator import policy_evaluator
from marl_sb3.learners.exploration_noise import noise_of_rows
from marl_sb3.learners.fused_coverage import why_not_fused
from marl_sb3.learners.fused_update import FusedUpdate, LeanUpdate
from marl_sb3.learners.numeric_faults import check_update, check_weights, naming_faults
from marl_sb3.learners.policy_rows import PolicyRows
from marl_sb3.learners.policy_spec import PolicySpec
from marl_sb3.learners.ppo import PPO
from marl_sb3.learners.random_state import set_space_state, space_state
from marl_sb3.learners.rollout_buffer import (
    MaskedDictRolloutBuffer,
    MaskedRolloutBuffer,
    OpenTransitions,
    open_state,
    read_open,
)
from marl_sb3.metrics import Result
from marl_sb3.state import Fields, State
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.base import VecStep
from marl_sb3.vec_env.observations import map_arrays

_log = logging.getLogger(__name__)

LEARNER_METRICS = (
    "policy_loss",
    "vf_loss",
    "vf_loss_unclipped",
    "total_loss",
    "entropy",
    "mean_kl_loss",
    "vf_explained_var",
    "clip_fraction",
    "gradients_global_norm",
    "curr_lr",
    "num_grad_updates_lifetime",
    "num_trainable_parameters",
    "num_module_steps_trained",
)


@dataclass
class _Decision:
    """What a policy thought and did in one step, (rows, ...) each; zeros in rows that do not act."""

    acted: BoolArray
    observations: Observations
    actions: Array
    values: Array
    log_probs: Array


class OnPolicyLearner:
    """One policy: its SB3 algorithm, its rows, its rollout.

    Args:
        rows: the rows of the policy.
        spec: algorithm, network and hyperparameters.
        n_steps: env steps per env in a rollout.
        trained: whether it learns; if not it only acts.
        seed: for the weights and everything drawn afterwards.
        device: as in SB3.
        update_path: see `marl_sb3.PPO`; other algorithms have one way only.

    Raises:
        ConfigError: the hyperparameters do not fit the rollout or the spaces.
    """

    def __init__(
        self,
        rows: PolicyRows,
        spec: PolicySpec,
        n_steps: int,
        trained: bool,
        seed: int | None,
        device: str,
        update_path: str = "auto",
    ) -> None:
        self.rows = rows
        self.trained = trained
        self.algorithm = build_algorithm(rows, spec, n_steps, seed, device)
        self.algorithm.set_logger(Logger(None, []))
        self._grad_updates = 0  # of stock algorithms, which do not count them
        if isinstance(self.algorithm, PPO):
            self._choose_path(self.algorithm, update_path)
        else:
            self.policy.optimizer.register_step_post_hook(self._count_grad_update)
        self._starts: BoolArray = np.ones(rows.num_rows, dtype=bool)
        self._open: OpenTransitions | None = None  # of the latest rollout, for the next one
        self._update: FusedUpdate | LeanUpdate | None = None
        self._evaluator = policy_evaluator(self.algorithm)

    def _choose_path(self, algorithm: PPO, update_path: str) -> None:
        if update_path != "auto":  # a subclass may have chosen already
            algorithm.update_path = update_path
        fused = algorithm.fused_policy()
        reason = "" if fused or algorithm.update_path == "lean" else f" ({why_not_fused(algorithm)})"
        _log.info("policy %s: %s update%s", self.rows.policy_id, "fused" if fused else "lean", reason)

    @property
    def policy(self) -> Any:
        """The SB3 policy, a torch module."""
        return self.algorithm.policy

    @property
    def buffer(self) -> MaskedRolloutBuffer | MaskedDictRolloutBuffer:
        """The rollout buffer."""
        return self.algorithm.rollout_buffer  # type: ignore[return-value]

    def begin_episodes(self) -> None:
        """All envs have just been reset."""
        self._starts = np.ones(self.rows.num_rows, dtype=bool)
        self._open = None

    def begin_rollout(self) -> None:
        """Empty the buffer."""
        self.policy.set_training_mode(False)
        self.buffer.reset()
        if self.algorithm.use_sde:
            with naming_faults(self.rows.policy_id, "rollout"):
                self.policy.reset_noise(self.rows.num_rows)

    def act(self, groups: Sequence[Observations], to_act: BoolArray, step: int) -> Array:
        """Choose actions; a policy that learns opens a transition for each row that acts.

        Args:
            groups: per group of agents, observations (E, A_group, ...).
            to_act: (E, all agents) bool.
            step: env step within the rollout.

        Returns:
            (rows, *action shape), as the env takes them; rows that do not act hold filler that no env reads.
        """
        if step == 0:  # not before: callbacks may set weights when a rollout starts
            self._evaluator = policy_evaluator(self.algorithm)
        frequency = self.algorithm.sde_sample_freq
        if self.algorithm.use_sde and frequency > 0 and step % frequency == 0:
            self.policy.reset_noise(self.rows.num_rows)
        acting = self.rows.of_agents(to_act)
        with naming_faults(self.rows.policy_id, f"rollout, step {step}"):
            decision = self._decide(self._prepared(self.rows.observations(groups)), acting)
        if self.trained:
            self._store(decision)
        return self._env_actions(decision.actions)

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

    def _prepared(self, observations: Observations) -> Observations:
        env = self.algorithm.env
        return env.transpose_observations(observations) if isinstance(env, VecTransposeImage) else observations

    def _decide(self, observations: Observations, acting: BoolArray) -> _Decision:
        if acting.all():
            return _Decision(acting, observations, *self._evaluator.act(observations))
        # Filler observations of rows that do not act need not lie in the space: they stay out of the network.
        space = self.algorithm.action_space
        all_actions = np.zeros((len(acting), *(space.shape or ())), dtype=space.dtype)
        all_values, all_log_probs = (np.zeros(len(acting), dtype=np.float32) for _ in range(2))
        if acting.any():
            seen = map_arrays(lambda array: array[acting], observations)
            with noise_of_rows(self.policy, acting):
                all_actions[acting], all_values[acting], all_log_probs[acting] = self._evaluator.act(seen)
        return _Decision(acting, observations, all_actions, all_values, all_log_probs)

    def _env_actions(self, actions: Array) -> Array:
        """Actions within the bounds of the env, as in `OnPolicyAlgorithm.collect_rollouts`."""
        space = self.algorithm.action_space
        if not isinstance(space, spaces.Box):
            return actions
        if self.policy.squash_output:
            return self.policy.unscale_action(actions)  # type: ignore[no-any-return]
        return np.clip(actions, space.low, space.high)

    def observe(self, step: VecStep) -> None:
        """Store what came of the actions, and what rows that wait were paid; only for a policy that learns."""
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
            values = self._evaluator.final_values(observations)
            rewards[self.rows.of_agents(wanted)] += self.algorithm.gamma * values

    def finish_rollout(self, groups: Sequence[Observations], to_act: BoolArray) -> None:
        """Compute returns and advantages; `groups` and `to_act` are those of the step after the rollout.

        The transition of a row that waits is not over: it opens the next rollout. What its agent did before leads to
        the value that the policy saw when the transition began.
        """
        acting = self.rows.of_agents(to_act)
        values = self._values(self._prepared(self.rows.observations(groups)), acting)
        starts = self._starts
        self._open = self.buffer.take_open(~acting)
        if self._open is not None:
            values = np.where(self._open.rows, self._open.columns["values"], values)
            starts = np.where(self._open.rows, self._open.columns["episode_starts"] > 0, starts)
        self.buffer.compute_returns_and_advantage(last_values=th.as_tensor(values), dones=starts)

    def _values(self, observations: Observations, acting: BoolArray) -> Array:
        if acting.all():
            return self._evaluator.values(observations)
        values = np.zeros(self.rows.num_rows, dtype=np.float32)
        if acting.any():
            values[acting] = self._evaluator.values(map_arrays(lambda array: array[acting], observations))
        return values

    def prepare_update(self, progress_remaining: float) -> None:
        """The part of an update in which policies take turns: it draws random numbers.

        Args:
            progress_remaining: from 1 at the start of training to 0 at its end, for schedules.
        """
        self.algorithm._current_progress_remaining = progress_remaining
        self._update = None
        if self.buffer.num_transitions:
            self._update = self._prepared_update()

    def _prepared_update(self) -> FusedUpdate | LeanUpdate:
        algorithm = self.algorithm
        if isinstance(algorithm, PPO) and type(algorithm).train is PPO.train:
            return algorithm.prepare_update()
        return LeanUpdate(algorithm.train)

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Everything but the tensors; at the boundary of an iteration, where the rollout is not needed any more."""
        algorithm = self.algorithm
        return {
            "starts": self._starts,
            "open": None if self._open is None else open_state(self._open),
            "num_timesteps": algorithm.num_timesteps,
            "n_updates": algorithm._n_updates,
            "grad_updates": getattr(algorithm, "num_grad_updates", self._grad_updates),
            "progress_remaining": algorithm._current_progress_remaining,
            "optimizers": optimizer_settings(algorithm),
            "observation_space": space_state(algorithm.observation_space),
            "action_space": space_state(algorithm.action_space),
        }

    def set_state(self, state: Fields, *, same_envs: bool = True) -> None:
        """Go on from where `get_state` was called; the tensors have been set before.

        Args:
            state: what it returned.
            same_envs: False if it was called with another number of envs: then episodes begin.

        Raises:
            CheckpointError: it is not the state of such a policy.
        """
        algorithm = self.algorithm
        self.begin_episodes()
        if same_envs:
            self._starts = state.array("starts", np.bool_, (self.rows.num_rows,))
            self._open = None if state.value("open") is None else read_open(state.fields("open"), self.buffer)
        algorithm.num_timesteps = state.whole("num_timesteps")
        algorithm._n_updates = state.whole("n_updates")
        algorithm._current_progress_remaining = state.number("progress_remaining")
        if isinstance(algorithm, PPO):
            algorithm.num_grad_updates = state.whole("grad_updates")
        else:
            self._grad_updates = state.whole("grad_updates")
        set_space_state(algorithm.observation_space, state, "observation_space")
        set_space_state(algorithm.action_space, state, "action_space")

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """These envs have begun new episodes: nothing follows from their last step."""
        self._starts.reshape(self.rows.num_envs, -1)[list(env_indices)] = True
        if self._open is not None:
            self._open.rows.reshape(self.rows.num_envs, -1)[list(env_indices)] = False

    # --- Update ------------------------------------------------------------------------------------------------------

    @property
    def runs_beside_others(self) -> bool:
        """Whether the prepared update may run in a thread of its own."""
        return isinstance(self._update, FusedUpdate)

    def run_update(self) -> None:
        """The update itself."""
        if self._update is not None:
            with naming_faults(self.rows.policy_id, "update"):
                self._update.run()

    def finish_update(self) -> Result:
        """Take over the results.

        Returns:
            The metrics below `learners/{policy}/`.

        Raises:
            NumericError: a loss, a gradient or a weight is not finite.
        """
        if isinstance(self._update, FusedUpdate):
            self.algorithm.finish_update(self._update)  # type: ignore[attr-defined]
            self.buffer.samples_drawn += self._update.samples_drawn
        recorded = dict(self.algorithm.logger.name_to_value)
        self.algorithm.logger.dump()
        check_update(self.rows, recorded, self._update_stats(recorded).get("gradients_global_norm"), self.buffer)
        check_weights(self.rows.policy_id, self.policy)
        return self._metrics(recorded)

    def _update_stats(self, recorded: dict[str, Any]) -> dict[str, float]:
        """What `marl_sb3.PPO` knows beyond what SB3 records."""
        return getattr(self.algorithm, "update_stats", {}) if recorded else {}

    def metrics_before_training(self) -> Result:
        """The same keys as `finish_update` returns, nothing measured yet."""
        return self._metrics({})

    def _metrics(self, recorded: dict[str, Any]) -> Result:
        entropy_loss = recorded.get("train/entropy_loss")
        extra = self._update_stats(recorded)
        parameters = [p.numel() for p in self.policy.parameters() if p.requires_grad]
        values = {
            "policy_loss": recorded.get("train/policy_gradient_loss"),
            "vf_loss": recorded.get("train/value_loss"),
            "vf_loss_unclipped": extra.get("vf_loss_unclipped", self._unclipped_value_loss(recorded)),
            "total_loss": self._total_loss(recorded),
            "entropy": None if entropy_loss is None else -entropy_loss,
            "mean_kl_loss": recorded.get("train/approx_kl"),
            "vf_explained_var": recorded.get("train/explained_variance"),
            "clip_fraction": recorded.get("train/clip_fraction"),
            "gradients_global_norm": extra.get("gradients_global_norm"),
            "curr_lr": recorded.get("train/learning_rate"),
            "num_grad_updates_lifetime": getattr(self.algorithm, "num_grad_updates", self._grad_updates),
            "num_trainable_parameters": sum(parameters),
            "num_module_steps_trained": self.buffer.samples_drawn if recorded else 0,
        }
        return {name: values[name] for name in LEARNER_METRICS}

    def _unclipped_value_loss(self, recorded: dict[str, Any]) -> float | None:
        clipped = getattr(self.algorithm, "clip_range_vf", None) is not None
        return None if clipped else recorded.get("train/value_loss")

    def _total_loss(self, recorded: dict[str, Any]) -> float | None:
        """The mean over minibatches; SB3's own `train/loss` is that of the last one."""
        if "train/policy_gradient_loss" not in recorded:
            return None
        algorithm = self.algorithm
        return float(
            recorded["train/policy_gradient_loss"]
            + algorithm.ent_coef * recorded["train/entropy_loss"]
            + algorithm.vf_coef * recorded["train/value_loss"]
        )

    def _count_grad_update(self, *_: Any) -> None:
        self._grad_updates += 1
