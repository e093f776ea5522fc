"""Train one configuration with several seeds: each in a process of its own, in a run folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from marl_sb3.core.envs import imported_modules
from marl_sb3.core.learners import available_cores
from marl_sb3.core.metrics import Result
from marl_sb3.files import write_whole
from marl_sb3.results import last_result
from marl_sb3.runs.files import to_yaml
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.start import resolve
from marl_sb3.signals import ENDS_WITH_INPUT

POLL_S = 0.2  # time between looks at the training runs
SETTINGS_FILE = "settings.yaml"
_DONE = 0  # exit code of the command
_INTERRUPTED = (130, -signal.SIGTERM)  # by a signal while it trained, or while it started


@dataclass
class SeedRun:
    """The training with one seed."""

    seed: int
    folder: Path  # its run folder, absolute
    shown: Path  # its run folder for messages and commands to copy
    exit_code: int | None = None  # of its process; None while it has not ended
    result: Result | None = None  # the metrics of the last iteration, if the training is done
    process: subprocess.Popen[bytes] | None = None

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
        self.at_once = max(1, min(len(seeds), available_cores() // max(1, of_one)))
        self._command = [sys.executable, "-m", "marl_sb3.train", "--hparams", str(self.path / SETTINGS_FILE)]
        self._command += ["--env", config.env, "--quiet", "--trust-file", *(["--trust-pickle"] if trust_pickle else [])]
        self._command += [f"--import={module}" for module in imported_modules()]
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
        waiting = list(self.runs)
        # Only this process can write to this pipe, whose end tells the trainings that it has ended, or was killed.
        pipe, kept_open = os.pipe()
        try:
            while waiting or self._running():
                while waiting and len(self._running()) < self.at_once:
                    self._start(waiting.pop(0), pipe)
                time.sleep(POLL_S)
                self._note_ends(on_end)
                watch()
        except BaseException:
            self._stop()
            self._note_ends(on_end)
            raise
        finally:
            os.close(pipe)
            os.close(kept_open)

    def _running(self) -> list[tuple[SeedRun, subprocess.Popen[bytes]]]:
        return [(run, run.process) for run in self.runs if run.process is not None and run.exit_code is None]

    def _start(self, run: SeedRun, pipe: int) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        cores = str(max(1, available_cores() // self.at_once))
        with run.log.open("wb") as log:
            run.process = subprocess.Popen(
                [*self._command, "--seed", str(run.seed), "--run-dir", str(run.folder)],
                stdout=log,
                stderr=log,
                stdin=pipe,
                env={**os.environ, "OMP_NUM_THREADS": cores, "PYTHONPATH": paths, ENDS_WITH_INPUT: "1"},
                start_new_session=True,  # Ctrl-C reaches only this process, which ends them
            )

    def _note_ends(self, on_end: Callable[[SeedRun], None]) -> None:
        for run, process in self._running():
            run.exit_code = process.poll()
            if run.exit_code is None:
                continue
            if run.is_done:
                run.result = last_result(run.folder)
            if run.is_done or run.is_interrupted:
                run.log.unlink(missing_ok=True)
            on_end(run)

    def _stop(self) -> None:
        """End the training runs: each finishes its iteration and saves. A second Ctrl-C ends them at once."""
        processes = [process for _, process in self._running()]
        try:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait()
        except KeyboardInterrupt:
            for process in processes:
                process.kill()
                process.wait()

    def progress(self) -> str:
        """Return how far each of the running ones is, on one line."""
        results = {run.seed: last_result(run.folder) or {} for run, _ in self._running()}
        steps = [f"seed {seed}: {each.get('num_env_steps_sampled_lifetime', 0):,}" for seed, each in results.items()]
        return f"env steps of {self.config.n_timesteps:,}: {', '.join(steps)}"
