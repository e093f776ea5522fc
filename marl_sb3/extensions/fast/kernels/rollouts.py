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
from marl_sb3.extensions.fast.kernels import features
from marl_sb3.extensions.fast.kernels.distributions import sample, sample_gaussian
from marl_sb3.extensions.fast.kernels.episodes import (
    COMPLETE,
    NO_EPISODES,
    WRONG_LAST_OBSERVATION,
    WRONG_MASK,
    WRONG_OBSERVATION,
    Finished,
    Last,
    NextEpisodes,
    Running,
    Sizes,
    end_episodes,
    keep_masks,
    line_of,
    note_ends,
    note_infos,
)
from marl_sb3.extensions.fast.kernels.layers import LINEAR, ints_at, matrix_at, vector_at
from marl_sb3.extensions.fast.kernels.mlp import Inputs, Net, forward, outputs_size
from marl_sb3.extensions.fast.kernels.processing import doubles_at
from marl_sb3.types import Array, FloatArray

# The columns of the table of policies. Names in -S are addresses; the arrays are described beside them.
(
    AGENTS,  # number of its agents in each env; a row is an agent of an env
    ROWS_S,  # (3, rows) int64: the env of each row, the place of its agent among those of the env, and its number
    NUMBERS,  # that it sees; those of others may be more
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
    MEMORY_S,  # of as many numbers as all rows see
    MEANS_S,  # (NUMBERS,) float64: of observations; 0: they are not normalised
    DIVISORS_S,  # (NUMBERS,) float64: their standard deviations
    LIMITS_S,  # (2,) float64: limit of normalised observations, discount
    PROCESS,  # address of `processing.process`; 0: observations and rewards are not processed
    PROCESS_S,  # its table
    FEATURES,  # address of `features.features`; 0: it sees what the env shows, normalised or not
    FEATURES_S,  # its table
    TAKES_MASKS,
    MASKS_S,  # (steps, rows, OUTPUTS) float32 of the rollout buffer; of a policy that takes none, of one step
    TEAM,  # agents whose rewards are added up for each of its own; 0: each is paid its own
    TEAM_S,  # (TEAM,) int64: their places among the agents of an env
    TEAM_DIVISOR,  # of the sum
    POLICY_FIELDS,
) = range(46)

CLIP, GAMMA = range(2)  # what the limits are

_f = np.float32
_ZERO = _f(0.0)


class Rows(NamedTuple):
    """Some agents of some envs."""

    envs: Array  # (n,) int64
    agents: Array  # (n,) int64
    numbers: Array  # (n,) int64; their own among those of the policy


@strict_kernel
def _see(policy: Array, observed_at: int, rows: Rows, to: int, act: bool) -> None:
    """Write what a policy sees, which is more than the env shows."""
    table = carray(pointer(policy[FEATURES_S]), (features.FIELDS,), np.int64)
    table[features.ASKED_S], table[features.ASKED] = rows.numbers.ctypes.data, rows.numbers.shape[0]
    table[features.OBSERVED_S], table[features.SEEN_S], table[features.ACT] = observed_at, to, act
    call_at(policy[FEATURES], policy[FEATURES_S])


@strict_kernel
def _inputs(policy: Array, observed_at: int, sizes: Sizes, rows: Rows, to: int, act: bool) -> Any:
    """Return what some agents see as inputs of the nets, and whether it is accepted.

    Args:
        to: address where it is written, as the learner keeps it.
        act: whether they act on it.
    """
    n, ones, numbers, places = rows.envs.shape[0], policy[ONES], policy[NUMBERS], sizes.envs * sizes.agents
    width, is_seen = sizes.observation, policy[FEATURES] != 0
    if is_seen:
        _see(policy, observed_at, rows, to, act)
        observed_at, places, width = to, n, numbers
    indices, floats = np.empty((n, ones), np.int64), matrix_at(to, n, 0 if ones else numbers)
    accepted = True
    if ones:
        ints, kept = ints_at(observed_at, places, width), ints_at(to, n, ones)
        limits, starts = ints_at(policy[SIZES_OF_ONES_S], 1, ones), ints_at(policy[STARTS_OF_ONES_S], 1, ones)
        for row in range(n):
            place = row if is_seen else rows.envs[row] * sizes.agents + rows.agents[row]
            for j in range(ones):
                number = ints[place, j]
                if number < 0 or number >= limits[0, j]:
                    accepted, number = False, 0
                kept[row, j], indices[row, j] = number, number + starts[0, j]
    else:
        seen = matrix_at(observed_at, places, width)
        means, divisors = doubles_at(policy[MEANS_S], numbers), doubles_at(policy[DIVISORS_S], numbers)
        limit = doubles_at(policy[LIMITS_S], 2)[CLIP]
        for row in range(n):
            place = row if is_seen else rows.envs[row] * sizes.agents + rows.agents[row]
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
    of_rows = ints_at(policy[ROWS_S], 3, n)
    return Rows(of_rows[0], of_rows[1], of_rows[2])


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
    kept = matrix_at(policy[MASKS_S] + 4 * outputs * (first if takes else 0), n, outputs if sizes.choices else 0)
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
    return matrix_at(policy[MASKS_S] + 4 * outputs * first, n, outputs if takes else 0), accepted


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
        own = matrix_at(policy[OF_GAUSSIAN_S], 6, parts)
        chosen, log_probs = sample_gaussian(outputs, own[0], own[1], noise)
        kept, to_env = matrix_at(policy[CHOSEN_S], first + n, parts), matrix_at(table[ACTIONS], places, sizes.action)
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
    kept_ints, to_env_ints = ints_at(policy[CHOSEN_S], first + n, parts), ints_at(table[ACTIONS], places, sizes.action)
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
    inputs, accepted = _inputs(policy, table[OBSERVATIONS], sizes, rows, to, True)
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
def _paid_to_team(policy: Array, rewards: FloatArray) -> Any:
    """Return what each of a team is paid; (agents of an env,) are their own rewards."""
    team = carray(pointer(policy[TEAM_S]), (policy[TEAM],), np.int64)
    total = _ZERO
    for k in range(team.shape[0]):
        total += rewards[team[k]]
    return total / _f(policy[TEAM_DIVISOR])


