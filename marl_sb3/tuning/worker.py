"""`python -m marl_sb3.tuning.worker FOLDER NAME [ENV]`: run trials of a study until there are none left.

Started by the search, with its share of the cores in `OMP_NUM_THREADS`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from marl_sb3.cli import EXIT_DONE, EXIT_INTERRUPTED, run_command
from marl_sb3.errors import ConfigError


def main(arguments: list[str]) -> int:
    """Returns an exit code as the commands do."""
    return run_command(lambda: work(Path(arguments[0]), arguments[1], arguments[2] if arguments[2:] else None), 1)


def work(folder: Path, name: str, env: str | None) -> int:
    """Take trials from the study in a folder, one after the other."""
    from marl_sb3.tuning.search import read_search
    from marl_sb3.tuning.study import StudyOfTrials
    from marl_sb3.tuning.trial import run_trial

    search = read_search(folder, env)
    if search is None:
        raise ConfigError(f"{folder} holds no study", key="study")
    study = StudyOfTrials(search, folder)
    parent = os.getppid()
    with study.working(name):
        # Without the search that started it a worker would be one that nobody looks after.
        while os.getppid() == parent and (trial := study.next_trial(name)) is not None:
            if not run_trial(study, trial):
                return EXIT_INTERRUPTED
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
