"""Send what a run logs to trackers, each in a thread of its own: one that is slow or fails holds nothing up."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import msgspec
import numpy as np
from stable_baselines3.common.logger import Image

from marl_sb3.core.metrics.names import Result, finite_or_none, flatten
from marl_sb3.core.state.randomness import preserve_rng
from marl_sb3.errors import ConfigError, described, install_words
from marl_sb3.files.atomic import write_whole
from marl_sb3.files.paths import file_names
from marl_sb3.files.plain_yaml import parse_value
from marl_sb3.files.regular import read_regular
from marl_sb3.results.result_log import read_results
from marl_sb3.runs.files import to_yaml
from marl_sb3.runs.folder import TRACKING_FILE
from marl_sb3.runs.logs import IterationFormat, with_quantiles
from marl_sb3.runs.run import Run
from marl_sb3.runs.trackers import TRACKERS, Entry, Start, Tracker

_log = logging.getLogger(__name__)

OPEN_S = 30.0  # how long a training waits for a tracker before it begins
END_S = 60.0  # how long it waits at its end for a tracker that makes no progress
UNREACHED_S = 2.0  # and for one that has not answered at all
_MOST_WAITING = 10_000  # entries; a resume sends the tracker what it has missed


def trackers_of(track: str | Sequence[str] | None) -> list[str]:
    """Return the names in the setting `track`, without `tensorboard`, whose files every run writes."""
    names = [track] if isinstance(track, str) else track or ()
    return [name for name in dict.fromkeys(names) if name in TRACKERS]


def require_trackers(track: str | Sequence[str] | None) -> None:
    """Refuse trackers that are not installed, before anything is made.

    Raises:
        ConfigError: the message says how to install it.
    """
    for name in trackers_of(track):
        package = TRACKERS[name].package
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # a folder `wandb`, which W&B writes, looks like a package
            words = f"track {name} needs {package}, which is not installed; {install_words(name)}"
            raise ConfigError(words, key="track")


# --- What a tracker gets ---------------------------------------------------------------------------------------------


class TrackerOutput(IterationFormat):
    """Sends each iteration as an `Entry`.

    Args:
        name: of the tracker, also for the argument `exclude` of `logger.record`.
        send: called with each entry.
        folder: the run folder, where the films of `episode.media` are.
        most_agents: of more agents or policies, the metrics of each are sent as their quantiles, as for TensorBoard.
    """

    def __init__(self, name: str, send: Callable[[Entry], object], folder: Path, most_agents: int) -> None:
        super().__init__()
        self.name, self._send, self._folder, self._most_agents = name, send, folder, most_agents

    def _write_iteration(self, result: Result, recorded: dict[str, Any], step: int) -> None:
        values = {**recorded, **flatten(with_quantiles(result, self._most_agents))}
        pictures = {name: value for name, value in values.items() if isinstance(value, Image)}
        media = {name: name.removeprefix("env_runners/media/") for name in pictures}  # as a hook has named its film
        files = file_names([*media.values()], f"-{result.get('iteration', 0):06}.gif")
        films = {name: self._folder / "media" / files[medium] for name, medium in media.items()}
        films = {name: path for name, path in films.items() if path.is_file()}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray) and value.size > 1}
        samples = {name: value for name, value in arrays.items() if value.dtype.kind in "fiu"}
        pixels = {name: np.asarray(each.image) for name, each in pictures.items() if name not in films}
        self._send(Entry(step, _numbers(values), samples, pixels, films))


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return what is a finite number, or an array of one."""
    plain = {
        name: value.item() if getattr(value, "size", None) == 1 and hasattr(value, "item") else value
        for name, value in values.items()
    }
    numbers = {name: value for name, value in plain.items() if isinstance(value, (int, float, np.number))}
    return {name: value for name, value in finite_or_none(numbers).items() if value is not None}


def _missed(folder: Path, most_agents: int, after: int, until: int) -> Iterator[Entry]:
    """Yield what a run has logged after a step that its tracker does not have, in env steps."""
    for result in read_results(folder):
        step = result.get("num_env_steps_sampled_lifetime")
        if isinstance(step, int) and after < step <= until:
            yield Entry(step, _numbers(flatten(with_quantiles(result, most_agents))))


# --- What the run folder remembers -----------------------------------------------------------------------------------


