"""The policies of a run as they are served: batches of requests, and newer checkpoints."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Generic, NamedTuple, TypeVar

from prometheus_client.core import Metric

import marl_sb3
from marl_sb3.core.acting.asked_agent import AgentInputs, PolicyAnswer, RequestedOutputs
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.sb3.inference import initial_states, takes_masks
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import ConfigError, described
from marl_sb3.extensions.store.checkpoint_folder import with_checkpoint
from marl_sb3.extensions.store.checkpoint_format import MANIFEST
from marl_sb3.runs.run import SavedRun
from marl_sb3.tools.serving.metrics import SECONDS, SIZES, Histogram, counters, gauge, gauges
from marl_sb3.tools.serving.weights import pack_weights
from marl_sb3.types import PolicyID

_log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")
_AGAIN_S = 60.0  # after a checkpoint could not be read: the disk may have failed, not the checkpoint


class DecodedRequest(NamedTuple):
    """A request; its arrays have a leading axis of `rows`."""

    inputs: AgentInputs
    want: RequestedOutputs = RequestedOutputs(actions=True, deterministic=True)
    rows: int = 1


class Prediction(NamedTuple):
    """The answer to a request, and the checkpoint whose policies gave it."""

    checkpoint: str
    answer: PolicyAnswer


@dataclass(frozen=True)
class ServedPolicies:
    """What is served at a time; a newer checkpoint replaces all of it at once."""

    bundle: PolicyBundle  # the policies
    env_steps: int  # env steps of the training until the checkpoint
    weights: bytes  # the policies as a safetensors file, see `pack_weights`
    weights_sha256: str  # hash of `weights`
    written_s: float  # when the checkpoint was written, in seconds since 1970
    loaded_s: float  # when it was loaded

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

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
    """

    def __init__(self, run: SavedRun, which: str | None = None) -> None:
        self._run, self._which = run, which
        self.served = self._load()  # what is served now
        self._tried, self._tried_s = self.served.checkpoint, 0.0
        self.failing = False  # whether the checkpoint that is asked for cannot be loaded, so that another is served
        self._reloads: dict[tuple[str, ...], float] = {("failed",): 0, ("done",): 0}

    @property
    def env(self) -> str:
        """The id of the run's env."""
        return self._run.config.env

    # --- Checkpoints -------------------------------------------------------------------------------------------------

    def _load(self) -> ServedPolicies:
        return with_checkpoint(lambda: self._run.files.checkpoints.load(self._which), self._read)

    def _read(self, checkpoint: Checkpoint) -> ServedPolicies:
        weights = pack_weights(checkpoint)
        env_steps = StateReader(checkpoint.state).fields("counters").integer("num_timesteps")
        loaded_s = written_s = time.time()
        with suppress(OSError):  # a running training has removed it
            written_s = (checkpoint.folder / MANIFEST).stat().st_mtime
        digest = sha256(weights).hexdigest()
        return ServedPolicies(self._run.read(checkpoint), env_steps, weights, digest, written_s, loaded_s)

    def reload(self) -> bool:
        """Serve a newer checkpoint if there is one that was asked for; returns whether it did.

        One that cannot be loaded is passed over with a warning, and tried again a minute later: the one that is served
        stays, or one in between is served. Requests that are being answered are not disturbed.
        """
        try:
            follows = self._which in ("best", "latest", None)  # the training to newer checkpoints
            wanted, _ = (self._run.files.checkpoints.choose(self._which) if follows else None) or (None, "")
            self.failing &= wanted != self.served.checkpoint
            is_due = self.failing and time.monotonic() - self._tried_s >= _AGAIN_S
            if wanted in (None, self.served.checkpoint) or (wanted == self._tried and not is_due):
                return False
            self._tried, self._tried_s = wanted, time.monotonic()
            served = self._load()
        except Exception as error:  # whatever it is: the policies that are served are whole
            self._failed(described(error))
            return False
        if served.checkpoint != wanted:  # it is damaged, as a warning has said, and the next best was read
            self._failed(f"{wanted} is damaged")
            if served.env_steps <= self.served.env_steps:
                return False
        else:
            self.failing = False
        self.served = served
        self._reloads["done",] += 1
        return True

    def _failed(self, why: str) -> None:
        self.failing = True
        self._reloads["failed",] += 1
        _log.warning("%s; %s is served further", why, self.served.checkpoint)

    def families(self) -> list[Metric]:
        """Return the metrics of what is served."""
        served, now_s = self.served, time.time()
        ages = {("written",): now_s - served.written_s, ("loaded",): now_s - served.loaded_s}
        words = "Time since the checkpoint that is served was written, and since it was loaded."
        known = {"env": self.env, "checkpoint": served.checkpoint, "version": marl_sb3.__version__}
        return [
            gauge("marl_sb3_policy_info", "What is served.", 1, **known),
            gauge("marl_sb3_policy_env_steps", "Env steps of the training until the checkpoint.", served.env_steps),
            gauges("marl_sb3_policy_age_seconds", words, ["since"], ages),
            counters("marl_sb3_reloads_total", "Newer checkpoints, by what came of them.", ("result",), self._reloads),
            gauge("marl_sb3_reload_failing", "1: the checkpoint that is asked for cannot be loaded.", self.failing),
        ]

    # --- Answers -----------------------------------------------------------------------------------------------------

    def answer(self, requests: Sequence[DecodedRequest]) -> list[Prediction | ConfigError]:
        """Answer requests together; what is wrong with one is its own answer."""
        served = self.served
        answers = served.bundle.ask_together([(asked.inputs, asked.want) for asked in requests])
        return [
            answer if isinstance(answer, ConfigError) else Prediction(served.checkpoint, answer) for answer in answers
        ]


