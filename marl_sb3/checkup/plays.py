"""The plays of an examination, in their order: what each makes the env do, and what it leaves in the evidence."""

from __future__ import annotations

import math
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.checkup.evidence import Comparisons, Evidence
from marl_sb3.checkup.finding import Seen
from marl_sb3.checkup.fingerprint import Fingerprint, checksum, difference
from marl_sb3.checkup.job import Job
from marl_sb3.checkup.player import Player, StoppedError, guarded
from marl_sb3.checkup.watch import Watch
from marl_sb3.envs.registry import EnvFactory, make_env
from marl_sb3.errors import ConfigError, EnvRaisedError
from marl_sb3.stacks import awaited
from marl_sb3.types import AgentID
from marl_sb3.wrappers.env_interface import require_interface

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
