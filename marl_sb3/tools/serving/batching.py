"""Requests that arrive while others are answered are answered together, by one call of the networks."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from prometheus_client.core import Metric

from marl_sb3.tools.serving.metrics import SECONDS, SIZES, Histogram, gauge

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class Batcher(Generic[RequestT, ReplyT]):
    """Collects requests and answers them in batches.

    A request never waits for others: a batch has those that have arrived while the one before was computed. The event
    loop computes them itself: handing them to a thread takes longer than most networks.

    Args:
        answer: answers a batch, in order; an exception among the answers is raised where that request waits.
        rows_of: the number of rows of a request.
        max_rows: a batch ends with the request that reaches this number.
        together: whether to batch at all; False: each request alone, in order.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[RequestT]], Sequence[ReplyT | Exception]],
        rows_of: Callable[[RequestT], int],
        max_rows: int,
        together: bool = True,
    ) -> None:
        self._answer = answer
        self._rows_of = rows_of
        self._max_rows = max_rows if together else 1
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
