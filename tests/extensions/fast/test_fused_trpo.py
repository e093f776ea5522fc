"""TRPO in the fused kernels against sb3-contrib: Hessian-vector products, gradients, and whole updates."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch as th
from compiling_once import from_python
from gymnasium import spaces
from stable_baselines3.common.distributions import kl_divergence
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stock_training import BOX, Case, assert_close, sampled, stock_model, train_ours, train_stock
from torch import nn

import marl_sb3
from marl_sb3.core.on_policy.rollout import flat_samples
from marl_sb3.core.policies import MlpFeatures
from marl_sb3.extensions.fast.kernels import trpo as kernel

NETWORK = {"net_arch": [8, 7]}
SMALL = {"small": {"policy_kwargs": NETWORK, "batch_size": 16, "n_critic_updates": 2, "learning_rate": 3e-3}}
SHARED = {**NETWORK, "features_extractor_class": MlpFeatures, "features_extractor_kwargs": {"net_arch": [6, 5]}}
RELU = {"hyperparameters": {"policy_kwargs": {**SHARED, "activation_fn": nn.ReLU}}, **SMALL}  # its trunk has tanh
CATEGORIES, CHOICES = spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([3, 2])
FORCES = spaces.Box(-1, 1, (2,))
SAMPLED = ("observations", "actions", "log_probs", "advantages")
OTHER: dict[str, Any] = {  # the first step is too long, a second one is not
    "cg_max_steps": 5,
    "cg_damping": 1e-3,
    "line_search_shrinking_factor": 0.7,
    "line_search_max_iter": 2,
    "target_kl": 4.0,
    "sub_sampling_factor": 3,
}
MORE = {"normalize_advantage": False, "policy_kwargs": {**NETWORK, "optimizer_class": RMSpropTFLike}}


def with_settings(**settings: Any) -> Case:
    return sampled(BOX, FORCES, hyperparameters={**OTHER, **MORE, **settings}, iterations=1, **SMALL)


CASES = {
    "SB3's defaults": Case("CartPole-v1", {}, n_steps=24, **SMALL),
    "one-hot observations, several choices": sampled(CATEGORIES, CHOICES, **SMALL),
    "Box actions": sampled(BOX, FORCES, **SMALL),
    "shared layers, Box actions": sampled(BOX, FORCES, **RELU),
    "shared layers, one-hot observations": sampled(CATEGORIES, spaces.Discrete(3), **RELU),
    "other settings": with_settings(),
    "a step that fails": with_settings(line_search_max_iter=1),
}


class Fused(marl_sb3.TRPO):
    update_path = "fused"


def agree(found: Any, expected: Any) -> None:
    """Weights and the optimizer to tolerance; the decisions of line searches, and the other metrics."""
    assert_close(found, expected, 1e-3)
    metrics = {name: value for name, value in expected.logger.name_to_value.items() if name.startswith("train/")}
    logged = {name: found.logger.name_to_value[name] for name in metrics}
    assert logged == pytest.approx(metrics, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_weights_optimizer_and_metrics_are_those_of_sb3_contrib(name: str) -> None:
    case, trained, drawn_next = CASES[name], [], []
    for algorithm in (sb3_contrib.TRPO, Fused):
        trained.append(train_stock(stock_model(case, algorithm), case))
        drawn_next.append((np.random.random(), th.rand(1)))  # noqa: NPY002
    (stock, drop_in), ours = trained, train_ours(case, Fused).policies["p"]
    agree(drop_in, stock)
    assert_close(ours, stock, 1e-3)
    assert drawn_next[0] == drawn_next[1]
    assert ours.num_grad_updates == drop_in.num_grad_updates == 6 * case.iterations
    assert stock.logger.name_to_value["train/is_line_search_success"] == (name != "a step that fails")


@pytest.mark.parametrize("space", [spaces.Discrete(3), CHOICES])
def test_with_masks_it_trains_as_pytorch_does(space: spaces.Space) -> None:
    case = sampled(BOX, space, **SMALL)
    case.env_kwargs = {**case.env_kwargs, "masked": True}
    models = [stock_model(case, marl_sb3.MaskableTRPO) for _ in range(2)]
    for model, model.update_path in zip(models, ("fused", "torch"), strict=True):
        model.set_random_seed(1)
        assert not train_stock(model, case).rollout_buffer.action_masks.all()
    agree(*models)


@pytest.mark.parametrize("fault", OTHER)
def test_a_fault_in_any_setting_is_found(fault: str) -> None:
    """The comparison above notices a kernel that gets one of the settings wrong."""
    case = CASES["other settings"]
    wrong = with_settings(**{fault: type(OTHER[fault])(OTHER[fault] * 0.7)})
    with pytest.raises(AssertionError):
        agree(train_stock(stock_model(wrong, Fused), wrong), train_stock(stock_model(case, sb3_contrib.TRPO), case))


@pytest.mark.parametrize("name", ["SB3's defaults", "Box actions", "shared layers, Box actions"])
def test_products_with_the_hessian_and_the_gradient_are_those_of_autograd(name: str) -> None:
    model = train_stock(stock_model(CASES[name], Fused), CASES[name])
    actor = model.prepare_update()._train.args[0].actor._replace(line_search_max_iter=0)  # it stays where it is
    gradient, product = np.zeros_like(actor.origin), np.zeros_like(actor.origin)
    from_python(kernel.step_actor)(actor, np.zeros(4))
    from_python(kernel.objective)(actor, gradient)
    from_python(kernel._return)(actor, gradient)
    columns = (flat_samples(model.rollout_buffer, name) for name in SAMPLED)
    seen, acted, before, gains = (th.as_tensor(column).float().squeeze() for column in columns)
    with th.no_grad():
        old = copy(model.policy.get_distribution(seen))
    now, gains = model.policy.get_distribution(seen), (gains - gains.mean()) / (gains.std() + 1e-8)
    objective = (gains * th.exp(now.log_prob(acted) - before)).mean()
    learned, expected, slope, _ = model._compute_actor_grad(kl_divergence(now, old).mean(), objective)
    from_python(kernel.multiply_hessian)(actor, (vector := th.randn_like(expected)).numpy(), product)
    curved = model.hessian_vector_product(learned, slope, vector)
    for found, of_autograd in ((product, curved.numpy()), (-gradient, expected.numpy())):
        assert np.linalg.norm(found - of_autograd) < 1e-5 * np.linalg.norm(of_autograd)
