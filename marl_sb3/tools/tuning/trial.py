"""What a study stores with each trial, and trials as text and as rows of tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from optuna.trial import FrozenTrial, TrialState, create_trial

from marl_sb3.extensions.display.text import number, one_line, short, short_path
from marl_sb3.runs.folder import TRACEBACK_FILE
from marl_sb3.tools.tuning.search import Search
from marl_sb3.tools.tuning.space import Parameter

# The names of Optuna's user attributes that a study stores with a trial.
WORKER, INDEX, RETRY_OF, DEATHS = "worker", "index", "retry_of", "deaths"
FOLDER, SEED, ERROR = "folder", "seed", "error"
ITERATIONS, ENV_STEPS, SECONDS, RETURN, CHECKPOINT = "iterations", "env_steps", "seconds", "return", "checkpoint"
CPU_SECONDS = "cpu_seconds"
# With a training of a finalist: the number of the trial with its settings, or `PRESET`, and which fresh seed it has.
CANDIDATE, SEED_INDEX, PRESET = "candidate", "seed_index", -1
OF_A_FINAL = (CANDIDATE, SEED_INDEX)
# With a trial of a population: which member's it is in which generation, whether the member's training goes on in the
# next one, the number of the trial whose run it goes on from, and the member that was copied, if any.
MEMBER, GENERATION, GOES_ON, PARENT, COPIED = "member", "generation", "goes_on", "parent", "copied"
OF_A_MEMBER = (MEMBER, GENERATION, GOES_ON, PARENT, COPIED)

# Errors of trials that did not fail because of their settings.
KILLED: Final = "its process ended"
INTERRUPTED: Final = "interrupted"


# --- Text that is safe to print, even if an env's error has control characters ----------------------------------------


def trial_line(trial: FrozenTrial) -> str:
    """The state, value, parameters and error of a trial on one line."""
    parameters = ", ".join(f"{name}={short(value)}" for name, value in trial.params.items())
    curve = trial.intermediate_values
    values = ", ".join(map(number, trial.values or [curve[max(curve)] if curve else None]))
    state = trial.state.name if trial.state.is_finished() else f"evaluation {len(curve)}"
    failure = failure_text(trial)
    name = f"trial {trial.number}"
    if MEMBER in trial.user_attrs:
        copied = f", a copy of member {trial.user_attrs[COPIED]}" if COPIED in trial.user_attrs else ""
        name += f" (member {trial.user_attrs[MEMBER]}, generation {trial.user_attrs[GENERATION]}{copied})"
    return f"{name}: {state} {values} ({parameters}){f': {failure}' if failure else ''}"


def failure_text(trial: FrozenTrial) -> str:
    """The error of a trial, and where its traceback is; empty if there was none."""
    error, path = stored_text(trial, ERROR) or "", traceback_file(trial)
    return error if path is None else f"{error}; see {one_line(path)}"


def stored_text(trial: FrozenTrial, name: str) -> str | None:
    """A user attribute of a trial, such as its error, on one line; None if it has none."""
    return one_line(trial.user_attrs[name]) if name in trial.user_attrs else None


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


# --- Rows of `trials.csv`, `report.html` and data frames --------------------------------------------------------------


def row(search: Search, trial: FrozenTrial, parameter: Callable[[Parameter, Any], Any] | None = None) -> dict[str, Any]:
    """The columns of a trial by name, in their order; None if there is no value.

    A parameter that is named like another column is in `params_NAME`. Numbers but those of parameters have seven
    significant digits. Paths are relative to the study's folder, which may be moved. The value of a pruned trial is
    that of its last evaluation.

    Args:
        parameter: converts the value of a parameter as Optuna stores it: numbers and texts, and lists as JSON. None: to
            what the trial trained with, as after `--set`: `lin_0.001` of a linear schedule.
    """
    text = parameter or (lambda of, stored: value_text(of.setting(stored) if of.linear else stored))
    stored, objectives = trial.user_attrs, search.objectives()
    names = ["value"] if len(objectives) == 1 else [f"value_{one_line(each.of)}" for each in objectives]
    values = map(rounded, trial.values or [None] * len(names))
    folder = run_folder(trial.number) if FOLDER in stored else None
    kept = not stored.get(GOES_ON)
    checkpoint = folder and kept and stored.get(CHECKPOINT) and folder / "checkpoints" / Path(stored[CHECKPOINT]).name
    before = {
        "number": trial.number,
        "state": trial.state.name,
        **({name: stored.get(name) for name in (MEMBER, GENERATION, PARENT, COPIED)} if search.is_population else {}),
        **dict(zip(names, values, strict=True)),
    }
    after = {
        **{name: stored.get(name) for name in (SEED, ITERATIONS, ENV_STEPS)},
        SECONDS: rounded(stored.get(SECONDS)),
        # from its start to its end, with its evaluations
        "wall_seconds": None if trial.duration is None else rounded(round(trial.duration.total_seconds(), 3)),
        **{name: rounded(stored.get(name)) for name in (CPU_SECONDS, RETURN)},
        "evaluations": len(trial.intermediate_values),
        RETRY_OF: stored.get(RETRY_OF),
        WORKER: stored_text(trial, WORKER),
        FOLDER: folder and folder.as_posix(),
        CHECKPOINT: checkpoint.as_posix() if checkpoint else None,
        ERROR: stored_text(trial, ERROR),
    }
    drawn: dict[str, Any] = {}
    for searched in search.space.parameters:
        name = one_line(searched.name)
        value = text(searched, trial.params[searched.name]) if searched.name in trial.params else None
        drawn[f"params_{name}" if name in {*before, *after} else name] = value
    return {**before, **drawn, **after}


def header(search: Search) -> list[str]:
    """The names of the columns."""
    return list(row(search, create_trial(state=TrialState.WAITING)))


def lineage(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that the run of one of `trials` went through, oldest first: more than one in a population."""
    found = [trial]
    while (parent := found[0].user_attrs.get(PARENT)) is not None:
        found.insert(0, trials[parent])
    return found


def run_folder(number: int) -> Path:
    """The run folder of a trial, relative to the study's folder."""
    return Path("trials", f"{number:05d}")


def final_folder(candidate: int, seed_index: int) -> Path:
    """The run folder of a training with a fresh seed, relative to the study's folder."""
    return Path("confirm", "preset" if candidate == PRESET else f"trial-{candidate}", f"seed-{seed_index:02d}")


def value_of(trial: FrozenTrial) -> float | None:
    """The value of a trial, of several objectives that of the first; None if it has none."""
    return None if trial.values is None else trial.values[0]


def rounded(value: Any, digits: int = 7) -> Any:
    """Round a float to so many significant digits: rewards are float32, and those after the seventh are noise."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
