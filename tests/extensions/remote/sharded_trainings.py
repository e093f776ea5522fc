"""Small trainings in shards, of all kinds, and what is left of them; any processes may roll out the shards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import A2C, DQN
from toy_envs import MovingEnv, NoisyEnv

from marl_sb3 import PPO, MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, RecurrentDQN
from marl_sb3.core.metrics.names import flatten
from marl_sb3.extensions.remote import sharded
from marl_sb3.extensions.remote.shard_runners import ShardRunners
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env

E, SHARDS, STEPS = 4, 2, 8
SMALL: Mapping[str, Any] = {"policy_kwargs": {"net_arch": [4]}, "device": "cpu", "n_steps": STEPS}
PPO_SMALL: Mapping[str, Any] = {"batch_size": 8, "n_epochs": 2}
SCRIPT = {"a": (7, "truncated"), "b": (5, "terminated")}
PLANS = [[(SCRIPT, {}, {"b": [1, 3]})]] * E  # b waits in some steps; episodes end within rollouts
REPLAY: Mapping[str, Any] = {"learning_starts": 20, "batch_size": 4, "buffer_size": 500}
SHORT_REPLAY: Mapping[str, Any] = {**REPLAY, "buffer_size": 200}  # it is full before the training is over
MEMORY: Mapping[str, Any] = {"policy_kwargs": {"lstm_hidden_size": 4, "net_arch": [4]}}
CENTRAL: Mapping[str, Any] = {"central_critic": True, "central_critic_net": [4]}
CONTINUOUS: Mapping[str, Any] = {**REPLAY, **CENTRAL, "policy_kwargs": {"net_arch": [4]}, "train_freq": STEPS}
PROCESSED: Mapping[str, Any] = {"normalize_observations": True, "normalize_rewards": True}


def shared(algorithm: Any, **settings: Any) -> dict[str, PolicySpec]:
    return {"shared": PolicySpec(algorithm, **settings)}


POLICIES: Mapping[str, Mapping[str, PolicySpec]] = {
    "ppo": shared(PPO, **PPO_SMALL),
    "actions of parts": shared(PPO, **PPO_SMALL),
    "lengths": {"a": PolicySpec(PPO, n_steps=6, **PPO_SMALL), "b": PolicySpec(A2C, n_steps=4)},
    "dqn": {"a": PolicySpec(PPO, **PPO_SMALL), "b": PolicySpec(DQN, **REPLAY)},
    "normalized_replay": shared(DQN, **PROCESSED, **REPLAY),
    "n_step": shared(DQN, n_steps=3, **SHORT_REPLAY),
    "recurrent replay": shared(RecurrentDQN, **SHORT_REPLAY, **MEMORY),
    "normalized": shared(PPO, **PROCESSED, **PPO_SMALL),
    "lstm": {
        "a": PolicySpec(RecurrentPPO, "MlpLstmPolicy", **PPO_SMALL, **MEMORY),
        "b": PolicySpec(PPO, **PPO_SMALL),
    },
    "central critic": {
        "a": PolicySpec(PPO, n_steps=6, **PPO_SMALL, **CENTRAL),
        "b": PolicySpec(A2C, n_steps=4, **CENTRAL),
    },
    "central critic of a memory": shared("maskable_recurrent_ppo", **PPO_SMALL, **CENTRAL, **MEMORY),
    "central critics of actions": {
        "a": PolicySpec("sac", normalize_observations=True, **CONTINUOUS),
        "b": PolicySpec("td3", action_noise={"normal": 0.1}, **CONTINUOUS),
    },
    "qmix": shared(
        "qmix",
        **{"mixing_embed_dim": 3, "hypernet_embed": 4, "tau": 0.5, "target_update_interval": 8},
        train_freq=STEPS,
        **REPLAY,
    ),
}
PARTS = spaces.Dict({"choice": spaces.Discrete(3), "force": spaces.Box(-1, 1, (1,))})


class OfParts(NoisyEnv):
    """The same with actions of a choice and a force, of which it sees the digits."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return PARTS

    def step(self, actions: Mapping[str, Any]) -> Any:
        return super().step({a: int(own["choice"] + 3 * round(1 + own["force"][0])) for a, own in actions.items()})


# The envs of a kind, where they are not those with `PLANS`.
ENVS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "actions of parts": (OfParts, {"plans": PLANS}),
    "central critic of a memory": (NoisyEnv, {"plans": PLANS, "masked": True, "env_state": True}),
    "central critics of actions": (MovingEnv, {"plans": PLANS}),
    "qmix": (NoisyEnv, {"plans": [[(SCRIPT, {"b": 1})]] * E, "env_state": True}),
}


def envs_of(kind: str) -> tuple[Any, Mapping[str, Any]]:
    """The envs of a kind, and their arguments."""
    return ENVS.get(kind, (NoisyEnv, {"plans": PLANS}))


def made(kind: str = "ppo", runners: Any = None, env: Any = None, **env_kwargs: Any) -> MultiAgentAlgorithm:
    """A training.

    Args:
        runners: roll out its shards, as `make_sharded_vec_env` takes them, or `ShardRunners`.
        env: with `env_kwargs`; None: that of the kind.
    """
    env, settings = envs_of(kind) if env is None else (env, env_kwargs)
    own = isinstance(runners, ShardRunners)
    vec = make_sharded_vec_env(env, E, SHARDS, seed=1, runners=None if own else runners, **settings)
    with pytest.MonkeyPatch.context() as patch:
        if own:
            patch.setattr(sharded, "shard_runners", lambda *_: runners)
        return MultiAgentAlgorithm(vec, POLICIES[kind], seed=3, **SMALL)


def digest(algorithm: MultiAgentAlgorithm) -> str:
    """Of all weights and optimizer states, and of the results that hold no times."""
    found = hashlib.sha256()
    for learner in algorithm.parts.learners.values():
        for kind, arrays in sorted(learner.get_tensors().items()):
            for name, array in sorted(arrays.items()):
                found.update(f"{kind}{name}".encode() + array.tobytes())
    episodes = [(e.env_index, e.length, *e.agent_returns.values()) for e in algorithm.tracker.episodes]
    found.update(repr(episodes).encode())
    return found.hexdigest()


def trained(
    algorithm: MultiAgentAlgorithm, callback: MultiAgentCallback | None = None, halfway: Path | None = None
) -> str:
    """Train to the end; returns the digest, and what policies and random generators are left with.

    Args:
        halfway: where it is saved when half of it is done.
    """
    algorithm.learn(2 * STEPS * E, callback=callback)
    if halfway is not None:
        algorithm.save(halfway)
    algorithm.learn(2 * STEPS * E, callback=callback, reset_num_timesteps=False)
    state, _ = algorithm.get_state()
    algorithm.env.close()
    return digest(algorithm) + repr([{**flatten(state[part])} for part in ("policies", "random")])


@cache
def undisturbed(kind: str = "ppo") -> str:
    """What is left of a training whose shards this process has rolled out."""
    return trained(made(kind))
