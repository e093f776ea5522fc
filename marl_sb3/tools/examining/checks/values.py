"""Checks of the values that reset() and step() return: observations, rewards, flags, infos, masks; advice on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.tools.examining.finding import (
    ADVICE,
    FAULT,
    WARNING,
    Evidence,
    PlayedEpisode,
    Seen,
    Step,
    check,
    checksum,
    mapping,
    shown,
)
from marl_sb3.tools.examining.player import mask_of
from marl_sb3.types import AgentID, Array
from marl_sb3.wrappers.checks import observation_fault, reward_fault
from marl_sb3.wrappers.observations import choices_of, policy_actions

_TOLERANCE = 1e-5  # of bounds, relative to them: float32 rounds
_HUGE_INFO = 64 * 1024  # bytes of one agent's infos
_LARGE = 10.0  # of an observation, for a network that is made for numbers around 1
_LARGE_REWARD, _SMALL_REWARD = 100.0, 1e-3


# --- Observations -----------------------------------------------------------------------------------------------------


def observed(evidence: Evidence) -> Iterator[tuple[PlayedEpisode, Step, AgentID, Any]]:
    """Yield all observations of known agents, with their episodes and steps."""
    return (each for each in evidence.values("observations") if each[2] in evidence.observation_spaces)


def observed_numbers(
    evidence: Evidence,
) -> Iterator[tuple[PlayedEpisode, Step, AgentID, spaces.Space[Any], Array, str]]:
    """Yield the arrays of all observations of known agents, with their spaces and their places in the observation."""
    for episode, step, agent, observation in observed(evidence):
        for space, value, name in parts_of(evidence.observation_spaces[agent], observation):
            if (array := as_numbers(value)) is not None:
                yield episode, step, agent, space, array, name


def parts_of(space: spaces.Space[Any], value: Any, name: str = "") -> Iterator[tuple[spaces.Space[Any], Any, str]]:
    """Yield the parts of an observation that have no parts themselves, with their spaces and where they are."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if key in mapping(value):
                yield from parts_of(part, value[key], f"{name}, key {key!r}")
    elif isinstance(space, spaces.Tuple):
        if isinstance(value, (tuple, list)):
            for number, (part, each) in enumerate(zip(space.spaces, value, strict=False)):
                yield from parts_of(part, each, f"{name}, part {number}")
    else:
        yield space, value, name


def as_numbers(value: Any) -> Any:
    """Return the value as an array of numbers; None if it is none."""
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    return array if array.dtype.kind in "biuf" else None


@check("observation-not-finite", FAULT, "an observation is NaN or infinite",
       why="A single NaN turns all weights of a network into NaN, so training stops when it sees one.",
       remedy="Look for divisions by zero, logarithms of zero and empty means in the env.")  # fmt: skip
def _not_finite(evidence: Evidence) -> Iterator[Seen]:
    for episode, step, agent, _, array, name in observed_numbers(evidence):
        if not np.isfinite(array).all():
            place = tuple(int(index) for index in np.argwhere(~np.isfinite(array))[0])
            yield episode.seen(step, f"observation{name} is {array[place]} at index {place}", agent)


@check("observation-space", FAULT, "an observation does not fit its space",
       why="Networks are built for the space, so training stops at such an observation.",
       remedy="Change the observation or the space until space.contains(observation) holds.")  # fmt: skip
def _outside_space(evidence: Evidence) -> Iterator[Seen]:
    for episode, step, agent, observation in observed(evidence):
        space = evidence.observation_spaces[agent]
        arrays = (as_numbers(part) for _, part, _ in parts_of(space, observation))
        is_finite = all(array is None or np.isfinite(array).all() for array in arrays)
        if is_finite and (fault := _fault(space, observation)):
            yield episode.seen(step, f"observation {fault}", agent, shown(observation))


