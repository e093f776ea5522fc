"""Who has won an episode, as far as the returns tell, and how often the sides have won so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from marl_sb3.evaluation.playing import closeness
from marl_sb3.types import AgentID


@dataclass(frozen=True)
class _Ended:
    """An episode that is over."""

    sides: Mapping[str, float]  # name -> the mean return of its agents
    total: float  # of all agents
    is_foul: bool  # whether a move that is not allowed has ended it

    def best(self) -> list[str]:
        """Return the sides with the highest return; none if all are equal."""
        highest = max(self.sides.values())
        best = [side for side, own in self.sides.items() if own == highest]
        return best if len(best) < len(self.sides) else []


class Score:
    """The episodes of a game, and what came of them.

    The side with the highest mean return wins an episode, but only where returns oppose each other: the sum of all is
    the same in all episodes so far, and either 0, or the returns differ; or the training has found that they do.

    Args:
        takes_turns: whether one agent acts in each step. Then a draw pays nothing, and whoever moves illegally is the
            only one to lose.
        opposed: whether the training has found that returns oppose each other, see `core.metrics.Opposition`.
    """

    def __init__(self, *, takes_turns: bool, opposed: bool = False) -> None:
        self._takes_turns, self._opposed = takes_turns, opposed
        self._ended: list[_Ended] = []

    def add(self, returns: Mapping[AgentID, float], side_of: Mapping[AgentID, str]) -> None:
        """Note an episode: the returns of the agents, and the name of the side that each of them is on."""
        of_side: dict[str, list[float]] = {}
        for agent, own in returns.items():
            of_side.setdefault(side_of[agent], []).append(own)
        best, worst = max(returns.values()), min(returns.values())
        is_foul = self._takes_turns and best == 0 > worst and list(returns.values()).count(worst) == 1
        sides = {name: sum(own) / len(own) for name, own in of_side.items()}
        self._ended.append(_Ended(sides, sum(returns.values()), is_foul and len(returns) > 1))

    def result(self) -> str:
        """Say who has won the latest episode; empty if the returns do not tell."""
        ended = self._ended[-1]
        if not self._is_decided(ended):
            return ""
        if ended.is_foul:
            return f"{min(ended.sides, key=lambda side: ended.sides[side])} lost"
        return f"{' and '.join(best)} won" if (best := ended.best()) else "A draw"

    def tally(self) -> str:
        """Say how often the sides of the latest episode have won: `a 3 : 1 b, 1 draw`.

        It is empty where they are not two, or the returns do not tell.
        """
        if not self._ended or len(self._ended[-1].sides) != 2:
            return ""
        sides = set(self._ended[-1].sides)
        played = [ended for ended in self._ended if set(ended.sides) == sides and self._is_decided(ended)]
        wins = Counter("".join(ended.best()) for ended in played)  # of draws, of nobody
        if not played:
            return ""
        one, other = played[0].sides
        draws = f", {wins['']} draw{'' if wins[''] == 1 else 's'}" if wins[""] else ""
        return f"{one} {wins[one]} : {wins[other]} {other}{draws}"

    def _is_decided(self, ended: _Ended) -> bool:
        if len(ended.sides) < 2 or ended.is_foul or self._opposed:
            return len(ended.sides) > 1
        others = [each for each in self._ended if not each.is_foul]
        first = [next(iter(each.sides.values())) for each in others]
        opposes = closeness(first, [each.total for each in others]) is not None
        return opposes and (self._takes_turns or any(each.best() for each in others))
