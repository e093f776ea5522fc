"""What an examination finds: findings by severity, with the places where they were seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marl_sb3.checkup.evidence import Evidence

_SHOWN = 120  # characters of a value


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


@dataclass(frozen=True)
class Seen:
    """One place where something was seen.

    Attributes:
        what: what was seen, as a sentence without a full stop.
        agent: the agent; None: all of them, or the env itself.
        episode: index of the episode, from 0; None: not in an episode.
        step: index of the step, from 1; 0 is the reset.
        value: the value received, as text.
        details: more for `-v`, such as a traceback.
    """

    what: str
    agent: str | None = None
    episode: int | None = None
    step: int | None = None
    value: str | None = None
    details: str | None = None

    def __str__(self) -> str:
        where = [] if self.agent is None else [str(self.agent)]
        where += [] if self.episode is None else [f"episode {self.episode}"]
        where += [] if self.step is None else ["reset" if self.step == 0 else f"step {self.step}"]
        received = "" if self.value is None else f" (received {self.value})"
        return f"{', '.join(where)}{': ' if where else ''}{self.what}{received}"


def shown(value: Any) -> str:
    """A value for `Seen.value`, cut short."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # the env's own class may do anything
        text = f"{type(value).__name__}, whose repr() raises {type(error).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


@dataclass(frozen=True)
class Check:
    """One thing to look for; `checks.registry.CHECKS` lists all of them.

    Attributes:
        id: its name in reports.
        severity: of what it finds.
        title: what is wrong, as a sentence without a full stop.
        why: why this matters for training.
        remedy: what to do.
        find: yields the places where it is seen; none if all is well.
        after: the play that collects what it looks at, see `examination.PLAYS`.
    """

    id: str
    severity: Severity
    title: str
    why: str
    remedy: str
    find: Callable[[Evidence], Iterable[Seen]]
    after: str = "episodes"


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
    seen: list[Seen] = field(default_factory=list)
    count: int = 0

    def to_plain(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Finding:
        """What `to_plain` returned."""
        seen = [Seen(**place) for place in plain["seen"]]
        return cls(**{**plain, "severity": Severity(plain["severity"]), "seen": seen})


MOST_SEEN = 5


def finding_of(check: Check, seen: Iterable[Seen]) -> Finding | None:
    """The finding of a check; None if it has seen nothing."""
    places = list(seen)
    if not places:
        return None
    words = (check.id, check.severity, check.title, check.why, check.remedy)
    return Finding(*words, places[:MOST_SEEN], len(places))
