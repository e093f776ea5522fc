"""Schedules of settings in the form of SB3's: functions of the progress of a training, or of its env steps.

The progress is a number from 1 at the start of a training to 0 at its planned end. Here, it is a `Progress`, with the
env steps: a schedule of points counts these, and does not stretch when a training is extended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule

from marl_sb3.core.config.algorithms import Decay, Points
from marl_sb3.core.config.values import FiniteFloat, accepts, alternatives_of, base_of, refusal, require, words
from marl_sb3.errors import ConfigError, shown

Schedule = Callable[[float], float]


class Progress(float):
    """What is left of a training, from 1 to 0, as SB3's schedules take it."""

    __slots__ = ("env_steps",)
    env_steps: int  # taken so far

    def __new__(cls, remaining: float, env_steps: int = 0) -> Progress:  # noqa: D102 - as `float`
        made = float.__new__(cls, remaining)
        made.env_steps = env_steps
        return made


class Exponential:
    """A schedule that falls or rises by equal factors in equal times: start^p end^(1 - p), where p is what is left.

    Args:
        start: value at the start, above 0.
        end: value at the planned end.
    """

    def __init__(self, start: float, end: float) -> None:
        self._start, self._end = start, end

    def __call__(self, progress_remaining: float) -> float:
        """Return the value for what is left of the training, from 1 to 0."""
        return float(self._start**progress_remaining * self._end ** (1 - progress_remaining))

    def __repr__(self) -> str:
        return f"Exponential({self._start}, {self._end})"


class Piecewise:
    """A schedule of points: linear between them, constant before the first and after the last one.

    It needs a `Progress`; any other number stands for the start of the training.

    Args:
        points: (env steps, value) each, in ascending order. Of two points at the same step, the later one counts from
            this step on: the value jumps.
    """

    def __init__(self, points: Sequence[Sequence[float]]) -> None:
        self._steps, self._values = [int(step) for step, _ in points], [float(value) for _, value in points]

    def __call__(self, progress_remaining: float) -> float:
        """Return the value at the env steps of a `Progress`."""
        return self.at(getattr(progress_remaining, "env_steps", 0))

    def at(self, env_steps: int) -> float:
        """Return the value at a number of env steps."""
        following = bisect_right(self._steps, env_steps)
        if following in (0, len(self._steps)):
            return self._values[max(0, following - 1)]
        (before, after), (low, high) = (each[following - 1 : following + 1] for each in (self._steps, self._values))
        return low + (high - low) * ((env_steps - before) / (after - before))

    def __repr__(self) -> str:
        return f"Piecewise({[list(point) for point in zip(self._steps, self._values, strict=True)]})"


def make_schedule(value: Any, name: str = "schedule", kind: Any = FiniteFloat | Decay | Points) -> Schedule:
    """Make the schedule that a setting describes.

    Args:
        value: a number; `lin_X`, from X to 0 over the training; `exp_X`, from X to X/100 by equal factors in equal
            times; `exp_X_Y`, from X to Y in the same way; or points `[[ENV_STEPS, VALUE], ...]`. A function of the
            progress is returned as it is.
        name: that of the setting, for messages.
        kind: what the setting accepts.

    Raises:
        ConfigError: it is none of these, or a value is out of range.
    """
    if callable(value):
        return value  # type: ignore[no-any-return]
    value = require(name, value, kind)
    if isinstance(value, str):
        form, *numbers = value.split("_")
        values = list(map(float, numbers))
        if not (min(values) > 0 and all(map(partial(accepts, _number_in(kind)), values))):
            raise refusal(name, value, kind)
        start, end = values[0], values[-1] if values[1:] else values[0] / 100
        return LinearSchedule(start, 0.0, 1.0) if form == "lin" else Exponential(start, end)
    if isinstance(value, (list, tuple)):
        _check_points(value, name, kind)
        return Piecewise(value)
    return ConstantSchedule(float(value))


def _number_in(kind: Any) -> Any:
    return next(each for each in alternatives_of(kind) if base_of(each) is float)


def _check_points(points: Sequence[Any], name: str, kind: Any) -> None:
    """Refuse points that are not in order, and numbers out of range."""
    latest = 0
    for step, value in points:
        accepted = ""
        if step < 0 or not float(step).is_integer():
            accepted = "its first number counts env steps: an integer of at least 0"
        elif step < latest:
            accepted = f"points in ascending order of env steps; the one before it is at {latest}"
        elif not accepts(_number_in(kind), value):
            accepted = f"its second number is {words(_number_in(kind))}"
        if accepted:
            found = f"{name} is {shown(points)}, with the point {shown([step, value])}"
            raise ConfigError(f"{found}; accepted: {accepted}", key=name)
        latest = int(step)
