"""Several trainings at a time: jobs that end together, and one configuration with several seeds."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from marl_sb3.core.envs.registry import imported_modules
from marl_sb3.core.learners.learner import available_cores
from marl_sb3.core.metrics.names import Result
from marl_sb3.files.atomic import write_whole
from marl_sb3.files.regular import last_line, open_regular
from marl_sb3.results.result_log import last_result
from marl_sb3.runs.files import to_yaml
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.start import resolve
from marl_sb3.signals import ENDS_WITH_INPUT
from marl_sb3.systems import ENDED_BY_SIGNAL, apart, ask_to_end

POLL_S = 0.2  # time between looks at the training runs
MOST_DEATHS = 3  # of processes in a row that take the place of one another
SETTINGS_FILE = "settings.yaml"
_DONE = 0  # exit code of the command
_INTERRUPTED = (130, *ENDED_BY_SIGNAL)  # by a signal while it trained, or while it started


class Jobs:
    """Jobs of this process, so many at a time, each in a thread that waits for the process that does it.

    All of them end together.

    Args:
        at_once: how many; the cores are divided among them.
        grace_s: how long trainings may take to finish their iterations if the jobs end before they do.

    Attributes:
        at_once: as given.
        cores: threads that each of the processes may use.
        is_ending: whether no other job should begin.
    """

    def __init__(self, at_once: int, grace_s: float = math.inf) -> None:
        self.at_once, self.cores = at_once, max(1, available_cores() // at_once)
        self.is_ending = False
        self._grace_s, self._kill_at_s = grace_s, math.inf
        self._deaths: Counter[Path] = Counter()  # of processes in a row that write to a log
        self._pipe = -1  # which has an end when this process does; see `end_with_parent`

    def run(self, jobs: Sequence[Callable[[], None]], look: Callable[[], None], poll_s: float) -> None:
        """Do all jobs. If one of them fails, or `look`, the trainings of the others are ended.

        Args:
            look: called so often in this thread.

        Raises:
            KeyboardInterrupt: raised again after all trainings have ended; a second one kills them.
        """
        self._pipe, kept_open = os.pipe()
        working: list[Future[None]] = []
        try:
            with ThreadPoolExecutor(self.at_once) as threads:
                try:
                    working += [threads.submit(self._do, job) for job in jobs]
                    while wait(working, poll_s).not_done:
                        look()
                except BaseException:
                    for grace_s in (self._grace_s, 0.0):
                        self._end(grace_s)
                        with suppress(KeyboardInterrupt):
                            wait(working)
                    raise
        finally:
            os.close(self._pipe)
            os.close(kept_open)
        for done in working:
            done.result()

    def _do(self, job: Callable[[], None]) -> None:
        try:
            if not self.is_ending:
                job()
        except BaseException:
            self._end(self._grace_s)
            raise

    def _end(self, grace_s: float) -> None:
        self.is_ending, self._kill_at_s = True, time.monotonic() + grace_s

    def ender(self, end: Callable[[bool], object]) -> Callable[[], None]:
        """Return what a job calls again and again while it waits for its training.

        Args:
            end: called once to interrupt the training, with False, and once to kill it, with True.
        """
        done: list[bool] = []

        def look() -> None:
            kills = time.monotonic() > self._kill_at_s
            if self.is_ending and kills not in done:
                done.append(kills)
                end(kills)

        return look

    def run_command(self, name: str, arguments: Sequence[str], log: Path, mode: str = "wb") -> int:
        """Wait for a command in a process of its own, which ends with the jobs or with this process.

        Args:
            name: of the command, such as `train`.
            log: gets what it prints; opened with `mode`.

        Returns:
            Its exit code; negative for a signal.
        """
        paths = os.pathsep.join(path for path in sys.path if path)
        with open(log, mode, opener=open_regular) as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", f"marl_sb3.{name}", *arguments),
                    *(f"--import={module}" for module in imported_modules()),
                ],
                stdout=output,
                stderr=output,
                stdin=self._pipe,
                env={**os.environ, "OMP_NUM_THREADS": str(self.cores), "PYTHONPATH": paths, ENDS_WITH_INPUT: "1"},
                **apart(),  # Ctrl-C reaches only this process, which ends them
            )
        end_if_wanted = self.ender(lambda kills: process.kill() if kills else ask_to_end(process))
        while (code := process.poll()) is None:
            end_if_wanted()
            time.sleep(POLL_S)
        return code

    def note_end(self, log: Path, how: str | None) -> str | None:
        """Note how the process of a job has ended; returns in words that too many have died in a row; else None.

        Args:
            log: of the process, and of those that take its place.
            how: it has died before its work was done; None: it has done its work.
        """
        self._deaths[log] = 0 if how is None else self._deaths[log] + 1
        if self._deaths[log] <= MOST_DEATHS or self.is_ending:
            return None
        return f"worker processes end with {how} again and again, the last one saying {last_line(log)!r}; see {log}"


# --- Seeds ------------------------------------------------------------------------------------------------------------


@dataclass
class SeedRun:
    """The training with one seed."""

    seed: int
    folder: Path  # its run folder, absolute
    shown: Path  # its run folder for messages and commands to copy
    exit_code: int | None = None  # of its process; None while it has not ended
    result: Result | None = None  # the metrics of the last iteration, if the training is done
    is_running: bool = False  # whether it has begun, and has not ended

    @property
    def log(self) -> Path:
        """What its process has printed, if the training was not just done."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def is_done(self) -> bool:
        """Whether it was trained to its end."""
        return self.exit_code == _DONE

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal ended it."""
        return self.exit_code in _INTERRUPTED


class SeedRuns:
    """Trainings of one configuration with several seeds, as many at a time as there are cores.

    Each is `python -m marl_sb3.train --hparams settings.yaml --seed S --run-dir seed-S`: an ordinary run, equal to one
    that is trained alone.

    Args:
        config: of the command line; everything is checked before anything is written.
        run_dir: the folder of the runs; None: a new one, as for a run.
        trust_pickle: see `prepare`.

    Attributes:
        path: the folder of the runs, absolute: an env may change the working folder.
        shown: the folder as the user gave it, for messages.
        config: the resolved configuration, with one of the seeds.
        runs: a training run for each seed.
        jobs: those that train.

    Raises:
        ConfigError: a setting does not fit, or the folder is not empty.
    """

    def __init__(
        self,
        config: TrainConfig,
        seeds: Sequence[int],
        run_dir: str | Path | None = None,
        *,
        trust_pickle: bool = False,
    ) -> None:
        files = RunFolder.new(config.env, run_dir)
        self.path, self.shown = files.path, files.shown
        self.config = resolve(config.changed({"seed": seeds[0]}), trust_pickle=trust_pickle)
        self.runs = [SeedRun(seed, self.path / f"seed-{seed}", self.shown / f"seed-{seed}") for seed in seeds]
        of_one = config.n_workers if isinstance(config.n_workers, int) else available_cores()
        self.jobs = Jobs(max(1, min(len(seeds), available_cores() // max(1, of_one))))
        self._arguments = ["--hparams", str(self.path / SETTINGS_FILE), "--env", config.env, "--quiet", "--trust-file"]
        self._arguments += ["--trust-pickle"] if trust_pickle else []
        # The processes divide the cores among them, which decides how many policies each updates at a time.
        shared = {"seed": None, "n_parallel_updates": config.n_parallel_updates}
        self._settings = to_yaml(self.config.changed(shared))

    def execute(
        self, on_end: Callable[[SeedRun], None] = lambda run: None, watch: Callable[[], None] = lambda: None
    ) -> None:
        """Train with all seeds; one that fails does not end the others.

        Args:
            on_end: called when a training run has ended.
            watch: called several times a second.

        Raises:
            KeyboardInterrupt: raised again after all training runs have saved and ended.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.path / SETTINGS_FILE, self._settings)
        self.jobs.run([partial(self._train, run, on_end) for run in self.runs], watch, POLL_S)

    def _train(self, run: SeedRun, on_end: Callable[[SeedRun], None]) -> None:
        """Wait for the training with one seed; it ends as a command does."""
        run.is_running = True
        arguments = [*self._arguments, "--seed", str(run.seed), "--run-dir", str(run.folder)]
        run.exit_code = self.jobs.run_command("train", arguments, run.log)
        run.is_running = False
        if run.is_done:
            run.result = last_result(run.folder)
        if run.is_done or run.is_interrupted:
            run.log.unlink(missing_ok=True)
        on_end(run)

    def progress(self) -> str:
        """Return how far each of the running ones is, on one line."""
        results = {run.seed: last_result(run.folder) or {} for run in self.runs if run.is_running}
        steps = [f"seed {seed}: {each.get('num_env_steps_sampled_lifetime', 0):,}" for seed, each in results.items()]
        return f"{', '.join(steps)} of {self.config.n_timesteps:,} env steps"
