"""Small envs whose every number is known beforehand, for tests."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.wrappers.observations import choices_of, policy_actions


class ScriptedEnv(ParallelEnv):
    """Each agent ends when the script says, in the way it says.

    An agent sees [its number, the episode, the step], all counted from 1 but the step, which starts at 0; it is paid
    `rewards[agent][step]` (default: its number). Zeros are therefore never a real observation.

    Args:
        script: agent -> (steps until it ends, "terminated" or "truncated" or "both").
        rewards: agent -> reward of each of its steps.
        infos: whether `infos` has anything in it.
        joins: agent -> the step in which it appears; all others are there from the reset.
        skips: agent -> the steps in which it waits: it does not act, but it is paid, and it may end.
        again: agent -> (step in which it lives again, step in which that life ends, how).
        masked: whether agents that act have action masks: the first action is forbidden in even steps, the second in
            odd ones.
    """

    metadata: ClassVar = {"name": "scripted_v0", "render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(
        self,
        script: Mapping[str, tuple[int, str]] | None = None,
        rewards: Mapping[str, list[float]] | None = None,
        infos: bool = True,
        render_mode: str | None = None,
        env_index: int = 0,
        joins: Mapping[str, int] | None = None,
        skips: Mapping[str, Collection[int]] | None = None,
        again: Mapping[str, tuple[int, int, str]] | None = None,
        masked: bool = False,
    ) -> None:
        self.masked = masked
        self.joins = dict(joins or {})
        self.again = dict(again or {})
        self.skips = dict(skips or {})
        self.script = dict(script or {"a": (3, "truncated"), "b": (3, "truncated")})
        self.rewards = dict(rewards or {})
        self.with_infos = infos
        self.render_mode = render_mode
        self.env_index = env_index
        self.possible_agents = list(self.script)
        self.agents: list[str] = []
        self.episode = 0
        self.step_count = 0
        self.seeds: list[int | None] = []
        self.options: list[Any] = []
        self.received: list[dict[str, Any]] = []  # the actions of every step
        self.closed = 0
        self._observation_space = spaces.Box(-1000, 1000, (3,), np.float32)
        self._action_space = spaces.Discrete(3)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._action_space

    def observation(self, agent: str) -> np.ndarray:
        number = self.possible_agents.index(agent) + 1
        return np.array([number, self.episode, self.step_count], dtype=np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.seeds.append(seed)
        self.options.append(options)
        self.episode += 1
        self.step_count = 0
        self.present = [agent for agent in self.possible_agents if not self.joins.get(agent)]
        self.agents = self._acting()
        infos = {agent: {"reset": self.episode} for agent in self.agents} if self.with_infos else {}
        return {agent: self.observation(agent) for agent in self.agents}, self._with_masks(infos)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        self.received.append(dict(actions))
        self.step_count += 1
        there = self.present
        kinds = {agent: self._end(agent) for agent in there}
        ended = {agent: kinds[agent] != "" for agent in there}
        joined = [agent for agent in self.possible_agents if self.step_count in self._comes(agent)]
        self.present = [agent for agent in there if not ended[agent]] + joined
        self.agents = self._acting()
        infos: dict[str, Any] = {}
        if self.with_infos:
            infos = {agent: {"step": self.step_count} for agent in there}
            infos["common"] = {"episode": self.episode}
        return (
            {agent: self.observation(agent) for agent in there + joined},
            {agent: self._reward(agent) for agent in there},
            {agent: kinds[agent] in ("terminated", "both") for agent in there},
            {agent: kinds[agent] in ("truncated", "both") for agent in there},
            self._with_masks(infos),
        )

    def _end(self, agent: str) -> str:
        """How the agent ends in this step; "" if it does not."""
        ends = [self.script[agent], *([self.again[agent][1:]] if agent in self.again else [])]
        return next((kind for step, kind in ends if step == self.step_count), "")

    def _comes(self, agent: str) -> list[int]:
        """The steps after which the agent appears; 0 is the reset."""
        return [self.joins.get(agent, 0), *([self.again[agent][0]] if agent in self.again else [])]

    def _with_masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        if self.masked:
            mask = np.ones(sum(choices_of(policy_actions(self._action_space))), dtype=bool)
            mask[self.step_count % 2] = False
            infos |= {agent: {**infos.get(agent, {}), "action_mask": mask} for agent in self.agents}
        return infos

    def _acting(self) -> list[str]:
        return [agent for agent in self.present if self.step_count not in self.skips.get(agent, ())]

    def _reward(self, agent: str) -> float:
        if agent in self.rewards:
            return self.rewards[agent][self.step_count - 1]
        return float(self.possible_agents.index(agent) + 1)

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), self.step_count, dtype=np.uint8)

    def close(self) -> None:
        self.closed += 1


class TwoKinds(ScriptedEnv):
    """Agents a and c see three numbers and choose one of three; b sees its number and the step, answers with two."""

    def __init__(self, script: Mapping[str, tuple[int, str]] | None = None) -> None:
        super().__init__(script or {"a": (2, "truncated"), "b": (3, "truncated"), "c": (1, "terminated")})

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-9, 9, (2,), np.float32) if agent == "b" else super().observation_space(agent)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,), np.float32) if agent == "b" else super().action_space(agent)

    def observation(self, agent: str) -> np.ndarray:
        return super().observation(agent)[[0, 2] if agent == "b" else [0, 1, 2]]


class NoisyEnv(ScriptedEnv):
    """Every number depends on the episode's seed and on the actions; each env and each episode has its own script.

    An agent sees [its number, noise, the digits of the latest actions]; it is paid noise.

    Args:
        plans: for each env, what its episodes take in turn: (script, joins) and, optionally, skips and again, as in
            `ScriptedEnv`.
    """

    def __init__(
        self,
        plans: Sequence[Sequence[tuple[Mapping[str, Any], ...]]],
        env_index: int = 0,
        masked: bool = False,
    ) -> None:
        self.plan = plans[env_index]
        script, joins, *_ = self.plan[0]
        super().__init__(script, joins=joins, env_index=env_index, masked=masked)
        self.action_sum: float = 0
        self.unpicklable = threading.Lock()

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.rng = np.random.default_rng(seed)
        self.script, self.joins, *others = self.plan[self.episode % len(self.plan)]
        self.skips, self.again = (*others, {}, {})[:2]
        self.action_sum = 0
        return super().reset(seed, options)

    def observation(self, agent: str) -> np.ndarray:
        number = self.possible_agents.index(agent) + 1
        return np.array([number, self.rng.random(), self.action_sum], dtype=np.float32)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        self.action_sum = sum(
            int(action) * 10 ** self.possible_agents.index(agent) for agent, action in actions.items()
        )
        return super().step(actions)

    def _reward(self, agent: str) -> float:
        return self.rng.normal()

    def state(self) -> np.ndarray:
        return np.array([self.step_count, self.action_sum], dtype=np.float32)


class MovingEnv(NoisyEnv):
    """A `NoisyEnv` whose agents move: what they see depends on what they did."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._action_space = spaces.Box(-2, 2, (2,), np.float32)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        returned = super().step(dict.fromkeys(actions, 0))
        self.action_sum = float(sum(np.sum(action) for action in actions.values()))
        return returned


