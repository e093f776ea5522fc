"""The processes in which a search trains, and what becomes of it when they die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from optuna.trial import TrialState
from searches import SMALL, states
from waiting import writing_to

import marl_sb3
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.errors import ConfigError
from marl_sb3.tools.tuning import workers
from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trial import DEATHS, ERROR, INTERRUPTED, RETRY_OF, WORKER
from marl_sb3.tools.tuning.trials import run_trials
from marl_sb3.tools.tuning.workers import SearchError


def run_and_kill(study: TuneStudy, workers: int, whom: Callable[[int], int]) -> None:
    """Run all trials, and kill a process once while one is trained; `whom` is given that of the worker that trains."""
    killed: list[int] = []

    def watch(watched: TuneStudy) -> None:
        logs = {f"{trial.user_attrs[WORKER]}.log" for trial in watched.trials if trial.state == TrialState.RUNNING}
        for log, worker in writing_to(study.folder / "workers").items():
            victim = whom(worker) if log in logs and not killed else 0
            if victim:
                killed.append(victim)
                os.kill(victim, signal.SIGKILL)

    run_trials(study, workers=workers, watch=watch)
    assert len(killed) == 1


@pytest.mark.usefixtures("quick_searches")
def test_a_killed_worker_loses_its_trial_alone_which_is_tried_once_again(in_tmp: Path) -> None:
    study = prepare_study(**{**SMALL, "timesteps": 8_000})
    run_and_kill(study, 2, lambda worker: worker)
    assert sorted(states(study)) == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL"]
    (failed,) = [trial for trial in study.trials if trial.state == TrialState.FAIL]
    (retry,) = [trial for trial in study.trials if RETRY_OF in trial.user_attrs]
    assert failed.user_attrs[ERROR] == "its process ended"
    assert retry.user_attrs[RETRY_OF] == failed.number
    assert retry.params.items() >= failed.params.items()


def starter_of(worker: int) -> int:
    """The process that has started it, other than this one; 0: it has ended."""
    with suppress(psutil.NoSuchProcess):
        if (starter := psutil.Process(worker).ppid()) not in (1, os.getpid()):
            return starter
    return 0


@pytest.mark.usefixtures("quick_searches")
def test_trainings_that_end_with_the_process_that_starts_workers_are_not_to_blame(in_tmp: Path) -> None:
    study = prepare_study(**{**SMALL, "trials": 1})
    run_and_kill(study, 1, starter_of)
    assert states(study) == ["FAIL", "COMPLETE"]
    assert (study.trials[0].user_attrs[ERROR], study.trials[1].user_attrs[DEATHS]) == (INTERRUPTED, 0)


@pytest.mark.usefixtures("quick_searches")
def test_workers_find_a_registered_env(in_tmp: Path) -> None:
    marl_sb3.register_env("mine", ArenaEnv)
    study = marl_sb3.tune("mine", **{**SMALL, "trials": 1})
    assert states(study) == ["COMPLETE"]
    assert not str(study.trials[0].user_attrs[WORKER]).startswith("here-")
    assert (study.folder / "best.yml").is_file()
    assert (study.folder / "trials.csv").is_file()


def test_an_env_that_no_other_process_can_import_is_searched_in_this_one(in_tmp: Path) -> None:
    class Mine(ArenaEnv):
        pass

    seen: list[int] = []
    study = marl_sb3.tune(Mine, **SMALL, confirm_seeds=0, watch=lambda watched: seen.append(watched.n_done()))
    assert states(study) == ["COMPLETE"] * 3
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
    assert states(study) == ["FAIL"] * 5 + ["COMPLETE"] * 2


@pytest.mark.usefixtures("quick_searches")
@pytest.mark.parametrize(
    ("most_failures", "how", "words"),
    [
        (2, "os._exit(9)", "all 2 trials have failed, the last one with its process ended"),
        (9, "os._exit(9)", "worker processes end with exit code 9 again and again, the last one saying 'out of luck'"),
        (9, "os.kill(os.getpid(), 15)", "worker processes end with an interruption again and again, the last one sayi"),
    ],
)
def test_trials_that_kill_their_workers_end_the_search_too(
    most_failures: int, how: str, words: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marl_sb3.tools.tuning.trials._MAX_FIRST_FAILURES", most_failures)
    module = f"kills_{len(how)}"
    Path(f"{module}.py").write_text(
        "import os\nfrom marl_sb3.envs.arena import ArenaEnv\n"
        "class Kills(ArenaEnv):\n"
        "    def step(self, actions):\n"
        "        print('out of luck', flush=True)\n"
        f"        {how}\n"
        "        return super().step(actions)\n"
    )
    with pytest.raises(SearchError, match=words) as end:
        marl_sb3.tune(f"{module}:Kills", **{**SMALL, "trials": 9})
    assert Path(str(end.value).partition("; see ")[2]).is_file()


@pytest.mark.usefixtures("quick_searches")
@pytest.mark.parametrize("grace_s", [30.0, 0.0])
def test_ctrl_c_gives_the_trials_back_that_run(grace_s: float, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GRACE_S", grace_s)
    study = prepare_study(**{**SMALL, "timesteps": 100_000, "evaluations": 100})

    def interrupt(watched: TuneStudy) -> None:
        if any((watched.folder_of(trial) / "result.jsonl").exists() for trial in watched.trials):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trials(study, workers=1, watch=interrupt)
    assert states(study) == ["FAIL", "WAITING"]
    assert study.trials[0].user_attrs[ERROR] == INTERRUPTED
    assert study.trials[1].user_attrs[DEATHS] == 0
    assert bool(list(study.folder_of(study.trials[0]).glob("policies/*.zip"))) == (grace_s > 0)


def test_a_study_is_run_by_one_search_at_a_time(in_tmp: Path) -> None:
    study = prepare_study(**SMALL)

    def again(_: TuneStudy) -> None:
        with pytest.raises(ConfigError, match="is in use: another process is running this study"):
            run_trials(study)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trials(study, watch=again)