def _fault(space: spaces.Space[Any], observation: Any) -> str | None:
    for part, value, name in parts_of(space, observation):
        if fault := observation_fault(part, value):
            return f"{fault}{name}"
    if isinstance(space, spaces.Dict):
        return observation_fault(space, observation) if set(mapping(observation)) != set(space.spaces) else None
    if isinstance(space, spaces.Tuple) and (not isinstance(observation, tuple) or len(observation) != len(space)):
        return f"is no tuple of {len(space)}"
    return None


@check("observation-bounds", WARNING, "an observation lies outside the bounds of its Box",
       why="Code that scales observations by their bounds computes wrong numbers.",
       remedy="Give the Box the true bounds, or -inf and inf.")  # fmt: skip
def _beyond_bounds(evidence: Evidence) -> Iterator[Seen]:
    for episode, step, agent, space, array, name in observed_numbers(evidence):
        if isinstance(space, spaces.Box) and array.shape == space.shape and (words := _beyond(space, array)):
            yield episode.seen(step, f"observation{name} is {words}", agent)


def _beyond(space: spaces.Box, array: Any) -> str | None:
    low, high = (bound.astype(np.float64) for bound in (space.low, space.high))
    with np.errstate(invalid="ignore"):
        slack = _TOLERANCE * np.maximum(1.0, np.minimum(np.abs(low), np.abs(high)))
        outside = (array < low - slack) | (array > high + slack)
    if not outside.any():
        return None
    place = tuple(int(index) for index in np.argwhere(outside)[0])
    return f"{array[place]} at index {place}, its space says {space.low[place]} to {space.high[place]}"


@check("observation-dtype", ADVICE, "observations have another dtype than their space",
       why="Every step converts them; numbers that the space's dtype cannot hold are rounded.",
       remedy="Return arrays of the space's dtype, such as array.astype(np.float32).", once_per_agent=True)  # fmt: skip
def _other_dtype(evidence: Evidence) -> Iterator[Seen]:
    for episode, step, agent, space, array, name in observed_numbers(evidence):
        is_array = isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete))
        if not is_array or space.dtype is None or array.dtype == space.dtype:
            continue
        if np.can_cast(array.dtype, space.dtype, "same_kind"):
            yield episode.seen(step, f"observation{name} is {array.dtype}, its space says {space.dtype}", agent)


@check("observation-rewritten", WARNING, "the env changes an observation after returning it",
       why="Code that keeps observations, such as a replay buffer, keeps the later numbers instead.",
       remedy="Return a new array in each step: array.copy().")  # fmt: skip
def _rewritten(evidence: Evidence) -> Iterator[Seen]:
    for episode, step in evidence.steps():
        for agent in step.rewritten:
            yield episode.seen(step, "the observation returned here was changed by the next step", agent)


# --- Rewards, flags, and values that are missing ----------------------------------------------------------------------


@check("missing-value", FAULT, "an agent gets no observation, reward or flag",
       why="Nothing can be learned from such a step, so training stops there.",
       remedy="Return a value for each agent that acted, and an observation for each agent in `agents`.")  # fmt: skip
def _missing(evidence: Evidence) -> Iterator[Seen]:
    for episode, step in evidence.steps():
        parts = {"reward": step.rewards, "terminated flag": step.terminated, "truncated flag": step.truncated}
        for agent in step.acting:
            for name, values in parts.items():
                if agent not in values:
                    yield episode.seen(step, f"{name} is missing for an agent that acted", agent)
        for agent in step.to_act:
            if agent not in step.observations:
                yield episode.seen(step, "observation is missing for an agent that acts next", agent)


@check("missing-final-observation", FAULT, "an agent ends without a final observation",
       why="The return of a truncated agent bootstraps from the value of its final observation.",
       remedy="In the step in which an agent ends, return its observation too.")  # fmt: skip
def _missing_final(evidence: Evidence) -> Iterator[Seen]:
    for episode, step in evidence.steps():
        ends = step.ends()
        for agent in step.acting:
            if agent in ends and step.observations.get(agent) is None:
                yield episode.seen(step, "the agent ends without a final observation", agent)


@check("reward-not-a-number", FAULT, "a reward is not a finite number",
       why="A single NaN turns all weights of a network into NaN, so training stops when it sees one.",
       remedy="Return a float for each agent that acted.")  # fmt: skip
