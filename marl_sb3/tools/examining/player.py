"""Play episodes with random actions in an env under examination, record what it returns, and survive what it does."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.envs.faults import RAISED, in_words
from marl_sb3.core.envs.registry import EnvFactory, make_env
from marl_sb3.core.vec_env.slot import EndedAgents
from marl_sb3.errors import EnvRaisedError, MarlSb3Error
from marl_sb3.extensions.remote.processes.channel import Heartbeat
from marl_sb3.stacks import awaited
from marl_sb3.tools.examining.finding import (
    Difference,
    Evidence,
    Fingerprint,
    PlayedEpisode,
    Seen,
    Step,
    checksum,
    difference,
    mapping,
    shown,
)
from marl_sb3.types import AgentID
from marl_sb3.wrappers.observations import policy_actions

_REPEATED_STEPS = 300  # of an episode that is played again, at most
_PARTS = ("observations", "rewards", "terminated", "truncated", "infos")  # of what step() returns

Records = Literal["everything", "fingerprints", "nothing"]
Repeated = Callable[[Step], Mapping[AgentID, Any]]  # from a recorded step: the actions to repeat; others are drawn


@dataclass(frozen=True)
class Job:
    """What a process plays."""

    # An env id that the process can import; another name if the process is forked from one that has the factory.
    env: str
    env_kwargs: Mapping[str, Any]  # for the factory
    seed: int  # determines all seeds
    episodes: int  # how many are recorded at most
    steps: int  # how many env steps are recorded at most
    seconds: float  # how long recording may take
    measure_s: float  # how long speed is measured
    timeout_s: float  # how long one call of the env may take
    wrappers: Sequence[tuple[str, dict[str, Any]]] = ()  # as `wrapping_factory` takes them
    # Play the first episode and nothing else, to compare it with that of another process.
    only_fingerprint: bool = False


def noted(heartbeat: Heartbeat) -> tuple[str, int | None, int | None]:
    """Return the call that a process has noted last, see `EnvUnderTest.at`, its episode and its step."""
    call, episode, step = (heartbeat.text or "the start of the process||").split("|")
    return call, int(episode) if episode else None, int(step) if step else None


class StoppedError(Exception):
    """The env did something after which a probe cannot continue."""

    def __init__(self, check: str, seen: Seen) -> None:
        super().__init__(str(seen))
        self.check, self.seen = check, seen


def guarded(call: Callable[[], Any], name: str, episode: int | None = None, step: int | None = None) -> Any:
    """Call the env.

    Raises:
        StoppedError: it raised an exception, or tried to end the process.
    """
    try:
        return call()
    except RAISED as error:
        words = f"{name}: {error}" if isinstance(error, MarlSb3Error) else in_words(error, name)
        raise StoppedError("raises", Seen(words, None, episode, step, None, traceback.format_exc())) from error


@dataclass
class EnvUnderTest:
    """The env under examination: makes instances of it, and keeps what is known of it."""

    job: Job  # what is played, and how much
    factory: EnvFactory  # makes a new env
    heartbeat: Heartbeat | None = None  # tells the main process of every call; None: this is the main process
    evidence: Evidence = field(default_factory=Evidence)  # what has been recorded
    repeated_steps: int = _REPEATED_STEPS  # of the first episode when it is played again
    # Of the first episode, when it is played again after others; None: it cannot be compared.
    fingerprint_again: Fingerprint | None = None
    moved_globals: tuple[str, ...] = ()  # the global random generators whose state changed while it was played
    awaited: list[Any] = field(default_factory=awaited)  # threads and processes that ran before the env was made

    def at(self, call: str, episode: int | None = None, step: int | None = None) -> None:
        """Note the call that comes next; see `noted`."""
        if self.heartbeat is not None:
            self.heartbeat.enter(f"{call}|{'' if episode is None else episode}|{'' if step is None else step}")

    def rest(self) -> None:
        """Note that the next work is not that of the env: it has no time limit."""
        if self.heartbeat is not None:
            self.heartbeat.rest()

    def seeds(self, episode: int) -> tuple[int, int]:
        """Return the seed of an episode and the seed of its actions. The former has 31 bits, which all envs accept."""
        seed = int(np.random.SeedSequence((self.job.seed, episode)).generate_state(1)[0]) >> 1
        return seed, self.job.seed + episode

    def make(self, **more: Any) -> ParallelEnv:
        """Make a new env.

        Raises:
            ConfigError: the factory does not take the arguments, or returns no env.
            StoppedError: it raised an exception.
        """
        self.at("the env's factory")
        try:
            return make_env(self.factory, 0, {**self.job.env_kwargs, **more})
        except EnvRaisedError as error:
            raise StoppedError("raises", Seen(str(error).removeprefix("env 0: "))) from error

    @contextmanager
    def player(self, records: Records = "fingerprints", **more: Any) -> Iterator[ProbePlayer]:
        """Make a player of a new env, which is closed afterwards; `more` are arguments besides those of the job."""
        env = self.make(**more)
        try:
            yield ProbePlayer(self, env, records)
        finally:
            self.close(env)

    def close(self, env: ParallelEnv) -> None:
        """Close an env."""
        self.at("close()")
        try:
            guarded(env.close, "close()")
        except StoppedError as stopped:
            self.evidence.report("close-raises", stopped.seen)
        self.rest()


class ProbePlayer:
    """Plays an instance of the env under examination with random actions.

    Of `records`, `everything` copies all that the env returns into the episode, `fingerprints` keeps checksums alone,
    and `nothing` disturbs measurements least. It may change between steps.
    """

    def __init__(self, subject: EnvUnderTest, env: ParallelEnv, records: Records) -> None:
        self.env, self.records = env, records
        self._subject, self._evidence = subject, subject.evidence
        self._ended = EndedAgents()
        self._to_act: tuple[AgentID, ...] = ()
        self._spaces: dict[AgentID, spaces.Space[Any]] = {}  # of actions
        self._latest: tuple[Mapping[AgentID, Any], Mapping[AgentID, Any]] = ({}, {})  # observations, infos; no copies
        self.episode = PlayedEpisode(-1, 0)  # the one that is played
        self.fingerprint: Fingerprint = []  # of this episode
        self.steps_done = 0  # of this episode
        self.actions: dict[AgentID, Any] = {}  # of its latest step
        self.busy_s = 0.0  # seconds in the env since the player was made

    def play(self, seeds: tuple[int, int], most_steps: int, until: float = math.inf) -> None:
        """Play an episode, or the beginning of it.

        Args:
            seeds: of the env and of the actions.
            most_steps: where it is cut.
            until: time of `time.perf_counter` at which it is cut.
        """
        self.begin(seeds)
        self.play_on(most_steps, until)

    def play_on(self, most_steps: int, until: float = math.inf) -> None:
        """Continue the episode until it is over, or is cut as by `play`."""
        while self.goes_on and self.steps_done < most_steps and time.perf_counter() < until:
            self.step()

    def play_through(self, seeds: Iterator[tuple[int, int]], until: float, most_steps: float = math.inf) -> int:
        """Play on through the ends of episodes, each with the next seeds; return the number of steps."""
        steps = 0
        while steps < most_steps and self.episode.stopped is None and time.perf_counter() < until:
            if self.goes_on:
                self.step()
                steps += 1
            else:
                self.begin(next(seeds))
        return steps

    def replay(self, episode: PlayedEpisode, seeds: tuple[int, int], actions: Repeated, until: float) -> Iterator[Step]:
        """Play an episode again; yield each recorded step after the new one, until either episode or the time is over.

        Args:
            seeds: of the env, and of the actions that are not repeated.
        """
        self.begin(seeds)
        for recorded in episode.steps:
            if recorded.number > 0:
                if not self.goes_on or time.perf_counter() > until:
                    return
                self.step(actions(recorded))
            if self.episode.stopped is not None:
                self._evidence.report(*self.episode.stopped)
                return
            yield recorded

    def differs(self, recorded: Step) -> Difference | None:
        """Return what the latest step differs in from a recorded one."""
        return difference([recorded.fingerprint()], self.fingerprint[-1:])

    def adopt(self, other: ProbePlayer) -> None:
        """Continue the episode of another player, in an env that has got the state of the other's env."""
        self.episode, self._ended = replace(other.episode), deepcopy(other._ended)
        self._latest, self.steps_done, self._to_act = other._latest, other.steps_done, other._to_act
        self._spaces = deepcopy(other._spaces)

    @property
    def goes_on(self) -> bool:
        """Whether the episode can continue."""
        return not self.episode.is_over and self.episode.stopped is None

    def begin(self, seeds: tuple[int, int]) -> None:
        """Reset the env; `seeds` are those of the env and of the actions."""
        seed, action_seed = seeds
        # Copies, as an env may draw from its own; one for each agent, which may have a space in common.
        self._spaces = {agent: deepcopy(space) for agent, space in self._evidence.action_spaces.items()}
        for number, space in enumerate(self._spaces.values()):
            space.seed(action_seed + number)
        self.episode = PlayedEpisode(self.episode.index + 1, seed)
        self.fingerprint, self._ended, self.steps_done, self._to_act = [], EndedAgents(), 0, ()
        self.actions = {}
        with self._noting_stops():
            self._record("reset()", lambda: self.env.reset(seed=seed, options=None), ("observations", "infos"))
            if not self._to_act:
                raise self._stop("no-agents", "no agent is live after reset()")

    def step(self, chosen: Mapping[AgentID, Any] | None = None) -> None:
        """Take a step of the episode with the actions that are chosen for some agents; those of others are drawn."""
        observations, infos = self._latest
        masks = {agent: mask_of(observations.get(agent), infos.get(agent)) for agent in self._to_act}
        self.actions = {agent: random_action(self._spaces[agent], mask) for agent, mask in masks.items()}
        self.actions |= {agent: action for agent, action in (chosen or {}).items() if agent in masks}
        self.steps_done += 1
        with self._noting_stops():
            self._record("step()", lambda: self.env.step(dict(self.actions)), _PARTS)
            self.episode.is_over = not self._to_act

    @contextmanager
    def _noting_stops(self) -> Iterator[None]:
        try:
            yield
        except StoppedError as stopped:
            self.episode.stopped = stopped.check, stopped.seen

    def _stop(self, check: str, what: str, value: str | None = None) -> StoppedError:
        return StoppedError(check, Seen(what, None, self.episode.index, self.steps_done, value))

    def _record(self, name: str, call: Callable[[], Any], parts: Sequence[str]) -> None:
        """Call the env, find out who acts next, and record what was returned."""
        self._subject.at(name, self.episode.index, self.steps_done)
        start = time.perf_counter()
        returned = guarded(call, name, self.episode.index, self.steps_done)
        self.busy_s += time.perf_counter() - start
        if not (isinstance(returned, tuple) and len(returned) == len(parts)):
            outline = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
            raise self._stop("bad-return", f"{name} returned {outline}, not a tuple of {len(parts)}")
        for part, value in zip(parts, returned, strict=True):
            if not isinstance(value, Mapping):
                raise self._stop("bad-return", f"{part} of {name} are no mapping by agent", shown(value))
        live = getattr(self.env, "agents", None)
        try:
            agents = tuple(live)  # type: ignore[arg-type]
        except TypeError:
            raise self._stop("no-agents", "the env's `agents` is no list", shown(live)) from None
        step = Step(self.steps_done, self._to_act, self.actions, agents, **dict(zip(parts, returned, strict=True)))
        self._ended.update(step.ends())
        self._ended.see_present(agents)
        self._to_act = tuple(agent for agent in self._evidence.agents if agent in agents and agent not in self._ended)
        before, self._latest = self._latest[0], (step.observations, step.infos)
        if self.records != "nothing":
            self.fingerprint.append(step.fingerprint())
        if self.records == "everything":
            for last in self.episode.steps[-1:]:
                kept = last.observations
                last.rewritten = tuple(a for a in kept if a in before and checksum(before[a]) != checksum(kept[a]))
            step.to_act = self._to_act
            for part in parts:
                setattr(step, part, _copy(getattr(step, part)))
            self.episode.steps.append(step)


def _copy(value: Any) -> Any:
    try:
        return deepcopy(value)
    except Exception:  # what cannot be copied is no number; the checks look at the original
        return value


def random_action(space: spaces.Space[Any], mask: Any) -> Any:
    """Return a random action that the mask allows."""
    if mask is not None and isinstance(space, spaces.Discrete):
        allowed = np.asarray(mask)
        if allowed.shape == (space.n,) and allowed.any():  # else the check of masks says so
            return space.sample(mask=allowed.astype(np.int8))
    joined: Any = policy_actions(space)
    if mask is not None and hasattr(joined, "to_env") and np.shape(mask) == (sum(joined.choices),):
        if joined is space:
            return space.sample(mask)
        joined.seed(int(space.np_random.integers(2**31)))
        return joined.to_env(joined.sample(mask))
    return space.sample()


def mask_of(observation: Any, info: Any) -> Any:
    """Return the action mask in an agent's infos or its Dict observation; None if there is none."""
    return mapping(info).get(MASK, mapping(observation).get(MASK))
