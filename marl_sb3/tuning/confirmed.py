"""Trainings with fresh seeds: what came of them, how the best trials compare with the preset, and which trial wins."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from optuna.trial import FrozenTrial
from scipy.special import stdtrit

from marl_sb3.display.text import number
from marl_sb3.metrics.sample_stats import SampleStats, sample_stats
from marl_sb3.storage.atomic import write_whole
from marl_sb3.storage.regular import read_regular
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.types import Array

_FOLDER = "confirm"  # in the study's folder
_FILE = "objective.json"  # in a run folder
_PRESET = "preset"
_TRIAL_FOLDER = re.compile(r"trial-(\d{1,9})")


# --- Outcomes of trainings, in their run folders ----------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The outcome of a training with a fresh seed: its objective, or the error with which it failed."""

    seed: int
    objective: float | None = None
    error: str | None = None


def candidate_folder(study: TuneStudy, trial: int | None) -> Path:
    """The folder for trainings with the settings of a trial; None: of the preset."""
    return study.folder / _FOLDER / (_PRESET if trial is None else f"trial-{trial}")


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Store the outcome of a training in its run folder."""
    known = {name: value for name, value in vars(outcome).items() if value is not None}
    write_whole(folder / _FILE, json.dumps(known))


def read_outcome(folder: Path) -> Outcome | None:
    """The outcome of the training in a run folder; None if it has not finished or the file is damaged."""
    try:
        outcome = msgspec.json.decode(read_regular(folder / _FILE), type=Outcome)
    except (OSError, ValueError, RecursionError):
        return None
    return None if outcome.objective is None and outcome.error is None else outcome


def outcomes(study: TuneStudy) -> list[tuple[int | None, Path, Outcome]]:
    """For each finished training: its trial or (None) the preset, its run folder in the study's, and its outcome."""
    finished = []
    for folder in sorted(path.parent for path in (study.folder / _FOLDER).glob(f"*/*/{_FILE}")):
        trial = _TRIAL_FOLDER.fullmatch(folder.parent.name)
        outcome = read_outcome(folder) if trial or folder.parent.name == _PRESET else None
        if outcome is not None:
            finished.append((int(trial[1]) if trial else None, folder.relative_to(study.folder), outcome))
    return finished


