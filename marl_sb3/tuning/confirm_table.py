"""What fresh seeds said of the best trials, in words and figures."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from marl_sb3.display.text import number
from marl_sb3.tuning.confirm import Candidate
from marl_sb3.tuning.confirm_stats import Interval, compare

HEADER = ("candidate", "seeds", "mean", "95 % CI", "better than preset", "verdict")


def confirmed_rows(candidates: Sequence[Candidate], mode: str) -> list[list[str]]:
    """A row for each candidate, see `HEADER`; the first of them is the preset.

    "Better than preset" is the probability of improvement, and its 95 % confidence interval: how often a training with
    these settings comes out better than one with the preset's.
    """
    # Where less is better all figures are turned around, and turned back to be shown.
    sign = 1.0 if mode == "max" else -1.0
    preset, *others = ([sign * value for value in candidate.values] for candidate in candidates)
    stats = [compare(values, preset) for values in (preset, *others)]
    rows = []
    for candidate, its in zip(candidates, stats, strict=True):
        low, high = sorted(sign * bound for bound in its.winner_ci)
        failed = f", {candidate.failed} failed" if candidate.failed else ""
        own = [f"{len(candidate.values)}{failed}", number(sign * its.winner_mean), f"{number(low)} to {number(high)}"]
        against = ["", ""] if candidate.trial is None else [_chance(its.improvement, its.improvement_ci), its.verdict()]
        rows.append([candidate.name, *own, *against])
    return rows


def _chance(improvement: float, interval: Interval) -> str:
    low, high = interval
    return f"{improvement:.0%} ({low:.0%} to {high:.0%})"


def confirmed_table(candidates: Sequence[Candidate], mode: str) -> Table:
    """The rows as a table for a terminal."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in HEADER:
        table.add_column(name, justify="left" if name in ("candidate", "verdict") else "right")
    for row in confirmed_rows(candidates, mode):
        table.add_row(*row)
    return table


def confirmed_line(candidates: Sequence[Candidate], trial: int | None, mode: str) -> str:
    """What is said of a trial, next to the preset, in a line."""
    rows = dict(zip((candidate.trial for candidate in candidates), confirmed_rows(candidates, mode), strict=True))
    _, seeds, mean, interval, chance, verdict = rows[trial]
    return (
        f"with {seeds} fresh seeds {mean} ({interval}), the preset {rows[None][2]} ({rows[None][3]}): "
        f"{verdict}; better in {chance} of pairs"
    )
