"""Start the processes of an examination, wait for them, and report when the env has hung or crashed them."""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from marl_sb3.checkup.checks.reported import MORE, PROCESSES
from marl_sb3.checkup.evidence import Evidence, Seen
from marl_sb3.checkup.finding import Finding, finding_of
from marl_sb3.checkup.job import Job
from marl_sb3.checkup.watch import read_position
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError, EnvRaisedError

_POLL_S = 0.05
_GRACE_S = 10.0  # after the time in which a process should have ended itself

OnCall = Callable[[str], None]


class PlayProcess:
    """A process that plays the env, and the folder of its results.

    Args:
        folder: empty; the process writes into it.
        job: what it does.
        factory: for an env that a new process cannot import: the process is forked from this one. None: it is new.
    """

    def __init__(self, folder: Path, job: Job, factory: EnvFactory | None) -> None:
        folder.mkdir()
        self.folder = folder
        self._timeout_s = job.timeout_s
        self._forked: Any = None
        if factory is None:
            job.write(folder)
            command = [sys.executable, "-m", "marl_sb3.checkup.process", str(folder)]
            self._new = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        else:
            from marl_sb3.checkup.process import work  # takes seconds, and only a fork needs it

            self._forked = multiprocessing.get_context("fork").Process(target=work, args=(folder, job, factory))
            self._forked.start()

    def _exit_code(self) -> int | None:
        code: int | None = self._new.poll() if self._forked is None else self._forked.exitcode
        return code

    def wait(self, on_call: OnCall) -> None:
        """Wait for the end of the process; it is killed if the env lets it do nothing any more."""
        position, since = None, time.monotonic()
        while self._exit_code() is None:
            time.sleep(_POLL_S)
            if (now := read_position(self.folder)) != position:
                position, since = now, time.monotonic()
                on_call(_words(*now))
            if time.monotonic() > since + 10 * self._timeout_s + _GRACE_S:
                self.kill()

    def kill(self) -> None:
        """End it."""
        if self._forked is None:
            self._new.kill()
            self._new.wait()
        else:
            self._forked.kill()
            self._forked.join()

    def lines(self) -> Iterator[Mapping[str, Any]]:
        """Return the complete lines that it has written so far."""
        try:
            text = (self.folder / "results.jsonl").read_text(encoding="utf-8")
        except OSError:
            return
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)

    def told(self, name: str) -> Any:
        """Return the value that it has written under a name; None if there is none."""
        return next((line[name] for line in self.lines() if name in line), None)

    def findings(self) -> list[Finding]:
        """What it has found, and how it ended if the env ended it.

        Raises:
            ConfigError: the env's id or its arguments are wrong.
            EnvRaisedError: the env could not be imported.
            RuntimeError: the examination itself failed.
        """
        refused, raised, failed = (next(_with(self.lines(), name), None) for name in ("refused", "raised", "failed"))
        if refused:
            raise ConfigError(refused["refused"], key=refused["key"])
        if raised:
            raise EnvRaisedError(raised["raised"])
        if failed:
            raise RuntimeError(f"the examination failed:\n{failed['failed']}")
        found = [Finding.from_plain(line["finding"]) for line in _with(self.lines(), "finding")]
        return found if self.told("done") else [*found, self._end()]

    def _end(self) -> Finding:
        """The finding for a process that did not end by itself."""
        call, episode, step = read_position(self.folder)
        rendering = "while a picture was made, " if self.told("facts") is not None else ""
        stacks = (self.folder / "stacks").read_text(encoding="utf-8", errors="replace")
        place = _place(stacks)
        details = f"{stacks}{self._last_output()}" or None
        if "Timeout (" in stacks:
            check, what = "hangs", f"{call} has not returned after {self._timeout_s:g} s{place}"
        else:
            check, what = "crashes", f"{call} ended the process: {_ending(self._exit_code())}{place}"
        if rendering:
            check = "render-fails"
        return told_finding(check, Seen(f"{rendering}{what}", None, episode, step, None, details))

    def _last_output(self) -> str:
        try:
            return (self.folder / "output").read_text(encoding="utf-8", errors="replace")[-2000:]
        except OSError:
            return ""


def told_finding(check_id: str, seen: Seen) -> Finding:
    """The finding of a check that is made outside the process."""
    check = next(check for check in (*PROCESSES, *MORE) if check.id == check_id)
    evidence = Evidence()
    evidence.report(check_id, seen)
    finding = finding_of(check, evidence)
    assert finding is not None
    return finding


def _with(lines: Iterator[Mapping[str, Any]], name: str) -> Iterator[Mapping[str, Any]]:
    return (line for line in lines if name in line)


def _words(call: str, episode: int | None, step: int | None) -> str:
    where = [] if episode is None else [f"episode {episode}"]
    where += [] if step is None else [f"step {step}"]
    return ", ".join([*where, call])


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _place(stacks: str) -> str:
    """The innermost line of Python that was running, as the fault handler wrote it."""
    frames = re.findall(r'File "(.+)", line (\d+) in (\S+)', stacks)
    if not frames:
        return ""
    file, line, function = frames[0]
    return f" ({file}, line {line}, in {function})"