@strict_kernel
def _note_rewards(policy: Array, table: Array, sizes: Sizes, step: int, rows: Rows, last: Last) -> bool:
    """Store the rewards of a policy's rows, and where their episodes end; False: observations are refused.

    Truncation is not termination: the rewards of agents that were truncated go on with the values of what they saw
    last.
    """
    n, first, line = rows.envs.shape[0], step * rows.envs.shape[0], line_of(step, last)
    terminated = carray(pointer(table[TERMINATED]), (sizes.envs, sizes.agents), np.bool_)
    truncated = carray(pointer(table[TRUNCATED]), (sizes.envs, sizes.agents), np.bool_)
    starts = carray(pointer(policy[ROW_STARTS_S]), (n,), np.bool_)
    rewards, paid = vector_at(policy[REWARDS_S], n), vector_at(policy[PAID_S], first + n)
    at_limit = np.empty(n, np.int64)  # rows
    many = 0
    for row in range(n):
        i, a = rows.envs[row], rows.agents[row]
        rewards[row] = last.rewards[line, i, a] if policy[TEAM] == 0 else _paid_to_team(policy, last.rewards[line, i])
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
    ended = Rows(np.empty(many, np.int64), np.empty(many, np.int64), at_limit[:many])
    for k in range(many):
        ended.envs[k], ended.agents[k] = rows.envs[at_limit[k]], rows.agents[at_limit[k]]
    inputs, accepted = _inputs(policy, last.observations, sizes, ended, policy[MEMORY_S], False)
    if not accepted:
        return False
    values, gamma = _values(policy, _features(policy, inputs)), _f(doubles_at(policy[LIMITS_S], 2)[GAMMA])
    for k in range(many):
        sum_of_both = rewards[at_limit[k]] + gamma * values[k, 0]
        paid[first + at_limit[k]] = _ZERO + sum_of_both
    return True


@strict_entry
def collect(
    function: int,
    table_at: int,
    policies: Array,
    sizes: Sizes,
    upcoming: NextEpisodes,
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
            if upcoming.used[i] >= upcoming.ready[i]:
                return step, lines, NO_EPISODES, i, 0
        for p in range(policies.shape[0]):
            how = _act(policies[p], table, sizes, step, _rows(policies[p], envs))
            if how != COMPLETE:
                return step, lines, how, 0, 0
        table[WHAT], table[FIRST], table[END] = STEP, 0, envs
        call_at(function, table_at)
        how, i, a = note_ends(table, sizes, step, running, last)
        if how != COMPLETE:
            return step, lines, how, i, a
        note_infos(running, infos, step, last)
        keep_masks(table, sizes, step, last)
        ended = end_episodes(function, table_at, sizes, step, upcoming, running, finished, last, lines)
        if ended < 0:
            return step, lines, WRONG_LAST_OBSERVATION, 0, 0
        lines = ended
        for p in range(policies.shape[0]):  # after the first observations, which statistics take in
            if not _note_rewards(policies[p], table, sizes, step, _rows(policies[p], envs), last):
                return step, lines, WRONG_LAST_OBSERVATION, 0, 0
    return sizes.steps, lines, COMPLETE, 0, 0
