"""Run a search: check everything, start worker processes, watch them, and tell how it goes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock, Timeout

from marl_sb3.errors import ConfigError, MarlSb3Error
from marl_sb3.experiment import metric_names
from marl_sb3.tuning.search import Search, read_search
from marl_sb3.tuning.study import StudyOfTrials

_POLL_S = 0.5
_MAX_DEATHS = 3  # of workers in a row without a finished trial in between

Watcher = Callable[[StudyOfTrials], None]


class SearchError(MarlSb3Error, RuntimeError):
    """Worker processes end as soon as they are started; the message says where their last words are."""


def study_folder(env: str, name: str, root: Path = Path("runs")) -> Path:
    """Where a study is kept: `runs/tune/<env>/<name>`."""
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in env)
    return root / "tune" / safe / name


def new_name() -> str:
    """A name for a study that has none: UTC time and 4 hex digits."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def open_study(search: Search, folder: Path) -> StudyOfTrials:
    """Check a search, and begin it or go on with it.

    Raises:
        ConfigError: a setting, a range, the objective or the budget is wrong, the storage cannot be opened, or the
            folder holds a study of something else; nothing has been run then.
    """
    before = read_search(folder, search.env)
    if before is not None:
        other = before.same_as(search)
        if other:
            raise ConfigError(
                f"study {search.name!r} exists with another {', '.join(other)}; accepted: another --study name, or "
                f"what {folder / 'study.yaml'} says",
                key="study",
            )
    _check(search)
    search.write(folder)
    study = StudyOfTrials(search, folder)
    study.begin()
    return study


def _check(search: Search) -> None:
    """Build the first trial and those at the ends of all ranges, without running them."""
    space, objective = search.parsed_space(), search.parsed_objective()
    if search.sampler == "grid" and any(parameter.kind != "choices" for parameter in space.parameters):
        open_ended = [parameter.name for parameter in space.parameters if parameter.kind != "choices"]
        raise ConfigError(f"a grid needs choices; {', '.join(open_ended)} has a range", key="sampler")
    for settings in space.corners():
        config = search.trial_config(settings, seed=0)
        try:
            objective.require_known(metric_names(config))
        except ConfigError as error:
            shown = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise ConfigError(f"{error} (in a trial with {shown})", key=error.key) from error


def run_search(study: StudyOfTrials, workers: int = 1, watch: Watcher | None = None) -> None:
    """Run trials until there are none left; killed workers are replaced, and their trials tried once again.

    Args:
        study: from `open_study`.
        workers: processes; each gets its share of the cores.
        watch: called twice a second, and at the end.

    Raises:
        ConfigError: another process is running this study.
        SearchError: workers cannot be started.
        KeyboardInterrupt: passed on, when the workers have ended.
    """
    try:
        with FileLock(study.folder / ".search.lock").acquire(timeout=0):
            _Workers(study, workers).run(watch or (lambda _: None))
    except Timeout:
        raise ConfigError(f"{study.folder} is in use: another process is running this study", key="study") from None


class _Workers:
    """The worker processes of a search."""

    def __init__(self, study: StudyOfTrials, count: int) -> None:
        self._study = study
        self._count = count
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._deaths = 0
        self._finished = 0  # trials, when the latest worker died

    def run(self, watch: Watcher) -> None:
        try:
            for _ in range(self._count):
                self._start()
            while self._running:
                time.sleep(_POLL_S)
                watch(self._study)
                self._look_after()
            watch(self._study)
        finally:
            self._stop()

    def _start(self) -> None:
        name = f"{os.getpid()}-{self._started}"
        self._started += 1
        search, folder = self._study.search, self._study.folder
        command = [sys.executable, "-m", "marl_sb3.tuning.worker", str(folder), name, search.env]
        share = max(1, _cores() // self._count)
        (folder / "workers").mkdir(exist_ok=True)
        with (folder / "workers" / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": str(share)},
                start_new_session=True,  # Ctrl-C is for the search, which passes it on
            )

    def _look_after(self) -> None:
        """Replace workers that died, and take back what they were at."""
        for name, process in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[name]
            if process.returncode != 0:
                self._replace(name, process.returncode)

    def _replace(self, name: str, returncode: int) -> None:
        self._study.take_back()
        finished = sum(trial.state.is_finished() for trial in self._study.trials())
        self._deaths = 1 if finished > self._finished + 1 else self._deaths + 1
        self._finished = finished
        if self._deaths > _MAX_DEATHS:
            log = self._study.folder / "workers" / f"{name}.log"
            raise SearchError(f"worker processes end with {returncode} again and again; see {log}")
        self._start()

    def _stop(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._running:
            self._study.take_back()


def _cores() -> int:
    from marl_sb3.learners.threads import available_cores

    return available_cores()
