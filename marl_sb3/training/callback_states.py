"""The states of callbacks, in checkpoints and from one training to the next."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.errors import ConfigError
from marl_sb3.sb3.private import all_callbacks
from marl_sb3.storage.state import State, StateReader, is_plain
from marl_sb3.training.callback import MultiAgentCallback, multi_agent_callbacks

_log = logging.getLogger(__name__)

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
        _require_plain_states(callback)
        self._callback = callback
        if self._waiting is not None:
            _set_states(callback, StateReader(self._waiting, "state/callbacks"))
            self._waiting = None

    def keep(self) -> None:
        """Keep the states of the callbacks for those of the next training."""
        if self._callback is not None:
            self._waiting = _states(self._callback)

    def get_state(self) -> State:
        """See `Part.get_state`: number of calls and state of each callback; None if a checkpoint cannot hold it."""
        if self._waiting is not None:
            return self._waiting
        return {} if self._callback is None else _states(self._callback)

    def read_state(self, saved: StateReader) -> Callable[[], None]:
        """See `Part.read_state`; callbacks check their own states when the next training starts."""
        waiting = {name: _entry(saved, name) for name in saved.names()}

        def put_back() -> None:
            self._waiting = waiting

        return put_back


def _require_plain_states(callback: BaseCallback) -> None:
    """Refuse, at the start of the training, callbacks with a state that a checkpoint cannot hold."""
    for each in multi_agent_callbacks(callback):
        if not is_plain(each.get_state()):
            raise ConfigError(f"{type(each).__name__}.get_state() does not return {_PLAIN}", key="callback")


def _states(callback: BaseCallback) -> State:
    return {name: {"n_calls": each.n_calls, "own": _own_state(each)} for name, each in _by_name(callback).items()}


def _by_name(callback: BaseCallback) -> dict[str, BaseCallback]:
    """Name each callback by its class, with a number if there are several: positions differ between runs with views."""
    named: dict[str, BaseCallback] = {}
    for each in all_callbacks(callback):
        alike = sum(type(other) is type(each) for other in named.values())
        named[f"{type(each).__name__}-{alike}"] = each
    return named


def _own_state(callback: BaseCallback) -> State | None:
    state = callback.get_state() if isinstance(callback, MultiAgentCallback) else {}
    if is_plain(state):
        return state
    name = type(callback).__name__
    _log.warning("inexact: the checkpoint is without the state of %s: get_state() does not return %s", name, _PLAIN)
    return None


def _entry(states: StateReader, name: str) -> State:
    entry = states.fields(name)
    if entry.value("own") is not None:
        entry.fields("own")
    return {"n_calls": entry.integer("n_calls"), "own": entry.value("own")}


def _set_states(callback: BaseCallback, states: StateReader) -> None:
    named = _by_name(callback)
    for name in states:
        n_calls, own = states.fields(name).integer("n_calls"), states.fields(name).value("own")
        if name in named:
            _set_state(named[name], n_calls, None if own is None else states.fields(name).fields("own"))
        elif own:
            _log.warning("there is no callback %s in this run, as there was in the checkpoint", name)


def _set_state(callback: Any, n_calls: int, own: StateReader | None) -> None:
    callback.n_calls = n_calls
    if isinstance(callback, MultiAgentCallback) and own is not None:
        callback.set_state(own)
