"""Checks of a search before any trial runs."""

from __future__ import annotations

from collections.abc import Iterable

from marl_sb3.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError
from marl_sb3.runs.preview import Preview, preview
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.study import TuneStudy


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
