"""The fused updates of algorithms with a replay buffer against PyTorch's, and what they cover."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from threading import Event
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stock_training import leaves
from torch import nn
from toy_envs import RandomEnv

import marl_sb3
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast import fused_replay

CHOICE = spaces.Discrete(3)
TWO_AXES = spaces.Box(-1, 2, (2,), np.float32)
OBSERVATIONS: dict[str, spaces.Space] = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "bytes": spaces.Box(0, 9, (2, 2), np.uint8),
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
}
STOCK = {
    "DQN": stable_baselines3.DQN,
    "QRDQN": sb3_contrib.QRDQN,
    "SAC": stable_baselines3.SAC,
    "TQC": sb3_contrib.TQC,
    "TD3": stable_baselines3.TD3,
    "DDPG": stable_baselines3.DDPG,
}
SMALL: dict[str, Any] = {
    "learning_starts": 6,
    "batch_size": 8,
    "buffer_size": 60,
    "learning_rate": 1e-2,
    "train_freq": 4,
    "gradient_steps": 3,
    "seed": 1,
    "device": "cpu",
}


def vec_env(name: str, observation: str) -> DummyVecEnv:
    action = CHOICE if name in ("DQN", "QRDQN") else TWO_AXES
    return DummyVecEnv([lambda: RandomEnv(OBSERVATIONS[observation], action)] * 2)


def model(algorithm: type, name: str, observation: str = "box", env: Any = None, **hyperparameters: Any) -> Any:
    settings = deepcopy({**SMALL, "policy_kwargs": {"net_arch": [8, 6]}, **hyperparameters})
    if name == "QRDQN":
        settings["policy_kwargs"].setdefault("n_quantiles", 5)
    return algorithm("MlpPolicy", vec_env(name, observation) if env is None else env, **settings)


def fused(name: str, *arguments: Any, **hyperparameters: Any) -> Any:
    made = model(getattr(marl_sb3, name), name, *arguments, **hyperparameters)
    made.update_path = "fused"
    return made


def learned(algorithm: Any) -> Any:
    algorithm.set_random_seed(1)
    return algorithm.learn(40)


def largest_difference(found: Any, expected: Any) -> float:
    """Of all parameters, targets, moments and counts of steps, relative to the norm of each."""
    ours, theirs = leaves(found.get_parameters()), leaves(expected.get_parameters())
    assert ours.keys() == theirs.keys()
    tensors = [path for path, value in theirs.items() if isinstance(value, th.Tensor)]
    return max(float((ours[path] - theirs[path]).norm() / theirs[path].norm().clamp_min(1e-6)) for path in tensors)


def assert_close(found: Any, expected: Any) -> None:
    assert largest_difference(found, expected) < 1e-3
    logs = [
        {key: value for key, value in each.logger.name_to_value.items() if key.startswith("train/")}
        for each in (found, expected)
    ]
    assert logs[0].keys() == logs[1].keys()
    assert {"train/loss", "train/critic_loss"} & logs[0].keys()
    for key, value in logs[1].items():
        assert logs[0][key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


# Several updates


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_in_the_place_of_the_stock_class_it_learns_the_same(name: str, observation: str) -> None:
    assert_close(learned(fused(name, observation)), learned(model(STOCK[name], name, observation)))


TANH = {"net_arch": [7], "activation_fn": nn.Tanh}
ACTOR_CRITIC = {"policy_kwargs": {"net_arch": {"pi": [5], "qf": [9, 4, 3]}, "n_critics": 3}}
HYPERPARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "tanh": ("DQN", {"policy_kwargs": TANH}),
    "no hidden layers": ("DQN", {"policy_kwargs": {"net_arch": []}}),
    "tight clipping of gradients": ("DQN", {"max_grad_norm": 0.01, "target_update_interval": 4, "tau": 0.5}),
    "other betas": ("DQN", {"policy_kwargs": {"optimizer_kwargs": {"betas": (0.8, 0.9), "eps": 1e-3}}}),
    "schedules": ("DQN", {"learning_rate": lambda p: 1e-2 * p, "gamma": 0.5}),
    "n steps": ("DQN", {"n_steps": 3}),
    "quantiles, tanh": ("QRDQN", {"policy_kwargs": {**TANH, "n_quantiles": 3}, "max_grad_norm": 0.01}),
    "unequal nets of SAC": ("SAC", ACTOR_CRITIC),
    "a given entropy coefficient": ("SAC", {"ent_coef": 0.3, "target_update_interval": 2, "tau": 0.1}),
    "a target entropy": ("SAC", {"target_entropy": -0.3, "ent_coef": "auto_0.5", "policy_kwargs": TANH}),
    "unequal nets of TQC": ("TQC", {**ACTOR_CRITIC, "top_quantiles_to_drop_per_net": 4}),
    "no quantiles dropped": ("TQC", {"top_quantiles_to_drop_per_net": 0}),
    "unequal nets of TD3": ("TD3", {**ACTOR_CRITIC, "policy_delay": 3}),
    "noise of targets": ("TD3", {"target_policy_noise": 0.9, "target_noise_clip": 0.3, "policy_kwargs": TANH}),
}


@pytest.mark.parametrize("case", HYPERPARAMETERS)
def test_hyperparameters_mean_what_they_mean_in_stock_sb3(case: str) -> None:
    name, hyperparameters = HYPERPARAMETERS[case]
    assert_close(learned(fused(name, **hyperparameters)), learned(model(STOCK[name], name, **hyperparameters)))


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_a_normalised_vec_env_gives_it_normalised_minibatches(name: str) -> None:
    found, expected = (
        learned(model(algorithm, name, env=VecNormalize(vec_env(name, "box"))))
        for algorithm in (getattr(marl_sb3, name), STOCK[name])
    )
    assert_close(found, expected)


# Planted errors


def _shifted(name: str, by: float) -> Callable[[Any], None]:
    def plant(algorithm: Any) -> None:
        setattr(algorithm, name, getattr(algorithm, name) + by)

    return plant


def _other_adam(setting: str, value: Any) -> Callable[[Any], None]:
    def plant(algorithm: Any) -> None:
        (getattr(algorithm, "critic", None) or algorithm.policy).optimizer.param_groups[0][setting] = value

    return plant


def _weight(path: str) -> Callable[[Any], None]:
    def plant(algorithm: Any) -> None:
        with th.no_grad():
            algorithm.policy.get_parameter(path).view(-1)[0] += 0.01

    return plant


def _extra_draw(algorithm: Any) -> None:
    th.normal(th.zeros(3), th.ones(3))


ERRORS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "DQN, discount": ("DQN", _shifted("gamma", -0.01)),
    "DQN, one weight": ("DQN", _weight("q_net.q_net.0.weight")),
    "DQN, one weight of the target": ("DQN", _weight("q_net_target.q_net.0.weight")),
    "DQN, clipping": ("DQN", _shifted("max_grad_norm", -9.9)),
    "DQN, moments": ("DQN", _other_adam("betas", (0.89, 0.999))),
    "QRDQN, one weight of the target": ("QRDQN", _weight("quantile_net_target.quantile_net.4.bias")),
    "SAC, other noise": ("SAC", _extra_draw),
    "SAC, target entropy": ("SAC", _shifted("target_entropy", 0.1)),
    "SAC, speed of the targets": ("SAC", _shifted("tau", 1e-3)),
    "SAC, one weight of the second critic": ("SAC", _weight("critic.qf1.2.weight")),
    "TQC, one quantile more": ("TQC", _shifted("top_quantiles_to_drop_per_net", 1)),
    "TD3, delay": ("TD3", _shifted("_n_updates", 1)),
    "TD3, limit of the noise": ("TD3", _shifted("target_noise_clip", -0.4)),
    "TD3, one weight of the target": ("TD3", _weight("actor_target.mu.4.bias")),
    "TD3, epsilon": ("TD3", _other_adam("eps", 1e-4)),
}


def trained_once(algorithm: Any, plant: Callable[[Any], None] = lambda algorithm: None) -> Any:
    """Six more gradient steps, of the same minibatches for all."""
    algorithm.set_random_seed(1)
    algorithm.learn(8)
    np.random.seed(5)  # noqa: NPY002 - SB3's stream of random numbers
    th.manual_seed(5)
    plant(algorithm)
    algorithm.train(gradient_steps=6, batch_size=8)
    return algorithm


@pytest.mark.parametrize("error", ERRORS)
def test_a_planted_error_is_found(error: str) -> None:
    name, plant = ERRORS[error]
    expected = trained_once(model(STOCK[name], name))
    assert largest_difference(trained_once(fused(name)), expected) < 1e-3
    assert largest_difference(trained_once(fused(name), plant), expected) > 1e-3


# Threads


def of_chunks(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gradient steps of 8 rows, divided as large ones are."""
    monkeypatch.setattr(fused_replay, "_WORTH_THREADS", 0.0)
    monkeypatch.setattr(fused_replay, "CHUNK_ROWS", 3)
    algorithm = fused(name)
    algorithm.update_threads = threads
    return trained_once(algorithm)


