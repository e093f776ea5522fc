"""The policies of a run as they are served: batches of requests, newer checkpoints, PyTorch or ONNX Runtime."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.core.acting import AgentInputs, PolicyAnswer, PolicyBundle, Want
from marl_sb3.core.config import file_names
from marl_sb3.core.sb3 import initial_states, takes_masks
from marl_sb3.core.state import Checkpoint, StateReader
from marl_sb3.core.vec_env import joined, map_arrays
from marl_sb3.errors import CheckpointError, ConfigError, ExportError, install_words
from marl_sb3.extensions.store import with_checkpoint
from marl_sb3.runs import SavedRun
from marl_sb3.tools.serving.weights import pack_weights
from marl_sb3.types import AgentID, Array, PolicyID

_log = logging.getLogger(__name__)

BACKENDS = ("auto", "onnx", "torch")
_MEASURED_ROWS = (1, 64)
_MEASURED_S = 0.02  # for each policy, backend and number of rows


class Asked(NamedTuple):
    """A request; its arrays have a leading axis of `rows`."""

    inputs: AgentInputs
    want: Want = Want(actions=True, deterministic=True)
    rows: int = 1


class Predicted(NamedTuple):
    """The answer to a request, and the checkpoint whose policies gave it."""

    checkpoint: str
    answer: PolicyAnswer


@dataclass(frozen=True)
class Served:
    """What is served at a time; a newer checkpoint replaces all of it at once."""

    bundle: PolicyBundle  # the policies
    env_steps: int  # env steps of the training until the checkpoint
    weights: bytes  # the policies as a safetensors file, see `pack_weights`
    weights_sha256: str  # hash of `weights`
    # of ONNX Runtime, for the policies that it answers deterministic requests of
    sessions: Mapping[PolicyID, Any] = field(default_factory=dict)

    @property
    def checkpoint(self) -> str:
        """The name of the checkpoint."""
        return self.bundle.checkpoint or ""

    def has_memory(self, policy_id: PolicyID) -> bool:
        """Whether a policy remembers something between requests: its requests have states."""
        recurrent = initial_states(self.bundle.policies[policy_id], 1)
        return bool(recurrent or self.bundle.processing[policy_id].initial(1))

    def takes_masks(self, policy_id: PolicyID) -> bool:
        """Whether a policy needs action masks."""
        return takes_masks(self.bundle.policies[policy_id])


class Predictor:
    """Answers requests with the policies of a run.

    Args:
        run: the run.
        which: see `CheckpointFolder.load`; all but a number follow the training to newer checkpoints.
        options: further options of `python -m marl_sb3.export` that this run needs, such as `--import`.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
    """

    def __init__(self, run: SavedRun, which: str | None = None, options: Sequence[str] = ()) -> None:
        self._run = run
        self._which = which
        self._options = options
        self._ended = threading.Event()
        self._export: subprocess.Popen[str] | None = None
        self.served = self._load()  # what is served now
        self._tried = self.served.checkpoint

    @property
    def env(self) -> str:
        """The id of the run's env."""
        return self._run.config.env

    def close(self) -> None:
        """End what runs in the background."""
        self._ended.set()
        if self._export is not None:
            self._export.kill()

    # --- Checkpoints -------------------------------------------------------------------------------------------------

    def _load(self) -> Served:
        return with_checkpoint(lambda: self._run.files.checkpoints.load(self._which), self._read)

    def _read(self, checkpoint: Checkpoint) -> Served:
        weights = pack_weights(checkpoint)
        env_steps = StateReader(checkpoint.state).fields("counters").integer("num_timesteps")
        return Served(self._run.read(checkpoint), env_steps, weights, sha256(weights).hexdigest())

    def reload(self) -> bool:
        """Serve a newer checkpoint if there is one that was asked for; returns whether it did.

        A damaged one is passed over with a warning: the one that is served stays.
        """
        try:
            wanted = self._wanted()
            if wanted in (None, self._tried):
                return False
            self._tried = wanted
            served = self._load()
        except CheckpointError as error:
            _log.warning("%s; %s is served further", error, self.served.checkpoint)
            return False
        if served.checkpoint == self.served.checkpoint:
            return False
        self.served = served
        return True

    def _wanted(self) -> str | None:
        """The checkpoint that `load` would try first."""
        folder = self._run.files.checkpoints
        names = folder.names()
        if self._which not in ("best", "latest", None) or not names:
            return None
        if self._which == "latest":
            return names[-1]
        chosen = folder.choose() if self._which is None else None
        return chosen[0] if chosen is not None else folder.best() or names[-1]

    # --- Answers -----------------------------------------------------------------------------------------------------

    def answer(self, requests: Sequence[Asked]) -> list[Predicted | ConfigError]:
        """Answer requests together; what is wrong with one is its own answer."""
        served = self.served
        by_onnx = _answers_of_sessions(served, requests)
        questions = [
            (asked.inputs._replace(actions=actions), asked.want)
            for asked, actions in zip(requests, by_onnx, strict=True)
        ]
        answers = served.bundle.ask_together(questions)
        return [
            answer if isinstance(answer, ConfigError) else Predicted(served.checkpoint, answer) for answer in answers
        ]

    # --- ONNX Runtime ------------------------------------------------------------------------------------------------

    def accelerate(self, backend: str = "auto") -> Iterable[str]:
        """Let ONNX Runtime answer for the policies for which it is faster, or for all that it can answer for.

        The export runs in another process, since it takes seconds; it compares each graph with its policy.

        Args:
            backend: one of `BACKENDS`.

        Yields:
            A line about each policy, with the time that both took.
        """
        served = self.served
        if backend == "torch":
            return
        if missing := [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]:
            yield f"PyTorch answers: {' and '.join(missing)} not installed; {install_words('onnx')}"
            return
        reasons = {policy_id: _only_by_torch(served, policy_id) for policy_id in served.bundle.policies}
        if None not in reasons.values():
            yield from (f"policy {policy_id!r}: PyTorch answers; {reason}" for policy_id, reason in reasons.items())
            return
        with TemporaryDirectory(prefix="marl_sb3-") as folder:
            failure = self._exported(served, Path(folder))
            if failure is not None:
                yield f"PyTorch answers for all policies: {failure}"
                return
            opened, lines = _faster_sessions(served, Path(folder), backend, reasons)
        yield from lines
        if not self._ended.is_set() and self.served is served:
            self.served = Served(served.bundle, served.env_steps, served.weights, served.weights_sha256, opened)

    def _exported(self, served: Served, folder: Path) -> str | None:
        """Export the policies to ONNX files; returns why it failed."""
        command = [sys.executable, "-m", "marl_sb3.export", str(self._run.files.path), "--format", "onnx", "--force"]
        command += ["--checkpoint", served.checkpoint, "--out", str(folder), *self._options]
        if self._ended.is_set():
            return "the server ends"
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            self._export = process
            if self._ended.is_set():  # meanwhile
                process.kill()
            said = process.communicate()[1].strip().splitlines()
        self._export = None
        return None if process.returncode == 0 else (said or ["the export failed"])[-1].removeprefix("error: ")


