"""`marl_sb3.examine`: what `python -m marl_sb3.doctor` calls.

The env may abort, hang or exit in the process in which it is examined: what was found before is kept.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from marl_sb3.core.config.values import Count, Named, NonNegativeFloat, PositiveFloat, PositiveInt, require
from marl_sb3.core.envs.registry import EnvFactory, env_factory
from marl_sb3.core.state.state import is_plain
from marl_sb3.envs.finding import importable_id, named_factory
from marl_sb3.envs.gymnasium_wrappers import named_wrappers, wrapping_factory
from marl_sb3.errors import ConfigError, EnvRaisedError
from marl_sb3.extensions.remote.processes.channel import anonymous_file
from marl_sb3.extensions.remote.processes.fork_server import Forker, ForkServer
from marl_sb3.extensions.remote.processes.messages import ProcessContext, by_value, packed_request
from marl_sb3.extensions.remote.processes.serve import Link
from marl_sb3.extensions.remote.processes.worker import Worker, WorkerLostError, ending
from marl_sb3.systems import CAN_FORK
from marl_sb3.tools.examining.checks import CHECKS
from marl_sb3.tools.examining.finding import Finding, PartialReport, Report, Seen, difference
from marl_sb3.tools.examining.player import EnvUnderTest, Job, noted

EPISODES, STEPS = 10, 2_000  # recorded at most, unless the caller says more
_RECORD_S = 3.0  # how long recording may take, unless the caller says how much
_LONG_S = 24 * 3600.0
MEASURE_S = 0.5
_MODULES = f"{__name__},marl_sb3.tools.examining.probes"
_LOOK_S = 0.1
_LAST_OUTPUT = 2000  # bytes

_factories: dict[str, EnvFactory] = {}  # of envs that a new process cannot import; a fork of this one has them


def examine(
    env: str | EnvFactory,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    env_wrapper: Any = None,
    reward_weights: Sequence[float] | None = None,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    timeout_s: float = 30.0,
    measure_s: float = MEASURE_S,
    isolated: bool = True,
    on_call: Callable[[str], None] = lambda _: None,
) -> Report:
    """Play an env for a few seconds with random actions, and report mistakes that would harm a training.

    Args:
        env: an env id as on the command line, or a factory, as for `make_vec_env`.
        env_kwargs: arguments of the factory.
        env_wrapper: wrappers of a Gymnasium env, by name, as in settings.
        reward_weights: of the numbers that the env pays an agent in a step, as in settings; None: it pays one.
        episodes: how many are recorded at most; None: 10, for 3 seconds.
        steps: how many env steps are recorded at most; None: 2,000, for 3 seconds.
        seed: determines the seeds of all episodes and actions.
        timeout_s: how long one call of the env may take.
        measure_s: how long steps per second are measured; 0: not at all, and no policy is tried.
        isolated: play in processes of their own, which survive hangs and crashes of the env, and compare episodes of
            two processes. False plays in this process, where a debugger works.
        on_call: called several times a second with what is played.

    Raises:
        ConfigError: there is no such env, or an argument is wrong.
        EnvRaisedError: the module of the env raised an exception when it was imported.
    """
    env_kwargs = env_kwargs or {}
    require("env_kwargs", env_kwargs, Named)
    episodes, steps = require("episodes", episodes, PositiveInt | None), require("steps", steps, PositiveInt | None)
    seed, timeout_s = require("seed", seed, Count), require("timeout", timeout_s, PositiveFloat)
    measure_s = require("measure_s", measure_s, NonNegativeFloat)
    if not isinstance(env, str):
        env_factory(env)  # says what is wrong with it
    env_id, factory = named_factory(env)
    assert env_id is not None
    seconds = _RECORD_S if episodes is None and steps is None else _LONG_S
    most = (episodes or (EPISODES if steps is None else steps), steps or (STEPS if episodes is None else sys.maxsize))
    wrappers = named_wrappers(env_wrapper, reward_weights)
    job = Job(env_id, env_kwargs, seed, *most, seconds, measure_s, timeout_s, wrappers)
    if isolated and CAN_FORK:
        return _examine_apart(job, factory, on_call)
    from marl_sb3.tools.examining.probes import examine_here  # takes seconds: other processes do this otherwise

    told = PartialReport()
    wrapped = wrapping_factory(factory or env_factory(job.env), job.wrappers)
    examine_here(EnvUnderTest(job, wrapped), told.take)
    return Report(job.env, job.seed, told.findings, told.facts)


def _examine_apart(job: Job, factory: EnvFactory | None, on_call: Callable[[str], None]) -> Report:
    path = importable_id(job.env, factory)
    apart = path is not None and is_plain(job.env_kwargs)
    forked = None if apart else factory or env_factory(job.env)
    sent = replace(job, env=path or job.env)
    jobs = [sent, replace(sent, only_fingerprint=True)] if apart else [sent]
    with ExitStack() as stack:
        processes = [stack.enter_context(closing(_EnvProcess(each, forked))) for each in jobs]
        told, *others = [process.wait(on_call) for process in processes]
    for other in others:
        if (differs := difference(told.fingerprint, other.fingerprint)) is not None:
            words = f"{differs.what} differs between two processes with the same seed and actions"
            told.findings.append(_finding("differs-between-processes", Seen(words, None, 0, differs.step)))
    return Report(job.env, job.seed, told.findings, {**told.facts, "compared_processes": apart})


# --- The process ------------------------------------------------------------------------------------------------------


class _EnvProcess:
    """A process that plays the env.

    Args:
        job: what it plays.
        factory: for an env that a new process cannot import: the process is forked from this one. None: it is new.

    Raises:
        ConfigError: no process can be started.
    """

    def __init__(self, job: Job, factory: EnvFactory | None) -> None:
        self._job, self._told = job, PartialReport()
        self._output = anonymous_file("marl_sb3-output")
        # Two new processes have nothing in common, such as the order of sets.
        self._starter = ForkServer(_MODULES) if factory is None else Forker()
        if factory is not None:
            _factories[job.env] = factory
        request = packed_request("make", (ProcessContext.here(imports=True), by_value((_examine, (job,)))))
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

    def wait(self, on_call: Callable[[str], None]) -> PartialReport:
        """Wait for the end of the process; returns its report. If the env ended the process, that is a finding, too.

        It is killed if a call of the env takes too long.

        Args:
            on_call: called several times a second with what is played.

        Raises:
            ConfigError: the env's id or its arguments are wrong.
            EnvRaisedError: the env could not be imported.
            RuntimeError: the examination itself failed.
        """

        def tell_call() -> None:
            call, episode, step = noted(self._worker.heartbeat)
            where = {"episode": episode, "step": step}
            on_call(", ".join([*(f"{what} {n}" for what, n in where.items() if n is not None), call]))

        try:
            Worker.result(self._worker.receive(on_news=self._told.take, on_look=tell_call))
        except WorkerLostError as error:
            self._tell_end(error)
        except (ConfigError, EnvRaisedError):
            raise
        except Exception as error:
            raise RuntimeError(f"the examination failed:\n{error.__cause__}") from error
        return self._told

    def _tell_end(self, lost: WorkerLostError) -> None:
        call, episode, step = noted(self._worker.heartbeat)
        frame = re.search(r'File "(.+)", line (\d+) in (\S+)', lost.stacks)  # the innermost line that was running
        place = "" if frame is None else " ({}, line {}, in {})".format(*frame.groups())
        size = os.fstat(self._output).st_size
        output = os.pread(self._output, _LAST_OUTPUT, max(0, size - _LAST_OUTPUT)).decode("utf-8", "replace")
        if lost.has_hung:
            check, what = "hangs", f"{call} has not returned after {self._job.timeout_s:g} s{place}"
        elif not self._worker.heartbeat.text:  # no call of the env was noted yet
            raise RuntimeError(f"the examination failed before the env was imported: {ending(lost.code)}\n{output}")
        else:
            check, what = "crashes", f"{call} ended the process: {ending(lost.code)}{place}"
        if self._told.facts:
            check, what = "render-fails", f"while a picture was made, {what}"
        seen = Seen(what, None, episode, step, None, f"{lost.stacks}{output}" or None)
        self._told.findings.append(_finding(check, seen))

    def close(self) -> None:
        """End the process."""
        self._worker.free()
        self._starter.close()
        os.close(self._output)


def _finding(check_id: str, seen: Seen) -> Finding:
    """Make the finding of a check that is made outside the process of the env."""
    return Finding.of(next(check for check in CHECKS if check.id == check_id), [seen])


def _examine(link: Link, job: Job) -> None:
    """Play in this process. Each finding is sent at once: the env may end the process."""
    from marl_sb3.tools.examining.probes import examine_here  # before the import of the env, which has a time limit

    link.write_to(link.descriptors[0])
    link.heartbeat.enter("the import of the env||")
    factory = _factories.get(job.env) or env_factory(job.env)
    subject = EnvUnderTest(job, wrapping_factory(factory, job.wrappers), link.heartbeat)
    examine_here(subject, link.tell)
    subject.rest()
