"""The best trials race against the preset with fresh seeds, and what came out stands everywhere."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import TrialState
from rich.console import Console
from searches import pretend, rows_of, work_on
from waiting import writing_to

import marl_sb3
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.display.screen import ScreenSize
from marl_sb3.runs.settings import load_config
from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.tools.tuning.finals import (
    Candidate,
    Race,
    candidates,
    cost_words,
    decide,
    outcome_words,
    plan_race,
    race_size,
    rows,
    shrunk_value,
)
from marl_sb3.tools.tuning.report import write_files
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trials import enqueue_missing, run_final, run_finals
from marl_sb3.tools.tuning.view import SearchView
from marl_sb3.tools.tuning.workers import TrainedRun, TrainingRequest, work

SMALL: dict[str, Any] = {
    "space": {"learning_rate": {"log_uniform": [1e-3, 1e-2]}},  # without the preset
    "settings": {"n_envs": 2, "n_steps": 20, "batch_size": 20, "n_epochs": 1, "policy_kwargs.net_arch": [8]},
    "timesteps": 80, "evaluations": 2, "evaluation_episodes": 1, "pruner": "none", "trials": 2, "over": "last",
}  # fmt: skip


def local_env() -> type[ArenaEnv]:
    class Local(ArenaEnv):
        pass

    return Local


LOCAL_ENV = local_env()  # no other process can import it: all trials run in this one


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of three complete trials that were not trained; only to copy."""
    folder = tmp_path_factory.mktemp("finished")
    settings = {**SMALL["settings"], "env.max_timesteps": 15}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        work_on(prepare_study(LOCAL_ENV, **{**SMALL, "settings": settings, "trials": 3}, study="s"), pretend)
    return folder


@pytest.fixture
def study(finished_study: Path, in_tmp: Path) -> TuneStudy:
    """A study of three complete trials in a folder of its own."""
    shutil.copytree(finished_study / "runs", in_tmp / "runs")
    return prepare_study(LOCAL_ENV, study="s")


def worth(values: Callable[[float | None, int], float | None]) -> Callable[..., TrainedRun]:
    """Take the place of a training whose value follows from its learning rate, None: the preset's, and its seed."""
    known: dict[int, int] = {}

    def train(request: TrainingRequest) -> TrainedRun:
        config = request.config
        assert config.seed is not None
        rate = config.hyperparameters.get("learning_rate")
        index = int(request.folder.name.rpartition("-")[2])
        known.setdefault(index, config.seed)
        assert known[index] == config.seed  # all candidates have the same
        value = values(rate, index)
        if value is None:
            raise RuntimeError("it broke")
        result = {"evaluation": {"env_runners": {"episode_return_mean": value}}}
        return TrainedRun(result, [result] * 3)

    return train


def race(study: TuneStudy, train: Callable[..., TrainedRun], best: int = 2, seeds: int = 10) -> None:
    """A whole race without worker processes."""
    plan_race(study, best, seeds)
    while enqueue_missing(study):
        work(study, study.finals, run_final, "here", train)


# --- The race ---------------------------------------------------------------------------------------------------------


def race_with(values: dict[int | None, list[float]], seeds: int, sign: float = 1.0) -> Race:
    several = [Candidate(trial, dict(enumerate(each))) for trial, each in values.items()]
    return Race(several, seeds, sign)


def test_the_hopeless_are_left_out_after_four_and_seven_of_ten_seeds() -> None:
    preset, good, bad = [10.0, 11, 12, 11], [14.0, 12, 13, 15], [8.0, 9, 10, 9]
    begun = race_with({None: [], 1: [], 2: []}, 10)
    assert [(each.name, index) for each, index in begun.missing()[:4]] == [
        ("preset", 0), ("trial 1", 0), ("trial 2", 0), ("preset", 1)
    ]  # fmt: skip
    assert len(begun.missing()) == 12
    after_four = race_with({None: preset, 1: good, 2: bad}, 10)
    assert [(each.trial, index) for each, index in after_four.missing()] == [
        (None, 4), (1, 4), (None, 5), (1, 5), (None, 6), (1, 6)
    ]  # fmt: skip
    unfinished = race_with({None: preset, 1: good, 2: bad[:3]}, 10)
    assert [(each.trial, index) for each, index in unfinished.missing()] == [(2, 3)]
    less_is_better = race_with({None: preset, 1: good, 2: bad}, 10, sign=-1.0)
    assert {each.trial for each, _ in less_is_better.missing()} == {None, 2}


