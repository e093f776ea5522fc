"""Play episodes with random actions in an env under examination, record what it returns, and survive what it does."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.core.envs import MASK, RAISED, EnvFactory, in_words, make_env
from marl_sb3.core.vec_env import EndedAgents
from marl_sb3.errors import EnvRaisedError, MarlSb3Error
from marl_sb3.extensions.remote import Heartbeat
from marl_sb3.stacks import awaited
from marl_sb3.tools.checkup.finding import Evidence, Fingerprint, PlayedEpisode, Seen, Step, checksum, mapping, shown
from marl_sb3.types import AgentID

_REPEATED_STEPS = 300  # of an episode that is played again, at most

Records = Literal["everything", "fingerprints", "nothing"]


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
    # Play the first episode and nothing else, to compare it with that of another process.
    only_fingerprint: bool = False


class Watch:
    """Tells the main process of every call, by the heartbeat of this process; None: this is the main process."""

    def __init__(self, heartbeat: Heartbeat | None = None) -> None:
        self._heartbeat = heartbeat

    def at(self, call: str, episode: int | None = None, step: int | None = None) -> None:
        """Note the call that comes next; see `noted`."""
        if self._heartbeat is not None:
            self._heartbeat.enter(f"{call}|{'' if episode is None else episode}|{'' if step is None else step}")

    def rest(self) -> None:
        """Note that the next work is not that of the env: it has no time limit."""
        if self._heartbeat is not None:
            self._heartbeat.rest()


def noted(heartbeat: Heartbeat) -> tuple[str, int | None, int | None]:
    """Return the call that a `Watch` has noted last, its episode and its step."""
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
    watch: Watch  # is told of every call
    evidence: Evidence = field(default_factory=Evidence)  # what has been recorded
    repeated_steps: int = _REPEATED_STEPS  # of the first episode when it is played again
    # Of the first episode, when it is played again after others; None: it cannot be compared.
    fingerprint_again: Fingerprint | None = None
    moved_globals: tuple[str, ...] = ()  # the global random generators whose state changed while it was played
    awaited: list[Any] = field(default_factory=awaited)  # threads and processes that ran before the env was made

    def seeds(self, episode: int) -> tuple[int, int]:
        """Return the seed of an episode, 31 bits, as many as all envs take; and the seed of its actions."""
        seed = int(np.random.SeedSequence((self.job.seed, episode)).generate_state(1)[0]) >> 1
        return seed, self.job.seed + episode

    def make(self, **more: Any) -> ParallelEnv:
        """Make a new env.

        Raises:
            ConfigError: the factory does not take the arguments, or returns no env.
            StoppedError: it raised an exception.
        """
        self.watch.at("the env's factory")
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
        self.watch.at("close()")
        try:
            guarded(env.close, "close()")
        except StoppedError as stopped:
            self.evidence.report("close-raises", stopped.seen)


class ProbePlayer:
    """Plays an instance of the env under examination with random actions.

    Of `records`, `everything` copies all that the env returns into the episode, `fingerprints` keeps checksums alone,
    and `nothing` disturbs measurements least. It may change between steps.
    """

    def __init__(self, subject: EnvUnderTest, env: ParallelEnv, records: Records) -> None:
        self.env, self.records = env, records
        self._evidence, self._watch = subject.evidence, subject.watch
        self._ended = EndedAgents()
        self._latest: tuple[Mapping[AgentID, Any], Mapping[AgentID, Any]] = ({}, {})  # observations, infos; no copies
        self.episode = PlayedEpisode(-1, 0)  # the one that is played
        self.fingerprint: Fingerprint = []  # of this episode
        self.steps_done = 0  # of this episode
        self.actions: Mapping[AgentID, Any] = {}  # of its latest step
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

    def begin(self, seeds: tuple[int, int]) -> None:
        """Reset the env; `seeds` are those of the env and of the actions."""
        seed, action_seed = seeds
        self._spaces = _seeded(self._evidence.action_spaces, action_seed)
        self.episode = PlayedEpisode(self.episode.index + 1, seed)
        self.fingerprint, self._ended, self.steps_done = [], EndedAgents(), 0
        self._attempt(self._reset)

    def adopt(self, other: ProbePlayer) -> None:
        """Continue the episode of another player, in an env that has got the state of the other's env."""
        self.episode, self._ended = replace(other.episode), deepcopy(other._ended)
        self._latest, self.steps_done = other._latest, other.steps_done
        self._spaces = deepcopy(other._spaces)

    @property
    def goes_on(self) -> bool:
        """Whether the episode can continue."""
        return not self.episode.is_over and self.episode.stopped is None

    def step(self, actions: Mapping[AgentID, Any] | None = None) -> None:
        """Take a step of the episode with the actions of some agents; those of others are drawn."""
        self._attempt(lambda: self._step(actions or {}))

    def _attempt(self, call: Callable[[], None]) -> None:
        try:
            call()
        except StoppedError as stopped:
            self.episode.stopped = stopped.check, stopped.seen

    def _reset(self) -> None:
        observations, infos = self._call("reset()", lambda: self.env.reset(seed=self.episode.seed, options=None), 2)
        self._record(Step(0, (), {}, self._live(), observations, infos=infos))
        if not self._acting():
            raise self._stop("no-agents", "no agent is live after reset()")

    def _step(self, chosen: Mapping[AgentID, Any]) -> None:
        acting, (observations, infos) = self._acting(), self._latest
        masks = {agent: mask_of(observations.get(agent), infos.get(agent)) for agent in acting}
        actions = {agent: random_action(self._spaces[agent], mask) for agent, mask in masks.items()}
        actions.update((agent, action) for agent, action in chosen.items() if agent in actions)
        self.steps_done += 1
        returned = self._call("step()", lambda: self.env.step(dict(actions)), 5)
        step = Step(self.steps_done, acting, actions, self._live(), *returned)
        self._ended.update(step.ends())
        self._ended.see_present(step.agents)
        self._record(step)
        self.actions = actions
        self.episode.is_over = not self._acting()

    def _call(self, name: str, call: Callable[[], Any], size: int) -> Any:
        """Call the env; whatever is returned from here is a tuple of mappings."""
        self._watch.at(name, self.episode.index, self.steps_done)
        start = time.perf_counter()
        returned = guarded(call, name, self.episode.index, self.steps_done)
        self.busy_s += time.perf_counter() - start
        if not (isinstance(returned, tuple) and len(returned) == size):
            outline = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
            raise self._stop("bad-return", f"{name} returned {outline}, not a tuple of {size}")
        parts = ("observations", *(() if size == 2 else ("rewards", "terminated", "truncated")), "infos")
        for part, value in zip(parts, returned, strict=True):
            if not isinstance(value, Mapping):
                raise self._stop("bad-return", f"{part} of {name} are no mapping by agent", shown(value))
        return returned

    def _stop(self, check: str, what: str, value: str | None = None) -> StoppedError:
        return StoppedError(check, Seen(what, None, self.episode.index, self.steps_done, value))

    def _live(self) -> tuple[AgentID, ...]:
        agents = getattr(self.env, "agents", None)
        try:
            return tuple(agents)  # type: ignore[arg-type]
        except TypeError:
            raise self._stop("no-agents", "the env's `agents` is no list", shown(agents)) from None

    def _acting(self) -> tuple[AgentID, ...]:
        """Return the agents that act in the next step."""
        live = self._live()
        return tuple(agent for agent in self._evidence.agents if agent in live and agent not in self._ended)

    def _record(self, step: Step) -> None:
        before, self._latest = self._latest[0], (step.observations, step.infos)
        if self.records == "nothing":
            return
        self.fingerprint.append(step.fingerprint())
        if self.records == "fingerprints":
            return
        for last in self.episode.steps[-1:]:
            kept = last.observations
            last.rewritten = tuple(a for a in kept if a in before and checksum(before[a]) != checksum(kept[a]))
        step.to_act = self._acting()
        for part in ("observations", "rewards", "terminated", "truncated", "infos"):
            setattr(step, part, _copy(getattr(step, part)))
        self.episode.steps.append(step)


def _copy(value: Any) -> Any:
    try:
        return deepcopy(value)
    except Exception:  # what cannot be copied is no number; the checks look at the original
        return value


def _seeded(action_spaces: Mapping[AgentID, spaces.Space[Any]], seed: int) -> dict[AgentID, spaces.Space[Any]]:
    """Return copies of the agents' spaces, as an env may draw from its own; each has another seed."""
    copies = {agent: deepcopy(space) for agent, space in action_spaces.items()}
    for number, space in enumerate(copies.values()):
        space.seed(seed + number)
    return copies


def random_action(space: spaces.Space[Any], mask: Any) -> Any:
    """Return a random action that the mask allows."""
    if mask is not None and isinstance(space, spaces.Discrete):
        allowed = np.asarray(mask)
        if allowed.shape == (space.n,) and allowed.any():  # else the check of masks says so
            return space.sample(mask=allowed.astype(np.int8))
    return space.sample()


def mask_of(observation: Any, info: Any) -> Any:
    """Return the action mask in an agent's infos or its Dict observation; None if there is none."""
    return mapping(info).get(MASK, mapping(observation).get(MASK))
