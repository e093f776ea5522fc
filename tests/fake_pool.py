"""A pool of shard hosts in this process, whose "processes" die, hang and join as a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import count
from typing import Any

from marl_sb3.extensions.remote.processes.messages import Failed
from marl_sb3.extensions.remote.processes.pool import InProcessPool, Lost
from marl_sb3.extensions.remote.shard import ShardHost
from marl_sb3.extensions.remote.shard_runners import ShardRunners


class FakePool(InProcessPool):
    """Nothing that is sent is shared with the receiver.

    Args:
        dies: (runner, method) -> whether the runner dies while it works on the message.
        hangs: the same for runners that never answer.
        starts: runner -> whether it ever gets its resources.
        their_versions: runner -> what differs in its versions.
    """

    is_elsewhere = True

    def __init__(
        self,
        dies: Callable[[int, str], bool] = lambda runner, method: False,
        hangs: Callable[[int, str], bool] = lambda runner, method: False,
        starts: Callable[[int], bool] = lambda runner: True,
        their_versions: Callable[[int], dict[str, str]] = lambda runner: {},
    ) -> None:
        super().__init__(ShardHost)
        self.dies, self.hangs, self.starts, self.their_versions = dies, hangs, starts, their_versions
        self.ended: list[int] = []  # the runners that were killed
        self.closed = 0  # how often the pool was closed
        self.sent: list[tuple[int, str]] = []  # (runner, method) of every message
        self.dead: set[int] = set()  # the runners that have died

    def rounds(self, runner: int) -> int:
        """How often it was sent work."""
        return self.sent.count((runner, "work"))

    def poll(self, timeout_s: float) -> Sequence[tuple[int, Any]]:
        for _ in range(len(self._messages)):
            runner, method, arguments = self._messages.popleft()
            if not self.starts(runner):
                self._messages.append((runner, method, arguments))
            elif runner in self.dead or not self.hangs(runner, method):
                return [(runner, self._result(runner, method, arguments))]
        return []

    def send(self, process: int, method: str, *arguments: Any) -> None:
        self.sent.append((process, method))
        super().send(process, method, *deepcopy(arguments))

    def _result(self, process: int, method: str, arguments: Sequence[Any]) -> Any:
        if process not in self.dead and self.dies(process, method):
            self.dead.add(process)
        if process in self.dead:
            return Lost("it died")
        result = super()._result(process, method, arguments)
        return {**result, **self.their_versions(process)} if method == "versions" else _copied(result)

    def end(self, process: int) -> None:
        self.ended.append(process)
        super().end(process)

    def close(self) -> None:
        self.closed += 1
        super().close()


def _copied(result: Any) -> Any:
    return result if isinstance(result, Failed) else deepcopy(result)


def in_fake_pool(pool: FakePool, number: int, start_timeout_s: float = 5.0, round_timeout_s: float = 60.0) -> Any:
    return ShardRunners(lambda: pool, number, start_timeout_s, round_timeout_s, poll_s=0.01)


def dying(period: int) -> Callable[[int, str], bool]:
    """Every `period`-th piece of work ends its runner."""
    calls = count(1)
    return lambda runner, method: method == "work" and next(calls) % period == 0