def test_a_race_ends_when_the_preset_alone_is_left() -> None:
    assert race_with({None: [10.0, 11, 12, 11], 1: [1.0, 2, 3, 2]}, 10).missing() == []


def test_of_two_good_ones_the_clearly_worse_is_left_out() -> None:
    found = race_with({None: [1.0, 2, 3, 2], 1: [20.0, 21, 22, 21], 2: [10.0, 11, 12, 11]}, 10)
    assert {each.trial for each, _ in found.missing()} == {None, 1}


def test_a_candidate_that_failed_once_wins_nothing() -> None:
    preset = Candidate(None, dict(enumerate([1.0, 2, 3, 2])))
    failed = Candidate(1, {0: 50.0, 1: 51.0, 2: 52.0, 3: None})
    assert Race([preset, failed], 4).missing() == []
    assert Race([preset, failed], 4).winner() is preset


def test_only_what_is_clearly_better_wins() -> None:
    # By Welch: means 12 and 11, variances 1 and 1 of 3 seeds, 4 degrees of freedom: half a 90 % interval is
    # 2.132 * sqrt(2 / 3) = 1.741, and of two comparisons 2.776 * sqrt(2 / 3) = 2.267.
    near = race_with({None: [10.0, 11, 12], 1: [11.0, 12, 13]}, 3)
    assert near.difference(near.candidates[1]) == pytest.approx((1.0, -0.741, 2.741), abs=1e-3)
    assert near.winner().trial is None
    assert race_with({None: [10.0, 11, 12], 1: [12.0, 13, 14]}, 3).winner().trial == 1
    two = race_with({None: [10.0, 11, 12], 1: [12.0, 13, 14], 2: [9.0, 9, 9]}, 3)
    assert two.difference(two.candidates[1]) == pytest.approx((2.0, -0.267, 4.267), abs=1e-3)
    assert two.winner().trial is None
    assert race_with({None: [10.0, 11, 12], 1: [8.0, 9, 10]}, 3, sign=-1.0).winner().trial == 1


@pytest.mark.parametrize("spread", [(3.0, 3.0), (3.0, 6.0), (6.0, 3.0)], ids=str)
def test_a_race_of_equals_is_seldom_won(spread: tuple[float, float]) -> None:
    """Of 400 races, in each of which three trials are as good as the preset, at most 5 % and twice the chance of it."""
    rng = np.random.default_rng(1)
    won = 0
    for _ in range(400):
        drawn = {trial: rng.normal(0.0, spread[trial is not None], 10).tolist() for trial in (None, 1, 2, 3)}
        values: dict[int | None, dict[int, float]] = {trial: {} for trial in drawn}
        while missing := (found := Race([Candidate(*each) for each in values.items()], 10)).standing()[1]:
            for each, seed in missing:
                values[each.trial][seed] = drawn[each.trial][seed]
        won += found.winner().trial is not None
    assert won / 400 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("gain", [0.0, 3.0, 6.0])
def test_the_gain_that_is_announced_is_not_that_of_the_seeds_that_chose(gain: float) -> None:
    """Its interval of 90 % holds the true gain in as many races; that of the race says too much, the less there is."""
    holds, excess, of_race = [], [], []
    for seed in range(1500):
        rng = np.random.default_rng(seed)
        values: dict[int | None, dict[int, float]] = {None: {}, 1: {}}
        while missing := (found := Race([Candidate(*each) for each in values.items()], 6)).missing():
            for each, index in missing:
                values[each.trial][index] = rng.normal(gain if each.trial else 0.0, 3.0)
        if found.winner().trial is not None:
            announced, low, high = found.difference(found.winner(), again=True)
            holds.append(low <= gain <= high)
            excess.append(announced - gain)
            of_race.append(found.difference(found.winner())[0] - gain)
    assert len(holds) > 30
    assert np.mean(holds) > 0.9 - 3 * math.sqrt(0.9 * 0.1 / len(holds))
    assert abs(np.mean(excess)) < 3 * np.std(excess) / math.sqrt(len(excess))
    assert np.mean(of_race) > {0.0: 3.0, 3.0: 1.0, 6.0: 0.0}[gain]


