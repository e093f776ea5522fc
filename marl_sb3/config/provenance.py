"""Where each setting was given, for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where a setting was given.

    Attributes:
        label: the place, for messages: `--set gamma`, `h.yml, arena.gamma`.
        path: the dotted key with which it was given: `agent1.gamma`. Empty if it was given without one.
        order: number of the source that gave it; settings of later sources win.
    """

    label: str
    path: str = ""
    order: int = 0

    def __str__(self) -> str:
        """Return the label; what a terminal cannot print, or would obey, is escaped: a file may hold anything."""
        return "".join(each if each.isprintable() else repr(each)[1:-1] for each in self.label)


def source_of(sources: Mapping[str, Source], key: str | None) -> Source | None:
    """Return where the setting that an error names was given.

    Args:
        sources: setting -> source; settings are named `gamma`, `checkpoints.every`, `pol1.gamma`, `policies.pol1`, ...
        key: key of the error. `pol1.gamma` finds the source of that policy's setting, or else of the setting for all
            policies; `pol1` finds the source of the first setting of that policy, and `policy_kwargs.net_arch` that
            of `policy_kwargs`.
    """
    if not key:
        return None
    within = (name for name in sources if name.startswith(f"{key}."))
    parts = key.split(".")  # a policy's id may have several parts
    names = [".".join(parts[first:]) for first in range(len(parts))]  # `key`, and the settings for all policies
    candidates = (key, next(within, ""), f"policies.{key}", *(each for name in names for each in _with_whole(name)))
    return next((sources[name] for name in candidates if name in sources), None)


def _with_whole(name: str) -> tuple[str, ...]:
    """The name of an entry of `policy_kwargs`, and that of `policy_kwargs` itself; any other name alone."""
    whole, _, _ = name.rpartition(".")
    return (name, whole) if whole.rpartition(".")[2] == "policy_kwargs" else (name,)
