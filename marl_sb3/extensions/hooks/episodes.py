"""The hooks of episodes: callbacks see the episode at hand, and what they add to it is logged and resumed."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Image, Logger

from marl_sb3.core.acting.actor import Acted
from marl_sb3.core.metrics.episodes import Episode, EpisodeTracker
from marl_sb3.core.state.state import State, StateReader, is_plain
from marl_sb3.core.training.callback import TrainingWatcher, has_hook, named_errors, with_hook
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.doors import counterpart
from marl_sb3.errors import ConfigError, HookError, shown
from marl_sb3.extensions.display.video import write_film
from marl_sb3.files.paths import file_names
from marl_sb3.types import AgentID, Array, PolicyID
from marl_sb3.wrappers.observations import env_action

if TYPE_CHECKING:
    from marl_sb3.core.training.algorithm import MultiAgentAlgorithm

_log = logging.getLogger(__name__)

_OF_STEPS = ("on_episode_start", "on_episode_step")
_OF_EPISODES = (*_OF_STEPS, "on_episode_end")


def episode_hooks(algorithm: MultiAgentAlgorithm, callback: BaseCallback) -> EpisodeHooks | None:
    """Return what calls the hooks of episodes; None if there are none. See `WatcherMaker`.

    Raises:
        ConfigError: hooks of steps where the steps are taken in shards, whose observations stay there.
    """
    for each in with_hook(callback, *_OF_STEPS) if algorithm.parts.runner.watchers is None else ():
        name = next(name for name in _OF_STEPS if has_hook(each, name))
        words = f"{type(each).__name__}.{name}() needs every step as it is taken, and shards take theirs elsewhere"
        raise ConfigError(f"{words}; accepted: no --ray, runners and n_shards", key="callback")
    if not with_hook(callback, *_OF_EPISODES):
        return None
    return EpisodeHooks(algorithm.env, algorithm.tracker, callback)  # type: ignore[abstract]  # one hook has no body


class EpisodeHooks(TrainingWatcher):
    """Calls the hooks of episodes. There is none in a training without such hooks.

    Args:
        env: the envs.
        tracker: counts their episodes.
        callback: all callbacks of the training.
    """

    def __init__(self, env: MultiAgentVecEnv, tracker: EpisodeTracker, callback: BaseCallback) -> None:
        self._env, self._tracker = env, tracker
        self._of = {name: with_hook(callback, name) for name in _OF_EPISODES}
        self._numbers = np.zeros(env.num_envs, dtype=np.int64)
        self._running: dict[int, RunningEpisode] = {}
        self._saved: dict[int, StateReader] = {}  # of the episodes that a checkpoint has interrupted
        self._warned = False
        self._actions: Sequence[Array] = ()
        self._histograms: dict[str, list[float]] = {}
        self._media: dict[str, Array] = {}

    def begin_episodes(self, step: VecStep) -> None:
        """See `ActingWatcher.begin_episodes`."""
        self._begin(range(self._env.num_envs), step)

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """See `ActingWatcher.restart_envs`: other episodes begin there."""
        for index in env_indices:
            self._running.pop(index, None)

    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        """See `ActingWatcher.before_step`. Episodes that run without a start hook have it now."""
        self._actions = actions
        if len(self._running) < self._env.num_envs:
            self._begin([index for index in range(self._env.num_envs) if index not in self._running], step)

    def after_step(self, step: VecStep) -> None:
        """See `ActingWatcher.after_step`; that of an episode's last step comes with its end."""
        is_last = step.episode_done & (self._tracker.lengths == 0)  # not the end of a life beneath a wrapper
        for index in np.flatnonzero(step.stepped & ~is_last).tolist() if self._of["on_episode_step"] else ():
            self._call("on_episode_step", self._after(step, index, self._actions, *self._tracker.running(index)))

    def finished(self, finished: Sequence[Episode], step: VecStep) -> None:
        """Call the hooks of finished episodes, and of those that begin in their envs."""
        for each in finished:
            so_far = each.length, each.agent_returns, each.agent_steps
            episode = self._after(step, each.env_index, self._actions, *so_far)
            episode.custom, episode.duration_s, episode.policy_of = each.custom, each.duration_s, each.policy_of
            self._call("on_episode_step", episode)
            self._call("on_episode_end", episode)
            self._tracker.add_custom(each, _custom_numbers(episode))
            for name, numbers in episode.hist_data.items():
                self._histograms.setdefault(name, []).extend(_checked_numbers(episode, name, numbers))
            self._media.update({name: _checked_frames(episode, name) for name in episode.media})
            del self._running[each.env_index]
        self._begin([each.env_index for each in finished], step)

    def log(self, logger: Logger, iteration: int) -> None:
        """Record `hist_data` and `media` of the episodes that ended since the last call, and write films of media.

        Args:
            logger: the films are in the folder `media` of its folder, if it has one.
        """
        for name, numbers in self._histograms.items():
            if not numbers:  # no histogram can be drawn of nothing
                continue
            logger.record(f"env_runners/hist_stats/{name}", np.array(numbers), exclude=("csv", "stdout"))
        for name, frames in self._media.items():
            picture = Image(frames[-1], "HWC")
            logger.record(f"env_runners/media/{name}", picture, exclude=("csv", "json", "stdout"))
        if self._media and logger.get_dir() is not None:
            folder = Path(str(logger.get_dir())) / "media"
            folder.mkdir(exist_ok=True)
            for name, file_name in file_names(list(self._media), f"-{iteration:06}.gif").items():
                write_film(folder / file_name, self._media[name])
        self._histograms, self._media = {}, {}

    def _begin(self, env_indices: Sequence[int], step: VecStep) -> None:
        for index in env_indices:
            saved, running = self._saved.pop(index, None), self._tracker.running(index)
            self._numbers[index] += 1
            if saved is not None:
                goes_on = saved.integer("length") == running[0]
                self._numbers[index] = saved.integer("number", 1) + (not goes_on)
                saved = saved if goes_on else None
            self._running.pop(index, None)
            episode = self._after(step, index, None, *running)
            if saved is not None:  # the start hook sees what there was, and may not change it
                _give_back(episode, saved)
            self._call("on_episode_start", episode)
            if saved is not None:
                _give_back(episode, saved)

    def get_state(self) -> State:
        """See `TrainingWatcher.get_state`; what a checkpoint cannot hold exactly is named in a warning, once."""
        return {str(index): self._state_of(episode) for index, episode in self._running.items()}

    def _state_of(self, episode: RunningEpisode) -> State:
        state: dict[str, Any] = {
            "number": int(self._numbers[episode.env_index]),
            "length": self._tracker.running(episode.env_index)[0],
        }
        for entry in _OF_HOOKS:
            data: Mapping[Any, Any] = getattr(episode, entry)
            held = {name: value for name, value in data.items() if isinstance(name, str) and _is_exact(value)}
            state[entry] = {"held": copy.deepcopy(held), "left_out": [str(name) for name in data if name not in held]}
            for name in data if not self._warned else ():
                if name not in held:
                    self._warned = True
                    words = "inexact: checkpoints are without %s[%r] of episodes, such as %s: %s"
                    accepted = "accepted: dicts with strings as keys, lists, strings, finite numbers, arrays, None"
                    _log.warning(words, entry, name, shown(data[name]), accepted)
        return state

    def restore(self, state: StateReader) -> None:
        """See `TrainingWatcher.restore`; an episode gets it with its start hook."""
        for name in state.names():
            if name not in map(str, range(self._env.num_envs)):
                raise state.error(name, name, f"the index of an env, below {self._env.num_envs}")
            saved = state.fields(name)
            saved.integer("number", 1)
            saved.integer("length")
            for entry in _OF_HOOKS:
                saved.fields(entry).fields("held")
                saved.fields(entry).items("left_out")
            self._saved[int(name)] = saved

    def _after(
        self, step: VecStep, index: int, actions: Sequence[Array] | None, length: int, returns: Any, agent_steps: Any
    ) -> RunningEpisode:
        """Return the episode of an env, as it is after a step; it begins with the first one, which has no actions."""
        if index not in self._running:
            self._running[index] = RunningEpisode(f"{index}-{self._numbers[index]}", index, self._env.agents)
            self._running[index].policy_of = self._tracker.policies_in(index)
        episode = self._running[index]
        episode.latest = LatestStep(self._env, step, actions)
        episode.length, episode.agent_returns, episode.agent_steps = length, returns, agent_steps
        return episode

    def _call(self, hook: str, episode: RunningEpisode) -> None:
        for callback in self._of[hook]:
            with named_errors(callback, hook, f"episode {episode.id} (env {episode.env_index}), step {episode.length}"):
                getattr(callback, hook)(episode)


