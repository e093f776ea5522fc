"""Tables of the results with fresh seeds."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from marl_sb3.display.text import number
from marl_sb3.tuning.confirmed import Candidate
from marl_sb3.tuning.stats import Interval, compare

HEADER = ("candidate", "seeds", "mean", "95 % CI", "better than preset", "verdict")


def confirmed_rows(candidates: Sequence[Candidate], mode: str) -> list[list[str]]:
    """A row for each candidate with the columns of `HEADER`; the first candidate is the preset.

    "Better than preset" is the probability, with its 95 % confidence interval, that a training with these settings
    has a better objective than one with the preset's.
    """
    # `compare` takes more as better: with mode min, values change their signs before it and back after it.
    sign = 1.0 if mode == "max" else -1.0
    preset, *others = ([sign * value for value in candidate.values] for candidate in candidates)
    stats = [compare(values, preset) for values in (preset, *others)]
    rows = []
    for candidate, comparison in zip(candidates, stats, strict=True):
        low, high = sorted(sign * bound for bound in comparison.winner_ci)
        failed = f", {candidate.failed} failed" if candidate.failed else ""
        seeds, mean = f"{len(candidate.values)}{failed}", number(sign * comparison.winner_mean)
        chance, verdict = _chance(comparison.improvement, comparison.improvement_ci), comparison.verdict()
        against = ["", ""] if candidate.trial is None else [chance, verdict]
        rows.append([candidate.name, seeds, mean, f"{number(low)} to {number(high)}", *against])
    return rows


def _chance(improvement: float, interval: Interval) -> str:
    low, high = interval
    return f"{improvement:.0%} ({low:.0%} to {high:.0%})"


def confirmed_table(candidates: Sequence[Candidate], mode: str) -> Table:
    """A table of the candidates for a terminal."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in HEADER:
        table.add_column(name, justify="left" if name in ("candidate", "verdict") else "right")
    for row in confirmed_rows(candidates, mode):
        table.add_row(*row)
    return table


def confirmed_line(candidates: Sequence[Candidate], trial: int | None, mode: str) -> str:
    """The results of a trial and the preset, compared on one line."""
    rows = dict(zip((candidate.trial for candidate in candidates), confirmed_rows(candidates, mode), strict=True))
    _, seeds, mean, interval, chance, verdict = rows[trial]
    return (
        f"with {seeds} fresh seeds {mean} ({interval}), the preset {rows[None][2]} ({rows[None][3]}): "
        f"{verdict}; better in {chance} of pairs"
    )
