"""The callbacks of a training: what they are called with, which are accepted, and their states."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from stable_baselines3.common.callbacks import (
    BaseCallback,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    LogEveryNTimesteps,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.type_aliases import MaybeCallback

from marl_sb3.errors import ConfigError
from marl_sb3.metrics import Episode, Result
from marl_sb3.sb3.private import all_callbacks
from marl_sb3.storage.state import State, StateReader, is_plain

_log = logging.getLogger(__name__)


class TrainingCallback(BaseCallback):
    """An SB3 callback that is also called at the end of episodes and iterations; see `MultiAgentCallback`."""

    def _on_step(self) -> bool:
        return True

    def on_episode_end(self, episode: Episode) -> None:
        """Called once for each env episode that ends, before `on_step` of that step."""

    def complete_result(self, result: Result) -> None:
        """Add metrics to an iteration's result; called on all callbacks before any of them gets `on_iteration_end`."""

    def on_iteration_end(self, result: Result) -> bool:
        """Called after each iteration with its complete result; False ends the training."""
        return True

    def on_iteration_logged(self, result: Result) -> None:
        """Called after the iteration's metrics were written, when the iteration is complete."""

    def get_state(self) -> State:
        """Return the state that a resumed run needs, as plain data and arrays.

        Also called when a training starts, to check that a checkpoint can hold the state.
        """
        return {}

    def set_state(self, state: StateReader) -> None:
        """Called after `on_training_start` of a resumed run, with what `get_state` returned.

        Raises:
            CheckpointError: the state does not fit the callback. It is untrusted: check all of it.
        """


def training_callbacks(callback: Any) -> Iterator[TrainingCallback]:
    """Yield the `TrainingCallback`s within SB3's lists and event callbacks, in order."""
    return (each for each in all_callbacks(callback) if isinstance(each, TrainingCallback))


# --- SB3's own callbacks ---------------------------------------------------------------------------------------------

# Callbacks that count steps and episodes work unchanged. Callbacks that evaluate or save one policy in the middle of a
# rollout do not: there are several policies, and exact resume is only possible between iterations.
# Subclasses are included: sb3_contrib's MaskableEvalCallback is an EvalCallback.
_INSTEAD: Mapping[type[BaseCallback], str] = {
    EvalCallback: "marl_sb3.callbacks.EvaluationCallback(env, interval=10, duration=20): it evaluates all policies "
    "together, in envs from make_vec_env",
    CheckpointCallback: "marl_sb3.callbacks.CheckpointCallback(folder, every=10): it saves all policies between "
    "iterations, where a run can be resumed exactly; MultiAgentAlgorithm.load(folder, env) reads its newest",
    LogEveryNTimesteps: "learn(log_interval=...): metrics are of whole iterations of n_steps steps in each env",
    StopTrainingOnRewardThreshold: 'marl_sb3.callbacks.StopOnMetric({"env_runners/episode_return_mean": 15}); for the '
    "metric of an EvaluationCallback, StopOnMetric({name: value}, evaluation.metric_names(algo))",
    StopTrainingOnNoModelImprovement: "a marl_sb3.MultiAgentCallback with on_iteration_end(result), which returns "
    "False when result has not improved for too long",
}


def accepted_callbacks(callback: MaybeCallback) -> list[BaseCallback]:
    """Return the callbacks of a user as a list.

    Args:
        callback: SB3 callbacks, one or a list; a function of (locals, globals); or None.

    Raises:
        ConfigError: one of them is no callback, or is a callback of SB3 that cannot work here; the message names a
            replacement.
    """
    if isinstance(callback, BaseCallback):
        callbacks: list[Any] = [callback]
    elif isinstance(callback, (list, tuple)):
        callbacks = list(callback)
    elif callable(callback) and not isinstance(callback, type):
        callbacks = [ConvertCallback(callback)]
    else:
        callbacks = [] if callback is None else [callback]
    for each in callbacks:
        for inner in all_callbacks(each) if isinstance(each, BaseCallback) else [each]:
            _require_usable(inner)
    return callbacks


def _require_usable(callback: Any) -> None:
    if not isinstance(callback, BaseCallback):
        hint = f"; did you mean {callback.__name__}(...)?" if isinstance(callback, type) else ""
        raise ConfigError(
            f"callback is or contains {callback!r}; accepted: SB3 callbacks, a list of them, or a function of "
            f"(locals, globals) that returns False to stop{hint}",
            key="callback",
        )
    for stock, instead in _INSTEAD.items():
        if isinstance(callback, stock):
            raise ConfigError(
                f"SB3's {type(callback).__name__} does not work on a MultiAgentAlgorithm; use {instead}", key="callback"
            )


# --- States ----------------------------------------------------------------------------------------------------------

_PLAIN = "plain data: finite numbers, strings, booleans, None, NumPy arrays, and lists and mappings of these"


class CallbackStates:
    """The part of a checkpoint with the states of the callbacks of `learn`.

    A state that is loaded before a training is kept until the training starts, when its callbacks are known.
    """

    def __init__(self) -> None:
        self._callback: BaseCallback | None = None
        self._waiting: State | None = None

    def begin(self, callback: BaseCallback) -> None:
        """Start a training with this callback, and give it the state that was loaded before.

        Raises:
            ConfigError: a checkpoint cannot hold the state of a callback.
        """
        for each in training_callbacks(callback):
            if not is_plain(each.get_state()):
                raise ConfigError(f"{type(each).__name__}.get_state() does not return {_PLAIN}", key="callback")
        self._callback = callback
        if self._waiting is not None:
            _set_states(callback, self._waiting)
            self._waiting = None

    def keep(self) -> None:
        """Keep the states of the callbacks for those of the next training."""
        self._waiting = self.get_state() or None

    def get_state(self) -> State:
        """See `Part.get_state`: number of calls and state of each callback; None if a checkpoint cannot hold it."""
        if self._waiting is not None:
            return self._waiting
        named = {} if self._callback is None else _by_name(self._callback)
        return {name: {"n_calls": each.n_calls, "own": _own_state(each)} for name, each in named.items()}

    def read_state(self, saved: StateReader) -> Callable[[], None]:
        """See `Part.read_state`; callbacks check their own states when the next training starts."""
        waiting = {}
        for name in saved.names():
            entry = saved.fields(name)
            if entry.value("own") is not None:
                entry.fields("own")
            waiting[name] = {"n_calls": entry.integer("n_calls"), "own": entry.value("own")}
        return partial(setattr, self, "_waiting", waiting)


def _by_name(callback: BaseCallback) -> dict[str, BaseCallback]:
    """Name each callback by its class, with a number if there are several: positions differ between runs with views."""
    named: dict[str, BaseCallback] = {}
    for each in all_callbacks(callback):
        alike = sum(type(other) is type(each) for other in named.values())
        named[f"{type(each).__name__}-{alike}"] = each
    return named


def _own_state(callback: BaseCallback) -> State | None:
    state = callback.get_state() if isinstance(callback, TrainingCallback) else {}
    if is_plain(state):
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
            each.set_state(StateReader(own, f"state/callbacks/{name}/own"))
