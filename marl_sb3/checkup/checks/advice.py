"""Advice: what does not break training but makes it slower, harder or noisier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.checkup.checks.reported import reported_check
from marl_sb3.checkup.checks.values import observed, observed_numbers
from marl_sb3.checkup.evidence import Evidence, Seen, checksum
from marl_sb3.checkup.finding import Check, Severity
from marl_sb3.types import AgentID

_LARGE = 10.0  # of an observation, for a network that is made for numbers around 1
_LARGE_REWARD, _SMALL_REWARD = 100.0, 1e-3


def large_observations(evidence: Evidence) -> Iterator[Seen]:
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


def reward_scale(evidence: Evidence) -> Iterator[Seen]:
    """Find agents whose largest reward is large or tiny."""
    for agent, rewards in _rewards(evidence):
        largest = max(map(abs, rewards))
        if largest > _LARGE_REWARD or 0 < largest < _SMALL_REWARD:
            yield Seen(f"the largest reward is {largest:.4g}", str(agent))


def no_rewards(evidence: Evidence) -> Iterator[Seen]:
    """Find agents that are paid nothing but 0."""
    for agent, rewards in _rewards(evidence):
        if not any(rewards):
            yield Seen(f"all of {len(rewards):,} rewards are 0", str(agent))


def blind_agents(evidence: Evidence) -> Iterator[Seen]:
    """Find agents whose observation stays the same in at least ten steps."""
    sights: dict[AgentID, list[Any]] = defaultdict(list)
    for _, _, agent, observation in observed(evidence):
        sights[agent].append(observation)
    for agent, seen in sights.items():
        if len(seen) >= 10 and all(checksum(other) == checksum(seen[0]) for other in seen[1:]):
            yield Seen(f"all of {len(seen):,} observations are equal", str(agent))


def action_ranges(evidence: Evidence) -> Iterator[Seen]:
    """Find Box actions whose range is not -1 to 1."""
    for agent, space in evidence.action_spaces.items():
        if isinstance(space, spaces.Box) and not (np.all(space.low == -1) and np.all(space.high == 1)):
            yield Seen(f"actions range from {np.min(space.low):.4g} to {np.max(space.high):.4g}", str(agent))


ADVICE: tuple[Check, ...] = (
    Check(
        "observation-constant", Severity.WARNING, "an agent's observation never changes",
        "The agent cannot react to anything.",
        "Check that its observation is ever filled in; some envs draw images only with --set "
        "env.render_mode=rgb_array.", blind_agents,
    ),
    Check(
        "observation-scale", Severity.ADVICE, "observations are larger than 10",
        "Networks learn best from numbers around 1; large ones slow learning down or prevent it.",
        "Divide observations by their range in the env, or --set normalize_observations=true.", large_observations,
    ),
    Check(
        "reward-scale", Severity.ADVICE, "rewards are very large or very small",
        "Value losses grow with the square of the rewards, and the clipped gradient then belongs to the values alone.",
        "Scale rewards so that an episode's return is between 1 and 100, or --set normalize_rewards=true.",
        reward_scale,
    ),
    Check(
        "reward-always-zero", Severity.ADVICE, "an agent gets no reward under random actions",
        "Nothing is learned before the first reward is found.",
        "Check that rewards are set at all. If they are rare, reward progress too, or play longer.", no_rewards,
    ),
    Check(
        "action-range", Severity.ADVICE, "continuous actions do not range from -1 to 1",
        "A new policy draws actions around 0 with a standard deviation of 1: it may see a small part of the range, or "
        "mostly its bounds.",
        "--set rescale_actions=true, or let the env take actions from -1 to 1 and scale them itself.", action_ranges,
    ),
    reported_check(
        "prints", "episodes", Severity.ADVICE, "the env prints",
        "With many envs, the output hides everything else and takes time.",
        "Print on demand, with `logging` for example.",
    ),
    reported_check(
        "warns", "episodes", Severity.ADVICE, "the env gives warnings",
        "Warnings point to mistakes in the env or in how it is used.",
        "Read them, and fix what they name.",
    ),
)  # fmt: skip