@pytest.mark.parametrize("name", ["SAC", "TQC", "TD3", "DDPG"])
def test_chunks_and_threads_learn_what_the_stock_class_learns_and_their_number_changes_no_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, *others = (of_chunks(name, threads, monkeypatch) for threads in (1, 2, 5))
    assert_close(one, trained_once(model(STOCK[name], name)))
    for other in others:
        assert largest_difference(other, one) == 0.0
        assert other.logger.name_to_value == one.logger.name_to_value


def test_a_helper_that_comes_late_finds_nothing_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[], None]] = []

    def shared(job: Callable[[int, int], None], threads: int) -> None:
        job(0, threads)
        late.append(lambda: job(1, threads))

    expected = of_chunks("SAC", 2, monkeypatch)
    monkeypatch.setattr(fused_replay, "in_threads", shared)
    found = of_chunks("SAC", 2, monkeypatch)
    for job in late:
        job()
    assert len(late) > 5
    assert largest_difference(found, expected) == 0.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_has_helpers_of_its_own() -> None:
    done: list[int] = []
    fused_replay.in_threads(lambda thread, threads: done.append(thread), 2)
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        helped = Event()
        fused_replay.in_threads(lambda thread, threads: helped.set() if thread else helped.wait(20), 2)
        os._exit(0 if helped.is_set() else 1)
    assert os.waitpid(child, 0)[1] == 0


