"""The best trials are trained again with fresh seeds, next to the preset, and what came out stands everywhere."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from searches import pretend, work_on
from waiting import writing_to

import marl_sb3
from marl_sb3.config import load_config
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.errors import ConfigError
from marl_sb3.tuning.api import prepare_study
from marl_sb3.tuning.confirmed import Candidate, confirmed, confirmed_line, confirmed_rows, outcomes, winner
from marl_sb3.tuning.jobs.trials import ConfirmationQueue, confirm
from marl_sb3.tuning.jobs.workers import work
from marl_sb3.tuning.report import write_files
from marl_sb3.tuning.study import TuneStudy

SMALL: dict[str, Any] = {
    "space": {"learning_rate": {"log_uniform": [1e-4, 1e-2]}},
    "settings": {"n_envs": 2, "n_steps": 20, "batch_size": 20, "n_epochs": 1, "policy_kwargs.net_arch": [8]},
    "timesteps": 80, "evaluations": 2, "evaluation_episodes": 1, "pruner": "none", "trials": 2,
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


def put(study: TuneStudy, candidate: str, *values: float | None, first_seed: int = 0) -> None:
    """As if it had been trained again, with a failure where the value is None."""
    for index, value in enumerate(values, start=first_seed):
        folder = study.folder / "confirm" / candidate / f"seed-{index:02d}"
        folder.mkdir(parents=True)
        outcome = {"error": "it broke"} if value is None else {"objective": value}
        (folder / "objective.json").write_text(json.dumps({"seed": index, **outcome}))


def test_the_preset_and_the_best_are_trained_with_the_same_fresh_seeds(study: TuneStudy) -> None:
    seen: list[tuple[int, int]] = []
    candidates = confirm(study, best=1, seeds=2, watch=lambda done, total: seen.append((done, total)))
    best = study.completed()[0]
    assert [candidate.name for candidate in candidates] == ["preset", f"trial {best.number}"]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4), (4, 4)]
    folders = {c: study.folder / "confirm" / c.name.replace(" ", "-") for c in candidates}
    configs = [[load_config(None, hparams=f / f"seed-0{i}" / "config.yaml", trusted_env=study.search.env)
                for i in (0, 1)] for f in folders.values()]  # fmt: skip
    seeds = [[config.seed for config in of_one] for of_one in configs]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *(trial.user_attrs["seed"] for trial in study.trials)}) == 5
    rates = [[config.hyperparameters["learning_rate"] for config in of_one] for of_one in configs]
    assert rates == [[3e-4] * 2, [best.params["learning_rate"]] * 2]
    episodes = [[config.evaluation.seed for config in of_one] for of_one in configs]
    assert episodes[0] == episodes[1]
    assert len({*episodes[0], study.search.evaluation_seed()}) == 3
    for candidate, folder in folders.items():
        rows = [(folder / f"seed-0{i}" / "result.jsonl").read_text().splitlines()[-1] for i in (0, 1)]
        last = [json.loads(row)["evaluation"]["env_runners"]["episode_return_mean"] for row in rows]
        assert list(candidate.values) == last


def test_what_was_trained_before_is_not_trained_again(study: TuneStudy) -> None:
    confirm(study, best=1, seeds=1)
    written = {path: path.stat().st_mtime_ns for path in study.folder.glob("confirm/*/*/result.jsonl")}
    half = study.folder / "confirm" / "preset" / "seed-01"
    half.mkdir()
    (half / "result.jsonl").write_text("half a line")  # of a process that was killed
    candidates = confirm(study, best=1, seeds=2)
    assert [len(candidate.values) for candidate in candidates] == [2, 2]
    assert len(written) == 2
    assert {path: path.stat().st_mtime_ns for path in written} == written


@pytest.mark.usefixtures("forked_workers")
def test_a_killed_worker_is_replaced_and_its_training_begun_again(in_tmp: Path) -> None:
    study = prepare_study("arena", **{**SMALL, "timesteps": 2_000})
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        logs = study.folder.glob("confirm/*/*/result.jsonl")
        running = [path for path in logs if not path.with_name("objective.json").exists()]
        if running and not killed:
            killed.extend(writing_to(study.folder / "workers").values())
            os.kill(killed[0], signal.SIGKILL)

    work_on(study, pretend)
    candidates = confirm(study, best=1, seeds=2, watch=kill_one)
    assert killed
    assert [(len(candidate.values), candidate.failed) for candidate in candidates] == [(2, 0), (2, 0)]


@pytest.mark.usefixtures("forked_workers")
def test_what_another_worker_trains_is_waited_for(in_tmp: Path) -> None:
    study = prepare_study("arena", **{**SMALL, "trials": 1})
    work_on(study, pretend)
    held = FileLock(study.folder / "confirm" / "preset" / "seed-00.lock")
    (study.folder / "confirm" / "preset").mkdir(parents=True)
    held.acquire()
    seen: list[tuple[int, int]] = []

    def let_go(done: int, total: int) -> None:
        seen.append((done, total))
        if seen.count((1, 2)) == 4:  # the worker has found nothing else to do
            held.release()

    candidates = confirm(study, seeds=1, watch=let_go)
    assert [len(candidate.values) for candidate in candidates] == [1, 1]
    assert seen.count((1, 2)) >= 4


def test_a_worker_whose_search_is_gone_begins_nothing_more(study: TuneStudy) -> None:
    wanted = iter([True, False])
    assert work(ConfirmationQueue(study, [0], 2), "w", is_wanted=lambda: next(wanted))
    assert [trial for trial, _, _ in outcomes(study)] == [None]


def test_an_outcome_that_cannot_be_read_is_none(study: TuneStudy) -> None:
    put(study, "preset", 1.0)
    put(study, f"trial-{study.best_trial.number}", 2.0)
    assert confirmed(study) != []
    (path,) = study.folder.glob("confirm/preset/seed-00/objective.json")
    for text in ("", "{", "[]", "3", '{"seed": 1}', '{"objective": 1.0}', '{"seed": 1, "objective": NaN}'):
        path.write_text(text)
        assert confirmed(study) == []
    assert [len(candidate.values) for candidate in confirm(study, seeds=1)] == [1, 1]


def test_a_training_that_fails_is_counted_and_keeps_its_traceback(in_tmp: Path) -> None:
    is_broken: list[bool] = []

    def sometimes(**kwargs: Any) -> Any:
        if is_broken:
            raise RuntimeError("the disk is on fire")
        return ArenaEnv(**kwargs)

    study = prepare_study(sometimes, **SMALL)
    work_on(study, pretend)
    confirm(study, seeds=1)

    def breaks(done: int, total: int) -> None:
        is_broken[:] = [True] * (done == 3)

    preset, trial = confirm(study, seeds=2, watch=breaks)
    assert (len(preset.values), preset.failed) == (2, 0)
    assert (len(trial.values), trial.failed) == (1, 1)
    assert confirmed_rows([preset, trial], "max")[1][1] == "1, 1 failed"
    (file,) = study.folder.glob("confirm/trial-*/seed-01/traceback.txt")
    assert "the disk is on fire" in file.read_text()


def test_the_winner_is_the_best_of_those_trained_again(study: TuneStudy) -> None:
    first, second, third = (trial.number for trial in study.completed())
    found = winner(study)
    assert found is not None
    assert (found[0].number, found[1]) == (first, None)
    put(study, f"trial-{second}", 3.0, 5.0)
    assert confirmed(study) == []  # nothing to compare with
    put(study, "preset", 1.0, 2.0)
    found = winner(study)
    assert found is not None
    assert (found[0].number, found[1]) == (first, None)  # it has not been trained again
    put(study, f"trial-{first}", 3.0, 1.0)
    found = winner(study)
    assert found == (study.completed()[1], Candidate(second, (3.0, 5.0)))
    assert [candidate.trial for candidate in confirmed(study)] == [None, second, first]
    put(study, f"trial-{third}", 9.0)  # seldom, but well
    assert [candidate.trial for candidate in confirmed(study)] == [None, second, first, third]
    put(study, f"trial-{second}", 3.0, None, first_seed=2)  # failed as no other has
    put(study, f"trial-{first}", 1.0, 1.0, first_seed=2)
    assert [candidate.trial for candidate in confirmed(study)] == [None, first, second, third]


def test_what_came_out_stands_in_the_files(study: TuneStudy) -> None:
    best = study.best_trial.number
    put(study, "preset", 1.0, 2.0, 3.0)
    put(study, f"trial-{best}", 11.0, 12.0, None)
    files = [path.name for path in write_files(study)]
    assert files == ["trials.csv", "confirm.csv", "best.yml", "report.html"]
    with (study.folder / "confirm.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["candidate"], row["seed"], row["objective"], row["error"]) for row in rows] == [
        ("preset", "0", "1.0", ""), ("preset", "1", "2.0", ""), ("preset", "2", "3.0", ""),
        (f"trial {best}", "0", "11.0", ""), (f"trial {best}", "1", "12.0", ""), (f"trial {best}", "2", "", "it broke"),
    ]  # fmt: skip
    assert rows[3]["folder"] == f"confirm/trial-{best}/seed-00"
    said = (
        "# Trained again: with 2, 1 failed fresh seeds 11.50 (5.15 to 17.85), the preset 2.00 (-0.48 to 4.48): better"
    )
    assert (study.folder / "best.yml").read_text().splitlines()[1].startswith(said)
    page = (study.folder / "report.html").read_text()
    assert f"<td>trial {best}</td><td>2, 1 failed</td><td>11.50</td><td>5.15 to 17.85</td>" in page


def test_where_less_is_better_figures_keep_their_signs() -> None:
    candidates = [Candidate(None, (5.0, 6.0, 7.0)), Candidate(4, (1.0, 2.0, 3.0))]
    preset, trial = confirmed_rows(candidates, "min")
    assert preset == ["preset", "3", "6.00", "3.52 to 8.48", "", ""]
    assert trial == ["trial 4", "3", "2.00", "-0.48 to 4.48", "100% (29% to 100%)", "better"]
    assert confirmed_rows(candidates, "max")[1][4:] == ["0% (0% to 71%)", "worse"]
    assert confirmed_line(candidates, 4, "min") == (
        "with 3 fresh seeds 2.00 (-0.48 to 4.48), the preset 6.00 (3.52 to 8.48): better; better in 100% (29% to "
        "100%) of pairs"
    )


def test_the_function_of_the_library_confirms_too(in_tmp: Path) -> None:
    study = marl_sb3.tune(LOCAL_ENV, **{**SMALL, "trials": 1}, confirm_seeds=1)
    assert [candidate.name for candidate in confirmed(study)] == ["preset", "trial 0"]
    assert "# Trained again: with 1 fresh seeds" in (study.folder / "best.yml").read_text()


def test_nothing_is_confirmed_before_a_trial_was_trained(in_tmp: Path) -> None:
    assert confirm(prepare_study("arena", **SMALL)) == []


def test_a_preset_that_cannot_be_trained_is_refused_before_the_search(in_tmp: Path) -> None:
    settings = {**SMALL["settings"]}
    del settings["n_steps"]
    options = {**SMALL, "settings": settings, "space": {"n_steps": {"choices": [10, 20]}}}
    with pytest.raises(ConfigError, match=r"the preset: a trial of \d+ env steps is too short"):
        marl_sb3.tune("arena", **options, confirm_seeds=1)
    assert not list(in_tmp.glob("runs/tune/*/*/trials"))
