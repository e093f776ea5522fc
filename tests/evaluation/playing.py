"""Small algorithms to evaluate, games whose outcomes are known, their opponents, and a viewer that follows a script."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from toy_envs import ScriptedEnv
from turn_env import Move, TurnPlan

from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.errors import MarlSb3Error
from marl_sb3.evaluation.session import Film, Moment, Stage, ViewerCommand, ViewerLeftError
from marl_sb3.evaluation.viewed_env import View

SMALL: dict[str, Any] = {
    "n_steps": 8,
    "batch_size": 4,
    "n_epochs": 1,
    "policy_kwargs": {"net_arch": [4]},
    "seed": 0,
    "device": "cpu",
}
STAGGERED = {"a": (2, "truncated"), "b": (3, "terminated")}
PAY = {"a": [1.0, 2.0], "b": [10.0, 20.0, 30.0]}
LINEAR = {"policy_kwargs": {"net_arch": [4]}, "n_steps": 8, "batch_size": 8}
_MOVES = [Move("dora"), Move("adam"), Move("dora"), Move("adam", ends={"adam": "truncated"}), Move("dora")]
PLANS = [[TurnPlan(_MOVES)]] * 2
SEEING = {"agent_indicator": True, "frame_stack": 2, "previous_action": True}
WORTH = (1.0, 0.0, 0.5, 0.25)  # of each action


def make(env: Any = ScriptedEnv, policies: Any = "shared", env_kwargs: Any = None, **options: Any) -> Any:
    vec_env = make_vec_env(env, n_envs=2, seed=0, **(env_kwargs or {}))
    return MultiAgentAlgorithm(vec_env, policies, **{**SMALL, **options})


def plans(n_envs: int) -> list[Any]:
    """Each env has its own scripts: agents end at different times, in each episode differently."""
    return [
        [({"a": (2 + index, "truncated"), "b": (4, "terminated")}, {}), ({"a": (5, "both"), "b": (1, "truncated")}, {})]
        for index in range(n_envs)
    ]


class ZeroSum(ScriptedEnv):
    """One agent gets what its action is worth, and loses what the other's is. Masks allow the last action alone."""

    def __init__(self, masked: bool = True, length: int = 1) -> None:
        super().__init__(dict.fromkeys("ab", (length, "terminated")))
        self._info = {"action_mask": np.array([0, 0, 0, 1], np.int8)} if masked else {}
        self._observation_space, self._action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(4)

    def observation(self, agent: str) -> np.ndarray:
        return np.zeros(1, np.float32)

    def _reward(self, agent: str) -> float:
        own, others = (WORTH[self.received[-1][each]] for each in (agent, {"a": "b", "b": "a"}[agent]))
        return own - others

    def _with_masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        return dict.fromkeys(self.agents, self._info)


def always(action: dict[str, int], kind: Any = None) -> MultiAgentAlgorithm:
    """Policies that always take the same action."""
    env = make_vec_env(kind or functools.partial(ZeroSum, masked=False), n_envs=2, seed=0)
    policies = "shared" if list(action) == ["shared"] else "per_agent"
    algorithm = MultiAgentAlgorithm(env, policies=policies, seed=0, **LINEAR)
    for agent, chosen in action.items():
        with th.no_grad():
            algorithm.policies[agent].policy.action_net.bias[chosen] = 100.0
    return algorithm


class Teams(ScriptedEnv):
    """Each agent gets what its action is worth; `zero_sum`: less the mean of all."""

    def __init__(self, zero_sum: bool = True, worth: tuple[float, ...] = WORTH) -> None:
        super().__init__(dict.fromkeys("xyz", (1, "terminated")))
        self._zero_sum, self._worth = zero_sum, worth
        self._observation_space, self._action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(4)

    def observation(self, agent: str) -> np.ndarray:
        return np.zeros(1, np.float32)

    def _reward(self, agent: str) -> float:
        paid = {each: self._worth[action] for each, action in self.received[-1].items()}
        return paid[agent] - (sum(paid.values()) / 3 if self._zero_sum else 0.0)


class Third:
    """Always takes the action that is worth 0.5."""

    def act(self, observation: Any, mask: Any, rng: np.random.Generator) -> int:
        return 2


class Last(Third):
    """Always takes the last action, the only one that the masks of `ZeroSum` allow."""

    def act(self, observation: Any, mask: Any, rng: np.random.Generator) -> int:
        return 3


Script = Callable[["ScriptedStage"], Generator[ViewerCommand | None]]


class ScriptedStage(Stage):
    """A stage whose viewer follows a script, which yields commands, or None to wait until the next step is due."""

    most_per_s = 30.0
    selects = True

    def __init__(self, script: Script) -> None:
        self._script = script(self)
        self.now_s = 0.0
        self.moments: list[tuple[float, Moment]] = []
        self.view: View | None = None
        self.problems: list[str] = []
        self.films: list[Film] = []

    @property
    def moment(self) -> Moment:
        return self.moments[-1][1]

    def show(self, moment: Moment, view: View | None) -> None:
        self.moments.append((round(self.now_s, 2), moment))
        self.view = view or self.view

    def next_command(self, timeout_s: float | None) -> ViewerCommand | None:
        command = next(self._script, ViewerCommand("play", agent="leaves"))
        if command == ViewerCommand("play", agent="leaves"):
            raise ViewerLeftError("left")
        if command is None:
            assert timeout_s is not None, "it waits for a command"
            self.now_s += timeout_s
        return command

    def hold_s(self, moment: Moment) -> float:
        return 5.0 if moment.taken else 0.5

    def fail(self, error: MarlSb3Error, remedy: str = "") -> None:
        self.problems.append(f"{error} {remedy}")

    def offer(self, film: Film) -> None:
        self.films.append(film)
