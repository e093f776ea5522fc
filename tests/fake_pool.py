"""A pool of shard hosts in this process, whose "processes" die, hang and join as a test says."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from marl_sb3.runners.shards.host import ShardHost
from marl_sb3.runners.shards.pool import Answer, Lost
from marl_sb3.runners.shards.supervised import SupervisedRunners


class FakePool:
    """See `Pool`; nothing that is sent is shared with the receiver.

    Args:
        dies: (runner, method) -> whether the runner dies while it works on the message.
        hangs: the same for runners that never answer.
        starts: runner -> whether it ever gets its resources.
        their_versions: runner -> what differs in its versions.

    Attributes:
        ended: the runners that were killed.
        closed: how often the pool was closed.
        sent: (runner, method) of every message.
    """

    def __init__(
        self,
        dies: Callable[[int, str], bool] = lambda runner, method: False,
        hangs: Callable[[int, str], bool] = lambda runner, method: False,
        starts: Callable[[int], bool] = lambda runner: True,
        their_versions: Callable[[int], dict[str, str]] = lambda runner: {},
    ) -> None:
        self.dies, self.hangs, self.starts, self.their_versions = dies, hangs, starts, their_versions
        self.ended: list[int] = []
        self.closed = 0
        self.sent: list[tuple[int, str]] = []
        self._numbers, self._tickets = itertools.count(), itertools.count()
        self._hosts: dict[int, ShardHost | None] = {}
        self._messages: deque[tuple[int, int, str, tuple[Any, ...]]] = deque()

    def begin(self, plan: Any) -> int:
        runner = next(self._numbers)
        self._hosts[runner] = ShardHost(plan)
        return runner

    def send(self, runner: int, method: str, *arguments: Any) -> int:
        ticket = next(self._tickets)
        self.sent.append((runner, method))
        self._messages.append((runner, ticket, method, deepcopy(arguments)))
        return ticket

    def share(self, value: Any) -> Any:
        return value

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        for _ in range(len(self._messages)):
            runner, ticket, method, arguments = self._messages.popleft()
            if not self.starts(runner):
                self._messages.append((runner, ticket, method, arguments))
                continue
            if self._hosts[runner] is not None and self.hangs(runner, method):
                continue
            return [Answer(runner, ticket, self._result(runner, method, arguments))]
        return []

    def _result(self, runner: int, method: str, arguments: tuple[Any, ...]) -> Any:
        host = self._hosts[runner]
        if host is not None and self.dies(runner, method):
            host.close()
            self._hosts[runner] = host = None
        if host is None:
            return Lost("it died")
        result = deepcopy(getattr(host, method)(*arguments))
        return {**result, **self.their_versions(runner)} if method == "versions" else result

    def end(self, runner: int) -> None:
        self.ended.append(runner)
        host = self._hosts.pop(runner)
        if host is not None:
            host.close()
        self._messages = deque(message for message in self._messages if message[0] != runner)

    def close(self) -> None:
        self.closed += 1
        for runner in list(self._hosts):
            self.end(runner)


def in_fake_pool(pool: FakePool, number: int, start_timeout_s: float = 5.0, round_timeout_s: float = 60.0) -> Any:
    return SupervisedRunners(lambda: pool, number, start_timeout_s, round_timeout_s)