_OF_HOOKS = ("user_data", "custom_metrics", "hist_data", "media")


def _is_exact(value: Any) -> bool:
    """Whether a checkpoint gives a value back as it is: as the same types, too."""
    if type(value) is dict:
        return all(type(name) is str and _is_exact(each) for name, each in value.items())
    if type(value) is list:
        return all(map(_is_exact, value))
    return type(value) in (str, int, float, bool, type(None), np.ndarray) and is_plain(value)


def _give_back(episode: RunningEpisode, saved: StateReader) -> None:
    """Put what hooks had put into an episode back; what could not be saved is as the start hook has left it."""
    for entry in _OF_HOOKS:
        state, now = saved.fields(entry), getattr(episode, entry)
        left_out = {name: now[name] for name in now if name in state.items("left_out")}
        setattr(episode, entry, {**copy.deepcopy(state.value("held")), **left_out})


def _custom_numbers(episode: RunningEpisode) -> dict[str, float]:
    """Return the custom metrics of an episode, checked."""
    for name, value in episode.custom_metrics.items():
        is_number = isinstance(name, str) and isinstance(value, (int, float, np.number)) and np.isfinite(value)
        if not is_number:
            words = f"custom_metrics[{name!r}] is {value!r:.100}; accepted: a finite number"
            raise HookError(f"episode {episode.id}: {words}")
    return {name: float(value) for name, value in episode.custom_metrics.items()}


