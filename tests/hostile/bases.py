"""Small trainings whose checkpoints are mutated: of each kind of env, vectorizer and update there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
from gymnasium import spaces
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.callbacks import RewardHistogramCallback
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv

NUM_ENVS, ITERATIONS = 3, 2
_SMALL = {"n_steps": 24, "batch_size": 16, "n_epochs": 2, "policy_kwargs": {"net_arch": [8, 4]}, "device": "cpu"}


class ManySpaces(ScriptedEnv):
    """Two agents with Dict observations and actions of their own kinds; every number follows from seed and actions."""

    def __init__(self) -> None:
        # The walker leaves first, so that the chooser is alone for some steps.
        super().__init__({"walker": (9, "truncated"), "chooser": (13, "truncated")}, infos=False)
        parts = {"place": spaces.Box(-9, 9, (2,)), "kind": spaces.Discrete(5), "flags": spaces.MultiBinary(3)}
        self._observation = spaces.Dict(parts)
        self._actions = {"walker": spaces.Box(-1, 1, (2,)), "chooser": spaces.MultiDiscrete([2, 3])}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._observation

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._actions[agent]

    def observation(self, agent: str) -> Any:
        return {
            "place": self._rng.normal(size=2).astype(np.float32),
            "kind": int(self._rng.integers(5)),
            "flags": self._rng.integers(0, 2, 3, dtype=np.int8),
        }

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        return super().reset(seed, options)

    def _reward(self, agent: str) -> float:
        return float(np.sum(self.received[-1][agent]))


class KnowsItsState(ScriptedEnv):
    """One-hot observations, and a `get_state` of its own, so that a checkpoint holds no log of actions."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(["left", "right"], (11, "truncated")), infos=False)
        self._seen, self._place = spaces.Discrete(7), 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._seen

    def observation(self, agent: str) -> Any:
        return self._place

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self._place = (seed or 0) % 7
        return super().reset(seed, options)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        self._place = (self._place + sum(map(int, actions.values()))) % 7
        return super().step(actions)

    def _reward(self, agent: str) -> float:
        return float(self._place)

    def get_state(self) -> dict[str, Any]:
        return {"place": self._place, "step": self.step_count, "agents": list(self.agents), "grid": np.arange(4)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        if not 0 <= state["place"] < 7 or not 0 <= state["step"] < 11 or state["agents"] != self.possible_agents:
            raise ValueError("not a state of this env")
        self._place, self.step_count, self.present = int(state["place"]), int(state["step"]), list(state["agents"])
        self.agents = self._acting()


class Goals(KnowsItsState):
    """The same with a place to get to."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        place = spaces.Box(0, 6, (1,))
        return spaces.Dict({"observation": self._seen, "achieved_goal": place, "desired_goal": place})

    def observation(self, agent: str) -> Any:
        place, goal = (np.array([number], np.float32) for number in (self._place, 3))
        return {"observation": self._place, "achieved_goal": place, "desired_goal": goal}

    def compute_reward(self, agent: str, achieved: Any, desired: Any, infos: Any) -> Any:
        return (achieved == desired)[:, 0].astype(np.float32)


def _arena(vectorizer: str) -> Callable[[], MultiAgentVecEnv]:
    return lambda: make_vec_env("arena", NUM_ENVS, vectorizer=vectorizer, max_timesteps=17, height=4, width=5)


@dataclass(frozen=True)
class Base:
    """A training to mutate checkpoints of."""

    name: str  # for reports
    make_env: Callable[[], MultiAgentVecEnv]  # makes the envs
    settings: Mapping[str, Any] = field(default_factory=dict)  # of `MultiAgentAlgorithm`, when it is built
    load_settings: Mapping[str, Any] = field(default_factory=dict)  # of `MultiAgentAlgorithm.load`
    small: Mapping[str, Any] = field(default_factory=lambda: _SMALL)  # settings that most trainings share

    def build(self) -> MultiAgentAlgorithm:
        """The algorithm, untrained."""
        return MultiAgentAlgorithm(self.make_env(), **{**self.small, "seed": 5, **self.settings})

    def load(self, path: Path) -> MultiAgentAlgorithm:
        """As a user would load what a stranger sent."""
        env = self.make_env()
        try:
            return MultiAgentAlgorithm.load(path, env, device="cpu", **self.load_settings)
        except BaseException:
            env.close()
            raise

    def save(self, path: Path) -> Path:
        """Train a little and save, in the middle of episodes."""
        algorithm = self.build()
        steps = ITERATIONS * _SMALL["n_steps"] * NUM_ENVS
        algorithm.learn(steps, callback=[RewardHistogramCallback()])
        algorithm.save(path)
        algorithm.env.close()
        return path


_STOCK = {"all": PolicySpec(stable_baselines3.PPO, batch_size=16, n_epochs=2, policy_kwargs=_SMALL["policy_kwargs"])}
_SDE = {"walker": PolicySpec(policy="MultiInputPolicy", use_sde=True), "chooser": PolicySpec(policy="MultiInputPolicy")}

_REPLAY = {
    "buffer_size": 60,
    "learning_starts": 4,
    "train_freq": 8,
    "batch_size": 8,
    "policy_kwargs": {"net_arch": [4]},
}
_DQN: Any = stable_baselines3.DQN
_BUFFERS = {
    "agent1": PolicySpec(_DQN, normalize_rewards=True, **_REPLAY),
    "agent2": PolicySpec(
        _DQN,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
        **_REPLAY,
    ),
}
_GOALS = {
    "left": PolicySpec(_DQN, "MultiInputPolicy", replay_buffer_class="HerReplayBuffer", **_REPLAY),
    "right": PolicySpec(_DQN, "MultiInputPolicy", n_steps=3, **_REPLAY),
}
_ROLLOUT_ONLY = {"n_steps": 24, "device": "cpu"}

BASES = (
    Base("shared, batched", _arena("batched"), {"learning_rate": "lin_1e-3"}),
    Base("per agent, batched, torch", _arena("batched"), {"policies": "per_agent"}, {"update_path": "torch"}),
    Base("per agent, sync", _arena("sync"), {"policies": "per_agent"}),
    Base("Dict spaces, gSDE", lambda: make_vec_env(ManySpaces, NUM_ENVS), {"policies": _SDE}),
    Base("env with a state of its own", lambda: make_vec_env(KnowsItsState, NUM_ENVS)),
    Base("stock PPO", _arena("batched"), {"policies": _STOCK}, {"policies": _STOCK}),
    Base("replay buffers", _arena("batched"), {"policies": _BUFFERS}, small=_ROLLOUT_ONLY),
    Base("goals, n-step returns", lambda: make_vec_env(Goals, NUM_ENVS), {"policies": _GOALS}, small=_ROLLOUT_ONLY),
)

_RUN = {"n_steps": 24, "batch_size": 16, "n_epochs": 1, "env.max_timesteps": 17, "policy_kwargs.net_arch": [8]}


def make_run(folder: Path) -> Path:
    """A run folder with one checkpoint, as a stranger would send it."""
    run = marl_sb3.train(
        "arena",
        policies="per_agent",
        timesteps=ITERATIONS * 24 * NUM_ENVS,
        n_envs=NUM_ENVS,
        seed=5,
        device="cpu",
        settings={**_RUN, "checkpoint_every": ITERATIONS},
        run_dir=folder,
    )
    return run.folder