class TrackingFile:
    """The file of a run folder that says in which run of each tracker it is, and which step that has got last.

    It names runs, but no addresses: where a tracker is, only its user says.

    Raises:
        ConfigError: the file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._lock = folder / TRACKING_FILE, threading.Lock()
        self._of: dict[str, dict[str, str | int]] = {}
        if not os.path.lexists(self._path):
            return
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            self._of = msgspec.json.decode(read_regular(self._path), type=dict[str, dict[str, str | int]])
            if all(
                [n for n, value in each.items() if isinstance(value, int)] == ["step"] for each in self._of.values()
            ):
                return
        raise ConfigError(f"{self._path} is damaged; without it, a run begins anew in its trackers", key="run")

    def of(self, name: str) -> tuple[dict[str, str], int]:
        """Return what a tracker has asked to remember, and the step that it has got last; {} and -1 at first."""
        entry: dict[str, Any] = dict(self._of.get(name, {}))
        return entry, entry.pop("step", -1)

    def remember(self, name: str, what: Mapping[str, str], step: int) -> None:
        """Replace what is remembered of a tracker."""
        with self._lock:
            self._of[name] = {**what, "step": step}
            write_whole(self._path, json.dumps(self._of, indent=1) + "\n")


# --- A thread for each tracker ---------------------------------------------------------------------------------------


class TrackerThread:
    """Calls one tracker in a thread, in order. After an error there is one warning, and it is not called any more.

    Args:
        tracker: is called in the thread alone.
        start: what the tracker gets when it is opened.
        file: of the run folder.
        missed: yields what was logged after a step and before this training.
        most_agents: see `TrackerOutput`.

    Attributes:
        output: of the run's logger, for the tracker.
        opened: set when the tracker is open, or has failed.
    """

    def __init__(
        self,
        tracker: Tracker,
        start: Start,
        file: TrackingFile,
        missed: Callable[[int], Iterator[Entry]],
        most_agents: int,
    ) -> None:
        self.output = TrackerOutput(tracker.name, self.log, start.folder, most_agents)
        self._tracker, self._start, self._file, self._missed = tracker, start, file, missed
        self._step = -1  # the last one that the tracker has got
        self._jobs: Queue[Callable[[], object]] = Queue()
        self.opened, self._ended, self._failed = threading.Event(), threading.Event(), threading.Event()
        self._done = 0  # jobs
        self._thread = threading.Thread(target=self._run, name=f"tracker {tracker.name}", daemon=True)
        self._thread.start()

    def log(self, entry: Entry) -> None:
        """Let the tracker log an iteration, unless it has that step from before a resume."""
        self._add(partial(self._log, entry))

    def save(self, path: Path) -> None:
        """Let the tracker keep a checkpoint, if it is still there when its turn comes."""
        self._add(partial(self._save, path))

    def close(self, *, failed: bool) -> None:
        """End the tracker's run and wait for it, as long as it makes progress."""

        def close() -> None:
            self._tracker.close(failed=failed)
            self._ended.set()

        self._add(close)
        limit_s = END_S if self.opened.is_set() else UNREACHED_S
        done, since_s = self._done, time.monotonic()
        while not self._ended.wait(0.05) and time.monotonic() - since_s < limit_s:
            if self._done > done:
                done, since_s = self._done, time.monotonic()
        if not self._ended.is_set():
            self._fail("no answer")

    def _add(self, job: Callable[[], object]) -> None:
        if self._failed.is_set():
            return
        if self._jobs.qsize() >= _MOST_WAITING:
            self._fail(f"{_MOST_WAITING:,} iterations wait for it")
        self._jobs.put(job)

    def _fail(self, why: str) -> None:
        if not self._failed.is_set():
            self._failed.set()
            words = "the training goes on without it; a resume sends what it has missed"
            _log.warning("%s: %s; %s", self._tracker.name, why, words)

    def _run(self) -> None:
        try:
            self._open()
            self.opened.set()
            while not (self._ended.is_set() or self._failed.is_set()):
                try:
                    job = self._jobs.get(timeout=1.0)
                except Empty:
                    continue
                job()
                self._done += 1
        except BaseException as error:  # of any kind, also SystemExit: a training must not end because of a tracker
            self._fail(" ".join(described(error).split())[:500])
            _log.debug("where %s failed", self._tracker.name, exc_info=error)
        finally:
            self.opened.set()
            self._ended.set()

    def _open(self) -> None:
        known, step = self._file.of(self._tracker.name)
        has = self._tracker.open(self._start, known)
        self._step = step if has is None else has
        self._file.remember(self._tracker.name, self._tracker.remembered, self._step)
        _log.info("%s: %s", self._tracker.name, self._tracker.place)
        for entry in self._missed(self._step):
            self._log(entry)

    def _log(self, entry: Entry) -> None:
        if entry.step <= self._step:
            return
        # Before it is sent: if the process is killed between the two, a step is missing rather than there twice.
        self._file.remember(self._tracker.name, self._tracker.remembered, entry.step)
        self._tracker.log(entry)
        self._step = entry.step

    def _save(self, path: Path) -> None:
        try:
            if path.is_dir():
                self._tracker.save(path)
        except OSError:
            if path.is_dir():  # otherwise it was removed meanwhile, since there are newer ones
                raise


# --- A run -----------------------------------------------------------------------------------------------------------


@contextmanager
def tracking(run: Run) -> Iterator[Sequence[TrackerThread]]:
    """Open the trackers of a run, and close them at its end. Nothing that they do or draw changes the training.

    Raises:
        ConfigError: what the run folder remembers of them is damaged.
    """
    folder, config, most_agents = run.folder, run.config, run.config.tensorboard_agents
    threads: list[TrackerThread] = []
    if names := trackers_of(config.track):
        (settings,) = parse_value(to_yaml(config)).values()
        start = Start(
            folder,
            f"{folder.parent.name}/{folder.name}",
            config.track_project,
            {"env": config.env, **settings},
            {"env": config.env, "algo": config.algo, "policies": config.named_policies},
        )
        file, missed = TrackingFile(folder), partial(_missed, folder, most_agents, until=run.algorithm.num_timesteps)
        with preserve_rng():
            threads = [TrackerThread(TRACKERS[name](), start, file, missed, most_agents) for name in names]
            until_s = time.monotonic() + OPEN_S
            for each in threads:
                each.opened.wait(max(0.0, until_s - time.monotonic()))
    failed = True
    try:
        yield threads
        failed = False
    finally:
        for each in reversed(threads):
            each.close(failed=failed)
