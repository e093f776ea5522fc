"""The callbacks of a training: what they are called with, which are accepted, and their states."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from marl_sb3.core.acting.actor import ActingWatcher
from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.sb3.private import all_callbacks
from marl_sb3.core.state.state import State, StateReader, is_plain
from marl_sb3.core.vec_env.interface import Health, MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.doors import WATCHERS
from marl_sb3.errors import CheckpointError, ConfigError, HookError, described
from marl_sb3.types import PolicyID

if TYPE_CHECKING:
    from marl_sb3 import RunningEpisode, Trajectory

_log = logging.getLogger(__name__)


class TrainingCallback(BaseCallback):
    """An SB3 callback with more hooks; see `MultiAgentCallback`.

    Hooks do nothing unless a callback overrides them. Those of several callbacks are called in the order in which the
    callbacks were given. An exception in a hook ends the training with a `HookError`.
    """

    def _on_step(self) -> bool:
        return True

    # --- Within rollouts ---------------------------------------------------------------------------------------------

    def on_episode_start(self, episode: RunningEpisode) -> None:
        """Called when an env has begun an episode, with its first observations."""

    def on_episode_step(self, episode: RunningEpisode) -> None:
        """Called after every env step of every episode, also the last one."""

    def on_episode_end(self, episode: RunningEpisode) -> None:
        """Called once for each env episode that ends, before `on_step` of that step."""

    def on_trajectory(self, trajectory: Trajectory) -> None:
        """Called with what an agent has experienced, before its policy's learner uses it; changes it in place.

        Of policies with rollouts, that is the part of each episode that lies in a rollout, before returns are computed;
        of policies with replay buffers, each finished episode, before it goes into the buffer. In shards, it runs in
        their processes, and what it stores in the callback is forgotten after a round. Episodes that were under way
        before there was the hook are not shown.
        """

    def on_update_start(self, policy_id: PolicyID, batch: Any) -> None:
        """Called before each update of a policy.

        Args:
            policy_id: the policy.
            batch: SB3's rollout buffer with returns and advantages; or the replay buffer that minibatches are drawn of.
        """

    # --- Between iterations ------------------------------------------------------------------------------------------

    def on_envs_created(self, env: MultiAgentVecEnv) -> None:
        """Called when a training starts, with its envs."""

    def on_workers_restarted(self, health: Health) -> None:
        """Called at the end of a rollout in which processes that step envs were replaced."""

    def on_evaluation_start(self) -> None:
        """Called before an evaluation within a training."""

    def on_evaluation_end(self, evaluation: Result) -> None:
        """Called after an evaluation within a training, with what is logged below `evaluation/`; it may add to it."""

    def on_checkpoint_saved(self, path: Path) -> None:
        """Called when a checkpoint of the training was written."""

    def on_checkpoint_loaded(self) -> None:
        """Called at the start of a training that continues one from a checkpoint, when all states are set."""

    def complete_result(self, result: Result) -> None:
        """Add metrics to an iteration's result; called on all callbacks before any of them gets `on_iteration_end`."""

    def on_iteration_end(self, result: Result) -> bool:
        """Called after each iteration with its complete result; False ends the training."""
        return True

    def on_iteration_logged(self, result: Result) -> None:
        """Called after the iteration's metrics were written, when the iteration is complete."""

    def get_state(self) -> State:
        """Return the state that a resumed run needs: names, and plain data and arrays.

        Also called when a training starts, to check that a checkpoint can hold the state.
        """
        return {}

    def set_state(self, state: StateReader) -> None:
        """Called after `on_training_start` of a resumed run, with what `get_state` returned.

        Raises:
            CheckpointError: the state does not fit the callback. It is untrusted: check all of it.
        """


@contextmanager
def named_errors(callback: BaseCallback, hook: str, where: str = "") -> Iterator[None]:
    """Name the hook in the error that ends a training because of it.

    Args:
        where: the env, the episode and the step, or the policy.

    Raises:
        HookError: instead of any exception of the hook, which is its cause.
        CheckpointError: as `set_state` has raised it.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        place = f"{type(callback).__name__}.{hook}(){where and f', {where}'}"
        raise HookError(f"{place}: {error if isinstance(error, HookError) else described(error)}") from error


def training_callbacks(callback: Any) -> Iterator[TrainingCallback]:
    """Yield the `TrainingCallback`s within SB3's lists and event callbacks, in order."""
    return (each for each in all_callbacks(callback) if isinstance(each, TrainingCallback))


def with_hook(callback: BaseCallback | None, *names: str) -> list[TrainingCallback]:
    """Return the callbacks that have one of these hooks, in order: that of the list, as given to `learn`."""
    return [each for each in training_callbacks(callback) if any(has_hook(each, name) for name in names)]


def has_hook(callback: TrainingCallback, name: str) -> bool:
    """Whether a callback has a hook of the user's; those of this package are called without `RunningEpisode`s."""
    is_ours = getattr(type(callback), name).__module__.partition(".")[0] == __name__.partition(".")[0]
    return not is_ours or name in vars(callback)


def call_hook(callback: TrainingCallback, hook: str, *arguments: Any, where: str = "") -> Any:
    """Call a hook and return what it returns; an exception of one of the user's is named.

    Args:
        where: see `named_errors`.

    Raises:
        HookError: instead of an exception of a user's hook. Those of this package's own callbacks stay as they are.
    """
    with named_errors(callback, hook, where) if has_hook(callback, hook) else nullcontext():
        return getattr(callback, hook)(*arguments)


