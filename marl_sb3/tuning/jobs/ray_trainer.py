"""Train the runs of a search on a Ray cluster; in the end every run folder is on this machine."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.config import TrainConfig
from marl_sb3.config.ray import RaySettings
from marl_sb3.envs.registry import EnvFactory, imported_modules
from marl_sb3.errors import ConfigError
from marl_sb3.metrics import Result
from marl_sb3.processes.messages import unpacked_error
from marl_sb3.processes.pool import differing
from marl_sb3.processes.ray import Connection
from marl_sb3.runs.folder import RunFolder, read_results
from marl_sb3.training.callback import TrainingCallback
from marl_sb3.tuning.jobs.remote import Desk, Outcome, process_versions, train_remotely, unpack
from marl_sb3.tuning.jobs.training import TrainedRun, TrainerLostError

_POLL_S = 0.2


@dataclass(frozen=True)
class FetchedRun:
    """A run that was trained on the cluster; see `TrainedRun`."""

    files: RunFolder
    result: Mapping[str, Any] | None
    checkpoint: str | None
    interrupted: bool

    @property
    def results(self) -> list[Result]:
        """The metrics of all iterations."""
        return read_results(self.files.path)


class RayTrainer:
    """Trains runs on a Ray cluster.

    Args:
        settings: `runners` is the number of trainings at the same time.

    Raises:
        ConfigError: there is no such cluster, it has other versions, or it gives no process the CPUs.
    """

    def __init__(self, settings: RaySettings) -> None:
        self._end_by_s: float | None = None  # None: trainings go on
        self._connection = Connection(settings, settings.runners or 1)
        self._ray = self._connection.ray
        self._options = {**self._connection.options, "max_retries": 0}
        try:
            self._require_processes(settings)
            self._desk = self._ray.remote(Desk).options(**self._of_desk()).remote()
        except BaseException:
            self.close()
            raise

    def _require_processes(self, settings: RaySettings) -> None:
        asked = self._ray.remote(process_versions).options(**self._options).remote()
        try:
            fault = differing(self._ray.get(asked, timeout=settings.start_timeout_s))
        except self._ray.exceptions.GetTimeoutError as error:
            raise ConfigError(
                f"no process has started within {settings.start_timeout_s:g} s; accepted: at most the CPUs of a node "
                f"for each trial, not {settings.num_cpus:g}",
                key="ray",
            ) from error
        except self._ray.exceptions.RayError as error:
            raise ConfigError(f"a process of the cluster cannot start: {error}", key="ray") from error
        if fault is not None:
            raise ConfigError(f"a process of the cluster has {fault}", key="ray")

    def _of_desk(self) -> dict[str, Any]:
        """Ray's options of the desk: it is on this machine, whose end would end the search in any case."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        return {"num_cpus": 0, "scheduling_strategy": here, "max_restarts": -1, "max_task_retries": -1}

    @property
    def is_stopped(self) -> bool:
        """Whether trainings are to end."""
        return self._end_by_s is not None

    def stop(self, grace_s: float) -> None:
        """Interrupt all trainings after their running iteration; kill them if they need longer than `grace_s`."""
        self._end_by_s = time.monotonic() + grace_s

    def train(
        self, config: TrainConfig, folder: Path, factory: EnvFactory | None, callbacks: Sequence[BaseCallback]
    ) -> TrainedRun:
        """See `Train`; callbacks are called here, with the results of evaluations."""
        job = secrets.token_hex(8)
        remote = self._ray.remote(train_remotely).options(**self._options)
        training = remote.remote(config, factory, self._desk, job, imported_modules())
        watching = [each for each in callbacks if isinstance(each, TrainingCallback)]
        is_asked_to_end = False
        while not self._ray.wait([training], timeout=_POLL_S)[0]:
            if self._end_by_s is not None and not is_asked_to_end:
                self._ray.cancel(training, recursive=False)  # as Ctrl-C in its process
                is_asked_to_end = True
            if self._end_by_s is not None and time.monotonic() > self._end_by_s:
                self._ray.cancel(training, force=True)
            self._answer(job, watching)
        outcome = self._outcome(training)
        return FetchedRun(RunFolder(folder), None, None, True) if outcome is None else _fetched(outcome, folder)

    def _answer(self, job: str, watching: Sequence[TrainingCallback]) -> None:
        result = self._ray.get(self._desk.question.remote(job))
        if result is not None:
            answers = [each.on_iteration_end(result) for each in watching]
            self._ray.get(self._desk.answer.remote(job, all(answers)))

    def _outcome(self, training: Any) -> Outcome | None:
        """Return what a training has sent; None if it was killed because the search ends."""
        try:
            outcome: Outcome = self._ray.get(training)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            if self.is_stopped:
                return None
            raise TrainerLostError(f"the process of the cluster has ended: {type(error).__name__}") from error
        return outcome

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _fetched(outcome: Outcome, folder: Path) -> FetchedRun:
    shutil.rmtree(folder, ignore_errors=True)  # left by a process that has died
    unpack(outcome.folder, folder)
    if outcome.error is not None:
        raise unpacked_error(outcome.error)
    return FetchedRun(RunFolder(folder), outcome.result, outcome.checkpoint, outcome.interrupted)
