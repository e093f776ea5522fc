"""One shared policy trains bit for bit as stock SB3 does, whatever the spaces and the hyperparameters."""

from __future__ import annotations

import functools
from copy import deepcopy
from typing import Any

import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.utils import LinearSchedule
from stock_training import (
    BOX,
    IMAGE,
    MIXED,
    N_ENVS,
    N_STEPS,
    SEED,
    SMALL,
    TINY_CNN,
    TINY_MIX,
    Case,
    counts_of,
    env_of,
    leaves,
    same,
    sampled,
    stock_model,
    train_ours,
    train_stock,
)

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec


class TorchPPO(marl_sb3.PPO):
    """Takes PyTorch's path, which is the one that equals SB3 bit for bit."""

    update_path = "torch"


class FusedPPO(marl_sb3.PPO):
    """Takes the fused way, or fails."""

    update_path = "fused"


ALGORITHMS = {"torch": TorchPPO, "stock": stable_baselines3.PPO}
CASES = {
    "time limits inside rollouts": Case(),
    "linear schedules": Case(
        hyperparameters={"learning_rate": "lin_1e-2", "clip_range": "lin_0.3", "clip_range_vf": "lin_0.5"},
        stock={
            "learning_rate": LinearSchedule(1e-2, 0, 1),
            "clip_range": LinearSchedule(0.3, 0, 1),
            "clip_range_vf": LinearSchedule(0.5, 0, 1),
        },
        iterations=1.5,
    ),
    "exponential schedules, and jumps at env steps": Case(  # an update after 48 env steps, one after 96
        hyperparameters={
            "learning_rate": "exp_1e-2",
            "clip_range": [[0, 0.3], [49, 0.3], [49, 0.05]],
            "ent_coef": [[0, 0.1]],
        },
        stock={
            "learning_rate": lambda left: 1e-2**left * 1e-4 ** (1 - left),
            "clip_range": lambda left: 0.3 if left > 0.4 else 0.05,
            "ent_coef": 0.1,
        },
        n_steps=24,
    ),
    "value clipping": Case(hyperparameters={"clip_range_vf": 0.05}),
    "target KL": Case(hyperparameters={"target_kl": 1e-4, "n_epochs": 5}),
    "entropy bonus, no normalisation": Case(hyperparameters={"ent_coef": 0.1, "normalize_advantage": False}),
    "other coefficients": Case(
        hyperparameters={"gamma": 0.7, "gae_lambda": 0.6, "vf_coef": 1.5, "max_grad_norm": 0.1, "clip_range": 0.01}
    ),
    "batch size larger than the rollout": Case(hyperparameters={"batch_size": 1000}),
    "batch size that leaves one over": Case(hyperparameters={"batch_size": 19}, n_steps=5),
    "another network": Case(
        hyperparameters={"policy_kwargs": {"net_arch": {"pi": [5, 4], "vf": [6]}, "activation_fn": th.nn.ELU}}
    ),
    "terminations": Case("CartPole-v1", {}, n_steps=24),
    "continuous actions": Case("Pendulum-v1", {"max_episode_steps": 9}),
    "gSDE": Case("Pendulum-v1", {}, hyperparameters={"use_sde": True, "sde_sample_freq": 4}),
    "gSDE, one noise for a rollout": Case("Pendulum-v1", {}, hyperparameters={"use_sde": True}),
    "MultiDiscrete actions": sampled(BOX, spaces.MultiDiscrete([3, 2])),
    "MultiBinary actions": sampled(BOX, spaces.MultiBinary(3)),
    "Box actions of two axes": sampled(BOX, spaces.Box(-0.5, 0.5, (2, 2))),
    "Discrete observations": sampled(spaces.Discrete(5), spaces.Discrete(2)),
    "MultiBinary observations": sampled(spaces.MultiBinary(4), spaces.Discrete(2)),
    "Dict observations": sampled(MIXED, spaces.Discrete(2), policy="MultiInputPolicy", hyperparameters=TINY_MIX),
    "images": sampled(IMAGE, spaces.Discrete(2), policy="CnnPolicy", hyperparameters=TINY_CNN),
}


@functools.cache
def stock_training(name: str) -> tuple[dict[str, Any], dict[str, Any], tuple[int, int]]:
    """What stock SB3 begins with, what it ends with, and its counts of agent steps and epochs."""
    model = stock_model(CASES[name])
    before = deepcopy(leaves(model.get_parameters()))
    train_stock(model, CASES[name])
    return before, leaves(model.get_parameters()), counts_of(model)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", CASES)
def test_weights_and_optimizer_equal_those_of_stock_sb3(name: str, algorithm: str) -> None:
    before, expected, counts = stock_training(name)
    ours = train_ours(CASES[name], ALGORITHMS[algorithm]).policies["p"]
    found = leaves(ours.get_parameters())
    assert expected.keys() == found.keys()
    assert [path for path in expected if not same(expected[path], found[path])] == []
    assert counts_of(ours) == counts
    assert not any(same(before[path], found[path]) for path in before if path.endswith("net.weight"))


