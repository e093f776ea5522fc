"""The evaluations during a run, and the names of all metrics that it will log."""

from __future__ import annotations

from contextlib import closing

from marl_sb3.callbacks import EvaluationCallback
from marl_sb3.metrics import require_metric
from marl_sb3.runs.build import source_named
from marl_sb3.runs.run import Run


def evaluations_of(run: Run) -> list[EvaluationCallback]:
    """The evaluation that the configuration asks for; empty if evaluation is off. It has to be closed."""
    settings = run.config.evaluation
    if not settings.interval:
        return []
    by_episodes = settings.duration_unit == "episodes"
    n_envs = min(settings.duration, run.config.n_envs) if by_episodes else run.config.n_envs
    return [
        EvaluationCallback(
            lambda: run.make_env(n_envs),
            settings.interval,
            settings.duration,
            settings.duration_unit,
            settings.deterministic,
            settings.seed,
            interval_unit=settings.interval_unit,
        )
    ]


def metric_names(run: Run) -> list[str]:
    """The flat names of all metrics that the iterations of a run log."""
    names = run.algorithm.metric_names()
    for evaluation in evaluations_of(run):
        with closing(evaluation):
            names = [*names, *evaluation.metric_names(run.algorithm)]
    return names


def require_metrics(run: Run) -> None:
    """Refuse stop conditions and a checkpoint metric that no iteration will log."""
    known = metric_names(run)
    with source_named(run.config):
        for metric in run.config.stop:
            require_metric(metric, known)
        require_metric(run.config.checkpoints.metric, known, "checkpoints.metric")