def _reward_faults(evidence: Evidence) -> Iterator[Seen]:
    for episode, step, agent, reward in evidence.values("rewards"):
        if fault := reward_fault(reward):
            yield episode.seen(step, f"reward {fault}", agent)


@check("flag-type", WARNING, "a terminated or truncated flag is not a boolean",
       why="Any other object counts as true unless it is empty or zero; None counts as false.",
       remedy="Return True or False.", once_per_agent=True)  # fmt: skip
def _flag_types(evidence: Evidence) -> Iterator[Seen]:
    for name in ("terminated", "truncated"):
        for episode, step, agent, flag in evidence.values(name):
            if not isinstance(flag, (bool, np.bool_)):
                yield episode.seen(step, f"{name} is {type(flag).__name__}", agent, shown(flag))


# --- Infos and masks --------------------------------------------------------------------------------------------------


@check("info-type", FAULT, "an info is not a dictionary",
       why="Training stops at such an info.",
       remedy="Return a dictionary for each agent; it may be empty.")  # fmt: skip
def _info_types(evidence: Evidence) -> Iterator[Seen]:
    for episode, step, agent, info in evidence.values("infos"):
        if agent in evidence.agents and not isinstance(info, Mapping):
            yield episode.seen(step, "info is no dictionary", agent, shown(info))


@check("info-missing", ADVICE, "infos have no entry for an agent",
       why="marl_sb3 treats a missing entry as empty; SuperSuit and other libraries fail.",
       remedy="Return a dictionary for each agent; it may be empty.", once_per_agent=True)  # fmt: skip
def _info_missing(evidence: Evidence) -> Iterator[Seen]:
    for episode, step, agent, _ in evidence.values("observations"):
        if agent not in step.infos:
            yield episode.seen(step, "infos have no entry for the agent", agent)


@check("info-huge", WARNING, "an info holds more than 64 KiB",
       why="Infos are kept and copied in every step; workers send them to another process.",
       remedy="Keep images and histories out of infos; return only numbers.", once_per_agent=True)  # fmt: skip
def _info_sizes(evidence: Evidence) -> Iterator[Seen]:
    for episode, step, agent, info in evidence.values("infos"):
        if (size := _bytes_in(info)) > _HUGE_INFO:
            yield episode.seen(step, f"info holds {size / 1024:,.0f} KiB", agent)


def _bytes_in(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_bytes_in, value.values()))
    if isinstance(value, (list, tuple, set)):
        return sum(map(_bytes_in, value))
    return int(getattr(value, "nbytes", len(value) if isinstance(value, (str, bytes)) else 8))


@check("action-mask", FAULT, "an action mask is wrong",
       why="A policy with masks has no action to take, or takes a forbidden one.",
       remedy="Return a mask with an entry for each action, at least one of them true, for each agent that acts next.",
       )  # fmt: skip
def _mask_faults(evidence: Evidence) -> Iterator[Seen]:
    for episode, step in evidence.steps():
        for agent in step.to_act:
            mask = mask_of(step.observations.get(agent), step.infos.get(agent))
            if mask is not None and (fault := _mask_fault(policy_actions(evidence.action_spaces[agent]), mask)):
                yield episode.seen(step, fault, agent)


def _mask_fault(space: spaces.Space[Any], mask: Any) -> str | None:
    from marl_sb3.core.vec_env.masks import forbidden_place, forbidden_words, mask_fault

    choices, array = choices_of(space), as_numbers(mask)
    if choices is None:
        return f"action_mask is there, but the action space {space} has no masks"
    if array is None:
        return f"action_mask is {shown(mask)}; accepted: booleans, or 0 and 1"
    fault = mask_fault(array, sum(choices), space)
    if fault is None and (place := forbidden_place(array.astype(np.bool_)[None, None], choices)) is not None:
        fault = forbidden_words(place[2], choices)
    return fault


# --- Advice: what does not break training but makes it slower, harder or noisier --------------------------------------


