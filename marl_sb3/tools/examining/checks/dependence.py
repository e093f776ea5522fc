"""Checks of what depends on what: rewards, ends and observations on actions, and on the step that they belong to.

None of these mistakes breaks a rule of the interface. Each check therefore says how likely the same is by chance, or in
an env that means it, and is silent where the two cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.tools.examining.checks.values import as_numbers, parts_of
from marl_sb3.tools.examining.finding import (
    ADVICE,
    WARNING,
    Evidence,
    PlayedEpisode,
    Replay,
    Seen,
    Step,
    check,
    checksum,
)
from marl_sb3.types import AgentID, Array, BoolArray

_TRIED = 10  # other actions that have to have no effect
_CHANCE = 1e-3  # probability of a coincidence that is believed
_MOST_NUMBERS = 500  # of an observation that is computed with
_EPISODES = 3  # of which a coincidence is judged, at least


def _agents(evidence: Evidence) -> Sequence[AgentID]:
    """Return the agents if no fault was found: missing or wrong values would explain what is seen."""
    return () if evidence.faulty else evidence.agents


def _is_small(space: spaces.Space[Any]) -> bool:
    """Return whether observations are so few numbers that those of all steps can be computed with."""
    try:
        return spaces.flatdim(space) <= _MOST_NUMBERS
    except (ValueError, NotImplementedError):
        return False


def _table(space: spaces.Space[Any], values: Sequence[Any]) -> Array | None:
    """Return observations or actions as the rows of a table; None if they are large, or do not fit their space."""
    if not _is_small(space):
        return None
    try:
        return np.array([np.ravel(spaces.flatten(space, value)) for value in values], float)  # type: ignore[arg-type]
    except (TypeError, ValueError, KeyError):  # also lengths that change
        return None


# --- Actions ----------------------------------------------------------------------------------------------------------


@check("actions-without-effect", WARNING, "an agent's actions change nothing",
       why="There is nothing to learn for the agent, whatever it does.",
       remedy="Check that step() reads the actions of all agents. If an effect is rarer, --episodes plays more.",
       after="replays")  # fmt: skip
def _without_effect(evidence: Evidence) -> Iterator[Seen]:
    for agent in _agents(evidence):
        steps = evidence.without_effect.get(agent, 0)
        if steps >= _TRIED:
            words = f"other actions in {steps:,} steps, with the same seed, have changed nothing in the episodes"
            yield Seen(words, str(agent))


@check("reward-constant", ADVICE, "an agent's rewards are always the same",
       why="Its return is the same whatever it does.",
       remedy="Check that rewards depend on what happens. If another one is rare, play longer.",
       after="replays")  # fmt: skip
def _constant_rewards(evidence: Evidence) -> Iterator[Seen]:
    """Find agents that are always paid the same, other than 0, in episodes whose length does not depend on actions.

    A cost for each step until a truncation may have a goal that random actions do not reach, as in MountainCar.
    """
    pairs = [pair for pair in evidence.other_actions if pair.recorded.is_over or pair.replayed.is_over]
    lengths = {episode.length for episode in evidence.episodes}
    is_fixed = len(evidence.episodes) >= _EPISODES and len(lengths) == 1 and lengths != {1}
    if not all(pair.same_length() for pair in pairs) or (len(pairs) < 2 and not is_fixed):
        return
    for agent in _agents(evidence):
        played = [*evidence.episodes, *(pair.replayed for pair in pairs)]
        rewards = [reward for episode in played for reward in episode.rewards(agent)]
        ends = [episode.ends().get(agent, (0, False, True)) for episode in evidence.episodes if episode.is_over]
        is_constant = len(rewards) >= _TRIED and len(set(rewards)) == 1
        if is_constant and (rewards[0] > 0 or (rewards[0] < 0 and all(terminated for _, terminated, _ in ends))):
            words = f"all rewards are {rewards[0]:.4g}, and no action changes the length of an episode"
            yield Seen(words, str(agent))


# --- Sums of rewards --------------------------------------------------------------------------------------------------


@check("reward-running-sum", WARNING, "rewards look like running sums",
       why="A reward that counts in all later steps of an episode makes early actions count many times.",
       remedy="Return what was earned in the step alone, and not the score so far.", after="replays")  # fmt: skip
def _running_sums(evidence: Evidence) -> Iterator[Seen]:
    """Find agents whose rewards look like the sum of all rewards so far."""
    for agent in _agents(evidence):
        words = _offsets(evidence, agent) or _explained_changes(evidence, agent) or _jumps(evidence, agent)
        if words:
            yield Seen(words, str(agent))


def _offsets(evidence: Evidence, agent: AgentID) -> str | None:
    """Say that a detour changes all later rewards by one number that each of its actions has changed.

    A choice that pays in every later step, and is not seen, would change them by what its first reward differs.
    """
    offsets = [_offset(pair, agent) for pair in evidence.detours]
    known = [offset for offset in offsets if offset is not None]
    if np.count_nonzero(known) < 2 or not all(np.isfinite(known)):
        return None
    return "after other actions, all later rewards differ by the same number, though observations are equal"


def _offset(pair: Replay, agent: AgentID) -> float | None:
    """Return by what the rewards after a detour differ; None if that is unknown, NaN if it is not one number."""
    assert pair.turn is not None
    both = list(zip(pair.recorded.steps, pair.replayed.steps, strict=False))
    after = both[pair.turn + 1 :]
    if len(after) < 3 or any(_seen(one, agent) != _seen(other, agent) for one, other in after):
        return None
    one, other = (each.rewards(agent)[: len(both) - 1] for each in (pair.recorded, pair.replayed))
    if len(one) != len(both) - 1 or len(other) != len(one):
        return None
    differences = np.subtract(other, one)
    before, later = differences[: pair.turn], differences[pair.turn :]
    slack = 1e-4 * max(1e-9, *map(abs, one), *map(abs, other))
    if np.ptp(later) > slack:
        return np.nan
    changes = np.count_nonzero(np.abs(np.diff(before)) > slack)
    return float(later[0]) if changes and abs(later[0]) > slack else 0.0


def _seen(step: Step, agent: AgentID) -> int:
    return checksum(step.observations.get(agent))


def _jumps(evidence: Evidence, agent: AgentID) -> str | None:
    """Say that few differences between rewards add up to many rewards.

    Before its first reward an agent has 0. Rewards that are (almost) linear in what the agent sees are no such sums:
    the reward for being somewhere, say.
    """
    episodes = [(episode, episode.rewards(agent)) for episode in evidence.episodes]
    episodes = [(episode, rewards) for episode, rewards in episodes if len(rewards) >= 5]
    if len(episodes) < _EPISODES:
        return None
    jumps = [np.round(np.diff(rewards, prepend=0.0), 6) for _, rewards in episodes]
    inner = {jump for each in jumps for jump in each[1:].tolist()}
    levels = {round(reward, 6) for _, rewards in episodes for reward in rewards}
    begins = sum(float(each[0]) in inner for each in jumps) / len(jumps)
    reach = max(map(abs, levels)), max(map(abs, inner))
    if len(levels) < max(10, 3 * len(inner)) or begins < 0.9 or reach[0] < 4 * reach[1]:
        return None
    if _is_seen(evidence, agent, [episode for episode, _ in episodes]):
        return None
    return f"rewards range over {len(levels)} values, but differ from the one before by one of {len(inner)}"


def _is_seen(evidence: Evidence, agent: AgentID, episodes: Sequence[PlayedEpisode]) -> bool:
    """Return whether rewards are linear in observations, or may be: there are too few for so many numbers."""
    steps = [step for episode in episodes for step in episode.steps[1:]]
    both = [(step.observations.get(agent), step.rewards.get(agent)) for step in steps]
    known = [(seen, float(paid)) for seen, paid in both if seen is not None and paid is not None]
    seen = _table(evidence.observation_spaces[agent], [seen for seen, _ in known])
    if seen is None or len(seen) < 2 * (seen.shape[1] + 1):
        return True
    table, rewards = np.column_stack([seen, np.ones(len(seen))]), np.array([paid for _, paid in known])
    weights = np.linalg.lstsq(table, rewards, rcond=None)[0]
    return bool(np.var(rewards - table @ weights) < 0.05 * np.var(rewards))


def _explained_changes(evidence: Evidence, agent: AgentID) -> str | None:
    """Say that changes of rewards follow from observations and actions (R^2 above 0.9), and rewards do not (0.5).

    Both are fitted, by squares and least squares, to every other episode, and judged by the others.
    """
    tables = [table for episode in evidence.episodes if (table := _regression(evidence, episode, agent)) is not None]
    if len(tables) < 4 or len({table.shape[1] for table in tables}) > 1:
        return None
    fitted, judged = (np.concatenate(tables[start::2]) for start in (0, 1))
    if min(len(fitted), len(judged)) < 4 * fitted.shape[1]:
        return None
    if _r_squared(fitted, judged, -1) <= 0.9 or _r_squared(fitted, judged, -2) >= 0.5:
        return None
    return "what an agent sees and does explains how rewards change, but not how large they are"


def _regression(evidence: Evidence, episode: PlayedEpisode, agent: AgentID) -> Array | None:
    """Return a row per step: 1, two observations, the action and the squares of these; reward, its change."""
    steps, rewards = _shown(episode, agent), episode.rewards(agent)
    if len(steps) < 5 or len(rewards) < len(steps) - 1:
        return None
    seen = _table(evidence.observation_spaces[agent], [step.observations[agent] for step in steps])
    chosen = _table(evidence.action_spaces[agent], [step.actions[agent] for step in steps[1:]])
    if seen is None or chosen is None:
        return None
    x = np.column_stack([seen[2:], seen[1:-1], chosen[1:]])
    change = np.diff(rewards[: len(steps) - 1])
    return np.column_stack([np.ones(len(x)), x, x**2, rewards[1 : len(steps) - 1], change])


def _r_squared(fitted: Array, judged: Array, column: int) -> float:
    weights = np.linalg.lstsq(fitted[:, :-2], fitted[:, column], rcond=None)[0]
    left = judged[:, column] - judged[:, :-2] @ weights
    return 1 - float(np.mean(left**2)) / max(float(np.var(judged[:, column])), 1e-12)


# --- Observations of another step -------------------------------------------------------------------------------------


@check("observation-before-step", WARNING, "an observation looks like the one before the step",
       why="A policy that sees the state too late cannot learn the effect of its actions.",
       remedy="Observe after everything has moved. If the first action cannot be seen in the first step, leave it.",
       after="replays")  # fmt: skip
def _before_step(evidence: Evidence) -> Iterator[Seen]:
    """Find agents whose first step always shows what the reset has shown, while later steps show something new."""
    played = [*evidence.episodes, *(pair.replayed for pair in evidence.other_actions)]
    for agent in _agents(evidence):
        firsts, later = [], []
        for episode in played:
            equal = [_seen(one, agent) == _seen(other, agent) for one, other in pairwise(_shown(episode, agent))]
            firsts += equal[:1]
            later += equal[1:]
        is_late = len(firsts) >= _EPISODES and all(firsts) and later
        if is_late and _chance(sum(later), len(later)) ** len(firsts) < _CHANCE:
            words = f"the first step of all {len(firsts)} episodes shows what reset() has shown; later steps change it"
            yield Seen(words, str(agent))


def _shown(episode: PlayedEpisode, agent: AgentID) -> list[Step]:
    """Return the steps from the reset on in which an agent is shown something, up to the first in which it is not."""
    return list(
        takewhile(lambda step: agent in step.observations and (not step.number or agent in step.acting), episode.steps)
    )


def _chance(times: int, of: int) -> float:
    """Return the probability of an event that was seen so many times; never 0."""
    return (times + 1) / (of + 2)


@check("final-observation-of-next", WARNING, "the final observation is one of the next episode",
       why="The return of a truncated agent bootstraps from the value of its final observation, not of a new start.",
       remedy="Return the observation of the state in which the episode has ended; do not reset in step().",
       after="replays")  # fmt: skip
def _of_next_episode(evidence: Evidence) -> Iterator[Seen]:
    """Find agents whose final observation is the first of an episode, and not what their actions have led to."""
    for agent in _agents(evidence):
        whole = [
            episode
            for episode in evidence.episodes
            if episode.is_over and episode.length > 1 and agent in episode.steps[-1].ends()
            if len(_shown(episode, agent)) == len(episode.steps)
        ]
        if len(whole) < _EPISODES:
            continue
        if _ends_on_start(whole, agent):
            yield Seen(f"the final observation of all {len(whole)} episodes is equal to that of reset()", str(agent))
        elif (count := _unmoved_ends(evidence, whole, agent)) >= 2:
            words = f"in {count} episodes, other actions have changed the observations, but not the final one"
            yield Seen(f"{words}, which looks like one of reset()", str(agent))
        elif _jumps_to_start(evidence.observation_spaces[agent], whole, agent):
            words = f"in the last step of all {len(whole)} episodes, the observation jumps to one like those of reset()"
            yield Seen(words, str(agent))


def _ends_on_start(whole: Sequence[PlayedEpisode], agent: AgentID) -> bool:
    """Return whether all episodes end on their first observation, which no chance explains.

    If the agent is terminated, the episode may end because it is back; unless it was back before.
    """
    returns, others = 0, 0
    for episode in whole:
        first, *between, last = (_seen(step, agent) for step in episode.steps)
        if first != last or between[-1] == last:
            return False
        returns, others = returns + between.count(first), others + len(between)
    may_be_back = returns == 0 and any(episode.steps[-1].ends()[agent][0] for episode in whole)  # terminated
    return not may_be_back and _chance(returns, others) ** len(whole) < _CHANCE


def _unmoved_ends(evidence: Evidence, whole: Sequence[PlayedEpisode], agent: AgentID) -> int:
    """Count the episodes in which other actions change the observation before the last one; 0 if they change both."""
    pairs = [pair for pair in evidence.other_actions if pair.same_length() and pair.recorded in whole]
    both = [(pair.recorded, pair.replayed) for pair in pairs]
    moved = [[_seen(one.steps[at], agent) for one in pair for at in (-2, -1)] for pair in both]
    moved = [each for each in moved if each[0] != each[2]]
    if len({each[1] for each in moved}) < 2 or any(each[1] != each[3] for each in moved):
        return 0
    firsts, _, lasts = _numbers(evidence.observation_spaces[agent], whole, agent)
    return len(moved) if len(lasts) and _within(lasts, firsts, slack=1.0).all() else 0


def _jumps_to_start(space: spaces.Space[Any], whole: Sequence[PlayedEpisode], agent: AgentID) -> bool:
    """Judge whether each last step is the largest of its episode, and leads to where episodes begin, as few others."""
    firsts, between, lasts = _numbers(space, whole, agent)
    if not len(lasts) or not _within(lasts, firsts, slack=0.2).all():
        return False
    if not lasts.any() and any(episode.steps[-1].ends()[agent][0] for episode in whole):  # terminated
        return False  # zeros, because nobody looks at them
    steps = np.concatenate(between)
    if _chance(int(_within(steps, firsts, slack=0.2).sum()), len(steps)) ** len(whole) >= _CHANCE:
        return False
    scale = steps.std(axis=0) + 1e-9
    moves = [
        np.abs(np.diff(np.vstack([first, *seen, last]), axis=0) / scale).max(axis=1)
        for first, seen, last in zip(firsts, between, lasts, strict=True)
    ]
    return all(len(each) >= 5 and each[-1] > each[:-1].max() for each in moves)


def _within(numbers: Array, firsts: Array, slack: float) -> BoolArray:
    """Return which rows lie between the smallest and largest first numbers, or beyond by a part of their distance."""
    low, high = firsts.min(axis=0), firsts.max(axis=0)
    more = slack * (high - low)
    inside: BoolArray = ((numbers >= low - more) & (numbers <= high + more)).all(axis=1)
    return inside


def _numbers(
    space: spaces.Space[Any], whole: Sequence[PlayedEpisode], agent: AgentID
) -> tuple[Array, list[Array], Array]:
    """Return the first, the other and the last observations of episodes as numbers; empty if they are no numbers."""
    nothing: tuple[Array, list[Array], Array] = (np.empty(0), [], np.empty(0))
    if not _is_small(space):
        return nothing
    parts = [
        [[as_numbers(part) for _, part, _ in parts_of(space, step.observations[agent])] for step in episode.steps]
        for episode in whole
    ]
    try:
        tables = [np.array([np.hstack([*map(np.ravel, step)]) for step in each], np.float64) for each in parts]
        firsts, lasts = (np.array([each[at] for each in tables]) for at in (0, -1))
    except (TypeError, ValueError):  # None, for what is no number; or lengths that change
        return nothing
    return firsts, [each[1:-1] for each in tables], lasts
