"""The jobs of a study, trials and confirmations alike: a worker claims one, does it, and claims the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Job(Protocol):
    """A training that a worker has claimed."""

    def run(self) -> bool:
        """Do it and note what came out; returns False if it was interrupted: it can be claimed again then."""


class JobQueue(Protocol):
    """Jobs that several processes share. All of it stays right if any of them is killed at any time."""

    @property
    def arguments(self) -> Sequence[str]:
        """By these a worker process makes the same queue; see `marl_sb3.tuning.worker`."""

    def claim(self, worker: str) -> Job | None:
        """A job that nobody has begun; None if there is none."""

    def n_done(self) -> int:
        """How many jobs have come to their end."""

    def in_flight(self) -> list[str]:
        """The jobs that living workers have claimed, or these workers, by their names."""

    def requeue_dead(self) -> object:
        """Let jobs be claimed again whose workers have died."""

    def is_waiting(self) -> bool:
        """Whether a job has been requeued that nobody has claimed."""


def work(
    queue: JobQueue,
    worker: str,
    look: Callable[[], None] = lambda: None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Claim jobs and do them, one after the other.

    Args:
        queue: the jobs.
        worker: the name of the worker.
        look: called after each job.
        is_wanted: asked before each job: False ends the work.

    Returns:
        False if a job was interrupted.
    """
    while is_wanted() and (job := queue.claim(worker)) is not None:
        if not job.run():
            return False
        look()
    return True
