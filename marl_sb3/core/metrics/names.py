"""Names of metrics: paths in the nested result, joined with `/`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from marl_sb3.errors import ConfigError, did_you_mean, refuse

Result = dict[str, Any]  # nested; leaves are numbers, or None if there is no value yet

_EVALUATION = "evaluation/"


def flatten(result: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested result; the keys are paths joined with `/`."""
    flat: dict[str, Any] = {}
    for key, value in result.items():
        path = f"{prefix}{key}"
        flat.update(flatten(value, f"{path}/") if isinstance(value, Mapping) else {path: value})
    return flat


def finite_or_none(result: Mapping[str, Any]) -> Result:
    """Convert a result for JSON: Python numbers and lists, None for numbers that are not finite."""
    return {
        key: finite_or_none(value) if isinstance(value, Mapping) else _finite_number(value)
        for key, value in result.items()
    }


def _finite_number(value: Any) -> Any:
    number = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(number, list):  # an array of one number becomes that number, as in SB3
        return _finite_number(number[0]) if len(number) == 1 else [_finite_number(item) for item in number]
    return None if isinstance(number, float) and not math.isfinite(number) else number


def require_metric(name: str, known: Iterable[str], key: str = "stop") -> None:
    """Refuse an unknown metric name.

    Args:
        known: the names; one like `evaluation/*` stands for all that begin like it.

    Raises:
        ConfigError: suggests similar names; or says that evaluation is off, if the metric is one of an evaluation.
    """
    if not isinstance(name, str):
        refuse("the name of a metric", name, "a string", key)
    known = list(known)
    if any(each.endswith("*") and name.startswith(each[:-1]) for each in known):
        return
    if name.startswith(_EVALUATION) and not any(each.startswith(_EVALUATION) for each in known):
        hint = "evaluation is off; --set evaluation.interval=10 evaluates the policies every 10 iterations"
        raise ConfigError(f"unknown metric {name!r}; {hint}", key=key)
    if name not in known:
        first = {each.partition("/")[0]: each for each in reversed(known)}  # the first name of each group
        accepted = f"accepted: {', '.join(reversed(first.values()))} and other columns of progress.csv"
        raise ConfigError(f"unknown metric {name!r}; {did_you_mean(name, known, 4) or accepted}", key=key)
