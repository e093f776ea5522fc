"""Reading what runs have logged: from run folders, folders of runs, patterns, and files of marl-eval."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from marl_sb3.core.metrics.names import flatten
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.hub import is_address, local_folder
from marl_sb3.extensions.store.checkpoint_folder import RUN_CONFIG, runs_of
from marl_sb3.files.paths import path_is_usable
from marl_sb3.files.plain_yaml import read_yaml
from marl_sb3.files.regular import is_regular
from marl_sb3.results.exchange import read_marl_eval
from marl_sb3.results.records import RunRecord
from marl_sb3.results.result_log import readable_results

_DEEPEST = 4  # folders below the one that is named in which runs are looked for


def read_run(folder: Path) -> RunRecord:
    """Read a run folder as far as it is readable.

    Raises:
        ConfigError: its settings or its log cannot be read at all.
    """
    content = read_yaml(folder / RUN_CONFIG)
    if not (isinstance(content, Mapping) and len(content) == 1 and isinstance(next(iter(content.values())), Mapping)):
        raise ConfigError(f"{folder / RUN_CONFIG} has no settings of one env; accepted: that of a run", key="run")
    env, settings = next(iter(content.items()))
    results, warning = readable_results(folder)
    flat = {name.replace("/", "."): value for name, value in flatten(settings).items()}
    return RunRecord(str(folder), str(env), flat, [flatten(each) for each in results], "", warning, folder)


def read_records(path: str | Path) -> list[RunRecord]:
    """Read what a path stands for: the runs that `find_runs` finds, and of files of marl-eval, theirs.

    Of several, those that cannot be read or have logged nothing have no results, and a warning that says so.

    Raises:
        ConfigError: there is no run that can be read.
    """
    records: list[RunRecord] = []
    for each in _meant(path):
        if each.suffix == ".json" and is_regular(each):
            records += read_marl_eval(each)
            continue
        for folder in _runs_in(each):
            try:
                record = read_run(folder)
            except ConfigError as error:
                warning = f"{folder} is no run to use: {error}"
                record = RunRecord(str(folder), "", {}, [], warning=warning, folder=folder)
            else:
                if not record.results:
                    reason = f": {record.warning}" if record.warning else ""
                    record = replace(record, warning=f"{folder} has logged nothing yet{reason}")
            records.append(record)
    if not records:
        accepted = "a run folder, a folder of runs, a pattern such as 'runs/arena/*', or a .json file of marl-eval"
        raise ConfigError(f"there is no run in {path}; accepted: {accepted}", key="run")
    if not any(record.results for record in records):
        words = f"no run in {path} has logged an iteration" if len(records) > 1 else records[0].warning
        raise ConfigError(words, key="run")
    return records


def find_runs(path: str | Path) -> list[Path]:
    """Return the run folders that a path stands for: itself, those below it, those of a pattern or of an env's name."""
    return [folder for each in _meant(path) for folder in _runs_in(each)]


def _meant(path: str | Path) -> list[Path]:
    if is_address(path):
        return [local_folder(path)]
    with path_is_usable("cannot read", path, "run"):
        if Path(path).exists():
            return [Path(path)]
        found = [Path(each) for each in sorted(glob.glob(str(path), recursive=True))]
        return found or [folder for folder in [runs_of(str(path))] if folder.exists()]


def _runs_in(folder: Path, depth: int = 0) -> Iterator[Path]:
    with path_is_usable("cannot read", folder, "run"):
        if is_regular(folder / RUN_CONFIG):
            yield folder
        elif depth < _DEEPEST and folder.is_dir():
            for inner in sorted(folder.iterdir()):
                if inner.is_dir() and not inner.is_symlink() and inner.name != "checkpoints":
                    yield from _runs_in(inner, depth + 1)
