"""Finalists: the best trials and the preset, trained with fresh seeds, and which of their settings should be used.

The best value of many trials is partly due to chance. Therefore the best few are trained again, with other seeds,
beside the preset, for no more env steps in all than the trials had, unless the user wants more. They race: after 40 %
and 70 % of the seeds those are left out that are worse than the preset on average, or than the best with a probability
of 90 %. In the end a trial is better than the preset if the interval of the difference lies above 0, which by chance
happens in 5 % of searches at most. Leaving trials out early can only keep the preset, so that the number of looks needs
no correction. The gain of a trial that has won is partly luck again. Therefore it and the preset are trained once more,
in addition, with seeds that had no part in the choice, and that gain is announced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial

from marl_sb3.core.config.values import counted
from marl_sb3.core.metrics.statistics import difference_interval, sample_stats
from marl_sb3.extensions.display.text import between, number
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trial import OF_A_FINAL, PRESET, value_of

CONFIRM_BEST, CONFIRM_SEEDS = 3, 10  # trials that race at most by default, and fresh seeds of each
_LEAST_SEEDS = (4, 2)  # of fewer, fewer trials race; with fewer, there is no interval
_PLAN = "plan"  # attribute of the finalists' study: how many trials are trained again, with how many seeds
_LOOKS = (0.4, 0.7, 1.0)  # shares of the seeds after which hopeless candidates are left out
_LEVEL = 0.9  # of the intervals that decide: 5 % on each side
_HOPELESS = 0.8  # of the interval by which a candidate is worse than the best: 10 % on each side
AGAIN = 1000  # index of the first seed with which the winner and the preset are trained again


@dataclass(frozen=True)
class Candidate:
    """Settings that were trained with several fresh seeds."""

    trial: int | None  # the number of the trial with these settings; None: the preset
    values: Mapping[int, float | None]  # of each training that has ended, by the index of its seed; None: it has failed

    @property
    def name(self) -> str:
        """`preset`, or `trial 7`."""
        return "preset" if self.trial is None else f"trial {self.trial}"

    def first(self, seeds: int) -> list[float]:
        """The values with the first seeds, with which it races."""
        return [value for index, value in sorted(self.values.items()) if index < seeds and value is not None]

    @property
    def again(self) -> list[float]:
        """The values with seeds that had no part in the choice."""
        return [value for index, value in sorted(self.values.items()) if index >= AGAIN and value is not None]

    @property
    def n_failed(self) -> int:
        """How many trainings have failed."""
        return sum(value is None for value in self.values.values())

    @property
    def broke(self) -> bool:
        """Whether a training of the race has failed."""
        return any(index < AGAIN and value is None for index, value in self.values.items())


def candidates(study: TuneStudy) -> list[Candidate]:
    """The preset, and the trials that were trained again, the best trial first; empty if none was trained."""
    found: dict[int, dict[int, float | None]] = {PRESET: {}}
    for (trial, index), training in study.finals.latest(*OF_A_FINAL).items():
        values = found.setdefault(trial, {})
        if training.state.is_finished():
            values[index] = value_of(training)
    order = {trial.number: place for place, trial in enumerate(study.completed())}
    ranked = sorted(found.items(), key=lambda item: order.get(item[0], -1))
    several = [Candidate(None if trial == PRESET else trial, values) for trial, values in ranked]
    return several if any(candidate.values for candidate in several) else []


# --- The race ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Race:
    """The race of the best trials against the preset, as far as it is run."""

    candidates: Sequence[Candidate]  # the preset, then the trials, the best first
    seeds: int  # fresh seeds of a candidate that is not left out
    sign: float = 1.0  # 1 where more is better, -1 where less is
    comparisons: int = 1  # how many trials were compared with the preset, with those of former races

    def missing(self) -> list[tuple[Candidate, int]]:
        """The trainings that are wanted next, seed by seed, the preset first; empty if no more are."""
        wanted, preset, won = self.standing()[1], self.candidates[0], self.winner()
        if wanted or won is preset or len(preset.first(self.seeds)) < 2:
            return wanted
        indices = range(AGAIN, AGAIN + self.seeds)
        return [(each, index) for index in indices for each in (preset, won) if index not in each.values]

    def standing(self) -> tuple[list[Candidate], list[tuple[Candidate, int]]]:
        """Return the candidates that are not left out, and the trainings that are `missing`."""
        racing = list(self.candidates)
        for seeds in sorted({max(2, math.ceil(share * self.seeds)) for share in _LOOKS}):
            wanted = [
                (candidate, index) for index in range(seeds) for candidate in racing if index not in candidate.values
            ]
            if wanted:
                return racing, wanted
            racing = self._kept(racing, seeds)
            if len(racing) == 1:
                break
        return racing, []

    def _kept(self, racing: Sequence[Candidate], seeds: int) -> list[Candidate]:
        """The candidates that may still win, after so many seeds."""
        values = {
            candidate.trial: [self.sign * value for value in candidate.first(seeds)]
            for candidate in racing
            if not candidate.broke
        }
        means = {trial: math.fsum(of_one) / len(of_one) for trial, of_one in values.items()}
        best, least = max(means, key=means.__getitem__, default=None), means.get(None, -math.inf)
        hopeless = {
            trial
            for trial in means
            if means[trial] <= least or difference_interval(values[best], values[trial], _HOPELESS)[0] > 0
        }
        return [
            candidate
            for candidate in racing
            if candidate.trial is None or (candidate.trial in means and candidate.trial not in hopeless)
        ]

    def difference(self, candidate: Candidate, *, again: bool = False) -> tuple[float, float, float]:
        """How much better a trial is than the preset, in the race or `again`: the gain, and its interval."""
        both = [each.again if again else each.first(self.seeds) for each in (candidate, self.candidates[0])]
        ours, theirs = ([self.sign * value for value in values] for values in both)
        comparisons = 1 if again else max(self.comparisons, len(self.candidates) - 1)
        low, high = difference_interval(ours, theirs, _LEVEL, comparisons)
        means = [math.fsum(values) / len(values) if values else math.nan for values in (ours, theirs)]
        return means[0] - means[1], low, high

    def winner(self) -> Candidate:
        """The best trial that is better than the preset and was trained with all seeds; else the preset."""
        preset, *trials = self.candidates
        complete = [each for each in trials if len(each.first(self.seeds)) == self.seeds and not each.broke]
        has_failed = len(preset.first(self.seeds)) < 2
        better = [candidate for candidate in complete if has_failed or self.difference(candidate)[1] > 0]
        return max(better, key=lambda each: self.sign * math.fsum(each.first(self.seeds)), default=preset)


def race_size(study: TuneStudy, best: int | None, seeds: int | None) -> tuple[int, int]:
    """The number of trials that race, and of seeds: the user's, or those whose env steps are no more than the trials'.

    A study that goes on keeps the race that it had, if that is larger and neither argument is given.

    Args:
        best: the number of trials that the user wants; None: any.
        seeds: the number of seeds that the user wants; None: any.

    Returns:
        Without seeds, the trials are too few for a race.
    """
    search = study.search
    if seeds is not None or len(search.objectives()) > 1:
        return best or CONFIRM_BEST, seeds or 0
    trial, final = (config.n_timesteps for config in (search.trial_config({}, 0), search.final_config({}, 0)))
    most = search.trials * trial // final  # trainings of finalists
    several = (best,) if best else range(CONFIRM_BEST, 0, -1)
    sizes = [(each, min(CONFIRM_SEEDS, most // (each + 1))) for each in several]
    fitting = (size for least in _LEAST_SEEDS for size in sizes if size[1] >= least)
    had = () if best else [tuple(study.finals.optuna.user_attrs.get(_PLAN, (1, 0)))]
    return max(*had, next(fitting, (sizes[-1][0], 0)), (1, 0), key=lambda size: (size[0] + 1) * size[1])


def plan_race(study: TuneStudy, best: int, seeds: int) -> None:
    """Store how the race is run; with 0 seeds there is none, and the best trial is used as it is."""
    study.finals.optuna.set_user_attr(_PLAN, [best, seeds])


def race_of(study: TuneStudy) -> Race | None:
    """The race of the present best trials as it was planned; None if there is none."""
    best, seeds = study.finals.optuna.user_attrs.get(_PLAN, (0, 0))
    preset = study.search.preset_params()  # no trial with these is a rival of itself
    own = None if preset is None else study.space.settings(preset)
    ranked = [trial.number for trial in study.completed() if study.settings_of(trial) != own][:best]
    if not seeds or not ranked or study.only_value() is not None or len(study.search.objectives()) > 1:
        return None
    known = {candidate.trial: candidate for candidate in candidates(study)}
    racing = [known.get(trial, Candidate(trial, {})) for trial in (None, *ranked)]
    comparisons = len({*known, *ranked} - {None})
    return Race(racing, seeds, study.search.objectives()[0].sign, comparisons)


def cost_words(study: TuneStudy, best: int | None, seeds: int | None) -> str:
    """Say what a search may cost, before it starts; the arguments are those of `race_size`."""
    search, is_given = study.search, seeds is not None
    steps = search.trial_config({}, 0).n_timesteps
    words = f"{counted(search.trials, 'trial')} of up to {steps:,} env steps"
    if search.is_population:
        changing = ", ".join(parameter.name for parameter in search.space.parameters)
        length = f"{steps:,} env steps in {search.generations} generations"
        words = f"{search.trials} members of {length}, with changing {changing}"
    best, seeds = race_size(study, best, seeds)
    if not seeds or len(search.objectives()) > 1:
        few = "; too few for a race against the preset that costs no more, but for --confirm-seeds K"
        none = "" if is_given or len(search.objectives()) > 1 else few
        return f"{words}: {search.trials * steps:,} env steps at most{none}"
    each = search.final_config({}, 0).n_timesteps
    finals = (min(best, search.trials) + 3) * seeds * each
    trained = "the best and the preset" if best == 1 else f"the best {min(best, search.trials)} and the preset"
    words += f", then {trained} with up to {seeds} fresh seeds each, {each:,} env steps"
    words += f", and a trial that is better, and the preset, with {seeds} others"
    is_long = (min(best, search.trials) + 1) * seeds * each > search.trials * steps
    hint = "; fewer with --confirm-seeds or --confirm-best" if is_long else ""
    return f"{words}: {search.trials * steps + finals:,} env steps at most{hint}"


# --- The decision -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recommendation:
    """Which settings should be used, and why."""

    trial: FrozenTrial | None  # the trial with these settings; None: the preset
    sentence: str  # says why


def decide(study: TuneStudy) -> Recommendation | None:
    """Which settings should be used; None while there is no complete trial, or the race is not over.

    A search with several objectives has no decision: see `TuneStudy.front`.
    """
    completed = {trial.number: trial for trial in study.completed()}
    if not completed or len(study.search.objectives()) > 1:
        return None
    race = race_of(study)
    only = study.only_value()
    if race is None and only is not None:
        words = f"all {len(completed)} trials have the same value in all evaluations, {number(only)}"
        return Recommendation(None, f"The preset is kept: {words}, so that none was trained again.")
    if race is None and all(trial.params == study.search.preset_params() for trial in completed.values()):
        return Recommendation(None, "The preset is kept: no other trial was trained to its end.")
    if race is None:
        best = study.best_trial
        words = f"Trial {best.number} has the best value, {number(value_of(best))}, of one training each."
        luck = "It was not compared with the preset, and the best of many values is partly due to chance."
        return Recommendation(best, f"{words} {luck}")
    if race.missing():
        return None
    won = race.winner()
    return Recommendation(None if won.trial is None else completed[won.trial], _sentence(study, race, won))


def outcome_words(study: TuneStudy) -> str:
    """Say in one sentence what came of the search; empty if no trial is complete."""
    decision = decide(study)
    if decision is not None:
        return decision.sentence
    if not study.completed():
        return ""
    if len(study.search.objectives()) > 1:
        front = ", ".join(str(trial.number) for trial in study.front())
        return f"No other trial beats these in all objectives: {front}. They were not compared with the preset."
    return "The finalists are not trained to their end: best.yml is not written."


def _sentence(study: TuneStudy, race: Race, won: Candidate) -> str:
    """Say which settings are better, with both means, the interval, the budget and the number of seeds."""
    preset, *trials = race.candidates
    steps = f"{study.search.final_config({}, 0).n_timesteps:,} env steps"
    if len(preset.first(race.seeds)) < 2:
        return f"The preset failed in {preset.n_failed} of its trainings of {steps}; {won.name} is used."
    sound = [candidate for candidate in trials if not candidate.broke and candidate.values]
    shown = won if won is not preset else max(sound, key=lambda candidate: race.difference(candidate)[0], default=None)
    if shown is None:
        return f"The preset is kept: all trials failed that were trained again for {steps}."
    again = won is not preset
    gain, low, high = race.difference(shown, again=again)
    ours, theirs = (sample_stats(each.again if again else each.first(race.seeds)) for each in (shown, preset))
    seeds = f"{ours.n} fresh seeds" if ours.n == theirs.n else f"{ours.n} and {theirs.n} fresh seeds"
    means = f"{number(ours.mean)} against {number(theirs.mean)}"
    interval = f"gain {number(gain)}, 90 % interval {between((low, high))}"
    measured = f"{means} ({interval}), trained for {steps} with {seeds} each"
    if won is preset:
        return f"The preset is kept: no trial is clearly better. The best, {shown.name}, has {measured}."
    clearly = "is better than the preset" if low > 0 else "has won against the preset, but by how much is not clear"
    return f"{won.name.capitalize()} {clearly}: {measured} that had no part in the choice."


def shrunk_value(study: TuneStudy, trial: FrozenTrial) -> float | None:
    """The expected value of a trial with other seeds; None if there are too few trainings to estimate the noise.

    It is shrunk towards the mean of all complete trials by the share of their variance that is noise: the variance of
    the same settings with several seeds. James and Stein's estimator in its positive part, see Efron and Morris,
    "Stein's estimation rule and its competitors", Journal of the American Statistical Association 68, 1973.
    """
    spreads = [sample_stats(candidate.first(AGAIN) + candidate.again) for candidate in candidates(study)]
    freedom = sum(spread.n - 1 for spread in spreads if spread.sd is not None)
    value, of_all = value_of(trial), sample_stats([complete.values[0] for complete in study.completed()])
    if freedom < 1 or value is None or of_all.mean is None or not of_all.sd:
        return None
    noise = sum((spread.n - 1) * spread.sd**2 for spread in spreads if spread.sd is not None) / freedom
    return of_all.mean + max(0.0, 1.0 - noise / of_all.sd**2) * (value - of_all.mean)


# --- As a table -------------------------------------------------------------------------------------------------------

HEADER = ("candidate", "seeds", "mean", "95 % interval", "gain", "90 % interval", "verdict")


def rows(race: Race) -> list[list[str]]:
    """A row for each candidate with the columns of `HEADER`; the first one is the preset."""
    table = []
    racing, wanted = race.standing()
    for candidate in race.candidates:
        stats = sample_stats(candidate.first(race.seeds))
        failed = f", {candidate.n_failed} failed" if candidate.n_failed else ""
        against = ["", "", ""]
        if candidate.trial is not None and stats.n:
            gain, low, high = race.difference(candidate)
            verdict = "better" if low > 0 else "worse" if high < 0 else "undecided"
            verdict = verdict if stats.n == race.seeds else "left out"
            against = [number(gain), between((low, high)), verdict]
        if candidate.trial is not None and wanted and candidate in racing:
            against[-1] = "still racing"
        table.append([candidate.name, f"{stats.n}{failed}", number(stats.mean), between(stats.ci95), *against])
    for candidate in (race.candidates[0], race.winner()) if race.winner().again else ():
        stats, (gain, low, high) = sample_stats(candidate.again), race.difference(candidate, again=True)
        against = ["", "", ""] if candidate.trial is None else [number(gain), between((low, high)), "announced"]
        table.append([f"{candidate.name} again", f"{stats.n}", number(stats.mean), between(stats.ci95), *against])
    return table
