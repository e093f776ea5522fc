"""Episodes played for somebody who watches: in a window or a terminal, with the policies of a run or at random."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from marl_sb3.core.config.values import counted
from marl_sb3.core.envs.registry import EnvFactory, env_factory, make_env, takes_argument
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.game import Game, GamePlan
from marl_sb3.evaluation.played import Played
from marl_sb3.evaluation.session import GameSession
from marl_sb3.evaluation.viewed_env import ViewedEnv
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.display.tables import Samples, samples_table
from marl_sb3.extensions.display.video import DEFAULT_FPS
from marl_sb3.runs.evaluate import SUM, samples_of
from marl_sb3.tools.viewing.stages import (
    KeyStage,
    TerminalKeys,
    TerminalStage,
    WindowStage,
    why_no_terminal,
    why_no_window,
)

_log = logging.getLogger(__name__)

# Place -> the render modes that can be shown there, the best first.
PLACES: Mapping[str, Sequence[str]] = {"window": ("rgb_array", "human"), "terminal": ("rgb_array", "ansi")}


@dataclass(frozen=True)
class Watched:
    """What was watched."""

    played: Played  # the complete episodes; without metrics
    checkpoint: str | None  # name of the checkpoint of the policies; None if there was none
    checkpoint_why: str  # why that one
    against: str = ""  # the name of who played against them, with its checkpoint; empty if nobody did

    def print(self, title: str) -> None:
        """Print the returns of the episodes that were played to their end."""
        console, episodes = standard_console(), self.played.episodes
        by = self.checkpoint or "random actions"
        by += f" against {self.against}" if self.against else ""
        for line in filter(None, (f"{title}, {by}: {counted(len(episodes), 'complete episode')}", self.checkpoint_why)):
            console.print(line, soft_wrap=True)
        if episodes:
            console.print(samples_table(self._samples(), console.width, bold=SUM))

    def _samples(self) -> Samples:
        """Return the rows of the table. Against an opponent, there is a row for each player and agent."""
        custom = list(dict.fromkeys(name for episode in self.played.episodes for name in episode.custom))
        if not self.against:
            return samples_of({(): self.played}, custom)
        by_player: dict[str, list[float]] = {}
        for episode in self.played.episodes:
            for agent, paid in episode.agent_returns.items():
                by_player.setdefault(f"{episode.policy_of[agent]} as {agent}", []).append(paid)
        return [*sorted(by_player.items()), *samples_of({(): self.played}, custom, 0)]


def watch(
    plan: GamePlan, title: str, n_episodes: int = 5, *, fps: float | None = None, place: str | None = None
) -> Watched:
    """Play episodes, and show each step.

    Args:
        plan: what is played.
        title: of the window, or below the picture.
        n_episodes: number of episodes; the viewer may leave earlier.
        fps: env steps per second; None: as the env's metadata say, else 10.
        place: `window` or `terminal`; None: a window if one can be opened.

    Raises:
        ConfigError: there is neither a display nor a terminal, or the env has nothing to show there.
        CheckpointError: there is no checkpoint.
    """
    factory = env_factory(plan.env)
    found, render_mode = _place_and_mode(plan, factory, place)

    def view(env_kwargs: Mapping[str, object]) -> ViewedEnv:
        env = make_env(factory, 0, {**env_kwargs, "render_mode": render_mode})
        return ViewedEnv(env, render_mode, has_to_render=True)

    with closing(Game(plan, view)) as game, ExitStack() as cleanup:
        stage = _stage(found, render_mode, cleanup.enter_context(TerminalKeys()), title, game.viewed)
        cleanup.callback(stage.close)
        player = GameSession(game, stage, fps or float(game.env.metadata.get("render_fps") or DEFAULT_FPS), n_episodes)
        player.play()
        played = Played({}, tuple(player.episodes), game.env.agents)
        policies, theirs = game.policies, game.their_checkpoint
        is_named = theirs is None or game.against.endswith(theirs)
        against = game.against if is_named else f"{game.against} ({theirs})"
        return Watched(played, policies.checkpoint, policies.checkpoint_why, against)


def _place_and_mode(plan: GamePlan, factory: EnvFactory, asked: str | None) -> tuple[str, str]:
    """Choose a place that there is, for a render mode that the env has."""
    reasons = {"window": why_no_window(), "terminal": why_no_terminal(standard_console())}
    places = list(PLACES) if asked is None else [asked]
    possible = [name for name in places if reasons[name] is None]
    if not possible:
        why = "; ".join(f"no {name}: {reasons[name]}" for name in places)
        raise ConfigError(f"nothing can be shown here: {why}; evaluate --video FILE.gif makes a film", key="--view")
    modes = render_modes(factory, {name: value for name, value in plan.settings.items() if name not in _OF_VEC_ENV})
    for name in possible:
        for mode in PLACES[name]:
            if mode in modes:
                if name == "terminal" and asked is None and reasons["window"]:
                    _log.info("no window: %s", reasons["window"])
                return name, mode
    accepted = " or ".join(f"{', '.join(PLACES[name])} in a {name}" for name in possible)
    shown = ", ".join(modes) or "none"
    raise ConfigError(f"the env has no picture: its render modes are {shown}; accepted: {accepted}", key="env")


def _stage(place: str, render_mode: str, keys: TerminalKeys, title: str, env: ViewedEnv) -> KeyStage:
    if render_mode == "human":
        return KeyStage(keys)
    if place == "window":
        return WindowStage(keys, title, env)
    return TerminalStage(keys, title, standard_console())


_OF_VEC_ENV = ("episode_horizon", "n_workers", "worker_timeout_s", "max_worker_restarts", "env_state")


def render_modes(factory: EnvFactory, env_kwargs: Mapping[str, object]) -> list[str]:
    """Return the render modes of an env; of one that does not tell, `rgb_array`, if it takes a render mode."""
    with closing(make_env(factory, 0, {k: v for k, v in env_kwargs.items() if k != "render_mode"})) as env:
        modes = env.metadata.get("render_modes")
    if modes is None:
        return ["rgb_array"] if takes_argument(factory, "render_mode") else []
    return [str(mode) for mode in modes]
