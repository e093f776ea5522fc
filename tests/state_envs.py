"""Envs that keep a state of their own, or cannot be brought back; workers import them without what tests import."""

from __future__ import annotations

import numpy as np
from toy_envs import ScriptedEnv


class Forgetful(ScriptedEnv):
    """Shows numbers of its own, which no seed repeats."""

    def observation(self, agent):
        return np.random.default_rng().random(3).astype(np.float32)


class Secretive(ScriptedEnv):
    """Cannot say what it is like."""

    def get_state(self):
        raise KeyError("goal")

    def set_state(self, state):
        raise AssertionError


class Stateful(ScriptedEnv):
    """Knows its own state, and cannot be replayed: its numbers come from a generator that no seed touches."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.rng = np.random.default_rng()

    def observation(self, agent):
        return self.rng.random(3).astype(np.float32)

    def get_state(self):
        state = self.rng.bit_generator.state
        agents = {"present": list(self.present), "step": self.step_count, "episode": self.episode}
        return {**agents, "rng": {"state": dict(state["state"]), "has": state["has_uint32"], "uint": state["uinteger"]}}

    def set_state(self, state):
        rng = state["rng"]
        self.rng.bit_generator.state = {
            "bit_generator": "PCG64", "state": rng["state"], "has_uint32": rng["has"], "uinteger": rng["uint"],
        }  # fmt: skip
        self.present, self.step_count, self.episode = list(state["present"]), state["step"], state["episode"]
        self.agents = self._acting()


class Plain(ScriptedEnv):
    """Does not show how many episodes it has played in this process."""

    def observation(self, agent):
        return np.full(3, self.step_count, dtype=np.float32)
