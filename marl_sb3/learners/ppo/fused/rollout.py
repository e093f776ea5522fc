"""Fill the rollout buffer of a single-agent `PPO` or `A2C`, which has an SB3 `VecEnv`, by the fused kernels.

It repeats `OnPolicyAlgorithm.collect_rollouts` with three differences: the kernels evaluate the policy where they cover
it, the values of all agents that were truncated in a step are one batch, and callbacks get the locals that SB3
documents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from marl_sb3.acting.policy import ForwardPass, forward_pass
from marl_sb3.sb3.private import has_step_hook, last_step, record_episodes, set_last_step
from marl_sb3.types import Array


def collect_fused(
    algorithm: OnPolicyAlgorithm, env: VecEnv, callback: BaseCallback, buffer: RolloutBuffer, n_steps: int
) -> bool:
    """See `OnPolicyAlgorithm.collect_rollouts`.

    Returns:
        False if the callback stopped it.
    """
    algorithm.policy.set_training_mode(False)
    buffer.reset()
    callback.on_rollout_start()
    known: dict[str, Any] = {
        "self": algorithm,
        "env": env,
        "callback": callback,
        "rollout_buffer": buffer,
        "n_rollout_steps": n_steps,
    }
    forward = forward_pass(algorithm)  # not earlier: the callback may have changed the policy
    reads_again = has_step_hook(callback)
    for step in range(n_steps):
        if not _step(algorithm, forward, known, step):
            return False
        if reads_again:
            forward = forward_pass(algorithm)
        _store_step(algorithm, forward, known)
    last_values = th.from_numpy(forward.values(known["new_obs"]))
    buffer.compute_returns_and_advantage(last_values=last_values, dones=known["dones"])
    callback.update_locals({**known, "n_steps": n_steps, "values": last_values})
    callback.on_rollout_end()
    return True


def _step(algorithm: OnPolicyAlgorithm, forward: ForwardPass, known: dict[str, Any], step: int) -> bool:
    """Take one step of all envs; `known` is filled with the `locals` of SB3's callbacks."""
    observations, _ = last_step(algorithm)
    assert isinstance(observations, np.ndarray), "the kernels take no Dict observations"
    actions, values, log_probs = forward.act(observations)
    in_bounds = actions
    if isinstance(algorithm.action_space, spaces.Box):
        in_bounds = np.clip(actions, algorithm.action_space.low, algorithm.action_space.high)
    new_obs, rewards, dones, infos = known["env"].step(in_bounds)
    algorithm.num_timesteps += known["env"].num_envs
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
    }
    known["callback"].update_locals(known)
    return bool(known["callback"].on_step())


def _store_step(algorithm: OnPolicyAlgorithm, forward: ForwardPass, known: dict[str, Any]) -> None:
    observations, starts = last_step(algorithm)
    actions, rewards, dones, infos = (known[name] for name in ("actions", "rewards", "dones", "infos"))
    record_episodes(algorithm, infos, dones)
    _add_values_at_time_limits(forward, rewards, dones, infos, algorithm.gamma)
    if isinstance(algorithm.action_space, spaces.Discrete):
        actions = actions.reshape(-1, 1)
    known["rollout_buffer"].add(observations, actions, rewards, starts, known["values"], known["log_probs"])
    set_last_step(algorithm, known["new_obs"], dones)


def _add_values_at_time_limits(
    forward: ForwardPass, rewards: Array, dones: Array, infos: list[dict[str, Any]], gamma: float
) -> None:
    """Truncation is not termination: bootstrap from the value of the final observation (SB3 issue 633)."""
    truncated = [
        row
        for row in np.flatnonzero(dones)
        if infos[row].get("TimeLimit.truncated", False) and infos[row].get("terminal_observation") is not None
    ]
    if truncated:
        final = np.stack([infos[row]["terminal_observation"] for row in truncated])
        rewards[truncated] += gamma * forward.final_values(final)
