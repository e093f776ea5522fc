"""The records of an examination: what an env returned, where something was seen, and what was found."""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from gymnasium import spaces

from marl_sb3.core.config.values import counted
from marl_sb3.types import AgentID

_NOTHING: Mapping[Any, Any] = {}
_SHOWN = 120  # characters of a value


@dataclass(frozen=True)
class Seen:
    """One place where something was seen."""

    what: str  # what was seen, as a sentence without a full stop
    agent: str | None = None  # the agent; None: all of them, or the env itself
    episode: int | None = None  # index of the episode, from 0; None: not in an episode
    step: int | None = None  # index of the step, from 1; 0 is the reset
    value: str | None = None  # the value received, as text
    details: str | None = None  # more for `-v`, such as a traceback

    def __str__(self) -> str:
        where = [] if self.agent is None else [str(self.agent)]
        where += [] if self.episode is None else [f"episode {self.episode}"]
        where += [] if self.step is None else ["reset" if self.step == 0 else f"step {self.step}"]
        received = "" if self.value is None else f" (received {self.value})"
        return f"{', '.join(where)}{': ' if where else ''}{self.what}{received}"


def shown(value: Any) -> str:
    """Format a value for `Seen.value`; a long text is cut."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # the env's own class may do anything
        text = f"{type(value).__name__}, whose repr() raises {type(error).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def mapping(value: Any) -> Mapping[Any, Any]:
    """Return the value if it is a mapping, else an empty one; another check reports the wrong type."""
    return value if isinstance(value, Mapping) else _NOTHING


def truth(flag: Any) -> bool:
    """Return whether a flag is true; False for values without a truth value, such as arrays."""
    try:
        return bool(flag)
    except (TypeError, ValueError):
        return False


# --- Fingerprints -----------------------------------------------------------------------------------------------------

Fingerprint = list[dict[str, int]]  # per step: name of a value -> its checksum


class Difference(NamedTuple):
    """The first step, and the first value in it, in which two episodes differ."""

    step: int
    what: str


def checksum(value: Any) -> int:
    """Return a checksum of numbers, arrays, and lists and mappings of them; other objects count by their type."""
    return zlib.crc32(_bytes(value))


def _bytes(value: Any) -> bytes:
    if type(value) in (bool, int, float):  # most rewards and flags: NumPy takes ten times longer
        return repr(value).encode()
    if isinstance(value, Mapping):
        return b"".join(f"{key}=".encode() + _bytes(value[key]) for key in sorted(value, key=str))
    if isinstance(value, (list, tuple)):
        return b"[" + b"".join(map(_bytes, value)) + b"]"
    array = np.asarray(value)
    if array.dtype.kind in "biufc":
        return f"{array.dtype}{array.shape}".encode() + array.tobytes()
    return (value if isinstance(value, str) else type(value).__name__).encode()


def difference(one: Fingerprint, other: Fingerprint) -> Difference | None:
    """Return the first difference between two episodes, up to the end of the shorter one; None if there is none."""
    for number, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return Difference(number, next(name for name in {**first, **second} if first.get(name) != second.get(name)))
    return None


# --- Episodes ---------------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """A reset or a step, with copies of what the env returned, whatever the types of the values are."""

    number: int  # index in the episode; 0 is the reset
    acting: tuple[AgentID, ...]  # the agents that acted in it; none in a reset
    actions: Mapping[AgentID, Any]  # their actions
    agents: tuple[AgentID, ...]  # the env's `agents` afterwards
    observations: Mapping[AgentID, Any]  # by agent
    rewards: Mapping[AgentID, Any] = field(default_factory=dict)  # by agent; empty in a reset
    terminated: Mapping[AgentID, Any] = field(default_factory=dict)  # by agent; empty in a reset
    truncated: Mapping[AgentID, Any] = field(default_factory=dict)  # by agent; empty in a reset
    infos: Mapping[AgentID, Any] = field(default_factory=dict)  # by agent
    to_act: tuple[AgentID, ...] = ()  # the agents that act in the next step
    # The agents whose observation was changed by the next step, in the array returned here.
    rewritten: tuple[AgentID, ...] = ()

    def ends(self) -> dict[AgentID, tuple[bool, bool]]:
        """Return (terminated, truncated) of the agents that one of the flags is true for."""
        agents = {**self.terminated, **self.truncated}
        flags = {agent: (truth(self.terminated.get(agent)), truth(self.truncated.get(agent))) for agent in agents}
        return {agent: both for agent, both in flags.items() if any(both)}

    def fingerprint(self) -> dict[str, int]:
        """Return the checksums of all values of the step."""
        checksums = {"agents": checksum([str(agent) for agent in self.agents])}
        parts = {"observation": self.observations, "reward": self.rewards}
        for name, part in {**parts, "terminated": self.terminated, "truncated": self.truncated}.items():
            checksums.update({f"{name} of {agent}": checksum(value) for agent, value in part.items()})
        return checksums


@dataclass
class PlayedEpisode:
    """An episode as it was played."""

    index: int  # from 0, in the order of the play
    seed: int  # seed of the env's reset
    steps: list[Step] = field(default_factory=list)  # the reset and the steps
    is_over: bool = False  # whether the env ended it; False if it was cut short or failed
    # The check that reports why it failed, and what was seen; None if it did not fail.
    stopped: tuple[str, Seen] | None = None

    @property
    def length(self) -> int:
        """The number of steps, without the reset."""
        return max(0, len(self.steps) - 1)

    def seen(self, step: Step, what: str, agent: Any = None, value: str | None = None) -> Seen:
        """Return a place in this episode."""
        return Seen(what, None if agent is None else str(agent), self.index, step.number, value)

    def in_play(self) -> Iterator[tuple[Step, set[AgentID]]]:
        """Yield each step with the agents that had acted, in it or earlier, and had not ended before it."""
        playing: set[AgentID] = set()
        for step in self.steps:
            playing.update(step.acting)
            yield step, playing
            playing.difference_update(step.ends())

    def ends(self) -> dict[AgentID, tuple[int, bool, bool]]:
        """Return (step, terminated, truncated) of the first end of each agent."""
        ends: dict[AgentID, tuple[int, bool, bool]] = {}
        for step in self.steps[1:]:
            for agent, (terminated, truncated) in step.ends().items():
                ends.setdefault(agent, (step.number, terminated, truncated))
        return ends

    def rewards(self, agent: AgentID) -> list[float]:
        """Return the rewards of an agent, as far as they are finite numbers."""
        rewards = (step.rewards.get(agent) for step in self.steps[1:])
        kinds = (int, float, np.number, np.ndarray)
        return [float(each) for each in rewards if isinstance(each, kinds) and not np.ndim(each) and np.isfinite(each)]

    def returns(self) -> dict[AgentID, float]:
        """Return the sum of the rewards of each agent, as far as they are numbers; it may be infinite or NaN."""
        sums: dict[AgentID, float] = {}
        for step in self.steps[1:]:
            for agent, reward in step.rewards.items():
                with suppress(TypeError, ValueError):
                    sums[agent] = sums.get(agent, 0.0) + float(reward)
        return sums


@dataclass(frozen=True)
class Replay:
    """An episode that was played again with the same seed and other actions."""

    recorded: PlayedEpisode  # as it was played first
    replayed: PlayedEpisode  # as it was played again; it is not longer
    turn: int | None = None  # the number of the last step with other actions; None: all actions were others

    def same_length(self) -> bool:
        """Return whether both have ended, in the same step."""
        return self.recorded.is_over and self.replayed.is_over and self.recorded.length == self.replayed.length


@dataclass
class Evidence:
    """All that is known of an env."""

    agents: tuple[AgentID, ...] = ()  # its `possible_agents`
    observation_spaces: Mapping[AgentID, spaces.Space[Any]] = field(default_factory=dict)  # by agent
    action_spaces: Mapping[AgentID, spaces.Space[Any]] = field(default_factory=dict)  # by agent
    metadata: Mapping[str, Any] = field(default_factory=dict)  # of the env
    # What the probes themselves have found, by the id of the check.
    reports: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    episodes: list[PlayedEpisode] = field(default_factory=list)  # those that were recorded
    longest: int = 0  # env steps of the longest play without an end; 0: an episode has ended
    fingerprint: Fingerprint = field(default_factory=list)  # of the first episode
    repeats: bool = False  # whether the first episode can be repeated in new envs by its seed
    replays: bool = False  # whether all episodes can be repeated in any order
    seeds_differ: bool = False  # whether two seeds gave different first episodes
    # Agent -> the number of its steps in which another action has changed nothing.
    without_effect: dict[AgentID, int] = field(default_factory=dict)
    other_actions: list[Replay] = field(default_factory=list)  # episodes with other actions of all agents
    # Episodes with other actions in their first half, and then the recorded ones.
    detours: list[Replay] = field(default_factory=list)
    faulty: bool = False  # whether a fault has been found
    facts: dict[str, Any] = field(default_factory=dict)  # measurements that are no findings, such as steps per second

    def report(self, check: str, seen: Seen) -> None:
        """Record what a probe has found itself, such as the exception that stopped it; each place is kept once."""
        if seen not in self.reports[check]:
            self.reports[check].append(seen)

    def over(self) -> list[PlayedEpisode]:
        """Return the recorded episodes that the env has ended."""
        return [episode for episode in self.episodes if episode.is_over]

    def steps(self) -> Iterator[tuple[PlayedEpisode, Step]]:
        """Yield all resets and steps of the recorded episodes."""
        return ((episode, step) for episode in self.episodes for step in episode.steps)

    def values(self, part: str) -> Iterator[tuple[PlayedEpisode, Step, AgentID, Any]]:
        """Yield a part of all steps, such as `rewards`, with episode, step and agent."""
        return (
            (episode, step, agent, value)
            for episode, step in self.steps()
            for agent, value in getattr(step, part).items()
        )

    def all_facts(self) -> dict[str, Any]:
        """Return what was played, and what the probes measured."""
        over = self.over()
        ends = [end for episode in over for end in episode.ends().values()]
        return {
            "agents": [str(agent) for agent in self.agents],
            "num_episodes": len(over),
            "unending": self.longest,
            "num_env_steps": sum(episode.length for episode in self.episodes),
            "episode_len": _extremes([episode.length for episode in over]),
            "episode_return": _extremes([sum(episode.returns().values()) for episode in over]),
            "ends": dict(Counter("terminated" if terminated else "truncated" for _, terminated, _ in ends)),
            **self.facts,
        }


def _extremes(values: list[Any]) -> dict[str, float] | None:
    """Return the smallest, mean and largest value; None if there are none, or if one is no finite number."""
    if not values or not math.isfinite(sum(values)):
        return None
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}


# --- Checks and findings ----------------------------------------------------------------------------------------------


class Severity(StrEnum):
    """How bad a finding is."""

    FAULT = "fault"  # training fails, learns from wrong data, or cannot be repeated
    WARNING = "warning"  # a possible fault; the env's author has to judge
    ADVICE = "advice"  # training works, but a change would make it faster, easier or less noisy


FAULT, WARNING, ADVICE = Severity
MOST_SEEN = 5


@dataclass(frozen=True)
class Check:
    """One thing to look for; `CHECKS` lists all of them."""

    id: str  # its name in reports
    severity: Severity  # of what it finds
    title: str  # what is wrong, as a sentence without a full stop
    why: str  # why this matters for training
    remedy: str  # what to do
    # Yields the places where it is seen; none if all is well. None: the probes themselves report them.
    find: Callable[[Evidence], Iterable[Seen]] | None = None
    after: str = "episodes"  # the probe that collects what `find` looks at, see `probes.PROBES`
    once_per_agent: bool = False  # report the first place of each agent alone, of what is wrong with all its values

    def places(self, evidence: Evidence) -> list[Seen]:
        """Return all places where it is seen."""
        places = evidence.reports[self.id] if self.find is None else list(self.find(evidence))
        if self.once_per_agent:
            first: dict[str | None, Seen] = {}
            for seen in places:
                first.setdefault(seen.agent, seen)
            return list(first.values())
        return places


CHECKS: list[Check] = []  # filled by the modules of `checks`
Find = TypeVar("Find", bound=Callable[[Evidence], Iterable[Seen]])


def check(id_: str, severity: Severity, title: str, **words: Any) -> Callable[[Find], Find]:
    """Declare a check with the function that finds its places; see `Check`."""

    def declare(find: Find) -> Find:
        CHECKS.append(Check(id_, severity, title, find=find, **words))
        return find

    return declare


@dataclass(frozen=True)
class Finding:
    """What a check has found."""

    check: str  # id of the check
    severity: Severity  # how bad it is
    title: str  # what is wrong
    why: str  # why this matters for training
    remedy: str  # what to do
    seen: list[Seen]  # the first places where it was seen, at most `MOST_SEEN`
    count: int  # the number of all such places

    @classmethod
    def of(cls, check: Check, places: list[Seen]) -> Finding:
        """Make the finding of a check that has seen these places."""
        words = (check.id, check.severity, check.title, check.why, check.remedy)
        return cls(*words, places[:MOST_SEEN], len(places))


# A finding; or, once they are known, all facts, and the fingerprint that is compared with that of another process.
ReportPart: TypeAlias = "Finding | tuple[Mapping[str, Any], Fingerprint]"


@dataclass
class PartialReport:
    """The part of a report that an examination has told so far."""

    findings: list[Finding] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)  # empty before they are known
    fingerprint: Fingerprint = field(default_factory=list)  # of the first episode; empty if it cannot be compared

    def take(self, part: ReportPart) -> None:
        """Add what is told next."""
        if isinstance(part, Finding):
            self.findings.append(part)
        else:
            self.facts, self.fingerprint = part


@dataclass(frozen=True, repr=False)
class Report:
    """What was found in an env."""

    env: str  # id of the env
    seed: int  # determines the seeds of all episodes
    findings: list[Finding]  # faults first, then warnings, then advice
    # what was played, steps per second, and what fits the env, by name
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.findings.sort(key=lambda finding: list(Severity).index(finding.severity))

    def of_severity(self, severity: Severity) -> list[Finding]:
        """Return the findings that are this bad."""
        return [finding for finding in self.findings if finding.severity is severity]

    @property
    def is_healthy(self) -> bool:
        """Whether no fault was found; there may be warnings and advice."""
        return not self.of_severity(Severity.FAULT)

    def summary(self) -> str:
        """Return the numbers of findings, in words."""
        faults, warnings, advice = (len(self.of_severity(severity)) for severity in Severity)
        parts = [counted(faults, "fault") if faults else "no faults"]
        parts += [counted(warnings, "warning")] if warnings else []
        parts += ["1 piece of advice" if advice == 1 else f"{advice} pieces of advice"] if advice else []
        return ", ".join(parts)

    def __repr__(self) -> str:
        checks = ", ".join(finding.check for finding in self.findings)
        return f"<Report {self.env}: {self.summary()}{f' ({checks})' if checks else ''}>"

    def _repr_html_(self) -> str:
        """Return the report as notebooks show it."""
        from marl_sb3.extensions.display.page import note, table

        rows = [
            (each.severity.value, each.title, "; ".join(map(str, each.seen)), each.why, each.remedy)
            for each in self.findings
        ]
        head = ("", "finding", "seen", "why", "what to do")
        return note(f"{self.env}: {self.summary()}") + (table(rows, head) if rows else "")

    def to_plain(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        findings = [asdict(finding) for finding in self.findings]
        return {"env": self.env, "seed": self.seed, "healthy": self.is_healthy, "findings": findings, **self.facts}
