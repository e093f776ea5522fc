"""The settings of a league, apart from it: commands read them before they import PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from marl_sb3.core.config.values import Count, Fraction, Named, PositiveInt, Strings
from marl_sb3.errors import ConfigError, require_known, shown
from marl_sb3.types import PolicyID

Sampling = Literal["uniform", "recent", "hard", "even"]
Outcome = Literal["auto", "higher_return", "own_mean"]
_Sides = Annotated[Sequence[Strings] | None, Meta(description="a list of lists of agent ids, or null")]


@dataclass(frozen=True)
class LeagueSettings:
    """Opponents of the policies that learn: snapshots of themselves, and others; without any there is no league."""

    # iterations between snapshots of each policy that learns, which become members of the pool. 0: no regular ones.
    snapshot_every: Count = 0
    # share of points against the pool (a win counts 1, a draw 0.5) from which on a snapshot is taken. None: never.
    snapshot_above: Fraction | None = None
    pool_size: PositiveInt = 20  # maximum number of snapshots of each policy in the pool; weak old ones are removed
    # how opponents are drawn: `uniform`, `recent` (each older one half as often), `hard` (by (1 - p)^2, where p is the
    # share of points against it) or `even` (by p (1 - p))
    sampling: Sampling = "hard"
    self_play: Fraction = 0.5  # share of episodes in which present policies play all sides
    # opponents that do not change: paths of runs or checkpoints, `random`, players of the package such as `minimax2`,
    # or `MODULE:CLASS` of a class with `act(observation, mask, rng)`. None: no opponents.
    opponents: Strings | None = None
    # share of the other episodes that is against these opponents. None: they are drawn like the snapshots.
    opponents_share: Fraction | None = None
    # further policies that learn to beat one: `{EXPLOITER: {of: POLICY, reset_every: ITERATIONS, reset_above: SHARE}}`.
    # An exploiter joins the pool and begins anew when it wins the share `reset_above` (0.7), or after `reset_every`.
    exploiters: Named | None = None
    # agents that one player plays together, as a list of lists. None: each agent is a side, or all agents of a policy
    # where there are several policies.
    sides: _Sides = None
    # who has won: the side with the `higher_return`, or one whose return is above its `own_mean`. `auto`: the first
    # where one policy plays all sides, else the second.
    outcome: Outcome = "auto"

    @property
    def is_on(self) -> bool:
        """Whether there is a league."""
        return bool(self.snapshot_every or self.snapshot_above is not None or self.opponents)

    def rates(self, plays_all_sides: bool) -> bool:
        """Whether ratings tell how good the policies are: not where a policy is compared with its own mean.

        Args:
            plays_all_sides: whether there is one policy, which plays all sides.
        """
        is_compared = self.outcome == "higher_return" or (self.outcome == "auto" and plays_all_sides)
        return self.is_on and is_compared

    def plays_like(self, exploiter: PolicyID, mains: Sequence[PolicyID]) -> PolicyID:
        """Return the policy whose agents and settings an exploiter has: the one that it is to beat, or its rival.

        Args:
            mains: the policies that are no exploiters.

        Raises:
            ConfigError: the policy that it is to beat is none of these, or has several rivals.
        """
        given, where = (self.exploiters or {})[exploiter], f"league: exploiters.{exploiter}"
        of = str(given.get("of") if isinstance(given, Mapping) else given)
        require_known(of, mains, f"{where}.of is {shown(of)}", "league.exploiters")
        rivals = [policy_id for policy_id in mains if policy_id != of]
        if len(rivals) > 1:
            words = f"{where}: several policies play against {of}: {', '.join(rivals)}"
            raise ConfigError(f"{words}; accepted: a league of one policy or two", key="league.exploiters")
        return rivals[0] if rivals else of