def test_a_winner_whose_gain_is_not_clear_is_used_and_said_to_be_so(study: TuneStudy) -> None:
    race(
        study, worth(lambda rate, index: index % 2 * 9 + (0.5 if index >= 1000 else 30.0) * bool(rate)), best=1, seeds=4
    )
    words = (
        f"Trial {study.best_trial.number} has won against the preset, but by how much is not clear: 5.00 against 4.50"
    )
    assert outcome_words(study).startswith(words)
    assert decide(study).trial == study.best_trial  # type: ignore[union-attr]


# --- In a study -------------------------------------------------------------------------------------------------------


def test_finalists_are_trained_as_long_as_trials_unless_the_user_says_more(in_tmp: Path) -> None:
    def budgets(env: Any, **options: Any) -> tuple[int, int, int]:
        search = prepare_study(env, **{**SMALL, **options}, study=f"s{len(str(options))}").search
        return (
            search.trial_config({}, 0).n_timesteps,
            search.whole_config({}).n_timesteps,
            search.final_config({}, 0).n_timesteps,
        )

    assert budgets("arena") == (80, 200_000, 80)  # best.yml trains as long as the preset
    assert budgets("arena", timesteps=None) == (200_000, 200_000, 200_000)
    assert budgets("arena", timesteps=300_000) == (300_000, 300_000, 300_000)
    assert budgets("arena", hparams={"arena": {"n_timesteps": 160}}) == (80, 160, 80)
    assert budgets("arena", settings={**SMALL["settings"], "n_timesteps": 160}) == (80, 160, 160)
    assert budgets(LOCAL_ENV) == (80, 80, 80)  # it has no preset


@pytest.mark.parametrize(
    ("trials", "best", "seeds", "size"),
    [
        (50, None, None, (3, 10)),  # 40 trainings
        (30, None, None, (3, 7)),
        (15, None, None, (2, 5)),
        (8, None, None, (1, 4)),
        (4, None, None, (1, 2)),
        (3, None, None, (1, 0)),  # two trainings each of two candidates are four
        (8, 3, None, (3, 2)),
        (8, None, 10, (3, 10)),  # asked for
        (8, 1, 20, (1, 20)),
        (50, None, 0, (3, 0)),
    ],
)
def test_a_race_costs_no_more_than_the_search_unless_it_is_asked_for(
    in_tmp: Path, trials: int, best: int | None, seeds: int | None, size: tuple[int, int]
) -> None:
    study = prepare_study(LOCAL_ENV, **{**SMALL, "trials": trials})
    assert race_size(study, best, seeds) == size
    plan_race(study, 2, 11)
    assert race_size(study, None, None) == ((2, 11) if trials < 50 else (3, 10))  # 33 or 40 trainings


def test_longer_finals_are_fewer(in_tmp: Path) -> None:
    study = prepare_study(LOCAL_ENV, **{**SMALL, "trials": 50, "settings": {**SMALL["settings"], "n_timesteps": 400}})
    assert race_size(study, None, None) == (1, 5)  # ten of five times the length
    words = "5 fresh seeds each, 400 env steps, and a trial that is better, and the preset, with 5 others"
    assert cost_words(study, None, None).endswith(f"{words}: 12,000 env steps at most")


def test_the_time_left_counts_the_race(in_tmp: Path) -> None:
    study = prepare_study(LOCAL_ENV, **{**SMALL, "trials": 8, "settings": {**SMALL["settings"], "n_timesteps": 160}})
    view = SearchView(None, study, race=4)
    assert view._most == 16  # four trainings of twice the length
    view._clock.left_s = lambda done, total: total - done  # type: ignore[method-assign]
    drawn = Console(width=80, file=io.StringIO())
    drawn.print(view.draw(ScreenSize(80, 20)))
    assert "0:00:16 left, finalists included" in drawn.file.getvalue()  # type: ignore[attr-defined]


