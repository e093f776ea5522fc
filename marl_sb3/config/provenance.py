"""Where each setting was given, for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where a setting was given.

    Attributes:
        words: for messages: `--set gamma`, `h.yml, arena.gamma`.
        path: its dotted key, where it was given by one: `agent1.gamma`. Empty where it was not.
    """

    words: str
    path: str = ""

    def __str__(self) -> str:
        return self.words


def source_of(sources: Mapping[str, Source], key: str | None) -> Source | None:
    """Where the setting behind an error was given.

    Args:
        sources: by the names of settings, such as `gamma`, `checkpoints.every`, `pol1.gamma` and `policies.pol1`.
        key: of the error. `pol1.gamma` finds what was set for that policy, or else for all; `pol1` the first setting
            of that policy.
    """
    if not key:
        return None
    within = (name for name in sources if name.startswith(f"{key}."))
    parts = key.split(".")  # of which a policy's id may be several
    of_all = (".".join(parts[first:]) for first in range(1, len(parts)))
    candidates = (key, next(within, ""), f"policies.{key}", *of_all)
    return next((sources[name] for name in candidates if name in sources), None)