def _checked_numbers(episode: RunningEpisode, name: Any, numbers: Any) -> list[float]:
    """Return a histogram's numbers of an episode, checked; there may be none."""
    try:
        array = np.asarray(numbers)
    except ValueError:  # lists of different lengths
        array = np.empty((), dtype=object)
    is_named = isinstance(name, str) and array.ndim == 1
    if not is_named or (array.size and (array.dtype.kind not in "biuf" or not np.isfinite(array).all())):
        words = f"hist_data[{name!r}] is {numbers!r:.100}; accepted: a list of finite numbers, under a text"
        raise HookError(f"episode {episode.id}: {words}")
    return [float(number) for number in array]


def _checked_frames(episode: RunningEpisode, name: Any) -> Array:
    """Return pictures of an episode as an array, checked."""
    try:
        frames = np.asarray(episode.media[name])
    except ValueError:  # pictures of different sizes
        frames = np.empty((), dtype=object)
    is_film = frames.ndim == 4 and frames.size and frames.shape[-1] == 3 and frames.dtype == np.uint8
    if not is_film or not isinstance(name, str):
        words = f"media[{name!r}] is an array {frames.shape} of {frames.dtype}"
        raise HookError(f"episode {episode.id}: {words}; accepted: (T, H, W, 3) of uint8, of one size, under a text")
    return frames


# --- The episode at hand ---------------------------------------------------------------------------------------------


