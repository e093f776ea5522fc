"""Envs with one fault each in what they answer: the interface, values, and agents that come and go."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from healthy import Changed, Factory, Healthy, Step

THE_END = threading.Event()  # of the tests, for threads that wait for it

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


class LeavesThread(Healthy):
    def close(self) -> None:
        threading.Thread(target=THE_END.wait, args=(60,)).start()


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


class BothFlags(Changed):
    def change(self, *step: Any, over: bool) -> Any:
        return step[0], step[1], step[3], step[3], step[4]


# Each check by its id, with the envs in which it alone has to find something.
PLANTED_ANSWERS: Mapping[str, tuple[Factory, ...]] = {
    "interface": (WithoutAgents,),
    "space-changes": (ChangingSpace,),
    "raises": (Raises, RaisesInConstructor, Exits),
    "bad-return": (FourValues, ListOfRewards),
    "no-agents": (Nobody,),
    "close-raises": (RaisesInClose,),
    "left-running": (LeavesThread,),
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
    "truncated-and-terminated": (BothFlags,),
    "ends-early": (EndsEarly,),
}
