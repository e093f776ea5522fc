"""Checks of a search before any trial runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from marl_sb3.config import TrainConfig
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError
from marl_sb3.learners.threads import start_without_dynamo
from marl_sb3.runs.build import build, check_device, resolved
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.run import Run
from marl_sb3.runs.start import metric_names, require_metrics
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.types import PolicyID

# Keys of errors that do not depend on what a trial tries, unless it is searched.
_OF_ALL_TRIALS = frozenset({"env", "algo", "policies", "device", "vectorizer", "objective", "stop"})

_Minibatch = tuple[PolicyID, int, int]  # a policy, the size of its minibatches, and the agent steps of its rollouts


def check_search(search: Search, factory: EnvFactory | None, where: str) -> list[str]:
    """Build trials at the ends of all ranges without running them.

    Args:
        factory: makes the env, if the env id in the search does not.
        where: the origin of the space, put before the names of parameters in messages.

    Returns:
        Warnings for the user.

    Raises:
        ConfigError: a setting, a range, the objective or the budget is wrong.
    """
    space, objective = search.space, search.parsed_objective()
    if search.sampler == "grid":
        space.combinations()
    objective.require_enough(search.evaluations)
    searches_batch_size = any(parameter.name.rpartition(".")[2] == "batch_size" for parameter in space.parameters)
    minibatches: list[_Minibatch] = []
    for settings in space.corners():
        config = search.trial_config(settings, 0, where)
        try:
            with _built(config, factory) as run:
                objective.require_known(metric_names(run))
                sizes = _minibatches(run)
            if searches_batch_size:
                _require_distinct(sizes)
        except ConfigError as error:
            if error.key in _OF_ALL_TRIALS - space.names:
                raise
            shown = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise ConfigError(f"{error} (in a trial with {shown})", key=error.key) from error
        minibatches += sizes
    return _uneven(minibatches)


def require_trainable_preset(study: TuneStudy) -> None:
    """Refuse a search with confirmations whose preset cannot be trained."""
    try:
        with _built(study.search.trial_config({}, seed=0), study.factory):
            pass
    except ConfigError as error:
        raise ConfigError(f"the preset: {error}", key=error.key) from error


@contextmanager
def _built(config: TrainConfig, factory: EnvFactory | None) -> Iterator[Run]:
    """Build a run to check its settings; it is not started."""
    config = resolved(config)
    check_device(config)
    start_without_dynamo()
    run = Run(RunFolder(Path()), *build(config, factory), factory=factory)
    try:
        require_metrics(run)
        yield run
    finally:
        run.close()


def _minibatches(run: Run) -> list[_Minibatch]:
    """The minibatches of all policies whose algorithms have rollouts and minibatches."""
    return [
        (policy_id, policy.batch_size, policy.n_steps * policy.n_envs)
        for policy_id, policy in run.algorithm.policies.items()
        if hasattr(policy, "batch_size") and hasattr(policy, "n_steps") and hasattr(policy, "rollout_buffer")
    ]


def _require_distinct(minibatches: Iterable[_Minibatch]) -> None:
    """Refuse minibatches larger than the rollout: all of them would train the same."""
    for policy_id, size, rollout in minibatches:
        if size > rollout:
            words = f"policy {policy_id!r}: batch_size is {size}, larger than its rollout of {rollout} agent steps"
            raise ConfigError(f"{words}; accepted in a search: 2 to {rollout}", key="batch_size")


def _uneven(minibatches: Iterable[_Minibatch]) -> list[str]:
    """A warning for each policy whose rollout is no multiple of some batch sizes."""
    uneven: dict[tuple[PolicyID, int], set[int]] = {}
    for policy_id, size, rollout in minibatches:
        if size < rollout and rollout % size:
            uneven.setdefault((policy_id, rollout), set()).add(size)
    return [
        f"policy {policy_id}: the last minibatch of an epoch is smaller where batch_size is "
        f"{', '.join(map(str, sorted(sizes)))}: a rollout has {rollout} agent steps"
        for (policy_id, rollout), sizes in uneven.items()
    ]
