"""Plays that ask the env for more than episodes: its state, its pictures, its speed."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from pettingzoo import ParallelEnv

from marl_sb3.checkup.evidence import Step
from marl_sb3.checkup.finding import Seen, shown
from marl_sb3.checkup.fingerprint import Fingerprint, difference
from marl_sb3.checkup.player import Player, StoppedError, guarded
from marl_sb3.checkup.plays import Patient
from marl_sb3.errors import ConfigError, MarlSb3Error
from marl_sb3.stacks import left_running
from marl_sb3.storage.state import is_plain
from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.vec_env import MultiAgentVecEnv, VecStep

_BEFORE, _AFTER = 10, 20  # steps before and after the state is taken, at most
_N_ENVS = 8  # of the vectorizer
_LONG = 10_000  # env steps of a measured episode at most
_PIECE, _PIECES, _PIECE_S = 30, 4, 0.08  # env steps after which memory is compared, how often, and their time
_LEAST_KEPT = 4096, 65536  # bytes per env step that are reported: of Python and NumPy; of the process, with C libraries


def bring_back(patient: Patient) -> None:
    """Copy the state of an env in the middle of an episode to a new env, and continue both."""
    evidence = patient.evidence
    with patient.player() as player:
        kind = type(player.env)
        if not all(callable(getattr(kind, name, None)) for name in ("get_state", "set_state")):
            return
        player.play(patient.seed_of(0), patient.job.seed, max(1, min(_BEFORE, evidence.episodes[0].length // 2)))
        if not player.goes_on:
            return
        try:
            seen = _state_fault(patient, player)
        except StoppedError as stopped:
            seen = stopped.seen
    if seen is not None:
        evidence.stop("state-not-restored", seen)


def _state_fault(patient: Patient, player: Player) -> Seen | None:
    """What is wrong with the state of a player's env, if anything is."""
    where = None, 0, player.steps_done
    state = guarded(player.env.get_state, "get_state()", *where[1:])
    if not (isinstance(state, dict) and is_plain(state)):
        words = "get_state() returned something else than a dictionary of numbers, strings, arrays and None"
        return Seen(words, *where, shown(state))
    with patient.player() as other:
        saved = deepcopy(state)  # as a checkpoint does: the env may return its own arrays
        guarded(lambda: other.env.set_state(saved), "set_state()", *where[1:])
        other.adopt(player)
        found = difference(_rest(player), _rest(other))
    if found is None:
        return None
    words = f"{found.what} differs after set_state() with the state of step {where[2]}"
    return Seen(words, None, 0, where[2] + 1 + found.step)


def _rest(player: Player) -> Fingerprint:
    """Continue an episode, and return what the env returns from here on."""
    player.fingerprint = []
    for _ in range(_AFTER):
        if player.goes_on:
            player.step()
    return player.fingerprint


def render_frames(patient: Patient) -> None:
    """Render a frame in each of the env's modes but `human`, which would open a window."""
    modes = patient.evidence.metadata.get("render_modes", patient.evidence.metadata.get("render.modes", ()))
    for mode in modes if isinstance(modes, (list, tuple)) else ():
        if mode is not None and mode != "human":
            _render(patient, str(mode))


def _render(patient: Patient, mode: str) -> None:
    try:
        env = patient.make(render_mode=mode)
    except (ConfigError, StoppedError) as error:
        patient.evidence.stop("render-fails", Seen(f"render_mode {mode!r}: {error}"))
        return
    try:
        player = Player(env, patient.evidence, patient.watch)
        player.play(patient.seed_of(0), patient.job.seed, 2)
        patient.watch.at("render()", 0, player.steps_done)
        fault = _picture_fault(mode, guarded(env.render, "render()", 0, player.steps_done))
        if fault:
            patient.evidence.stop("render-fails", Seen(f"render_mode {mode!r}: render() returned {fault}"))
    except StoppedError as stopped:
        seen = stopped.seen
        words = f"render_mode {mode!r}: {seen.what}"
        patient.evidence.stop("render-fails", Seen(words, None, seen.episode, seen.step, None, seen.details))
    finally:
        patient.close(env)


def _picture_fault(mode: str, picture: Any) -> str | None:
    if mode == "ansi":
        return None if isinstance(picture, str) else f"{type(picture).__name__}, not a string"
    if mode != "rgb_array":
        return None
    if not isinstance(picture, np.ndarray):
        return f"{type(picture).__name__}, not an array"
    fits = picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == np.uint8
    return None if fits else f"an array {picture.shape} of {picture.dtype}, not (height, width, 3) of uint8"


def look_for_growth(patient: Patient) -> None:
    """Measure how much memory the env keeps per env step, from one reset to another."""
    if any(patient.evidence.stopped("raises")):
        return
    with patient.player() as player, _traced_memory():
        timed = _TimedPlayer(player.env, patient.evidence, patient.watch)
        kept = _kept_bytes(patient, timed, lambda: None) and _kept_bytes(patient, timed, lambda: gc.collect(1))
    if kept:
        words = f"the process grows by {kept / 1024:,.0f} KiB in each env step, and resets do not free it"
        patient.evidence.stop("memory-grows", Seen(words))