class LatestStep(NamedTuple):
    """The latest step, of all envs."""

    env: MultiAgentVecEnv
    step: VecStep
    # per group, those of all envs; None at the start of an episode, which `step` has begun
    actions: Sequence[Array] | None

    def place(self, agent: AgentID) -> tuple[int, int, int]:
        """Return the agent's column, its group and its column in the group."""
        group = next(number for number, each in enumerate(self.env.groups) if agent in each.agents)
        return self.env.agents.index(agent), group, self.env.groups[group].agents.index(agent)


@dataclass
class RunningEpisode:
    """One episode of one env, for hooks."""

    id: str  # the index of the env, and the number of the episode in it since the training started: `3-17`
    env_index: int  # index of the env
    agents: Sequence[AgentID]  # all agents of the env
    length: int = 0  # env steps so far
    # sum of the rewards so far, of each agent that has acted or got a reward
    agent_returns: Mapping[AgentID, float] = field(default_factory=dict)
    agent_steps: Mapping[AgentID, int] = field(default_factory=dict)  # number of actions so far, of each agent
    # the custom metrics of the env's infos, at the end of the episode
    custom: Mapping[str, float] = field(default_factory=dict)
    duration_s: float = 0.0  # seconds that the episode took, at its end
    # for data that hooks need until the episode ends. A checkpoint holds dicts, lists, strings, numbers and
    # arrays of it. An episode that goes on from one has its start hook again, and then its data.
    user_data: dict[str, Any] = field(default_factory=dict)
    # name -> number; mean, least and largest value are among the `env_runners/custom_metrics`
    custom_metrics: dict[str, float] = field(default_factory=dict)
    # name -> numbers, all of which are in `env_runners/hist_stats` of the iteration
    hist_data: dict[str, list[float]] = field(default_factory=dict)
    # name -> pictures, (T, H, W, 3) uint8; the latest of an iteration are in TensorBoard, and in a run a video in the
    # folder `media`
    media: dict[str, Any] = field(default_factory=dict)
    policy_of: Mapping[AgentID, PolicyID] = field(default_factory=dict)  # agent -> the policy that plays it
    latest: LatestStep = field(init=False, repr=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error; its message refers to what does the same here as a name of RLlib's episodes."""
            instead = counterpart(name, "episode", owner=self)
            raise AttributeError(f"RunningEpisode has no {name!r}{instead}", name=name, obj=self)

    def observation(self, agent: AgentID) -> Any:
        """Return the agent's latest observation, as the env gave it; None if the agent has none in this step."""
        (column, group, of_group), step = self.latest.place(agent), self.latest.step
        place, has_begun = (self.env_index, column), self.latest.actions is None
        if not has_begun and place in step.final_observations:
            return step.final_observations[place]
        if (step.episode_done[self.env_index] and not has_begun) or not step.to_act[place]:
            return None
        return map_arrays(lambda array: np.array(array[self.env_index, of_group]), step.observations[group])

    def action(self, agent: AgentID) -> Any:
        """Return the agent's action in the latest step, as the env got it; None if it did not act."""
        (column, group, of_group), (env, step, actions) = self.latest.place(agent), self.latest
        if actions is None or not step.acted[self.env_index, column]:
            return None
        return env_action(env.groups[group].action_space, actions[group][self.env_index, of_group])

    def reward(self, agent: AgentID) -> float | None:
        """Return the agent's reward in the latest step; None at the start of the episode."""
        (column, _, _), (_, step, actions) = self.latest.place(agent), self.latest
        return None if actions is None else float(step.rewards[self.env_index, column])

    def info(self, agent: AgentID) -> Mapping[str, Any]:
        """Return the agent's latest info."""
        _, step, actions = self.latest
        of_env = step.reset_infos.get(self.env_index, {}) if actions is None else step.infos[self.env_index]
        found: Mapping[str, Any] = of_env.get(agent, {})
        return found
