"""A benchmark from its start to its end: processes that work on it, and what is shown meanwhile."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from marl_sb3.core.config.values import counted
from marl_sb3.core.learners.learner import available_cores
from marl_sb3.errors import MarlSb3Error
from marl_sb3.extensions.display.tables import progress_bars
from marl_sb3.extensions.remote.processes.worker import ending
from marl_sb3.results.result_log import last_result
from marl_sb3.runs.jobs import Jobs
from marl_sb3.tools.benchmarking.outcome import how_it_ended
from marl_sb3.tools.benchmarking.plan import Benchmark, Training
from marl_sb3.tools.benchmarking.working import Claims

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress, TaskID

POLL_S = 0.5  # time between looks at the trainings
_numbers = itertools.count()  # make the names of all logs of this process unique


class WorkersEndError(MarlSb3Error, RuntimeError):
    """The processes that work on a benchmark end at once, again and again."""


def run_benchmark(
    benchmark: Benchmark, processes: int | None, options: Sequence[str], say: Callable[[str], None], *, quiet: bool
) -> None:
    """Train everything in processes of this machine; processes elsewhere may work in the same folder.

    Args:
        processes: None: as many as there are cores.
        options: of `python -m marl_sb3.benchmark FILE`, for each process.
        say: prints a line.
        quiet: show no bars.

    Raises:
        ConfigError: a setting does not fit; nothing is trained then.
        WorkersEndError: see there.
        KeyboardInterrupt: raised again after all trainings of this machine have saved and ended.
    """
    benchmark.begin()
    waiting = benchmark.open()
    at_once = max(1, min(processes or available_cores(), len(waiting)))
    done = len(benchmark.trainings) - len(waiting)
    say(f"{counted(len(benchmark.trainings), 'training')}, {done} done, {at_once} at a time; folder: {benchmark.shown}")
    if not waiting:
        return
    jobs = Jobs(at_once)
    bars = progress_bars()
    bars.disable = bars.disable or quiet
    with bars:
        # Bars would draw over lines that go another way.
        look = _ProgressView(
            benchmark, waiting, bars, say if bars.disable else partial(bars.console.print, soft_wrap=True)
        )
        jobs.run([partial(_keep_working, jobs, benchmark, options)] * at_once, look, POLL_S)
        look()


def _keep_working(jobs: Jobs, benchmark: Benchmark, options: Sequence[str]) -> None:
    """Have a process work while there is something to do, and wait while only others have something to do."""
    claims, logs = Claims(), benchmark.folder / "workers"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}.log"
    arguments = [benchmark.file, "--folder", str(benchmark.folder), "--worker", *options]
    while not jobs.is_ending and (before := benchmark.open()):
        if not any(map(claims.may_claim, before)):
            time.sleep(POLL_S)
            continue
        code = jobs.run_command("benchmark", arguments, log, "ab")
        has_worked = not code or len(benchmark.open()) < len(before)
        if (words := jobs.note_end(log, None if has_worked else ending(code))) is not None:
            raise WorkersEndError(words)


class _ProgressView:
    """Shows how far the trainings are: a line for each that has ended, and bars on a terminal."""

    def __init__(
        self, benchmark: Benchmark, waiting: Sequence[Training], bars: Progress, say: Callable[[str], None]
    ) -> None:
        self._waiting, self._bars, self._say = list(waiting), bars, say
        number = len(benchmark.trainings)
        self._all = bars.add_task("trainings", total=number, completed=number - len(waiting))
        self._running: dict[Training, TaskID] = {}

    def __call__(self) -> None:
        """Look once."""
        for training in [each for each in self._waiting if not each.is_open]:
            self._waiting.remove(training)
            if training in self._running:
                self._bars.remove_task(self._running.pop(training))
            self._bars.advance(self._all)
            self._say(how_it_ended(training))
        if self._bars.disable:
            return
        for training in self._waiting:
            result = last_result(training.folder)
            steps = (result or {}).get("num_env_steps_sampled_lifetime")
            if isinstance(steps, int):
                if training not in self._running:
                    steps_in_all = training.config.n_timesteps
                    self._running[training] = self._bars.add_task(str(training), total=steps_in_all, unit="env steps")
                self._bars.update(self._running[training], completed=steps)
