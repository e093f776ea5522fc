"""The examination of an env: the probes in their order, each followed by its checks.

A probe makes the env do something, and leaves what it finds in the evidence.
"""

from __future__ import annotations

import gc
import io
import math
import random
import re
import time
import traceback
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import psutil
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.core.state.state import is_plain
from marl_sb3.errors import ConfigError, EnvRaisedError, MarlSb3Error
from marl_sb3.stacks import left_running
from marl_sb3.tools.examining.checks import CHECKS
from marl_sb3.tools.examining.finding import (
    FAULT,
    Check,
    Difference,
    Evidence,
    Finding,
    Fingerprint,
    ReportPart,
    Seen,
    checksum,
    difference,
    shown,
)
from marl_sb3.tools.examining.player import EnvUnderTest, ProbePlayer, StoppedError, guarded
from marl_sb3.tools.examining.replays import replay_episodes
from marl_sb3.types import AgentID
from marl_sb3.wrappers.checks import require_interface

UNENDING_STEPS = 10_000  # after which an episode without an end is reported
_REPEATED_S = 0.6  # how long an episode that is played again may take
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # which Gymnasium puts around its warnings
_FOR_AUTHORS = (DeprecationWarning, PendingDeprecationWarning, ResourceWarning)  # warnings that are not reported
_MOST_BYTES = 2**28  # of observations that are kept
_STEPS_BEFORE, _STEPS_AFTER = 10, 20  # the state of an env is taken, at most
_N_ENVS = 8  # of the vectorizer
_STATE = "state-not-restored"
_LINES = 3  # of warnings and prints that are reported
_PIECE, _PIECES, _PIECE_S = 30, 4, 0.08  # env steps after which memory is compared, how often, and their time
_LEAST_KEPT = 4096, 65536  # bytes per env step that are reported: of Python and NumPy; of the process, with C libraries


def look_at_interface(subject: EnvUnderTest) -> None:
    """Make the env, and ask it for agents, spaces and metadata."""
    env, evidence = subject.make(), subject.evidence
    subject.at("the env's spaces")
    try:
        require_interface(env)
        evidence.agents = tuple(env.possible_agents)
        evidence.observation_spaces = _spaces(env, "observation_space", evidence)
        evidence.action_spaces = _spaces(env, "action_space", evidence)
        evidence.metadata = dict(env.metadata)
    except EnvRaisedError as error:
        raise StoppedError("raises", Seen(str(error).removeprefix("env 0: "))) from error
    except ConfigError as error:
        raise StoppedError("interface", Seen(str(error))) from error
    finally:
        subject.close(env)


def _spaces(env: ParallelEnv, kind: str, evidence: Evidence) -> dict[AgentID, spaces.Space[Any]]:
    """Ask for the space of each agent twice, and return the first answers."""
    first, second = ({}, {})  # type: tuple[dict[AgentID, spaces.Space[Any]], dict[AgentID, spaces.Space[Any]]]
    for agent in evidence.agents:
        first[agent], second[agent] = (getattr(env, kind)(agent) for _ in range(2))
    changed = [agent for agent in first if first[agent] != second[agent]]
    if changed:
        evidence.report("space-changes", Seen(f"{kind}() returned two different spaces", str(changed[0])))
    return first


# --- Episodes ---------------------------------------------------------------------------------------------------------


