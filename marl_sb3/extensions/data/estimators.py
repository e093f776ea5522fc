"""Estimate the return of policies from episodes of others, by importance sampling; no env is needed.

With b the policies that acted, p those that are estimated, and w_t the product of p(a)/b(a) up to step t:

- IS (importance sampling): the mean of w_T times the return. PDIS (per-decision): the mean of the sum of
  gamma^t w_t r_t. Precup, Sutton and Singh, "Eligibility traces for off-policy policy evaluation", ICML 2000.
- WIS, WPDIS: the same with weights that are divided by their mean, for PDIS by that of each step; biased, with less
  variance. Thomas, "Safe reinforcement learning", 2015, chapter 3 (CWPDIS); an episode that has ended keeps its weight.
- DR (doubly robust): Jiang and Li, "Doubly robust off-policy value evaluation for reinforcement learning", ICML 2016,
  equation 10: the mean of the sum of gamma^t (w_t (r_t - Q(s_t, a_t)) + w_{t-1} V(s_t)); see `robust_values`.

IS and PDIS are unbiased, and DR is nearly so, if b gives a probability to all that p does. Of several agents w_t has
the ratios of all agents whose policies are replaced: the ratio of joint actions is the product of the agents' ratios,
because they choose independently of each other. `gamma` discounts an agent's own decisions, as in trainings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marl_sb3.types import AgentID, Array

BOOTSTRAPS = 1000
_LARGEST = 600.0  # of the logarithms of weights: their squares are finite
_RIDGE = 1e-6
_CHUNK = 1024  # transitions that are added to the matrix together
_REDRAWS, _LEAST_REDRAWS = 200, 50
_WORK = 2e10  # multiplications for an agent's redraws: some seconds


@dataclass(frozen=True)
class Decisions:
    """The decisions of one agent in one episode."""

    rewards: Array  # (T,)
    log_weights: Array  # (T,) log w_t: with the ratios of all replaced agents up to the agent's next decision
    log_weights_before: Array  # (T,) log w_{t-1}: with the ratios up to the decision, without it
    log_weight: float  # log w_T of the whole joint episode


@dataclass(frozen=True)
class Estimate:
    """An estimate of a mean return."""

    mean: float  # the estimate
    # percentiles 2.5 and 97.5 of the estimates from episodes drawn anew (bootstrap); None for a single episode
    ci95: tuple[float, float] | None


def joint_weights(
    log_ratios: Mapping[AgentID, Array | None], steps: Mapping[AgentID, Array]
) -> dict[AgentID, tuple[Array, Array, float]]:
    """Return what `Decisions` says of the weights, for each agent of one joint episode.

    Args:
        log_ratios: (T,) log p(a)/b(a) of an agent's actions; None: its policy is not replaced.
        steps: (T,) the env steps of its actions, ascending.
    """
    horizon = 1 + max(int(of_agent[-1]) for of_agent in steps.values())
    by_step = np.zeros(horizon + 1)  # the sum of what comes before step s is at s after `cumsum`
    for agent, ratios in log_ratios.items():
        if ratios is not None:
            np.add.at(by_step, steps[agent] + 1, ratios)
    before = np.clip(np.cumsum(by_step), -_LARGEST, _LARGEST)
    return {
        agent: (before[np.append(own[1:], horizon)], before[own], float(before[-1])) for agent, own in steps.items()
    }


def estimate(episodes: Sequence[Sequence[Decisions]], gamma: float = 1.0, seed: int = 0) -> dict[str, Estimate]:
    """Estimate the mean return of one agent, or of the sum of several agents' returns.

    Args:
        episodes: the joint episodes; of each the decisions of the agents whose returns are added up.
        gamma: discount factor of an agent's own decisions; 1: returns as metrics have them.
        seed: of the bootstrap.

    Returns:
        The estimate of each of IS, PDIS, WIS and WPDIS.
    """
    counts = resamples(len(episodes), seed)
    weights = np.exp([of_agents[0].log_weight for of_agents in episodes])
    returns = np.array([sum(_discounted(d.rewards, gamma).sum() for d in of_agents) for of_agents in episodes])
    per_decision = [sum((np.exp(d.log_weights) * _discounted(d.rewards, gamma)).sum() for d in e) for e in episodes]
    return {
        "IS": made(counts @ (weights * returns) / len(returns)),
        "PDIS": made(counts @ np.array(per_decision) / len(returns)),
        "WIS": made(counts @ (weights * returns) / np.maximum(counts @ weights, 1e-300)),
        "WPDIS": _stepwise(episodes, gamma, counts),
    }


def effective_sample_size(log_weights: Sequence[float]) -> float:
    """Return the number of equally weighted episodes that tell as much: (sum w)^2 / sum w^2 (Kong 1992)."""
    logs = np.asarray(log_weights)
    weights = np.exp(logs - logs.max())
    return float(weights.sum() ** 2 / (weights**2).sum())


def _discounted(rewards: Array, gamma: float) -> Array:
    return rewards if gamma == 1 else rewards * gamma ** np.arange(len(rewards))


def _stepwise(episodes: Sequence[Sequence[Decisions]], gamma: float, counts: Array) -> Estimate:
    """WPDIS: the sum, over agents and decisions, of weighted means over the episodes."""
    total = np.zeros(len(counts))
    for agent in range(max(map(len, episodes))):
        own = [of_agents[agent] for of_agents in episodes if agent < len(of_agents)]
        chosen = counts[:, [agent < len(of_agents) for of_agents in episodes]]
        longest = max(len(each.rewards) for each in own)
        weights, paid = np.empty((len(own), longest)), np.zeros((len(own), longest))
        for row, each in enumerate(own):
            length = len(each.rewards)
            weights[row, :length] = np.exp(each.log_weights)
            weights[row, length:] = weights[row, length - 1]
            paid[row, :length] = _discounted(each.rewards, gamma)
        total += ((chosen @ (weights * paid)) / np.maximum(chosen @ weights, 1e-300)).sum(axis=1)
    return made(total)


def resamples(n: int, seed: int = 0) -> Array:
    """(1 + B, n): how often each episode is taken; the first row takes each once."""
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=BOOTSTRAPS if n > 1 else 0)
    return np.concatenate([np.ones((1, n)), drawn])


def made(results: Array) -> Estimate:
    """An estimate from its value, the first, and those of the bootstrap."""
    low, high = np.percentile(results[1:], [2.5, 97.5]) if len(results) > 1 else (0.0, 0.0)
    return Estimate(float(results[0]), (float(low), float(high)) if len(results) > 1 else None)


# --- Fitted Q --------------------------------------------------------------------------------------------------------


def fit_q(
    features: Array,
    actions: Array,
    rewards: Array,
    probabilities: Array,
    is_last: Array,
    gamma: float,
    weights: Array | None = None,
) -> Array:
    """Fit Q(s, a) = features(s) . theta_a of a policy, by LSTD-Q.

    Lagoudakis and Parr, "Least-squares policy iteration", JMLR 4, 2003: the fixed point of the projected Bellman
    equation. With one feature for each state it is Q of the policy in the empirical MDP.

    Args:
        features: (N, d) of the states, transition after transition of one episode after the other.
        actions: (N,) int, from 0.
        rewards: (N,).
        probabilities: (N, n) of all actions in these states, by the policy whose Q is wanted.
        is_last: (N,) bool; the last transitions of episodes, after which nothing is paid.
        gamma: discount factor.
        weights: (N,) how often each counts; None: once.

    Returns:
        (n, d) theta.
    """
    n, d = probabilities.shape[1], features.shape[1]
    matrix, vector = np.zeros((n * d, n * d)), np.zeros(n * d)
    for action in range(n):
        own = np.flatnonzero(actions == action if weights is None else (actions == action) & (weights > 0))
        block = slice(action * d, (action + 1) * d)
        for rows in np.split(own, range(_CHUNK, len(own), _CHUNK)):
            after = np.minimum(rows + 1, len(actions) - 1)
            going_on = probabilities[after] * ~is_last[rows, None]
            then = (going_on[:, :, None] * features[after][:, None, :]).reshape(len(rows), n * d)
            now = features[rows] if weights is None else features[rows] * weights[rows, None]
            matrix[block, block] += now.T @ features[rows]
            matrix[block] -= gamma * (now.T @ then)
            vector[block] += now.T @ rewards[rows]
    matrix += _RIDGE * max(1.0, float(np.abs(np.diag(matrix)).max())) * np.eye(n * d)
    theta: Array = np.linalg.solve(matrix, vector).reshape(n, d)
    return theta


@dataclass(frozen=True)
class Fitting:
    """What Q of one agent is fitted on, in the episodes that it takes part in; N is the number of its decisions."""

    decisions: Sequence[Decisions]  # of each episode
    features: Array  # (N, d) of the states, one episode after the other
    actions: Array  # (N,) int, from 0
    probabilities: Array  # (N, n) of all actions, by the policy that is estimated

    @property
    def size(self) -> int:
        """How many numbers a Q has."""
        return int(self.features.shape[1] * self.probabilities.shape[1])

    @property
    def redraws(self) -> int:
        """How often Q is fitted anew for an interval, as far as that takes seconds; 0: it would take too long."""
        work = 2 * (2 * len(self.actions) * self.features.shape[1] * self.size + self.size**3)
        most = min(_REDRAWS, int(_WORK / work))
        return most if most >= _LEAST_REDRAWS else 0


def robust_values(fitting: Fitting, counts: Array, gamma: float) -> Array:
    """Return a doubly robust value of each episode, whose mean is the estimate, for each of several draws of episodes.

    Q is fitted on one half of the episodes for the other half. What it adds to the value of an episode, whose mean is 0
    whatever Q is, is multiplied by the coefficient from 0 to 1 with which it lowers the variance most in the half that
    Q was fitted on: a control variate. With a Q that tells nothing DR is PDIS, with a good one the coefficient is 1.

    Args:
        counts: (draws, episodes) how often each episode is drawn.

    Returns:
        (draws, episodes).
    """
    lengths = np.array([len(each.rewards) for each in fitting.decisions])
    begins = np.cumsum(lengths) - lengths
    of_row = np.repeat(np.arange(len(lengths)), lengths)
    is_last = np.zeros(len(of_row), dtype=np.bool_)
    is_last[begins + lengths - 1] = True
    rewards = np.concatenate([each.rewards for each in fitting.decisions])
    discounts = gamma ** (np.arange(len(of_row)) - begins[of_row])
    after = np.exp(np.concatenate([each.log_weights for each in fitting.decisions])) * discounts
    before = np.exp(np.concatenate([each.log_weights_before for each in fitting.decisions])) * discounts
    plain = np.add.reduceat(after * rewards, begins)
    to_go = np.concatenate([_to_go(each.rewards, gamma) for each in fitting.decisions])
    halves = np.arange(len(lengths)) % 2
    parts = fitting.features, fitting.actions, rewards, fitting.probabilities, is_last, gamma
    found = np.tile(plain, (len(counts), 1))
    for draw, drawn in enumerate(counts):
        added = np.zeros(len(plain))
        for half in (0, 1):
            weights = (drawn * (halves != half))[of_row]
            if not weights.any():
                continue
            theta, there = fit_q(*parts, weights), to_go[weights > 0]
            # Within what was paid: an ill-conditioned fit would raise the variance, though not the mean.
            q = np.clip(fitting.features @ theta.T, there.min(), there.max())
            v, own = (fitting.probabilities * q).sum(axis=1), q[np.arange(len(q)), fitting.actions]
            added[halves == half] = np.add.reduceat(before * v - after * own, begins)[halves == half]
        for half in (0, 1):
            found[draw, halves == half] += _coefficient(plain, added, drawn * (halves != half)) * added[halves == half]
    return found


def _coefficient(values: Array, added: Array, weights: Array) -> float:
    """From 0 to 1: by what the added values are multiplied so that the variance of the sum is least."""
    total = weights.sum()
    if total < 2:
        return 0.0
    values, added = (each - (weights @ each) / total for each in (values, added))
    variance = float(weights @ added**2)
    return float(np.clip(-(weights @ (values * added)) / variance, 0.0, 1.0)) if variance > 0 else 0.0


def _to_go(rewards: Array, gamma: float) -> Array:
    """The returns from each decision on."""
    found = np.empty(len(rewards))
    total = 0.0
    for place in range(len(rewards) - 1, -1, -1):
        total = found[place] = float(rewards[place]) + gamma * total
    return found
