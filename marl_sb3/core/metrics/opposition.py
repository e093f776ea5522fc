"""Whether agents' returns oppose each other, so that their sum does not tell how good the policies are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from marl_sb3.core.metrics.statistics import wilson_interval
from marl_sb3.core.state.fields import Fields, Stateful, array, scalar, sums_or_nan
from marl_sb3.core.state.state import AS_COUNTS, AS_SUMS
from marl_sb3.output import printable
from marl_sb3.types import AgentID, Array, PolicyID

_CLEAR = 0.75  # share of pairs of episodes in which one side wins what the others lose, from which on they oppose it
_CHANCE = 0.5  # the share for sides that have nothing to do with each other
_BY_CHANCE = 0.0005  # probability of a wrong bound of one side; small, since it is looked at after every iteration
_LEAST_OF_CONSTANT_SUM = 5  # pairs of episodes in which returns differ
_SLIGHT = 0.1  # change of a return that does not count, as a share of that of the others' sum, or the reverse
_SHOWN = 80  # characters of an agent's id
_CONSTANT = 0.01  # change of a sum that counts as none, as a share of that of an agent's returns
_ROUNDING = 1e-9  # change of a return that is none, as a share of the returns


class Opposition(Stateful):
    """Compares consecutive episodes in pairs: do the others lose what an agent or a policy wins?

    The two episodes of a pair are played by nearly the same policies. What differs between them is how they went, and
    not how much was learned: agents that learn independently of each other seem to oppose each other where one happens
    to become better and the other one worse, but within their episodes one return says nothing about the other.

    Returns oppose each other where the sum of all is constant while they change; or where in clearly more than 75 % of
    the pairs the return of an agent, or that of all agents of a policy, is higher in that episode in which the sum of
    the others' is lower (pairs without a difference do not count; the lower bound of Wilson's interval of the share is
    at 99.95 %, divided among the sides), and neither changes by less than a tenth of the other. Normally distributed
    returns with a correlation of -0.71 do so in 75 % (Sheppard, Philosophical Transactions of the Royal Society A 192,
    1899), those without one in 50 %.

    Args:
        agents: the agents' ids.
        policy_of: the policy of each agent; None: only single agents are compared with the others.
    """

    fields: ClassVar[Fields] = {
        "before": sums_or_nan("_before"),
        "pairs": array("_pairs", *AS_COUNTS),
        "squares": array("_squares", *AS_SUMS),
        "complete": array("_complete", *AS_COUNTS),
        "complete_squares": array("_complete_squares", *AS_SUMS),
        "total": scalar("_total"),
    }

    def __init__(self, agents: Sequence[AgentID], policy_of: Mapping[AgentID, PolicyID] | None = None) -> None:
        self._agents = list(agents)
        policies = [] if policy_of is None else [policy_of[agent] for agent in self._agents]
        teams = [name for name in dict.fromkeys(policies) if 1 < policies.count(name) < len(policies)]
        self._sides = [*self._agents, *teams]
        self._teams = np.array([[each == team for each in policies] for team in teams]).reshape(
            len(teams), len(self._agents)
        )
        self._before = np.full(len(self._agents), math.nan)  # the returns of the first episode of a pair
        # Of each side: the pairs in which the others' sum went the other way, and the same; squares of changes of its
        # own, and of the others.
        self._pairs = np.zeros((2, len(self._sides)), np.int64)
        self._squares = np.zeros((2, len(self._sides)))
        # Of pairs in which all agents have a return and one of these differs: their number, squares of the changes of
        # each agent and of the sum, and the latest sum.
        self._complete = np.zeros(1, np.int64)
        self._complete_squares = np.zeros(len(self._agents) + 1)
        self._total = 0.0

    def add(self, returns: Mapping[AgentID, float | None]) -> None:
        """Add the agents' returns in an episode; None for an agent without one."""
        if len(self._agents) < 2:
            return
        now = np.array([math.nan if returns.get(agent) is None else returns[agent] for agent in self._agents], float)
        if np.isnan(now).all():
            return
        before, self._before = self._before, now
        if np.isnan(before).all():
            return
        self._before = np.full(len(now), math.nan)
        self._add_pair(now - before, float(np.nansum(now)), float(np.nansum(before)), float(np.nanmax(np.abs(now))))

    def _add_pair(self, change: Array, now: float, before: float, size: float) -> None:
        own = np.append(change, self._teams @ np.nan_to_num(change))
        others = np.where(np.isnan(own), 0.0, now - before - own)
        own = np.nan_to_num(own)
        differs = np.minimum(np.abs(own), np.abs(others)) > _ROUNDING * size
        self._pairs += [differs & (own * others < 0), differs & (own * others > 0)]
        self._squares += [own**2, others**2]
        if not np.isnan(change).any() and np.abs(change).max() > _ROUNDING * size:
            self._complete += 1
            self._complete_squares += np.append(change, now - before) ** 2
            self._total = now

    def words(self, *, certain: bool = True) -> str | None:
        """Say how the returns oppose each other; None if they do not, or if there are too few episodes to tell.

        Args:
            certain: False says it also where it is only likely: more pairs than half are apart for certain.
        """
        if len(self._agents) < 2:
            return None
        *own, total = self._complete_squares
        if self._complete[0] >= _LEAST_OF_CONSTANT_SUM and total <= _CONSTANT**2 * max(own):
            return f"the agents' returns oppose each other: their sum is always about {self._total:.4g}"
        bound, side = self._clearest()
        apart, together = self._pairs[:, side].tolist()
        if bound <= (_CLEAR if certain else _CHANCE) or apart <= _CLEAR * (apart + together):
            return None
        name = printable(self._sides[side])[:_SHOWN]
        share = f"{100 * apart / (apart + together):.0f} % of {apart + together} pairs of episodes"
        return (
            f"the agents' returns oppose each other: that of {name} is higher where the others' are lower, in {share}"
        )

    def doubt(self) -> str | None:
        """Say why it is not certain that the returns do not oppose each other; None if it is, or if they do."""
        if len(self._agents) < 2 or self.words() is not None:
            return None
        likely = self.words(certain=False)
        if likely is not None:
            return likely.replace("oppose", "may oppose", 1)
        if self._bound(1.0, int(self._pairs.sum(axis=0).max())) <= _CLEAR:
            words = "too few episodes with different returns have ended to tell"
            return f"{words} whether the agents' returns oppose each other"
        return None

    def _clearest(self) -> tuple[float, int]:
        """Return the side that is most clearly opposed, and the lower bound of the share of such pairs."""
        own, others = self._squares
        # What one side loses is next to nothing beside what the other gains: the sum tells how good the policies are.
        counts_much = np.minimum(own, others) >= _SLIGHT**2 * np.maximum(own, others)
        pairs = self._pairs.T.tolist()
        bounds = [self._bound(apart / max(1, apart + together), apart + together) for apart, together in pairs]
        side = int(np.argmax(np.where(counts_much, bounds, 0.0)))
        return bounds[side] if counts_much[side] else 0.0, side

    def _bound(self, share: float, pairs: int) -> float:
        return wilson_interval(share, pairs, 1.0 - 2 * _BY_CHANCE / len(self._sides))[0] if pairs else 0.0
