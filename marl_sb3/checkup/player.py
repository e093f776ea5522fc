"""Play episodes with random actions in an env under examination, record what it returns, and survive what it does."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.checkup.evidence import (
    Episode,
    Evidence,
    Fingerprint,
    Seen,
    Step,
    checksum,
    mapping,
    shown,
    step_fingerprint,
)
from marl_sb3.checkup.watch import Watch
from marl_sb3.envs.faults import RAISED, raise_in_words
from marl_sb3.envs.single_agent import MASK
from marl_sb3.errors import EnvRaisedError, MarlSb3Error, described
from marl_sb3.types import AgentID
from marl_sb3.wrappers.ended_agents import EndedAgents


class RandomActions:
    """Draws the actions of an episode, each agent from a generator of its own; masks are respected.

    Args:
        action_spaces: by agent. They are copied: an env may draw from its own.
        seed: seed of the random actions.
    """

    def __init__(self, action_spaces: Mapping[AgentID, spaces.Space[Any]], seed: int) -> None:
        self._spaces = {agent: deepcopy(space) for agent, space in action_spaces.items()}
        for number, space in enumerate(self._spaces.values()):
            space.seed(seed + number)

    def draw(self, agent: AgentID, observation: Any, info: Any) -> Any:
        """The next action of an agent."""
        space = self._spaces[agent]
        mask = mask_of(observation, info)
        if mask is None or not isinstance(space, spaces.Discrete):
            return space.sample()
        allowed = np.asarray(mask)
        if allowed.shape != (space.n,) or not allowed.any():
            return space.sample()  # the check of masks says so
        return space.sample(mask=allowed.astype(np.int8))


def mask_of(observation: Any, info: Any) -> Any:
    """The action mask in an agent's infos or its Dict observation; None if there is none."""
    return mapping(info).get(MASK, mapping(observation).get(MASK))


class StoppedError(Exception):
    """The env did something after which the play cannot continue."""

    def __init__(self, check: str, seen: Seen) -> None:
        super().__init__(str(seen))
        self.check = check
        self.seen = seen


def guarded(call: Callable[[], Any], name: str, episode: int | None = None, step: int | None = None) -> Any:
    """Call the env.

    Raises:
        StoppedError: it raised an exception, or tried to end the process.
    """
    try:
        return call()
    except RAISED as error:
        details = traceback.format_exc()
        seen = Seen(_words(error, name), None, episode, step, None, details)
        raise StoppedError("raises", seen) from error


def _words(error: BaseException, call: str) -> str:
    if isinstance(error, MarlSb3Error):
        return f"{call}: {error}"
    try:
        raise_in_words(error, call, "")
    except EnvRaisedError as told:
        return str(told).removeprefix(": ")
    return f"{call} raised {described(error)}"


