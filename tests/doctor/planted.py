"""A small healthy env, and one like it for each check, in which just that fault is planted."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

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
    """A healthy env whose steps go through `change` before they are returned."""

    def step(self, actions: Mapping[str, Any]) -> Any:
        return self.change(*super().step(actions), over=not self.agents)

    def change(self, *step: Any, over: bool) -> Any:
        raise NotImplementedError


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

    def change(self, *step: Any, over: bool) -> Any:
        observations, rewards, terminated, truncated, infos = step
        terminated["b"] = self.t == 3
        if self.t == 5:
            observations["b"], infos["b"] = self.observe("b"), {}
        if not over:
            self.agents = ["a"] if self.t in (3, 4) else ["a", "b"]
        return observations, rewards, {**terminated}, {**truncated, "b": over}, infos


class TakesTurns(Changed):
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


# --- The interface ----------------------------------------------------------------------------------------------------


class WithoutAgents(Healthy):
    possible_agents: ClassVar = []


class ChangingSpace(Healthy):
    calls = 0

    def action_space(self, agent: str) -> spaces.Space[Any]:
        self.calls += 1
        return spaces.Discrete(2 + self.calls % 2)


class Raises(Healthy):
    def step(self, actions: Mapping[str, Any]) -> Step:
        if self.t == 2:
            raise ZeroDivisionError("of the env")
        return super().step(actions)


class RaisesInConstructor(Healthy):
    def __init__(self, render_mode: str | None = None) -> None:
        raise KeyError("no such level")


class Exits(Healthy):
    def step(self, actions: Mapping[str, Any]) -> Step:
        raise SystemExit(3)


class FourValues(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        return step[:2] + step[3:]


class ListOfRewards(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        return step[0], list(step[1].values()), *step[2:]


class Nobody(Healthy):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        returned = super().reset(seed)
        self.agents = []
        return returned


class RaisesInClose(Healthy):
    def close(self) -> None:
        raise RuntimeError("nothing to close")


# --- Values -----------------------------------------------------------------------------------------------------------


class NotANumber(Healthy):
    def observe(self, agent: str) -> Any:
        observation = super().observe(agent)
        if self.t == 3:
            observation[1] = np.nan
        return observation


class WrongShape(Healthy):
    def observe(self, agent: str) -> Any:
        return super().observe(agent)[:2] if self.t == 3 else super().observe(agent)


class TextObservation(Healthy):
    def observe(self, agent: str) -> Any:
        return "north" if self.t == 3 else super().observe(agent)


class OutOfBounds(Healthy):
    def observe(self, agent: str) -> Any:
        return super().observe(agent) + np.float32(self.t == 3)


class DoublePrecision(Healthy):
    def observe(self, agent: str) -> Any:
        return super().observe(agent).astype(np.float64)


class NoReward(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        step[1].pop("b")
        return step


class NoObservation(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        if not over:
            step[0].pop("b", None)
        return step


class NoFinalObservation(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        if over:
            step[0].clear()
        return step


class InfiniteReward(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        step[1]["a"] = np.inf
        return step


class FlagIsNone(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        step[2]["a"] = None
        return step


class InfoIsNone(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        step[4]["a"] = None
        return step


class NoInfos(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        return *step[:4], {}


class HugeInfos(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        step[4]["a"]["history"] = np.zeros(10_000)
        return step


class NothingAllowed(Changed):
    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, infos = super().begin()
        return observations, {agent: {"action_mask": np.ones(3, np.int8)} for agent in infos}

    def change(self, *step: Any, over: bool) -> Any:
        for info in step[4].values():
            info["action_mask"] = np.full(3, self.t < 3, np.int8)
        return step


class Rewritten(Healthy):
    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.shown = {agent: np.zeros(3, np.float32) for agent in self.possible_agents}
        return super().begin()

    def observe(self, agent: str) -> Any:
        self.shown[agent][:] = super().observe(agent)
        return self.shown[agent]


# --- Agents -----------------------------------------------------------------------------------------------------------


class Stranger(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        self.agents += ["c"] if self.t == 3 else []
        return step

    def step(self, actions: Mapping[str, Any]) -> Any:
        self.agents = [agent for agent in self.agents if agent != "c"]
        return super().step(actions)


class EndsSilently(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        step[3]["b"] = False
        return step


class StaysAfterEnd(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        self.agents = list(self.possible_agents)
        return step

    def step(self, actions: Mapping[str, Any]) -> Any:
        return super().step({"a": 0, "b": 0, **actions})


class PaidBeforehand(Changed):
    """Agent b acts from the second step on, and is paid for the first."""

    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        returned = super().begin()
        self.agents = ["a"]
        return returned

    def change(self, *step: Any, over: bool) -> Any:
        if self.t == 1:
            self.agents = ["a", "b"]
            step[0]["b"] = self.observe("b")
            step[1]["b"], step[4]["b"] = 1.0, {}
        return step


class OnlyWatches(Changed):
    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        returned = super().begin()
        self.agents = ["a"]
        return returned

    def change(self, *step: Any, over: bool) -> Any:
        return step


class Endless(Changed):
    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        returned = super().begin()
        self.length = 10**9
        return returned

    def change(self, *step: Any, over: bool) -> Any:
        return step


class TimeLimitTerminates(Changed):
    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        returned = super().begin()
        self.length = 7
        return returned

    def change(self, *step: Any, over: bool) -> Any:
        return step[0], step[1], step[3], step[2], step[4]


class EndsEarly(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        if self.t == 3:
            step[2]["b"] = True
            self.agents = ["a"]
        return step


# --- Randomness -------------------------------------------------------------------------------------------------------


class DrawsFromNumpy(Healthy):
    def observe(self, agent: str) -> Any:
        return np.random.random(3).astype(np.float32)  # noqa: NPY002


class SeedsNumpy(Healthy):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed)


class DrawsFromPython(Healthy):
    def observe(self, agent: str) -> Any:
        return super().observe(agent) * np.float32(random.random())


class Unseeded(Healthy):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(None)


class SeededOnce(Healthy):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self.begin()


class Remembers(Healthy):
    """The first number that agents see falls with the number of episodes."""

    episodes = 0

    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.episodes += 1
        return super().begin()

    def observe(self, agent: str) -> Any:
        return super().observe(agent) / np.float32(self.episodes)


class SharedGenerator(Healthy):
    generators: ClassVar[dict[str, np.random.Generator]] = {}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.generators["of all"] = np.random.default_rng(seed)
        return self.begin()

    @property
    def rng(self) -> np.random.Generator:
        return self.generators.setdefault("of all", np.random.default_rng())

    @rng.setter
    def rng(self, rng: np.random.Generator) -> None:
        """The generator of all envs stays."""


class IgnoresSeed(Healthy):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(1)


# --- More -------------------------------------------------------------------------------------------------------------


class Forgets(Healthy):
    """Its state lacks the generator."""

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t, "length": self.length, "agents": list(self.agents)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)


class StateRaises(Forgets):
    def set_state(self, state: Mapping[str, Any]) -> None:
        raise KeyError("rng")


class RendersNothing(Healthy):
    def render(self) -> Any:
        return None


class NoPictures(Healthy):
    metadata: ClassVar[dict[str, Any]] = {"name": "no_pictures_v0", "render_modes": ["human"]}


class TupleAction(Healthy):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])
        self.spaces = {agent: (observation, action_space) for agent, (observation, _) in self.spaces.items()}

    def step(self, actions: Mapping[str, Any]) -> Step:
        return super().step({agent: sum(action) for agent, action in actions.items()})


# --- Advice -----------------------------------------------------------------------------------------------------------


class LargeNumbers(Healthy):
    high = 1000.0

    def observe(self, agent: str) -> Any:
        return super().observe(agent) * np.float32(1000)


class Blind(Healthy):
    def observe(self, agent: str) -> Any:
        super().observe(agent)
        return np.zeros(3, np.float32)


class LargeRewards(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        step[1].update({agent: 1000 * reward for agent, reward in step[1].items()})
        return step


class NoRewards(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        return step[0], dict.fromkeys(step[1], 0.0), *step[2:]


class WideActions(Healthy):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        action_space = spaces.Box(-5, 5, (1,), np.float32)
        self.spaces = {agent: (observation, action_space) for agent, (observation, _) in self.spaces.items()}

    def step(self, actions: Mapping[str, Any]) -> Step:
        return super().step({agent: action[0] for agent, action in actions.items()})


class Prints(Healthy):
    def step(self, actions: Mapping[str, Any]) -> Step:
        print("step", self.t)
        return super().step(actions)


class Warns(Healthy):
    def step(self, actions: Mapping[str, Any]) -> Step:
        warnings.warn("the level has no exit", UserWarning, stacklevel=1)
        return super().step(actions)


# --- Processes --------------------------------------------------------------------------------------------------------


class OrderOfASet(Healthy):
    """Who begins depends on the hashes of strings, which differ between processes."""

    possible_agents: ClassVar = [f"agent_{number}" for number in range(12)]

    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        returned = super().begin()
        self.agents = list(set(self.possible_agents))
        return returned


class Hangs(Healthy):
    def step(self, actions: Mapping[str, Any]) -> Step:
        if self.t == 4:
            time.sleep(60)
        return super().step(actions)


class Crashes(Healthy):
    def step(self, actions: Mapping[str, Any]) -> Step:
        if self.t == 4:
            os.abort()
        return super().step(actions)


# In these, nothing is to be found but what belongs to them.
HEALTHY: Mapping[Callable[..., ParallelEnv], set[str]] = {
    Healthy: set(),
    Draws: set(),
    KeepsState: set(),
    LivesAgain: {"ends-early"},
    TakesTurns: set(),
    Nested: set(),
}

# Each check by its id, with the envs in which it alone has to find something.
PLANTED: Mapping[str, tuple[Callable[..., ParallelEnv], ...]] = {
    "interface": (WithoutAgents,),
    "space-changes": (ChangingSpace,),
    "raises": (Raises, RaisesInConstructor, Exits),
    "bad-return": (FourValues, ListOfRewards),
    "no-agents": (Nobody,),
    "close-raises": (RaisesInClose,),
    "observation-not-finite": (NotANumber,),
    "observation-space": (WrongShape, TextObservation),
    "observation-bounds": (OutOfBounds,),
    "observation-dtype": (DoublePrecision,),
    "missing-value": (NoReward, NoObservation),
    "missing-final-observation": (NoFinalObservation,),
    "reward-not-a-number": (InfiniteReward,),
    "flag-type": (FlagIsNone,),
    "info-type": (InfoIsNone,),
    "info-missing": (NoInfos,),
    "info-huge": (HugeInfos,),
    "action-mask": (NothingAllowed,),
    "observation-rewritten": (Rewritten,),
    "unknown-agent": (Stranger,),
    "ends-without-flag": (EndsSilently,),
    "live-after-end": (StaysAfterEnd,),
    "reward-not-counted": (PaidBeforehand,),
    "never-acts": (OnlyWatches,),
    "never-ends": (Endless,),
    "time-limit-terminates": (TimeLimitTerminates,),
    "ends-early": (EndsEarly,),
    "global-rng": (DrawsFromNumpy, SeedsNumpy, DrawsFromPython),
    "unseeded": (Unseeded,),
    "seed-ignored": (SeededOnce,),
    "state-leaks": (Remembers,),
    "shared-state": (SharedGenerator,),
    "same-for-every-seed": (IgnoresSeed,),
    "state-not-restored": (Forgets, StateRaises),
    "render-fails": (RendersNothing,),
    "no-film": (NoPictures,),
    "no-algorithm": (TupleAction,),
    "observation-scale": (LargeNumbers,),
    "observation-constant": (Blind,),
    "reward-scale": (LargeRewards,),
    "reward-always-zero": (NoRewards,),
    "action-range": (WideActions,),
    "prints": (Prints,),
    "warns": (Warns,),
}

# Those that are found from outside the process of the env.
PLANTED_IN_PROCESSES: Mapping[str, Callable[..., ParallelEnv]] = {
    "differs-between-processes": OrderOfASet,
    "hangs": Hangs,
    "crashes": Crashes,
}