def test_the_preset_and_the_best_are_trained_with_the_same_fresh_seeds(study: TuneStudy) -> None:
    seen: list[tuple[int, int]] = []
    plan_race(study, 1, 2)
    run_finals(study, watch=lambda done, total: seen.append((done, total)))
    best = study.completed()[0]
    several = candidates(study)
    assert [candidate.name for candidate in several] == ["preset", f"trial {best.number}"]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4), (4, 4)]
    folders = {c.name: study.folder / "confirm" / c.name.replace(" ", "-") for c in several}
    configs = [[load_config(None, hparams=f / f"seed-0{i}" / "config.yaml", trusted_env=study.search.env)
                for i in (0, 1)] for f in folders.values()]  # fmt: skip
    seeds = [[config.seed for config in of_one] for of_one in configs]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *(trial.user_attrs["seed"] for trial in study.trials)}) == 5
    assert {config.n_timesteps for of_one in configs for config in of_one} == {80}
    rates = [[config.hyperparameters["learning_rate"] for config in of_one] for of_one in configs]
    assert rates == [[3e-4] * 2, [best.params["learning_rate"]] * 2]
    episodes = [[config.evaluation.seed for config in of_one] for of_one in configs]
    assert episodes[0] == episodes[1]
    assert len({*episodes[0], study.search.evaluation_seed()}) == 3
    for candidate in several:
        lines = [(folders[candidate.name] / f"seed-0{i}" / "result.jsonl").read_text().splitlines() for i in (0, 1)]
        last = [json.loads(line[-1])["evaluation"]["env_runners"]["episode_return_mean"] for line in lines]
        assert list(candidate.values.values()) == last


def test_what_was_trained_before_is_not_trained_again(study: TuneStudy) -> None:
    race(study, worth(lambda rate, index: float(index) + (rate or 0.0)), best=1, seeds=2)
    before = [training.number for training in study.finals.trials]
    race(study, worth(lambda rate, index: float(index) + (rate or 0.0)), best=1, seeds=3)
    assert [training.user_attrs["seed_index"] for training in study.finals.trials[len(before) :]] == [2, 2]


def test_a_race_that_was_interrupted_goes_on(study: TuneStudy) -> None:
    plan_race(study, 1, 2)
    assert enqueue_missing(study)
    assert study.finals.claim("one") is not None
    again = prepare_study(LOCAL_ENV, study="s")  # the worker is dead
    assert decide(again) is None
    assert "not trained to their end" in outcome_words(again)
    assert not any(path.name == "best.yml" for path in write_files(again))
    race(again, worth(lambda rate, index: float(index)), best=1, seeds=2)
    states = [training.state for training in again.finals.trials]
    assert states.count(TrialState.COMPLETE) == 4
    assert states.count(TrialState.FAIL) == 1
    assert [(len(each.values), each.n_failed) for each in candidates(again)] == [(2, 0), (2, 0)]


@pytest.mark.usefixtures("quick_searches")
def test_a_killed_worker_is_replaced_and_its_training_begun_again(in_tmp: Path) -> None:
    study = prepare_study("arena", **{**SMALL, "hparams": {"arena": {"n_timesteps": 3_000}}, "trials": 1})
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        running = [each for each in study.finals.trials if each.state == TrialState.RUNNING]
        processes = list(writing_to(study.folder / "workers").values())
        if running and processes and not killed:
            killed.append(processes[0])
            os.kill(killed[0], signal.SIGKILL)

    work_on(study, pretend)
    plan_race(study, 1, 2)
    run_finals(study, watch=kill_one)
    assert killed
    assert [(len(each.values), each.n_failed) for each in candidates(study)] == [(2, 0), (2, 0)]


def test_a_worker_whose_search_ends_begins_nothing_more(study: TuneStudy) -> None:
    plan_race(study, 1, 2)
    enqueue_missing(study)
    wanted = iter([True, False])
    work(study, study.finals, run_final, "w", worth(lambda rate, index: 1.0), is_wanted=lambda: next(wanted))
    assert [len(each.values) for each in candidates(study)] == [1, 0]


