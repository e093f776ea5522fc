"""Callbacks that know what several agents are: SB3's `BaseCallback` with more moments."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback

from marl_sb3.errors import ConfigError
from marl_sb3.metrics import Episode, Result
from marl_sb3.storage.state import State, StateReader, is_plain

if TYPE_CHECKING:
    from marl_sb3.training.algorithm import MultiAgentAlgorithm


_log = logging.getLogger(__name__)

_PLAIN = "plain data: finite numbers, strings, booleans, None, NumPy arrays, and lists and mappings of these"


class MultiAgentCallback(BaseCallback):
    """An SB3 callback that also hears of finished episodes and iterations.

    `self.model` is the `MultiAgentAlgorithm`, `self.num_timesteps` counts env steps. In `_on_step`,
    `self.locals["step"]` is the `VecStep` just taken; `dones` ((E,) bool: env episodes that ended), `rewards`
    ((E, A)) and `infos` are there for callbacks written for SB3.
    """

    @property
    def algorithm(self) -> MultiAgentAlgorithm:
        """`self.model`, by its type."""
        return self.model  # type: ignore[return-value]

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
        """Called after the iteration's metrics have been written: everything that belongs to it is done."""

    def get_state(self) -> State:
        """What the callback has to remember when the run is resumed, as plain data and arrays.

        Called when a training starts, too, to see that a checkpoint can hold it.
        """
        return {}

    def set_state(self, state: StateReader) -> None:
        """Called after `on_training_start` of a resumed run, with what `get_state` returned.

        Raises:
            CheckpointError: it is not the state of such a callback. It may come from a stranger: check all of it.
        """


def multi_agent_callbacks(callback: Any) -> Iterator[MultiAgentCallback]:
    """The `MultiAgentCallback`s within SB3's lists and event callbacks, in order."""
    return (each for each in all_callbacks(callback) if isinstance(each, MultiAgentCallback))


def all_callbacks(callback: Any) -> Iterator[BaseCallback]:
    """A callback, and those within SB3's lists and event callbacks, in order."""
    if isinstance(callback, CallbackList):
        for child in callback.callbacks:
            yield from all_callbacks(child)
    elif isinstance(callback, BaseCallback):
        yield callback
        if isinstance(callback, EventCallback):
            yield from all_callbacks(callback.callback)


def _by_name(callback: Any) -> dict[str, BaseCallback]:
    """Each callback by its class, and a number where there are several of it: views come and go between runs."""
    named: dict[str, BaseCallback] = {}
    for each in all_callbacks(callback):
        alike = sum(type(other) is type(each) for other in named.values())
        named[f"{type(each).__name__}-{alike}"] = each
    return named


def require_plain_states(callback: Any) -> None:
    """Refuse callbacks that remember what no checkpoint holds, while nothing is lost yet.

    Raises:
        ConfigError: with the name of the class.
    """
    for each in multi_agent_callbacks(callback):
        if not is_plain(each.get_state()):
            raise ConfigError(f"{type(each).__name__}.get_state() does not return {_PLAIN}", key="callback")


def callback_states(callback: Any) -> State:
    """How often each callback was called, and what it wants to remember; None where no checkpoint can hold that."""
    return {name: {"n_calls": each.n_calls, "own": _own_state(each)} for name, each in _by_name(callback).items()}


def _own_state(callback: BaseCallback) -> State | None:
    state = callback.get_state() if isinstance(callback, MultiAgentCallback) else {}
    if is_plain(state):
        return state
    name = type(callback).__name__
    _log.warning("inexact: the checkpoint is without the state of %s: get_state() does not return %s", name, _PLAIN)
    return None


def set_callback_states(callback: Any, states: StateReader) -> None:
    """Give the callbacks back what they wanted to remember, as far as they are there.

    Raises:
        CheckpointError: a state is not that of the callback of its name.
    """
    named = _by_name(callback)
    for name in states.names():
        n_calls, own = states.fields(name).integer("n_calls"), _saved_state(states.fields(name))
        if name not in named:
            if own is not None and list(own):
                _log.warning("there is no callback %s in this run, as there was in the checkpoint", name)
            continue
        each = named[name]
        each.n_calls = n_calls
        if isinstance(each, MultiAgentCallback) and own is not None:
            each.set_state(own)


def _saved_state(entry: StateReader) -> StateReader | None:
    return None if entry.value("own") is None else entry.fields("own")
