"""A2C in the fused kernels against stock SB3: weights, optimizer and metrics after several updates."""

from __future__ import annotations

from typing import Any

import pytest
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stock_training import BOX, assert_close, leaves, same, sampled, stock_model, train_ours, train_stock

import marl_sb3
from marl_sb3.core.policies import MlpFeatures
from marl_sb3.extensions.fast import fused_policy

NETWORK = {"net_arch": [8]}
SMALL = {"small": {"policy_kwargs": NETWORK, "learning_rate": 1e-2}, "n_steps": 5, "iterations": 4}
TF_LIKE = {**NETWORK, "optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"alpha": 0.9, "eps": 1e-3}}
SHARED = {**NETWORK, "features_extractor_class": MlpFeatures, "features_extractor_kwargs": {"net_arch": [8]}}
OTHER = {"normalize_advantage": True, "ent_coef": 0.1, "gae_lambda": 0.9, "rms_prop_eps": 1e-3}
CASES = {
    "SB3's defaults": sampled(BOX, spaces.Discrete(3), **SMALL),
    "one-hot observations": sampled(spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([3, 2]), **SMALL),
    "shared layers, one-hot observations": sampled(
        spaces.MultiDiscrete([3, 4]), spaces.Discrete(3), hyperparameters={"policy_kwargs": SHARED}, **SMALL
    ),
    "Adam, continuous actions": sampled(BOX, spaces.Box(-1, 1, (2,)), hyperparameters={"use_rms_prop": False}, **SMALL),
    "TensorFlow's RMSprop": sampled(BOX, spaces.Discrete(3), hyperparameters={"policy_kwargs": TF_LIKE}, **SMALL),
    "other settings": sampled(BOX, spaces.Discrete(3), hyperparameters=OTHER, **SMALL),
}


class Fused(marl_sb3.A2C):
    update_path = "fused"


class Torch(marl_sb3.A2C):
    update_path = "torch"


@pytest.mark.parametrize("name", CASES)
def test_weights_optimizer_and_metrics_are_those_of_stock_sb3(name: str) -> None:
    case = CASES[name]
    stock = train_stock(stock_model(case, stable_baselines3.A2C), case)
    drop_in, ours = train_stock(stock_model(case, Fused), case), train_ours(case, Fused).policies["p"]
    for found in (drop_in, ours):
        assert_close(found, stock, 1e-4)
        assert (found.num_grad_updates, found.num_timesteps) == (4, stock.num_timesteps)
    expected = {name: value for name, value in stock.logger.name_to_value.items() if name.startswith("train/")}
    logged = {name: drop_in.logger.name_to_value[name] for name in expected}
    assert logged == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_the_torch_path_equals_stock_sb3_in_its_place() -> None:
    case = CASES["SB3's defaults"]
    stock = train_stock(stock_model(case, stable_baselines3.A2C), case)
    found = leaves(train_stock(stock_model(case, Torch), case).get_parameters())
    assert all(same(value, found[path]) for path, value in leaves(stock.get_parameters()).items())


@pytest.mark.parametrize("fault", ["alpha", "eps", "vf_coef", "ent_coef", "max_grad_norm", "learning_rate"])
def test_a_fault_in_any_setting_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above notices a kernel that gets one of the settings wrong by a tenth."""
    field = {"alpha": "beta2"}.get(fault, fault)

    def train_wrongly(*arguments: Any, train: Any = fused_policy.kernel.train) -> int:
        wrong = [
            part._replace(**{field: getattr(part, field) * 0.9}) if hasattr(part, field) else part for part in arguments
        ]
        return int(train(*wrong))

    monkeypatch.setattr(fused_policy.kernel, "train", train_wrongly)
    monkeypatch.setattr(fused_policy, "note_compiling", print)
    case = CASES["other settings"]
    stock = train_stock(stock_model(case, stable_baselines3.A2C), case)
    with pytest.raises(AssertionError):
        assert_close(train_stock(stock_model(case, Fused), case), stock, 1e-4)
