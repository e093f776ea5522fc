"""A search finds settings, loses at most what ran when something was killed, and refuses nonsense beforehand."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

import marl_sb3
from marl_sb3.checkpoint import CheckpointFolder
from marl_sb3.errors import ConfigError
from marl_sb3.tuning.api import prepare_study
from marl_sb3.tuning.objective import Objective
from marl_sb3.tuning.run_search import run_search
from marl_sb3.tuning.storage import SafeJournal
from marl_sb3.tuning.study import ERROR, RETRY_OF, WORKER, StudyOfTrials
from marl_sb3.tuning.worker import work_on_trials

SETTINGS = {
    "n_envs": 4,
    "n_steps": 20,
    "n_epochs": 1,
    "env.max_timesteps": 15,
    "policy_kwargs.net_arch": [8],
}
SPACE = {"batch_size": {"choices": [10, 20]}, "learning_rate": {"log_uniform": [1e-4, 1e-2]}}
SMALL: dict[str, Any] = {
    "space": SPACE, "settings": SETTINGS, "timesteps": 160, "evaluations": 2, "evaluation_episodes": 2, "trials": 3,
}  # fmt: skip


def finished(study: StudyOfTrials) -> list[tuple[str, Any, dict[str, Any]]]:
    return [(trial.state.name, trial.value, trial.params) for trial in study.trials()]


def in_this_process(**options: Any) -> StudyOfTrials:
    """A whole search without worker processes."""
    study = prepare_study(**{**SMALL, "pruner": "none", **options})
    with study.working("here"):
        assert work_on_trials(study, "here")
    return study


def test_the_same_search_tries_the_same_and_finds_the_same(in_tmp: Path) -> None:
    one, other = in_this_process(study="one"), in_this_process(study="other")
    assert finished(one) == finished(other)
    assert [state for state, _, _ in finished(one)] == ["COMPLETE"] * 3
    assert {params["batch_size"] for _, _, params in finished(one)} <= {10, 20}
    assert finished(in_this_process(study="third", seed=1)) != finished(one)


def test_a_trial_is_a_run_that_can_be_repeated(in_tmp: Path) -> None:
    study = in_this_process(trials=1)
    (trial,) = study.trials()
    folder = study.folder_of(trial)
    again = marl_sb3.train(hparams=folder / "config.yaml", run_dir="again")
    theirs, ours = (CheckpointFolder(path / "checkpoints").load() for path in (folder, again.folder))
    assert all(np.array_equal(a, ours.tensors[f][n]) for f, group in theirs.tensors.items() for n, a in group.items())
    last = json.loads((folder / "result.jsonl").read_text().splitlines()[-1])
    assert trial.value == last["evaluation"]["env_runners"]["episode_return_mean"]
    assert trial.user_attrs["seed"] == again.config.seed
    assert study.checkpoints() == {0: folder / "checkpoints"}
    assert study.best_config() == study.config_of(trial)


def test_a_study_goes_on_where_it_was(in_tmp: Path) -> None:
    whole = in_this_process(study="whole", trials=4)
    in_this_process(study="parts", trials=2)
    assert finished(in_this_process(study="parts", trials=4)) == finished(whole)


def test_a_grid_is_tried_exactly(in_tmp: Path) -> None:
    study = in_this_process(space=None, grid=["minibatch_size=10,20", "gamma=0.9,0.99"], trials=None)
    tried = [(trial.params["batch_size"], trial.params["gamma"]) for trial in study.trials()]
    assert tried == [(10, 0.9), (10, 0.99), (20, 0.9), (20, 0.99)]
    configs = [study.config_of(trial) for trial in study.trials()]
    assert [config.hyperparameters["batch_size"] for config in configs] == [10, 10, 20, 20]


def test_a_trial_that_fails_is_failed_and_says_why(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from marl_sb3.tuning import trial as module

    original, calls = module.prepare, []

    def fails_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("the disk is on fire")
        return original(*arguments)

    monkeypatch.setattr(module, "prepare", fails_once)
    study = in_this_process()
    assert [trial.state.name for trial in study.trials()] == ["COMPLETE", "FAIL", "COMPLETE"]
    failed = study.trials()[1]
    assert failed.user_attrs[ERROR] == "RuntimeError: the disk is on fire"
    assert "the disk is on fire" in (study.folder_of(failed) / "traceback.txt").read_text()


def test_hopeless_trials_are_given_up(in_tmp: Path) -> None:
    class Always(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return trial.number == 1

    study = prepare_study(**SMALL)
    from marl_sb3.tuning.trial import run_trial

    study.optuna.pruner = Always()
    while (trial := study.next_trial("here")) is not None:
        run_trial(study, trial)
    assert [trial.state.name for trial in study.trials()] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert len(study.trials()[1].intermediate_values) == 1


def test_a_killed_worker_loses_its_trial_alone_which_is_tried_once_again(in_tmp: Path) -> None:
    study = prepare_study(**{**SMALL, "timesteps": 16_000, "pruner": "none"})
    killed: list[int] = []

    def kill_one(watched: StudyOfTrials) -> None:
        running = [trial for trial in watched.trials() if trial.state == TrialState.RUNNING]
        if running and not killed:
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal() and _is_worker(entry, running[0].user_attrs[WORKER]):
                    killed.append(int(entry.name))
                    os.kill(int(entry.name), signal.SIGKILL)

    run_search(study, workers=2, watch=kill_one)
    states = [trial.state.name for trial in study.trials()]
    retries = [trial for trial in study.trials() if RETRY_OF in trial.user_attrs]
    assert len(killed) == 1
    assert states.count("COMPLETE") == 3
    assert states.count("FAIL") == len(retries) == 1
    (failed,) = [trial for trial in study.trials() if trial.state == TrialState.FAIL]
    assert failed.user_attrs[ERROR] == "its process ended"
    assert retries[0].user_attrs[RETRY_OF] == failed.number
    assert retries[0].params.items() >= failed.params.items()


def _is_worker(entry: Path, name: str) -> bool:
    try:
        return name.encode() in (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def test_half_a_line_of_a_killed_writer_does_not_end_the_study(in_tmp: Path) -> None:
    in_this_process(study="s", trials=2)
    journal = next(in_tmp.glob("runs/tune/arena/s/journal.log"))
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "work')
    study = in_this_process(study="s", trials=3)
    assert [trial.state.name for trial in study.trials()] == ["COMPLETE"] * 3


def test_a_journal_of_whole_lines_is_left_as_it_is(tmp_path: Path) -> None:
    journal = SafeJournal(tmp_path / "log")
    journal.append_logs([{"a": 1}])
    journal.append_logs([{"a": 2}])
    assert list(journal.read_logs(0)) == [{"a": 1}, {"a": 2}]


def test_sqlite_holds_a_study_too(in_tmp: Path) -> None:
    study = in_this_process(storage=f"sqlite:///{in_tmp / 'study.db'}", trials=2)
    assert [trial.state.name for trial in study.trials()] == ["COMPLETE"] * 2
    assert not (study.folder / "journal.log").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "--trials is 0; accepted: a whole number of at least 1"),
        ({"space": {"bach_size": {"choices": [1]}}}, "unknown hyperparameter 'bach_size'"),
        ({"space": {"batch_size": {"choices": [20, 4000]}}}, "batch_size is 4000, larger than its rollout"),
        ({"space": {"gamma": {"uniform": [0.9, 1.5]}}}, r"gamma is 1.5; .*\(in a trial with gamma=1.5\)"),
        ({"space": {"gamma": {"uniform": [0.9]}}}, "accepted: two numbers"),
        ({"timesteps": 159}, "159 env steps has fewer rollouts, of 80 env steps each, than its 2 evaluations"),
        ({"storage": "sqlite:////nowhere/at/all.db"}, "--storage sqlite.* cannot be opened"),
        ({"storage": "nonsense"}, "--storage nonsense cannot be opened"),
        ({"objective": "agent7"}, r"--objective is 'agent7'; accepted: sum, min, an agent \(agent1, agent2\)"),
        ({"mode": "largest"}, "--mode is 'largest'; accepted: max or min"),
        ({"over": "mean"}, "--over is 'mean'; accepted: last, best or mean_of_last_K"),
        ({"sampler": "bayes"}, "--sampler is 'bayes'; accepted: tpe, random, grid, gp"),
        ({"pruner": "x"}, "--pruner is 'x'; accepted: median, asha, none"),
        ({"sampler": "grid"}, "a grid needs choices; learning_rate has a range"),
        ({"grid": ["gamma=0.9"]}, "a space and a grid are given"),
        ({"study": "../elsewhere"}, "--study is '../elsewhere'"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(options: dict[str, Any], message: str, in_tmp: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare_study(**{**SMALL, **options})
    assert not list(in_tmp.glob("runs/tune/*/*/trials"))


def test_a_study_with_another_space_is_not_mixed(in_tmp: Path) -> None:
    prepare_study(**SMALL, study="s")
    with pytest.raises(ConfigError, match="study 's' exists with another space; accepted: another --study name"):
        prepare_study(**{**SMALL, "space": {"gamma": {"uniform": [0.9, 0.99]}}}, study="s")


def test_a_study_is_run_by_one_search_at_a_time(in_tmp: Path) -> None:
    study = prepare_study(**SMALL)

    def again(_: StudyOfTrials) -> None:
        with pytest.raises(ConfigError, match="is in use: another process is running this study"):
            run_search(study)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_search(study, watch=again)


# --- Objectives ------------------------------------------------------------------------------------------------------

EVALUATED = {
    "evaluation": {
        "env_runners": {
            "episode_return_mean": 5.0,
            "agent_episode_returns_mean": {"a": 7.0, "b": -2.0},
            "custom_metrics": {"goals_mean": 3.0},
        }
    },
    "env_runners": {"episode_return_mean": 4.0},
}


@pytest.mark.parametrize(
    ("of", "value"),
    [("sum", 5.0), ("min", -2.0), ("a", 7.0), ("goals", 3.0), ("env_runners/episode_return_mean", 4.0)],
)
def test_an_objective_is_a_number_of_the_evaluation(of: str, value: float) -> None:
    assert Objective(of).value(EVALUATED) == value


@pytest.mark.parametrize(
    ("over", "mode", "value"),
    [("last", "max", 2.0), ("best", "max", 4.0), ("best", "min", 1.0), ("mean_of_last_2", "max", 3.0),
     ("mean_of_last_9", "max", 2.5)],
)  # fmt: skip
def test_a_trial_has_one_number(over: str, mode: str, value: float) -> None:
    assert Objective(over=over, mode=mode).final([3.0, 1.0, 4.0, 2.0]) == value