def _kept_bytes(patient: Patient, player: Player, collect: Callable[[], object]) -> float:
    """Memory that each env step has added, as seen after resets; 0 if it is little, or does not always grow.

    Args:
        patient: the env.
        player: of the env.
        collect: called before memory is measured.
    """
    sizes, steps = [], 0
    for piece in range(_PIECES + 1):
        player.begin(patient.seed_of(0), patient.job.seed)
        collect()
        sizes.append((tracemalloc.get_traced_memory()[0], _resident_bytes()))
        if 0 < piece < _PIECES:  # in the first piece, caches fill
            steps += _play_piece(patient, player)
        elif piece == 0:
            _play_piece(patient, player)
    return max(
        _growth(each[1:], steps, least) for each, least in zip(zip(*sizes, strict=True), _LEAST_KEPT, strict=True)
    )


def _growth(sizes: Sequence[int], steps: int, least: int) -> float:
    per_piece = [later - former for former, later in pairwise(sizes)]
    mean = sum(per_piece) / max(steps, 1)
    return mean if steps >= _PIECE and mean > least and min(per_piece) > 0.5 * sum(per_piece) / len(per_piece) else 0.0


def _play_piece(patient: Patient, player: Player) -> int:
    """Play on for some steps, through the ends of episodes; returns how many."""
    until, steps, episode = time.perf_counter() + _PIECE_S, 0, 0
    while steps < _PIECE and player.episode.stopped is None and time.perf_counter() < until:
        if not player.goes_on:
            episode += 1
            player.begin(patient.seed_of(episode), patient.job.seed)
        else:
            player.step()
            steps += 1
    return steps


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


@contextmanager
def _traced_memory() -> Iterator[None]:
    """Count the memory of Python and NumPy."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        yield
    finally:
        if not was_tracing:
            tracemalloc.stop()


def name_left_running(patient: Patient) -> None:
    """Look for threads and processes that run on after all envs were closed."""
    for name in left_running(patient.awaited):
        patient.evidence.stop("left-running", Seen(f"{name} runs on after close()"))


def measure_speed(patient: Patient) -> None:
    """Count the env steps per second of one env alone, and of a vectorizer, with random actions."""
    if patient.job.measure_s <= 0 or any(patient.evidence.stopped("raises")):
        return
    with patient.player() as player:
        patient.evidence.facts["env_steps_per_s"] = _speed_alone(patient, player.env)
    patient.evidence.facts.update(_through_vectorizer(patient))


def _speed_alone(patient: Patient, env: ParallelEnv) -> float:
    player = _TimedPlayer(env, patient.evidence, patient.watch)
    until, steps, episode = time.perf_counter() + patient.job.measure_s, 0, 0
    while time.perf_counter() < until and player.episode.stopped is None:
        player.play(patient.seed_of(episode), patient.job.seed + episode, _LONG, until)
        steps, episode = steps + player.steps_done, episode + 1
    return steps / max(player.busy_s, 1e-9)


class _TimedPlayer(Player):
    """Measures the time that the env takes, and records nothing else.

    Attributes:
        busy_s: seconds in the env.
    """

    busy_s = 0.0

    def _call(self, name: str, call: Callable[[], Any], size: int) -> Any:
        start = time.perf_counter()
        returned = super()._call(name, call, size)
        self.busy_s += time.perf_counter() - start
        return returned

    def _record(self, step: Step) -> None:
        self._latest = (step.observations, step.infos)


def _through_vectorizer(patient: Patient) -> dict[str, Any]:
    from marl_sb3.checkup.fit import RandomRows, fitting
    from marl_sb3.vec_env import make_vec_env

    patient.watch.at("make_vec_env()")
    try:
        with closing(make_vec_env(patient.factory, _N_ENVS, patient.job.seed, **patient.job.env_kwargs)) as vec_env:
            patient.watch.rest()
            facts = fitting(vec_env, patient.evidence)
            if any(patient.evidence.stopped("no-algorithm")):
                return facts
            return {**facts, **_speed_of(vec_env, RandomRows(vec_env, patient.job.seed).draw, patient)}
    except MarlSb3Error as error:
        patient.evidence.stop("vectorizer-refuses", Seen(str(error)))
        return {}


def _speed_of(vec_env: MultiAgentVecEnv, draw: Callable[[VecStep], list[Array]], patient: Patient) -> dict[str, Any]:
    step, count, busy_s = vec_env.reset(), 0, 0.0
    until = time.perf_counter() + patient.job.measure_s
    while time.perf_counter() < until:
        patient.watch.at("step() of the vectorizer", None, count)
        drawn = draw(step)
        start = time.perf_counter()
        step = vec_env.step(drawn)
        busy_s, count = busy_s + time.perf_counter() - start, count + 1
    return {"vectorizer_n_envs": _N_ENVS, "vectorizer_env_steps_per_s": _N_ENVS * count / max(busy_s, 1e-9)}
