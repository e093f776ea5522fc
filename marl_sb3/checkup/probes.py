"""The probes of an examination, in their order: what each makes the env do, and what it leaves in the evidence."""

from __future__ import annotations

import gc
import math
import random
import re
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.checkup.evidence import Comparisons, Evidence, Fingerprint, Seen, Step, checksum, difference, shown
from marl_sb3.checkup.job import Job
from marl_sb3.checkup.player import Player, StoppedError, guarded
from marl_sb3.checkup.watch import Watch
from marl_sb3.envs.registry import EnvFactory, make_env
from marl_sb3.errors import ConfigError, EnvRaisedError, MarlSb3Error
from marl_sb3.stacks import awaited, left_running
from marl_sb3.storage.state import is_plain
from marl_sb3.types import AgentID, Array
from marl_sb3.wrappers.env_interface import require_interface

if TYPE_CHECKING:
    from marl_sb3.vec_env import MultiAgentVecEnv, VecStep

_REPEATED_STEPS = 300  # of an episode that is played again, at most
_REPEATED_S = 0.6  # how long that may take
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # which Gymnasium puts around its warnings
_MOST_BYTES = 2**28  # of observations that are kept
UNENDING_STEPS = 10_000  # after which an episode without an end is reported


class Patient:
    """The env under examination.

    Args:
        job: what is played, and how much.
        factory: makes a new env.
        watch: is told of every call.

    Attributes:
        job: as given.
        factory: as given.
        watch: as given.
        evidence: what has been recorded.
        repeated_steps: of the first episode when it is played again.
        awaited: the threads and processes that ran before the env was made.
    """

    def __init__(self, job: Job, factory: EnvFactory, watch: Watch) -> None:
        self.job, self.factory, self.watch = job, factory, watch
        self.evidence = Evidence()
        self.repeated_steps = _REPEATED_STEPS
        self.awaited = awaited()

    def make(self, **more: Any) -> ParallelEnv:
        """A new env.

        Raises:
            ConfigError: the factory does not take the arguments, or returns no env.
            StoppedError: it raised an exception.
        """
        self.watch.at("the env's factory")
        try:
            return make_env(self.factory, 0, {**self.job.env_kwargs, **more})
        except EnvRaisedError as error:
            raise StoppedError("raises", Seen(str(error).removeprefix("env 0: "))) from error

    def seed_of(self, episode: int) -> int:
        """The seed of an episode: 31 bits, as many as all envs take."""
        return int(np.random.SeedSequence((self.job.seed, episode)).generate_state(1)[0]) >> 1

    @contextmanager
    def player(self, *, keep: bool = False) -> Iterator[Player]:
        """A player of a new env, which is closed afterwards."""
        env = self.make()
        try:
            yield Player(env, self.evidence, self.watch, keep=keep)
        finally:
            self.close(env)

    def close(self, env: ParallelEnv) -> None:
        """Close an env."""
        self.watch.at("close()")
        try:
            guarded(env.close, "close()")
        except StoppedError as stopped:
            self.evidence.stop("close-raises", stopped.seen)


def look_at_interface(patient: Patient) -> None:
    """Make the env, and ask it for agents, spaces and metadata."""
    env, evidence = patient.make(), patient.evidence
    patient.watch.at("the env's spaces")
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
        patient.close(env)


def _spaces(env: ParallelEnv, kind: str, evidence: Evidence) -> dict[AgentID, spaces.Space[Any]]:
    """The spaces of all agents, each asked for twice."""
    found, again = {}, {}
    for agent in evidence.agents:
        found[agent], again[agent] = (getattr(env, kind)(agent) for _ in range(2))
    changed = [agent for agent in found if found[agent] != again[agent]]
    if changed:
        evidence.stop("space-changes", Seen(f"{kind}() returned two different spaces", str(changed[0])))
    return found


def record_episodes(patient: Patient) -> None:
    """Play episodes one after the other in one env, and keep copies of everything."""
    evidence, left = patient.evidence, min(patient.job.steps, _most_steps(patient.evidence))
    start = time.perf_counter()
    until = start + patient.job.seconds
    _seed_globals(patient.job.seed)
    with patient.player(keep=True) as player, _warnings_kept(evidence):
        moved = _moved(lambda: player.play(patient.seed_of(0), patient.job.seed, left, until))
        rate = player.steps_done / (time.perf_counter() - start)
        patient.repeated_steps = max(1, min(_REPEATED_STEPS, player.steps_done, round(_REPEATED_S * rate)))
        evidence.fingerprint = player.fingerprint[: patient.repeated_steps + 1]
        _keep(evidence, player)
        while (left := left - player.steps_done) > 0 and player.episode.is_over and _more(patient, until):
            number = len(evidence.episodes)
            player.play(patient.seed_of(number), patient.job.seed + number, left, until)
            _keep(evidence, player)
        if player.goes_on and not any(episode.is_over for episode in evidence.episodes):
            _play_on(patient, player)
        if evidence.episodes[0].stopped is None:
            evidence.comparisons = Comparisons(moved=moved)
            evidence.comparisons.again = difference(evidence.fingerprint, _again(patient, player))


