"""What a search shows, which never ends it."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from rich.console import Console

from marl_sb3.display.screen import ScreenSize
from marl_sb3.tuning import api
from marl_sb3.tuning.view import ConfirmView, SearchView, print_outcome


def trial(number: int, state: TrialState, value: float | None = None) -> optuna.trial.FrozenTrial:
    ranges = {"gamma": optuna.distributions.FloatDistribution(0.0, 1.0)}
    made = optuna.trial.create_trial(state=state, value=value, params={"gamma": 0.9}, distributions=ranges)
    made.number = number
    return made


class Study:
    """Two trials are done, 20 are running."""

    def __init__(self) -> None:
        self.search: Any = SimpleNamespace(trials=30, mode="max")
        complete = [trial(number, TrialState.COMPLETE, float(number)) for number in range(2)]
        self.trials = [*complete, *(trial(number, TrialState.RUNNING) for number in range(2, 22))]

    def n_done(self) -> int:
        return 2

    def completed(self) -> list[optuna.trial.FrozenTrial]:
        return self.trials[1::-1]


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def text_of(shown: Console) -> str:
    return shown.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), [(40, 12), (80, 23), (200, 60)])
def test_a_search_fits_every_terminal(width: int, height: int) -> None:
    study = Study()
    shown = SearchView(console(), study)  # type: ignore[arg-type]
    shown.update(study)  # type: ignore[arg-type]
    drawn = Console(file=io.StringIO(), width=width)
    drawn.print(shown.draw(ScreenSize(width, height)))
    lines = text_of(drawn).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "2 of 30 trials" in text_of(drawn)
    assert " elapsed  - left" in text_of(drawn)
    assert any(line.startswith("best     trial 1: COMPLETE 1.00 (") for line in lines)
    assert ("more" in lines[-1]) == (height < 60)


def test_a_view_that_fails_ends_no_search() -> None:
    study, shown = Study(), console()
    with SearchView(shown, study) as search_view:  # type: ignore[arg-type]
        search_view.update(None)  # type: ignore[arg-type]
        search_view.update(study)  # type: ignore[arg-type]
    with ConfirmView(shown) as confirm_view:
        confirm_view.update(None, 3)  # type: ignore[arg-type]
    assert text_of(shown) == ""


def test_trainings_with_fresh_seeds_are_counted() -> None:
    shown = console()
    with ConfirmView(shown) as confirm_view:
        for done in (0, 1, 1, 2):
            confirm_view.update(done, 2)
    assert text_of(shown).splitlines() == [f"trained again with fresh seeds: {done} of 2" for done in (1, 2)]


def test_files_are_named_whatever_cannot_be_shown() -> None:
    shown, path = console(), Path("a long name " * 20, "best.yml")
    print_outcome(shown, None, [path])  # type: ignore[arg-type]
    assert text_of(shown) == f"{path}\n"


def test_a_study_without_trials_has_no_table() -> None:
    shown = console()
    study: Any = SimpleNamespace(trials=[], search=SimpleNamespace(mode="max"))
    print_outcome(shown, study, [Path("trials.csv")])
    assert text_of(shown) == "trials.csv\n"


@pytest.mark.parametrize(("progress_bar", "is_shown"), [(None, False), (False, False), (True, True)])
def test_a_search_of_the_library_shows_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], progress_bar: bool | None, is_shown: bool
) -> None:
    study, before, seen = Study(), Study(), []
    before.trials = []
    monkeypatch.setattr(api, "prepare_study", lambda env, **_: before)
    monkeypatch.setattr(api, "run_trials", lambda _, workers, watch, trainer: watch(study))
    monkeypatch.setattr(api, "write_files", lambda study: [])
    api.tune(watch=seen.append, progress_bar=progress_bar)
    assert seen == [study]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in lines] == (
        ["trial 0: COMPLETE 0.00", "trial 1: COMPLETE 1.00"] if is_shown else []
    )
