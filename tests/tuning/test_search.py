"""A search finds settings, loses at most what ran when something was killed, and refuses nonsense beforehand."""

from __future__ import annotations

import errno
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from forked import ForkServer
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import marl_sb3
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.errors import ConfigError
from marl_sb3.runs import prepare as prepare_module
from marl_sb3.storage.checkpoint_folder import CheckpointFolder
from marl_sb3.tuning.api import prepare_study
from marl_sb3.tuning.jobs.queue import work
from marl_sb3.tuning.jobs.trials import TrialQueue, run_trial, run_trials
from marl_sb3.tuning.jobs.workers import SearchError, Workers
from marl_sb3.tuning.objective import Objective
from marl_sb3.tuning.search import Search, read_search
from marl_sb3.tuning.space import parse_space
from marl_sb3.tuning.storage import SafeJournal, open_storage
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial_attributes import DEATHS, ERROR, INDEX, INTERRUPTED, KILLED, RETRY_OF, WORKER

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


def work_on(study: TuneStudy) -> None:
    """All of its trials, without worker processes."""
    with study.working("here"):
        assert work(TrialQueue(study), "here")


def finished(study: TuneStudy) -> list[tuple[str, Any, dict[str, Any]]]:
    return [(trial.state.name, trial.value, trial.params) for trial in study.trials]


def in_this_process(**options: Any) -> TuneStudy:
    """A whole search without worker processes."""
    study = prepare_study(**{**SMALL, "pruner": "none", **options})
    work_on(study)
    return study


def test_the_same_search_tries_the_same_and_finds_the_same(in_tmp: Path) -> None:
    one, other = in_this_process(study="one"), in_this_process(study="other")
    assert finished(one) == finished(other)
    assert [state for state, _, _ in finished(one)] == ["COMPLETE"] * 3
    assert {params["batch_size"] for _, _, params in finished(one)} <= {10, 20}
    assert finished(in_this_process(study="third", seed=1)) != finished(one)


def test_a_trial_is_a_run_that_can_be_repeated(in_tmp: Path) -> None:
    study = in_this_process(trials=1)
    (trial,) = study.trials
    folder = study.folder_of(trial)
    again = marl_sb3.train(hparams=folder / "config.yaml", run_dir="again")
    theirs, ours = (CheckpointFolder(path / "checkpoints").load() for path in (folder, again.folder))
    assert all(np.array_equal(a, ours.tensors[f][n]) for f, group in theirs.tensors.items() for n, a in group.items())
    last = json.loads((folder / "result.jsonl").read_text().splitlines()[-1])
    assert trial.value == last["evaluation"]["env_runners"]["episode_return_mean"]
    assert trial.user_attrs["seed"] == again.config.seed
    assert study.checkpoints() == {0: folder / "checkpoints"}
    assert study.best_trial == trial
    assert study.best_config() == study.config_of(trial)


def test_a_study_goes_on_where_it_was(in_tmp: Path) -> None:
    whole = in_this_process(study="whole", trials=3)
    in_this_process(study="parts", trials=1)
    assert finished(in_this_process(study="parts", trials=3)) == finished(whole)


def test_a_study_goes_on_with_what_it_was_begun_with(in_tmp: Path) -> None:
    begun = prepare_study(**{**SMALL, "space": None, "settings": {**SETTINGS, "batch_size": 20}}, study="s", seed=3,
        objective="min", over="best", sampler="random", pruner="asha", policies="per_agent")  # fmt: skip
    assert prepare_study(study="s").search == begun.search
    assert prepare_study("arena", study="s", trials=7).search == replace(begun.search, trials=7)
    with pytest.raises(ConfigError, match="study 's' exists with another seed, objective; accepted"):
        prepare_study(study="s", seed=4, objective="sum")


def test_a_file_of_settings_is_what_is_searched_and_compared_with(
    in_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = in_tmp / "mine.yml"
    file.write_text(
        "default: {lr: 1e-3, n_steps: 2e1, batch_size: 20, n_timesteps: 1e6, policy_kwargs: {net_arch: [8]}}\n"
    )
    options = {"space": {"gamma": {"uniform": [0.8, 0.9]}}, "timesteps": 1.6e2, "evaluations": 2, "trials": 1}
    study = prepare_study("arena", hparams=file, study="s", n_envs=4, device="cpu", vectorizer="sync", **options)
    assert caplog.messages == [f"{file} has no settings for env 'arena': those of its section 'default' are used"]
    file.unlink()  # the study has what it needs
    config = prepare_study(study="s").search.trial_config({}, seed=1)
    assert config.hyperparameters.items() >= {"learning_rate": 1e-3, "n_steps": 20, "batch_size": 20}.items()
    assert (config.n_envs, config.device, config.vectorizer, config.n_timesteps) == (4, "cpu", "sync", 160)
    work_on(study)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]
    with pytest.raises(ConfigError, match="study 's' exists with another hparams, n_envs; accepted"):
        prepare_study(study="s", hparams={"arena": {"n_steps": 20}}, n_envs=2)
    with pytest.raises(ConfigError, match="wants to import toy_envs:ScriptedEnv"):
        prepare_study(hparams={"toy_envs:ScriptedEnv": {}})


