"""`python -m marl_sb3.tuning.worker FOLDER ENV PATH NAME JOB...`: work for a study until there is nothing left to do.

Started by the search, with its share of the cores in `OMP_NUM_THREADS`. PATH is what ENV is imported by, where ENV is
a name that was registered in the process of the search. JOB is `trials`, or `confirm SEEDS TRIAL...`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from marl_sb3.cli import EXIT_DONE, EXIT_INTERRUPTED, run_command
from marl_sb3.errors import ConfigError

if TYPE_CHECKING:
    from marl_sb3.tuning.study import StudyOfTrials


def main(arguments: list[str]) -> int:
    """Returns an exit code as the commands do."""
    folder, env, path, name, job, *options = arguments
    return run_command(lambda: _work(Path(folder), env, path, name, job, [int(option) for option in options]), 1)


def _work(folder: Path, env: str, path: str, name: str, job: str, options: list[int]) -> int:
    if path != env:
        from marl_sb3.envs.registry import env_factory, register_env

        register_env(env, env_factory(path))
    study = _study(folder, env)
    with study.working(name):
        if job == "confirm":
            from marl_sb3.tuning.confirm import work_on_confirming

            seeds, *trials = options
            return EXIT_DONE if work_on_confirming(study, trials, seeds) else EXIT_INTERRUPTED
        return EXIT_DONE if work_on_trials(study, name) else EXIT_INTERRUPTED


def _study(folder: Path, env: str) -> StudyOfTrials:
    from marl_sb3.tuning.search import STORAGE_VARIABLE, read_search

    search = read_search(folder, env, os.environ.get(STORAGE_VARIABLE))
    if search is None:
        raise ConfigError(f"{folder} holds no study", key="study")
    from marl_sb3.tuning.study import StudyOfTrials

    return StudyOfTrials(search, folder)


def work_on_trials(study: StudyOfTrials, name: str) -> bool:
    """Take trials from a study, one after the other; returns False if one was interrupted."""
    from marl_sb3.tuning.trial import run_trial

    parent = os.getppid()
    # Without the search that started it a worker would be one that nobody looks after.
    while os.getppid() == parent and (trial := study.next_trial(name)) is not None:
        if not run_trial(study, trial):
            return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
