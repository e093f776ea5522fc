"""Games and runs for tests of live play, and the envs of some: without pictures, with pictures, with broken ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import marl_sb3
from marl_sb3.evaluation.game import Game
from marl_sb3.evaluation.viewed_env import view_if_drawn
from marl_sb3.runs.evaluate import game_plan
from marl_sb3.runs.run import SavedRun

SETTINGS = {"n_steps": 20, "batch_size": 20, "n_epochs": 1, "policy_kwargs.net_arch": [8]}


class Undrawn(gymnasium.Env[Any, Any]):
    """Pays 1 for action 3 and 0.5 for action 2, in episodes of 6 steps."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = Box(-1, 1, (2,))
    action_space = Discrete(2, start=2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0 if action == 3 else 0.5, False, self.steps == 6, {}


class Pictured(Undrawn):
    """Draws as many rows in black as there were steps; fails in the third step if it is to."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}
    fails: ClassVar[bool] = False

    def render(self) -> Any:
        if self.fails and self.steps == 3:
            raise ZeroDivisionError("no light")
        picture = np.full((12, 16, 3), 255, np.uint8)
        picture[: self.steps] = 0
        return picture


class Clicked(Pictured):
    """Two of the four cells of its picture mean an action."""

    metadata: ClassVar[dict[str, Any]] = {**Pictured.metadata, "board_area": (0.1, 0, 0.9, 1)}

    def cell_actions(self, agent: str) -> list[list[int | None]]:
        """2 at the lower left, 3 at the upper right, in the first steps."""
        return [[None, 3], [np.int64(2), None]] if self.steps < 3 else [[None, 3], [None, None]]


def named(**kwargs: Any) -> Clicked:
    """The same env with names for its actions, as for `serve --env`."""
    env = Clicked(**kwargs)
    env.action_meanings = ["pull", "push"]
    return env


class Failing(Pictured):
    """Draws the first steps only."""

    fails = True


def small_run(folder: Path, env: str, **settings: Any) -> SavedRun:
    """A run of two iterations; env 0's episodes end after 15 steps at most."""
    algo = settings.pop("algo", "ppo")
    marl_sb3.train(env, algo=algo, n_envs=2, seed=7, timesteps=80, settings={**SETTINGS, **settings}, run_dir=folder)
    return SavedRun.open(folder, env if ":" in env else None)


def made(run: SavedRun) -> Game:
    """The game of a run, as a page plays it."""
    plan = game_plan(run)
    return Game(plan, partial(view_if_drawn, plan.env))