def test_a_study_of_an_older_version_goes_on(in_tmp: Path) -> None:
    study = prepare_study(**SMALL, study="s")
    newer = ("hparams", "n_envs", "vectorizer", "device")
    path = study.folder / "study.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in yaml.safe_load(path.read_text()).items() if k not in newer}))
    held = study.optuna.user_attrs["search"]
    study.optuna.set_user_attr("search", {name: value for name, value in held.items() if name not in newer})
    assert prepare_study(study="s").search == study.search


def test_a_study_of_another_env_is_another_study(in_tmp: Path) -> None:
    prepare_study(**SMALL, study="s")
    other = {**SMALL, "settings": {"n_envs": 4, "n_steps": 40}, "timesteps": 320}
    prepare_study("toy_envs:ScriptedEnv", **other, study="s")
    with pytest.raises(ConfigError, match="there are studies 's' of arena, toy_envs_ScriptedEnv: name the env"):
        prepare_study(study="s")
    with pytest.raises(ConfigError, match="wants to import toy_envs:ScriptedEnv: if you trust"):
        read_search(in_tmp / "runs" / "tune" / "toy_envs_ScriptedEnv" / "s")


def test_what_is_set_is_not_searched(in_tmp: Path) -> None:
    study = prepare_study(**{**SMALL, "space": None, "settings": {**SETTINGS, "minibatch_size": 20}})
    searched = [parameter.name for parameter in study.space.parameters]
    assert searched[0] == "learning_rate"
    assert not {"batch_size", "n_epochs"} & set(searched)
    assert study.search.trial_config({}, 0).hyperparameters["batch_size"] == 20
    with pytest.raises(ConfigError, match="batch_size is both set and searched; accepted: one of them"):
        prepare_study(**{**SMALL, "settings": {**SETTINGS, "batch_size": 20}})
    with pytest.raises(ConfigError, match="nothing to choose: batch_size, learning_rate"):
        prepare_study("CartPole-v1", settings={"batch_size": 20, "lr": 1e-3})