# --- Batches ----------------------------------------------------------------------------------------------------------


class Batcher(Generic[RequestT, ReplyT]):
    """Collects requests and answers them in batches.

    A request never waits for others: a batch has those that have arrived while the one before was computed. The event
    loop computes them itself: handing them to a thread takes longer than most networks.

    Args:
        answer: answers a batch, in order; an exception among the answers is raised where that request waits.
        rows_of: the number of rows of a request.
        max_rows: a batch ends with the request that reaches this number; 1: each request alone.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[RequestT]], Sequence[ReplyT | Exception]],
        rows_of: Callable[[RequestT], int],
        max_rows: int,
    ) -> None:
        self._answer = answer
        self._rows_of = rows_of
        self._max_rows = max_rows
        self._waiting: deque[tuple[RequestT, asyncio.Future[ReplyT]]] = deque()
        self._working: asyncio.Task[None] | None = None
        self.requests = 0  # requests so far
        self.batches = 0  # batches so far
        self._sizes = Histogram("marl_sb3_batch_requests", "Requests that were answered together.", buckets=SIZES)
        self._rows = Histogram("marl_sb3_batch_rows", "Observations that were answered together.", buckets=SIZES)
        self._seconds = Histogram("marl_sb3_batch_seconds", "Time in which a batch was computed.", buckets=SECONDS)

    def families(self) -> list[Metric]:
        """Return the metrics of batches."""
        queue = gauge("marl_sb3_queue_requests", "Requests that wait for the next batch.", len(self._waiting))
        return [queue, *(each for one in (self._sizes, self._rows, self._seconds) for each in one.collect())]

    async def submit(self, asked: RequestT) -> ReplyT:
        """Return the answer to a request; raises what the answer is if that is an exception."""
        future: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while self._waiting:
                self._work_once()
                await asyncio.sleep(0)  # what has arrived meanwhile is read, and is the next batch
        finally:
            self._working = None

    def _work_once(self) -> None:
        """Answer the next batch."""
        batch, rows = [], 0
        while self._waiting and rows < self._max_rows:
            asked, future = self._waiting.popleft()
            if not future.done():  # its client has gone
                batch.append((asked, future))
                rows += self._rows_of(asked)
        if not batch:
            return
        begun_s, answers = time.perf_counter(), list[Any]()
        try:
            answers += self._answer([request for request, _ in batch])
        except Exception as error:
            answers = [error] * len(batch)
        self._seconds.observe(time.perf_counter() - begun_s)
        self._sizes.observe(len(batch))
        self._rows.observe(rows)
        self.requests += len(batch)
        self.batches += 1
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
