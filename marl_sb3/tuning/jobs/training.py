"""Train the run of a job: in this process, or wherever a search trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.config import TrainConfig
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.metrics import Result
from marl_sb3.runs.folder import RunFolder


class TrainedRun(Protocol):
    """What a job stores of a run that was trained: see `Run`, which is one."""

    @property
    def files(self) -> RunFolder:
        """The run folder, on this machine."""

    @property
    def result(self) -> Mapping[str, Any] | None:
        """The metrics of the last iteration."""

    @property
    def results(self) -> list[Result]:
        """The metrics of all iterations."""

    @property
    def checkpoint(self) -> str | None:
        """The name of the latest checkpoint."""

    @property
    def interrupted(self) -> bool:
        """Whether a signal, or the end of the search, ended it."""


class Train(Protocol):
    """Trains a run in a folder of this machine."""

    def __call__(
        self, config: TrainConfig, folder: Path, factory: EnvFactory | None, callbacks: Sequence[BaseCallback]
    ) -> TrainedRun:
        """Train.

        Raises:
            TrainerLostError: the process that trained it has ended.
        """


class TrainerLostError(RuntimeError):
    """The process that trained a run has ended; the run has to be trained again."""


def train_here(
    config: TrainConfig, folder: Path, factory: EnvFactory | None, callbacks: Sequence[BaseCallback]
) -> TrainedRun:
    """See `Train`: in this process."""
    from marl_sb3.runs.execute import execute
    from marl_sb3.runs.start import prepare

    return execute(prepare(config, folder, factory), callbacks)
