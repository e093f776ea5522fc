"""A rollout as one call: policies act, compiled envs step, transitions are stored and episodes counted.

It repeats the joint loop's steps operation by operation, so that both have the same results to the last bit. All arrays
are given by their addresses, so that the loop is compiled once, for any number of policies and any env.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import ENVS, STEP, call_at, carray, pointer, record, strict_entry, strict_kernel
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
from marl_sb3.extensions.fast.kernels.features import FEATURES
from marl_sb3.extensions.fast.kernels.layers import LINEAR, ints_at, matrix_at, vector_at
from marl_sb3.extensions.fast.kernels.mlp import Inputs, Net, forward, outputs_size
from marl_sb3.extensions.fast.kernels.processing import doubles_at
from marl_sb3.types import Array, FloatArray

# A policy, as the kernel has it. Names in -at are addresses; the arrays are described beside them.
POLICY = record(
    "agents",  # number of its agents in each env; a row is an agent of an env
    "rows_at",  # (3, rows) int64: the env of each row, the place of its agent among those of the env, and its number
    "numbers",  # that it sees; those of others may be more
    "ones",  # number of categories that it observes, as one-hot inputs; 0: it observes real numbers
    "sizes_of_ones_at",  # (ones,) int64
    "starts_of_ones_at",  # (ones,) int64: where each of them begins among the inputs
    "trunk_at",  # (trunk_layers, 4) int64, see `Net`
    "trunk_layers",
    "trunk_activation",
    "pi_at",
    "pi_layers",
    "vf_at",
    "vf_layers",
    "activation",
    "trunk_work_at",  # see `forward`; of the trunk, the actor and the critic
    "pi_work_at",
    "vf_work_at",
    "is_gaussian",
    "parts",  # numbers of an action
    "part_sizes_at",  # (parts,) int64: categories of each; not of a Gaussian
    "outputs",  # of the actor
    "of_gaussian_at",  # (6, parts) float32: log standard deviations, standard deviations, limits of policy and env
    "is_rescaled",  # whether the policy's range becomes that of the env
    "noise_at",  # (steps, rows, outputs) float32
    "seen_at",  # the arrays of the rollout buffer, (steps, rows, ...)
    "chosen_at",
    "values_at",
    "log_probs_at",
    "episode_starts_at",
    "paid_at",
    "row_starts_at",  # (rows,) bool: where an episode begins with the next action
    "rewards_at",  # (rows,) float32: those of a step
    "memory_at",  # of as many numbers as all rows see
    "means_at",  # (numbers,) float64: of observations; 0: they are not normalised
    "divisors_at",  # (numbers,) float64: their standard deviations
    "process",  # address of `processing.process`; 0: observations and rewards are not processed
    "process_at",  # its table
    "features",  # address of `features.features`; 0: it sees what the env shows, normalised or not
    "features_at",  # its table
    "takes_masks",
    "masks_at",  # (steps, rows, outputs) float32 of the rollout buffer; of a policy that takes none, of one step
    "team",  # agents whose rewards are added up for each of its own; 0: each is paid its own
    "team_at",  # (team,) int64: their places among the agents of an env
    "team_divisor",  # of the sum
    floats=("clip", "gamma"),  # limit of normalised observations, discount
)

_f = np.float32
_ZERO = _f(0.0)


class Rows(NamedTuple):
    """Some agents of some envs."""

    envs: Array  # (n,) int64
    agents: Array  # (n,) int64
    numbers: Array  # (n,) int64; their own among those of the policy


@strict_kernel
def _see(policy: Any, observed_at: int, rows: Rows, to: int, act: bool) -> None:
    """Write what a policy sees, which is more than the env shows."""
    table = carray(pointer(policy.features_at), (1,), FEATURES)[0]
    table.asked_at, table.asked = rows.numbers.ctypes.data, rows.numbers.shape[0]
    table.observed_at, table.seen_at, table.act = observed_at, to, act
    call_at(policy.features, policy.features_at)


@strict_kernel
def _inputs(policy: Any, observed_at: int, sizes: Sizes, rows: Rows, to: int, act: bool) -> Any:
    """Return what some agents see as inputs of the nets, and whether it is accepted.

    Args:
        to: address where it is written, as the learner keeps it.
        act: whether they act on it.
    """
    n, ones, numbers, places = rows.envs.shape[0], policy.ones, policy.numbers, sizes.envs * sizes.agents
    width, is_seen = sizes.observation, policy.features != 0
    if is_seen:
        _see(policy, observed_at, rows, to, act)
        observed_at, places, width = to, n, numbers
    indices, floats = np.empty((n, ones), np.int64), matrix_at(to, n, 0 if ones else numbers)
    accepted = True
    if ones:
        ints, kept = ints_at(observed_at, places, width), ints_at(to, n, ones)
        limits, starts = ints_at(policy.sizes_of_ones_at, 1, ones), ints_at(policy.starts_of_ones_at, 1, ones)
        for row in range(n):
            place = row if is_seen else rows.envs[row] * sizes.agents + rows.agents[row]
            for j in range(ones):
                number = ints[place, j]
                if number < 0 or number >= limits[0, j]:
                    accepted, number = False, 0
                kept[row, j], indices[row, j] = number, number + starts[0, j]
    else:
        seen = matrix_at(observed_at, places, width)
        means, divisors = doubles_at(policy.means_at, numbers), doubles_at(policy.divisors_at, numbers)
        for row in range(n):
            place = row if is_seen else rows.envs[row] * sizes.agents + rows.agents[row]
            for j in range(numbers):
                number_seen = seen[place, j]
                accepted = accepted and np.isfinite(number_seen)
                if policy.means_at:
                    number_seen = _f(min(policy.clip, max(-policy.clip, (number_seen - means[j]) / divisors[j])))
                floats[row, j] = number_seen
    return Inputs(indices, floats), accepted


@strict_kernel
def _rows(policy: Any, envs: int) -> Rows:
    """Return the rows of a policy; a view."""
    n = envs * policy.agents
    of_rows = ints_at(policy.rows_at, 3, n)
    return Rows(of_rows[0], of_rows[1], of_rows[2])


@strict_kernel
def _net(table_at: int, layers: int, activation: int) -> Any:
    return Net(carray(pointer(table_at), (layers, 4), np.int64), activation, LINEAR)


@strict_kernel
def _features(policy: Any, inputs: Inputs) -> Any:
    """Return the inputs of actor and critic: those of the nets, or the outputs of the layers in common."""
    if policy.trunk_layers == 0:
        return inputs
    rows = inputs.floats.shape[0]
    table = carray(pointer(policy.trunk_at), (policy.trunk_layers, 4), np.int64)
    net = Net(table, policy.trunk_activation, policy.trunk_activation)
    work = vector_at(policy.trunk_work_at, rows * outputs_size(net))
    return Inputs(np.empty((rows, 0), np.int64), forward(net, inputs, work))


@strict_kernel
def _values(policy: Any, inputs: Inputs) -> FloatArray:
    """(rows, 1) values; a view of the workspace."""
    net = _net(policy.vf_at, policy.vf_layers, policy.activation)
    work = vector_at(policy.vf_work_at, inputs.floats.shape[0] * outputs_size(net))
    return forward(net, inputs, work)


@strict_kernel
def _masks(policy: Any, table: Any, sizes: Sizes, first: int, rows: Rows) -> Any:
    """Store the masks of the rows; returns them, without columns if all is allowed, and whether they leave a choice."""
    n, parts, outputs, takes = rows.envs.shape[0], policy.parts, policy.outputs, policy.takes_masks
    kept = matrix_at(policy.masks_at + 4 * outputs * (first if takes else 0), n, outputs if sizes.choices else 0)
    part_sizes = carray(pointer(policy.part_sizes_at), (parts,), np.int64)
    allowed = carray(pointer(table.allowed_at), (sizes.envs, sizes.agents, sizes.choices), np.bool_)
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
    return matrix_at(policy.masks_at + 4 * outputs * first, n, outputs if takes else 0), accepted


@strict_kernel
def _choose(
    policy: Any,
    outputs: FloatArray,
    allowed: FloatArray,
    noise: FloatArray,
    table: Any,
    sizes: Sizes,
    first: int,
    rows: Rows,
) -> FloatArray:
    """Draw the actions of the rows, store them, and give them to the env; returns their log-probabilities."""
    n, parts, places = rows.envs.shape[0], policy.parts, sizes.envs * sizes.agents
    if policy.is_gaussian:
        own = matrix_at(policy.of_gaussian_at, 6, parts)
        chosen, log_probs = sample_gaussian(outputs, own[0], own[1], noise)
        kept, to_env = matrix_at(policy.chosen_at, first + n, parts), matrix_at(table.actions_at, places, sizes.action)
        for row in range(n):
            for j in range(parts):
                kept[first + row, j] = chosen[row, j]
                within = min(own[3, j], max(own[2, j], chosen[row, j]))
                if policy.is_rescaled:  # see `RescaleActions`
                    scaled = own[4, j] + (within + _f(1.0)) * _f(0.5) * (own[5, j] - own[4, j])
                    within = min(own[5, j], max(own[4, j], scaled))
                to_env[rows.envs[row] * sizes.agents + rows.agents[row], j] = within
        return log_probs
    part_sizes = carray(pointer(policy.part_sizes_at), (parts,), np.int64)
    picked, log_probs = sample(outputs, allowed, part_sizes, noise)
    kept_ints, to_env_ints = (
        ints_at(policy.chosen_at, first + n, parts),
        ints_at(table.actions_at, places, sizes.action),
    )
    for row in range(n):
        for j in range(parts):
            kept_ints[first + row, j] = picked[row, j]
            to_env_ints[rows.envs[row] * sizes.agents + rows.agents[row], j] = picked[row, j]
    return log_probs


@strict_kernel
def _act(policy: Any, table: Any, sizes: Sizes, step: int, rows: Rows) -> int:
    """Let a policy act for its rows, and store what it has seen and chosen; returns how that ends."""
    n = rows.envs.shape[0]
    first = step * n
    bytes_of_each = 8 if policy.ones else 4
    to = policy.seen_at + first * policy.numbers * bytes_of_each
    inputs, accepted = _inputs(policy, table.observations_at, sizes, rows, to, True)
    if not accepted:
        return WRONG_OBSERVATION
    allowed, accepted = _masks(policy, table, sizes, first, rows)
    if not accepted:
        return WRONG_MASK
    features = _features(policy, inputs)
    actor = _net(policy.pi_at, policy.pi_layers, policy.activation)
    outputs = forward(actor, features, vector_at(policy.pi_work_at, n * outputs_size(actor)))
    values = _values(policy, features)
    noise = carray(pointer(policy.noise_at), (sizes.steps, n, policy.outputs), np.float32)
    log_probs = _choose(policy, outputs, allowed, noise[step], table, sizes, first, rows)
    starts = carray(pointer(policy.row_starts_at), (n,), np.bool_)
    kept_values, kept_starts = vector_at(policy.values_at, first + n), vector_at(policy.episode_starts_at, first + n)
    kept_log_probs = vector_at(policy.log_probs_at, first + n)
    for row in range(n):
        kept_values[first + row], kept_log_probs[first + row] = values[row, 0], log_probs[row]
        kept_starts[first + row] = _f(1.0) if starts[row] else _ZERO
    return COMPLETE


@strict_kernel
def _paid_to_team(policy: Any, rewards: FloatArray) -> Any:
    """Return what each of a team is paid; (agents of an env,) are their own rewards."""
    team = carray(pointer(policy.team_at), (policy.team,), np.int64)
    total = _ZERO
    for k in range(team.shape[0]):
        total += rewards[team[k]]
    return total / _f(policy.team_divisor)


@strict_kernel
def _note_rewards(policy: Any, table: Any, sizes: Sizes, step: int, rows: Rows, last: Last) -> bool:
    """Store the rewards of a policy's rows, and where their episodes end; False: observations are refused.

    Truncation is not termination: the rewards of agents that were truncated go on with the values of what they saw
    last.
    """
    n, first, line = rows.envs.shape[0], step * rows.envs.shape[0], line_of(step, last)
    terminated = carray(pointer(table.terminated_at), (sizes.envs, sizes.agents), np.bool_)
    truncated = carray(pointer(table.truncated_at), (sizes.envs, sizes.agents), np.bool_)
    starts = carray(pointer(policy.row_starts_at), (n,), np.bool_)
    rewards, paid = vector_at(policy.rewards_at, n), vector_at(policy.paid_at, first + n)
    at_limit = np.empty(n, np.int64)  # rows
    many = 0
    for row in range(n):
        i, a = rows.envs[row], rows.agents[row]
        rewards[row] = last.rewards[line, i, a] if policy.team == 0 else _paid_to_team(policy, last.rewards[line, i])
        starts[row] = terminated[i, a] or truncated[i, a]
        if truncated[i, a] and not terminated[i, a]:
            at_limit[many] = row
            many += 1
    if policy.process:
        call_at(policy.process, policy.process_at)
    for row in range(n):
        paid[first + row] = _ZERO + rewards[row]
    if many == 0:
        return True
    ended = Rows(np.empty(many, np.int64), np.empty(many, np.int64), at_limit[:many])
    for k in range(many):
        ended.envs[k], ended.agents[k] = rows.envs[at_limit[k]], rows.agents[at_limit[k]]
    inputs, accepted = _inputs(policy, last.observations, sizes, ended, policy.memory_at, False)
    if not accepted:
        return False
    values, gamma = _values(policy, _features(policy, inputs)), _f(policy.gamma)
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
        table_at: address of its record, see `ENVS`.
        policies: (policies,) records, see `POLICY`.
        first_step: the number of the first one, of `sizes.steps`.

    Returns:
        The number of the next step; the lines of `finished` that are filled; how the call has ended; and the env and
        the agent of what is wrong.
    """
    table = carray(pointer(table_at), (1,), ENVS)[0]
    envs = sizes.envs
    infos = carray(pointer(table.infos_at), (envs, sizes.infos), np.float64)
    lines = 0
    for step in range(first_step, sizes.steps):
        for i in range(envs):
            if upcoming.used[i] >= upcoming.ready[i]:
                return step, lines, NO_EPISODES, i, 0
        for p in range(policies.shape[0]):
            how = _act(policies[p], table, sizes, step, _rows(policies[p], envs))
            if how != COMPLETE:
                return step, lines, how, 0, 0
        table.what, table.first, table.end = STEP, 0, envs
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