class Player:
    """Plays one env with random actions.

    Args:
        env: the env.
        evidence: for the agents and their spaces.
        watch: is told of every call.
        keep: record copies of everything; otherwise only the fingerprint.

    Attributes:
        env: the env.
        episode: the one that is played.
        fingerprint: of this episode.
        steps_done: of this episode.
        actions: of its latest step.
        keeps: whether copies of everything are recorded.
    """

    def __init__(self, env: ParallelEnv, evidence: Evidence, watch: Watch, *, keep: bool = False) -> None:
        self.env = env
        self._evidence = evidence
        self._watch = watch
        self.keeps = keep
        self._ended = EndedAgents()
        self._latest: tuple[Any, Any] = ({}, {})  # observations and infos as the env returned them
        self.episode = Episode(-1, 0)
        self.fingerprint: Fingerprint = []
        self.steps_done = 0
        self.actions: Mapping[AgentID, Any] = {}

    def play(self, seed: int, action_seed: int, most_steps: int, until: float | None = None) -> Episode:
        """Play an episode, or the beginning of it.

        Args:
            seed: for the env.
            action_seed: for the actions.
            most_steps: where it is cut.
            until: time of `time.perf_counter` at which it is cut; None: never.
        """
        self.begin(seed, action_seed)
        while self.goes_on and self.steps_done < most_steps:
            if until is not None and time.perf_counter() > until:
                break
            self.step()
        return self.episode

    def begin(self, seed: int, action_seed: int) -> None:
        """Reset the env."""
        self._chosen = RandomActions(self._evidence.action_spaces, action_seed)
        self.episode = Episode(self.episode.index + 1, seed)
        self.fingerprint, self._ended, self.steps_done = [], EndedAgents(), 0
        self._attempt(self._reset)

    def adopt(self, other: Player) -> None:
        """Continue the episode of another player, in an env that has got the state of the other's env."""
        self.episode, self._ended = replace(other.episode), deepcopy(other._ended)
        self._latest, self.steps_done = other._latest, other.steps_done
        self._chosen = deepcopy(other._chosen)

    @property
    def goes_on(self) -> bool:
        """Whether the episode can continue."""
        return not self.episode.is_over and self.episode.stopped is None

    def step(self, given: Mapping[AgentID, Any] | None = None) -> None:
        """Take a step of the episode.

        Args:
            given: the actions of some agents; those of others are drawn.
        """
        self._attempt(lambda: self._step(given or {}))

    def _attempt(self, part: Callable[[], None]) -> None:
        try:
            part()
        except StoppedError as stopped:
            self.episode.stopped = stopped.check, stopped.seen

    def _reset(self) -> None:
        returned = self._call("reset()", lambda: self.env.reset(seed=self.episode.seed, options=None), 2)
        self._record(Step(0, (), {}, self._live(), returned[0], infos=returned[1]))
        if not self._acting():
            raise StoppedError("no-agents", Seen("no agent is live after reset()", None, self.episode.index, 0))

    def _step(self, given: Mapping[AgentID, Any]) -> None:
        acting = self._acting()
        observations, infos = mapping(self._latest[0]), mapping(self._latest[1])
        actions = {agent: self._chosen.draw(agent, observations.get(agent), infos.get(agent)) for agent in acting}
        actions.update((agent, action) for agent, action in given.items() if agent in actions)
        self.steps_done += 1
        returned = self._call("step()", lambda: self.env.step(dict(actions)), 5)
        step = Step(self.steps_done, acting, actions, self._live(), *returned)
        self._ended.update(step.ends())
        self._ended.look_at(step.agents)
        self._record(step)
        self.actions = actions
        self.episode.is_over = not self._acting()

    def _call(self, name: str, call: Callable[[], Any], size: int) -> Any:
        self._watch.at(name, self.episode.index, self.steps_done)
        returned = guarded(call, name, self.episode.index, self.steps_done)
        if not (isinstance(returned, tuple) and len(returned) == size):
            outline = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
            raise StoppedError("bad-return", self._seen(f"{name} returned {outline}, not a tuple of {size}"))
        names = ("observations", "infos")
        if size == 5:
            names = ("observations", "rewards", "terminated", "truncated", "infos")  # type: ignore[assignment]
        for part, value in zip(names, returned, strict=True):
            if not isinstance(value, Mapping):
                what = f"{part} of {name} are no mapping by agent"
                raise StoppedError("bad-return", self._seen(what, shown(value)))
        return returned

    def _seen(self, what: str, value: str | None = None) -> Seen:
        return Seen(what, None, self.episode.index, self.steps_done, value)

    def _live(self) -> tuple[AgentID, ...]:
        agents = getattr(self.env, "agents", None)
        try:
            return tuple(agents)  # type: ignore[arg-type]
        except TypeError:
            raise StoppedError("no-agents", self._seen("the env's `agents` is no list", shown(agents))) from None

    def _acting(self) -> tuple[AgentID, ...]:
        """The agents that act in the next step."""
        live = self._live()
        return tuple(agent for agent in self._evidence.agents if agent in live and agent not in self._ended)

    def _record(self, step: Step) -> None:
        self.fingerprint.append(
            step_fingerprint(step.agents, step.observations, step.rewards, step.terminated, step.truncated)
        )
        step.to_act = self._acting()
        former, self._latest = self._latest, (step.observations, step.infos)
        if not self.keeps:
            return
        if self.episode.steps:
            last = self.episode.steps[-1]
            last.rewritten = _rewritten(former[0], last.observations)
        step.observations, step.infos = _copy(step.observations), _copy(step.infos)
        step.rewards, step.terminated = _copy(step.rewards), _copy(step.terminated)
        step.truncated = _copy(step.truncated)
        self.episode.steps.append(step)


def _copy(value: Any) -> Any:
    try:
        return deepcopy(value)
    except Exception:  # what cannot be copied is no number; the checks look at the original
        return value


def _rewritten(returned: Mapping[AgentID, Any], copy: Mapping[AgentID, Any]) -> tuple[AgentID, ...]:
    """Return the agents whose observation has changed since the env returned it."""
    return tuple(agent for agent in copy if agent in returned and checksum(returned[agent]) != checksum(copy[agent]))
