"""Checks of a search before any trial runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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

# By policy and the agent steps of its rollouts: sizes of minibatches that do not divide these.
_Uneven = dict[tuple[PolicyID, int], set[int]]


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
    objective.require_enough(search.evaluations)
    searches_batch_size = any(parameter.name.rpartition(".")[2] == "batch_size" for parameter in space.parameters)
    uneven: _Uneven = {}
    for settings in space.corners():
        config = search.trial_config(settings, 0, where)
        try:
            with _built(config, factory) as run:
                objective.require_known(metric_names(run))
                _check_minibatches(run, uneven, searches_batch_size=searches_batch_size)
        except ConfigError as error:
            if error.key in _OF_ALL_TRIALS - space.names:
                raise
            shown = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise ConfigError(f"{error} (in a trial with {shown})", key=error.key) from error
    return [
        f"policy {policy_id}: the last minibatch of an epoch is smaller where batch_size is "
        f"{', '.join(map(str, sorted(sizes)))}: a rollout has {rollout} agent steps"
        for (policy_id, rollout), sizes in uneven.items()
    ]


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


def _check_minibatches(run: Run, uneven: _Uneven, *, searches_batch_size: bool) -> None:
    """Refuse to search minibatches larger than the rollout, which train the same; note those that do not divide it."""
    policies: Mapping[PolicyID, Any] = run.algorithm.policies
    for policy_id, policy in policies.items():
        if not all(hasattr(policy, name) for name in ("batch_size", "n_steps", "rollout_buffer")):
            continue
        size, rollout = policy.batch_size, policy.n_steps * policy.n_envs
        if size > rollout and searches_batch_size:
            words = f"policy {policy_id!r}: batch_size is {size}, larger than its rollout of {rollout} agent steps"
            raise ConfigError(f"{words}; accepted in a search: 2 to {rollout}", key="batch_size")
        if size < rollout and rollout % size:
            uneven.setdefault((policy_id, rollout), set()).add(size)
