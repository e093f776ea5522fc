"""`python -m marl_sb3.tuning.jobs.worker PID FOLDER ENV PATH NAME JOB...`: run jobs of a study until none are left.

The search, process PID, starts it and sets `OMP_NUM_THREADS` to its number of cores. If ENV was registered in the
search's process, PATH is the import path of its factory; otherwise it equals ENV. JOB is `trials`, or `confirm SEEDS
TRIAL...`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marl_sb3.cli.command import EXIT_DONE, EXIT_INTERRUPTED, run_command
from marl_sb3.errors import ConfigError, is_disk_full
from marl_sb3.startup import without_collections
from marl_sb3.tuning.jobs.queue import JobQueue, work

if TYPE_CHECKING:
    from marl_sb3.tuning.study import TuneStudy


def main(arguments: list[str]) -> int:
    """Run jobs; returns an exit code as the commands do."""
    pid, folder, env, path, name, job, *options = arguments

    def is_wanted() -> bool:
        # If the search has died, nothing supervises this worker.
        return os.getppid() == int(pid)

    def run() -> int:
        _import_modules()
        if path != env:
            from marl_sb3.envs.registry import env_factory, register_env

            register_env(env, env_factory(path))
        study = _study(Path(folder), env)
        with study.working(name):
            return _work(study, name, job, [int(option) for option in options], is_wanted)

    return run_command(run, 1)


def _import_modules() -> None:
    """Import the modules that the search's command line names after `--import`."""
    from marl_sb3.envs.registry import import_modules
    from marl_sb3.tuning.jobs.workers import IMPORTS_VARIABLE

    import_modules(filter(None, os.environ.get(IMPORTS_VARIABLE, "").split(",")))


def _work(study: TuneStudy, name: str, job: str, options: list[int], is_wanted: Callable[[], bool]) -> int:
    from marl_sb3.tuning.jobs.workers import EXIT_DISK_FULL

    try:
        done = work(_queue(study, job, options), name, is_wanted=is_wanted)
    except OSError as error:
        if not is_disk_full(error):
            raise
        return EXIT_DISK_FULL
    return EXIT_DONE if done else EXIT_INTERRUPTED


def _study(folder: Path, env: str) -> TuneStudy:
    from marl_sb3.tuning.search import STORAGE_VARIABLE, read_search

    search = read_search(folder, env, os.environ.get(STORAGE_VARIABLE))
    if search is None:
        raise ConfigError(f"{folder} holds no study", key="study")
    from marl_sb3.tuning.study import TuneStudy

    return TuneStudy(search, folder)


def _queue(study: TuneStudy, job: str, options: Sequence[int]) -> JobQueue:
    with without_collections():
        from marl_sb3.tuning.jobs.confirmations import ConfirmationQueue
        from marl_sb3.tuning.jobs.trials import TrialQueue

    if job == "confirm":
        seeds, *trials = options
        return ConfirmationQueue(study, trials, seeds)
    return TrialQueue(study)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
