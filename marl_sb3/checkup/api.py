"""`marl_sb3.examine`: what `python -m marl_sb3.doctor` calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from marl_sb3.checkup.evidence import Seen, difference
from marl_sb3.checkup.finding import Report, facts_of
from marl_sb3.checkup.player import EnvUnderTest, Job, Watch
from marl_sb3.checkup.process import EnvProcess, told_finding
from marl_sb3.config.values import Count, Named, NonNegativeFloat, PositiveFloat, PositiveInt, require
from marl_sb3.envs.registry import EnvFactory, env_factory, importable_id, named_factory
from marl_sb3.processes.fork_server import CAN_FORK
from marl_sb3.storage.state import is_plain

EPISODES, STEPS = 10, 2_000  # recorded at most, unless the caller says more
_RECORD_S = 3.0  # how long recording may take, unless the caller says how much
_LONG_S = 24 * 3600.0
MEASURE_S = 0.5


def examine(
    env: str | EnvFactory,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    timeout_s: float = 30.0,
    measure_s: float = MEASURE_S,
    isolated: bool = True,
    on_call: Callable[[str], None] = lambda _: None,
) -> Report:
    """Play an env for a few seconds with random actions, and report what would go wrong in training.

    Args:
        env: an env id as on the command line, or a factory, as for `make_vec_env`.
        env_kwargs: arguments of the factory.
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
    job = Job(env_id, env_kwargs, seed, *most, seconds, measure_s, timeout_s)
    if not isolated or not CAN_FORK:
        return _examine_here(job, factory)
    return _examine_apart(job, factory, on_call)


def _examine_here(job: Job, factory: EnvFactory | None) -> Report:
    from marl_sb3.checkup.examination import examine_here  # takes seconds: other processes do this otherwise

    subject = EnvUnderTest(job, factory or env_factory(job.env), Watch())
    findings = list(examine_here(subject))
    return Report.of(job.env, job.seed, findings, facts_of(subject.evidence))


def _examine_apart(job: Job, factory: EnvFactory | None, on_call: Callable[[str], None]) -> Report:
    path = importable_id(job.env, factory)
    apart = path is not None and is_plain(job.env_kwargs)
    forked = None if apart else factory or env_factory(job.env)
    sent = replace(job, env=path or job.env)
    jobs = [sent, replace(sent, only_fingerprint=True)] if apart else [sent]
    with ExitStack() as stack:
        processes = [stack.enter_context(closing(EnvProcess(each, forked))) for each in jobs]
        for process in processes:
            process.wait(on_call)
    findings, told = processes[0].findings, processes[0].told
    differs = difference(told.get("fingerprint") or [], processes[-1].told.get("fingerprint") or [])
    if differs is not None:
        words = f"{differs.what} differs between two processes with the same seed and actions"
        findings.append(told_finding("differs-between-processes", Seen(words, None, 0, differs.step)))
    return Report.of(job.env, job.seed, findings, {**told.get("facts", {}), "compared_processes": apart})
