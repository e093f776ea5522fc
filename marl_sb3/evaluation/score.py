"""Who has won an episode, as far as the returns tell, and how often the sides have won so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from marl_sb3.evaluation.playing import closeness
from marl_sb3.types import AgentID


class Scoreboard:
    """What came of the episodes of a game.

    The side with the highest mean return wins an episode, but only where returns oppose each other: the sum of all is
    the same in all episodes so far, and either 0, or the returns differ; or the training has found that they do.

    Args:
        takes_turns: whether one agent acts in each step. Then a draw pays nothing, and whoever moves illegally is the
            only one to lose.
        opposed: whether the training has found that returns oppose each other, see `core.metrics.Opposition`.
    """

    def __init__(self, *, takes_turns: bool, opposed: bool = False) -> None:
        self._takes_turns, self._opposed = takes_turns, opposed
        self._sides: dict[str, float] = {}  # name -> the mean return of its agents, in the latest episode
        self._is_foul = False  # whether a move that is not allowed has ended it
        # Of the episodes that no such move has ended: the least and the highest return of the first side, and sum.
        self._own, self._sums = list[float](), list[float]()
        self._differ = takes_turns  # whether a side has got more than another, or nothing may be a draw
        # (names of the sides, their best ones) -> episodes; those that were ended by such a move by themselves
        self._wins, self._fouls = (Counter[tuple[frozenset[str], tuple[str, ...]]]() for _ in range(2))
        self._order: dict[str, None] = {}  # sides as they were first seen

    def add(self, returns: Mapping[AgentID, float], side_of: Mapping[AgentID, str]) -> None:
        """Note an episode: the returns of the agents, and the name of the side that each of them is on."""
        of_side: dict[str, list[float]] = {}
        for agent, own in returns.items():
            of_side.setdefault(side_of[agent], []).append(own)
        self._sides = {name: math.fsum(own) / len(own) for name, own in of_side.items()}
        self._order |= dict.fromkeys(self._sides)
        *others, worst = sorted(returns.values(), reverse=True)
        self._is_foul = self._takes_turns and bool(others) and others[0] == 0 > worst and others[-1] > worst
        (self._fouls if self._is_foul else self._wins)[frozenset(self._sides), self._best()] += 1
        if not self._is_foul:
            own, total = next(iter(self._sides.values())), math.fsum(returns.values())
            self._own = [min(own, *self._own), max(own, *self._own)] if self._own else [own, own]
            self._sums = [min(total, *self._sums), max(total, *self._sums)] if self._sums else [total, total]
            self._differ = self._differ or bool(self._best())

    def _best(self) -> tuple[str, ...]:
        """Return the sides with the highest return in the latest episode; none if all are equal."""
        highest = max(self._sides.values())
        best = [name for name, own in self._sides.items() if math.isclose(own, highest, rel_tol=1e-6, abs_tol=1e-6)]
        return tuple(best) if len(best) < len(self._sides) else ()

    def _oppose(self) -> bool:
        return self._opposed or (self._differ and closeness(self._own, self._sums) is not None)

    def result(self) -> str:
        """Say who has won the latest episode; empty if the returns do not tell."""
        if self._is_foul:
            return f"{min(self._sides, key=lambda side: self._sides[side])} lost"
        if len(self._sides) < 2 or not self._oppose():
            return ""
        return f"{' and '.join(best)} won" if (best := self._best()) else "A draw"

    def tally(self) -> str:
        """Say how often the sides of the latest episode have won: `a 3 : 1 b, 1 draw`.

        It is empty where they are not two, or the returns do not tell.
        """
        if len(self._sides) != 2:
            return ""
        sides, counted = frozenset(self._sides), self._fouls + (self._wins if self._oppose() else Counter())
        one, other = (name for name in self._order if name in sides)
        wins, others, draws = (counted[sides, best] for best in ((one,), (other,), ()))
        ends = f", {draws} draw{'' if draws == 1 else 's'}" if draws else ""
        return f"{one} {wins} : {others} {other}{ends}" if wins + others + draws else ""
