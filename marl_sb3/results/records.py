"""What runs have logged, and which of them are one experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.core.config.values import counted
from marl_sb3.errors import ConfigError, did_you_mean
from marl_sb3.extensions.dialects.names import require_logged
from marl_sb3.types import Array

STEPS, AGENT_STEPS, SECONDS = "num_env_steps_sampled_lifetime", "num_agent_steps_sampled_lifetime", "time_total_s"
RETURN, AGENT_RETURNS = "env_runners/episode_return_mean", "env_runners/agent_episode_returns_mean"
# Settings in which runs differ that are nevertheless one experiment.
_OF_A_RUN = {"seed", "device", "n_threads", "n_parallel_updates", "n_workers", "n_runners", "track"}
_FIRST = ("algo", "policies")  # what groups are told apart by, if they differ in it
_LAST = ("n_timesteps", "extensions", "stop.", "checkpoints.", "evaluation.")  # and by what least
_LONGEST_VALUE = 40  # characters
_MOST_NAMED = 5  # settings in a warning
_BY_POLICY = ("policy_settings.", "policies.")  # what the settings of single policies are below
_OF_ALL = ("hyperparameters.", "processing.", "data.", "")  # where those of all policies are


class Unset(StrEnum):
    """What a run has in place of a setting that it does not set, so that its env's or network's own default holds."""

    UNSET = "not set"


UNSET = Unset.UNSET


@dataclass(frozen=True)
class RunRecord:
    """What a run has logged."""

    name: str  # the path of its folder, or its place in a file of marl-eval
    env: str  # id of the env
    settings: Mapping[str, Any]  # all settings by their flat names
    results: Sequence[Mapping[str, Any]]  # the flat metrics of each iteration; empty: nothing is known of it
    group: str = ""  # what it is shown as, together with the other runs of the group
    warning: str = ""  # what could not be read; empty: nothing
    folder: Path | None = None  # its folder; None: it is from a file

    @property
    def identity(self) -> Path | str:
        """What is the same of the same run, whatever path leads to it."""
        return self.name if self.folder is None else self.folder.resolve()

    def setting(self, name: str) -> Any:
        """Return a setting by its flat name; where a policy has none of its own, that of all of them; else `UNSET`."""
        if name in self.settings:
            return self.settings[name]
        own = next((name.removeprefix(prefix) for prefix in _BY_POLICY if name.startswith(prefix)), "")
        for place in [place for place, char in enumerate(own) if char == "."]:  # ids of policies may have dots, too
            for prefix in _OF_ALL:
                if f"{prefix}{own[place + 1 :]}" in self.settings:
                    return self.settings[f"{prefix}{own[place + 1 :]}"]
        return UNSET

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
    """Runs by what they are shown as."""

    runs: Mapping[str, Sequence[RunRecord]]  # label -> its runs, which differ in their seeds
    # name of a setting -> label -> its value, of the settings in which the groups differ
    differing: Mapping[str, Mapping[str, Any]]
    warnings: Sequence[str]  # what could not be read, and the runs that are left out because they have logged nothing

    @property
    def all(self) -> list[RunRecord]:
        """All runs."""
        return [record for records in self.runs.values() for record in records]

    def require_metric(self, name: str) -> None:
        """Refuse a metric that no run has.

        Raises:
            ConfigError: suggests similar names.
        """
        require_logged(name, dict.fromkeys(metric for record in self.all for metric in record.metrics), "--metric")


# --- Groups ----------------------------------------------------------------------------------------------------------


def group_by_settings(records: Sequence[RunRecord], names: Sequence[str] = ()) -> Groups:
    """Group runs by their env and the named settings; without names, by all in which they differ but for the seed.

    A run that is named twice counts once.

    Args:
        names: flat names, or their last parts as `--set` takes them: `learning_rate`, `env.height`, `agent1.gamma`.

    Raises:
        ConfigError: no run has a setting of such a name.
    """
    records = list({record.identity: record for record in records}.values())
    warnings = [record.warning for record in records if record.warning]
    records = [record for record in records if record.results]
    known = _setting_names(records)
    names = [_known_name(name, known) for name in names]
    shown, usual = list(names), dict[str, str]()
    if not names:
        names = [name for name in known if name not in _OF_A_RUN and len(_values(records, name)) > 1]
        shown = _distinguishing(records, names)
        of_all = {name: Counter(repr(each.setting(name)) for each in records) for name in shown if name not in _FIRST}
        usual = {name: values.most_common(1)[0][0] for name, values in of_all.items()}
    has_envs = len({record.env for record in records}) > 1
    keys = [(record.env, *(repr(record.setting(name)) for name in names)) for record in records]
    of_key = dict(zip(keys, records, strict=True))
    named = [_label(one, shown, usual, has_envs) for one in of_key.values()]
    numbered = [  # those that are equal, because only the ends of long values differ
        label if named.count(label) == 1 else f"{label} ({named[: place + 1].count(label)})"
        for place, label in enumerate(named)
    ]
    labels = dict(zip(of_key, numbered, strict=True))
    return _grouped([replace(record, group=labels[key]) for key, record in zip(keys, records, strict=True)], warnings)


def _setting_names(records: Sequence[RunRecord]) -> dict[str, None]:
    """Return the names of all settings; `policy_kwargs` is none where a run has `policy_kwargs.net_arch`."""
    names = dict.fromkeys(name for record in records for name in record.settings)
    parents = {name[:place] for name in names for place, char in enumerate(name) if char == "."}
    return {name: None for name in names if name not in parents}


def _known_name(name: str, known: Mapping[str, None]) -> str:
    """Return the flat name that a name as after `--set` means."""
    if name in known:
        return name
    meant = f"env_kwargs.{name.removeprefix('env.')}" if name.startswith("env.") else name
    for prefix in (*_OF_ALL, *_BY_POLICY):
        if f"{prefix}{meant}" in known:
            return f"{prefix}{meant}"
    close = did_you_mean(name, map(short_name, known), 4)
    hint = close or "accepted: names as after --set, such as learning_rate"
    raise ConfigError(f"no run has a setting {name!r}; {hint}", key="--group-by")


def short_name(name: str) -> str:
    """Return the name of a setting as `--set` takes it: `learning_rate` of `hyperparameters.learning_rate`."""
    for prefix in (*_OF_ALL[:-1], *_BY_POLICY):
        name = name.removeprefix(prefix)
    return f"env.{name.removeprefix('env_kwargs.')}" if name.startswith("env_kwargs.") else name


def _distinguishing(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Return as few of the settings as tell all groups apart: other settings often follow from the algorithm."""
    wanted = len({tuple(repr(record.setting(name)) for name in names) for record in records})
    chosen: list[str] = []
    found = 1
    # Algorithms tell most, and when a run ends least.
    ranks = {n: 0 if n in _FIRST else 1 if n.endswith(".algo") else 3 if n.startswith(_LAST) else 2 for n in names}
    for name in sorted(names, key=ranks.__getitem__):
        number = len({tuple(repr(record.setting(each)) for each in (*chosen, name)) for record in records})
        if number > found:
            chosen, found = [*chosen, name], number
        if found == wanted:
            break
    return chosen


