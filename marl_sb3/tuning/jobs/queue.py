"""What workers need to know of their jobs, whether these are trials or confirmations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from marl_sb3.tuning.trial import KILLED

if TYPE_CHECKING:
    from marl_sb3.tuning.jobs.training import Train


class Job(Protocol):
    """A training that a worker has claimed."""

    def run(self) -> bool:
        """Train and store the outcome; returns False if interrupted, and the job can then be claimed again."""


class JobQueue(Protocol):
    """Jobs shared by several processes. Any of these may be killed at any time; the queue stays consistent.

    Attributes:
        train: trains the runs of the jobs that this process claims.
    """

    train: Train

    @property
    def arguments(self) -> Sequence[str]:
        """The arguments from which `marl_sb3.tuning.jobs.worker` makes the same queue."""

    def of_thread(self) -> JobQueue:
        """Return the same queue on a study of its own, for another thread: a study keeps the sampler of one trial."""

    def claim(self, worker: str) -> Job | None:
        """Claim a job that no worker has started; None if there is none."""

    def n_done(self) -> int:
        """The number of finished jobs."""

    def in_flight(self) -> list[str]:
        """The names of claimed jobs, or of the workers that claimed them, whose workers are alive."""

    def requeue_dead(self, why: str = KILLED) -> object:
        """Make the jobs of dead workers available again; see `TuneStudy.requeue_dead`."""

    def is_waiting(self) -> bool:
        """Whether a requeued job has not been claimed yet."""


def work(
    queue: JobQueue,
    worker: str,
    look: Callable[[], None] = lambda: None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Claim and run jobs one after the other until there are none left.

    Args:
        is_wanted: called before each job; work ends if it returns False.

    Returns:
        False if a job was interrupted.
    """
    while is_wanted() and (job := queue.claim(worker)) is not None:
        if not job.run():
            return False
        look()
    return True
