"""Kill and stop the workers of trainings at random moments, and compare what is left with an undisturbed training.

    python tests/crash/worker_kills.py --kills 200

Weights, checkpoints and logs have to be the same to the last bit. Exit code 1: something differs, or was inexact.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from run_records import differences

from marl_sb3.runs import Run, execute, load_config, prepare

MOST_IN_A_RUN = 20
TIMEOUT_S = 0.4  # of a call of an env, so that stopped workers are noticed soon
COMMON = {"n_steps": 20, "batch_size": 40, "n_epochs": 1, "checkpoint_every": 5, "policy_kwargs.net_arch": [8]}
NEVER_GIVE_UP = {"worker_timeout_s": TIMEOUT_S, "max_worker_restarts": 1000}

# Name -> env, arguments of `load_config`.
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "sync": ("arena", {"n_envs": 4, "vectorizer": "sync", "n_workers": 2}),
    "batched": ("arena", {"n_envs": 6, "vectorizer": "batched", "n_workers": 3, "policies": "per_agent"}),
    "turns": ("classic/rps-v2", {"n_envs": 4, "n_workers": 2}),
    "gymnasium": ("CartPole-v1", {"n_envs": 3, "n_workers": 3}),
}


@dataclass
class Tally:
    """What has been done, and what went wrong."""

    kills: int = 0  # workers that were killed
    stops: int = 0  # workers that were stopped, and hang therefore
    restarts: int = 0  # workers that were replaced
    runs: int = 0  # trainings
    mismatches: list[str] = field(default_factory=list)  # in what these differ from the undisturbed ones

    def add(self, other: Tally) -> None:
        """Add the counts of another training."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Disturber(threading.Thread):
    """Kills and stops workers at random moments, whatever they and the main process are doing.

    Args:
        run: a prepared training.
        most: how many at most.
        mean_s: mean of the time between two.
    """

    def __init__(self, run: Run, most: int, mean_s: float, stops: float, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.tally = Tally(runs=1)
        self._env: Any = run.algorithm.env
        self._most, self._mean_s, self._stops, self._rng = most, mean_s, stops, rng
        self._end = threading.Event()
        self._shot: set[int] = set()  # no process is counted twice

    def run(self) -> None:
        while not self._end.wait(self._rng.expovariate(1 / self._mean_s)):
            if self.tally.kills + self.tally.stops >= self._most:
                return
            self._disturb(self._rng.choice(self._env._supervisor.workers))

    def _disturb(self, worker: Any) -> None:
        process, fork_server = worker.process, worker._fork_server
        stop = self._rng.random() < self._stops
        with suppress(psutil.NoSuchProcess):
            is_worker = process and psutil.Process(process).ppid() == fork_server._process.pid  # nobody else has its id
            if is_worker and process not in self._shot:
                self._shot.add(process)
                os.kill(process, signal.SIGSTOP if stop else signal.SIGKILL)
                self.tally.stops += stop
                self.tally.kills += not stop

    def end(self) -> Tally:
        """Stop; returns what was done."""
        self._end.set()
        self.join()
        self.tally.restarts = self._env.health.num_worker_restarts
        return self.tally


def prepared(case: str, timesteps: int, folder: Path) -> Run:
    """A training of a case, ready to begin."""
    env, settings = CASES[case]
    return prepare(
        load_config(env, n_timesteps=timesteps, seed=1, settings={**COMMON, **NEVER_GIVE_UP}, **settings), folder
    )


def disturbed(
    case: str, reference: Path, folder: Path, timesteps: int, most: int, rng: random.Random, mean_s: float, stops: float
) -> Tally:
    """Train a case under fire, and compare it with the reference."""
    messages = _Inexact()
    logging.getLogger("marl_sb3").addHandler(messages)
    run = prepared(case, timesteps, folder)
    disturber = Disturber(run, most, mean_s, stops, rng)
    disturber.start()
    try:
        execute(run, [])
    finally:
        tally = disturber.end()
        logging.getLogger("marl_sb3").removeHandler(messages)
    tally.mismatches = [f"{case}, {folder}: {each}" for each in [*messages.found, *differences(reference, folder)]]
    return tally


class _Inexact(logging.Handler):
    """Collects the messages about envs that could not be brought back."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "inexact" in record.getMessage():
            self.found.append(record.getMessage())


def campaign(kills: int, timesteps: int, seed: int, folder: Path, cases: Mapping[str, Any] = CASES) -> Tally:
    """Disturb trainings of all cases in turn until there have been so many kills and stops."""
    references = {}
    for case in cases:
        references[case] = folder / f"{case}-reference"
        execute(prepared(case, timesteps, references[case]), [])
    total, rng = Tally(), random.Random(seed)
    while (left := kills - total.kills - total.stops) > 0 and not total.mismatches:
        case = list(cases)[total.runs % len(cases)]
        own = folder / f"{case}-{total.runs}"
        most = min(left, MOST_IN_A_RUN)
        total.add(disturbed(case, references[case], own, timesteps, most, rng, mean_s=0.2, stops=0.2))
        print(f"{own.name}: {_counts(total)}", file=sys.stderr, flush=True)
    return total


def _counts(tally: Tally) -> str:
    return json.dumps({**vars(tally), "mismatches": len(tally.mismatches)})


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200, help="kills and stops; default: 200")
    parser.add_argument("--timesteps", type=int, default=8000, help="env steps of a training; default: 8000")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default: 0")
    options = parser.parse_args(argv)
    logging.getLogger("marl_sb3").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        total = campaign(options.kills, options.timesteps, options.seed, Path(folder))
    print(_counts(total))
    for mismatch in total.mismatches:
        print(mismatch)
    return 1 if total.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
