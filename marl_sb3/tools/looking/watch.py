"""Episodes played for somebody who watches: in a window or a terminal, with the policies of a run or at random."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from gymnasium.error import DependencyNotInstalled
from pettingzoo import ParallelEnv

from marl_sb3.core.acting import Acted, PolicyBundle, PolicySpaces
from marl_sb3.core.config import counted
from marl_sb3.core.envs import EnvFactory, env_factory, make_env, takes_argument
from marl_sb3.core.mapping import Deterministic
from marl_sb3.core.metrics import Episode
from marl_sb3.core.vec_env import MultiAgentVecEnv, VecStep, make_vec_env
from marl_sb3.envs import DrawnEnv
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation import Evaluation, play_episodes
from marl_sb3.extensions.display import (
    DEFAULT_FPS,
    FilmedEnv,
    Scene,
    captioned,
    is_picture,
    samples_table,
    standard_console,
)
from marl_sb3.runs import SUM, samples_of
from marl_sb3.tools.looking.playback import (
    EnvsOwnWindow,
    Playback,
    Stage,
    TerminalKeys,
    TerminalStage,
    View,
    ViewerLeftError,
    WindowStage,
    why_no_terminal,
    why_no_window,
)
from marl_sb3.types import AgentID, Array, PolicyID
from marl_sb3.wrappers import innermost_env

_log = logging.getLogger(__name__)

# Place -> the render modes that can be shown there, the best first.
PLACES: Mapping[str, Sequence[str]] = {"window": ("rgb_array", "human"), "terminal": ("rgb_array", "ansi")}

LoadPolicies = Callable[[MultiAgentVecEnv], PolicyBundle]


@dataclass(frozen=True)
class WatchPlan:
    """What is watched."""

    env: str | EnvFactory  # an id, or a factory
    settings: Mapping[str, Any]  # of `make_vec_env`, with the arguments of the env
    policies: LoadPolicies | None  # loads the policies for these envs; None: all agents act at random
    n_episodes: int  # number of episodes; the viewer may leave earlier
    deterministic: Deterministic = True  # the most likely actions, or sampled ones
    seed: int | None = None  # of the episodes and the actions; None: drawn
    fps: float | None = None  # env steps per second; None: as the env's metadata say, else 10
    place: str | None = None  # `window` or `terminal`; None: a window if one can be opened


@dataclass(frozen=True)
class Watched:
    """What was watched."""

    evaluation: Evaluation  # the complete episodes; without metrics
    agents: Sequence[AgentID]  # of the env
    custom: Sequence[str]  # the names of the custom metrics that episodes had
    checkpoint: str | None  # name of the checkpoint of the policies; None if there was none
    checkpoint_why: str  # why that one

    def print(self, title: str) -> None:
        """Print the returns of the episodes that were played to their end."""
        console = standard_console()
        by = self.checkpoint or "random actions"
        played = counted(len(self.evaluation.episodes), "complete episode")
        for line in filter(None, (f"{title}, {by}: {played}", self.checkpoint_why)):
            console.print(line, soft_wrap=True)
        if self.evaluation.episodes:
            rows = samples_of(self.evaluation, self.agents, self.custom)
            console.print(samples_table(rows, console.width, bold=SUM))


def watch(plan: WatchPlan, title: str) -> Watched:
    """Play episodes, and show each step.

    Args:
        title: of the window, or below the picture.

    Raises:
        ConfigError: there is neither a display nor a terminal, or the env has nothing to show there.
        CheckpointError: there is no checkpoint.
    """
    made: list[WatchedEnv] = []
    place = _Place.find(plan)

    def make(**env_kwargs: Any) -> WatchedEnv:
        made.append(place.watched(env_kwargs))
        return made[-1]

    with closing(make_vec_env(make, 1, plan.seed, **{**plan.settings, "n_workers": 0})) as env:
        bundle = random_policies(env) if plan.policies is None else plan.policies(env)
        fps = plan.fps or float(env.metadata.get("render_fps") or DEFAULT_FPS)
        episodes: list[Episode] = []
        with ExitStack() as cleanup:
            keys = cleanup.enter_context(TerminalKeys())
            playback = cleanup.enter_context(Playback(place.stage(made[0], title), keys, fps))
            cleanup.enter_context(suppress(ViewerLeftError))
            play_episodes(
                bundle,
                env,
                plan.n_episodes,
                plan.deterministic,
                plan.seed,
                on_episode=episodes.append,
                acting=() if plan.policies is None else None,
                watchers=[_Shower(made[0], playback, plan.n_episodes)],
            )
        custom = list(dict.fromkeys(name for episode in episodes for name in episode.custom))
        evaluation = Evaluation({}, tuple(episodes))
        return Watched(evaluation, env.agents, custom, bundle.checkpoint, bundle.checkpoint_why)


def random_policies(env: MultiAgentVecEnv) -> PolicyBundle:
    """Return a bundle without policies, for agents of which none acts by a policy."""
    groups = {f"random-{number}": group for number, group in enumerate(env.groups)}
    return PolicyBundle(
        policies={},
        policy_of={agent: name for name, group in groups.items() for agent in group.agents},
        spaces={name: PolicySpaces(group.observation_space, group.action_space) for name, group in groups.items()},
        processing={},
    )


class _Shower:
    """Shows what the env has looked like since the last step: a step, and a reset after the last one of an episode."""

    def __init__(self, env: WatchedEnv, playback: Playback, n_episodes: int) -> None:
        self._env, self._playback, self._n_episodes = env, playback, n_episodes

    def begin_episodes(self, step: VecStep) -> None:
        self.after_step(step)

    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        pass

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        pass

    def after_step(self, step: VecStep) -> None:
        *ended, latest = self._env.views
        self._env.views.clear()
        for view in [*(replace(view, is_last=True) for view in ended), latest]:
            if view.episode <= self._n_episodes:
                self._playback.show(view)


class WatchedEnv(FilmedEnv):
    """Keeps views of an env: the vec env resets it as soon as an episode ends, so nobody can look from outside.

    Args:
        env: made with the render mode.
        render_mode: `rgb_array`, `ansi`, or `human`, with which the env shows itself.
    """

    def __init__(self, env: ParallelEnv, render_mode: str) -> None:
        super().__init__(env, lambda _: None, sys.maxsize)
        self._render_mode = render_mode
        inner = innermost_env(env)
        self._draws = inner.scene if isinstance(inner, DrawnEnv) else None
        self.views: list[View] = []  # since somebody has taken them

    def _film(self) -> None:
        """Look at the env; called after each reset and step."""
        rendered = None if self._render_mode == "human" else self._rendered()
        self.views.append(
            View(
                self._scene.episode,
                self._scene.step,
                dict(self._scene.returns),
                image=rendered if is_picture(rendered) else None,
                scene=self._draws() if self._draws is not None else None,
                text=rendered if isinstance(rendered, str) else None,
                legend=self._legend,
            )
        )

    def _rendered(self) -> Any:
        try:
            rendered = self.env.render()
        except (ImportError, DependencyNotInstalled) as error:
            raise ConfigError(f"the env cannot render: {error}", key="env") from error
        if not is_picture(rendered) and not isinstance(rendered, str):
            words = f"render() of the env returned {type(rendered).__name__}"
            raise ConfigError(f"{words}; accepted: an array (height, width, 3) of uint8, or text", key="env")
        return rendered

    def captioned(self, view: View) -> Any:
        """The image of a view, with a caption below it; None if it has none."""
        if view.image is None:
            return None
        return captioned(view.image, Scene(view.episode, view.step, dict(view.returns)), view.legend)


# --- Where it is shown -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where an env is shown, and the render mode for it."""

    factory: EnvFactory
    name: str
    render_mode: str

    @classmethod
    def find(cls, plan: WatchPlan) -> _Place:
        """Choose a place that there is, for a render mode that the env has."""
        reasons = {"window": why_no_window(), "terminal": why_no_terminal(standard_console())}
        asked = list(PLACES) if plan.place is None else [plan.place]
        possible = [name for name in asked if reasons[name] is None]
        if not possible:
            why = "; ".join(f"no {name}: {reasons[name]}" for name in asked)
            raise ConfigError(f"nothing can be shown here: {why}; evaluate --video FILE.gif makes a film", key="--view")
        factory = env_factory(plan.env)
        of_env = {name: value for name, value in plan.settings.items() if name not in _OF_VEC_ENV}
        modes = render_modes(factory, of_env)
        for name in possible:
            for mode in PLACES[name]:
                if mode in modes:
                    if name == "terminal" and plan.place is None and reasons["window"]:
                        _log.info("no window: %s", reasons["window"])
                    return cls(factory, name, mode)
        accepted = " or ".join(f"{', '.join(PLACES[name])} in a {name}" for name in possible)
        shown = ", ".join(modes) or "none"
        raise ConfigError(f"the env has no picture: its render modes are {shown}; accepted: {accepted}", key="env")

    def watched(self, env_kwargs: Mapping[str, Any]) -> WatchedEnv:
        """Make the env."""
        env = make_env(self.factory, 0, {**env_kwargs, "render_mode": self.render_mode})
        return WatchedEnv(env, self.render_mode)

    def stage(self, env: WatchedEnv, title: str) -> Stage:
        """Make what shows the env."""
        if self.render_mode == "human":
            return EnvsOwnWindow()
        if self.name == "window":
            return WindowStage(title, env.captioned)
        return TerminalStage(standard_console(), title)


_OF_VEC_ENV = ("episode_horizon", "n_workers", "worker_timeout_s", "max_worker_restarts", "env_state")


def render_modes(factory: EnvFactory, env_kwargs: Mapping[str, Any]) -> list[str]:
    """Return the render modes of an env; of one that does not tell, `rgb_array`, if it takes a render mode."""
    with closing(make_env(factory, 0, {k: v for k, v in env_kwargs.items() if k != "render_mode"})) as env:
        modes = env.metadata.get("render_modes")
    if modes is None:
        return ["rgb_array"] if takes_argument(factory, "render_mode") else []
    return [str(mode) for mode in modes]
