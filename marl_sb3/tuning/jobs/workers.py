"""Worker processes of a study: start them, replace dead ones, and end them together."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from marl_sb3.envs.registry import importable_id, imported_modules
from marl_sb3.errors import ConfigError, MarlSb3Error
from marl_sb3.learners.threads import available_cores
from marl_sb3.tuning.jobs.queue import JobQueue
from marl_sb3.tuning.search import STORAGE_VARIABLE
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial import INTERRUPTED

IMPORTS_VARIABLE = "MARL_SB3_IMPORT"  # tells workers the modules after `--import`, separated by commas
EXIT_DISK_FULL = 28  # exit code of a worker: ENOSPC

POLL_S = 0.5  # time between checks of the workers
_MAX_DEATHS = 3  # of workers in a row while no job is finished
GRACE_S = 30  # time to finish an iteration before a worker is killed

_numbers = itertools.count()  # make the names of all workers of this process unique


class SearchError(MarlSb3Error, RuntimeError):
    """A search cannot continue: its workers end at once, every trial fails, or the disk is full."""


class Workers:
    """A fixed number of worker processes that divide the cores among them.

    Args:
        queue: the jobs; dead workers are replaced while jobs get finished.
    """

    def __init__(self, study: TuneStudy, count: int, queue: JobQueue) -> None:
        env, path = study.search.env, importable_id(study.search.env, study.factory)
        if path is None:
            words = f"env {env!r} cannot be imported by {count} worker processes"
            raise ConfigError(f"{words}; accepted: a class or function of a module, or one worker", key="env")
        self._folder = study.folder / "workers"
        module = [sys.executable, "-m", "marl_sb3.tuning.jobs.worker"]
        self._command = [*module, str(os.getpid()), str(study.folder), env, path]
        self._queue = queue
        self._environment = _environment(max(1, available_cores() // count), study.search.storage)
        self._count = count
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._deaths = 0
        self._done = 0  # finished jobs when the latest worker died

    def run(self, watch: Callable[[], None]) -> None:
        """Start the workers and wait until all have ended because there are no jobs left.

        Args:
            watch: called twice a second.

        Raises:
            SearchError: workers die repeatedly, or the disk is full.
            KeyboardInterrupt: raised again after all workers have ended.
        """
        try:
            for _ in range(self._count):
                self._start()
            while self._running:
                time.sleep(POLL_S)
                watch()
                self._replace_dead()
        finally:
            self._stop()

    def _start(self) -> None:
        name = f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        self._folder.mkdir(exist_ok=True)
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                [*self._command, name, *self._queue.arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,  # Ctrl-C reaches only the search, which ends the workers
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _replace_dead(self) -> None:
        for name, process in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[name]
            if process.returncode == EXIT_DISK_FULL:
                raise SearchError(
                    f"no space left on the disk of {self._folder.parent}; free some, then continue the study"
                )
            if process.returncode != 0:
                self._queue.requeue_dead()
                self._require_progress(name, process.returncode)
                self._start()

    def _require_progress(self, name: str, returncode: int) -> None:
        done = self._queue.n_done()
        self._deaths = 1 if done > self._done else self._deaths + 1
        self._done = done
        if self._deaths > _MAX_DEATHS:
            last = self._log(name).read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            words = f"worker processes end with {returncode} again and again"
            raise SearchError(f"{words}, the last one saying {last!r}; see {self._log(name)}")

    def _stop(self) -> None:
        """End the workers that still run: each finishes its iteration, and its job is requeued."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + GRACE_S
        try:
            for process in self._running.values():
                process.wait(max(0.0, deadline_s - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C ends the wait
            for process in self._running.values():
                process.kill()
                process.wait()
        if self._running:
            self._running.clear()
            self._queue.requeue_dead(INTERRUPTED)


def _environment(cores: int, storage: str | None) -> dict[str, str]:
    """The environment of a worker: its threads, the import path, the modules to import and the URL of the storage."""
    paths = [path for path in sys.path if path]
    environment = {**os.environ, "OMP_NUM_THREADS": str(cores), "PYTHONPATH": os.pathsep.join(paths)}
    environment[IMPORTS_VARIABLE] = ",".join(imported_modules())
    environment.pop(STORAGE_VARIABLE, None)
    if storage is not None:
        environment[STORAGE_VARIABLE] = storage
    return environment