def _answers_of_sessions(served: Served, requests: Sequence[Asked]) -> list[dict[AgentID, Array]]:
    """Answer by ONNX Runtime what it can: deterministic requests for policies without memory and masks."""
    answers: list[dict[AgentID, Array]] = [{} for _ in requests]
    of_policies: dict[PolicyID, list[tuple[int, AgentID]]] = {}
    for number, asked in enumerate(requests if served.sessions else ()):
        observations, *others = (by_agent or {} for by_agent in asked.inputs)
        for agent in observations if asked.want.deterministic else ():
            policy_id = served.bundle.policy_of[agent]
            if policy_id in served.sessions and not any(agent in by_agent for by_agent in others):
                of_policies.setdefault(policy_id, []).append((number, agent))
    for policy_id, places in of_policies.items():
        batch = joined([requests[number].inputs.observations[agent] for number, agent in places])
        actions, first = _by_session(served.sessions[policy_id], batch), 0
        for number, agent in places:
            answers[number][agent] = actions[first : first + requests[number].rows]
            first += requests[number].rows
    return answers


def _by_session(session: Any, observations: Any) -> Array:
    from marl_sb3.extensions.transfer import by_input

    actions: Array = session.run(["actions"], by_input(observations))[0]
    return actions


def _faster_sessions(
    served: Served, folder: Path, backend: str, reasons: Mapping[PolicyID, str | None]
) -> tuple[dict[PolicyID, Any], list[str]]:
    """Open the ONNX files; returns the sessions to use, and a line about each policy."""
    from marl_sb3.extensions.transfer import open_session

    opened, lines = {}, []
    for policy_id, name in file_names(list(served.bundle.policies), ".onnx").items():
        if reasons[policy_id] is not None:
            lines.append(f"policy {policy_id!r}: PyTorch answers; {reasons[policy_id]}")
            continue
        try:
            session = open_session((folder / name).read_bytes())
        except (ConfigError, ExportError) as error:
            lines.append(f"policy {policy_id!r}: PyTorch answers; {error}")
            continue
        onnx, torch = _times(served.bundle, policy_id, session)
        if backend == "onnx" or sum(onnx) < sum(torch):
            opened[policy_id] = session
        chosen = "ONNX Runtime" if policy_id in opened else "PyTorch"
        sizes = " and ".join(map(str, _MEASURED_ROWS))
        taken = f"ONNX Runtime {_microseconds(onnx)}, PyTorch {_microseconds(torch)} for {sizes} observations"
        lines.append(f"policy {policy_id!r}: {chosen} answers; {taken}")
    return opened, lines


