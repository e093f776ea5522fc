"""What PPO, A2C, MaskablePPO and TRPO of marl_sb3 have in common: rollouts and updates by the kernels."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from typing_extensions import override

from marl_sb3.core.acting.policy import PolicyInputs, RolloutPolicy
from marl_sb3.core.learners.learner import available_cores, blas_threads
from marl_sb3.core.on_policy.rollout import MaskedRolloutBuffer
from marl_sb3.core.sb3.inference import States
from marl_sb3.core.sb3.private import has_step_hook
from marl_sb3.core.sb3.tensors import count_steps
from marl_sb3.doors import Engine
from marl_sb3.errors import NumericError
from marl_sb3.extensions.fast.coverage import PathStillValid, actor_critic_coverage
from marl_sb3.extensions.fast.hybrid import HybridActions
from marl_sb3.extensions.fast.torch_updates import faster_images
from marl_sb3.extensions.fast.update_path import TwoPaths
from marl_sb3.output import print_text
from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.extensions.fast.fused_policy import FusedPolicy, FusedRolloutUpdate


_log = logging.getLogger(__name__)


class FusedOnPolicy(TwoPaths, HybridActions):
    """A base class, in front of SB3's class of the algorithm: the kernels act and update if they cover the policy."""

    num_grad_updates: int = 0  # optimizer steps taken since the object was made

    @override
    def coverage(self) -> PathStillValid | str:
        return actor_critic_coverage(self)

    def _in_kernels_form(self, validity: PathStillValid) -> FusedPolicy:
        from marl_sb3.extensions.fast.fused_policy import FusedPolicy

        return FusedPolicy(self.policy)

    def compute_returns(self, last_values: th.Tensor, dones: Array) -> None:
        """Fill in the rollout buffer's returns and advantages, with the bits of its `compute_returns_and_advantage`.

        The kernel does that, unless a subclass of the buffer computes something else.
        """
        buffer: Any = self.rollout_buffer
        compute = MaskedRolloutBuffer.compute_returns_and_advantage
        if type(buffer).compute_returns_and_advantage is not compute or self._made is None:
            buffer.compute_returns_and_advantage(last_values=last_values, dones=dones)
            return
        from marl_sb3.extensions.fast.kernels.acting import estimate

        starts = buffer.episode_starts if buffer.breaks is None else np.maximum(buffer.episode_starts, buffer.breaks)
        after = last_values.cpu().numpy().flatten(), 1.0 - dones.astype(np.float32)
        rates = np.float32(buffer.gamma), np.float32(buffer.gamma * buffer.gae_lambda)
        estimate(buffer.rewards, buffer.values, starts, buffer.acted, *after, *rates, buffer.advantages)
        buffer.returns = buffer.advantages + buffer.values

    @override
    def prepare_engine(self, policy_id: str, update_path: str, *, has_more_losses: bool) -> Engine | None:
        super().prepare_engine(policy_id, update_path, has_more_losses=has_more_losses)
        if self.takes_fused_path() and type(self)._update_class is FusedOnPolicy._update_class:
            from marl_sb3.compiling import compile_ahead
            from marl_sb3.extensions.fast.kernels import ppo

            compile_ahead(ppo.train)
        return self

    def train(self) -> None:
        """Update the policy from the rollout buffer.

        Raises:
            NumericError: a loss or gradient is not finite (fused path only); the weights stay as before that minibatch.
        """
        update = self._begin_update()
        with blas_threads(1):
            self._train_torch() if update is None else update.run(min(th.get_num_threads(), available_cores()))
        if update is not None:
            self.finish_update(update)
            if hasattr(self.rollout_buffer, "samples_drawn"):
                self.rollout_buffer.samples_drawn += update.samples_drawn
            if not update.is_finite:
                raise NumericError("a loss or a gradient is not finite; the update stopped at that minibatch")

    def prepare_update(self) -> FusedRolloutUpdate | None:
        """See `Engine.prepare_update`; the kernels release the GIL.

        None too where a user's subclass or instance trains in its own way, and where `target_kl` may end an epoch:
        such an update draws as many orders as it has epochs, before the one of the next policy draws.
        """
        draws_ahead = getattr(self, "target_kl", None) is None or not hasattr(self, "n_epochs")
        is_ours = getattr(self.train, "__func__", None) is FusedOnPolicy.train
        return self._begin_update() if is_ours and draws_ahead else None

    def _begin_update(self) -> FusedRolloutUpdate | None:
        """Do the part of an update that draws random numbers, in SB3's order, or that cannot run in parallel.

        Fused updates of several policies may then `run` at the same time; `finish_update` is called for one at a time.

        Returns:
            None if PyTorch updates the policy; then nothing was drawn.
        """
        fused = self.kernels()
        make = None if fused is None else self._update_class(fused)
        if make is None:
            return None
        self._update_learning_rate(self.policy.optimizer)
        return make(self, fused)

    def _update_class(self, fused: Any) -> type[FusedRolloutUpdate] | None:
        """Return the class of the updates of a policy in the kernels' form; None: PyTorch computes the next one."""
        from marl_sb3.extensions.fast.fused_policy import FusedRolloutUpdate

        return FusedRolloutUpdate

    def finish_update(self, update: FusedRolloutUpdate) -> None:
        """Write the results of a fused update into SB3's objects."""
        update.write_back()
        self._n_updates += update.n_epochs
        self.num_grad_updates += update.num_grad_updates
        self.record_update(update.means(), update.settings.clip_range)
        if update.settings.clip_range_vf < np.inf:
            self.logger.record("train/clip_range_vf", update.settings.clip_range_vf)
        if self.verbose >= 1 and update.reached_kl is not None:
            epoch = update.n_epochs - 1
            print_text(f"Early stopping at step {epoch} due to reaching max kl: {update.reached_kl:.2f}")

    def record_update(self, means: Mapping[str, float], clip_range: float) -> None:
        """Record in SB3's logger, under the same names, what the algorithm's `train` does; here, PPO's."""
        for name, recorded in _RECORDED_BY_PPO.items():
            self.logger.record(f"train/{recorded}", means[name])
        self._record_std()
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", clip_range)

    def _record_std(self) -> None:
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", th.exp(self.policy.log_std).mean().item())

    def _train_torch(self) -> None:
        """Update by SB3's own `train`."""
        counted = count_steps(self)
        try:
            with faster_images(self, self.rollout_buffer, "get"):
                super().train()
        finally:
            if counted is not None:
                counted.remove()


