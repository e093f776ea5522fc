"""What an examination finds: checks, their findings by severity, and the report of all findings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from marl_sb3.checkup.evidence import Evidence, Seen
from marl_sb3.config.values import counted


class Severity(StrEnum):
    """How bad a finding is.

    Attributes:
        FAULT: training fails, learns from wrong data, or cannot be repeated.
        WARNING: a possible fault; the env's author has to judge.
        ADVICE: training works, but a change would make it faster, easier or less noisy.
    """

    FAULT = "fault"
    WARNING = "warning"
    ADVICE = "advice"


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
    """What a check has found.

    Attributes:
        check: id of the check.
        severity: how bad it is.
        title: what is wrong.
        why: why this matters for training.
        remedy: what to do.
        seen: the first places where it was seen, at most `MOST_SEEN`.
        count: the number of all such places.
    """

    check: str
    severity: Severity
    title: str
    why: str
    remedy: str
    seen: list[Seen]
    count: int

    @classmethod
    def of(cls, check: Check, places: list[Seen]) -> Finding:
        """Make the finding of a check that has seen these places."""
        words = (check.id, check.severity, check.title, check.why, check.remedy)
        return cls(*words, places[:MOST_SEEN], len(places))


@dataclass(frozen=True, repr=False)
class Report:
    """What was found in an env.

    Attributes:
        env: id of the env.
        seed: determines the seeds of all episodes.
        findings: faults first, then warnings, then advice.
        facts: what was played, steps per second, and what fits the env, by name.
    """

    env: str
    seed: int
    findings: list[Finding]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, env: str, seed: int, findings: Iterable[Finding], facts: Mapping[str, Any]) -> Report:
        """Make a report with its findings in order."""
        order = list(Severity)
        return cls(env, seed, sorted(findings, key=lambda finding: order.index(finding.severity)), facts)

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

    def to_plain(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        findings = [asdict(finding) for finding in self.findings]
        return {"env": self.env, "seed": self.seed, "healthy": self.is_healthy, "findings": findings, **self.facts}


def facts_of(evidence: Evidence) -> dict[str, Any]:
    """Return what was played, and what the probes measured."""
    over = evidence.over()
    ends = [end for episode in over for end in episode.ends().values()]
    return {
        "agents": [str(agent) for agent in evidence.agents],
        "num_episodes": len(over),
        "unending": evidence.longest,
        "num_env_steps": sum(episode.length for episode in evidence.episodes),
        "episode_len": _extremes([episode.length for episode in over]),
        "episode_return": _extremes([sum(episode.returns().values()) for episode in over]),
        "ends": dict(Counter("terminated" if terminated else "truncated" for _, terminated, _ in ends)),
        **evidence.facts,
    }


def _extremes(values: list[Any]) -> dict[str, float] | None:
    """Return the smallest, mean and largest value; None if there are none, or if one is no finite number."""
    if not values or not math.isfinite(sum(values)):
        return None
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}
