"""The part of compiled rollouts that belongs to envs: steps are noted, episodes counted, ended and begun."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import BEGIN, ENVS, OBSERVE, RNG_WORDS, call_at, carray, pointer, seed_words, strict_kernel
from marl_sb3.extensions.fast.kernels.layers import ints_at, matrix_at
from marl_sb3.types import Array, FloatArray

# How a call ends: at the last step; before a step, because an env has no episode left to go on with; after a step, with
# what an env must not return; before a step, with observations that a policy cannot take; after one, with such an
# observation that an episode ends on; before a step, with a mask that forbids all.
COMPLETE, NO_EPISODES, WRONG_REWARD, WRONG_ENDS, WRONG_OBSERVATION, WRONG_LAST_OBSERVATION, WRONG_MASK = range(7)

SUM, MEAN, MIN, MAX, LAST = range(5)  # how the values of steps become the metric of an episode


class Sizes(NamedTuple):
    """Numbers of what there is."""

    steps: int  # of each env, in the arrays of steps
    envs: int
    agents: int
    infos: int
    observation: int  # numbers that an agent observes, of the one with the most
    observes_floats: bool  # whether they are float32; else, int64
    action: int  # numbers of an action, likewise
    choices: int  # numbers of a mask, likewise; 0: there are no masks
    state_bytes: int
    horizon: int  # env steps after which an episode is truncated


class NextEpisodes(NamedTuple):
    """The next episodes of every env: prepared in Python, (envs, most, ...), or begun by compiled code from seeds."""

    states: Array  # (envs, most, bytes) uint8
    rngs: Array  # (envs, most, RNG_WORDS) uint64
    ready: Array  # (envs,) int64; how many there are
    used: Array  # (envs,) int64; how many of them have begun
    # (n,) uint64: the words of the run seed, then the numbers of env and episode. Empty: Python prepared the episodes
    entropy: Array
    first_env: int  # number of the first env


class Running(NamedTuple):
    """Counts of the running episodes."""

    returns: Array  # (envs, agents) float64
    agent_steps: Array  # (envs, agents) int64
    lengths: Array  # (envs,) int64
    metrics: Array  # (metrics, envs) float64
    counts: Array  # (metrics, envs) float64
    readings: Array  # (n, 2) int64: a metric, and the info that it reads
    reductions: Array  # (metrics,) int64
    episodes: Array  # (envs,) int64; their numbers
    episode_steps: Array  # (envs,) int64


class Finished(NamedTuple):
    """Episodes that have ended, a line for each."""

    places: Array  # (most, 3) int64: step, env, length
    agent_steps: Array  # (most, agents) int64
    returns: Array  # (most, agents) float64
    metrics: Array  # (most, metrics) float64


class Last(NamedTuple):
    """What the latest step was, or all of them: (lines, envs, ...), a line for each step or one for the latest."""

    rewards: FloatArray  # (lines, envs, agents) float32
    allowed: Array  # (lines, envs, agents, choices) bool: the masks before new episodes began
    terminated: Array  # (lines, envs, agents) bool
    truncated: Array  # the same
    infos: Array  # (lines, envs, infos) float64
    observations: int  # address of the (envs, agents, numbers) that ended episodes ended on
    of_first_env: FloatArray  # (steps, agents) float32: the rewards of env 0 in each step


@strict_kernel
def line_of(step: int, last: Last) -> Any:
    """Return the line of a step."""
    return min(step, last.rewards.shape[0] - 1)


@strict_kernel
def note_ends(table: Any, sizes: Sizes, step: int, running: Running, last: Last) -> tuple[int, int, int]:
    """Count a step and its rewards, and truncate episodes at the horizon; returns how that ends, an env, an agent."""
    rewards = carray(pointer(table.rewards_at), (sizes.envs, sizes.agents), np.float64)
    terminated = carray(pointer(table.terminated_at), (sizes.envs, sizes.agents), np.bool_)
    truncated = carray(pointer(table.truncated_at), (sizes.envs, sizes.agents), np.bool_)
    line = line_of(step, last)
    for i in range(sizes.envs):
        running.lengths[i] += 1
        running.episode_steps[i] += 1
        ended = 0
        for a in range(sizes.agents):
            last.rewards[line, i, a] = rewards[i, a]
            if not np.isfinite(last.rewards[line, i, a]):
                return WRONG_REWARD, i, a
            if running.episode_steps[i] >= sizes.horizon and not terminated[i, a]:
                truncated[i, a] = True
            ended += terminated[i, a] or truncated[i, a]
            running.returns[i, a] += np.float64(last.rewards[line, i, a])
            running.agent_steps[i, a] += 1
            last.terminated[line, i, a], last.truncated[line, i, a] = terminated[i, a], truncated[i, a]
        if ended not in (0, sizes.agents):
            return WRONG_ENDS, i, 0
    for a in range(sizes.agents):
        last.of_first_env[step, a] = last.rewards[line, 0, a]
    return COMPLETE, 0, 0


@strict_kernel
def keep_masks(table: Any, sizes: Sizes, step: int, last: Last) -> None:
    """Keep the masks of all agents after a step."""
    allowed = carray(pointer(table.allowed_at), (sizes.envs, sizes.agents, sizes.choices), np.bool_)
    for i in range(sizes.envs):
        for a in range(sizes.agents):
            for j in range(sizes.choices):
                last.allowed[line_of(step, last), i, a, j] = allowed[i, a, j]


@strict_kernel
def note_infos(running: Running, infos: Array, step: int, last: Last) -> None:
    """Keep infos, and read metrics."""
    for i in range(infos.shape[0]):
        for k in range(infos.shape[1]):
            last.infos[line_of(step, last), i, k] = infos[i, k]
    for k in range(running.readings.shape[0]):
        metric, info = running.readings[k, 0], running.readings[k, 1]
        how = running.reductions[metric]
        for i in range(infos.shape[0]):
            new, so_far = infos[i, info], running.metrics[metric, i]
            if np.isnan(new):
                continue
            if np.isnan(so_far) or how == LAST:
                so_far = new
            elif how == MIN:
                so_far = min(so_far, new)
            elif how == MAX:
                so_far = max(so_far, new)
            else:
                so_far += new
            running.metrics[metric, i] = so_far
            if how == MEAN:
                running.counts[metric, i] += 1.0


@strict_kernel
def _finish(running: Running, finished: Finished, line: int, step: int, i: int) -> None:
    """Write an episode that has ended into a line, and begin to count the next one."""
    finished.places[line, 0], finished.places[line, 1], finished.places[line, 2] = step, i, running.lengths[i]
    for a in range(running.returns.shape[1]):
        finished.returns[line, a], finished.agent_steps[line, a] = running.returns[i, a], running.agent_steps[i, a]
        running.returns[i, a], running.agent_steps[i, a] = 0.0, 0
    running.lengths[i] = 0
    for k in range(running.metrics.shape[0]):
        how, value = running.reductions[k], running.metrics[k, i]
        finished.metrics[line, k] = value / max(1.0, running.counts[k, i]) if how == MEAN else value
        running.metrics[k, i], running.counts[k, i] = 0.0 if how == SUM else np.nan, 0.0
    running.episodes[i] += 1
    running.episode_steps[i] = 0


@strict_kernel
def _seed(upcoming: NextEpisodes, table: Any, sizes: Sizes, running: Running, i: int) -> None:
    """Write the seed of the next episode of an env, as `episode_seed` computes it."""
    n, word = upcoming.entropy.shape[0], np.empty(1, np.uint64)
    upcoming.entropy[n - 2], upcoming.entropy[n - 1] = upcoming.first_env + i, running.episodes[i]
    seed_words(upcoming.entropy, word)
    carray(pointer(table.seeds_at), (sizes.envs,), np.int64)[i] = word[0] >> np.uint64(1)


@strict_kernel
def _begin(upcoming: NextEpisodes, table: Any, sizes: Sizes, i: int) -> None:
    """Begin the next episode of an env."""
    number = upcoming.used[i]
    states = carray(pointer(table.states_at), (sizes.envs, sizes.state_bytes), np.uint8)
    rngs = carray(pointer(table.rngs_at), (sizes.envs, RNG_WORDS), np.uint64)
    for k in range(sizes.state_bytes):
        states[i, k] = upcoming.states[i, number, k]
    for k in range(RNG_WORDS):
        rngs[i, k] = upcoming.rngs[i, number, k]
    upcoming.used[i] = number + 1


@strict_kernel
def _keep_last_observations(table: Any, sizes: Sizes, i: int, last: Last) -> bool:
    """Keep what the agents of an env observe; returns False for a number that is not finite."""
    n, numbers, first = sizes.envs * sizes.agents, sizes.observation, i * sizes.agents
    accepted = True
    if sizes.observes_floats:
        floats, kept = matrix_at(table.observations_at, n, numbers), matrix_at(last.observations, n, numbers)
        for place in range(first, first + sizes.agents):
            for j in range(numbers):
                kept[place, j] = floats[place, j]
                accepted = accepted and np.isfinite(floats[place, j])
    else:
        ints, kept_ints = ints_at(table.observations_at, n, numbers), ints_at(last.observations, n, numbers)
        for place in range(first, first + sizes.agents):
            for j in range(numbers):
                kept_ints[place, j] = ints[place, j]
    return accepted


@strict_kernel
def end_episodes(
    function: int,
    table_at: int,
    sizes: Sizes,
    step: int,
    upcoming: NextEpisodes,
    running: Running,
    finished: Finished,
    last: Last,
    lines: int,
) -> int:
    """Finish the episodes that have ended with a step, and begin the next ones.

    Returns:
        The lines of `finished` that are filled; -1: an episode has ended on an observation that is not finite.
    """
    table = carray(pointer(table_at), (1,), ENVS)[0]
    terminated = carray(pointer(table.terminated_at), (sizes.envs, sizes.agents), np.bool_)
    truncated = carray(pointer(table.truncated_at), (sizes.envs, sizes.agents), np.bool_)
    for i in range(sizes.envs):
        if (terminated[i, 0] or truncated[i, 0]) and not _keep_last_observations(table, sizes, i, last):
            return -1
    for i in range(sizes.envs):
        if terminated[i, 0] or truncated[i, 0]:
            _finish(running, finished, lines, step, i)
            lines += 1
            if upcoming.entropy.shape[0]:
                _seed(upcoming, table, sizes, running, i)
                table.what = BEGIN
            else:
                _begin(upcoming, table, sizes, i)
                table.what = OBSERVE
            table.first, table.end = i, i + 1
            call_at(function, table_at)
    return lines