def test_a_training_that_fails_is_counted_and_keeps_its_traceback(study: TuneStudy) -> None:
    race(study, worth(lambda rate, index: None if rate and index == 1 else float(index)), best=1, seeds=3)
    preset, trial = candidates(study)
    assert (len(preset.values), preset.n_failed) == (2, 0)
    assert [*trial.values.values()] == [0.0, None]
    (file,) = study.folder.glob("confirm/trial-*/seed-01/traceback.txt")
    assert "it broke" in file.read_text()
    decision = decide(study)
    assert decision is not None
    assert decision.trial is None
    assert decision.sentence == "The preset is kept: all trials failed that were trained again for 80 env steps."


def test_a_preset_that_always_fails_is_not_used(study: TuneStudy) -> None:
    race(study, worth(lambda rate, index: float(index) if rate else None), best=1, seeds=2)
    decision = decide(study)
    assert decision is not None
    assert decision.trial == study.best_trial
    assert decision.sentence == (
        f"The preset failed in 2 of its trainings of 80 env steps; trial {study.best_trial.number} is used."
    )


# --- What is said -----------------------------------------------------------------------------------------------------


def test_a_trial_that_is_better_is_used(study: TuneStudy) -> None:
    best = study.best_trial

    def value(rate: float | None, index: int) -> float:  # in the race it is 10 ahead, with other seeds 8
        return index % 1000 + (1.0 if rate != best.params["learning_rate"] else 9.0 if index >= 1000 else 11.0)

    race(study, worth(value), seeds=4)
    sentence = (
        f"Trial {best.number} is better than the preset: 10.50 against 2.50 (gain 8.00, 90 % interval 6.23 to 9.77), "
        "trained for 80 env steps with 4 fresh seeds each that had no part in the choice."
    )
    assert [row[:5] for row in rows(race_of_study(study))[-2:]] == [
        ["preset again", "4", "2.50", "0.45 to 4.55", ""],
        [f"trial {best.number} again", "4", "10.50", "8.45 to 12.55", "8.00"],
    ]
    assert outcome_words(study) == sentence
    files = write_files(study)
    assert [path.name for path in files] == ["trials.csv", "confirm.csv", "best.yml", "report.html"]
    text = (study.folder / "best.yml").read_text()
    assert text.startswith(f"# Study s: {sentence}\n# Trial {best.number}: ")
    config = load_config(None, hparams=study.folder / "best.yml", trusted_env=study.search.env)
    assert (config.n_timesteps, config.seed) == (80, None)
    assert config.hyperparameters["learning_rate"] == best.params["learning_rate"]
    found = rows_of(study.folder / "confirm.csv")
    assert [(row["candidate"], row["objective"], row["error"]) for row in found[:4]] == [
        ("preset", f"{value}", "") for value in (1.0, 2.0, 3.0, 4.0)
    ]
    assert [row["folder"] for row in found[4:8]] == [f"confirm/preset/seed-100{number}" for number in range(4)]
    assert found[8]["folder"].startswith("confirm/trial-")
    assert sentence.replace("'", "&#x27;") in (study.folder / "report.html").read_text()


def test_without_a_clear_winner_the_preset_is_kept(study: TuneStudy) -> None:
    race(study, worth(lambda rate, index: index % 2 * 10 + (1.0 if rate else 0.0)), best=1, seeds=10)
    number = study.best_trial.number
    assert outcome_words(study) == (
        f"The preset is kept: no trial is clearly better. The best, trial {number}, has 6.00 against 5.00 (gain "
        "1.00, 90 % interval -3.09 to 5.09), trained for 80 env steps with 10 fresh seeds each."
    )
    write_files(study)
    config = load_config(None, hparams=study.folder / "best.yml", trusted_env=study.search.env)
    assert config.hyperparameters["learning_rate"] == 3e-4
    table = rows(race_of_study(study))
    assert table[0][:3] == ["preset", "10", "5.00"]
    assert table[1][:3] + table[1][4:] == [f"trial {number}", "10", "6.00", "1.00", "-3.09 to 5.09", "undecided"]


def race_of_study(study: TuneStudy) -> Race:
    from marl_sb3.tools.tuning.finals import race_of

    found = race_of(study)
    assert found is not None
    return found


