"""Whether agents' returns oppose each other, so that their sum does not tell how good the policies are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from marl_sb3.storage.parts import Fields, Stateful, counts, sums
from marl_sb3.types import AgentID

_CLEAR = -0.5  # a weaker correlation is not said to oppose, however many iterations show it
_BY_CHANCE = 0.01  # probability that one of several unrelated agents seems to oppose the others
_LEAST_ITERATIONS = 10  # for a correlation
_LEAST_OF_CONSTANT_SUM = 3
_SLIGHT = 0.1  # SD of a return that does not count, as a share of the SD of the others' sum, or the reverse
_SHOWN = 80  # characters of an agent's id
_CONSTANT = 0.01  # SD of a sum that counts as constant, as a share of the largest SD of an agent's returns


class Opposition(Stateful):
    """Compares each agent's return with the sum of the others' over the iterations of a training.

    Returns oppose each other where the sum of all is constant while they change, or where some agent's return falls
    when the sum of the others' rises: their correlation is below -0.5, and below what 1 % of unrelated agents would
    show (Fisher's z, divided among the agents), and neither changes by less than a tenth of the other. Means, variances
    and covariances are updated as by Welford (1962).

    Args:
        agents: the agents' ids.
    """

    fields: ClassVar[Fields] = {"counts": counts("_counts"), "moments": sums("_moments")}

    def __init__(self, agents: Sequence[AgentID]) -> None:
        self._agents = list(agents)
        # Of each agent, and in the last column of the sum over all agents: the number of iterations, and means and
        # sums of products of deviations of two series, the return and the sum of the others'.
        self._counts = np.zeros(len(self._agents) + 1, np.int64)
        self._moments = np.zeros((5, len(self._agents) + 1))  # mean, mean, own squares, others' squares, products

    def add(self, returns: Mapping[AgentID, float | None]) -> None:
        """Add the agents' returns in an iteration; None for an agent without one."""
        own = np.array([math.nan if returns.get(agent) is None else returns[agent] for agent in self._agents], float)
        known, total = np.isfinite(own), float(np.nansum(own))
        here = np.append(known, known.all())
        pair = np.nan_to_num(np.array([np.append(own, total), np.append(total - own, total)]))
        self._counts += here
        means, squares = self._moments[:2], self._moments[2:]
        before = pair - means
        means += np.where(here, before / np.maximum(self._counts, 1), 0.0)
        after = pair - means
        squares += np.where(here, np.array([before[0] * after[0], before[1] * after[1], before[0] * after[1]]), 0.0)

    def words(self) -> str | None:
        """Say how the returns oppose each other; None if they do not, or if there are too few iterations to tell."""
        if len(self._agents) < 2:
            return None
        return self._constant_sum() or self._falling_agent()

    def _constant_sum(self) -> str | None:
        own, count = self._moments[2], int(self._counts[-1])
        if count < _LEAST_OF_CONSTANT_SUM or own[:-1].max() <= 0.0 or own[-1] > _CONSTANT**2 * own[:-1].max():
            return None
        return f"the agents' returns oppose each other: their sum is always about {self._moments[0, -1]:.4g}"

    def _falling_agent(self) -> str | None:
        own, others, products = self._moments[2:, :-1]
        scale = np.sqrt(own * others)
        correlations = np.divide(products, scale, out=np.zeros_like(scale), where=scale > 0.0)
        correlations[self._counts[:-1] < _LEAST_ITERATIONS] = 0.0
        # What one side loses is next to nothing beside what the other gains: the sum tells how good the policies are.
        correlations[np.minimum(own, others) < _SLIGHT**2 * np.maximum(own, others)] = 0.0
        worst = int(correlations.argmin())
        found, count = float(correlations[worst]), int(self._counts[worst])
        if found == 0.0 or found > min(_CLEAR, _critical(count, len(self._agents))):
            return None
        agent = self._agents[worst]
        agent = (agent if agent.isprintable() else ascii(agent))[:_SHOWN]
        return (
            f"the agents' returns oppose each other: that of {agent} falls when the others' rise "
            f"(correlation {found:.2f} over {count} iterations)"
        )


def _critical(count: int, agents: int) -> float:
    """The correlation below which one of so many unrelated agents is with probability `_BY_CHANCE`."""
    return math.tanh(NormalDist().inv_cdf(_BY_CHANCE / agents) / math.sqrt(count - 3))
