"""Kill a search, again and again, and see what it has found in the end.

A search of two workers is run once in peace. Then again, while random ones of its processes, the search itself among
them, are killed with SIGKILL; when the search is gone, it is started again. In the end each trial, those left out that
were killed twice, must have the parameters, the seed and the value that it has without kills.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import pytest
from forked import ForkServer, run_really
from optuna.trial import TrialState
from waiting import writing_to

from marl_sb3.tools.tuning.storage import open_storage
from marl_sb3.tools.tuning.trial import DEATHS, ERROR, INDEX, KILLED

WORKERS = 2
OPTIONS = ["--sampler", "random", "--pruner", "none", "--evaluations", "2", "--evaluation-episodes", "2"]
OPTIONS += ["--set", "n_envs=4", "--workers", str(WORKERS), "--no-confirm"]


# starts a command, as `ForkServer.run` and `run_really` do
Run = Callable[..., Any]


def search_under_fire(
    run: Run,
    folder: Path,
    kills: int,
    trials: int,
    seed: int,
    longest_s: float = 14.0,
    env_steps: int = 4000,
) -> list[str]:
    """Run both searches below a folder; returns in words which trials are not what they are without kills.

    Args:
        run: starts the searches.
        folder: an empty one.
        kills: of the second search.
        trials: of each search.
        seed: of the kills.
        longest_s: between two kills, in seconds.
        env_steps: of a trial.
    """
    expected = _ended(_search(run, folder, "peace", trials, env_steps).wait, folder, "peace")
    rng = random.Random(seed)
    process, killed = _search(run, folder, "fire", trials, env_steps), 0
    while killed < kills or process.poll() is None:
        time.sleep(rng.uniform(0.5, longest_s))
        if process.poll() == 0:
            break
        if process.poll() is not None:
            process = _search(run, folder, "fire", trials, env_steps)
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
    return mismatches + [
        f"trial {trial.number} is {trial.state.name}" for trial in all_trials if not trial.state.is_finished()
    ]


def _search(run: Run, folder: Path, name: str, trials: int, env_steps: int) -> Any:
    command = ["-m", "marl_sb3.tune", "arena", "--study", name, *OPTIONS]
    command += ["--trials", str(trials), "--timesteps", str(env_steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(WORKERS)}
    return run(command, folder / f"{name}.log", folder=folder, environment=environment)


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


def test_a_search_under_fire_finds_what_it_finds_in_peace(tmp_path: Path, server: ForkServer) -> None:
    assert search_under_fire(server.run, tmp_path, kills=1, trials=2, seed=3, longest_s=1.0, env_steps=800) == []


@pytest.mark.proof
def test_a_search_of_real_processes_under_fire_finds_what_it_finds_in_peace(tmp_path: Path) -> None:
    assert search_under_fire(run_really, tmp_path, kills=6, trials=12, seed=3, longest_s=5.0) == []
