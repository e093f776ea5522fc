"""Simulate searches whose true qualities are known: how often is the result worse than the preset, and by how much?

    python benchmarks/search_simulation.py [--searches 200] [--trials 50] [--processes N]

Each search is one of `marl_sb3.tune` in the arena, with its sampler, pruner and race of finalists; only the trainings
are pretended. The true quality of settings is a smooth function of the searched parameters: a peak in a random place,
whose distance from the preset is drawn anew for each search, scaled so that settings drawn at random spread as they do
in the arena, with a standard deviation of 3.1. A training adds noise with one of 3.0, an evaluation with one of 2.5,
which is what 36 settings of the arena had over six seeds. Beside the result stands that of plain Optuna: the best trial
of a search of the same cost.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from command_line import add_count, parser
from measure import Report, Setting

from marl_sb3.runs.building import resolved
from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.tools.tuning.finals import decide, plan_race
from marl_sb3.tools.tuning.space import Space
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trials import enqueue_missing, run_final, run_trial
from marl_sb3.tools.tuning.workers import TrainedRun, TrainingRequest, work

SPREAD, TRAINING_SD, EVALUATION_SD = 3.1, 3.0, 2.5
DISTANCES = (0.1, 0.25, 0.5)  # of the peak from the preset in each parameter, as a share of its range
LEVEL = 40.0  # quality at the peak


@dataclass(frozen=True)
class Truth:
    """The true quality of settings."""

    space: Space  # the parameters
    peak: Sequence[float]  # their best values, each as a share of its range
    scale: float = 1.0  # quality lost by the mean squared distance from the peak

    @classmethod
    def drawn(cls, space: Space, preset: Mapping[str, Any], rng: np.random.Generator) -> Truth:
        """Draw a peak near the preset, or farther away."""
        here = shares(space, preset)
        peak = np.clip(here + rng.normal(0.0, rng.choice(DISTANCES), len(here)), 0.0, 1.0)
        truth = cls(space, peak.tolist())
        anywhere = [truth._loss(rng.uniform(size=len(here))) for _ in range(500)]
        return replace(truth, scale=SPREAD / float(np.std(anywhere)))

    def of(self, params: Mapping[str, Any]) -> float:
        """The quality of the parameters of a trial."""
        return LEVEL - self.scale * self._loss(shares(self.space, params))

    def _loss(self, place: Any) -> float:
        return float(np.mean((np.asarray(place) - self.peak) ** 2))


def shares(space: Space, params: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The place of parameters in their ranges: 0 at the lower end, 1 at the upper."""
    return np.array([_share(parameter, params[parameter.name]) for parameter in space.parameters])


def _share(parameter: Any, value: Any) -> float:
    if parameter.kind == "choices":
        return float(parameter.bounds.index(value) / max(1, len(parameter.bounds) - 1))
    low, high, at = parameter.bounds[0], parameter.bounds[1], value
    if parameter.kind == "log_uniform":
        low, high, at = np.log([low, high, at])
    return float((at - low) / (high - low))


