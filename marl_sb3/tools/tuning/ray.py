"""Run the jobs of a search on a Ray cluster; the study stays on this machine.

A process of the cluster trains each job. In the end every run folder is on this machine.
"""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from marl_sb3.core.envs.registry import import_modules, imported_modules
from marl_sb3.core.metrics.names import Result
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.remote.processes.messages import Failed, known_error
from marl_sb3.extensions.remote.processes.pool import differing, versions
from marl_sb3.extensions.remote.processes.ray import Connection
from marl_sb3.extensions.remote.ray import RaySettings
from marl_sb3.files.atomic import replaced_folder
from marl_sb3.runs.folder import remove_run
from marl_sb3.runs.jobs import Jobs
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.workers import Train, TrainedRun, TrainerLostError, TrainingRequest, train_here

_POLL_S = 0.2


class RayTrainer:
    """Trains runs on a Ray cluster.

    Args:
        settings: `runners` is the number of trainings at the same time.

    Raises:
        ConfigError: there is no such cluster, it has other versions, or it gives no process the CPUs.
    """

    def __init__(self, settings: RaySettings) -> None:
        self._connection = Connection(settings, settings.runners or 1)
        self._ray = self._connection.ray
        self._options = {**self._connection.options, "max_retries": 0}
        try:
            self._require_processes(settings)
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            # On this machine, whose end would end the search in any case.
            here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
            server = self._ray.remote(PruningServer).options(
                num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1
            )
            self._pruning = server.remote()
        except BaseException:
            self.close()
            raise

    def _require_processes(self, settings: RaySettings) -> None:
        asked = self._ray.remote(versions).options(**self._options).remote()
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

    @contextmanager
    def workers(self, _: TuneStudy, jobs: Jobs) -> Iterator[Mapping[str, Train]]:
        """See `Trainer`."""
        names = [f"ray-{os.getpid()}-{secrets.token_hex(2)}" for _ in range(jobs.at_once)]
        yield dict.fromkeys(names, partial(self.train, jobs))

    def train(self, jobs: Jobs, request: TrainingRequest) -> TrainedRun:
        """See `Train`; a cluster has no folders of this machine to go on from, so that no population trains there."""
        assert request.settings is None, "`prepared` refuses populations on Ray"
        job, goes_on = secrets.token_hex(8), request.goes_on
        remote = self._ray.remote(train_remotely).options(**self._options)
        sent, pruning = replace(request, goes_on=None), None if goes_on is None else self._pruning
        task = remote.remote(sent, pruning, job, imported_modules())
        # As Ctrl-C in its process, or a kill.
        end_if_wanted = jobs.ender(lambda kills: self._ray.cancel(task, force=kills, recursive=kills))
        while not self._ray.wait([task], timeout=_POLL_S)[0]:
            end_if_wanted()
            result = None if goes_on is None else self._ray.get(self._pruning.question.remote(job))
            if goes_on is not None and result is not None:
                self._ray.get(self._pruning.answer.remote(job, goes_on(result)))
        archive: bytes
        run: TrainedRun | Failed
        try:
            archive, run = self._ray.get(task)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            words = f"the process of the cluster has ended: {type(error).__name__}"
            raise TrainerLostError(words, by_others=jobs.is_ending) from error
        remove_run(request.folder, request.config.env)  # left by a process that has died
        unpack(archive, request.folder)
        if isinstance(run, Failed):
            raise run.error
        return run

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


# --- In a process of the cluster -------------------------------------------------------------------------------------


class PruningServer:
    """A Ray actor through which trainings ask the search about their results."""

    def __init__(self) -> None:
        self._asked: dict[str, Result] = {}
        self._answers: dict[str, asyncio.Future[bool]] = {}

    async def ask(self, job: str, result: Result) -> bool:
        """Called by a training after an iteration with an evaluation; returns whether it goes on."""
        self._asked[job] = result
        self._answers[job] = asyncio.get_running_loop().create_future()
        return await self._answers[job]

    async def question(self, job: str) -> Result | None:
        """Called by the search: the result that a training asks about; None if it asks nothing."""
        return self._asked.pop(job, None)

    async def answer(self, job: str, goes_on: bool) -> None:
        """Called by the search: answer the question of a training."""
        if job in self._answers:  # otherwise this actor has been started again, and the training will ask again
            self._answers.pop(job).set_result(goes_on)


def train_remotely(
    request: TrainingRequest, pruning: Any, job: str, imports: Sequence[str]
) -> tuple[bytes, TrainedRun | Failed]:
    """Train a run in a temporary folder; returns the folder as a zip file, and the run.

    Args:
        pruning: the `PruningServer` that is asked about evaluations; None: the training goes on.
        imports: modules to import first, as after `--import`.
    """
    with tempfile.TemporaryDirectory(prefix="marl_sb3-") as parent:
        folder = Path(parent) / "run"
        run: TrainedRun | Failed

        def goes_on(result: Result) -> bool:
            import ray

            return bool(ray.get(pruning.ask.remote(job, result)))

        try:
            import_modules(imports)
            run = train_here(replace(request, folder=folder, goes_on=None if pruning is None else goes_on))
        except SystemExit as error:
            run = Failed(error)
        except KeyboardInterrupt:
            run = Failed(TrainerLostError("interrupted", by_others=True))
        except Exception as error:
            known = known_error(error)
            known.__cause__ = error
            run = Failed(known)
        return packed(folder), run


def packed(folder: Path) -> bytes:
    """Return a folder as a zip file; an empty one if there is no such folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", strict_timestamps=False) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return buffer.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Write the content of a zip file from `packed` into a new folder, which appears when it is complete.

    Names that lead out of the folder lose the parts that do so, see `zipfile.ZipFile.extract`.
    """
    with zipfile.ZipFile(io.BytesIO(archive)) as opened, replaced_folder(folder) as fresh:
        opened.extractall(fresh)
