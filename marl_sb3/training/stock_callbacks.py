"""SB3's own callbacks: `MultiAgentAlgorithm` accepts some, and names replacements of the others.

Callbacks that count steps and episodes work unchanged. Callbacks that evaluate or save one policy in the middle of a
rollout do not: there are several policies, and exact resume is only possible between iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    LogEveryNTimesteps,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.type_aliases import MaybeCallback

from marl_sb3.errors import ConfigError
from marl_sb3.sb3.private import all_callbacks

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


def as_one_callback(callback: MaybeCallback, more: Sequence[BaseCallback] = ()) -> BaseCallback:
    """Join the callbacks that `learn` was given to one callback.

    Args:
        more: callbacks to add after them.
    """
    return CallbackList([*accepted_callbacks(callback), *more])


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
    for each in _all(callbacks):
        _require_usable(each)
    return callbacks


def _all(callbacks: list[Any]) -> Iterator[Any]:
    for callback in callbacks:
        yield from all_callbacks(callback) if isinstance(callback, BaseCallback) else [callback]


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
