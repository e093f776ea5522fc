"""The evaluation of a run while it trains, and the names of all metrics that it will log."""

from __future__ import annotations

from marl_sb3.callbacks import EvaluationCallback
from marl_sb3.metrics import require_metric
from marl_sb3.runs.build import source_named
from marl_sb3.runs.run import Run
from marl_sb3.vec_env import make_vec_env


def require_metrics(run: Run) -> None:
    """Refuse stop conditions and a checkpoint metric that no iteration will log.

    Raises:
        ConfigError: with the names that come close.
    """
    known = [*run.algorithm.metric_names(), *evaluation_metrics(run)]
    with source_named(run.config):
        for metric in run.config.stop:
            require_metric(metric, known)
        require_metric(run.config.checkpoints.metric, known, "checkpoints.metric")


def evaluations_of(run: Run) -> list[EvaluationCallback]:
    """The evaluation that the configuration asks for, if it does."""
    config = run.config
    if not config.evaluation.interval:
        return []
    by_episodes = config.evaluation.duration_unit == "episodes"
    n_envs = min(config.evaluation.duration, config.n_envs) if by_episodes else config.n_envs
    env, kwargs = run.factory or config.env, config.env_kwargs
    return [
        EvaluationCallback(
            lambda: make_vec_env(env, n_envs, vectorizer=config.vectorizer, **kwargs),
            config.evaluation.interval,
            config.evaluation.duration,
            config.evaluation.duration_unit,
            config.evaluation.deterministic,
            config.evaluation.seed,
            interval_unit=config.evaluation.interval_unit,
        )
    ]


def evaluation_metrics(run: Run) -> list[str]:
    """The flat names of the metrics that the evaluation of a run adds to its results."""
    names = []
    for evaluation in evaluations_of(run):
        names += evaluation.metric_names(run.algorithm)
        evaluation.close()
    return names