FUSED = [  # without clip ranges that fall to 0: there, how log-probabilities are rounded decides what is clipped
    "time limits inside rollouts",
    "value clipping",
    "target KL",
    "exponential schedules, and jumps at env steps",
    "entropy bonus, no normalisation",
    "other coefficients",
    "batch size that leaves one over",
    "terminations",
    "continuous actions",
    "MultiDiscrete actions",
    "Box actions of two axes",
    "Discrete observations",
    "MultiBinary observations",
]


@pytest.mark.parametrize("name", FUSED)
def test_fused_way_equals_stock_sb3_to_floating_point_tolerance(name: str) -> None:
    before, expected, counts = stock_training(name)
    ours = train_ours(CASES[name], FusedPPO).policies["p"]
    found = leaves(ours.get_parameters())
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        th.testing.assert_close(found[path], value, rtol=1e-3, atol=1e-5, msg=lambda text, path=path: f"{path}: {text}")
    assert counts_of(ours) == counts
    # The tolerance is small next to what was learnt.
    assert not any(th.allclose(before[path], found[path], atol=1e-3) for path in before if path.endswith("net.weight"))


class Keep(KVWriter):
    """A log that is kept as it was written."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        self.written.append({key: value for key, value in key_values.items() if key.startswith("train/")})

    def close(self) -> None:
        pass


def logged(case: Case, algorithm: type) -> list[dict[str, Any]]:
    """What `train` logs in each iteration, on a stock model in a stock loop."""
    model, log = stock_model(case, algorithm), Keep()
    model.set_logger(Logger(None, [log]))
    train_stock(model, case)
    model.logger.dump()  # the last update is written by nobody
    return log.written[1:]


@pytest.mark.parametrize(
    "name",
    ["time limits inside rollouts", "linear schedules", "value clipping", "target KL", "continuous actions", "gSDE"],
)
def test_logged_values_equal_those_of_stock_sb3(name: str) -> None:
    expected, found = (logged(CASES[name], algorithm) for algorithm in (stable_baselines3.PPO, TorchPPO))
    assert len(expected) == 2
    for stock, ours in zip(expected, found, strict=True):
        assert list(stock) == list(ours)
        assert ours == pytest.approx(stock, rel=1e-6, abs=1e-6, nan_ok=True)


STOCK_NAMES = {
    "policy_loss": "train/policy_gradient_loss",
    "vf_loss": "train/value_loss",
    "mean_kl_loss": "train/approx_kl",
    "vf_explained_var": "train/explained_variance",
    "clip_fraction": "train/clip_fraction",
    "curr_lr": "train/learning_rate",
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_metrics_of_a_learner_are_what_stock_sb3_logs(algorithm: str) -> None:
    case = Case(hyperparameters={"ent_coef": 0.1}, iterations=1)
    (stock,) = logged(case, stable_baselines3.PPO)
    spec = PolicySpec(ALGORITHMS[algorithm], **SMALL, ent_coef=0.1)
    ours = MultiAgentAlgorithm(env_of(case), {"p": spec}, n_steps=N_STEPS, seed=SEED, device="cpu")
    metrics = ours.train_iteration()["learners"]["p"]
    for name, stock_name in STOCK_NAMES.items():
        assert metrics[name] == pytest.approx(stock[stock_name], rel=1e-6, abs=1e-6), name
    assert metrics["entropy"] == pytest.approx(-stock["train/entropy_loss"])
    assert metrics["vf_loss_unclipped"] == metrics["vf_loss"]
    total = stock["train/policy_gradient_loss"] + 0.1 * stock["train/entropy_loss"] + 0.5 * stock["train/value_loss"]
    assert metrics["total_loss"] == pytest.approx(total)
    samples = N_STEPS * N_ENVS * 2
    assert metrics["num_module_steps_trained"] == 2 * samples
    assert metrics["num_grad_updates_lifetime"] == 2 * samples / 16
    weights = ours.policies["p"].policy.parameters()
    assert metrics["num_trainable_parameters"] == sum(values.numel() for values in weights)


def one_iteration(**hyperparameters: Any) -> dict[str, Any]:
    """The learner's metrics of an iteration with one minibatch per epoch."""
    spec = PolicySpec(**{**SMALL, "batch_size": 2 * N_ENVS * N_STEPS, **hyperparameters})
    algorithm = MultiAgentAlgorithm(env_of(Case()), {"p": spec}, n_steps=N_STEPS, seed=SEED, device="cpu")
    return algorithm.train_iteration()["learners"]["p"]


def test_gradient_norm_is_that_before_clipping() -> None:
    norms = [one_iteration(n_epochs=1, max_grad_norm=limit)["gradients_global_norm"] for limit in (1e-3, 1e3)]
    assert norms[0] == norms[1] > 1e-3


def test_unclipped_value_loss_is_that_without_clipping() -> None:
    # Nothing is clipped in the first of two updates; the second begins with the same weights either way.
    clipping, plain = one_iteration(clip_range_vf=1e-9), one_iteration()
    assert clipping["vf_loss_unclipped"] == pytest.approx(plain["vf_loss"], rel=1e-6)
    assert clipping["vf_loss"] > 1.0001 * plain["vf_loss"]
