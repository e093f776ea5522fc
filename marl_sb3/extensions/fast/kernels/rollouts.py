"""A rollout as one call: policies act, compiled envs step, transitions are stored and episodes counted.

It repeats the joint loop's steps operation by operation, so that both have the same results to the last bit. All arrays
are given by their addresses, so that the loop is compiled once, for any number of policies and any env.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import (
    ACTIONS,
    ALLOWED,
    END,
    FIELDS,
    FIRST,
    INFOS,
    OBSERVATIONS,
    OBSERVE,
    REWARDS,
    RNG_WORDS,
    RNGS,
    STATES,
    STEP,
    TERMINATED,
    TRUNCATED,
    WHAT,
    call_at,
    carray,
    pointer,
    strict_entry,
    strict_kernel,
)
from marl_sb3.extensions.fast.kernels.distributions import sample, sample_gaussian
from marl_sb3.extensions.fast.kernels.layers import LINEAR, vector_at
from marl_sb3.extensions.fast.kernels.mlp import Inputs, Net, forward, outputs_size
from marl_sb3.extensions.fast.kernels.processing import doubles_at
from marl_sb3.types import Array, FloatArray

# The columns of the table of policies. Names in -S are addresses; the arrays are described beside them.
(
    AGENTS,  # number of its agents in each env; a row is an agent of an env
    ROWS_S,  # (2, rows) int64: the env of each row, and the place of its agent among those of the env
    NUMBERS,  # that it observes; those of others may be more
    ONES,  # number of categories that it observes, as one-hot inputs; 0: it observes real numbers
    SIZES_OF_ONES_S,  # (ONES,) int64
    STARTS_OF_ONES_S,  # (ONES,) int64: where each of them begins among the inputs
    TRUNK_S,  # (TRUNK_LAYERS, 4) int64, see `Net`
    TRUNK_LAYERS,
    TRUNK_ACTIVATION,
    PI_S,
    PI_LAYERS,
    VF_S,
    VF_LAYERS,
    ACTIVATION,
    TRUNK_WORK_S,  # see `forward`; of the trunk, the actor and the critic
    PI_WORK_S,
    VF_WORK_S,
    IS_GAUSSIAN,
    PARTS,  # numbers of an action
    PART_SIZES_S,  # (PARTS,) int64: categories of each; not of a Gaussian
    OUTPUTS,  # of the actor
    OF_GAUSSIAN_S,  # (6, PARTS) float32: log standard deviations, standard deviations, limits of the policy, of the env
    IS_RESCALED,  # whether the policy's range becomes that of the env
    NOISE_S,  # (steps, rows, OUTPUTS) float32
    SEEN_S,  # the arrays of the rollout buffer, (steps, rows, ...)
    CHOSEN_S,
    VALUES_S,
    LOG_PROBS_S,
    EPISODE_STARTS_S,
    PAID_S,
    ROW_STARTS_S,  # (rows,) bool: where an episode begins with the next action
    REWARDS_S,  # (rows,) float32: those of a step
    MEMORY_S,  # of as many numbers as all rows observe
    MEANS_S,  # (NUMBERS,) float64: of observations; 0: they are not normalised
    DIVISORS_S,  # (NUMBERS,) float64: their standard deviations
    LIMITS_S,  # (2,) float64: limit of normalised observations, discount
    PROCESS,  # address of `processing.process`; 0: observations and rewards are not processed
    PROCESS_S,  # its table
    TAKES_MASKS,
    MASKS_S,  # (steps, rows, OUTPUTS) float32 of the rollout buffer; of a policy that takes none, of one step
    POLICY_FIELDS,
) = range(41)

CLIP, GAMMA = range(2)

# How a call ends: at the last step; before a step, because an env has no episode left to go on with; after a step, with
# what an env must not return; before a step, with observations that a policy cannot take; after one, with such an
# observation that an episode ends on; before a step, with a mask that forbids all.
COMPLETE, NO_EPISODES, WRONG_REWARD, WRONG_ENDS, WRONG_OBSERVATION, WRONG_LAST_OBSERVATION, WRONG_MASK = range(7)

SUM, MEAN, MIN, MAX, LAST = range(5)  # how the values of steps become the metric of an episode

_f = np.float32
_ZERO = _f(0.0)


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


class Rows(NamedTuple):
    """Some agents of some envs."""

    envs: Array  # (n,) int64
    agents: Array  # (n,) int64


class Coming(NamedTuple):
    """Episodes that have not begun, (envs, most, ...)."""

    states: Array  # (envs, most, bytes) uint8
    rngs: Array  # (envs, most, RNG_WORDS) uint64
    ready: Array  # (envs,) int64; how many there are
    used: Array  # (envs,) int64; how many of them have begun


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
def _floats(address: int, rows: int, columns: int) -> Any:
    return carray(pointer(address), (rows, columns), np.float32)


@strict_kernel
def _ints(address: int, rows: int, columns: int) -> Any:
    return carray(pointer(address), (rows, columns), np.int64)


@strict_kernel
def _inputs(policy: Array, observed_at: int, sizes: Sizes, rows: Rows, to: int) -> Any:
    """Return what some agents observe as inputs of the nets, and whether it is accepted.

    Args:
        to: address where it is written, as the learner keeps it.
    """
    n, ones, numbers, places = rows.envs.shape[0], policy[ONES], policy[NUMBERS], sizes.envs * sizes.agents
    indices, floats = np.empty((n, ones), np.int64), _floats(to, n, 0 if ones else numbers)
    accepted = True
    if ones:
        ints, kept = _ints(observed_at, places, sizes.observation), _ints(to, n, ones)
        limits, starts = _ints(policy[SIZES_OF_ONES_S], 1, ones), _ints(policy[STARTS_OF_ONES_S], 1, ones)
        for row in range(n):
            place = rows.envs[row] * sizes.agents + rows.agents[row]
            for j in range(ones):
                number = ints[place, j]
                if number < 0 or number >= limits[0, j]:
                    accepted, number = False, 0
                kept[row, j], indices[row, j] = number, number + starts[0, j]
    else:
        seen = _floats(observed_at, places, sizes.observation)
        means, divisors = doubles_at(policy[MEANS_S], numbers), doubles_at(policy[DIVISORS_S], numbers)
        limit = doubles_at(policy[LIMITS_S], 2)[CLIP]
        for row in range(n):
            place = rows.envs[row] * sizes.agents + rows.agents[row]
            for j in range(numbers):
                number_seen = seen[place, j]
                accepted = accepted and np.isfinite(number_seen)
                if policy[MEANS_S]:
                    number_seen = _f(min(limit, max(-limit, (number_seen - means[j]) / divisors[j])))
                floats[row, j] = number_seen
    return Inputs(indices, floats), accepted


@strict_kernel
def _rows(policy: Array, envs: int) -> Rows:
    """Return the rows of a policy; a view."""
    n = envs * policy[AGENTS]
    both = _ints(policy[ROWS_S], 2, n)
    return Rows(both[0], both[1])


@strict_kernel
def _net(policy: Array, table: int, layers: int) -> Any:
    return Net(carray(pointer(policy[table]), (policy[layers], 4), np.int64), policy[ACTIVATION], LINEAR)


@strict_kernel
def _features(policy: Array, inputs: Inputs) -> Any:
    """Return the inputs of actor and critic: those of the nets, or the outputs of the layers in common."""
    if policy[TRUNK_LAYERS] == 0:
        return inputs
    rows = inputs.floats.shape[0]
    table = carray(pointer(policy[TRUNK_S]), (policy[TRUNK_LAYERS], 4), np.int64)
    net = Net(table, policy[TRUNK_ACTIVATION], policy[TRUNK_ACTIVATION])
    work = vector_at(policy[TRUNK_WORK_S], rows * outputs_size(net))
    return Inputs(np.empty((rows, 0), np.int64), forward(net, inputs, work))


@strict_kernel
def _values(policy: Array, inputs: Inputs) -> FloatArray:
    """(rows, 1) values; a view of the workspace."""
    net = _net(policy, VF_S, VF_LAYERS)
    work = vector_at(policy[VF_WORK_S], inputs.floats.shape[0] * outputs_size(net))
    return forward(net, inputs, work)


@strict_kernel
def _masks(policy: Array, table: Array, sizes: Sizes, first: int, rows: Rows) -> Any:
    """Store the masks of the rows; returns them, without columns if all is allowed, and whether they leave a choice."""
    n, parts, outputs, takes = rows.envs.shape[0], policy[PARTS], policy[OUTPUTS], policy[TAKES_MASKS]
    kept = _floats(policy[MASKS_S] + 4 * outputs * (first if takes else 0), n, outputs if sizes.choices else 0)
    part_sizes = carray(pointer(policy[PART_SIZES_S]), (parts,), np.int64)
    allowed = carray(pointer(table[ALLOWED]), (sizes.envs, sizes.agents, sizes.choices), np.bool_)
    accepted = True
    for row in range(n if sizes.choices else 0):
        of_row, start = allowed[rows.envs[row], rows.agents[row]], 0
        for k in range(parts):
            many = 0
            for j in range(start, start + part_sizes[k]):
                kept[row, j] = _f(1.0) if of_row[j] else _ZERO
                many += of_row[j]
            accepted = accepted and many > 0
            start += part_sizes[k]
    return _floats(policy[MASKS_S] + 4 * outputs * first, n, outputs if takes else 0), accepted


@strict_kernel
def _choose(
    policy: Array,
    outputs: FloatArray,
    allowed: FloatArray,
    noise: FloatArray,
    table: Array,
    sizes: Sizes,
    first: int,
    rows: Rows,
) -> FloatArray:
    """Draw the actions of the rows, store them, and give them to the env; returns their log-probabilities."""
    n, parts, places = rows.envs.shape[0], policy[PARTS], sizes.envs * sizes.agents
    if policy[IS_GAUSSIAN]:
        own = _floats(policy[OF_GAUSSIAN_S], 6, parts)
        chosen, log_probs = sample_gaussian(outputs, own[0], own[1], noise)
        kept, to_env = _floats(policy[CHOSEN_S], first + n, parts), _floats(table[ACTIONS], places, sizes.action)
        for row in range(n):
            for j in range(parts):
                kept[first + row, j] = chosen[row, j]
                within = min(own[3, j], max(own[2, j], chosen[row, j]))
                if policy[IS_RESCALED]:  # see `RescaleActions`
                    scaled = own[4, j] + (within + _f(1.0)) * _f(0.5) * (own[5, j] - own[4, j])
                    within = min(own[5, j], max(own[4, j], scaled))
                to_env[rows.envs[row] * sizes.agents + rows.agents[row], j] = within
        return log_probs
    part_sizes = carray(pointer(policy[PART_SIZES_S]), (parts,), np.int64)
    picked, log_probs = sample(outputs, allowed, part_sizes, noise)
    kept_ints, to_env_ints = _ints(policy[CHOSEN_S], first + n, parts), _ints(table[ACTIONS], places, sizes.action)
    for row in range(n):
        for j in range(parts):
            kept_ints[first + row, j] = picked[row, j]
            to_env_ints[rows.envs[row] * sizes.agents + rows.agents[row], j] = picked[row, j]
    return log_probs


@strict_kernel
def _act(policy: Array, table: Array, sizes: Sizes, step: int, rows: Rows) -> int:
    """Let a policy act for its rows, and store what it has seen and chosen; returns how that ends."""
    n = rows.envs.shape[0]
    first = step * n
    bytes_of_each = 8 if policy[ONES] else 4
    to = policy[SEEN_S] + first * policy[NUMBERS] * bytes_of_each
    inputs, accepted = _inputs(policy, table[OBSERVATIONS], sizes, rows, to)
    if not accepted:
        return WRONG_OBSERVATION
    allowed, accepted = _masks(policy, table, sizes, first, rows)
    if not accepted:
        return WRONG_MASK
    features = _features(policy, inputs)
    actor = _net(policy, PI_S, PI_LAYERS)
    outputs = forward(actor, features, vector_at(policy[PI_WORK_S], n * outputs_size(actor)))
    values = _values(policy, features)
    noise = carray(pointer(policy[NOISE_S]), (sizes.steps, n, policy[OUTPUTS]), np.float32)
    log_probs = _choose(policy, outputs, allowed, noise[step], table, sizes, first, rows)
    starts = carray(pointer(policy[ROW_STARTS_S]), (n,), np.bool_)
    kept_values, kept_starts = vector_at(policy[VALUES_S], first + n), vector_at(policy[EPISODE_STARTS_S], first + n)
    kept_log_probs = vector_at(policy[LOG_PROBS_S], first + n)
    for row in range(n):
        kept_values[first + row], kept_log_probs[first + row] = values[row, 0], log_probs[row]
        kept_starts[first + row] = _f(1.0) if starts[row] else _ZERO
    return COMPLETE


@strict_kernel
def _line(step: int, last: Last) -> Any:
    """Return the line of a step."""
    return min(step, last.rewards.shape[0] - 1)


@strict_kernel
def _note_rewards(policy: Array, table: Array, sizes: Sizes, step: int, rows: Rows, last: Last) -> bool:
    """Store the rewards of a policy's rows, and where their episodes end; False: observations are refused.

    Truncation is not termination: the rewards of agents that were truncated go on with the values of what they saw
    last.
    """
    n, first, line = rows.envs.shape[0], step * rows.envs.shape[0], _line(step, last)
    terminated = carray(pointer(table[TERMINATED]), (sizes.envs, sizes.agents), np.bool_)
    truncated = carray(pointer(table[TRUNCATED]), (sizes.envs, sizes.agents), np.bool_)
    starts = carray(pointer(policy[ROW_STARTS_S]), (n,), np.bool_)
    rewards, paid = vector_at(policy[REWARDS_S], n), vector_at(policy[PAID_S], first + n)
    at_limit = np.empty(n, np.int64)  # rows
    many = 0
    for row in range(n):
        i, a = rows.envs[row], rows.agents[row]
        rewards[row] = last.rewards[line, i, a]
        starts[row] = terminated[i, a] or truncated[i, a]
        if truncated[i, a] and not terminated[i, a]:
            at_limit[many] = row
            many += 1
    if policy[PROCESS]:
        call_at(policy[PROCESS], policy[PROCESS_S])
    for row in range(n):
        paid[first + row] = _ZERO + rewards[row]
    if many == 0:
        return True
    ended = Rows(np.empty(many, np.int64), np.empty(many, np.int64))
    for k in range(many):
        ended.envs[k], ended.agents[k] = rows.envs[at_limit[k]], rows.agents[at_limit[k]]
    inputs, accepted = _inputs(policy, last.observations, sizes, ended, policy[MEMORY_S])
    if not accepted:
        return False
    values, gamma = _values(policy, _features(policy, inputs)), _f(doubles_at(policy[LIMITS_S], 2)[GAMMA])
    for k in range(many):
        sum_of_both = rewards[at_limit[k]] + gamma * values[k, 0]
        paid[first + at_limit[k]] = _ZERO + sum_of_both
    return True


@strict_kernel
def _note_ends(table: Array, sizes: Sizes, step: int, running: Running, last: Last) -> tuple[int, int, int]:
    """Count a step and its rewards, and truncate episodes at the horizon; returns how that ends, an env, an agent."""
    rewards = carray(pointer(table[REWARDS]), (sizes.envs, sizes.agents), np.float64)
    terminated = carray(pointer(table[TERMINATED]), (sizes.envs, sizes.agents), np.bool_)
    truncated = carray(pointer(table[TRUNCATED]), (sizes.envs, sizes.agents), np.bool_)
    line = _line(step, last)
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
def _keep_masks(table: Array, sizes: Sizes, step: int, last: Last) -> None:
    """Keep the masks of all agents after a step."""
    allowed = carray(pointer(table[ALLOWED]), (sizes.envs, sizes.agents, sizes.choices), np.bool_)
    for i in range(sizes.envs):
        for a in range(sizes.agents):
            for j in range(sizes.choices):
                last.allowed[_line(step, last), i, a, j] = allowed[i, a, j]


@strict_kernel
def _note_infos(running: Running, infos: Array, step: int, last: Last) -> None:
    """Keep infos, and read metrics."""
    for i in range(infos.shape[0]):
        for k in range(infos.shape[1]):
            last.infos[_line(step, last), i, k] = infos[i, k]
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
def _begin(coming: Coming, table: Array, sizes: Sizes, i: int) -> None:
    """Begin the next episode of an env."""
    number = coming.used[i]
    states = carray(pointer(table[STATES]), (sizes.envs, sizes.state_bytes), np.uint8)
    rngs = carray(pointer(table[RNGS]), (sizes.envs, RNG_WORDS), np.uint64)
    for k in range(sizes.state_bytes):
        states[i, k] = coming.states[i, number, k]
    for k in range(RNG_WORDS):
        rngs[i, k] = coming.rngs[i, number, k]
    coming.used[i] = number + 1


@strict_kernel
def _keep_last_observations(table: Array, sizes: Sizes, i: int, last: Last) -> bool:
    """Keep what the agents of an env observe; returns False for a number that is not finite."""
    n, numbers, first = sizes.envs * sizes.agents, sizes.observation, i * sizes.agents
    accepted = True
    if sizes.observes_floats:
        floats, kept = _floats(table[OBSERVATIONS], n, numbers), _floats(last.observations, n, numbers)
        for place in range(first, first + sizes.agents):
            for j in range(numbers):
                kept[place, j] = floats[place, j]
                accepted = accepted and np.isfinite(floats[place, j])
    else:
        ints, kept_ints = _ints(table[OBSERVATIONS], n, numbers), _ints(last.observations, n, numbers)
        for place in range(first, first + sizes.agents):
            for j in range(numbers):
                kept_ints[place, j] = ints[place, j]
    return accepted


@strict_kernel
def _end_episodes(
    function: int,
    table_at: int,
    sizes: Sizes,
    step: int,
    coming: Coming,
    running: Running,
    finished: Finished,
    last: Last,
    lines: int,
) -> int:
    """Finish the episodes that have ended with a step, and begin the next ones.

    Returns:
        The lines of `finished` that are filled; -1: an episode has ended on an observation that is not finite.
    """
    table = carray(pointer(table_at), (FIELDS,), np.int64)
    terminated = carray(pointer(table[TERMINATED]), (sizes.envs, sizes.agents), np.bool_)
    truncated = carray(pointer(table[TRUNCATED]), (sizes.envs, sizes.agents), np.bool_)
    for i in range(sizes.envs):
        if (terminated[i, 0] or truncated[i, 0]) and not _keep_last_observations(table, sizes, i, last):
            return -1
    for i in range(sizes.envs):
        if terminated[i, 0] or truncated[i, 0]:
            _finish(running, finished, lines, step, i)
            lines += 1
            _begin(coming, table, sizes, i)
            table[WHAT], table[FIRST], table[END] = OBSERVE, i, i + 1
            call_at(function, table_at)
    return lines


@strict_entry
def collect(
    function: int,
    table_at: int,
    policies: Array,
    sizes: Sizes,
    coming: Coming,
    running: Running,
    finished: Finished,
    last: Last,
    first_step: int,
) -> tuple[int, int, int, int, int]:
    """Take steps until all are taken, or an env has no episode to go on with.

    Args:
        function: address of what steps the envs, see `marl_sb3.compiling`.
        table_at: address of its table.
        policies: (policies, POLICY_FIELDS) int64.
        first_step: the number of the first one, of `sizes.steps`.

    Returns:
        The number of the next step; the lines of `finished` that are filled; how the call has ended; and the env and
        the agent of what is wrong.
    """
    table = carray(pointer(table_at), (FIELDS,), np.int64)
    envs = sizes.envs
    infos = carray(pointer(table[INFOS]), (envs, sizes.infos), np.float64)
    lines = 0
    for step in range(first_step, sizes.steps):
        for i in range(envs):
            if coming.used[i] >= coming.ready[i]:
                return step, lines, NO_EPISODES, i, 0
        for p in range(policies.shape[0]):
            how = _act(policies[p], table, sizes, step, _rows(policies[p], envs))
            if how != COMPLETE:
                return step, lines, how, 0, 0
        table[WHAT], table[FIRST], table[END] = STEP, 0, envs
        call_at(function, table_at)
        how, i, a = _note_ends(table, sizes, step, running, last)
        if how != COMPLETE:
            return step, lines, how, i, a
        _note_infos(running, infos, step, last)
        _keep_masks(table, sizes, step, last)
        ended = _end_episodes(function, table_at, sizes, step, coming, running, finished, last, lines)
        if ended < 0:
            return step, lines, WRONG_LAST_OBSERVATION, 0, 0
        lines = ended
        for p in range(policies.shape[0]):  # after the first observations, which statistics take in
            if not _note_rewards(policies[p], table, sizes, step, _rows(policies[p], envs), last):
                return step, lines, WRONG_LAST_OBSERVATION, 0, 0
    return sizes.steps, lines, COMPLETE, 0, 0