@check("observation-scale", ADVICE, "observations are larger than 10",
       why="Networks learn best from numbers around 1; large ones slow learning down or prevent it.",
       remedy="Divide observations by their range in the env, or --set normalize_observations=true.")  # fmt: skip
def _large_observations(evidence: Evidence) -> Iterator[Seen]:
    """Find the largest number of each agent's observations, if it is large; images are scaled anyway."""
    largest: dict[tuple[AgentID, str], float] = defaultdict(float)
    for _, _, agent, space, array, name in observed_numbers(evidence):
        if isinstance(space, spaces.Box) and space.dtype != np.uint8 and array.size:
            size = float(np.abs(array.astype(np.float64)).max())
            if np.isfinite(size):
                largest[agent, name] = max(largest[agent, name], size)
    for (agent, name), size in largest.items():
        if size > _LARGE:
            yield Seen(f"observations{name} reach {size:.4g}", str(agent))


def _rewards(evidence: Evidence) -> Iterator[tuple[AgentID, list[float]]]:
    """Yield each agent that has got rewards, with all of them."""
    for agent in dict.fromkeys(agent for _, step in evidence.steps() for agent in step.rewards):
        rewards = [reward for episode in evidence.episodes for reward in episode.rewards(agent)]
        if rewards:
            yield agent, rewards


@check("reward-scale", ADVICE, "rewards are very large or very small",
       why="Value losses grow with the square of the rewards, and the clipped gradient then belongs to the values "
           "alone.",
       remedy="Scale rewards so that an episode's return is between 1 and 100, or --set normalize_rewards=true.",
       )  # fmt: skip
def _reward_scale(evidence: Evidence) -> Iterator[Seen]:
    for agent, rewards in _rewards(evidence):
        largest = max(map(abs, rewards))
        if largest > _LARGE_REWARD or 0 < largest < _SMALL_REWARD:
            yield Seen(f"the largest reward is {largest:.4g}", str(agent))


@check("reward-always-zero", ADVICE, "an agent gets no reward under random actions",
       why="Nothing is learned before the first reward is found.",
       remedy="Check that rewards are set at all. If they are rare, reward progress too, or play longer.")  # fmt: skip
def _no_rewards(evidence: Evidence) -> Iterator[Seen]:
    for agent, rewards in _rewards(evidence):
        if not any(rewards):
            yield Seen(f"all of {len(rewards):,} rewards are 0", str(agent))


@check("observation-constant", WARNING, "an agent's observation never changes",
       why="The agent cannot react to anything.",
       remedy="Check that its observation is ever filled in; some envs draw images only with --set "
              "env.render_mode=rgb_array.")  # fmt: skip
def _blind_agents(evidence: Evidence) -> Iterator[Seen]:
    sights: dict[AgentID, list[Any]] = defaultdict(list)
    for _, _, agent, observation in observed(evidence):
        sights[agent].append(observation)
    for agent, seen in sights.items():
        if len(seen) >= 10 and all(checksum(other) == checksum(seen[0]) for other in seen[1:]):
            yield Seen(f"all of {len(seen):,} observations are equal", str(agent))


@check("action-range", ADVICE, "continuous actions do not range from -1 to 1",
       why="A new policy draws actions around 0 with a standard deviation of 1: it may see a small part of the range,"
           " or mostly its bounds.",
       remedy="--set rescale_actions=true, if all of the action is a Box, or let the env take actions from -1 to 1 and"
              " scale them itself.",
       )  # fmt: skip
def _action_ranges(evidence: Evidence) -> Iterator[Seen]:
    for agent, of_env in evidence.action_spaces.items():
        space = policy_actions(of_env)
        if isinstance(space, spaces.Box):
            numbers = getattr(space, "real_columns", ...)  # of actions of several parts, those of Boxes
            low, high = space.low[numbers], space.high[numbers]
            if low.size and not (np.all(low == -1) and np.all(high == 1)):
                yield Seen(f"actions range from {np.min(low):.4g} to {np.max(high):.4g}", str(agent))