def test_a_trial_that_was_left_out_says_so(study: TuneStudy) -> None:
    race(study, worth(lambda rate, index: index - (10.0 if rate else 0.0)), best=1, seeds=10)
    assert rows(race_of_study(study))[1][1:3] + rows(race_of_study(study))[1][-1:] == ["4", "-8.50", "left out"]


def test_of_an_interrupted_race_those_that_may_still_win_are_racing() -> None:
    level, far = [10.0, 11.0, 12.0, 13.0], [0.0, 1.0, 2.0, 3.0]
    waiting = race_with({None: level, 1: [20.0, 21.0], 2: [20.0, 21.0, 22.0, 23.0], 3: []}, seeds=10)
    assert [row[-1] for row in rows(waiting)] == ["", *["still racing"] * 3]
    after_a_look = race_with({None: level, 1: far, 2: [20.0, 21.0, 22.0, 23.0]}, seeds=10)
    assert [row[-1] for row in rows(after_a_look)] == ["", "left out", "still racing"]


def test_without_a_race_the_best_trial_is_used_and_said_to_be_untested(study: TuneStudy) -> None:
    plan_race(study, 3, 0)
    decision = decide(study)
    assert decision is not None
    assert decision.trial == study.best_trial
    assert decision.sentence.endswith("the best of many values is partly due to chance.")


def test_the_preset_is_kept_if_all_other_trials_are_pruned(study: TuneStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = study.best_trial
    monkeypatch.setattr(TuneStudy, "completed", lambda self: [preset])
    monkeypatch.setattr(type(study.search), "preset_params", lambda self: preset.params)
    plan_race(study, 3, 10)
    decision = decide(study)
    assert decision is not None
    assert decision.trial is None
    assert decision.sentence == "The preset is kept: no other trial was trained to its end."


def test_the_best_value_without_its_luck(study: TuneStudy) -> None:
    best, values = study.best_trial, [trial.values[0] for trial in study.completed()]
    assert shrunk_value(study, best) is None  # nothing tells the noise
    race(study, worth(lambda rate, index: index / 10), best=1, seeds=2)  # 0 and 0.1: a variance of 0.005
    share = 1 - 0.005 / np.var(values, ddof=1)
    assert shrunk_value(study, best) == pytest.approx(np.mean(values) + share * (max(values) - np.mean(values)))


def test_what_a_search_may_cost(in_tmp: Path) -> None:
    study = prepare_study(LOCAL_ENV, **{**SMALL, "trials": 50}, study="cost")
    assert cost_words(study, 3, 10) == (
        "50 trials of up to 80 env steps, then the best 3 and the preset with up to 10 fresh seeds each, 80 env steps, "
        "and a trial that is better, and the preset, with 10 others: 8,800 env steps at most"
    )
    assert cost_words(study, 3, 0) == "50 trials of up to 80 env steps: 4,000 env steps at most"
    few = prepare_study(LOCAL_ENV, **{**SMALL, "trials": 2}, study="few")
    assert cost_words(few, None, None) == (
        "2 trials of up to 80 env steps: 160 env steps at most; too few for a race against the preset that costs no "
        "more, but for --confirm-seeds K"
    )


def test_the_function_of_the_library_races_too(in_tmp: Path) -> None:
    study = marl_sb3.tune(LOCAL_ENV, **SMALL, confirm_seeds=2)
    assert next(candidate.name for candidate in candidates(study)) == "preset"
    assert "2 fresh seeds each" in (study.folder / "best.yml").read_text()


def test_nothing_races_before_a_trial_was_trained(in_tmp: Path) -> None:
    study = prepare_study(LOCAL_ENV, **SMALL)
    plan_race(study, 3, 10)
    run_finals(study)
    assert candidates(study) == []
    assert decide(study) is None


def test_a_preset_that_cannot_be_trained_is_refused_before_the_search(in_tmp: Path) -> None:
    options = {**SMALL, "settings": {**SMALL["settings"], "n_timesteps": 70}}
    with pytest.raises(ConfigError, match=r"the preset: a finalist's training of 70 env steps is too short for its 2"):
        marl_sb3.tune("arena", **options, confirm_seeds=2)
    assert not list(in_tmp.glob("runs/tune/*/*/trials"))
