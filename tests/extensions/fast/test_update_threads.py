"""Fused updates in several threads: the bits of one thread, also beside other updates, and threads that end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import RandomEnv

import marl_sb3
from marl_sb3.core.learners.learner import blas_threads
from marl_sb3.core.policies import MlpFeatures
from marl_sb3.extensions.fast import fused_policy, update_path

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")

BOX = spaces.Box(-2, 2, (3,), np.float32)
ONE_HOT, CHOICE = spaces.MultiDiscrete([3, 4, 2]), spaces.Discrete(3)
SHARED = {"features_extractor_class": MlpFeatures, "features_extractor_kwargs": {"net_arch": [8, 7]}}


def model(algorithm: Any, observation: Any, action: Any, policy: str = "MlpPolicy", **hyperparameters: Any) -> Any:
    env = DummyVecEnv([lambda: RandomEnv(observation, action)] * 2)
    settings = {"n_steps": 24, "seed": 1, "device": "cpu", **hyperparameters}
    if algorithm is not marl_sb3.A2C:
        epochs = "n_critic_updates" if algorithm is marl_sb3.TRPO else "n_epochs"
        settings = {"batch_size": 20, epochs: 3, **settings}
    return algorithm(policy, env, **settings)


CASES: dict[str, Any] = {
    "one-hot inputs": lambda: model(marl_sb3.PPO, ONE_HOT, CHOICE),
    "Gaussian": lambda: model(marl_sb3.PPO, BOX, BOX, ent_coef=0.01),
    "shared layers": lambda: model(marl_sb3.PPO, BOX, CHOICE, policy_kwargs=SHARED),
    "TRPO": lambda: model(marl_sb3.TRPO, ONE_HOT, BOX),
    "TRPO, shared layers": lambda: model(marl_sb3.TRPO, BOX, CHOICE, policy_kwargs=SHARED),
    "A2C": lambda: model(marl_sb3.A2C, ONE_HOT, BOX),
    "LSTMs": lambda: model(marl_sb3.RecurrentPPO, BOX, BOX, "MlpLstmPolicy", policy_kwargs={"lstm_hidden_size": 5}),
}


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide small updates as large ones are: a minibatch of 20 rows into chunks, one of 8 rows not."""
    monkeypatch.setattr(fused_policy, "_WORTH_THREADS", 0.0)
    monkeypatch.setattr(fused_policy, "CHUNK_ROWS", 6)
    monkeypatch.setattr(fused_policy, "_CHUNK_FLOPS", 1.0)


def collected(algorithm: Any) -> Any:
    """The algorithm with a full rollout buffer."""
    algorithm.train = lambda: None
    algorithm.learn(48)
    del algorithm.train
    return algorithm