@dataclass(frozen=True)
class Pretence:
    """Takes the place of a training, with results that follow from the settings and the seed."""

    truth: Truth
    params_of: Any

    def __call__(self, request: TrainingRequest) -> TrainedRun:
        """See `Train`."""
        config, goes_on = request.config, request.goes_on
        assert config.seed is not None
        rng = np.random.default_rng([config.seed, 7])
        end = self.truth.of(self.params_of(resolved(config))) + rng.normal(0.0, TRAINING_SD)
        results: list[dict[str, Any]] = []
        for number in range(1, config.n_timesteps // config.evaluation.interval + 1):
            env_steps = number * config.evaluation.interval
            learned = 1.0 - np.exp(-4.0 * env_steps / config.n_timesteps)
            value = end * learned + rng.normal(0.0, EVALUATION_SD)
            sampled = {"episode_return_mean": value, "num_episodes": 0}
            results.append(
                {
                    "num_env_steps_sampled_lifetime": env_steps,
                    "env_runners": sampled,
                    "evaluation": {"env_runners": {"episode_return_mean": value}},
                }
            )
            if goes_on is not None and not goes_on(results[-1]):
                break
        return TrainedRun(results[-1], results)


def search(seed: int, trials: int) -> dict[str, float]:
    """One search; returns the true qualities of its result, of plain Optuna's, and of the preset."""
    rng = np.random.default_rng(seed)
    os.chdir(tempfile.mkdtemp())
    study = prepare_study("arena", trials=trials, seed=seed, study="s")
    preset = study.search.preset_params()
    assert preset is not None
    truth = Truth.drawn(study.space, preset, rng)
    pretence = Pretence(truth, study.space.params_of)
    plan_race(study, 3, 10)
    work(study, study.queue, run_trial, "w", pretence)
    while enqueue_missing(study):
        work(study, study.finals, run_final, "w", pretence)
    decision = decide(study)
    assert decision is not None
    chosen = preset if decision.trial is None else decision.trial.params
    finals = len(study.finals.trials)
    evaluations = sum(len(trial.intermediate_values) for trial in study.trials)
    cost = evaluations / study.search.evaluations + finals
    plain = plain_search(study, pretence, cost)
    return {
        "preset": truth.of(preset),
        "chosen": truth.of(chosen),
        "plain": truth.of(plain),
        "is_trial": float(decision.trial is not None),
        "finals": float(finals),
        "cost": cost,
    }


def plain_search(study: TuneStudy, train: Pretence, cost: float) -> Mapping[str, Any]:
    """The parameters of the best trial of a search of the same cost, without finalists."""
    other = prepare_study("arena", trials=10 * study.search.trials, seed=study.search.seed + 10**6, study="plain")
    spent = 0.0

    def affordable() -> bool:
        return spent < cost

    def counted(*arguments: Any) -> TrainedRun:
        nonlocal spent
        run = train(*arguments)
        spent += len(run.results) / study.search.evaluations
        return run

    work(other, other.queue, run_trial, "w", counted, is_wanted=affordable)
    return other.best_trial.params


SETTING = Setting(
    "searches of 9 hyperparameters of PPO in the arena, with pretended trainings",
    {"spread": SPREAD, "training_sd": TRAINING_SD, "evaluation_sd": EVALUATION_SD},
    "one thread for each search",
    {},
    ("marl_sb3", "optuna", "numpy"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_count(options, "--searches", 200, "number of searches")
    add_count(options, "--trials", 50, "trials of a search")
    add_count(options, "--processes", 1, "searches at the same time")
    arguments = options.parse_args(argv)
    searches = range(arguments.searches), [arguments.trials] * arguments.searches
    if arguments.processes == 1:
        found = list(map(search, *searches))
    else:
        with ProcessPoolExecutor(arguments.processes, multiprocessing.get_context("spawn")) as pool:
            found = list(pool.map(search, *searches))
    better = {side: [each[side] - each["preset"] for each in found] for side in ("chosen", "plain")}
    results = {
        "searches": len(found),
        "a trial is chosen": fmean(each["is_trial"] for each in found),
        "worse than the preset": fmean(gain < -1e-9 for gain in better["chosen"]),
        "worse than the preset, plain": fmean(gain < -1e-9 for gain in better["plain"]),
        "gain over the preset": fmean(better["chosen"]),
        "gain over the preset, plain": fmean(better["plain"]),
        "regret": LEVEL - fmean(each["chosen"] for each in found),
        "regret, plain": LEVEL - fmean(each["plain"] for each in found),
        "trainings of finalists": fmean(each["finals"] for each in found),
        "cost in whole trainings": fmean(each["cost"] for each in found),
    }
    SETTING.print()
    for name, value in results.items():
        print(f"{name:30s} {value:.3f}")
    raw = {side: [each[side] for each in found] for side in ("preset", "chosen", "plain")}
    Report("search_simulation", SETTING, {"simulation": {"raw": raw, **results}}).write(arguments.json)


if __name__ == "__main__":
    main()