def record_episodes(subject: EnvUnderTest) -> None:
    """Play episodes one after the other in one env, and keep copies of everything."""
    evidence = subject.evidence
    bytes_of_step = max(1, sum(map(_bytes_of, evidence.observation_spaces.values())))
    left = min(subject.job.steps, max(1, _MOST_BYTES // bytes_of_step))
    start = time.perf_counter()
    until = start + subject.job.seconds
    _seed_globals(subject.job.seed)
    with subject.player("everything") as player, _warnings_reported(evidence):
        before = _global_states()
        player.play(subject.seeds(0), left, until)
        subject.moved_globals = tuple(name for name, state in _global_states().items() if state != before[name])
        rate = player.steps_done / (time.perf_counter() - start)
        subject.repeated_steps = max(1, min(subject.repeated_steps, player.steps_done, round(_REPEATED_S * rate)))
        evidence.fingerprint = player.fingerprint[: subject.repeated_steps + 1]
        evidence.episodes.append(player.episode)
        while (left := left - player.steps_done) > 0 and player.episode.is_over and time.perf_counter() < until:
            if len(evidence.episodes) == subject.job.episodes:
                break
            player.play(subject.seeds(len(evidence.episodes)), left, until)
            evidence.episodes.append(player.episode)
        if player.goes_on and not evidence.over():  # find its end, without recording its steps
            player.records = "fingerprints"
            player.play_on(UNENDING_STEPS, time.perf_counter() + subject.job.seconds)
            evidence.longest = player.steps_done if player.goes_on else 0
            player.episode.is_over = False  # not in the steps that are kept
        for episode in evidence.episodes:
            if episode.stopped is not None:
                evidence.report(*episode.stopped)
        if evidence.episodes[0].stopped is None:
            player.play(subject.seeds(0), subject.repeated_steps)
            subject.fingerprint_again = player.fingerprint


def _bytes_of(space: spaces.Space[Any]) -> int:
    """Return the size of an observation in bytes."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return sum(map(_bytes_of, parts))
    return math.prod(space.shape or ()) * (space.dtype.itemsize if space.dtype is not None else 8)


# --- Seeds ------------------------------------------------------------------------------------------------------------


def repeat_episodes(subject: EnvUnderTest) -> None:
    """Play the first episode again in new envs: with the same seed, with another, and beside another env."""
    evidence, moved = subject.evidence, subject.moved_globals
    if subject.fingerprint_again is None:
        return
    generators = " and ".join(moved)
    _seed_globals(subject.job.seed + 1)
    fresh = difference(evidence.fingerprint, fingerprint_of(subject, 0))
    if fresh is not None:
        one, other = (fingerprint_of(subject, 0, subject.job.seed) for _ in range(2))
        if moved and difference(one, other) is None:
            _report(evidence, "global-rng", fresh, f"with the same seed, unless {generators} is seeded from outside")
            return
        _report(evidence, "unseeded", fresh, "between two new envs with the same seed and actions")
    if moved:
        words = f"the state of the global generator of {generators} changes during an episode"
        evidence.report("global-rng", Seen(words, None, 0))
    if fresh is not None:
        return
    evidence.repeats = True
    evidence.seeds_differ = difference(evidence.fingerprint, fingerprint_of(subject, 1)) is not None
    again = difference(evidence.fingerprint, subject.fingerprint_again)
    if again is not None and evidence.seeds_differ:
        _report(evidence, "state-leaks", again, "when the same seed is played again after other episodes")
    elif again is not None:
        how = "when the env is reset with the same seed again; new envs are alike with any seed"
        _report(evidence, "seed-ignored", again, how)
    with subject.player() as player, subject.player() as neighbour:
        player.begin(subject.seeds(0))
        neighbour.begin(subject.seeds(1))
        while player.goes_on and player.steps_done < subject.repeated_steps:
            player.step()
            if neighbour.goes_on:
                neighbour.step()
    interleaved = difference(evidence.fingerprint, player.fingerprint)
    if interleaved is not None and not moved:
        how = "with the same seed when another env is stepped in between"
        _report(evidence, "shared-state", interleaved, how)
    evidence.replays = again is None and not moved


def _report(evidence: Evidence, check: str, differs: Difference, how: str) -> None:
    evidence.report(check, Seen(f"{differs.what} differs {how}", None, 0, differs.step))


def fingerprint_of(subject: EnvUnderTest, episode: int, global_seed: int | None = None) -> Fingerprint:
    """Return the fingerprint of a new env's first episode, with this episode's seed and the actions of the first."""
    if global_seed is not None:
        _seed_globals(global_seed)
    with subject.player() as player:
        player.play((subject.seeds(episode)[0], subject.job.seed), subject.repeated_steps)
        return player.fingerprint


def _seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - envs may draw from it


def _global_states() -> dict[str, Any]:
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    return {"random": random.getstate(), "numpy.random": (checksum(numpy_state[1]), *numpy_state[2:])}


@contextmanager
def _restored_globals() -> Iterator[None]:
    """Leave the global generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def _warnings_reported(evidence: Evidence) -> Iterator[None]:
    """Report what the env warns of, the first warnings once each; deprecations are for its author."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    messages = [str(warning.message) for warning in caught if not issubclass(warning.category, _FOR_AUTHORS)]
    for words in list(dict.fromkeys(" ".join(_COLOURS.sub("", message).split()) for message in messages))[:_LINES]:
        evidence.report("warns", Seen(words))


# --- State ------------------------------------------------------------------------------------------------------------


def restore_state(subject: EnvUnderTest) -> None:
    """Copy the state of an env in the middle of an episode to a new env, and continue both."""
    evidence = subject.evidence
    with subject.player() as player:
        if not all(callable(getattr(type(player.env), name, None)) for name in ("get_state", "set_state")):
            return
        player.play(subject.seeds(0), max(1, min(_STEPS_BEFORE, evidence.episodes[0].length // 2)))
        if player.goes_on:
            try:
                _require_same_state(subject, player)
            except StoppedError as stopped:
                evidence.report(_STATE, stopped.seen)


def _require_same_state(subject: EnvUnderTest, player: ProbePlayer) -> None:
    """Raise a `StoppedError` if the state of a player's env is wrong."""
    step = player.steps_done
    state = guarded(player.env.get_state, "get_state()", 0, step)
    if not (isinstance(state, dict) and is_plain(state)):
        words = "get_state() returned something else than a dictionary of numbers, strings, arrays and None"
        raise StoppedError(_STATE, Seen(words, None, 0, step, shown(state)))
    with subject.player() as other:
        saved = deepcopy(state)  # as a checkpoint does: the env may return its own arrays
        guarded(lambda: other.env.set_state(saved), "set_state()", 0, step)
        other.adopt(player)
        player.fingerprint = []
        for each in (player, other):
            each.play_on(step + _STEPS_AFTER)
        differs = difference(player.fingerprint, other.fingerprint)
    if differs is not None:
        words = f"{differs.what} differs after set_state() with the state of step {step}"
        raise StoppedError(_STATE, Seen(words, None, 0, step + 1 + differs.step))


# --- Pictures ---------------------------------------------------------------------------------------------------------


def render_frames(subject: EnvUnderTest) -> None:
    """Render a frame in each of the env's modes but `human`, which would open a window."""
    metadata = subject.evidence.metadata
    named = metadata.get("render_modes", metadata.get("render.modes"))
    modes = list(named) if isinstance(named, (list, tuple)) else []
    if "rgb_array" not in modes:
        subject.evidence.report("no-film", Seen(f"render_modes are {modes!r}"))
    for mode in (str(mode) for mode in modes if mode not in (None, "human")):
        try:
            with subject.player(render_mode=mode) as player:
                player.play(subject.seeds(0), 2)
                subject.at("render()", 0, player.steps_done)
                fault = _picture_fault(mode, guarded(player.env.render, "render()", 0, player.steps_done))
            seen = Seen(f"render() returned {fault}") if fault else None
        except (StoppedError, ConfigError) as error:
            seen = error.seen if isinstance(error, StoppedError) else Seen(str(error))
        if seen is not None:
            words = f"render_mode {mode!r}: {seen.what}"
            subject.evidence.report("render-fails", replace(seen, what=words, agent=None, value=None))


def _picture_fault(mode: str, picture: Any) -> str | None:
    if mode == "ansi":
        return None if isinstance(picture, str) else f"{type(picture).__name__}, not a string"
    if mode != "rgb_array":
        return None
    if not isinstance(picture, np.ndarray):
        return f"{type(picture).__name__}, not an array"
    fits = picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == np.uint8
    return None if fits else f"an array {picture.shape} of {picture.dtype}, not (height, width, 3) of uint8"


# --- Memory, and what goes on after the end ---------------------------------------------------------------------------


def look_for_growth(subject: EnvUnderTest) -> None:
    """Measure how much memory the env keeps per env step, from one reset to another."""
    if subject.evidence.reports["raises"]:
        return
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()  # counts the memory of Python and NumPy
    try:
        with subject.player("nothing") as player:
            kept = _kept_bytes(subject, player, lambda: None) and _kept_bytes(subject, player, lambda: gc.collect(1))
    finally:
        if not was_tracing:
            tracemalloc.stop()
    if kept:
        words = f"the process grows by {kept / 1024:,.0f} KiB in each env step, and resets do not free it"
        subject.evidence.report("memory-grows", Seen(words))


def _kept_bytes(subject: EnvUnderTest, player: ProbePlayer, collect: Callable[[], object]) -> float:
    """Return the memory that each env step has added, as seen after resets; 0 if it is little, or does not always grow.

    `collect` is called before memory is measured.
    """
    sizes: list[tuple[int, int]] = []
    steps: list[int] = []
    for piece in range(_PIECES + 1):
        player.begin(subject.seeds(0))
        collect()
        sizes.append((tracemalloc.get_traced_memory()[0], int(psutil.Process().memory_info().rss)))
        if piece < _PIECES:
            until = time.perf_counter() + _PIECE_S
            steps.append(player.play_through(map(subject.seeds, count(1)), until, _PIECE))
    measured = sum(steps[1:])  # in the first piece, caches fill
    if measured < _PIECE:
        return 0.0
    per_piece = np.diff(sizes[1:], axis=0)
    per_step = per_piece.sum(axis=0) / measured
    grows = (per_step > _LEAST_KEPT) & (per_piece.min(axis=0) > 0.5 * per_piece.mean(axis=0))
    return float(per_step.max(where=grows, initial=0.0))


def name_left_running(subject: EnvUnderTest) -> None:
    """Look for threads and processes that run on after all envs were closed."""
    for name in left_running(subject.awaited):
        subject.evidence.report("left-running", Seen(f"{name} runs on after close()"))


# --- Speed ------------------------------------------------------------------------------------------------------------


def measure_speed(subject: EnvUnderTest) -> None:
    """Count the env steps per second of one env alone, and of a vectorizer, with random actions."""
    evidence = subject.evidence
    if subject.job.measure_s <= 0 or evidence.reports["raises"]:
        return
    with subject.player("nothing") as player:
        until = time.perf_counter() + subject.job.measure_s
        player.begin(subject.seeds(0))
        steps = player.play_through(map(subject.seeds, count(1)), until)
        evidence.facts["env_steps_per_s"] = steps / max(player.busy_s, 1e-9)
    try:
        evidence.facts.update(_through_vectorizer(subject))
    except MarlSb3Error as error:
        if not evidence.faulty:  # else another check has found the reason
            evidence.report("vectorizer-refuses", Seen(str(error)))


def _through_vectorizer(subject: EnvUnderTest) -> dict[str, Any]:
    """Measure several envs in a vectorizer, and return the speed with what fits the env."""
    from marl_sb3.core.envs.registry import why_not_batched
    from marl_sb3.core.vec_env.make import make_vec_env
    from marl_sb3.tools.examining.fit import fitting, random_actions

    job = subject.job
    if why_not_batched(subject.factory, job.env_kwargs) is not None:  # else compilers may run, for any time
        subject.at("make_vec_env()")
    with closing(make_vec_env(subject.factory, _N_ENVS, job.seed, **job.env_kwargs)) as vec_env:
        subject.rest()
        facts = fitting(vec_env, subject.evidence)
        if subject.evidence.reports["no-algorithm"]:
            return facts
        step, steps, busy_s = vec_env.reset(), 0, 0.0
        until = time.perf_counter() + job.measure_s
        for group in vec_env.groups:
            group.action_space.seed(job.seed)
        while time.perf_counter() < until:
            subject.at("step() of the vectorizer", None, steps)
            drawn = random_actions(vec_env, step)
            start = time.perf_counter()
            step = vec_env.step(drawn)
            busy_s, steps = busy_s + time.perf_counter() - start, steps + 1
    return {**facts, "vectorizer_n_envs": _N_ENVS, "vectorizer_env_steps_per_s": _N_ENVS * steps / max(busy_s, 1e-9)}


# --- The examination --------------------------------------------------------------------------------------------------

PROBES: Mapping[str, Callable[[EnvUnderTest], None]] = {
    "interface": look_at_interface,
    "episodes": record_episodes,
    "seeds": repeat_episodes,
    "replays": replay_episodes,
    "memory": look_for_growth,
    "state": restore_state,
    "speed": measure_speed,
    "render": render_frames,  # late: where there is no screen, it may end the process
    "end": name_left_running,
}


def examine_here(subject: EnvUnderTest, tell: Callable[[ReportPart], None]) -> None:
    """Run all probes, and tell the findings of each when it is done.

    The facts are told before the env renders, which may end the process; by then, all of them are known. If the env
    cannot be made or reset, the probes end there.

    Raises:
        ConfigError: the factory does not take the arguments, or returns no env.
    """
    if subject.job.only_fingerprint:
        with suppress(StoppedError):  # the other process says so
            look_at_interface(subject)
            tell(({}, fingerprint_of(subject, 0)))
        return
    told: set[str] = set()
    evidence = subject.evidence
    for name in PROBES:
        if name == "render":
            tell((evidence.all_facts(), evidence.fingerprint if evidence.repeats else []))
        _run_probe(subject, name)
        # What probes report comes first: it may explain what the others find.
        for check in sorted(CHECKS, key=lambda check: check.find is not None):
            if check.id in told or (check.find is not None and check.after != name):
                continue
            if finding := _found(check, evidence):
                told.add(check.id)
                evidence.faulty = evidence.faulty or finding.severity is FAULT
                tell(finding)
        was_played = any(episode.length > 0 for episode in evidence.episodes)
        if not evidence.agents or (name == "episodes" and not was_played):
            tell((evidence.all_facts(), []))
            return


def _found(check: Check, evidence: Evidence) -> Finding | None:
    """Return what a check finds; if it fails itself, that: an env may return anything, and all else is to be told."""
    try:
        places = check.places(evidence)
    except Exception as error:
        seen = Seen(f"{check.id} raised {type(error).__name__}: {error}", details=traceback.format_exc())
        check, places = next(each for each in CHECKS if each.id == "check-failed"), [seen]
    return Finding.of(check, places) if places else None


def _run_probe(subject: EnvUnderTest, name: str) -> None:
    text = io.StringIO()
    try:
        with _restored_globals(), redirect_stdout(text), redirect_stderr(text), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the probe that records episodes keeps them
            PROBES[name](subject)
    except StoppedError as stopped:
        subject.evidence.report(stopped.check, stopped.seen)
    subject.rest()
    lines = [line.strip() for line in text.getvalue().splitlines() if line.strip()]
    for line in lines[:_LINES] if name == "episodes" else ():
        subject.evidence.report("prints", Seen(f"{len(lines):,} lines, among them {line[:100]!r}"))
