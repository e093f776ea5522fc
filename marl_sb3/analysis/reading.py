"""Reading what runs have logged: from run folders, folders of runs, patterns, and files of marl-eval."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from pathlib import Path

from marl_sb3.analysis.exchange import read_marl_eval
from marl_sb3.analysis.records import RunRecord
from marl_sb3.config.files import read_yaml
from marl_sb3.errors import ConfigError
from marl_sb3.metrics import flatten
from marl_sb3.metrics.result_log import readable_results
from marl_sb3.storage.checkpoint_folder import RUN_CONFIG

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
    """Read what a path stands for: a run folder, all runs in a folder, what a pattern finds, or a file of marl-eval.

    Raises:
        ConfigError: there is nothing that can be read.
    """
    text = str(path)
    found = [Path(text)] if Path(text).exists() else [Path(each) for each in sorted(glob.glob(text, recursive=True))]
    if not found and (below := Path("runs") / text).exists():
        found = [below]
    records: list[RunRecord] = []
    for each in found:
        if each.suffix == ".json" and each.is_file():
            records += read_marl_eval(each)
        else:
            records += [read_run(folder) for folder in _runs_in(each)]
    if not records:
        accepted = "a run folder, a folder of runs, a pattern such as 'runs/arena/*', or a .json file of marl-eval"
        raise ConfigError(f"there is no run in {text}; accepted: {accepted}", key="run")
    empty = [record.name for record in records if not record.results]
    if len(empty) == len(records):
        raise ConfigError(f"{empty[0]} has logged nothing yet; accepted: runs with at least one iteration", key="run")
    return [record for record in records if record.results]


def _runs_in(folder: Path, depth: int = 0) -> Iterator[Path]:
    if (folder / RUN_CONFIG).is_file():
        yield folder
    elif depth < _DEEPEST and folder.is_dir():
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink() and inner.name != "checkpoints":
                yield from _runs_in(inner, depth + 1)
