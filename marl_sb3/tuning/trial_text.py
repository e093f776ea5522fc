"""Trials as text that is safe to print, even if an env's error has control characters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from marl_sb3.display.text import number, short, short_path
from marl_sb3.runs.folder import TRACEBACK_FILE
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.trial_attributes import ERROR, FOLDER


def one_line(text: object) -> str:
    r"""Text on one line: white space becomes a space, and other unprintable characters are escaped, ESC as `\x1b`."""
    words = " ".join(str(text).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in words)


def trial_line(trial: FrozenTrial) -> str:
    """The state, value, parameters and error of a trial on one line."""
    parameters = ", ".join(f"{name}={short(value)}" for name, value in trial.params.items())
    values = trial.intermediate_values
    latest = trial.value if trial.value is not None else (values[max(values)] if values else None)
    state = trial.state.name if trial.state.is_finished() else f"evaluation {len(values)}"
    error = error_text(trial)
    why = "" if error is None else f": {error}{see_traceback(trial)}"
    return f"trial {trial.number}: {state} {number(latest)} ({parameters}){why}"


def attribute_text(trial: FrozenTrial, name: str) -> str | None:
    """An attribute of a trial as text; None if the trial lacks it."""
    return one_line(trial.user_attrs[name]) if name in trial.user_attrs else None


def wall_seconds(trial: FrozenTrial) -> float | None:
    """Seconds from the start of a trial to its end, with its evaluations; None before the end."""
    return None if trial.duration is None else round(trial.duration.total_seconds(), 3)


def error_text(trial: FrozenTrial) -> str | None:
    """The error of a trial; None if there was none."""
    return attribute_text(trial, ERROR)


def see_traceback(trial: FrozenTrial) -> str:
    """`; see PATH` with the traceback of a failed trial; empty if there is none."""
    path = traceback_file(trial)
    return "" if path is None else f"; see {one_line(path)}"


def traceback_file(trial: FrozenTrial) -> Path | None:
    """The traceback of a failed trial; None if it is not on this machine."""
    path = Path(trial.user_attrs[FOLDER], TRACEBACK_FILE) if FOLDER in trial.user_attrs else None
    return short_path(path) if path is not None and ERROR in trial.user_attrs and path.is_file() else None


def value_text(value: Any) -> str:
    """The value of a parameter in YAML, as after `--set`."""
    return one_line(value) if isinstance(value, str) else json.dumps(value)


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Parameters on one line, as after `--set`: `batch_size=128 learning_rate=0.0012`."""
    return " ".join(f"{one_line(name)}={value_text(value)}" for name, value in parameters.items())


def states(trials: Iterable[FrozenTrial]) -> str:
    """The number of trials in each state, the most frequent first: `12 COMPLETE, 3 PRUNED`."""
    return ", ".join(f"{count} {state}" for state, count in Counter(trial.state.name for trial in trials).most_common())


def measured(search: Search) -> str:
    """How the value of a trial is measured: `sum, last of 10 evaluations of 10 episodes`."""
    evaluations = "1 evaluation" if search.evaluations == 1 else f"{search.evaluations} evaluations"
    episodes = "1 episode" if search.evaluation_episodes == 1 else f"{search.evaluation_episodes} episodes"
    return f"{one_line(search.objective)}, {search.over} of {evaluations} of {episodes}"
