"""Weights & Biases, MLflow and Trackio, as a run sees them; the only file that knows their packages.

Each package is imported when a run of the user's has named it, and not before.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from marl_sb3.errors import MarlSb3Error
from marl_sb3.types import Array

_PROJECT = "marl_sb3"


@dataclass(frozen=True)
class Start:
    """What a tracker gets when it is opened."""

    folder: Path  # the run folder
    name: str  # of the run, for people: the last two parts of the path of its folder
    # the project (MLflow: experiment) that the user has given for the run; None: the tracker's own variable of the
    # environment, or else `marl_sb3`
    project: str | None
    settings: Mapping[str, Any]  # the whole configuration, nested
    tags: Mapping[str, str]  # the main settings, flat

    def project_in(self, variable: str) -> str:
        """Return the project, which a variable of the environment may name."""
        return self.project or os.environ.get(variable) or _PROJECT


@dataclass(frozen=True)
class Entry:
    """An iteration, as a tracker logs it; all names are flat names of metrics."""

    step: int  # env steps so far
    numbers: Mapping[str, float]  # finite
    samples: Mapping[str, Array] = field(default_factory=dict)  # arrays of any shape, which are shown as histograms
    pictures: Mapping[str, Array] = field(default_factory=dict)  # (H, W, 3) uint8 each
    films: Mapping[str, Path] = field(default_factory=dict)  # files

    def values(self, package: Any, **of_video: str) -> dict[str, Any]:
        """Return all values in the classes of W&B, or of a package that has the same."""
        return {
            **self.numbers,
            **{name: package.Histogram(sample) for name, sample in self.samples.items()},
            **{name: package.Image(picture) for name, picture in self.pictures.items()},
            **{name: package.Video(str(path), **of_video) for name, path in self.films.items()},
        }


class Tracker(Protocol):
    """A run in a tracker. Its methods are called in order, in one thread, and may raise anything."""

    name: ClassVar[str]  # as after `--track`; also of the extra
    package: ClassVar[str]  # what has to be installed
    remembered: dict[str, str]  # what a resume needs to find the run; set by `open`
    place: str  # where the user finds the run, in words; set by `open`

    def open(self, start: Start, known: Mapping[str, str]) -> int | None:
        """Begin a run, or go on with the one that is `known`.

        Returns:
            The last step that the tracker has; -1 if it has none, None if it does not know.
        """

    def log(self, entry: Entry) -> None:
        """Log an iteration."""

    def save(self, checkpoint: Path) -> None:
        """Keep a copy of a checkpoint, a folder."""

    def close(self, *, failed: bool) -> None:
        """End the run; returns when the tracker has everything."""


# Of W&B: to begin a run, to write to its file, and to send at the end what it has not sent.
_BEGIN_S, _FLUSH_S, _TIMEOUT_S = 25, 0.1, 60


class WandbTracker:
    """Weights & Biases. Its own variables count: WANDB_MODE=offline, WANDB_PROJECT, WANDB_ENTITY, WANDB_DIR, ..."""

    name: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"

    def open(self, start: Start, known: Mapping[str, str]) -> int | None:
        """See `Tracker.open`. Without a key it fails, instead of asking for one in the middle of a start."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        project = known.get("project") or start.project_in("WANDB_PROJECT")
        # What is written to the terminal stays there, and W&B writes nothing to it.
        settings = wandb.Settings(
            x_transaction_log_flush_interval=_FLUSH_S,
            console="off",
            silent=True,
            init_timeout=_BEGIN_S,
            finish_timeout=_TIMEOUT_S,
        )
        is_online = wandb.setup().settings.mode in ("online", "run", "shared") and wandb.run is None
        if is_online and not wandb.login(prompt=False, verify=False):
            raise MarlSb3Error("no API key; accepted: wandb login, WANDB_API_KEY, or WANDB_MODE=offline")
        self._run = wandb.init(
            project=project,
            id=known.get("id") or secrets.token_hex(4),
            name=start.name,
            config=dict(start.settings),
            tags=[str(value)[:64] for value in start.tags.values()],
            resume="allow",
            dir=os.environ.get("WANDB_DIR") or str(start.folder),
            reinit="create_new",  # a run that the user's own code has begun stays as it is
            settings=settings,
        )
        self._wandb = wandb
        self._run.config.update(dict(start.settings), allow_val_change=True)
        self._run.define_metric("*", step_metric="num_env_steps_sampled_lifetime")
        # A copy under another name: W&B writes a config.yaml of its own.
        copied = shutil.copy(start.folder / "config.yaml", Path(self._run.dir) / "settings.yaml")
        self._run.save(str(copied), base_path=self._run.dir, policy="now")
        self.remembered = {"id": str(self._run.id), "project": project}
        offline = bool(self._run.offline)
        self.place = str(Path(self._run.dir).parent) if offline else str(self._run.url)
        return self._run.step - 1 if self._run.resumed and not offline else None

    def log(self, entry: Entry) -> None:
        """See `Tracker.log`."""
        values = entry.values(self._wandb, format="gif")
        self._run.log(values, step=entry.step, commit=True)  # otherwise, it waits for the next step

    def save(self, checkpoint: Path) -> None:
        """See `Tracker.save`: a version of one artefact for each checkpoint."""
        artifact = self._wandb.Artifact(f"checkpoint-{self._run.id}", "model")
        for file in sorted(checkpoint.iterdir()):
            artifact.add_file(str(file))  # `add_dir` prints
        self._run.log_artifact(artifact, aliases=["latest", checkpoint.name])

    def close(self, *, failed: bool) -> None:
        """See `Tracker.close`."""
        self._run.finish(exit_code=int(failed))


