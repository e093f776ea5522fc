"""The process in which an env is examined: the env may abort, hang or exit in it, and what was found before is kept."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from marl_sb3.checkup.checks import CHECKS
from marl_sb3.checkup.evidence import Seen
from marl_sb3.checkup.finding import Finding, facts_of
from marl_sb3.checkup.player import EnvUnderTest, Job, StoppedError, Watch, noted
from marl_sb3.envs.registry import EnvFactory, env_factory
from marl_sb3.errors import ConfigError, EnvRaisedError
from marl_sb3.processes.channel import anonymous_file
from marl_sb3.processes.fork_server import Forker, ForkServer
from marl_sb3.processes.messages import ProcessContext, by_value, packed_request
from marl_sb3.processes.serve import Link
from marl_sb3.processes.worker import Worker, WorkerLostError, ending

_MODULES = f"{__name__},marl_sb3.checkup.examination"
_LOOK_S = 0.1
_LAST_OUTPUT = 2000  # bytes

_factories: dict[str, EnvFactory] = {}  # of envs that a new process cannot import; a fork of this one has them


class EnvProcess:
    """A process that plays the env, and what it has told.

    Args:
        job: what it plays.
        factory: for an env that a new process cannot import: the process is forked from this one. None: it is new.

    Attributes:
        findings: what it has found, and how it ended if the env ended it.
        told: by name, the facts and the fingerprint.

    Raises:
        ConfigError: no process can be started.
    """

    def __init__(self, job: Job, factory: EnvFactory | None) -> None:
        self._job = job
        self.findings: list[Finding] = []
        self.told: dict[str, Any] = {}
        self._output = anonymous_file("marl_sb3-output")
        # Two new processes have nothing in common, such as the order of sets.
        self._starter = ForkServer(_MODULES) if factory is None else Forker()
        if factory is not None:
            _factories[job.env] = factory
        request = packed_request("run", (ProcessContext.here(imports=True), by_value((_examine, (job,)))))
        self._worker = Worker(
            "the env's process",
            lambda: self._starter,
            request,
            timeout_s=job.timeout_s,
            look_s=_LOOK_S,
            descriptors=[self._output],
        )
        self._worker.start()
        _factories.pop(job.env, None)

    def wait(self, on_call: Callable[[str], None]) -> None:
        """Wait for the end of the process; it is killed if a call of the env takes too long.

        Args:
            on_call: called several times a second with what is played.

        Raises:
            ConfigError: the env's id or its arguments are wrong.
            EnvRaisedError: the env could not be imported.
            RuntimeError: the examination itself failed.
        """
        try:
            Worker.result(self._worker.receive(on_news=self._take, on_look=lambda: on_call(self._words())))
        except WorkerLostError as error:
            self.findings.append(self._end(error))
        except (ConfigError, EnvRaisedError):
            raise
        except Exception as error:
            raise RuntimeError(f"the examination failed:\n{error.__cause__}") from error

    def _take(self, news: Finding | dict[str, Any]) -> None:
        if isinstance(news, Finding):
            self.findings.append(news)
        else:
            self.told.update(news)

    def _words(self) -> str:
        call, episode, step = noted(self._worker.heartbeat)
        where = [] if episode is None else [f"episode {episode}"]
        return ", ".join([*where, *([] if step is None else [f"step {step}"]), call])

    def _end(self, lost: WorkerLostError) -> Finding:
        call, episode, step = noted(self._worker.heartbeat)
        place = _place(lost.stacks)
        size = os.fstat(self._output).st_size
        output = os.pread(self._output, _LAST_OUTPUT, max(0, size - _LAST_OUTPUT)).decode("utf-8", "replace")
        if lost.has_hung:
            check, what = "hangs", f"{call} has not returned after {self._job.timeout_s:g} s{place}"
        else:
            check, what = "crashes", f"{call} ended the process: {ending(lost.code)}{place}"
        if "facts" in self.told:
            check, what = "render-fails", f"while a picture was made, {what}"
        return told_finding(check, Seen(what, None, episode, step, None, f"{lost.stacks}{output}" or None))

    def close(self) -> None:
        """End the process."""
        self._worker.free()
        self._starter.close()
        os.close(self._output)


def told_finding(check_id: str, seen: Seen) -> Finding:
    """The finding of a check that is made outside the process."""
    return Finding.of(next(check for check in CHECKS if check.id == check_id), [seen])


def _place(stacks: str) -> str:
    """The innermost line of Python that was running, as the fault handler wrote it."""
    frame = re.search(r'File "(.+)", line (\d+) in (\S+)', stacks)
    return "" if frame is None else " ({}, line {}, in {})".format(*frame.groups())


# --- In the process --------------------------------------------------------------------------------------------------


def _examine(link: Link, job: Job) -> None:
    """Play, and tell what is found at once, so that it is known if the env ends the process."""
    link.write_to(link.descriptors[0])
    watch = Watch(link.heartbeat)
    watch.at("the import of the env")
    subject = EnvUnderTest(job, _factories.get(job.env) or env_factory(job.env), watch)
    if job.only_fingerprint:
        _tell_fingerprint(link, subject)
    else:
        _tell_findings(link, subject)
    watch.rest()


def _tell_findings(link: Link, subject: EnvUnderTest) -> None:
    from marl_sb3.checkup.examination import examine_here

    def tell_facts() -> None:
        evidence = subject.evidence
        link.tell({"facts": facts_of(evidence), "fingerprint": evidence.fingerprint if evidence.repeats else None})

    for finding in examine_here(subject, tell_facts):
        link.tell(finding)


def _tell_fingerprint(link: Link, subject: EnvUnderTest) -> None:
    from marl_sb3.checkup.probes import fingerprint_of, look_at_interface

    with suppress(StoppedError):  # the other process says so
        look_at_interface(subject)
        link.tell({"fingerprint": fingerprint_of(subject, 0)})
