"""Small healthy envs of several kinds: nothing is to be found in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

Factory = Callable[..., ParallelEnv | AECEnv]
Step = tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]


class Healthy(ParallelEnv):
    """Two agents see random numbers for six to eight steps, and are paid for large actions."""

    metadata: ClassVar[dict[str, Any]] = {"name": "healthy_v0", "render_modes": ["rgb_array"]}
    possible_agents: ClassVar = ["a", "b"]
    low, high = 0.0, 1.0

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.agents: list[str] = []
        self.rng = np.random.default_rng(0)
        self.spaces = {
            agent: (spaces.Box(self.low, self.high, (3,), np.float32), spaces.Discrete(3))
            for agent in self.possible_agents
        }

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.spaces[agent][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.spaces[agent][1]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.rng = np.random.default_rng(seed)
        return self.begin()

    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.t = 0
        self.length = int(self.rng.integers(6, 9))
        self.agents = list(self.possible_agents)
        return {agent: self.observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> Any:
        return self.rng.random(3, dtype=np.float32)

    def step(self, actions: Mapping[str, Any]) -> Step:
        self.t += 1
        acted, over = list(self.agents), self.t >= self.length
        if over:
            self.agents = []
        return (
            {agent: self.observe(agent) for agent in acted},
            {agent: float(actions[agent]) for agent in acted},
            dict.fromkeys(acted, False),
            dict.fromkeys(acted, over),
            {agent: {} for agent in acted},
        )

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)


class Changed(Healthy):
    """A healthy env whose steps, as lists of five, go through `change` before they are returned."""

    def step(self, actions: Mapping[str, Any]) -> Any:
        step = list(super().step(actions))
        self.change(step, not self.agents)
        return tuple(step)

    def change(self, step: list[Any], over: bool) -> None:
        raise NotImplementedError


def steps(change: Callable[[Any, list[Any], bool], object], kind: type[Healthy] = Healthy) -> Factory:
    """Return an env whose steps are changed: `change` gets the env, the step and whether it is the last."""
    return type("Steps", (Changed, kind), {"change": change})


def sights(change: Callable[[Any, Any], object], kind: type[Healthy] = Healthy) -> Factory:
    """Return an env whose observations are changed: `change` gets the env and an observation."""
    return type("Sights", (kind,), {"observe": lambda self, agent: change(self, kind.observe(self, agent))})


def starts(change: Callable[[Any], object], kind: type[Healthy] = Healthy) -> Factory:
    """Return an env that is changed after each reset."""

    def begin(self: Any) -> Any:
        returned = kind.begin(self)
        change(self)
        return returned

    return type("Starts", (kind,), {"begin": begin})


class Walks(Healthy):
    """The agents walk around a ring of five fields from a random one, and see where both are."""

    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.fields = {agent: int(self.rng.integers(5)) for agent in self.possible_agents}
        return super().begin()

    def observe(self, agent: str) -> Any:
        return np.array([*sorted(self.fields.values()), self.fields[agent]], np.float32) / 5

    def step(self, actions: Mapping[str, Any]) -> Step:
        self.fields.update({agent: (self.fields[agent] + action) % 5 for agent, action in actions.items()})
        return super().step(actions)


class Draws(Healthy):
    """Agents are paid nothing but by chance: the step of the end is drawn while the episode is played."""

    def step(self, actions: Mapping[str, Any]) -> Step:
        self.length = self.t + 1 if self.rng.random() < 0.2 else 100
        return super().step(actions)


class KeepsState(Healthy):
    """Its state brings it back."""

    def get_state(self) -> dict[str, Any]:
        state = {"t": self.t, "length": self.length, "agents": list(self.agents)}
        return {**state, "rng": self.rng.bit_generator.state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.t, self.length, self.agents = state["t"], state["length"], list(state["agents"])
        self.rng.bit_generator.state = state["rng"]


class LivesAgain(Changed):
    """Agent b ends in the third step, and is there again after the fifth; both ends are wanted."""

    def change(self, step: list[Any], over: bool) -> None:
        observations, _, terminated, truncated, infos = step
        step[2], step[3] = {**terminated, "b": self.t == 3}, {**truncated, "b": over}
        if self.t == 5:
            observations["b"], infos["b"] = self.observe("b"), {}
        if not over:
            self.agents = ["a"] if self.t in (3, 4) else ["a", "b"]


class TakesTurns(Healthy):
    """The agents act in turns; each sees the other's move, and both are paid in each step."""

    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, infos = super().begin()
        self.agents = ["a"]
        return {"a": observations["a"]}, {"a": infos["a"]}

    def step(self, actions: Mapping[str, Any]) -> Any:
        self.t += 1
        over = self.t >= self.length
        (acted,) = self.agents
        self.agents = [] if over else ["b" if acted == "a" else "a"]
        seen = list(self.possible_agents) if over else self.agents
        paid = list(self.possible_agents) if self.t > 1 else [acted]
        return (
            {agent: self.observe(agent) for agent in seen},
            dict.fromkeys(paid, float(actions[acted])),
            dict.fromkeys(self.possible_agents, over),
            dict.fromkeys(self.possible_agents, False),
            {agent: {} for agent in seen},
        )