# Acting


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_it_explores_as_predict_does(name: str, observation: str) -> None:
    algorithm = fused(name, observation)
    algorithm.exploration_rate = 0.4
    algorithm.action_space.seed(3)
    draws = deepcopy(algorithm.action_space)
    space = algorithm.observation_space
    space.seed(0)
    batches = [np.stack([space.sample() for _ in range(rows)]) for rows in (1, 5, 1, 2, 1)]
    update = algorithm.kernels()
    with same_draws():
        found = [update.explore(batch) for batch in batches]
    algorithm.action_space = draws
    with same_draws():
        expected = [algorithm.predict(batch)[0] for batch in batches]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@contextmanager
def same_draws() -> Iterator[None]:
    np.random.seed(4)  # noqa: NPY002 - SB3's stream of random numbers
    th.manual_seed(4)
    yield


@pytest.mark.parametrize("name", STOCK)
def test_what_pytorch_changes_the_kernels_see(name: str) -> None:
    """Weights that are set in place, and a loaded optimizer, whose state consists of other tensors."""
    expected, found = learned(model(STOCK[name], name)), fused(name)
    found.learn(8)
    found.set_parameters(deepcopy(expected.get_parameters()))
    found.replay_buffer = deepcopy(expected.replay_buffer)
    found._n_updates = expected._n_updates
    if getattr(found, "log_ent_coef", None) is not None:
        found.log_ent_coef.data.copy_(expected.log_ent_coef.data)
    for algorithm in (expected, found):
        with same_draws():
            algorithm.train(gradient_steps=3, batch_size=8)
    assert_close(found, expected)


def _other_memory(algorithm: Any) -> None:
    for parameter in algorithm.policy.parameters():
        parameter.data = parameter.data.clone()


def _other_state(algorithm: Any) -> None:
    optimizer = algorithm.policy.optimizer
    optimizer.load_state_dict(deepcopy(optimizer.state_dict()))


def _other_modules(algorithm: Any) -> None:
    algorithm.q_net.q_net = deepcopy(algorithm.q_net.q_net)
    algorithm.policy.optimizer = th.optim.Adam(algorithm.q_net.parameters())


CHANGES = {"memory": _other_memory, "modules": _other_modules, "state of the optimizer": _other_state}


@pytest.mark.parametrize("change", CHANGES)
def test_it_follows_when_pytorch_puts_other_tensors_in_place(change: str) -> None:
    found, expected = fused("DQN"), model(STOCK["DQN"], "DQN")
    for algorithm in (expected, found):
        trained_once(algorithm, CHANGES[change])
    assert_close(found, expected)


