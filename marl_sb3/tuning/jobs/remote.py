"""One training of a search in a process of a Ray cluster, and how it asks the search whether to go on."""

from __future__ import annotations

import asyncio
import io
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_sb3.config import TrainConfig
from marl_sb3.envs.registry import EnvFactory, import_modules
from marl_sb3.metrics import Result
from marl_sb3.processes.messages import known_error, packed_error
from marl_sb3.processes.pool import versions
from marl_sb3.training.callback import TrainingCallback


@dataclass(frozen=True)
class Outcome:
    """What a training on the cluster sends back.

    Attributes:
        folder: the run folder, as a zip file.
        result: the metrics of the last iteration.
        checkpoint: name of the latest checkpoint.
        interrupted: whether a signal ended it.
        error: the exception that ended it, from `packed_error`; None if none did.
    """

    folder: bytes
    result: Result | None = None
    checkpoint: str | None = None
    interrupted: bool = False
    error: bytes | None = None


class Desk:
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


class AskTheSearch(TrainingCallback):
    """Lets the search decide after each evaluation whether the training goes on."""

    def __init__(self, desk: Any, job: str) -> None:
        super().__init__()
        self._desk, self._job = desk, job

    def on_iteration_end(self, result: Result) -> bool:
        """Ask if the result has an evaluation."""
        if "evaluation" not in result:
            return True
        import ray

        return bool(ray.get(self._desk.ask.remote(self._job, result)))


def train_remotely(
    config: TrainConfig, factory: EnvFactory | None, desk: Any, job: str, imports: Sequence[str]
) -> Outcome:
    """Train a run in a temporary folder; exceptions are a part of what it returns.

    Args:
        imports: modules to import first, as after `--import`.
    """
    from marl_sb3.runs.execute import execute
    from marl_sb3.runs.start import prepare

    with tempfile.TemporaryDirectory(prefix="marl_sb3-") as parent:
        folder = Path(parent) / "run"
        try:
            import_modules(imports)
            run = execute(prepare(config, folder, factory), [AskTheSearch(desk, job)])
        except SystemExit as error:
            return Outcome(packed(folder), error=packed_error(error))
        except Exception as error:
            known = known_error(error)
            known.__cause__ = error
            return Outcome(packed(folder), error=packed_error(known))
        return Outcome(packed(folder), run.result, run.checkpoint, run.interrupted)


def process_versions() -> dict[str, str]:
    """Return the versions of a process of the cluster."""
    return versions()


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
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        opened.extractall(unfinished)
    unfinished.rename(folder)
