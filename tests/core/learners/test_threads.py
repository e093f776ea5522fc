"""How many threads work at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from threadpoolctl import threadpool_info
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.core.learners import learner as threads


@pytest.mark.parametrize(("limit", "cores"), [("", 4), ("2", 2), ("1", 1), ("64", 4), ("0", 1), ("4,2", 4)])
def test_omp_num_threads_keeps_a_run_to_its_share(monkeypatch: pytest.MonkeyPatch, limit: str, cores: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert threads.available_cores() == cores


@pytest.mark.parametrize(("n_threads", "at_once"), [(1, 6), (2, 3), (4, 1), (9, 1)])
def test_updates_of_several_threads_leave_fewer_beside_them(
    monkeypatch: pytest.MonkeyPatch, n_threads: int, at_once: int
) -> None:
    monkeypatch.setattr(threads, "available_cores", lambda: 6)
    assert threads.parallel_updates(n_threads) == at_once


def test_no_more_jobs_run_at_once_than_asked_for() -> None:
    running, most, lock, three = [0], [0], threading.Lock(), threading.Barrier(3, timeout=60)

    def job(share: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        three.wait()
        with lock:
            running[0] -= 1

    threads.run_in_threads([job] * 9, at_once=3)
    assert most[0] == 3


@pytest.mark.parametrize(
    ("jobs", "at_once", "share"), [(1, 1, 1), (1, 4, 4), (2, 4, 2), (3, 4, 1), (9, 4, 1), (2, 1, 1)]
)
def test_jobs_share_the_threads_that_they_may_have_together(jobs: int, at_once: int, share: int) -> None:
    shares: list[int] = []
    threads.run_in_threads([shares.append] * jobs, at_once)
    assert shares == [share] * jobs


def test_blas_has_its_threads_back_afterwards() -> None:
    def counts() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    before = counts()
    with threads.blas_threads(1):
        assert set(counts()) == {1}
    assert counts() == before


class Threads(BaseCallback):
    """Notes PyTorch's threads in rollouts and between them; may fail."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails, self.found = fails, set()

    def _on_rollout_start(self) -> None:
        self.found.add(th.get_num_threads())

    def _on_step(self) -> bool:
        self.found.add(th.get_num_threads())
        if self.fails:
            raise ZeroDivisionError
        return True


@pytest.fixture
def three_threads() -> Iterator[None]:
    """PyTorch has three threads outside of trainings."""
    before = th.get_num_threads()
    th.set_num_threads(3)
    yield
    th.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_training_sets_pytorchs_threads_and_puts_them_back(n_threads: int, fails: bool) -> None:
    callback = Threads(fails)
    env = make_vec_env(ScriptedEnv, script={"a": (3, "terminated")})
    algorithm = MultiAgentAlgorithm(env, n_steps=4, batch_size=4, n_threads=n_threads, update_path="torch")
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        algorithm.learn(8, callback)
    assert callback.found == {n_threads}
    assert th.get_num_threads() == 3
    algorithm.train_iteration()
    assert th.get_num_threads() == 3
