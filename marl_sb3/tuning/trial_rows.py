"""The trials of a study as rows of a file or a page, and all their texts in a form that is safe to show."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial

from marl_sb3.runs.folder import TRACEBACK_FILE
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.trial_attributes import ERROR, FOLDER, RETRY_OF, SEED, WORKER

if TYPE_CHECKING:
    from marl_sb3.tuning.study import TuneStudy

_BEFORE = ("number", "state", "value")  # then a column for each parameter
_AFTER = ("seed", "iterations", "env_steps", "seconds", "return", "evaluations", "retry_of", "worker", "folder",
    "checkpoint", "error")  # fmt: skip


def header(study: TuneStudy) -> list[str]:
    """The names of the columns: parameters have SB3's, or `params_NAME` where another column is called so."""
    taken = {*_BEFORE, *_AFTER}
    parameters = [one_line(parameter.name) for parameter in study.space.parameters]
    return [*_BEFORE, *(f"params_{name}" if name in taken else name for name in parameters), *_AFTER]


def row(study: TuneStudy, trial: FrozenTrial) -> list[Any]:
    """A trial's values, in the order of `header`; None where there is none.

    Parameters are as drawn: where `lin_0.001` has been set, it is 0.001. Paths are relative to the study's folder,
    which may have been moved. The value of a trial that was given up (pruned) is that of its last evaluation.
    """
    notes = trial.user_attrs
    names = [parameter.name for parameter in study.space.parameters]
    folder = study.folder_of(trial).relative_to(study.folder) if FOLDER in notes else None
    checkpoint = folder and notes.get("checkpoint") and folder / "checkpoints" / Path(notes["checkpoint"]).name
    return [
        trial.number,
        trial.state.name,
        trial.value,
        *(value_text(trial.params[name]) if name in trial.params else None for name in names),
        notes.get(SEED),
        notes.get("iterations"),
        notes.get("env_steps"),
        notes.get("seconds"),
        notes.get("return"),
        len(trial.intermediate_values),
        notes.get(RETRY_OF),
        _note(trial, WORKER),
        folder and folder.as_posix(),
        checkpoint and checkpoint.as_posix(),
        error_text(trial),
    ]


def record(study: TuneStudy, trial: FrozenTrial) -> dict[str, Any]:
    """The same by column, with the values of parameters as Optuna keeps them: numbers and words, lists as JSON."""
    values = dict(zip(header(study), row(study, trial), strict=True))
    names = header(study)[len(_BEFORE) : -len(_AFTER)]
    drawn = [trial.params.get(parameter.name) for parameter in study.space.parameters]
    return {**values, **dict(zip(names, drawn, strict=True))}


def error_text(trial: FrozenTrial) -> str | None:
    """Why a trial failed, in a line; None if it is not known to have."""
    return _note(trial, ERROR)


def see_traceback(trial: FrozenTrial) -> str:
    """`; see PATH`, where a failed trial has left its traceback; else nothing."""
    path = traceback_file(trial)
    return "" if path is None else f"; see {one_line(path)}"


def traceback_file(trial: FrozenTrial) -> Path | None:
    """The traceback of a failed trial, if it has left one on this machine."""
    path = Path(trial.user_attrs[FOLDER], TRACEBACK_FILE) if FOLDER in trial.user_attrs else None
    return path if path is not None and ERROR in trial.user_attrs and path.is_file() else None


def _note(trial: FrozenTrial, name: str) -> str | None:
    return one_line(trial.user_attrs[name]) if name in trial.user_attrs else None


def one_line(text: object) -> str:
    r"""A text on one line, in which what is not printable is spelt out: the end of a line is a space, ESC is `\x1b`.

    Whatever an env's error says can then be printed on a terminal, and written as UTF-8.
    """
    words = " ".join(str(text).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in words)


def value_text(value: Any) -> str:
    """A parameter's value in YAML, as after `--set`; words are as they are."""
    return one_line(value) if isinstance(value, str) else json.dumps(value)


def states(trials: Iterable[FrozenTrial]) -> str:
    """How many trials there are in each state, the most frequent first: `12 COMPLETE, 3 PRUNED`."""
    return ", ".join(f"{count} {state}" for state, count in Counter(trial.state.name for trial in trials).most_common())


def measured(search: Search) -> str:
    """How the value of a trial was measured: `sum, last of 10 evaluations of 10 episodes`."""
    evaluations = "1 evaluation" if search.evaluations == 1 else f"{search.evaluations} evaluations"
    episodes = "1 episode" if search.evaluation_episodes == 1 else f"{search.evaluation_episodes} episodes"
    return f"{one_line(search.objective)}, {search.over} of {evaluations} of {episodes}"


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Parameters in a line, as after `--set`: `batch_size=128 learning_rate=0.0012`."""
    return " ".join(f"{one_line(name)}={value_text(value)}" for name, value in parameters.items())