LATER: dict[str, Callable[[Any], Any]] = {
    "a hook": lambda a: a.policy.q_net.q_net[0].register_forward_hook(lambda *_: None),
    "frozen parameters": lambda a: a.policy.q_net.q_net[0].weight.requires_grad_(False),
    "a replaced method": lambda a: setattr(a.policy.q_net, "forward", a.policy.q_net.forward),
}


@pytest.mark.parametrize("change", LATER)
def test_what_is_no_longer_covered_pytorch_trains(change: str) -> None:
    algorithm = trained_once(model(marl_sb3.DQN, "DQN"))
    assert algorithm.kernels() is algorithm.kernels() is not None
    LATER[change](algorithm)
    assert algorithm.kernels() is None


# Coverage


class Doubled(stable_baselines3.dqn.policies.DQNPolicy):
    def _predict(self, obs: Any, deterministic: bool = True) -> th.Tensor:
        return super()._predict(obs, deterministic)


def _transposed(algorithm: Any) -> None:
    layer = algorithm.policy.q_net.q_net[2]
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())


def _replaced_parameter(algorithm: Any) -> None:
    layer = algorithm.policy.q_net.q_net[0]
    layer.weight = nn.Parameter(layer.weight.detach().clone())


def _nothing(algorithm: Any) -> None:
    pass


UNCOVERED: dict[str, tuple[str, dict[str, Any], Callable[[Any], None], str]] = {
    "activation": ("DQN", {"policy_kwargs": {"activation_fn": nn.ELU}}, _nothing, "activation ELU"),
    "optimizer": ("DQN", {"policy_kwargs": {"optimizer_class": th.optim.RMSprop}}, _nothing, "optimizer RMSprop"),
    "weight decay": ("SAC", {"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 1e-3}}}, _nothing, "weight decay"),
    "gSDE": ("SAC", {"use_sde": True}, _nothing, "gSDE"),
    "no hidden layers": ("SAC", {"policy_kwargs": {"net_arch": []}}, _nothing, "layers other than"),
    "a hook": ("DQN", {}, LATER["a hook"], "hooks of the network"),
    "frozen parameters": ("DQN", {}, LATER["frozen parameters"], "frozen"),
    "another layer": ("DQN", {}, lambda a: a.policy.q_net.q_net.insert(1, nn.LayerNorm(8)), "layers other than"),
    "a replaced method": ("DQN", {}, LATER["a replaced method"], "replaced methods"),
    "a transposed parameter": ("DQN", {}, _transposed, "transposed"),
    "a parameter that the optimizer does not know": ("DQN", {}, _replaced_parameter, "other parameters"),
}


@pytest.mark.parametrize("case", UNCOVERED)
def test_what_the_kernels_do_not_cover_pytorch_trains(case: str) -> None:
    name, hyperparameters, change, reason = UNCOVERED[case]
    algorithm = model(getattr(marl_sb3, name), name, **hyperparameters)
    assert change is _nothing or algorithm.why_not_fused() is None
    change(algorithm)
    assert reason in algorithm.why_not_fused()
    assert algorithm.kernels() is None
    algorithm.update_path = "fused"
    with pytest.raises(ConfigError, match="the fused update does not cover this policy"):
        algorithm.train(gradient_steps=1, batch_size=8)


def test_a_subclass_of_the_policy_is_trained_by_pytorch() -> None:
    algorithm = marl_sb3.DQN(Doubled, vec_env("DQN", "box"), **SMALL)
    assert algorithm.why_not_fused() == "policy class Doubled"


@pytest.mark.parametrize("name", STOCK)
def test_the_torch_path_equals_stock_sb3_bit_for_bit(name: str) -> None:
    found, expected = model(getattr(marl_sb3, name), name), model(STOCK[name], name)
    found.update_path = "torch"
    for algorithm in (found, expected):
        learned(algorithm)
    assert largest_difference(found, expected) == 0.0


def test_it_is_saved_and_loaded_as_the_stock_class(tmp_path: Any) -> None:
    found = learned(fused("SAC"))
    found.save(tmp_path / "ours")
    for algorithm in (stable_baselines3.SAC, marl_sb3.SAC):
        assert largest_difference(algorithm.load(tmp_path / "ours", device="cpu"), found) == 0.0