# --- States ----------------------------------------------------------------------------------------------------------

_PLAIN = "plain data: finite numbers, strings, booleans, None, NumPy arrays, and lists and mappings of these"


class TrainingWatcher(ActingWatcher, Protocol):
    """Watches one training; see the door `WATCHERS`. A subclass overrides the methods that it needs.

    Where the envs are stepped together it also sees their steps, see `ActingWatcher`; in shards nobody does.
    """

    def finished(self, finished: Sequence[Episode], step: VecStep) -> None:
        """Called after each step of all envs with the episodes that it ended, before callbacks hear of the step."""

    def complete_result(self, result: Result) -> None:
        """Add metrics to the result of an iteration, which has just been completed; policies may change here."""

    def log(self, logger: Logger, iteration: int) -> None:
        """Record what is to be logged with an iteration besides its result."""

    def get_state(self) -> State:
        """Return what a checkpoint needs of it, as plain data and arrays."""
        return {}

    def restore(self, state: StateReader) -> None:
        """Called before the first step of a training that goes on from a checkpoint, with what `get_state` returned.

        Raises:
            CheckpointError: the state does not fit.
        """


class CallbackStates:
    """The part of a checkpoint with the states of the callbacks of `learn`, and of what watches the training.

    A state that is loaded before a training is kept until the training starts, when its callbacks are known.
    """

    def __init__(self) -> None:
        self.callback: BaseCallback | None = None  # all callbacks of the present or latest training
        self._watchers: Mapping[str, TrainingWatcher] = {}
        self._waiting: State | None = None
        self._was_loaded = False

    def begin(self, callback: BaseCallback, watchers: Mapping[str, TrainingWatcher] = MappingProxyType({})) -> None:
        """Start a training with this callback, and give it the state that was loaded before.

        Args:
            watchers: those of the training, by their names at the door; the names of callbacks end with a number.

        Raises:
            ConfigError: a checkpoint cannot hold the state of a callback.
        """
        for each in training_callbacks(callback):
            with named_errors(each, "get_state"):
                own = each.get_state()
            if not is_plain(own) or not isinstance(own, Mapping | None):
                words = f"{type(each).__name__}.get_state() does not return a mapping of names to {_PLAIN}"
                raise ConfigError(words, key="callback")
        self.callback, self._watchers = callback, watchers
        if self._waiting is not None:
            waiting, self._waiting = dict(self._waiting), None
            of_watchers = {name: waiting.pop(name) for name in WATCHERS.names() if name in waiting}
            _set_states(callback, waiting)
            for name, saved in of_watchers.items():
                if name in watchers:
                    watchers[name].restore(StateReader(saved["own"] or {}, f"state/callbacks/{name}/own"))
        if self._was_loaded:
            self._was_loaded = False
            for each in training_callbacks(callback):
                with named_errors(each, "on_checkpoint_loaded"):
                    each.on_checkpoint_loaded()

    def keep(self) -> None:
        """Keep the states of the callbacks for those of the next training."""
        self._waiting = self.get_state() or None

    def has_state(self, name: str) -> bool:
        """Whether there is a state for the callback of this name, such as `RecordEpisodes-0`."""
        return name in self.get_state()

    def get_state(self) -> State:
        """Return the number of calls of each callback, and its state; None where no checkpoint can hold that."""
        if self._waiting is not None:
            return self._waiting
        named = {} if self.callback is None else _by_name(self.callback)
        states: State = {name: {"n_calls": each.n_calls, "own": _own_state(each)} for name, each in named.items()}
        return states | {name: {"n_calls": 0, "own": each.get_state()} for name, each in self._watchers.items()}

    def read_state(self, saved: StateReader) -> Callable[[], None]:
        """Check that each state has its form; callbacks check their own states when the next training starts."""
        waiting = {}
        for name in saved.names():
            entry = saved.fields(name)
            if entry.value("own") is not None:
                entry.fields("own")
            waiting[name] = {"n_calls": entry.integer("n_calls"), "own": entry.value("own")}

        def commit() -> None:
            self._waiting, self._was_loaded = waiting, True

        return commit


def _by_name(callback: BaseCallback) -> dict[str, BaseCallback]:
    """Name each callback by its class, with a number if there are several: positions differ between runs with views."""
    named: dict[str, BaseCallback] = {}
    for each in all_callbacks(callback):
        alike = sum(type(other) is type(each) for other in named.values())
        named[f"{type(each).__name__}-{alike}"] = each
    return named


def _own_state(callback: BaseCallback) -> State | None:
    state = callback.get_state() if isinstance(callback, TrainingCallback) else {}
    if is_plain(state) and isinstance(state, Mapping | None):
        return state
    name = type(callback).__name__
    _log.warning("inexact: the checkpoint is without the state of %s: get_state() does not return %s", name, _PLAIN)
    return None


def _set_states(callback: BaseCallback, states: State) -> None:
    named = _by_name(callback)
    for name, saved in states.items():
        each, own = named.get(name), saved["own"]
        if each is None and own:
            _log.warning("there is no callback %s in this run, as there was in the checkpoint", name)
        if each is not None:
            each.n_calls = saved["n_calls"]
        if isinstance(each, TrainingCallback) and own is not None:
            with named_errors(each, "set_state"):
                each.set_state(StateReader(own, f"state/callbacks/{name}/own"))
