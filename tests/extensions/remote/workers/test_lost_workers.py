"""Workers that end or hang are replaced, and the steps are those of a vec env that nobody disturbed."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from crashing_envs import AlwaysFatal, Fatal, Modules, Numbers, Unrepeatable, UnrepeatableGame
from worker_vec_envs import both, plain_step, played, processes, restarts, workers_of, zero_step, zeros

from marl_sb3.core.envs.registry import env_factory
from marl_sb3.core.metrics.episodes import EpisodeTracker
from marl_sb3.core.vec_env.interface import VecEnvRequest
from marl_sb3.envs.gymnasium_wrappers import named_wrappers, wrapping_factory
from marl_sb3.errors import WorkerError
from marl_sb3.extensions.remote.workers import supervisor
from marl_sb3.extensions.remote.workers.vec_env import WorkersVecEnv


@pytest.mark.parametrize(
    ("env", "vectorizer", "number"),
    [
        *((env, "sync", number) for env in (Numbers, "arena") for number in (signal.SIGKILL, signal.SIGSTOP)),
        ("arena", "batched", signal.SIGKILL),
    ],
)
def test_the_rollout_goes_on_as_if_nothing_had_happened(
    env: Any, vectorizer: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MOST_STEPS", 7)
    timeout_s = 60 if number == signal.SIGKILL else 0.3
    request = VecEnvRequest(env_factory(env), 4, 5, {}, vectorizer, 2, timeout_s, 99)
    here = workers_of(env, n_workers=0, vectorizer=vectorizer)
    with closing(WorkersVecEnv(request)) as vec, here as other:
        vec.reset()
        if env == "arena":
            for each in (vec, other):
                each.configure([1, 3], max_timesteps=11)
        for round_ in range(3):
            assert played(vec, 5, round_) == played(other, 5, round_)
            os.kill(processes(vec)[round_ % 2], number)
        vec.send(zeros(vec))
        os.kill(processes(vec)[0], number)
        vec.recv()
        zero_step(other)
        assert played(vec, 3) == played(other, 3)
        assert restarts(vec) >= 3


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("kill", "has ended: signal SIGKILL, in env 1"),
        ("exit", "has ended: exit code 3, in env 1"),
        ("segfault", "has ended: signal SIGSEGV, in env 1"),
        *((how, "has hung: env 1 has not answered within 1 s (worker_timeout_s)") for how in ("sleep", "stop")),
    ],
)
def test_an_env_may_end_or_hang_its_process_now_and_then(
    how: str, end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="marl_sb3")
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    wild.mkdir()
    options: Any = {"worker_timeout_s": 1.0, "how": how}
    with workers_of(Fatal, folder=str(wild), **options) as vec:
        (wild / "now").touch()
        with workers_of(Fatal, n_workers=0, folder=str(calm), **options) as other:
            assert played(vec, 12) == played(other, 12)
        assert restarts(vec) == 1
    assert caplog.messages[0] == f"worker 0 (envs 0 to 1) {end}; it is replaced"
    if how in ("segfault", "sleep"):
        assert "crashing_envs.py" in caplog.messages[1]


def test_a_worker_that_keeps_ending_ends_the_run_with_its_stacks() -> None:
    words = (
        r"^worker 0 \(envs 0 to 1\) has ended: signal SIGSEGV, in env 0; it was lost 2 times in a row, and "
        r"max_worker_restarts is 1$"
    )
    with workers_of(AlwaysFatal, max_worker_restarts=1) as vec:
        played(vec, 2)
        with pytest.raises(WorkerError, match=words) as info:
            played(vec, 1)
        assert "crashing_envs.py" in str(info.value.__cause__)
        vec.close()  # and once more in the end


def test_an_env_that_cannot_be_brought_back_begins_a_new_episode(caplog: pytest.LogCaptureFixture) -> None:
    with workers_of(Unrepeatable) as vec:
        played(vec, 8)  # agent a has ended, agent b acts
        seen = vec.latest.observations[0][1, 1].copy()
        os.kill(processes(vec)[0], signal.SIGKILL)
        step = zero_step(vec)
        assert step.truncated.tolist() == [[False, True]] * 4  # all: step 9
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


def test_an_episode_beneath_wrappers_ends_where_its_env_was_lost() -> None:
    wrapped = wrapping_factory(UnrepeatableGame, named_wrappers("gymnasium.wrappers.FlattenObservation"))
    with workers_of(wrapped, n_envs=2) as vec:
        tracker = EpisodeTracker(vec, {"agent": "p"})
        tracker.begin()
        for number in range(9):
            if number == 3:
                os.kill(processes(vec)[1], signal.SIGKILL)
            tracker.record(zero_step(vec))
    ends = [(each.env_index, each.agent_returns["agent"], each.length) for each in tracker.episodes]
    assert ends == [(1, 3.0, 4), (0, 5.0, 5), (1, 5.0, 5)]  # it stood still in its last step


def test_a_worker_is_lost_while_it_answers_something_else() -> None:
    with both(Numbers) as (vec, other):
        for each in (vec, other):
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


def test_a_worker_that_is_started_later_has_the_folder_and_variables_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.getcwd()
    with workers_of(Modules) as vec:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FOLDER", "other")
        os.kill(processes(vec)[0], signal.SIGKILL)
        assert vec.call("folder", [0, 3]) == [folder, folder]
        assert vec.call("variable", [0, 3], "FOLDER") == [None, None]


def test_a_worker_that_replaces_another_has_the_settings_of_all() -> None:
    with both("arena", episode_horizon=4, env_state=True) as (vec, other):
        os.kill(processes(vec)[1], signal.SIGKILL)
        assert played(vec, 9) == played(other, 9)
        assert repr(vec.latest.env_state) == repr(other.latest.env_state)
        assert restarts(vec) == 1