def updated(algorithm: Any, threads: int) -> list[Any]:
    """What an update leaves: weights, state of the optimizer, statistics."""
    algorithm.set_random_seed(3)
    update = algorithm.prepare_update()
    with blas_threads(1):
        update.run(threads)
    algorithm.finish_update(update)
    optimizer = algorithm.policy.optimizer.state_dict()["state"].values()
    tensors = [*algorithm.policy.state_dict().values(), *(value for state in optimizer for value in state.values())]
    return [*(tensor.numpy().copy() for tensor in tensors), update._stats, update.num_grad_updates]


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("name", CASES)
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    one, *others = (updated(collected(CASES[name]()), threads) for threads in (1, 2, 3, 9))
    for other in others:
        for expected, found in zip(one, other, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("kwargs", [{}, SHARED], ids=["plain", "shared layers"])
def test_an_update_in_chunks_and_threads_is_that_of_stock_sb3(kwargs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(th, "get_num_threads", lambda: 3)  # those that `train` takes
    monkeypatch.setattr("marl_sb3.extensions.fast.fused_on_policy.available_cores", lambda: 3)
    stock, fused = (model(ppo, BOX, BOX, policy_kwargs=kwargs) for ppo in (stable_baselines3.PPO, marl_sb3.PPO))
    for trained in (stock, fused):
        trained.set_random_seed(1)
        trained.learn(2 * 48)
    for name, expected in stock.policy.state_dict().items():
        assert float((fused.policy.state_dict()[name] - expected).norm() / expected.norm().clamp_min(1e-8)) < 1e-4
    for name in ("loss", "value_loss", "policy_gradient_loss", "approx_kl", "clip_fraction", "entropy_loss"):
        logged = (trained.logger.name_to_value[f"train/{name}"] for trained in (fused, stock))
        assert next(logged) == pytest.approx(next(logged), rel=1e-3, abs=1e-5), name


@pytest.mark.usefixtures("chunks")
def test_a_loss_that_is_not_finite_stops_all_threads_at_the_same_minibatch() -> None:
    def stopped(threads: int) -> list[Any]:
        algorithm = collected(CASES["Gaussian"]())
        algorithm.rollout_buffer.returns[7, 1] = np.nan
        return [*updated(algorithm, threads)[:-2], algorithm.num_grad_updates]

    one, three = stopped(1), stopped(3)
    assert one[-1] <= 3  # the rollout has three minibatches
    for expected, found in zip(one, three, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("chunks")
def test_updates_beside_each_other_do_not_disturb_each_other() -> None:
    expected = updated(collected(CASES["one-hot inputs"]()), 1)
    algorithms = [collected(CASES["one-hot inputs"]()) for _ in range(6)]
    updates = []
    for algorithm in algorithms:
        algorithm.set_random_seed(3)
        updates.append(algorithm.prepare_update())
    with blas_threads(1), ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda update: update.run(3), updates))
    for algorithm, update in zip(algorithms, updates, strict=True):
        algorithm.finish_update(update)
        np.testing.assert_array_equal(update._stats, expected[-2])
        for weights, of_one in zip(algorithm.policy.state_dict().values(), expected, strict=False):
            np.testing.assert_array_equal(weights, of_one)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("name", ["one-hot inputs", "TRPO"])
def test_a_thread_that_comes_late_changes_nothing_and_returns(name: str) -> None:
    algorithm = collected(CASES[name]())
    update = algorithm.prepare_update()
    update.run(1)
    before = [weights.clone() for weights in algorithm.policy.state_dict().values()]
    update._run_in_thread(1, 2)
    assert all(map(th.equal, algorithm.policy.state_dict().values(), before))


def test_where_no_thread_can_start_the_update_runs_in_one(chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = updated(collected(CASES["one-hot inputs"]()), 1)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    update_path._helpers.cache_clear()  # those of other tests are no new threads
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for found, of_one in zip(updated(collected(CASES["one-hot inputs"]()), 4), expected, strict=True):
        np.testing.assert_array_equal(found, of_one)


def test_after_an_interrupted_update_the_next_one_has_helpers() -> None:
    def interrupted(thread: int, threads: int) -> None:
        if thread == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update_path.in_threads(interrupted, 3)
    helped = threading.Event()
    update_path.in_threads(lambda thread, threads: helped.set() if thread else helped.wait(20), 2)
    assert helped.is_set()


def test_small_updates_are_not_divided_into_chunks_and_take_one_thread() -> None:
    def partition(rows: int, width: int) -> Any:
        algorithm = model(marl_sb3.PPO, BOX, CHOICE, policy_kwargs={"net_arch": [width] * 2})
        return fused_policy._partition(algorithm.kernels().nets, rows)

    assert partition(2048, 2).chunks == 1
    assert partition(128, 64)[:3] == (1, 128, 2)
    assert partition(1000, 64)[:3] == (7, 128, 14)
    assert partition(10**6, 64).tasks == 16
    assert collected(CASES["one-hot inputs"]()).prepare_update()._most_threads == 1
