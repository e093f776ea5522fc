"""Trials as rows of `trials.csv`, `report.html` and data frames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial

from marl_sb3.tuning import trial_attributes as key
from marl_sb3.tuning.trial_text import attribute_text, error_text, one_line, value_text, wall_seconds

if TYPE_CHECKING:
    from marl_sb3.tuning.study import TuneStudy

_BEFORE = ("number", "state", "value")  # columns before those of the parameters
_AFTER = ("seed", "iterations", "env_steps", "seconds", "wall_seconds", "return", "evaluations", "retry_of", "worker",
    "folder", "checkpoint", "error")  # fmt: skip


def header(study: TuneStudy) -> list[str]:
    """The names of the columns; a parameter named like another column becomes `params_NAME`."""
    taken = {*_BEFORE, *_AFTER}
    parameters = [one_line(parameter.name) for parameter in study.space.parameters]
    return [*_BEFORE, *(f"params_{name}" if name in taken else name for name in parameters), *_AFTER]


def row(study: TuneStudy, trial: FrozenTrial) -> list[Any]:
    """The values of a trial in the order of `header`; None if there is no value.

    Parameters are as drawn: 0.001, not `lin_0.001`; other numbers have seven significant digits. Paths are relative to
    the study's folder, which may be moved. The value of a pruned trial is that of its last evaluation.
    """
    stored = trial.user_attrs
    names = [parameter.name for parameter in study.space.parameters]
    folder = study.folder_of(trial).relative_to(study.folder) if key.FOLDER in stored else None
    checkpoint = folder and stored.get(key.CHECKPOINT) and folder / "checkpoints" / Path(stored[key.CHECKPOINT]).name
    return [
        trial.number,
        trial.state.name,
        rounded(trial.value),
        *(value_text(trial.params[name]) if name in trial.params else None for name in names),
        *map(stored.get, (key.SEED, key.ITERATIONS, key.ENV_STEPS)),
        *map(rounded, (stored.get(key.SECONDS), wall_seconds(trial), stored.get(key.RETURN))),
        len(trial.intermediate_values),
        stored.get(key.RETRY_OF),
        attribute_text(trial, key.WORKER),
        folder and folder.as_posix(),
        checkpoint and checkpoint.as_posix(),
        error_text(trial),
    ]


def rounded(value: Any) -> Any:
    """Round a float to seven significant digits: rewards are float32, and further digits are noise."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def record(study: TuneStudy, trial: FrozenTrial) -> dict[str, Any]:
    """The values of a trial by column, with parameters as Optuna stores them: numbers and strings, lists as JSON."""
    columns = header(study)
    values = dict(zip(columns, row(study, trial), strict=True))
    names = columns[len(_BEFORE) : -len(_AFTER)]
    drawn = [trial.params.get(parameter.name) for parameter in study.space.parameters]
    return {**values, **dict(zip(names, drawn, strict=True))}
