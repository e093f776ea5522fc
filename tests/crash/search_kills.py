"""Kill a search, again and again, and see what it has found in the end.

    python tests/crash/search_kills.py --kills 30 --folder DIR

A search of two workers is run once in peace. Then again, while random ones of its processes, the search itself among
them, are killed with SIGKILL; when the search is gone, it is started again. In the end each trial, those left out that
were killed twice, must have the parameters, the seed and the value that it has without kills.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import optuna
from forked import ForkServer
from optuna.trial import TrialState

from marl_sb3.tools.tuning.storage import open_storage
from marl_sb3.tools.tuning.trial import DEATHS, ERROR, INDEX, KILLED

sys.path.append(str(Path(__file__).parent.parent))  # as a command, only this folder is there
from waiting import writing_to

WORKERS = 2
OPTIONS = ["--sampler", "random", "--pruner", "none", "--evaluations", "2", "--evaluation-episodes", "2"]
OPTIONS += ["--set", "n_envs=4", "--workers", str(WORKERS), "--no-confirm"]


@dataclass(frozen=True)
class Outcome:
    """What became of a search under fire."""

    kills: int  # processes that were killed
    starts: int  # of the search
    lost: int  # trials that were running when they were killed
    given_up: int  # trials that were killed twice
    mismatches: list[str]  # trials that are not what they are without kills, in words


class Processes(Protocol):
    """How searches are started."""

    def start(self, arguments: list[str], folder: Path, log: Path) -> Any:
        """Start Python in a folder; returns what has the methods of `subprocess.Popen`."""


class RealProcesses:
    """Those of the system."""

    def start(self, arguments: list[str], folder: Path, log: Path) -> Any:
        environment = {**os.environ, "OMP_NUM_THREADS": str(WORKERS)}
        with log.open("ab") as file:
            return subprocess.Popen([sys.executable, *arguments], cwd=folder, stdout=file, stderr=file, env=environment)


class ForkedProcesses:
    """Those of a fork server, which start in milliseconds."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def start(self, arguments: list[str], folder: Path, log: Path) -> Any:
        return self._server.run(
            arguments, log, folder=folder, environment={**os.environ, "OMP_NUM_THREADS": str(WORKERS)}
        )


def search_under_fire(
    processes: Processes,
    folder: Path,
    kills: int,
    trials: int,
    seed: int,
    longest_s: float = 14.0,
    env_steps: int = 4000,
) -> Outcome:
    """Run both searches below a folder and compare them.

    Args:
        processes: how searches are started.
        folder: an empty one.
        kills: of the second search.
        trials: of each search.
        seed: of the kills.
        longest_s: between two kills, in seconds.
        env_steps: of a trial.
    """
    expected = _ended(_search(processes, folder, "peace", trials, env_steps).wait, folder, "peace")
    rng = random.Random(seed)
    process, killed, starts = _search(processes, folder, "fire", trials, env_steps), 0, 1
    while killed < kills or process.poll() is None:
        time.sleep(rng.uniform(0.5, longest_s))
        if process.poll() == 0:
            break
        if process.poll() is not None:
            process, starts = _search(processes, folder, "fire", trials, env_steps), starts + 1
        elif killed < kills:
            killed += _kill_one(process.pid, _folder(folder, "fire") / "workers", rng)
    found = _ended(process.wait, folder, "fire")
    all_trials = _trials(folder, "fire")
    broken_off = [trial for trial in all_trials if trial.user_attrs.get(ERROR) == KILLED]
    given_up = {trial.user_attrs[INDEX] for trial in broken_off if trial.user_attrs.get(DEATHS) == 1}
    mismatches = [
        f"trial {index}: {found.get(index)} is not {expected[index]}"
        for index in expected
        if found.get(index) != expected[index] and index not in given_up
    ]
    mismatches += [
        f"trial {trial.number} is {trial.state.name}" for trial in all_trials if not trial.state.is_finished()
    ]
    return Outcome(killed, starts, len(broken_off), len(given_up), mismatches)


def _search(processes: Processes, folder: Path, name: str, trials: int, env_steps: int) -> Any:
    command = ["-m", "marl_sb3.tune", "arena", "--study", name, *OPTIONS]
    command += ["--trials", str(trials), "--timesteps", str(env_steps)]
    return processes.start(command, folder, folder / f"{name}.log")


def _kill_one(search: int, logs: Path, rng: random.Random) -> int:
    """Kill the search or one of its workers, or all of them at once."""
    workers = list(writing_to(logs).values())
    victims = rng.choice([[search], [search, *workers], *([worker] for worker in workers)])
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    return 1


def _folder(folder: Path, name: str) -> Path:
    """The folder of a study."""
    return folder / "runs" / "tune" / "arena" / name


def _trials(folder: Path, name: str) -> list[Any]:
    storage = open_storage(_folder(folder, name), None)
    return optuna.load_study(study_name=name, storage=storage).trials


def _ended(wait: Any, folder: Path, name: str) -> dict[int, tuple[Any, ...]]:
    """The trials that were trained to their end, by index."""
    if wait(600) != 0:
        raise RuntimeError((folder / f"{name}.log").read_text())
    return {
        trial.user_attrs[INDEX]: (trial.params, trial.user_attrs["seed"], trial.value)
        for trial in _trials(folder, name)
        if trial.state == TrialState.COMPLETE
    }


def main() -> int:
    """The command line; the exit code is 1 if anything is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="default: 30")
    parser.add_argument("--trials", type=int, default=60, help="of the search; default: 60")
    parser.add_argument("--seed", type=int, default=0, help="of the kills; default: 0")
    parser.add_argument("--folder", type=Path, required=True, help="where the searches are kept; must not exist")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    outcome = search_under_fire(
        RealProcesses(), arguments.folder.resolve(), arguments.kills, arguments.trials, arguments.seed
    )
    print(
        f"{outcome.kills} kills, {outcome.starts} starts, {outcome.lost} trials broken off, {outcome.given_up} of them "
        f"twice, {len(outcome.mismatches)} mismatches"
    )
    print("\n".join(outcome.mismatches))
    return 1 if outcome.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