_RECORDED_BY_PPO = {
    "entropy_loss": "entropy_loss",
    "policy_loss": "policy_gradient_loss",
    "value_loss": "value_loss",
    "approx_kl": "approx_kl",
    "clip_fraction": "clip_fraction",
    "last_loss": "loss",
    "explained_variance": "explained_variance",
}


# --- Rollouts of `learn` ---------------------------------------------------------------------------------------------


class FusedRollouts(FusedOnPolicy):
    """`FusedOnPolicy` in the rollouts of `learn` too, where the algorithm has an SB3 `VecEnv`.

    They repeat those of SB3 with three differences: the kernels evaluate the policy where they cover it, the values of
    all agents that were truncated in a step are one batch, and callbacks get the locals that SB3 documents.
    """

    rollout_policy: ClassVar[type[RolloutPolicy]] = RolloutPolicy  # chooses the actions

    @override
    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        if self.kernels() is None:
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        known: dict[str, Any] = {
            "self": self,
            "env": env,
            "callback": callback,
            "rollout_buffer": rollout_buffer,
            "n_rollout_steps": n_rollout_steps,
        }
        policy = self.rollout_policy(self)  # not earlier: the callback may have changed the policy
        reads_again = has_step_hook(callback)
        for step in range(n_rollout_steps):
            if not self._take_step(policy, known, step):
                return False
            if reads_again:
                policy.refresh()
            self._store_step(policy, known)
        last_values = th.from_numpy(policy.values(self._inputs(known, known["new_obs"], known["dones"])))
        rollout_buffer.compute_returns_and_advantage(last_values=last_values, dones=known["dones"])
        callback.update_locals({**known, "n_steps": n_rollout_steps, "values": last_values})
        callback.on_rollout_end()
        return True

    def _inputs(self, known: dict[str, Any], observations: Array, starts: Array) -> PolicyInputs:
        """Return what the policy gets of all envs, after the step that is known; (envs,) starts of episodes."""
        return PolicyInputs(observations, starts)

    def _remembered(self, inputs: PolicyInputs, states: States) -> dict[str, Any]:
        """Return what is known of the states after a step, by its name among SB3's locals."""
        return {}

    def _add(self, known: dict[str, Any], step: tuple[Any, ...]) -> None:
        known["rollout_buffer"].add(*step)

    def _take_step(self, policy: RolloutPolicy, known: dict[str, Any], step: int) -> bool:
        """Take one step of all envs; `known` is filled with the `locals` of SB3's callbacks."""
        observations = self._last_obs
        assert isinstance(observations, np.ndarray), "the kernels take no Dict observations"
        assert self._last_episode_starts is not None
        inputs = self._inputs(known, observations, self._last_episode_starts)
        decision: Any = policy.act(inputs)
        in_bounds, states, actions, values, log_probs = decision
        new_obs, rewards, dones, infos = known["env"].step(in_bounds)
        self.num_timesteps += known["env"].num_envs
        known |= {
            "n_steps": step,
            "obs_tensor": th.as_tensor(observations),
            "actions": actions,
            "clipped_actions": in_bounds,
            "values": th.from_numpy(values).reshape(-1, 1),
            "log_probs": th.from_numpy(log_probs),
            "new_obs": new_obs,
            "rewards": rewards,
            "dones": dones,
            "infos": infos,
            **self._remembered(inputs, states),
        }
        known["callback"].update_locals(known)
        return bool(known["callback"].on_step())

    def _store_step(self, policy: RolloutPolicy, known: dict[str, Any]) -> None:
        actions, rewards, dones, infos = (known[name] for name in ("actions", "rewards", "dones", "infos"))
        self._update_info_buffer(infos, dones)
        self._add_values_at_time_limits(policy, known)
        if isinstance(self.action_space, spaces.Discrete):
            actions = actions.reshape(-1, 1)
        step = (self._last_obs, actions, rewards, self._last_episode_starts, known["values"], known["log_probs"])
        self._add(known, step)
        self._last_obs, self._last_episode_starts = known["new_obs"], dones

    def _add_values_at_time_limits(self, policy: RolloutPolicy, known: dict[str, Any]) -> None:
        """Truncation is not termination: bootstrap from the value of the final observation (SB3 issue 633)."""
        infos, truncated = known["infos"], np.zeros(len(known["dones"]), dtype=bool)
        for row in np.flatnonzero(known["dones"]):
            is_limit, final = infos[row].get("TimeLimit.truncated", False), infos[row].get("terminal_observation")
            truncated[row] = is_limit and final is not None
        if truncated.any():
            observations = np.array(known["new_obs"])
            for row in np.flatnonzero(truncated):
                observations[row] = infos[row]["terminal_observation"]
            inputs = self._inputs(known, observations, np.zeros_like(truncated)).of_rows(truncated)
            known["rewards"][truncated] += self.gamma * policy.final_values(inputs)
