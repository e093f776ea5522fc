"""A search that was killed loses at most what ran, and finds what it would have found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from searches import GRID, SMALL, SPACE, claimed, in_this_process, pretend, states, stored, work_on

from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.tools.tuning.search import Search
from marl_sb3.tools.tuning.study import IN_PROCESS, TuneStudy
from marl_sb3.tools.tuning.trial import DEATHS, ERROR, INDEX, INTERRUPTED, KILLED, RETRY_OF
from marl_sb3.tools.tuning.trials import run_trial


@pytest.fixture
def study(in_tmp: Path) -> TuneStudy:
    return prepare_study(**SMALL, study="s")


def test_a_dead_search_gives_its_trials_back(study: TuneStudy) -> None:
    first = claimed(study, IN_PROCESS)
    study.queue.requeue_dead()
    assert study.n_done() == 0
    again = claimed(study, IN_PROCESS)
    assert again.user_attrs.items() >= {RETRY_OF: first.number, DEATHS: 1}.items()
    study.queue.requeue(again.number, INTERRUPTED)  # by the user: it is not the trial's fault
    once_more = claimed(study, IN_PROCESS)
    assert once_more.user_attrs.items() >= {RETRY_OF: again.number, DEATHS: 1, "index": 0}.items()
    study.queue.requeue_dead()
    assert states(study) == ["FAIL"] * 3  # killed twice: not tried again
    assert stored(study, ERROR) == [KILLED, INTERRUPTED, KILLED]
    assert study.n_done() == 1
    work_on(study, pretend)
    assert study.n_done() == 3


def test_a_trial_whose_worker_ended_with_its_search_is_tried_as_often_as_it_takes(study: TuneStudy) -> None:
    for number in range(3):
        claimed(study, f"process-{number}")
        study = prepare_study(study="s")
    assert study.n_done() == 0
    assert stored(study, ERROR) == [INTERRUPTED] * 3 + [None]


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp", "grid"])
def test_a_search_that_was_killed_finds_what_it_would_have_found(
    sampler: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, trials = (GRID, 6) if sampler == "grid" else (SPACE, 4)
    options = {"trials": trials, "sampler": sampler, "space": space}
    whole = in_this_process(pretend, study="whole", **options)
    study = prepare_study(**{**SMALL, **options}, study="killed")
    for n_drawn in (2, 0, 1):  # killed after all parameters, none or only the first were drawn
        drawn = replace(study.space, parameters=study.space.parameters[:n_drawn])
        monkeypatch.setattr(study.queue, "_draw", drawn.suggest)
        claimed(study, IN_PROCESS)
        study = prepare_study(study="killed")
        run_trial(study, claimed(study, "nobody kills this"), pretend)
    work_on(study, pretend)
    found, expected = (
        [
            (trial.user_attrs[INDEX], trial.params, trial.value, trial.user_attrs["seed"])
            for trial in each.trials
            if trial.user_attrs.get(ERROR) != KILLED
        ]
        for each in (study, whole)
    )
    assert sorted(found) == expected
    assert len(study.trials) == len(whole.trials) + 3


def waiting(study: TuneStudy) -> list[Any]:
    """The parameters that are set for each trial."""
    return [trial.system_attrs["fixed_params"] for trial in study.trials]


def test_a_grid_that_was_killed_while_it_was_set_up_is_completed(in_tmp: Path) -> None:
    options: dict[str, Any] = {**SMALL, "space": None}
    study = prepare_study(**options, grid={"gamma": [0.8, 0.9, 0.95], "batch_size": [20]}, study="s")
    expected = waiting(study)
    assert len(expected) == 3
    prepare_study(study="s")
    assert waiting(study) == expected
    half = prepare_study(**{**options, "trials": 1}, grid={"gamma": [0.8], "batch_size": [20]}, study="half")
    whole = TuneStudy(replace(half.search, space=study.search.space, trials=3), half.folder)
    whole.optuna.set_user_attr("search", None)
    whole.optuna.set_user_attr("search", _without_storage(whole.search))
    whole.begin()
    assert waiting(whole) == expected


def _without_storage(search: Search) -> dict[str, Any]:
    return {name: value for name, value in search.to_plain().items() if name not in ("trials", "storage")}


@pytest.mark.parametrize("killed_before", ["enqueue_trial", "tell"])
def test_no_trial_is_lost_by_who_is_killed_while_giving_it_back(
    killed_before: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = prepare_study(**{**SMALL, "trials": 1}, study="s")
    claimed(study, "one")

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(study.optuna, killed_before, killed)
        with pytest.raises(KeyboardInterrupt):
            study.queue.requeue_dead()
    work_on(prepare_study(study="s"), pretend)
    assert states(study) == ["FAIL", "COMPLETE"]
