"""A run that is begun, disturbed and resumed, each time in a process of its own, and compared in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forked import ForkedProcess, ForkServer
from run_records import differences


def kill(place: str, call: int) -> dict[str, Any]:
    """The shim that kills a process before a call; see `shims`."""
    return {"kill": {"place": place, "call": call, "moment": "before"}}


class Attempt:
    """A run, and the commands that work on it.

    Args:
        server: starts the processes.
        folder: where the run and the output are.
        arguments: of the command, but for the run folder.
        reference: returns the run folder that nobody disturbed.
        command: `train`, or another one that makes runs and resumes them.

    Attributes:
        run: the run folder.
        output: the file of what the last process has said.
    """

    def __init__(
        self,
        server: ForkServer,
        folder: Path,
        arguments: Sequence[str],
        reference: Callable[[], Path],
        command: str = "train",
    ) -> None:
        self.run, self.output = folder / "run", folder / "output.txt"
        self._server, self._reference = server, reference
        self._arguments, self._command = list(arguments), command

    def start(self, arguments: Sequence[str], shims: dict[str, Any], command: str | None = None) -> ForkedProcess:
        """Start a command with any arguments; what the last one said is lost."""
        self.output.write_bytes(b"")
        return self._server.run(["-m", f"marl_sb3.{command or self._command}", *arguments], self.output, shims=shims)

    def begin(self, *more: str, **shims: Any) -> ForkedProcess:
        """Start the run, with further arguments."""
        return self.start([*self._arguments, *more, "--run-dir", str(self.run)], shims)

    def resume(self, **shims: Any) -> int:
        """Resume the run; returns the exit code."""
        return self.start(["--resume", str(self.run), "--quiet"], shims).wait()

    @property
    def said(self) -> str:
        """What the last process has said."""
        return self.output.read_text()

    def differences(self, run: Path | None = None) -> list[str]:
        """In what the run, or another one, differs from the one that nobody disturbed."""
        return differences(self._reference(), run or self.run)