FORCES = spaces.Box(-1, 1, (1,))


class Forces(NoisyEnv):
    """The same with actions in a Box, of which it sees the digits."""

    forces = FORCES

    def action_space(self, agent: str) -> spaces.Box:
        return self.forces

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        most = self.forces.high.item()
        return super().step({agent: round(4 * (1 + action.item() / most)) for agent, action in actions.items()})


class SampledEnv(ScriptedEnv):
    """Observations are samples of any space; `shown` and `received` keep what went out and what came in."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        script: Mapping[str, tuple[int, str]] | None = None,
        masked: bool = False,
    ) -> None:
        super().__init__(script, masked=masked)
        self._observation_space = deepcopy(observation_space)
        self._action_space = action_space
        self.shown: list[dict[str, Any]] = []

    def observation(self, agent: str) -> Any:
        return self._observation_space.sample()

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self._observation_space.seed(seed)
        observations, infos = super().reset(seed, options)
        self.shown.append(observations)
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        returned = super().step(actions)
        self.shown.append(returned[0])
        return returned


class RandomEnv(gymnasium.Env):
    """A Gymnasium env: random observations and rewards, episodes of 7 steps, every other one truncated."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = deepcopy(observation_space), deepcopy(action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
            self.episode = 0
        self.steps, self.episode = 0, self.episode + 1
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        over, odd = self.steps == 7, self.episode % 2 == 1
        reward = float(np.sum(action)) + self.np_random.normal()
        return self.observation_space.sample(), reward, over and odd, over and not odd, {}


# Spaces of actions that masks are for.
def batch(space: spaces.Space[Any], rows: int = 5) -> Any:
    """Samples of a space, always the same."""
    space.seed(3)
    points = [space.sample() for _ in range(rows)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([point[key] for point in points]) for key in space.spaces}
    return np.stack(points)


CHOICES = {
    "Discrete": spaces.Discrete(4),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(2),
}


class Forbidding(SampledEnv):
    """The last action is always forbidden, of several choices that of the last one; or none is."""

    def __init__(self, action_space: spaces.Space[Any], allows_all: bool = False) -> None:
        ends = {"a": (5, "truncated"), "b": (3, "terminated")}
        super().__init__(spaces.Box(-1, 1, (3,)), action_space, ends, masked=True)
        self._allows_all = allows_all
        self._observation_space.seed(1)

    def _with_masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        mask = np.ones(sum(choices_of(self._action_space) or ()), dtype=bool)
        mask[-1] = self._allows_all
        return infos | {agent: {"action_mask": mask} for agent in self.agents}

    def _reward(self, agent: str) -> float:
        return float(self.observation(agent)[0])