def test_an_uneven_minibatch_is_said_once(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare_study(**{**SMALL, "space": {"batch_size": {"choices": [10, 30, 50]}, "gamma": {"uniform": [0.8, 0.9]}}})
    assert caplog.messages == [
        "policy shared: the last minibatch of an epoch is smaller where batch_size is 30, 50: a rollout has 160 agent "
        "steps"
    ]


def test_each_policy_may_have_values_of_its_own(in_tmp: Path) -> None:
    space = {"agent1.learning_rate": {"log_uniform": [1e-4, 1e-2]}, "agent2.lr": {"choices": [1e-3]}}
    settings = {**SETTINGS, "batch_size": 20}
    study = in_this_process(space=space, settings=settings, policies="per_agent", trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    for trial in study.trials:
        own = study.config_of(trial).policy_settings
        assert own == {
            "agent1": {"learning_rate": trial.params["agent1.learning_rate"]}, "agent2": {"learning_rate": 1e-3}
        }  # fmt: skip


def test_every_trial_is_evaluated_as_often_whatever_its_rollouts(in_tmp: Path) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "n_steps"}
    study = in_this_process(space=None, grid={"n_steps": [7, 10, 20], "batch_size": [20]}, settings=settings)
    assert [len(trial.intermediate_values) for trial in study.trials] == [2, 2, 2]
    steps = [[trial.user_attrs[f"env_steps_{k}"] for k in (1, 2)] for trial in study.trials]
    assert steps == [[84, 168], [80, 160], [80, 160]]


@pytest.mark.parametrize(("timesteps", "evaluations"), [(80, 1), (400, 5), (8000, 10)])
def test_a_short_trial_has_as_many_evaluations_as_it_has_room_for(
    timesteps: int, evaluations: int, in_tmp: Path
) -> None:
    options = {**SMALL, "timesteps": timesteps, "evaluations": None}
    assert prepare_study(**options).search.evaluations == evaluations


def test_a_grid_that_was_killed_while_it_was_set_up_is_completed(in_tmp: Path) -> None:
    grid = {"gamma": [0.8, 0.9, 0.95], "batch_size": [20]}
    study = prepare_study(**{**SMALL, "space": None}, grid=grid, study="s")
    waiting = [trial.system_attrs["fixed_params"] for trial in study.trials]
    assert len(waiting) == 3
    prepare_study(study="s")
    assert [trial.system_attrs["fixed_params"] for trial in study.trials] == waiting
    half = prepare_study(
        **{**SMALL, "space": None, "trials": 1}, grid={"gamma": [0.8], "batch_size": [20]}, study="half"
    )
    whole = TuneStudy(replace(half.search, space=study.search.space, trials=3), half.folder)
    whole.optuna.set_user_attr("search", None)
    whole.optuna.set_user_attr("search", _without_storage(whole.search))
    whole.begin()
    assert [trial.system_attrs["fixed_params"] for trial in whole.trials] == waiting


def _without_storage(search: Search) -> dict[str, Any]:
    return {name: value for name, value in search.to_plain().items() if name not in ("trials", "storage")}


def test_values_of_a_grid_may_be_close(in_tmp: Path) -> None:
    grid = {"learning_rate": [0.0003, 0.0003000001], "batch_size": [20]}
    assert len(prepare_study(**{**SMALL, "space": None, "trials": None}, grid=grid).trials) == 2


def test_a_grid_is_tried_exactly(in_tmp: Path) -> None:
    study = in_this_process(space=None, grid=["minibatch_size=10,20", "gamma=0.9,0.99"], trials=None)
    tried = [(trial.params["batch_size"], trial.params["gamma"]) for trial in study.trials]
    assert tried == [(10, 0.9), (10, 0.99), (20, 0.9), (20, 0.99)]
    configs = [study.config_of(trial) for trial in study.trials]
    assert [config.hyperparameters["batch_size"] for config in configs] == [10, 10, 20, 20]


def test_a_trial_that_fails_is_failed_and_says_why(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = prepare_module.prepare, []

    def fails_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("the disk is on fire")
        return original(*arguments)

    monkeypatch.setattr(prepare_module, "prepare", fails_once)
    study = in_this_process()
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    failed = study.trials[1]
    assert failed.user_attrs[ERROR] == "RuntimeError: the disk is on fire"
    assert "the disk is on fire" in (study.folder_of(failed) / "traceback.txt").read_text()


@pytest.mark.parametrize("error", [RuntimeError("bad \udcff thing"), SystemExit("enough")])
def test_any_error_is_that_of_its_trial(error: BaseException, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(prepare_module, "prepare", fails)
    study = in_this_process(trials=1)
    assert [trial.state.name for trial in study.trials] == ["FAIL"]
    assert study.trials[0].user_attrs[ERROR].startswith(type(error).__name__)
    assert type(error).__name__ in (study.folder_of(study.trials[0]) / "traceback.txt").read_text()


@pytest.mark.parametrize(
    "why", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["disk full", "Ctrl-C"]
)
def test_what_the_user_can_change_is_no_trials_fault(
    why: BaseException, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise why

    study = prepare_study(**{**SMALL, "trials": 1, "pruner": "none"}, study="s")
    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "prepare", fails)
        for _ in range(2):
            with pytest.raises(type(why)):
                work_on(study)
            study.requeue_dead()
    work_on(study)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "FAIL", "COMPLETE"]
    assert [trial.user_attrs.get(ERROR) for trial in study.trials] == [INTERRUPTED, INTERRUPTED, None]
    assert study.trials[2].user_attrs[DEATHS] == 0


def test_workers_that_the_search_ended_lose_no_trial(in_tmp: Path) -> None:
    study = prepare_study(**{**SMALL, "trials": 1, "pruner": "none"}, study="s")

    class Endless:
        """A worker that has begun a trial, and then takes no notice of SIGTERM."""

        def send_signal(self, number: int) -> None: ...
        def wait(self, timeout: float | None = None) -> None:
            if timeout is not None:
                raise KeyboardInterrupt  # once more, while the search waits for it

        def kill(self) -> None:
            holding.__exit__(None, None, None)

    holding = study.working("w")
    holding.__enter__()
    assert study.next_trial("w") is not None
    workers = Workers(study, 1, TrialQueue(study))
    workers._running["w"] = Endless()  # type: ignore[assignment]
    workers._stop()
    assert [trial.user_attrs.get(ERROR) for trial in study.trials] == [INTERRUPTED, None]
    assert study.trials[1].user_attrs[DEATHS] == 0


def test_a_trial_that_was_trained_to_its_end_is_not_given_up(in_tmp: Path) -> None:
    class Always(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return True

    study = prepare_study(**{**SMALL, "evaluations": 1, "trials": 1})
    study.optuna.pruner = Always()
    work_on(study)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]


def test_evaluations_of_a_training_that_was_rolled_back_do_not_count(in_tmp: Path) -> None:
    class Faulty(ArenaEnv):
        steps = 0

        def step(self, actions: Any) -> Any:
            observations, rewards, *rest = super().step(actions)
            type(self).steps += 1
            if type(self).steps == 4 * 50 + 2:  # in the third of four rollouts
                rewards = dict.fromkeys(rewards, float("nan"))
            return observations, rewards, *rest

    settings = {"n_envs": 4, "n_steps": 20, "n_epochs": 1, "on_nan": "rollback", "checkpoint_every": 1}
    options = {"settings": settings, "timesteps": 320, "evaluations": 4, "evaluation_episodes": 1, "trials": 1}
    study = prepare_study(
        Faulty, **{**SMALL, **options, "space": {"batch_size": {"choices": [20]}}, "over": "mean_of_last_4"}
    )
    Faulty.steps = 0
    work_on(study)
    (trial,) = study.trials
    rows = [json.loads(line) for line in (study.folder_of(trial) / "result.jsonl").read_text().splitlines()]
    values = [row["evaluation"]["env_runners"]["episode_return_mean"] for row in rows]
    assert trial.user_attrs.get(ERROR) is None
    assert (trial.state.name, len(values), len(trial.intermediate_values)) == ("COMPLETE", 4, 4)
    assert trial.value == pytest.approx(np.mean(values))


def test_hopeless_trials_are_given_up(in_tmp: Path) -> None:
    class Always(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return trial.number == 1

    study = prepare_study(**SMALL)
    study.optuna.pruner = Always()
    while (trial := study.next_trial("here")) is not None:
        run_trial(study, trial)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert len(study.trials[1].intermediate_values) == 1


def test_a_killed_worker_loses_its_trial_alone_which_is_tried_once_again(
    in_tmp: Path, forked_workers: ForkServer
) -> None:
    study = prepare_study(**{**SMALL, "timesteps": 8_000, "pruner": "none"})
    killed: list[int] = []

    def kill_one(watched: TuneStudy) -> None:
        running = [trial for trial in watched.trials if trial.state == TrialState.RUNNING]
        if running and not killed:
            name = running[0].user_attrs[WORKER]
            killed.extend(pid for pid, worker in forked_workers.running().items() if name in worker.arguments)
            forked_workers.send_signal(killed[0], signal.SIGKILL)

    run_trials(study, workers=2, watch=kill_one)
    states = [trial.state.name for trial in study.trials]
    retries = [trial for trial in study.trials if RETRY_OF in trial.user_attrs]
    assert len(killed) == 1
    assert states.count("COMPLETE") == 3
    assert states.count("FAIL") == len(retries) == 1
    (failed,) = [trial for trial in study.trials if trial.state == TrialState.FAIL]
    assert failed.user_attrs[ERROR] == "its process ended"
    assert retries[0].user_attrs[RETRY_OF] == failed.number
    assert retries[0].params.items() >= failed.params.items()


def test_half_a_line_of_a_killed_writer_does_not_end_the_study(in_tmp: Path) -> None:
    in_this_process(study="s", trials=1)
    journal = next(in_tmp.glob("runs/tune/arena/s/journal.log"))
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "work')
    study = in_this_process(study="s", trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2


def test_a_journal_on_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = SafeJournal(tmp_path / "journal.log")
    monkeypatch.setattr(JournalFileBackend, "append_logs", no_space)
    with pytest.raises(OSError, match=r"No space left on device: .*journal\.log"):
        journal.append_logs([])


def test_a_journal_of_whole_lines_is_left_as_it_is(tmp_path: Path) -> None:
    journal = SafeJournal(tmp_path / "log")
    journal.append_logs([{"a": 1}])
    journal.append_logs([{"a": 2}])
    assert list(journal.read_logs(0)) == [{"a": 1}, {"a": 2}]


def test_the_lock_of_a_dead_worker_gives_its_trial_back(in_tmp: Path) -> None:
    study = prepare_study(**SMALL, study="s")
    with study.working("one"):
        first = study.next_trial("one")
        assert first is not None
        assert study.requeue_dead() == 0
        assert study.in_flight()
    assert study.requeue_dead() == 1
    assert not study.in_flight()
    assert study.n_done() == 0
    with study.working("other"):
        again = study.next_trial("other")
        assert again is not None
        assert again.user_attrs.items() >= {RETRY_OF: first.number, DEATHS: 1}.items()
        study.requeue(again.number, INTERRUPTED)  # by the user: it is not the trial's fault
        once_more = study.next_trial("other")
        assert once_more is not None
        assert once_more.user_attrs.items() >= {RETRY_OF: again.number, DEATHS: 1, "index": 0}.items()
    assert study.requeue_dead() == 1
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 3  # killed twice: not tried again
    assert [trial.user_attrs[ERROR] for trial in study.trials] == [KILLED, INTERRUPTED, KILLED]
    assert study.n_done() == 1
    work_on(study)
    assert study.n_done() == 3


GRID = {"batch_size": {"choices": [10, 20]}, "learning_rate": {"choices": [1e-4, 1e-3, 1e-2]}}


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp", "grid"])
def test_a_search_that_was_killed_finds_what_it_would_have_found(sampler: str, in_tmp: Path) -> None:
    options = {"trials": 6, "sampler": sampler, "pruner": "median", "space": GRID if sampler == "grid" else SPACE}
    whole = in_this_process(study="whole", **options)
    study = prepare_study(**{**SMALL, **options}, study="killed")
    for n_drawn in (2, 0, 1):  # killed after all parameters, none or only the first were drawn
        with study.working("killed"):
            trial = study.next_trial("killed")
            assert trial is not None
            for parameter in study.space.parameters[:n_drawn]:
                parameter.suggest(trial)
        study = prepare_study(study="killed")
        with study.working("nobody kills this"):
            trial = study.next_trial("nobody kills this")
            assert trial is not None
            run_trial(study, trial)
    work_on(study)
    ended = [trial for trial in study.trials if trial.user_attrs.get(ERROR) != KILLED]
    assert sorted(
        (trial.user_attrs[INDEX], trial.params, trial.value, trial.user_attrs["seed"]) for trial in ended
    ) == [(trial.user_attrs[INDEX], trial.params, trial.value, trial.user_attrs["seed"]) for trial in whole.trials]
    assert len(study.trials) == len(whole.trials) + 3


def test_a_guess_of_the_user_is_tried_too(in_tmp: Path) -> None:
    study = prepare_study(**{**SMALL, "trials": 2, "pruner": "none"})
    study.optuna.enqueue_trial({"batch_size": 20, "learning_rate": 1e-3})
    work_on(study)
    guess, other = study.trials
    assert guess.params == {"batch_size": 20, "learning_rate": 1e-3}
    assert [trial.user_attrs["seed"] for trial in (guess, other)] == [study.search.trial_seed(i) for i in (0, 1)]


@pytest.mark.parametrize("killed_before", ["enqueue_trial", "tell"])
def test_no_trial_is_lost_by_who_is_killed_while_giving_it_back(
    killed_before: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = prepare_study(**{**SMALL, "trials": 1}, study="s")
    with study.working("one"):
        assert study.next_trial("one") is not None

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(study.optuna, killed_before, killed)
        with pytest.raises(KeyboardInterrupt):
            study.requeue_dead()
    work_on(prepare_study(study="s"))
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with Optuna's tables, which take half a second to make; only to copy."""
    path = tmp_path_factory.mktemp("database") / "study.db"
    open_storage(path.parent, f"sqlite:///{path}")
    return path


@pytest.fixture
def storage(in_tmp: Path, empty_database: Path) -> str:
    """The URL of a database of its own."""
    return f"sqlite:///{shutil.copy(empty_database, in_tmp)}"


def test_another_machine_may_take_the_trial_that_was_meant(
    in_tmp: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = prepare_study(**{**SMALL, "pruner": "none"}, study="s", storage=storage, root="here")
    there = prepare_study(**{**SMALL, "pruner": "none"}, study="s", storage=storage, root="there")
    ask, theirs = here.optuna.ask, []

    def too_late() -> Any:
        theirs.append(there.next_trial("there"))  # between our look and our grasp
        return ask()

    monkeypatch.setattr(here.optuna, "ask", too_late)
    ours = here.next_trial("here")
    assert ours is not None
    assert theirs[0] is not None
    assert {ours.user_attrs["index"], theirs[0].user_attrs["index"]} == {0, 1}
    assert run_trial(here, ours)
    assert run_trial(there, theirs[0])
    assert [trial.state.name for trial in here.trials] == ["COMPLETE", "COMPLETE"]


def test_trials_of_workers_elsewhere_are_left_alone(in_tmp: Path, storage: str) -> None:
    here = prepare_study(**SMALL, study="s", storage=storage, root="here")
    there = prepare_study(**SMALL, study="s", storage=storage, root="there")
    with here.working("one"):
        begun = here.next_trial("one")
        assert begun is not None
    assert there.requeue_dead() == 0
    assert not there.in_flight()
    assert here.requeue_dead() == 1
    work_on(there)
    work_on(here)
    assert [trial.state.name for trial in here.trials] == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
    assert here.best_config() == there.best_config()  # one was trained there, and is put together here
    assert not list(here.folder.glob("trials/*"))
    with pytest.raises(ConfigError, match="with a value of iteration"):
        here.best_config("iteration")


def test_a_database_is_not_shared_by_different_searches_of_a_name(in_tmp: Path, storage: str) -> None:
    prepare_study(**SMALL, study="s", storage=storage, root="here")
    with pytest.raises(ConfigError, match="the storage holds a study 's' with another seed; accepted: another"):
        prepare_study(**SMALL, study="s", storage=storage, root="there", seed=1)


def test_a_search_that_is_refused_leaves_nothing_that_stands_in_the_way(in_tmp: Path, storage: str) -> None:
    prepare_study(**SMALL, study="s", storage=storage, root="here")
    with pytest.raises(ConfigError, match="with another seed"):
        prepare_study(**SMALL, study="s", storage=storage, root="there", seed=1)
    assert prepare_study(**SMALL, study="s", storage=storage, root="there").search.seed == 0


@pytest.mark.parametrize("line", [b"garbage\n", b'{"op_code": 77}\n', b"[]\n", bytes(range(128, 256)) + b"\n"])
def test_a_damaged_journal_is_named(line: bytes, in_tmp: Path) -> None:
    study = prepare_study(**SMALL, study="s")
    with study.working("one"):
        assert study.next_trial("one") is not None
    journal = study.folder / "journal.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:4], line, *lines[5:]]))
    with pytest.raises(ConfigError, match=r"runs/tune/arena/s/journal\.log is damaged: "):
        prepare_study(study="s")


def test_a_name_is_no_pattern(in_tmp: Path) -> None:
    prepare_study(**{**SMALL, "seed": 5}, study="x1")
    prepare_study(**{**SMALL, "seed": 6}, study="x[1]")
    assert prepare_study(study="x[1]").search.seed == 6
    with pytest.raises(ConfigError, match="is too short"):
        prepare_study(study="x*", settings={"n_envs": 10_000})  # another, new study


def test_spaces_and_grids_take_numpys_numbers(in_tmp: Path) -> None:
    study = prepare_study(**{**SMALL, "space": None, "grid": {"gamma": np.linspace(0.5, 1, 2)}, "trials": np.int64(2)})
    assert study.search.space.to_plain() == {"gamma": {"choices": [0.5, 1.0]}}
    bounds = {"batch_size": {"int": [np.int64(10), np.int32(20)]}}
    assert parse_space(bounds, "space").to_plain() == {"batch_size": {"int": [10, 20]}}


def test_a_study_may_be_named_like_a_number(in_tmp: Path) -> None:
    settings = {**SETTINGS, "init_layers": ["1e5", "0o17"]}
    begun = prepare_study(**{**SMALL, "settings": settings}, study="3e-4")
    assert prepare_study(study="3e-4").search == begun.search


def test_trials_without_their_storage_are_not_written_over(in_tmp: Path) -> None:
    study = prepare_study(**SMALL, study="s")
    (study.folder / "trials").mkdir()
    (study.folder / "journal.log").unlink()
    with pytest.raises(ConfigError, match="has trials that its storage does not know"):
        prepare_study(study="s")


def test_a_password_is_not_written_down(in_tmp: Path) -> None:
    search = Search("arena", parse_space(SPACE, "space"), "s", storage="postgresql://me:secret@nowhere.invalid/db")
    search.write(in_tmp)
    assert "secret" not in (in_tmp / "study.yaml").read_text()
    assert read_search(in_tmp, storage=search.storage) == search
    with pytest.raises(ConfigError, match=r"is kept in postgresql://me:\*\*\*@nowhere.invalid/db; accepted: --storage"):
        read_search(in_tmp)
    with pytest.raises(ConfigError, match="says that the study is kept in postgresql"):
        read_search(in_tmp, storage="sqlite:///other.db")
    replace(search, storage="sqlite:///study.db?plugin=anything").write(in_tmp)
    with pytest.raises(ConfigError, match=r"is kept in sqlite.*plugin=anything; accepted: --storage"):
        read_search(in_tmp)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": 3}, "space is 3; accepted: a mapping"),
        ({"settings": [1]}, r"settings is \[1\]; accepted: a mapping"),
        ({"seed": -1}, "--seed is -1; accepted: an integer of at least 0"),
        ({"objective": None}, "objective is None; accepted: a string"),
        ({"extra": 1}, "is not that of a study"),
    ],
)
def test_a_damaged_file_of_a_study_is_refused(change: dict[str, Any], message: str, in_tmp: Path) -> None:
    study = prepare_study(**SMALL, study="s")
    path = study.folder / "study.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=message):
        prepare_study(study="s")


# --- Worker processes ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked_workers")
def test_workers_find_a_registered_env(in_tmp: Path) -> None:
    marl_sb3.register_env("mine", ArenaEnv)
    study = marl_sb3.tune("mine", **{**SMALL, "trials": 1})
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]
    assert not str(study.trials[0].user_attrs[WORKER]).startswith("here-")
    assert (study.folder / "best.yml").is_file()
    assert (study.folder / "trials.csv").is_file()


def test_an_env_that_no_other_process_can_import_is_searched_in_this_one(in_tmp: Path) -> None:
    class Mine(ArenaEnv):
        pass

    seen: list[int] = []
    study = marl_sb3.tune(Mine, **SMALL, watch=lambda watched: seen.append(watched.n_done()))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3
    assert seen == [1, 2, 3, 3]
    assert str(study.trials[0].user_attrs[WORKER]).startswith("here-")
    with pytest.raises(ConfigError, match="cannot be imported by 2 worker processes; accepted: a class or function"):
        marl_sb3.tune(Mine, **SMALL, workers=2)


def test_a_search_in_which_every_trial_fails_ends_and_may_go_on_when_it_is_mended(in_tmp: Path) -> None:
    is_broken: list[bool] = []

    def breaks(**kwargs: Any) -> Any:
        if is_broken:
            raise RuntimeError("the disk is on fire")
        return ArenaEnv(**kwargs)

    study = prepare_study(breaks, **{**SMALL, "trials": 7}, study="s")
    is_broken.append(True)
    with pytest.raises(
        SearchError, match=r"all 5 trials have failed, the last one with .*: the disk is on fire \(.*, in breaks\); see"
    ):
        run_trials(study)
    assert len(study.trials) == 5
    is_broken.clear()
    run_trials(prepare_study(breaks, study="s"))
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 5 + ["COMPLETE"] * 2


@pytest.mark.usefixtures("forked_workers")
def test_trials_that_kill_their_workers_end_the_search_too(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl_sb3.tuning.jobs.trials._MAX_FIRST_FAILURES", 2)
    Path("kills.py").write_text(
        "import os\nfrom marl_sb3.envs.arena import ArenaEnv\n"
        "class Kills(ArenaEnv):\n"
        "    def step(self, actions):\n"
        "        os._exit(9)\n"
    )
    with pytest.raises(
        SearchError, match=r"all 2 trials have failed, the last one with its process ended; see .*\.log"
    ) as end:
        marl_sb3.tune("kills:Kills", **{**SMALL, "trials": 9})
    assert Path(str(end.value).partition("; see ")[2]).is_file()


@pytest.mark.usefixtures("forked_workers")
def test_workers_do_not_take_a_storage_from_the_surroundings(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARL_SB3_STORAGE", "sqlite:///other.db")
    study = marl_sb3.tune("arena", **{**SMALL, "trials": 1})
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]


@pytest.mark.usefixtures("forked_workers")
def test_workers_that_die_at_once_end_the_search(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = prepare_study(**SMALL)
    (study.folder / "study.yaml").unlink()
    with pytest.raises(SearchError, match=r"end with 2 again and again, the last one saying .* holds no study'; see"):
        run_trials(study)


def test_sqlite_holds_a_study_too(in_tmp: Path) -> None:
    study = in_this_process(storage=f"sqlite:///{in_tmp / 'study.db'}", trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    assert not (study.folder / "journal.log").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": 3}, "root is 3; accepted: a path"),
        (
            {"root": "/proc/none"},
            "cannot write to the study folder /proc/none/tune/arena/.*: No such file or directory",
        ),
        ({"hparams": 3}, "hparams is 3; accepted: the path of a settings file, or a mapping"),
        ({"settings": {1: 2}}, "settings has the key 1; accepted: strings"),
        ({"over": f"mean_of_last_{'9' * 5000}"}, "accepted: last, best or mean_of_last_K"),
        ({"env": "nope"}, "unknown env 'nope'.*:factory$"),
        ({"trials": 0}, "--trials is 0; accepted: an integer of at least 1"),
        ({"space": {"bach_size": {"choices": [1]}}}, "unknown hyperparameter 'bach_size'"),
        ({"space": {"batch_size": {"choices": [20, 4000]}}}, "batch_size is 4000, larger than its rollout"),
        ({"space": {"gamma": {"uniform": [0.9, 1.5]}}}, r"gamma is 1.5; .*\(in a trial with gamma=1.5\)"),
        ({"space": {"gamma": {"uniform": [0.9]}}}, "accepted: two numbers"),
        ({"timesteps": 159}, "a trial of 159 env steps is too short for its 2 evaluations: a rollout has 80 env steps"),
        ({"timesteps": 79, "evaluations": None}, "79 env steps is too short for its evaluation: a rollout has 80 env"),
        ({"space": {"n_epochs": {"choices": [1]}}, "settings": {"n_steps": 0}}, "n_steps is 0; accepted: an integer"),
        ({"storage": "sqlite:////nowhere/at/all.db"}, "--storage sqlite.* cannot be opened"),
        ({"storage": "nonsense"}, "--storage nonsense cannot be opened"),
        ({"objective": "agent7"}, r"--objective is 'agent7'; accepted: sum, min, an agent \(agent1, agent2\)"),
        ({"mode": "largest"}, "--mode is 'largest'; accepted: max or min"),
        ({"over": "mean"}, "--over is 'mean'; accepted: last, best or mean_of_last_K"),
        ({"sampler": "bayes"}, "--sampler is 'bayes'; accepted: tpe, random, grid or gp"),
        ({"pruner": "x"}, "--pruner is 'x'; accepted: median, asha or none"),
        ({"sampler": "grid"}, "a grid needs choices; learning_rate has a range"),
        ({"grid": ["gamma=0.9"]}, "a space and a grid are given"),
        ({"study": "../elsewhere"}, "--study is '../elsewhere'"),
        ({"study": "a\nb"}, r"--study is 'a\\nb'"),
        ({"study": "x" * 300}, "--study is 'xxx"),
        ({"study": 5}, "--study is 5"),
        ({"space": 5}, "space is 5; accepted: a file, or a mapping"),
        ({"space": None, "grid": {"gamma": 0.9}}, "grid, gamma: is 0.9; accepted: a list of values"),
        ({"space": None, "grid": {"gamma": [0.9]}}, "--trials is 3, but the grid has 1"),
        ({"space": {"seed": {"choices": [1, 2]}}}, "seed is not for trials to choose or share; accepted: --seed"),
        ({"settings": {**SETTINGS, "seed": 3}}, "seed is not for trials to choose or share; accepted: --seed"),
        ({"space": {"gamma": {"int": [1, 10**400]}}}, "accepted: two integers, lowest < highest"),
        ({"space": {"gamma": {"uniform": [0.5, float("inf")]}}}, "accepted: two numbers, lowest < highest"),
        ({"over": "mean_of_last_3"}, "--over is 'mean_of_last_3', but a trial has 2 evaluations"),
        (
            {
                "space": {"n_steps": {"choices": [10, 40]}, "n_envs": {"choices": [4, 2]}},
                "settings": {"batch_size": 20},
            },
            "a trial of 160 env steps is too short for its 2 evaluations: a rollout has 160 env steps",
        ),
        ({"seed": -1}, "--seed is -1; accepted: an integer of at least 0"),
        ({"timesteps": 0}, "--timesteps is 0; accepted: an integer of at least 1"),
        (
            {"space": {"batch_size": {"int": [10, 150]}, "n_envs": {"choices": [2, 4]}}, "settings": {"n_steps": 20}},
            r"batch_size is 150, larger than its rollout of 80 agent .*\(in a trial with batch_size=150, n_envs=2\)",
        ),
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

    def again(_: TuneStudy) -> None:
        with pytest.raises(ConfigError, match="is in use: another process is running this study"):
            run_trials(study)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trials(study, watch=again)


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
