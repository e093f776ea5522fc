"""When the pruners of a search give trials up, and how its samplers are seeded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import optuna
import pytest
from searches import SPACE

from marl_sb3.tools.tuning.search import Search
from marl_sb3.tools.tuning.space import parse_space
from marl_sb3.tools.tuning.study import pruner, sampler


def search(**options: Any) -> Search:
    return Search("arena", parse_space(SPACE, "space"), "s", **options)


@pytest.mark.parametrize(("evaluations", "first"), [(9, 3), (2, 1)])
def test_the_median_pruner_gives_a_trial_up_after_its_first_third(evaluations: int, first: int) -> None:
    study = optuna.create_study(direction="maximize", pruner=pruner(search(evaluations=evaluations, pruner="median")))
    steps = range(1, evaluations + 1)
    for _ in range(5):
        study.add_trial(optuna.create_trial(value=1.0, intermediate_values=dict.fromkeys(steps, 1.0)))
    trial, pruned_at = study.ask(), []
    for step in steps:
        trial.report(-1.0, step)
        if trial.should_prune():
            pruned_at.append(step)
    assert pruned_at[0] == first
    assert all(later == earlier + 1 for earlier, later in pairwise(pruned_at))


def test_successive_halving_begins_after_the_first_third() -> None:
    made = pruner(search(evaluations=9, pruner="asha"))
    study = optuna.create_study(direction="maximize", pruner=made)
    pruned = []
    for value in (2.0, 1.0):
        trial = study.ask()
        for step in range(1, 4):
            trial.report(value, step)
            if trial.should_prune():
                pruned.append((value, step))
    assert pruned == [(1.0, 3)]


@pytest.mark.parametrize("name", ["tpe", "random", "gp"])
def test_each_trial_has_a_sampler_seeded_by_the_search_and_its_index(name: str) -> None:
    def drawn(seed: int, index: int) -> dict[str, Any]:
        made = search(sampler=name, seed=seed)
        trial = optuna.create_study(sampler=sampler(made, index)).ask()
        return made.space.suggest(trial)

    assert drawn(0, 0) == drawn(0, 0)
    assert drawn(0, 0) != drawn(0, 1)
    assert drawn(0, 0) != drawn(1, 0)
