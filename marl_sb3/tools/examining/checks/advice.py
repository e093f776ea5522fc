"""Advice: what does not break training but makes it slower, harder or noisier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.tools.examining.checks.values import observed, observed_numbers
from marl_sb3.tools.examining.finding import ADVICE, WARNING, Evidence, Seen, check, checksum
from marl_sb3.types import AgentID
from marl_sb3.wrappers.observations import policy_actions

_LARGE = 10.0  # of an observation, for a network that is made for numbers around 1
_LARGE_REWARD, _SMALL_REWARD = 100.0, 1e-3


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
