"""What a search shows, which never ends it, and the tables at its end."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from searches import trial_of

from marl_sb3.extensions.display.screen import ScreenSize
from marl_sb3.tools.tuning import api
from marl_sb3.tools.tuning.search import Search
from marl_sb3.tools.tuning.space import Space, parse_space
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.view import SearchView, print_outcome, trials_table

SPACE = parse_space(
    {
        "learning_rate": {"log_uniform": [1e-4, 1e-2]},
        "batch_size": {"choices": [50, 100]},
        "policy_kwargs.net_arch": {"choices": [[64, 64], [32]]},
    },
    "space",
)


pytestmark = pytest.mark.usefixtures("in_tmp")
_numbers = itertools.count()


def study_of(trials: Sequence[FrozenTrial] | None = None, mode: str = "max") -> TuneStudy:
    """A study of trials that nobody trained, in a new folder; by default two are done, and 20 are running."""
    if trials is None:
        complete = [trial_of(SPACE, number, value=float(number)) for number in range(2)]
        trials = [*complete, *(trial_of(SPACE, number, TrialState.RUNNING) for number in range(2, 22))]
    study = TuneStudy(Search("arena", SPACE, "s", 30, mode=mode), Path(f"study-{next(_numbers)}"))
    for trial in trials:
        study.optuna.add_trial(trial)
    return study


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def text_of(shown: Console) -> str:
    return shown.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), [(40, 12), (80, 23), (200, 60)])
def test_a_search_fits_every_terminal(width: int, height: int) -> None:
    study = study_of()
    shown = SearchView(console(), study)
    shown.update(study)
    drawn = Console(file=io.StringIO(), width=width)
    drawn.print(shown.draw(ScreenSize(width, height)))
    lines = text_of(drawn).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "2 of 30 trials" in text_of(drawn)
    assert " elapsed" in text_of(drawn)
    assert "left" not in text_of(drawn)  # nothing is known yet
    assert any(line.startswith("best     trial 1: COMPLETE 1.00 (") for line in lines)
    assert ("more" in lines[-1]) == (height < 60)


def test_a_view_that_fails_ends_no_search() -> None:
    study, shown = study_of(), console()
    with SearchView(shown, study) as search_view:
        search_view.update(None)
        search_view.update(study)
    with SearchView(shown) as confirm_view:
        confirm_view.update_finals(None, 3)
    assert text_of(shown) == ""


def test_trainings_with_fresh_seeds_are_counted() -> None:
    shown = console()
    with SearchView(shown) as view:
        for done in (0, 1, 1, 2):
            view.update_finals(done, 2)
    assert text_of(shown).splitlines() == [
        f"finalists, trained with fresh seeds: {done} of 2 so far" for done in (1, 2)
    ]


def test_files_are_named_whatever_cannot_be_shown() -> None:
    shown, path = console(), Path("a long name " * 20, "best.yml")
    print_outcome(shown, None, [path])
    assert text_of(shown) == f"{path}\n"


def test_a_study_without_trials_has_no_table() -> None:
    shown = console()
    print_outcome(shown, study_of([]), [Path("trials.csv")])
    assert text_of(shown) == "trials.csv\n"


@pytest.mark.parametrize(("progress_bar", "is_shown"), [(None, False), (False, False), (True, True)])
def test_a_search_of_the_library_shows_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], progress_bar: bool | None, is_shown: bool
) -> None:
    study, before, seen = study_of(), study_of([]), []
    monkeypatch.setattr(api, "require_trainable_preset", lambda study: None)
    monkeypatch.setattr(api, "race_size", lambda *_: (3, 0))
    monkeypatch.setattr(api, "plan_race", lambda *_: None)
    monkeypatch.setattr(api, "run_finals", lambda *_: None)
    monkeypatch.setattr(api, "prepare_study", lambda env, **_: before)
    monkeypatch.setattr(api, "run_trials", lambda _, workers, watch, trainer: watch(study))
    monkeypatch.setattr(api, "write_files", lambda study: [])
    api.tune(watch=seen.append, progress_bar=progress_bar)
    assert seen == [study]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in lines] == (
        ["trial 0: COMPLETE 0.00", "trial 1: COMPLETE 1.00"] if is_shown else []
    )


# --- The table of trials ----------------------------------------------------------------------------------------------


def shown(trials: Sequence[FrozenTrial], width: int = 200, mode: str = "max") -> list[str]:
    drawn = Console(width=width, record=True, file=io.StringIO())
    drawn.print(trials_table(study_of(trials, mode), width))
    return [line.rstrip() for line in drawn.export_text().splitlines()]


def some_of_each() -> list[FrozenTrial]:
    trained = {"iterations": 2, "env_steps": 100, "seconds": 1.5, "cpu_seconds": 0.9, "return": 30.25}
    complete = [trial_of(SPACE, number, value=value, **trained) for number, value in enumerate((1.0, 5.0, 3.0))]
    return [
        *complete,
        trial_of(SPACE, 3, TrialState.PRUNED, 9.0, **trained),
        trial_of(SPACE, 4, TrialState.FAIL, error="ConfigError: batch_size is 7;\naccepted: 5"),
        trial_of(SPACE, 5, TrialState.RUNNING),
        trial_of(Space((), {}), 6, TrialState.WAITING),
    ]


def test_table_marks_the_best_and_tells_errors_below() -> None:
    trials = some_of_each()
    lines = shown(trials)
    (best,) = [line for line in lines if line.lstrip().startswith("* 1 ")]
    assert re.search(r"COMPLETE .* 2 +0\.\d +0\.9 +100 +30\.25 +5\.00$", best)
    assert f"{trials[1].params['learning_rate']:.4g}" in best
    assert lines[-2:] == ["trial 4: ConfigError: batch_size is 7; accepted: 5", "1 more trial waiting"]
    assert [line.split()[0] for line in lines[-8:-2]] == ["0", "*", "2", "3", "4", "5"]
    assert [line for line in shown(trials, mode="min") if line.lstrip().startswith("* 0 ")]


def test_of_many_trials_the_best_ten_are_shown() -> None:
    trials = [trial_of(SPACE, number, value=float(number)) for number in range(29)]
    trials.append(trial_of(SPACE, 29, TrialState.FAIL, error="broken"))
    assert len([line for line in shown(trials) if "COMPLETE" in line or "FAIL" in line]) == 30
    lines = shown([*trials, trial_of(SPACE, 30, value=100.0)])
    assert lines[-1] == "10 of 31 trials, the best first: 30 COMPLETE, 1 FAIL"
    assert [line.split()[-1] for line in lines[-11:-1]] == ["100.00", *(f"{value}.00" for value in range(28, 19, -1))]


def test_many_parameters_have_a_table_of_their_own() -> None:
    more = parse_space({**SPACE.to_plain(), "gamma": {"choices": [0.9]}, "n_epochs": {"choices": [5]}}, "space")
    trials = [trial_of(more, 0, value=1.0)]
    assert re.search(r"COMPLETE +0\.\d+ +\d+ +\[.*\] +0\.9 +5 +- ", shown(trials)[-1])
    lines = shown(trials, 80)
    assert [line.split() for line in lines[-3:-1]] == [
        ["learning_", "batch_"], ["trial", "rate", "size", "net_arch", "gamma", "n_epochs"]
    ]  # fmt: skip
    assert re.search(r"^ *\* 0 +0\.\d+ +\d+ +\[.*\] +0\.9 +5$", lines[-1])
    assert max(map(len, lines)) <= 80
    assert re.search(r"^\* 0: learning_rate=0\.\d+ batch_size=\d+ ", " ".join(shown(trials, 40)[-4:]))


@pytest.mark.parametrize("width", [40, 80])
def test_table_of_nothing_and_of_hostile_words(width: int) -> None:
    assert "objective" in " ".join(shown([], 80))
    error = "</script><script>alert(1)</script> [red]\x1b[31m\x00\ud800\n=cmd|, second line"
    text = "\n".join(shown([trial_of(SPACE, 0, TrialState.FAIL, error=error)], width))
    assert "\x1b" not in text
    assert "trial 0: </script><script>alert" in text
