"""Small searches in the arena, with trials that are trained in this process, or only pretended."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from marl_sb3.core.metrics.names import Result
from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.tools.tuning.space import Space
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trials import run_trial
from marl_sb3.tools.tuning.workers import Train, TrainedRun, TrainingRequest, train_here, work

SETTINGS = {
    "n_envs": 4,
    "n_steps": 20,
    "n_epochs": 1,
    "env.max_timesteps": 15,
    "policy_kwargs.net_arch": [8],
}
SPACE = {"batch_size": {"choices": [10, 20]}, "learning_rate": {"log_uniform": [1e-4, 1e-2]}}
GRID = {"batch_size": {"choices": [10, 20]}, "learning_rate": {"choices": [1e-4, 1e-3, 1e-2]}}
SMALL: dict[str, Any] = {
    "space": SPACE, "settings": SETTINGS, "timesteps": 160, "evaluations": 2, "evaluation_episodes": 2, "trials": 3,
    "pruner": "none",
}  # fmt: skip


def pretend(request: TrainingRequest) -> TrainedRun:
    """Take the place of a training: its returns follow from the seed and the hyperparameters."""
    config = request.config
    returns = random.Random(f"{config.seed} {sorted(config.hyperparameters.items())}")
    results: list[Result] = []
    for env_steps in range(config.evaluation.interval, config.n_timesteps + 1, config.evaluation.interval):
        evaluated = {"env_runners": {"episode_return_mean": returns.random()}}
        sampled = {"num_env_steps_sampled_lifetime": env_steps, "env_runners": {"num_episodes": 0}}
        results.append({**sampled, "evaluation": evaluated})
        if request.goes_on is not None and not request.goes_on(results[-1]):
            break
    return TrainedRun(results[-1], results, "ckpt-000001")


def work_on(study: TuneStudy, train: Train = train_here) -> None:
    """All of its trials, without worker processes."""
    work(study, study.queue, run_trial, "here", train)


def in_this_process(train: Train = train_here, **options: Any) -> TuneStudy:
    """A whole search without worker processes."""
    study = prepare_study(**{**SMALL, "pruner": "none", **options})
    work_on(study, train)
    return study


def states(study: TuneStudy) -> list[str]:
    """The state of each trial."""
    return [trial.state.name for trial in study.trials]


def stored(study: TuneStudy, key: str) -> list[Any]:
    """What is stored with each trial under a name; None: nothing."""
    return [trial.user_attrs.get(key) for trial in study.trials]


def claimed(study: TuneStudy, worker: str) -> optuna.trial.Trial:
    """A trial that a worker has claimed."""
    trial = study.queue.claim(worker)
    assert trial is not None
    return trial


def finished(study: TuneStudy) -> list[tuple[str, Any, dict[str, Any]]]:
    """State, value and parameters of each trial."""
    return [(trial.state.name, trial.value, trial.params) for trial in study.trials]


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table of a study."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def trial_of(
    space: Space,
    number: int,
    state: TrialState = TrialState.COMPLETE,
    value: float | None = None,
    curve: Sequence[float] = (),
    **stored: Any,
) -> FrozenTrial:
    """A trial that nobody trained, with parameters drawn from a space."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    drawn = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=number)).ask()
    space.suggest(drawn)
    trial = optuna.create_trial(
        state=state,
        value=value,
        params=drawn.params,
        distributions=drawn.distributions,
        user_attrs=stored,
        intermediate_values=dict(enumerate(curve, start=1)),
    )
    trial.number = number
    return trial