def _most_steps(evidence: Evidence) -> int:
    """Return how many steps fit into the memory for observations."""
    size = sum(map(_size, evidence.observation_spaces.values()))
    return max(1, _MOST_BYTES // max(1, size))


def _size(space: spaces.Space[Any]) -> int:
    """Bytes of an observation."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return sum(map(_size, parts))
    return math.prod(space.shape or ()) * (space.dtype.itemsize if space.dtype is not None else 8)


def _more(patient: Patient, until: float) -> bool:
    return len(patient.evidence.episodes) < patient.job.episodes and time.perf_counter() < until


def _keep(evidence: Evidence, player: Player) -> None:
    evidence.episodes.append(player.episode)
    if player.episode.stopped is not None:
        evidence.stop(*player.episode.stopped)


def _play_on(patient: Patient, player: Player) -> None:
    """Continue an episode to find its end, without recording its steps."""
    episode, until = player.episode, time.perf_counter() + patient.job.seconds
    player.keeps = False
    while player.goes_on and player.steps_done < UNENDING_STEPS and time.perf_counter() < until:
        player.step()
    player.keeps = True
    if player.goes_on:
        patient.evidence.longest = player.steps_done
    episode.is_over = False  # not in the steps that are kept
    if episode.stopped is not None:
        patient.evidence.stop(*episode.stopped)


def _again(patient: Patient, player: Player) -> Fingerprint:
    player.play(patient.seed_of(0), patient.job.seed, patient.repeated_steps)
    return player.fingerprint


def repeat_episodes(patient: Patient) -> None:
    """Play the first episode again in new envs: with the same seed, with another, and beside another env."""
    evidence, found = patient.evidence, patient.evidence.comparisons
    if found is None:
        return
    _seed_globals(patient.job.seed + 1)
    again = fingerprint_of(patient, 0)
    found.fresh = difference(evidence.fingerprint, again)
    if found.fresh is not None:
        one, other = (_with_globals(patient) for _ in range(2))
        found.fresh_with_globals = difference(one, other)
        return
    found.other_seed = difference(evidence.fingerprint, fingerprint_of(patient, 1))
    found.interleaved = difference(evidence.fingerprint, _interleaved(patient))


def fingerprint_of(patient: Patient, episode: int) -> Fingerprint:
    """The fingerprint of a new env's first episode, with this episode's seed and the actions of the first."""
    with patient.player() as player:
        player.play(patient.seed_of(episode), patient.job.seed, patient.repeated_steps)
        return player.fingerprint


def _with_globals(patient: Patient) -> Fingerprint:
    _seed_globals(patient.job.seed)
    return fingerprint_of(patient, 0)


def _interleaved(patient: Patient) -> Fingerprint:
    with patient.player() as player, patient.player() as neighbour:
        player.begin(patient.seed_of(0), patient.job.seed)
        neighbour.begin(patient.seed_of(1), patient.job.seed + 1)
        while player.goes_on and player.steps_done < patient.repeated_steps:
            player.step()
            if neighbour.goes_on:
                neighbour.step()
        return player.fingerprint


def _seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - envs may draw from it


def _moved(play: Callable[[], Any]) -> tuple[str, ...]:
    """The global generators that an env draws from, or seeds, while it plays."""
    before = _global_states()
    play()
    after = _global_states()
    return tuple(name for name in before if before[name] != after[name])


def _global_states() -> dict[str, Any]:
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    return {"random": random.getstate(), "numpy.random": (checksum(numpy_state[1]), *numpy_state[2:])}


@contextmanager
def _warnings_kept(evidence: Evidence) -> Iterator[None]:
    """Keep what the env warns of in the evidence, each warning once; deprecations are for its author."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    kinds = (DeprecationWarning, PendingDeprecationWarning, ResourceWarning)
    for warning in caught:
        words = " ".join(_COLOURS.sub("", str(warning.message)).split())
        if not issubclass(warning.category, kinds) and words not in evidence.warned:
            evidence.warned.append(words)


@contextmanager
def restored_globals() -> Iterator[None]:
    """Leave the global generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


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
