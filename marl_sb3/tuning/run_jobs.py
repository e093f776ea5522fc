"""Do all jobs of a study: by worker processes, or in this one where no other can import the env."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from marl_sb3.envs.registry import importable_id
from marl_sb3.errors import ConfigError
from marl_sb3.tuning.jobs import JobQueue, work
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.workers import POLL_S, Workers

_log = logging.getLogger(__name__)


def run_jobs(study: TuneStudy, queue: JobQueue, workers: int, look: Callable[[], None]) -> None:
    """Do jobs until there are none left; killed workers are replaced, and their jobs requeued.

    Args:
        study: what the jobs are of.
        queue: the jobs.
        workers: processes; each gets its share of the cores.
        look: called twice a second, and at the end.

    Raises:
        ConfigError: another process is running this study, or the workers cannot import the env.
        SearchError: worker processes cannot be started.
        KeyboardInterrupt: passed on, when the workers have ended.
    """
    with study_lock(study.folder):
        if workers == 1 and importable_id(study.search.env, study.factory) is None:
            work_here(study, queue, look)
        else:
            _work_in_processes(study, queue, workers, look)
        look()


@contextmanager
def study_lock(folder: Path) -> Iterator[None]:
    """While it lasts, no other process runs the study of this folder.

    Raises:
        ConfigError: another one does.
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
    """Do all jobs in this process; see `run_jobs`."""
    name = f"here-{os.getpid()}-{secrets.token_hex(2)}"
    with study.working(name):
        if not work(queue, name, look):
            raise KeyboardInterrupt


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
