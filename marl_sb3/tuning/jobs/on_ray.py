"""Run the jobs of a search on a Ray cluster; the study stays on this machine.

Each worker is a thread of this process: it claims a job, sends the training to the cluster, and stores the outcome.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from marl_sb3.tuning.jobs.queue import JobQueue, work
from marl_sb3.tuning.jobs.ray_trainer import RayTrainer
from marl_sb3.tuning.jobs.workers import GRACE_S
from marl_sb3.tuning.study import TuneStudy

_POLL_S = 0.2


def work_on_ray(study: TuneStudy, queue: JobQueue, trainer: RayTrainer, workers: int, look: Callable[[], None]) -> None:
    """Run all jobs of a queue on a cluster.

    Args:
        workers: number of trainings at the same time.
        look: called several times a second.

    Raises:
        KeyboardInterrupt: raised again after all trainings have been interrupted; a second one kills them.
    """
    queue.train = trainer.train
    threads = [_Worker(study, queue, trainer) for _ in range(workers)]
    try:
        queue.requeue_dead()
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(_POLL_S)
            look()
    except BaseException:
        _interrupt(trainer, [thread for thread in threads if thread.ident is not None])
        raise
    for thread in threads:
        if thread.error is not None:
            raise thread.error


def _interrupt(trainer: RayTrainer, threads: Sequence[threading.Thread]) -> None:
    """Interrupt the trainings, and wait until the threads have stored what came of them."""
    for grace_s in (GRACE_S, 0.0):
        trainer.stop(grace_s)
        with suppress(KeyboardInterrupt):  # a second Ctrl-C kills the trainings
            for thread in threads:
                thread.join()


class _Worker(threading.Thread):
    """Claims jobs one after the other until there are none left.

    Attributes:
        error: what ended it; None if nothing did.
    """

    def __init__(self, study: TuneStudy, queue: JobQueue, trainer: RayTrainer) -> None:
        super().__init__(daemon=True)
        self._study, self._queue, self._trainer = study, queue, trainer
        self.error: BaseException | None = None

    def run(self) -> None:
        """Work."""
        name = f"ray-{os.getpid()}-{secrets.token_hex(2)}"
        try:
            with self._study.working(name):
                work(self._queue.of_thread(), name, is_wanted=lambda: not self._trainer.is_stopped)
        except BaseException as error:  # raised again in the main thread
            self.error = error
            self._trainer.stop(GRACE_S)
