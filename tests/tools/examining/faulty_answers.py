"""Envs with one fault each in what they answer: the interface, values, and agents that come and go."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from healthy import Changed, Factory, Healthy, Step, sights, starts, steps

THE_END = threading.Event()  # of the tests, for threads that wait for it


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


class RaisesInClose(Healthy):
    def close(self) -> None:
        raise RuntimeError("nothing to close")


class LeavesThread(Healthy):
    def close(self) -> None:
        threading.Thread(target=THE_END.wait, args=(60,)).start()


class NotANumber(Healthy):
    def observe(self, agent: str) -> Any:
        observation = super().observe(agent)
        if self.t == 3:
            observation[1] = np.nan
        return observation


class InfiniteReward(Changed):
    def change(self, step: list[Any], over: bool) -> None:
        step[1]["a"] = np.inf


class NothingAllowed(Changed):
    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, infos = super().begin()
        return observations, {agent: {"action_mask": np.ones(3, np.int8)} for agent in infos}

    def change(self, step: list[Any], over: bool) -> None:
        step[4] = {agent: {"action_mask": np.full(3, self.t < 3, np.int8)} for agent in step[4]}


class Rewritten(Healthy):
    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.shown = {agent: np.zeros(3, np.float32) for agent in self.possible_agents}
        return super().begin()

    def observe(self, agent: str) -> Any:
        self.shown[agent][:] = super().observe(agent)
        return self.shown[agent]


class Stranger(Healthy):
    def step(self, actions: Mapping[str, Any]) -> Any:
        self.agents = list(actions)
        step = super().step(actions)
        self.agents += ["c"] if self.t == 3 else []
        return step


class StaysAfterEnd(Healthy):
    def step(self, actions: Mapping[str, Any]) -> Any:
        step = super().step({"a": 0, "b": 0, **actions})
        self.agents = list(self.possible_agents)
        return step


class PaidBeforehand(Changed):
    """Agent b acts from the second step on, and is paid for the first."""

    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        returned = super().begin()
        self.agents = ["a"]
        return returned

    def change(self, step: list[Any], over: bool) -> None:
        if self.t == 1:
            self.agents = ["a", "b"]
            step[0]["b"], step[1]["b"], step[4]["b"] = self.observe("b"), 1.0, {}


class EndsEarly(Changed):
    def change(self, step: list[Any], over: bool) -> None:
        if self.t == 3:
            step[2]["b"] = True
            self.agents = ["a"]


class TimeLimitTerminates(Changed):
    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        returned = super().begin()
        self.length = 7
        return returned

    def change(self, step: list[Any], over: bool) -> None:
        step[2:4] = step[3], step[2]


# Each check by its id, with the envs in which it alone has to find something.
PLANTED_ANSWERS: Mapping[str, tuple[Factory, ...]] = {
    "interface": (WithoutAgents,),
    "space-changes": (ChangingSpace,),
    "raises": (Raises, RaisesInConstructor, Exits),
    "bad-return": (
        steps(lambda env, step, over: step.pop(2)),
        steps(lambda env, step, over: step.insert(1, list(step.pop(1).values()))),
    ),
    "no-agents": (starts(lambda env: env.agents.clear()),),
    "close-raises": (RaisesInClose,),
    "left-running": (LeavesThread,),
    "observation-not-finite": (NotANumber,),
    "observation-space": (
        sights(lambda env, seen: seen[:2] if env.t == 3 else seen),
        sights(lambda env, seen: "north" if env.t == 3 else seen),
    ),
    "observation-bounds": (sights(lambda env, seen: seen + np.float32(env.t == 3)),),
    "observation-dtype": (sights(lambda env, seen: seen.astype(np.float64)),),
    "missing-value": (
        steps(lambda env, step, over: step[1].pop("b")),
        steps(lambda env, step, over: over or step[0].pop("b", None)),
    ),
    "missing-final-observation": (steps(lambda env, step, over: over and step[0].clear()),),
    "reward-not-a-number": (InfiniteReward,),
    "flag-type": (steps(lambda env, step, over: step[2].update(a=None)),),
    "info-type": (steps(lambda env, step, over: step[4].update(a=None)),),
    "info-missing": (steps(lambda env, step, over: step[4].clear()),),
    "info-huge": (steps(lambda env, step, over: step[4]["a"].update(history=np.zeros(10_000))),),
    "action-mask": (NothingAllowed,),
    "observation-rewritten": (Rewritten,),
    "unknown-agent": (Stranger,),
    "ends-without-flag": (steps(lambda env, step, over: step[3].update(b=False)),),
    "live-after-end": (StaysAfterEnd,),
    "reward-not-counted": (PaidBeforehand,),
    "never-acts": (starts(lambda env: env.agents.remove("b")),),
    "never-ends": (starts(lambda env: setattr(env, "length", 10**9)),),
    "time-limit-terminates": (TimeLimitTerminates,),
    "truncated-and-terminated": (steps(lambda env, step, over: step.__setitem__(2, step[3])),),
    "ends-early": (EndsEarly,),
}