def _only_by_torch(served: Served, policy_id: PolicyID) -> str | None:
    """Return why ONNX Runtime does not answer for a policy; None if it can."""
    from marl_sb3.extensions.transfer import graph_of

    if served.has_memory(policy_id):
        return "the policy has a memory"
    if served.takes_masks(policy_id):
        return "the policy takes action masks"
    env_spaces = served.bundle.spaces[policy_id]
    _, space, _ = graph_of(served.bundle.processing[policy_id], *env_spaces)
    return None if space is env_spaces.observation else "its graph takes processed observations"


def _times(bundle: PolicyBundle, policy_id: PolicyID, session: Any) -> tuple[list[float], list[float]]:
    """Seconds of an answer by ONNX Runtime and by PyTorch, each for the numbers of rows of `_MEASURED_ROWS`."""
    agent, space = bundle.agents_of(policy_id)[0], deepcopy(bundle.spaces[policy_id].observation)
    space.seed(0)
    single = joined([map_arrays(lambda part: np.asarray(part)[None], space.sample())])
    batches = [joined([single] * rows) for rows in _MEASURED_ROWS]
    calls: list[Callable[[Any], Any]] = [
        lambda batch: _by_session(session, batch),
        lambda batch: bundle.predict({agent: batch}, deterministic=True),
    ]
    onnx, torch = ([_seconds(call, batch) for batch in batches] for call in calls)
    return onnx, torch


def _seconds(call: Callable[[Any], Any], batch: Any) -> float:
    """The shortest time of a call, of as many as take `_MEASURED_S`."""
    call(batch)
    shortest, end = float("inf"), time.perf_counter() + _MEASURED_S
    while time.perf_counter() < end:
        begun = time.perf_counter()
        call(batch)
        shortest = min(shortest, time.perf_counter() - begun)
    return shortest


def _microseconds(seconds: Sequence[float]) -> str:
    return " and ".join(f"{of_rows * 1e6:.0f} µs" for of_rows in seconds)
