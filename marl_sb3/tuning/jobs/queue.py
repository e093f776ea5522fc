"""What workers need to know of their jobs, whether these are trials or confirmations, and of how a job is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.config import TrainConfig
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.metrics import Result
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial import KILLED

GRACE_S = 30.0  # time that a training may take to finish its iteration when the search ends


@dataclass(frozen=True)
class TrainedRun:
    """What a job stores of a run that was trained.

    Attributes:
        folder: of the run, on this machine.
        interrupted: whether a signal, or the end of the search, ended it.
        result: the metrics of the last iteration.
        results: the metrics of all iterations; empty if it was interrupted.
        checkpoint: the name of the latest checkpoint.
    """

    folder: Path
    interrupted: bool
    result: Result | None = None
    results: Sequence[Result] = ()
    checkpoint: str | None = None


# Trains a run in a folder of this machine. It raises `TrainerLostError` if the process that trained it has ended.
Train = Callable[[TrainConfig, Path, EnvFactory | None, Sequence[BaseCallback]], TrainedRun]


class TrainerLostError(RuntimeError):
    """The process that trained a run has ended; the run has to be trained again."""


def train_here(
    config: TrainConfig, folder: Path, factory: EnvFactory | None, callbacks: Sequence[BaseCallback]
) -> TrainedRun:
    """See `Train`: in this process."""
    from marl_sb3.runs.execute import execute
    from marl_sb3.runs.start import prepare

    run = execute(prepare(config, folder, factory), callbacks)
    return TrainedRun(run.folder, run.interrupted, run.result, () if run.interrupted else run.results, run.checkpoint)


# Trains a run that a worker has claimed and stores the outcome; returns False if interrupted: it can be claimed again.
Job = Callable[[], bool]


class JobQueue(Protocol):
    """Jobs shared by several processes. Any of these may be killed at any time; the queue stays consistent.

    Attributes:
        again: makes the same queue of another object of the study, for another process or thread.
    """

    again: QueueMaker

    def claim(self, worker: str, train: Train) -> Job | None:
        """Claim a job that no worker has started; None if there is none. The job calls `train`."""

    def n_done(self) -> int:
        """The number of finished jobs."""

    def in_flight(self) -> list[str]:
        """The names of claimed jobs, or of the workers that claimed them, whose workers are alive."""

    def requeue_dead(self, why: str = KILLED) -> object:
        """Make the jobs of dead workers available again; see `TuneStudy.requeue_dead`."""

    def is_waiting(self) -> bool:
        """Whether a requeued job has not been claimed yet."""


QueueMaker = Callable[[TuneStudy], JobQueue]


def work(
    queue: JobQueue,
    worker: str,
    look: Callable[[], None] = lambda: None,
    is_wanted: Callable[[], bool] = lambda: True,
    train: Train = train_here,
) -> bool:
    """Claim and run jobs one after the other until there are none left.

    Args:
        is_wanted: called before each job; work ends if it returns False.

    Returns:
        False if a job was interrupted.
    """
    while is_wanted() and (job := queue.claim(worker, train)) is not None:
        if not job():
            return False
        look()
    return True
