"""Checks of a search before any trial runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Preview:
    """What is known about a run before it starts.

    Attributes:
        minibatches: the minibatch size and the agent steps of a rollout, by policy; only for algorithms with both.
    """

    metric_names: Sequence[str]
    minibatches: Mapping[PolicyID, tuple[int, int]]


def preview(config: TrainConfig, factory: EnvFactory | None = None) -> Preview:
    """Build a run to check its settings; it is not started."""
    config = resolved(config)
    check_device(config)
    start_without_dynamo()
    run = Run(RunFolder(Path()), config, build(config, factory), factory=factory)
    try:
        policies = run.algorithm.policies.items()
        sizes = {
            policy_id: (policy.batch_size, policy.n_steps * policy.n_envs)
            for policy_id, policy in policies
            if hasattr(policy, "batch_size") and hasattr(policy, "n_steps") and hasattr(policy, "rollout_buffer")
        }
        require_metrics(run)
        return Preview(metric_names(run), sizes)
    finally:
        run.close()


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
    previews = []
    for settings in space.corners():
        config = search.trial_config(settings, 0, where)
        try:
            seen = preview(config, factory)
            objective.require_known(seen.metric_names)
            if searches_batch_size:
                _require_distinct_minibatches(seen)
        except ConfigError as error:
            if error.key in _OF_ALL_TRIALS - space.names:
                raise
            shown = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise ConfigError(f"{error} (in a trial with {shown})", key=error.key) from error
        previews.append(seen)
    return _uneven_minibatches(previews)


def _require_distinct_minibatches(seen: Preview) -> None:
    """Refuse minibatches larger than the rollout: all of them would train the same."""
    for policy_id, (batch_size, rollout) in seen.minibatches.items():
        if batch_size > rollout:
            words = (
                f"policy {policy_id!r}: batch_size is {batch_size}, larger than its rollout of {rollout} agent steps"
            )
            raise ConfigError(f"{words}; accepted in a search: 2 to {rollout}", key="batch_size")


def _uneven_minibatches(previews: Iterable[Preview]) -> list[str]:
    """A warning for each policy whose rollout is no multiple of some batch sizes."""
    uneven: dict[tuple[str, int], set[int]] = {}
    for seen in previews:
        for policy_id, (batch_size, rollout) in seen.minibatches.items():
            if batch_size < rollout and rollout % batch_size:
                uneven.setdefault((policy_id, rollout), set()).add(batch_size)
    return [
        f"policy {policy_id}: the last minibatch of an epoch is smaller where batch_size is "
        f"{', '.join(map(str, sorted(sizes)))}: a rollout has {rollout} agent steps"
        for (policy_id, rollout), sizes in uneven.items()
    ]


def require_trainable_preset(study: TuneStudy) -> None:
    """Refuse a search with confirmations whose preset cannot be trained."""
    try:
        preview(study.search.trial_config({}, seed=0), study.factory)
    except ConfigError as error:
        raise ConfigError(f"the preset: {error}", key=error.key) from error
