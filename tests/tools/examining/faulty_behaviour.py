"""Envs with one fault each in how they behave: randomness, state, pictures, advice, and processes."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from healthy import Changed, Factory, Healthy, Step, Trades, Walks, sights, steps

# --- Randomness -------------------------------------------------------------------------------------------------------


class DrawsFromNumpy(Healthy):
    def observe(self, agent: str) -> Any:
        return np.random.random(3).astype(np.float32)  # noqa: NPY002


class SeedsNumpy(Healthy):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed)


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


# --- Dependence -------------------------------------------------------------------------------------------------------


class ReadsOneAction(Healthy):
    def step(self, actions: Mapping[str, Any]) -> Step:
        return super().step({**actions, "b": self.t % 3})


class PaysNothingAgain(Trades):
    def forget(self, agent: str) -> None:
        self._clear_rewards()


class PaysNothingAgainAlone(PaysNothingAgain):
    """What its only agent is paid looks like a running sum, too."""

    possible_agents: ClassVar = ["a"]

    def step(self, action: Any) -> None:
        if self.truncations["a"]:
            self._was_dead_step(action)
            return
        self.forget("a")
        self.rewards["a"] = 0.3 * action
        self._accumulate_rewards()
        self.turns -= 1
        self.truncations["a"] = self.turns == 0


class PaysOldRewards(Trades):
    def forget(self, agent: str) -> None:
        self._cumulative_rewards[agent] = self.rewards[agent] = 0.0


class SumsUp(Changed):
    """It sees nothing of what it has done."""

    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.score = dict.fromkeys(self.possible_agents, 0.0)
        return super().begin()

    def change(self, step: list[Any], over: bool) -> None:
        self.score.update({agent: self.score[agent] + reward for agent, reward in step[1].items()})
        step[1] = dict(self.score)


class SumsUpOnAWalk(SumsUp, Walks):
    """It sees where it is."""


class SeesTheStepBefore(Walks):
    def step(self, actions: Mapping[str, Any]) -> Step:
        before = {agent: self.observe(agent) for agent in actions}
        return before, *super().step(actions)[1:]


class ResetsItself(Changed, Walks):
    def change(self, step: list[Any], over: bool) -> None:
        if over:
            step[0] = self.begin()[0]
            self.agents = []


class ResetsItselfToOneField(ResetsItself):
    def begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        super().begin()
        self.fields = {"a": 1, "b": 3}
        return {agent: self.observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}


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


class KeepsEverything(Healthy):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.kept: list[Any] = []

    def step(self, actions: Mapping[str, Any]) -> Step:
        self.kept.append(np.zeros(20_000))
        return super().step(actions)


class RendersNothing(Healthy):
    def render(self) -> Any:
        return None


class NoPictures(Healthy):
    metadata: ClassVar[dict[str, Any]] = {"name": "no_pictures_v0", "render_modes": ["human"]}


class SaysSomething(Healthy):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        action_space = spaces.Tuple([spaces.Discrete(3), spaces.Text(4)])
        self.spaces = {agent: (observation, action_space) for agent, (observation, _) in self.spaces.items()}

    def step(self, actions: Mapping[str, Any]) -> Step:
        return super().step({agent: action[0] for agent, action in actions.items()})


# --- Advice -----------------------------------------------------------------------------------------------------------


class LargeNumbers(Healthy):
    high = 1000.0

    def observe(self, agent: str) -> Any:
        return super().observe(agent) * np.float32(1000)


class WideActions(Healthy):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        action_space = spaces.Box(-5, 5, (1,), np.float32)
        self.spaces = {agent: (observation, action_space) for agent, (observation, _) in self.spaces.items()}

    def step(self, actions: Mapping[str, Any]) -> Step:
        return super().step({agent: action[0] for agent, action in actions.items()})


class WidePart(Healthy):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        action_space = spaces.Tuple([spaces.Discrete(3), spaces.Box(-5, 5, (1,), np.float32)])
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
    stop = staticmethod(lambda: time.sleep(60))

    def step(self, actions: Mapping[str, Any]) -> Step:
        if self.t == 4:
            self.stop()
        return super().step(actions)


class Crashes(Hangs):
    stop = staticmethod(os.abort)


# Each check by its id, with the envs in which it alone has to find something.
PLANTED_BEHAVIOUR: Mapping[str, tuple[Factory, ...]] = {
    "global-rng": (DrawsFromNumpy, SeedsNumpy, sights(lambda env, seen: seen * np.float32(random.random()))),
    "unseeded": (Unseeded,),
    "seed-ignored": (SeededOnce,),
    "state-leaks": (Remembers,),
    "shared-state": (SharedGenerator,),
    "same-for-every-seed": (IgnoresSeed,),
    "actions-without-effect": (ReadsOneAction,),
    "cumulative-rewards-kept": (PaysNothingAgain, PaysNothingAgainAlone),
    "old-rewards-paid": (PaysOldRewards,),
    "reward-running-sum": (SumsUp, SumsUpOnAWalk),
    "observation-before-step": (SeesTheStepBefore,),
    "final-observation-of-next": (ResetsItself, ResetsItselfToOneField),
    "reward-constant": (steps(lambda env, step, over: step[1].update(a=0.5, b=0.5), Walks),),
    "memory-grows": (KeepsEverything,),
    "state-not-restored": (Forgets, StateRaises),
    "render-fails": (RendersNothing,),
    "no-film": (NoPictures,),
    "no-algorithm": (SaysSomething,),
    "observation-scale": (LargeNumbers,),
    "observation-constant": (sights(lambda env, seen: np.zeros(3, np.float32)),),
    "reward-scale": (steps(lambda env, step, over: step[1].update(a=1000 * step[1]["a"], b=1000 * step[1]["b"])),),
    "reward-always-zero": (steps(lambda env, step, over: step[1].update(a=0.0, b=0.0), Walks),),
    "action-range": (WideActions, WidePart),
    "prints": (Prints,),
    "warns": (Warns,),
}

# Those that are found from outside the process of the env.
PLANTED_IN_PROCESSES: Mapping[str, Factory] = {
    "differs-between-processes": OrderOfASet,
    "hangs": Hangs,
    "crashes": Crashes,
}