class Nested(Healthy):
    """Its observations are Dicts and Tuples in one another, with a mask."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        inner = spaces.Tuple([spaces.Box(0, 1, (3,), np.float32), spaces.Discrete(4)])
        space = spaces.Dict({"observation": inner, "action_mask": spaces.MultiBinary(3)})
        self.spaces = {agent: (space, action) for agent, (_, action) in self.spaces.items()}

    def observe(self, agent: str) -> Any:
        number = int(self.rng.integers(4))
        return {"observation": (super().observe(agent), number), "action_mask": np.array([1, 0, number > 1], np.int8)}

    def step(self, actions: Mapping[str, Any]) -> Step:
        assert 1 not in actions.values(), "a forbidden action"
        return super().step(actions)


class Parts(Healthy):
    """Its actions are a Dict, with masks of its choices."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        action = spaces.Dict({"move": spaces.Discrete(3), "force": spaces.Box(-1, 1, (1,), np.float32)})
        self.spaces = {agent: (observed, action) for agent, (observed, _) in self.spaces.items()}

    def begin(self) -> Any:
        observations, infos = super().begin()
        return observations, {agent: {"action_mask": np.array([1, 0, 1], np.int8)} for agent in infos}

    def step(self, actions: Mapping[str, Any]) -> Step:
        assert all(action["move"] != 1 for action in actions.values()), "a forbidden action"
        numbers = {agent: action["move"] + action["force"][0] for agent, action in actions.items()}
        *returned, infos = super().step(numbers)
        masks = {agent: {"action_mask": np.array([1, 0, 1], np.int8)} for agent in infos}
        return *returned, masks  # type: ignore[return-value]


class Trades(AECEnv):
    """Two agents take turns; each is paid for its action, and the other, once it has acted, pays a third of that."""

    metadata: ClassVar[dict[str, Any]] = {"name": "trades_v0", "render_modes": ["rgb_array"]}
    possible_agents: ClassVar = ["a", "b"]

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 1, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection, self.turns = "a", int(self.rng.integers(7, 12))
        self.last_action, self.begun = 0, False

    def observe(self, agent: str) -> Any:
        return np.array([self.last_action / 2, self.turns / 12], np.float32)

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        agent, other = self.agent_selection, "b" if self.agent_selection == "a" else "a"
        self.forget(agent)
        self.rewards[agent] += 0.3 * action
        self.rewards[other] -= 0.1 * action * self.begun
        self.begun = True
        self._accumulate_rewards()
        self.turns, self.last_action = self.turns - 1, action
        self.truncations = dict.fromkeys(self.agents, self.turns == 0)
        self.agent_selection = other

    def forget(self, agent: str) -> None:
        """Forget what was paid."""
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)


# In these, nothing is to be found but what belongs to them.
HEALTHY: Mapping[Factory, set[str]] = {
    Healthy: set(),
    Walks: set(),
    Draws: set(),
    KeepsState: set(),
    LivesAgain: {"ends-early"},
    TakesTurns: set(),
    Nested: set(),
    Parts: set(),
    Trades: set(),
}