def group_by_argument(records_of: Mapping[str, Sequence[RunRecord]]) -> Groups:
    """Group runs by the argument that they come from; a run of two arguments belongs to the first one.

    Raises:
        ConfigError: all runs of an argument belong to those before it.
    """
    known: dict[Path | str, RunRecord] = {}
    mixed = []
    for label, records in records_of.items():
        of_others = [each.group for record in records if (each := known.get(record.identity)) is not None]
        owners = ", ".join(dict.fromkeys(of_others))
        if len(of_others) == len(records):
            words = f"all runs of {label} are in {owners}, too; accepted: experiments that have no runs in common"
            raise ConfigError(words, key="run")
        if of_others:
            words = f"{counted(len(of_others), 'run')} of {label} {'is' if len(of_others) == 1 else 'are'} in {owners}"
            mixed.append(f"{words}, too, and left out of {label}: a run cannot stand on both sides")
        for each in records:
            known.setdefault(each.identity, replace(each, group=label))
    labelled = list(known.values())
    warnings = [record.warning for record in labelled if record.warning]
    groups = _grouped([record for record in labelled if record.results], warnings)
    for label, records in groups.runs.items():
        names = [name for name in _setting_names(records) if name not in _OF_A_RUN and len(_values(records, name)) > 1]
        if names:
            some = [*map(short_name, names[:_MOST_NAMED]), *(["..."] if len(names) > _MOST_NAMED else [])]
            mixed.append(f"the runs of {label} differ in {', '.join(some)}, not in their seeds alone")
    return replace(groups, warnings=[*groups.warnings, *mixed])


def _values(records: Sequence[RunRecord], name: str) -> set[str]:
    return {repr(record.setting(name)) for record in records}


def _label(record: RunRecord, names: Sequence[str], usual: Mapping[str, str], has_envs: bool) -> str:
    """Return what the group of a run is called: its env, algorithm and policies, and where it differs from the usual.

    Args:
        names: the settings that tell the groups apart.
        usual: the values, by name, that are left out.
        has_envs: whether the runs are of several envs.
    """
    parts = [record.env] if has_envs else []
    for name in names:
        value = record.setting(name)
        if repr(value) != usual.get(name):
            text = str(value) if len(str(value)) <= _LONGEST_VALUE else f"{str(value)[: _LONGEST_VALUE - 3]}..."
            parts.append(text if name in _FIRST else f"{short_name(name)}={text}")
    algo = [str(record.settings[name]) for name in _FIRST[:1] if name in record.settings]
    return ", ".join(parts or [record.env, *algo])


def _grouped(records: Sequence[RunRecord], warnings: Sequence[str]) -> Groups:
    runs: dict[str, list[RunRecord]] = {}
    for record in records:
        runs.setdefault(record.group, []).append(record)
    differing: dict[str, dict[str, Any]] = {}
    for name in [name for name in _setting_names(records) if name not in _OF_A_RUN]:
        values = {
            label: list({repr(value := record.setting(name)): value for record in of_label}.values())
            for label, of_label in runs.items()
        }
        # A hyperparameter that a run does not have is none of its algorithm: what differs then is `algo`.
        of_algorithm = name.startswith("hyperparameters.") and name.count(".") == 1
        known = (frozenset(repr(v) for v in each if not (of_algorithm and v is UNSET)) for each in values.values())
        if len(set(filter(None, known))) > 1:
            # The value of all runs of a group, or the several that they have, in words.
            differing[name] = {
                label: each[0] if len(each) == 1 else " or ".join("null" if v is None else str(v) for v in each)
                for label, each in values.items()
            }
    if len({record.env for record in records}) > 1:
        differing = {"env": {label: of_label[0].env for label, of_label in runs.items()}, **differing}
    return Groups(runs, differing, warnings)
