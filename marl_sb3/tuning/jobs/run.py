"""Run all jobs of a queue in worker processes, or in this process if no other can import the env."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from marl_sb3.envs.registry import importable_id
from marl_sb3.errors import ConfigError
from marl_sb3.tuning.jobs.queue import JobQueue, work
from marl_sb3.tuning.jobs.workers import POLL_S, Workers
from marl_sb3.tuning.study import TuneStudy

if TYPE_CHECKING:
    from marl_sb3.tuning.jobs.ray_trainer import RayTrainer

_log = logging.getLogger(__name__)


def run_jobs(
    study: TuneStudy, queue: JobQueue, workers: int, look: Callable[[], None], trainer: RayTrainer | None = None
) -> None:
    """Run jobs until none are left; killed workers are replaced, and their jobs requeued.

    Args:
        workers: the number of processes; the cores are divided among them.
        look: called twice a second and at the end.
        trainer: trains `workers` runs at a time on a cluster; None: worker processes of this machine do.

    Raises:
        ConfigError: another process is running this study, or workers cannot import the env.
        KeyboardInterrupt: raised again after all workers have ended.
    """
    with study_lock(study.folder):
        if trainer is not None:
            _work_on_ray(study, queue, trainer, workers, look)
        elif workers == 1 and importable_id(study.search.env, study.factory) is None:
            work_here(study, queue, look)
        else:
            _work_in_processes(study, queue, workers, look)
        look()


@contextmanager
def study_lock(folder: Path) -> Iterator[None]:
    """Keep other processes from running the study of this folder.

    Raises:
        ConfigError: another process is running it.
    """
    lock = FileLock(folder / ".search.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"{folder} is in use: another process is running this study", key="study") from None
    try:
        yield
    finally:
        lock.release()


def work_here(study: TuneStudy, queue: JobQueue, look: Callable[[], None]) -> None:
    """Run all jobs in this process; see `run_jobs`."""
    name = f"here-{os.getpid()}-{secrets.token_hex(2)}"
    with study.working(name):
        if not work(queue, name, look):
            raise KeyboardInterrupt


def _work_on_ray(
    study: TuneStudy, queue: JobQueue, trainer: RayTrainer, workers: int, look: Callable[[], None]
) -> None:
    from marl_sb3.tuning.jobs.on_ray import work_on_ray

    while True:
        work_on_ray(study, queue, trainer, workers, look)
        if not queue.is_waiting():
            return


def _work_in_processes(study: TuneStudy, queue: JobQueue, count: int, look: Callable[[], None]) -> None:
    pool = Workers(study, count, queue)
    while True:
        pool.run(look)
        if at_work := queue.in_flight():
            _log.warning("waiting for workers of a search that was killed: %s", ", ".join(at_work))
        while queue.in_flight():
            time.sleep(POLL_S)
            look()
        queue.requeue_dead()
        if not queue.is_waiting():
            return