# --- Candidates, ranked -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """Settings that were trained with several fresh seeds.

    Attributes:
        trial: the number of the trial with these settings; None: the preset.
        values: the objective for each seed whose training finished.
        failed: the number of trainings that failed.
    """

    trial: int | None
    values: tuple[float, ...]
    failed: int = 0

    @property
    def name(self) -> str:
        """`preset`, or `trial 7`."""
        return candidate_name(self.trial)


def candidate_name(trial: int | None) -> str:
    """The name of the candidate with the settings of a trial; None: of the preset."""
    return _PRESET if trial is None else f"trial {trial}"


def confirmed(study: TuneStudy) -> list[Candidate]:
    """All candidates trained so far: the preset, then the trials, best first; empty if there is nothing to compare.

    Trials with fewer trainings come after the others, and so do trials with more failures.
    """
    by_trial: dict[int | None, list[Outcome]] = {None: []}
    for trial, _, outcome in outcomes(study):
        by_trial.setdefault(trial, []).append(outcome)
    candidates = []
    for trial, of_trial in by_trial.items():
        values = tuple(outcome.objective for outcome in of_trial if outcome.objective is not None)
        candidates.append(Candidate(trial, values, len(of_trial) - len(values)))
    sign = -1.0 if study.search.mode == "max" else 1.0

    def rank(candidate: Candidate) -> tuple[float, ...]:
        n_values = len(candidate.values)
        return -(n_values + candidate.failed), candidate.failed, sign * math.fsum(candidate.values) / n_values

    preset, *trials = candidates
    ranked = sorted((candidate for candidate in trials if candidate.values), key=rank)
    return [preset, *ranked] if preset.values and ranked else []


def winner(study: TuneStudy) -> tuple[FrozenTrial, Candidate | None] | None:
    """The trial whose settings should be used, and its results with fresh seeds; None if no trial is complete.

    If the best trial was trained again, the winner is the best of all trials that were trained again. Otherwise it
    is the best trial of the search.
    """
    completed: dict[int | None, FrozenTrial] = {trial.number: trial for trial in study.completed()}
    if not completed:
        return None
    best = next(iter(completed.values()))
    candidates = [(completed[each.trial], each) for each in confirmed(study) if each.trial in completed]
    return candidates[0] if any(trial is best for trial, _ in candidates) else (best, None)


# --- Is a candidate better than the preset? ---------------------------------------------------------------------------

Interval = tuple[float, float]
_N_RESAMPLES = 2000  # of the bootstrap
_UNBOUNDED = (-math.inf, math.inf)  # an interval that cannot be estimated from one seed


@dataclass(frozen=True)
class Comparison:
    """The returns of a candidate compared with those of the preset; more is better.

    Both intervals are 95 % confidence intervals.

    Attributes:
        difference_ci: interval of the difference of the means, by Welch's t, which allows for unequal variances;
            unbounded if one side has one seed.
        improvement: probability that a training with the candidate's settings returns more than one with the preset's,
            P(X > Y) over all pairs of returns, where a tie counts as one half. It is the Mann-Whitney U statistic over
            n * m, as in Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
            NeurIPS 2021, here for one task.
        improvement_ci: interval of that probability, by the bootstrap; see `_improvement_ci`.
    """

    difference_ci: Interval
    improvement: float
    improvement_ci: Interval

    def verdict(self) -> str:
        """`better` or `worse` if the interval of the difference excludes 0, else `undecided`."""
        low, high = self.difference_ci
        return "better" if low > 0 else "worse" if high < 0 else "undecided"


def compare(candidate: Sequence[float], preset: Sequence[float]) -> Comparison:
    """Compare two samples of returns, one return per seed.

    The seeds must differ from those of the search: the return for which a trial was selected is biased upwards.
    """
    # (n, m): 1 where the candidate returns more, 0.5 at a tie, 0 where it returns less.
    wins = 0.5 + 0.5 * np.sign(np.subtract.outer(candidate, preset))
    difference_ci = _difference_ci(sample_stats(candidate), sample_stats(preset))
    return Comparison(difference_ci, float(wins.mean()), _improvement_ci(wins))


def _difference_ci(ours: SampleStats, theirs: SampleStats) -> Interval:
    """The 95 % confidence interval of the difference of two means.

    Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34, 1947: t = difference / sqrt(v1 + v2), where v = sd^2 / n, with
    (v1 + v2)^2 / (v1^2 / (n1 - 1) + v2^2 / (n2 - 1)) degrees of freedom (Satterthwaite, Biometrics Bulletin 2, 1946).
    If both standard deviations are 0, the interval has no width.
    """
    if ours.sd is None or theirs.sd is None or ours.mean is None or theirs.mean is None:
        return _UNBOUNDED
    difference = ours.mean - theirs.mean
    v1, v2 = ours.sd**2 / ours.n, theirs.sd**2 / theirs.n
    if v1 + v2 == 0:
        return difference, difference
    share = v1 / (v1 + v2)
    freedom = 1 / (share**2 / (ours.n - 1) + (1 - share) ** 2 / (theirs.n - 1))
    margin = float(stdtrit(freedom, 0.975)) * math.sqrt(v1 + v2)
    return difference - margin, difference + margin


def _improvement_ci(wins: Array) -> Interval:
    """Percentile bootstrap: the seeds of each side are resampled with replacement (Agarwal et al. 2021).

    If every return of one side exceeds all of the other, the bootstrap's interval has no width, however few the seeds.
    The interval is then that of min(n, m) independent pairs, all won: from 0.025^(1 / min(n, m)) to 1 (Clopper and
    Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika 26, 1934).
    """
    n, m = wins.shape
    if n < 2 or m < 2:
        return 0.0, 1.0
    all_won: float = 0.025 ** (1 / min(n, m))
    if (wins == 1).all():
        return all_won, 1.0
    if (wins == 0).all():
        return 0.0, 1 - all_won
    rng = np.random.default_rng(0)  # the same returns give the same interval
    # With counts of how often each seed is drawn, the mean over a resample's pairs is a matrix product.
    ours, theirs = (rng.multinomial(size, np.full(size, 1 / size), _N_RESAMPLES) for size in (n, m))
    low, high = np.quantile(((ours @ wins) * theirs).sum(axis=1) / (n * m), (0.025, 0.975))
    return float(low), float(high)


# --- As text ----------------------------------------------------------------------------------------------------------

HEADER = ("candidate", "seeds", "mean", "95 % CI", "better than preset", "verdict")


def confirmed_rows(candidates: Sequence[Candidate], mode: str) -> list[list[str]]:
    """A row for each candidate with the columns of `HEADER`; the first candidate is the preset.

    "Better than preset" is the probability, with its 95 % confidence interval, that a training with these settings
    has a better objective than one with the preset's.
    """
    sign = 1.0 if mode == "max" else -1.0  # `compare` takes more as better
    preset = [sign * value for value in candidates[0].values]
    rows = []
    for candidate in candidates:
        stats = sample_stats(candidate.values)
        failed = f", {candidate.failed} failed" if candidate.failed else ""
        interval = " to ".join(map(number, stats.ci95 or _UNBOUNDED))
        against = ["", ""]
        if candidate.trial is not None:
            comparison = compare([sign * value for value in candidate.values], preset)
            low, high = comparison.improvement_ci
            against = [f"{comparison.improvement:.0%} ({low:.0%} to {high:.0%})", comparison.verdict()]
        rows.append([candidate.name, f"{stats.n}{failed}", number(stats.mean), interval, *against])
    return rows


def confirmed_line(candidates: Sequence[Candidate], trial: int | None, mode: str) -> str:
    """The results of a trial and the preset, compared on one line."""
    rows = dict(zip((candidate.trial for candidate in candidates), confirmed_rows(candidates, mode), strict=True))
    _, seeds, mean, interval, chance, verdict = rows[trial]
    return (
        f"with {seeds} fresh seeds {mean} ({interval}), the preset {rows[None][2]} ({rows[None][3]}): "
        f"{verdict}; better in {chance} of pairs"
    )
