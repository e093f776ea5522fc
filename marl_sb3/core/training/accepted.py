"""Which callbacks a training takes: none of SB3's for one policy, and none with hooks that no training calls."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from itertools import chain
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

from marl_sb3.core.sb3.private import all_callbacks
from marl_sb3.core.training.callback import TrainingCallback
from marl_sb3.doors import counterpart
from marl_sb3.errors import ConfigError

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


def _hooks(cls: type) -> list[str]:
    return [name for name in dir(cls) if name.startswith(("on_", "_on_"))]


_OF_SB3, _OF_TRAININGS = _hooks(BaseCallback), _hooks(TrainingCallback)


def accepted_callbacks(callback: MaybeCallback) -> list[BaseCallback]:
    """Return the callbacks of a user as a list.

    Args:
        callback: SB3 callbacks, one or a list; a function of (locals, globals); or None.

    Raises:
        ConfigError: one of them is no callback, or is SB3's for one policy, or has a method that is named as a hook is
            and never called, or a hook with other parameters; the message says what to write.
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
            f"callback is or contains {callback!r}; accepted: SB3 callbacks, such as a MultiAgentCallback, a list of "
            f"them, or a function of (locals, globals) that returns False to stop{hint}",
            key="callback",
        )
    name = type(callback).__name__
    if not hasattr(callback, "n_calls"):
        words = f"callback {name} is not set up; accepted: an __init__ that calls super().__init__()"
        raise ConfigError(words, key="callback")
    for stock, instead in _INSTEAD.items():
        if isinstance(callback, stock):
            words = f"SB3's {name} does not work on a MultiAgentAlgorithm; use {instead}"
            raise ConfigError(words, key="callback")
    if fault := next(chain(_never_called(callback), _called_otherwise(callback)), None):
        raise ConfigError(f"callback {name} has {fault}", key="callback")


def _never_called(callback: BaseCallback) -> Iterator[str]:
    """Yield in words which methods no training calls, and what to write instead; `_on_` may be a helper's name."""
    known = _OF_TRAININGS if isinstance(callback, TrainingCallback) else _OF_SB3
    for name in dir(callback):
        if name in known or not name.startswith(("on_", "_on_")) or not callable(getattr(type(callback), name, None)):
            continue
        close = difflib.get_close_matches(name, _OF_TRAININGS, n=1, cutoff=0.85)
        if name in _OF_TRAININGS:
            yield f"{name}, which only a marl_sb3.MultiAgentCallback has; accepted: that as its base class"
        elif instead := counterpart(name, "callback"):
            yield f"RLlib's {name}, which is never called here; accepted in its place{instead}"
        elif close:
            yield f"{name}, which is never called; did you mean {close[0]}?"
        elif name.startswith("on_"):
            accepted = ", ".join(each for each in _OF_TRAININGS if not each.startswith("_"))
            yield f"{name}, which is never called; accepted: {accepted}, or a name that does not begin with on_"


def _called_otherwise(callback: BaseCallback) -> Iterator[str]:
    """Yield in words which hooks cannot be called with what a training gives them, such as those written for RLlib."""
    base = TrainingCallback if isinstance(callback, TrainingCallback) else BaseCallback
    for name in (*_hooks(base), *(["complete_result"] if base is TrainingCallback else [])):
        _, *given = inspect.signature(getattr(base, name)).parameters
        try:  # of a decorated one what is called, not what it wraps
            own = inspect.signature(getattr(callback, name), follow_wrapped=False)
        except (TypeError, ValueError):  # it has none
            continue
        try:
            own.bind(*given)
        except TypeError:
            bare = [each.replace(annotation=each.empty) for each in own.parameters.values()]
            written = own.replace(parameters=bare, return_annotation=own.empty)
            words = (f"; RLlib's {each}{known}" for each in own.parameters if (known := counterpart(each, "parameter")))
            yield f"{name}{written}, which cannot be called; accepted: {name}({', '.join(given)}){next(words, '')}"
