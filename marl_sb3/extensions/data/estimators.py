"""Estimate the return of policies from episodes of others, by importance sampling; no env is needed.

With b the policies that acted, p those that are estimated, and w_t the product of p(a)/b(a) up to step t:

- IS (importance sampling): the mean of w_T times the return. PDIS (per-decision): the mean of the sum of
  gamma^t w_t r_t. Precup, Sutton and Singh, "Eligibility traces for off-policy policy evaluation", ICML 2000.
- WIS, WPDIS: the same with weights that are divided by their mean, for PDIS by that of each step; biased, with less
  variance. Thomas, "Safe reinforcement learning", 2015, chapter 3 (CWPDIS); an episode that has ended keeps its weight.

IS and PDIS are unbiased if b gives a probability to all that p does. Of several agents w_t has
the ratios of all agents whose policies are replaced: the ratio of joint actions is the product of the agents' ratios,
because they choose independently of each other. `gamma` discounts an agent's own decisions, as in trainings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marl_sb3.types import AgentID, Array

_BOOTSTRAPS = 1000
_LARGEST = 600.0  # of the logarithms of weights: their squares are finite


@dataclass(frozen=True)
class Decisions:
    """The decisions of one agent in one episode."""

    rewards: Array  # (T,)
    log_weights: Array  # (T,) log w_t: with the ratios of all replaced agents up to the agent's next decision
    log_weight: float  # log w_T of the whole joint episode


@dataclass(frozen=True)
class Estimate:
    """An estimate of a mean return."""

    mean: float  # the estimate
    # percentiles 2.5 and 97.5 of the estimates from episodes drawn anew (bootstrap); None for a single episode
    ci95: tuple[float, float] | None


def joint_weights(
    log_ratios: Mapping[AgentID, Array | None], steps: Mapping[AgentID, Array]
) -> dict[AgentID, tuple[Array, float]]:
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
    return {agent: (before[np.append(own[1:], horizon)], float(before[-1])) for agent, own in steps.items()}


def estimate(episodes: Sequence[Sequence[Decisions]], gamma: float = 1.0, seed: int = 0) -> dict[str, Estimate]:
    """Estimate the mean return of one agent, or of the sum of several agents' returns.

    Args:
        episodes: the joint episodes; of each the decisions of the agents whose returns are added up.
        gamma: discount factor of an agent's own decisions; 1: returns as metrics have them.
        seed: of the bootstrap.

    Returns:
        The estimate of each of IS, PDIS, WIS and WPDIS.
    """
    drawn = np.random.default_rng(seed).multinomial(
        len(episodes), np.full(len(episodes), 1 / len(episodes)), size=_BOOTSTRAPS if len(episodes) > 1 else 0
    )
    counts = np.concatenate([np.ones((1, len(episodes))), drawn])  # how often each is taken; first, each once
    weights = np.exp([of_agents[0].log_weight for of_agents in episodes])
    returns = np.array([sum(_discounted(d.rewards, gamma).sum() for d in of_agents) for of_agents in episodes])
    per_decision = [sum((np.exp(d.log_weights) * _discounted(d.rewards, gamma)).sum() for d in e) for e in episodes]
    return {
        "IS": _made(counts @ (weights * returns) / len(returns)),
        "PDIS": _made(counts @ np.array(per_decision) / len(returns)),
        "WIS": _made(counts @ (weights * returns) / np.maximum(counts @ weights, 1e-300)),
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
    return _made(total)


def _made(results: Array) -> Estimate:
    """An estimate from its value, the first, and those of the bootstrap."""
    low, high = np.percentile(results[1:], [2.5, 97.5]) if len(results) > 1 else (0.0, 0.0)
    return Estimate(float(results[0]), (float(low), float(high)) if len(results) > 1 else None)