# MLflow's limits of a request, and of the text of a parameter.
_MOST_METRICS, _MOST_PARAMETERS, _LONGEST_PARAMETER = 1000, 100, 6000


class MlflowTracker:
    """MLflow. Its own variables count: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_TRACKING_TOKEN, ..."""

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str] = "mlflow"

    def open(self, start: Start, known: Mapping[str, str]) -> int | None:
        """See `Tracker.open`."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")  # it logs tracebacks of what it raises
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        if known:
            self._id = known["id"]
            self._client.update_run(self._id, status="RUNNING")
        else:
            experiment = start.project_in("MLFLOW_EXPERIMENT_NAME")
            found = self._client.get_experiment_by_name(experiment)
            number = self._client.create_experiment(experiment) if found is None else found.experiment_id
            self._id = self._client.create_run(number, run_name=start.name, tags=dict(start.tags)).info.run_id
            texts = {
                mlflow_name(name): value if isinstance(value, str) else json.dumps(value)
                for name, value in _flat(start.settings)
            }
            parameters = [Param(name, text[:_LONGEST_PARAMETER]) for name, text in texts.items()]
            for first in range(0, len(parameters), _MOST_PARAMETERS):
                self._client.log_batch(self._id, params=parameters[first : first + _MOST_PARAMETERS], synchronous=True)
        self.remembered = {"id": self._id}
        self.place = f"run {self._id} in {self._client.tracking_uri}"
        self._client.log_artifact(self._id, str(start.folder / "config.yaml"))
        steps = [metric.step for metric in self._client.get_metric_history(self._id, "iteration")]
        return max(steps, default=-1)

    def log(self, entry: Entry) -> None:
        """See `Tracker.log`; there are no histograms in MLflow."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        numbers = {mlflow_name(name): value for name, value in entry.numbers.items()}
        # The iteration comes last: a resume asks for it to know what the run has.
        names = sorted(numbers, key=lambda name: name == "iteration")
        metrics = [Metric(name, float(numbers[name]), now_ms, entry.step) for name in names]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + _MOST_METRICS], synchronous=True)
        for name, picture in entry.pictures.items():
            self._client.log_image(self._id, picture, key=mlflow_name(name), step=entry.step)
        for path in entry.films.values():
            self._client.log_artifact(self._id, str(path), "media")

    def save(self, checkpoint: Path) -> None:
        """See `Tracker.save`."""
        self._client.log_artifacts(self._id, str(checkpoint), f"checkpoints/{checkpoint.name}")

    def close(self, *, failed: bool) -> None:
        """See `Tracker.close`."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def mlflow_name(name: str) -> str:
    """Return a name that MLflow accepts: others have `_` for a character, or for a part of a path."""
    parts = (re.sub(r"[^\w.\- :]", "_", part) for part in name.split("/"))
    return "/".join(part if part.strip(".") else "_" for part in parts)


class TrackioTracker:
    """Trackio, on this machine; or, with its variables TRACKIO_SPACE_ID or TRACKIO_SERVER_URL, elsewhere."""

    name: ClassVar[str] = "trackio"
    package: ClassVar[str] = "trackio"

    def open(self, start: Start, known: Mapping[str, str]) -> int | None:
        """See `Tracker.open`."""
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        import trackio

        self._trackio = trackio
        name = f"{re.sub(r'[^-.a-zA-Z0-9_]', '-', start.name)}-{secrets.token_hex(4)}"
        self.remembered = dict(known) or {"name": name, "project": start.project_in("TRACKIO_PROJECT")}
        # Standard output belongs to the command. What it cannot reach, it only warns of, and tries again for minutes.
        with redirect_stdout(io.StringIO()), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            self._run = trackio.init(
                **self.remembered, config=dict(start.settings), resume="must" if known else "never", embed=False
            )
        for each in warned:
            if "could not create a remote client" in str(each.message):
                raise MarlSb3Error(str(each.message))
        self.place = f"run {self.remembered['name']}; trackio show --project {self.remembered['project']}"
        return self._run._next_step - 1 if known else -1

    def log(self, entry: Entry) -> None:
        """See `Tracker.log`."""
        self._run.log(entry.values(self._trackio), step=entry.step)

    def save(self, checkpoint: Path) -> None:
        """See `Tracker.save`: a version of one artefact for each checkpoint."""
        name = f"checkpoint-{self.remembered['name']}"
        self._run.log_artifact(str(checkpoint), name=name, type="model", aliases=[checkpoint.name])

    def close(self, *, failed: bool) -> None:
        """See `Tracker.close`."""
        with redirect_stdout(io.StringIO()):
            self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {
    tracker.name: tracker for tracker in (WandbTracker, MlflowTracker, TrackioTracker)
}
