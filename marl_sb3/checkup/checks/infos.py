"""Checks of the infos, and of the action masks in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.checkup.actions import mask_of
from marl_sb3.checkup.checks.values import as_numbers
from marl_sb3.checkup.evidence import Evidence, mapping
from marl_sb3.checkup.finding import Check, Seen, Severity, shown
from marl_sb3.types import AgentID
from marl_sb3.wrappers.action_mask import choices_of

_HUGE_INFO = 64 * 1024  # bytes of one agent's infos


def info_types(evidence: Evidence) -> Iterator[Seen]:
    """Infos of agents that are no mappings."""
    for episode, step in evidence.steps():
        for agent, info in mapping(step.infos).items():
            if agent in evidence.agents and not isinstance(info, Mapping):
                yield episode.seen(step, "info is no dictionary", agent, shown(info))


def info_missing(evidence: Evidence) -> Iterator[Seen]:
    """Agents with an observation and without an entry in the infos; the first of each agent."""
    told: set[AgentID] = set()
    for episode, step in evidence.steps():
        for agent in mapping(step.observations):
            if agent not in mapping(step.infos) and agent not in told:
                told.add(agent)
                yield episode.seen(step, "infos have no entry for the agent", agent)


def info_sizes(evidence: Evidence) -> Iterator[Seen]:
    """Infos that hold more than 64 KiB of arrays and strings; the first of each agent."""
    told: set[AgentID] = set()
    for episode, step in evidence.steps():
        for agent, info in mapping(step.infos).items():
            size = _size(info)
            if size > _HUGE_INFO and agent not in told:
                told.add(agent)
                yield episode.seen(step, f"info holds {size / 1024:,.0f} KiB", agent)


def _size(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, (list, tuple, set)):
        return sum(map(_size, value))
    return int(getattr(value, "nbytes", len(value) if isinstance(value, (str, bytes)) else 8))


def mask_faults(evidence: Evidence) -> Iterator[Seen]:
    """Action masks of the wrong form, or that forbid everything."""
    for episode, step in evidence.steps():
        for agent in step.to_act:
            observation, info = mapping(step.observations).get(agent), mapping(step.infos).get(agent)
            mask = mask_of(observation, info)
            if mask is not None:
                fault = _mask_fault(evidence.action_spaces[agent], mask)
                if fault:
                    yield episode.seen(step, fault, agent)


def _mask_fault(space: spaces.Space[Any], mask: Any) -> str | None:
    from marl_sb3.vec_env.masks import forbidden_place, forbidden_words, mask_fault  # takes seconds

    choices, array = choices_of(space), as_numbers(mask)
    if choices is None:
        return f"action_mask is there, but the action space {space} has no masks"
    if array is None:
        return f"action_mask is {shown(mask)}; accepted: booleans, or 0 and 1"
    fault = mask_fault(array, sum(choices), space)
    if fault is None and (place := forbidden_place(array.astype(np.bool_)[None, None], choices)) is not None:
        fault = forbidden_words(place[2], choices)
    return fault


INFOS: tuple[Check, ...] = (
    Check(
        "info-type", Severity.FAULT, "an info is not a dictionary",
        "Training stops at such an info.",
        "Return a dictionary for each agent; it may be empty.", info_types,
    ),
    Check(
        "info-missing", Severity.ADVICE, "infos have no entry for an agent",
        "marl_sb3 treats a missing entry as empty; SuperSuit and other libraries fail.",
        "Return a dictionary for each agent; it may be empty.", info_missing,
    ),
    Check(
        "info-huge", Severity.WARNING, "an info holds more than 64 KiB",
        "Infos are kept and copied in every step; workers send them to another process.",
        "Keep images and histories out of infos; return only numbers.", info_sizes,
    ),
    Check(
        "action-mask", Severity.FAULT, "an action mask is wrong",
        "A policy that knows masks has no action to take, or takes a forbidden one.",
        "Return a mask with an entry for each action, at least one of them true, for each agent that acts next.",
        mask_faults,
    ),
)  # fmt: skip
