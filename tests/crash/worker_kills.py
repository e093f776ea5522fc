"""Kill and stop the workers of trainings at random moments, and compare what is left with an undisturbed training.

    python tests/crash/worker_kills.py --kills 200

Weights, checkpoints and logs have to be the same to the last bit. Exit code 1: something differs, or was inexact.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from campaign import Disturber, Tally, command
from run_records import differences

from marl_sb3.runs.execution import execute
from marl_sb3.runs.run import Run
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import prepare

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


class Workers:
    """The workers of a training, of which any may be killed or stopped at any moment, whatever it is doing.

    Args:
        env: with workers.
        stops: share of those that are stopped, and hang therefore.
    """

    def __init__(self, env: Any, stops: float) -> None:
        self._env, self._stops = env, stops
        self._shot: set[int] = set()  # no process is counted twice

    def disturb(self, rng: random.Random) -> str | None:
        """Kill or stop one; see `Disturber`."""
        worker = rng.choice(self._env._supervisor.workers)
        process, fork_server = worker.process, worker._fork_server
        stop = rng.random() < self._stops
        with suppress(psutil.NoSuchProcess):
            is_worker = process and psutil.Process(process).ppid() == fork_server._process.pid  # nobody else has its id
            if is_worker and process not in self._shot:
                self._shot.add(process)
                os.kill(process, signal.SIGSTOP if stop else signal.SIGKILL)
                return "stops" if stop else "kills"
        return None


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
    inexact: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: inexact.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(lambda record: "inexact" in record.getMessage())
    logging.getLogger("marl_sb3").addHandler(handler)
    run = prepared(case, timesteps, folder)
    disturber = Disturber(Workers(run.algorithm.env, stops).disturb, most, mean_s, rng)
    disturber.start()
    try:
        execute(run, [])
    finally:
        counts = disturber.end()
        logging.getLogger("marl_sb3").removeHandler(handler)
    assert run.algorithm.env.health is not None
    counts.update(runs=1, restarts=run.algorithm.env.health.num_worker_restarts)
    return Tally(counts, [f"{case}, {folder}: {each}" for each in [*inexact, *differences(reference, folder)]])


def campaign(options: argparse.Namespace, folder: Path, cases: Mapping[str, Any] = CASES) -> Tally:
    """Disturb trainings of all cases in turn until there have been so many kills and stops."""
    references = {}
    for case in cases:
        references[case] = folder / f"{case}-reference"
        execute(prepared(case, options.timesteps, references[case]), [])
    total, rng = Tally(), random.Random(options.seed)
    while (left := options.kills - total.counts["kills"] - total.counts["stops"]) > 0 and not total.mismatches:
        case = list(cases)[total.counts["runs"] % len(cases)]
        own = folder / f"{case}-{total.counts['runs']}"
        most = min(left, MOST_IN_A_RUN)
        total.add(disturbed(case, references[case], own, options.timesteps, most, rng, mean_s=0.2, stops=0.2))
        print(f"{own.name}: {dict(total.counts)}", file=sys.stderr, flush=True)
    return total


if __name__ == "__main__":
    logging.getLogger("marl_sb3").setLevel(logging.WARNING)
    sys.exit(command(campaign, None, kills=200, timesteps=8000))
