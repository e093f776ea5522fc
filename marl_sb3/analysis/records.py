"""What runs have logged, and which of them are one experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.metrics.names import require_metric
from marl_sb3.types import Array

STEPS, AGENT_STEPS, SECONDS = "num_env_steps_sampled_lifetime", "num_agent_steps_sampled_lifetime", "time_total_s"
RETURN, AGENT_RETURNS = "env_runners/episode_return_mean", "env_runners/agent_episode_returns_mean"
# Settings in which runs differ that are nevertheless one experiment.
_OF_A_RUN = {"seed", "device", "n_threads", "n_parallel_updates", "n_workers", "n_runners", "track"}
_FIRST = ("algo", "policies")  # what groups are told apart by, if they differ in it
_LONGEST_LABEL = 60  # characters


@dataclass(frozen=True)
class RunRecord:
    """What a run has logged.

    Attributes:
        name: the path of its folder, or its place in a file of marl-eval.
        env: id of the env.
        settings: all settings by their flat names.
        results: the flat metrics of each iteration; empty: nothing is known of it.
        group: what it is shown as, together with the other runs of the group.
        warning: what could not be read; empty: nothing.
        folder: its folder; None: it is from a file.
    """

    name: str
    env: str
    settings: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    group: str = ""
    warning: str = ""
    folder: Path | None = None

    @cached_property
    def columns(self) -> Mapping[str, Array]:
        """All metrics that are numbers: by name, (T,), a value for each iteration; NaN where there is none."""
        names = dict.fromkeys(name for result in self.results for name in result)
        columns = {name: np.array([_number(result.get(name)) for result in self.results]) for name in names}
        return {name: column for name, column in columns.items() if np.isfinite(column).any()}

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics that are numbers."""
        return list(self.columns)

    def column(self, name: str) -> Array:
        """Return a metric, (T,), see `columns`; all NaN if there is none of this name."""
        return self.columns.get(name, np.full(len(self.results), np.nan))

    def last(self, name: str) -> float | None:
        """The latest value of a metric; None if there is none."""
        known = self.column(name)
        known = known[np.isfinite(known)]
        return float(known[-1]) if len(known) else None

    @property
    def steps(self) -> Array:
        """Env steps at the end of each iteration, (T,)."""
        return self.column(STEPS)

    def progress(self, axis: str) -> Array:
        """Return how far the run was after each iteration: `STEPS`, `AGENT_STEPS` of all agents, or `SECONDS`."""
        if axis != AGENT_STEPS:
            return self.column(axis)
        names = [name for name in self.metrics if name.startswith(f"{AGENT_STEPS}/")]
        return np.sum([self.column(name) for name in names], axis=0) if names else np.full(len(self.results), np.nan)

    @property
    def agents(self) -> list[str]:
        """The agents whose returns were logged."""
        return [name.removeprefix(f"{AGENT_RETURNS}/") for name in self.metrics if name.startswith(f"{AGENT_RETURNS}/")]


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else np.nan
    except OverflowError:  # an integer of a damaged file
        return np.nan


@dataclass(frozen=True)
class Groups:
    """Runs by what they are shown as.

    Attributes:
        runs: label -> its runs, which differ in their seeds.
        differing: name of a setting -> label -> its value, of the settings in which the groups differ.
        warnings: what could not be read, and the runs that are left out because they have logged nothing.
    """

    runs: Mapping[str, Sequence[RunRecord]]
    differing: Mapping[str, Mapping[str, Any]]
    warnings: Sequence[str]

    @property
    def all(self) -> list[RunRecord]:
        """All runs."""
        return [record for records in self.runs.values() for record in records]

    def require_metric(self, name: str) -> None:
        """Refuse a metric that no run has.

        Raises:
            ConfigError: suggests similar names.
        """
        require_metric(name, dict.fromkeys(metric for record in self.all for metric in record.metrics), "--metric")


# --- Groups ----------------------------------------------------------------------------------------------------------


def group_by_settings(records: Sequence[RunRecord], names: Sequence[str] = ()) -> Groups:
    """Group runs by their env and the named settings; without names, by all in which they differ but for the seed.

    Raises:
        ConfigError: no run has a setting of such a name.
    """
    warnings, records = _warnings(records), [record for record in records if record.results]
    known = dict.fromkeys(name for record in records for name in record.settings)
    for name in names:
        if name not in known:
            require_metric(name, known, "--group-by")
    shown = list(names)
    if not names:
        names = [name for name in known if name not in _OF_A_RUN and len(_values(records, name)) > 1]
        shown = _distinguishing(records, names)
    has_envs = len({record.env for record in records}) > 1
    keys = [(record.env, *(repr(record.settings.get(name)) for name in names)) for record in records]
    labels = {key: _label(record, shown, has_envs) for key, record in zip(keys, records, strict=True)}
    return _grouped([replace(record, group=labels[key]) for key, record in zip(keys, records, strict=True)], warnings)


def _distinguishing(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Return as few of the settings as tell all groups apart: other settings often follow from the algorithm."""
    wanted = len({tuple(repr(record.settings.get(name)) for name in names) for record in records})
    chosen: list[str] = []
    found = 1
    for name in sorted(names, key=lambda name: name not in _FIRST):
        number = len({tuple(repr(record.settings.get(each)) for each in (*chosen, name)) for record in records})
        if number > found:
            chosen, found = [*chosen, name], number
        if found == wanted:
            break
    return chosen


def group_by_argument(records_of: Mapping[str, Sequence[RunRecord]]) -> Groups:
    """Group runs by the argument that they come from."""
    labelled = [replace(each, group=label) for label, records in records_of.items() for each in records]
    return _grouped([record for record in labelled if record.results], _warnings(labelled))


def _warnings(records: Sequence[RunRecord]) -> list[str]:
    return [record.warning for record in records if record.warning]


def _values(records: Sequence[RunRecord], name: str) -> set[str]:
    return {repr(record.settings.get(name)) for record in records}


def _label(record: RunRecord, names: Sequence[str], has_envs: bool) -> str:
    parts = [record.env] if has_envs or not names else []
    names = names or [name for name in _FIRST[:1] if name in record.settings]
    parts += [f"{'' if name in _FIRST else f'{name}='}{record.settings.get(name)}" for name in names]
    label = ", ".join(parts)
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 3]}..."


def _grouped(records: Sequence[RunRecord], warnings: Sequence[str]) -> Groups:
    runs: dict[str, list[RunRecord]] = {}
    for record in records:
        runs.setdefault(record.group, []).append(record)
    names = dict.fromkeys(name for record in records for name in record.settings if name not in _OF_A_RUN)
    differing = {
        name: {label: of_label[0].settings.get(name) for label, of_label in runs.items()}
        for name in names
        if len({repr(each[0].settings[name]) for each in runs.values() if name in each[0].settings}) > 1
    }
    if len({record.env for record in records}) > 1:
        differing = {"env": {label: of_label[0].env for label, of_label in runs.items()}, **differing}
    return Groups(runs, differing, warnings)
