"""Workers that end or hang are replaced, and the steps are those of a vec env that nobody disturbed."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashing_envs import AlwaysFatal, Fatal, Modules, Numbers, Unrepeatable, UnrepeatableGame
from test_workers_vec_env import plain_step, played

from marl_sb3 import make_vec_env
from marl_sb3.core.envs.registry import env_factory
from marl_sb3.core.metrics.episodes import EpisodeTracker
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv, VecEnvRequest
from marl_sb3.envs.gymnasium_wrappers import named_wrappers, wrapping_factory
from marl_sb3.errors import WorkerError
from marl_sb3.extensions.remote.workers.vec_env import WorkersVecEnv

Make = partial(make_vec_env, n_envs=4, seed=5)


def processes(vec: MultiAgentVecEnv) -> list[int]:
    return [worker.process for worker in vec._supervisor.workers]  # type: ignore[attr-defined]


def restarts(vec: MultiAgentVecEnv) -> int:
    assert vec.health is not None
    assert vec.health.num_healthy_workers == 2
    return vec.health.num_worker_restarts


@pytest.mark.parametrize(
    ("env", "vectorizer", "number"),
    [
        *((env, "sync", number) for env in (Numbers, "arena") for number in (signal.SIGKILL, signal.SIGSTOP)),
        ("arena", "batched", signal.SIGKILL),
    ],
)
def test_the_rollout_goes_on_as_if_nothing_had_happened(env: Any, vectorizer: str, number: int) -> None:
    timeout_s = 60 if number == signal.SIGKILL else 0.3
    vec = WorkersVecEnv(VecEnvRequest(env_factory(env), 4, 5, {}, vectorizer, 2, timeout_s, 99), most_steps=7)
    other = Make(env, vectorizer=vectorizer)
    settings = {} if env is Numbers else {"max_timesteps": 11}
    for each in (vec, other):
        each.reset()
        if settings:
            each.configure([1, 3], **settings)
    for round_ in range(3):
        assert played(vec, 5, round_) == played(other, 5, round_)
        os.kill(processes(vec)[round_ % 2], number)
    vec.send([np.zeros((4, 2), int)])
    os.kill(processes(vec)[0], number)
    vec.recv()
    other.step([np.zeros((4, 2), int)])
    assert played(vec, 3) == played(other, 3)
    assert restarts(vec) >= 3
    vec.close()


@pytest.mark.parametrize("how", ["kill", "exit", "segfault", "sleep", "stop"])
def test_an_env_may_end_or_hang_its_process_now_and_then(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "wild").mkdir()
    caplog.set_level("INFO", logger="marl_sb3")
    vec, other = (
        Make(Fatal, n_workers=workers, worker_timeout_s=1.0, folder=str(tmp_path / name), how=how)
        for workers, name in ((2, "wild"), (0, "calm"))
    )
    (tmp_path / "wild" / "now").touch()
    for each in (vec, other):
        each.reset()
    assert played(vec, 12) == played(other, 12)
    assert restarts(vec) == 1
    ends = {"kill": "signal SIGKILL", "exit": "exit code 3", "segfault": "signal SIGSEGV"}
    hung = r"has hung: env 1 has not answered within 1 s (worker_timeout_s)"
    ended = f"has ended: {ends[how]}, in env 1" if how in ends else hung
    assert caplog.messages[0] == f"worker 0 (envs 0 to 1) {ended}; it is replaced"
    if how in ("segfault", "sleep"):
        assert "crashing_envs.py" in caplog.messages[1]
    vec.close()


def test_a_worker_that_keeps_ending_ends_the_run_with_its_stacks() -> None:
    vec = Make(AlwaysFatal, n_workers=2, max_worker_restarts=1)
    vec.reset()
    played(vec, 2)
    words = (
        r"^worker 0 \(envs 0 to 1\) has ended: signal SIGSEGV, in env 0; it was lost 2 times in a row, and "
        r"max_worker_restarts is 1$"
    )
    with pytest.raises(WorkerError, match=words) as info:
        played(vec, 1)
    assert "crashing_envs.py" in str(info.value.__cause__)
    vec.close()
    vec.close()


def test_an_env_that_cannot_be_brought_back_begins_a_new_episode(caplog: pytest.LogCaptureFixture) -> None:
    vec = Make(Unrepeatable, n_workers=2)
    vec.reset()
    played(vec, 8)  # agent a has ended, agent b acts
    seen = vec.latest.observations[0][1, 1].copy()
    os.kill(processes(vec)[0], signal.SIGKILL)
    step = vec.step([np.zeros((4, 2), int)])
    assert step.truncated.tolist() == [[False, True], [False, True], [False, True], [False, True]]  # all: step 9
    assert step.episode_done.all()
    assert step.final_observations[1, 1].tolist() == seen.tolist()
    assert step.rewards[1].tolist() == [0, 0]
    assert step.to_act.all()
    assert step.infos[1] == {}
    assert caplog.messages[1:] == [
        "inexact: a new episode begins in env 1: the same seed and actions led to a different state"
    ]
    assert vec.call("step_count", range(4)) == [0, 0, 0, 0]
    played(vec, 1)
    assert vec.call("step_count", range(4)) == [1, 1, 1, 1]
    vec.close()


def test_an_episode_beneath_wrappers_ends_where_its_env_was_lost() -> None:
    wrapped = wrapping_factory(UnrepeatableGame, named_wrappers("gymnasium.wrappers.FlattenObservation"))
    vec = make_vec_env(wrapped, 2, seed=5, n_workers=2)
    tracker = EpisodeTracker(vec, {"agent": "p"})
    vec.reset()
    tracker.begin()
    for number in range(9):
        if number == 3:
            os.kill(processes(vec)[1], signal.SIGKILL)
        tracker.record(vec.step([np.zeros((2, 1), int)]))
    vec.close()
    ends = [(each.env_index, each.agent_returns["agent"], each.length) for each in tracker.episodes]
    assert ends == [(1, 3.0, 4), (0, 5.0, 5), (1, 5.0, 5)]  # it stood still in its last step


def test_a_worker_is_lost_while_it_answers_something_else() -> None:
    vec, other = (Make(Numbers, n_workers=workers) for workers in (2, 0))
    for each in (vec, other):
        each.reset()
        played(each, 3)
    os.kill(processes(vec)[1], signal.SIGKILL)
    assert vec.call("step_count", range(4)) == [3, 3, 3, 3]
    os.kill(processes(vec)[0], signal.SIGKILL)
    assert vec.get_state()["log"]["lengths"].tolist() == other.get_state()["log"]["lengths"].tolist()
    os.kill(processes(vec)[0], signal.SIGKILL)
    for each in (vec, other):
        each.reset()
    assert plain_step(vec) == plain_step(other)
    assert restarts(vec) == 3
    vec.close()


def test_a_worker_that_is_started_later_has_the_folder_and_variables_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vec, folder = Make(Modules, n_workers=2), os.getcwd()
    vec.reset()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOLDER", "other")
    os.kill(processes(vec)[0], signal.SIGKILL)
    assert vec.call("folder", [0, 3]) == [folder, folder]
    assert vec.call("variable", [0, 3], "FOLDER") == [None, None]
    vec.close()
