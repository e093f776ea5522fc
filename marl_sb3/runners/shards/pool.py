"""The protocol of a pool of processes that host shards, whatever starts them and carries the messages."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from marl_sb3.storage.versions import versions as package_versions


@dataclass(frozen=True)
class Lost:
    """What a pool answers in the place of a result if the process has ended or cannot be reached.

    Attributes:
        why: in words.
    """

    why: str


@dataclass(frozen=True)
class Answer:
    """The answer to a message.

    Attributes:
        runner: the process that was asked.
        ticket: from `Pool.send`.
        result: what the method returned; `Lost` if there will be no result.
    """

    runner: int
    ticket: int
    result: Any


class Pool(Protocol):
    """Processes, each with a `ShardHost`, which work on their messages in order."""

    def begin(self, plan: Any) -> int:
        """Begin to start a process, which makes a `ShardHost(plan)`; returns its number, which no other process has.

        It waits for nothing. Messages are kept until the process runs.
        """

    def send(self, runner: int, method: str, *arguments: Any) -> int:
        """Ask a process to call a method of its host; returns the ticket of the answer. It waits for nothing."""

    def share(self, value: Any) -> Any:
        """Return what stands for a value in the arguments of several messages, so that it is sent once."""

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return answers that have arrived since the last call; if there are none, wait for one."""

    def end(self, runner: int) -> None:
        """Kill a process. There will be no more answers from it."""

    def close(self) -> None:
        """Kill all processes."""


def versions() -> dict[str, str]:
    """Return the versions that all processes of a training must have in common."""
    return {"Python": platform.python_version(), **package_versions()}


def differing(theirs: Mapping[str, str]) -> str | None:
    """Return in words which versions of another process are not those of this one; None if none."""
    found = [
        f"{name} {theirs.get(name, 'none')} instead of {own}"
        for name, own in versions().items()
        if theirs.get(name) != own
    ]
    return ", ".join(found) or None
