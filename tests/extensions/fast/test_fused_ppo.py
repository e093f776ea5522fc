"""The fused update against PyTorch: gradients, whole updates, sampling, and what it leaves to PyTorch."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch as th
from compiling_once import from_python
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.vec_env import DummyVecEnv
from stock_training import leaves, same
from torch import nn
from toy_envs import RandomEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.core.learners.learner import blas_threads
from marl_sb3.core.policies import MlpFeatures
from marl_sb3.errors import EnvError, NumericError
from marl_sb3.extensions.fast import compiled_rollouts, contrib, coverage, replay, rollout_processing, speed
from marl_sb3.extensions.fast.fused_policy import FusedPolicy
from marl_sb3.extensions.fast.kernels import layers
from marl_sb3.extensions.fast.kernels import ppo as kernel

# SB3 says that the batch size does not divide the rollout; here that is wanted.
pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")

OBSERVATIONS = {
    "box": spaces.Box(-2, 2, (3,), np.float32),
    "matrix": spaces.Box(-2, 2, (2, 3), np.float64),
    "discrete": spaces.Discrete(5),
    "multi-discrete": spaces.MultiDiscrete([3, 4, 2]),
    "multi-binary": spaces.MultiBinary(4),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-1, 1, (2,), np.float32),
}


def vec_env(observation: str, action: str) -> DummyVecEnv:
    return DummyVecEnv([lambda: RandomEnv(OBSERVATIONS[observation], ACTIONS[action])] * 2)


def model(algorithm: type, observation: str, action: str, **hyperparameters: Any) -> Any:
    defaults = {"n_steps": 24, "batch_size": 20, "n_epochs": 3, "learning_rate": 1e-3, "seed": 1, "device": "cpu"}
    return algorithm("MlpPolicy", vec_env(observation, action), **{**defaults, **hyperparameters})


class Fused(marl_sb3.PPO):
    update_path = "fused"


def relative(found: th.Tensor, expected: th.Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp_min(1e-8))


# A whole update


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_weights_and_optimizer_after_two_iterations_are_those_of_stock_sb3(observation: str, action: str) -> None:
    stock, fused = (model(algorithm, observation, action) for algorithm in (stable_baselines3.PPO, Fused))
    for trained in (stock, fused):
        trained.set_random_seed(1)
        trained.learn(2 * 48)
    for name, expected in stock.policy.state_dict().items():
        assert relative(fused.policy.state_dict()[name], expected) < 1e-4, name
    stock_state, fused_state = (trained.policy.optimizer.state_dict()["state"] for trained in (stock, fused))
    assert stock_state.keys() == fused_state.keys()
    for key, expected in stock_state.items():
        assert fused_state[key]["step"] == expected["step"]
        for moment in ("exp_avg", "exp_avg_sq"):
            assert relative(fused_state[key][moment], expected[moment]) < 1e-3


SHARED = {"features_extractor_class": MlpFeatures, "features_extractor_kwargs": {"net_arch": [8, 7]}}
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "relu": {"policy_kwargs": {"activation_fn": nn.ReLU}},
    "no hidden layers": {"policy_kwargs": {"net_arch": []}},
    "unequal nets": {"policy_kwargs": {"net_arch": {"pi": [7], "vf": [9, 5, 3]}}},
    "entropy": {"ent_coef": 0.1},
    "no normalisation": {"normalize_advantage": False},
    "schedules": {"learning_rate": lambda p: 1e-3 * p, "clip_range": lambda p: 0.1 + 0.2 * p},
    "tight clipping": {"clip_range": 0.01, "max_grad_norm": 0.05, "n_epochs": 6},
    "value clipping": {"clip_range_vf": 0.02, "learning_rate": 1e-2},
    "value clipping by a schedule, shared layers": {
        "clip_range_vf": lambda p: 0.05 + 0.1 * p,
        "policy_kwargs": {**SHARED, "net_arch": [6]},
    },
    "a KL that ends updates": {"target_kl": 1e-3, "n_epochs": 6, "learning_rate": 1e-2},
    "a KL that ends updates in their first minibatch": {"target_kl": 1e-9, "learning_rate": 1e-2},
    "a KL that ends no update": {"target_kl": 1e3, "clip_range_vf": 0.1},
    "one minibatch": {"batch_size": 48},
    "a last minibatch of one": {"batch_size": 47},
    "a minibatch larger than the rollout": {"batch_size": 500},
    "other betas": {"policy_kwargs": {"optimizer_kwargs": {"betas": (0.8, 0.9), "eps": 1e-3}}},
    "shared layers": {"policy_kwargs": {**SHARED, "net_arch": []}},
    "shared layers before others": {"policy_kwargs": {**SHARED, "activation_fn": nn.ReLU, "net_arch": [6, 5]}},
    "separate extractors": {"policy_kwargs": {"share_features_extractor": False}},
}


@pytest.mark.parametrize("action", ["discrete", "box"])
@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_hyperparameters_mean_what_they_mean_in_stock_sb3(name: str, action: str) -> None:
    stock, fused = (model(a, "box", action, **HYPERPARAMETERS[name]) for a in (stable_baselines3.PPO, Fused))
    drawn_next = []
    for trained in (stock, fused):
        trained.set_random_seed(1)
        trained.learn(2 * 48)
        drawn_next.append(np.random.random())  # noqa: NPY002
    assert drawn_next[0] == drawn_next[1]
    for key, expected in stock.policy.state_dict().items():
        assert relative(fused.policy.state_dict()[key], expected) < 1e-4, key
    stock_log, fused_log = stock.logger.name_to_value, fused.logger.name_to_value
    assert stock_log.keys() == fused_log.keys()
    for key in stock_log:
        if key.startswith("train/"):
            assert fused_log[key] == pytest.approx(stock_log[key], rel=1e-3, abs=1e-5), key


# Gradients of a minibatch, in float64


def torch_gradients(policy: Any, batch: kernel.Samples, observations: np.ndarray, actions: np.ndarray, s: Any) -> dict:
    """SB3's loss by autograd in float64."""
    policy = policy.double()
    features = preprocess_obs(th.as_tensor(observations), policy.observation_space).flatten(1).double()
    latent_pi, latent_vf = policy.mlp_extractor(policy.features_extractor(features))
    distribution = policy._get_action_dist_from_latent(latent_pi)
    log_prob, entropy = distribution.log_prob(th.as_tensor(actions).double()), distribution.entropy()
    values = policy.value_net(latent_vf)
    ratio = th.exp(log_prob - th.as_tensor(batch.log_probs.astype(np.float64)))
    advantages = th.as_tensor(batch.advantages.astype(np.float64))
    clipped = th.clamp(ratio, 1 - s.clip_range, 1 + s.clip_range)
    policy_loss = -th.min(advantages * ratio, advantages * clipped).mean()
    before = th.as_tensor(batch.values.astype(np.float64))
    values = before + th.clamp(values.flatten() - before, -s.clip_range_vf, s.clip_range_vf)
    value_loss = ((th.as_tensor(batch.returns.astype(np.float64)) - values) ** 2).mean()
    loss = policy_loss - s.ent_coef * entropy.mean() + s.vf_coef * value_loss
    policy.zero_grad()
    loss.backward()
    return {name: p.grad.float() for name, p in policy.named_parameters()}


def inputs_of(observations: np.ndarray) -> PolicyInputs:
    return PolicyInputs(observations, np.zeros(len(observations), dtype=bool))


def gradient_parts(fused: FusedPolicy, grad: np.ndarray) -> list[np.ndarray]:
    """The gradient of each parameter; those that the kernels hold transposed are turned round."""
    parts, place, moved = [], 0, fused.copies.addresses()
    for parameter in fused.parameters:
        part = grad[place : place + parameter.numel()]
        turned = parameter.data_ptr() in moved
        parts.append(part.reshape(parameter.shape[::-1]).T if turned else part.reshape(parameter.shape))
        place += parameter.numel()
    return parts


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(
    observation=st.sampled_from(list(OBSERVATIONS)), action=st.sampled_from(list(ACTIONS)),
    pi=st.lists(st.integers(1, 9), max_size=3), vf=st.lists(st.integers(1, 9), max_size=3),
    shared=st.lists(st.integers(1, 9), max_size=2), relu=st.booleans(), rows=st.integers(1, 17),
    seed=st.integers(0, 10**6), clip_range=st.sampled_from([0.01, 0.2, 1.0]), ent_coef=st.sampled_from([0.0, 0.3]),
    clip_range_vf=st.sampled_from([0.3, 1e9, np.inf]),
)  # fmt: skip
def test_gradients_are_those_of_autograd(
    observation: str,
    action: str,
    pi: list,
    vf: list,
    shared: list,
    relu: bool,
    rows: int,
    seed: int,
    clip_range: float,
    ent_coef: float,
    clip_range_vf: float,
) -> None:
    th.manual_seed(seed)
    rng = np.random.default_rng(seed)
    for space in (OBSERVATIONS[observation], ACTIONS[action]):
        space.seed(seed)
    kwargs = {"net_arch": {"pi": pi, "vf": vf}, "activation_fn": nn.ReLU if relu else nn.Tanh, "ortho_init": False}
    if shared:
        kwargs |= {"features_extractor_class": MlpFeatures, "features_extractor_kwargs": {"net_arch": shared}}
    policy = model(Fused, observation, action, policy_kwargs=kwargs, seed=None).policy
    if action == "box":
        policy.log_std.data.normal_(0, 0.3)
    fused = FusedPolicy(policy)
    fused.read_parameters()
    observations = np.stack([OBSERVATIONS[observation].sample() for _ in range(rows)])
    actions = np.stack([ACTIONS[action].sample() for _ in range(rows)]).reshape(rows, -1)
    with th.no_grad():
        taken = th.as_tensor(actions.flatten() if action == "discrete" else actions)
        log_probs = policy.evaluate_actions(th.as_tensor(observations).float(), taken)[1].numpy()
    inputs, none = fused.inputs(observations), np.empty((rows, 0))
    batch = kernel.Samples(
        inputs=inputs,
        int_actions=(none if action == "box" else actions).astype(np.int64),
        float_actions=(actions if action == "box" else none).astype(np.float32),
        allowed=none.astype(np.float32),
        log_probs=(log_probs + rng.normal(0, 0.2, rows)).astype(np.float32),
        advantages=rng.normal(0, 1, rows).astype(np.float32),
        returns=rng.normal(0, 1, rows).astype(np.float32),
        values=rng.normal(0, 1, rows).astype(np.float32),
    )
    chosen = kernel.Settings(False, True, clip_range, ent_coef, 0.5, 0.5, clip_range_vf, np.inf)
    grad = np.full(sum(parameter.numel() for parameter in fused.parameters), np.nan, np.float32)
    spaces_ = []
    for net in (fused.nets.trunk, fused.nets.pi, fused.nets.vf):
        size = rows * int(net.table[:, 1].sum())
        spaces_.append((np.empty(size, np.float32), np.empty(size, np.float32)))
    with blas_threads(1):
        notes = np.zeros(kernel.NUM_STATS)
        from_python(kernel.gradients)(fused.nets, kernel.BOTH, batch, rows, chosen, *spaces_, grad, notes)
    names = {parameter: name for name, parameter in policy.named_parameters()}
    found = dict(zip((names[each] for each in fused.parameters), gradient_parts(fused, grad), strict=True))
    expected = torch_gradients(policy, batch, observations, taken.numpy(), chosen)
    scale = max(float(value.norm()) for value in expected.values())
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert float((th.as_tensor(gradient) - expected[name]).norm()) <= 1e-4 * scale, name


def test_a_planted_error_in_the_gradient_is_found() -> None:
    """The comparison above can fail: with tanh's slope left out it is off by far more than 1e-4."""
    values = np.array([[0.9], [0.9]], np.float32)
    delta = np.ones((2, 1), np.float32)
    bias_grad = np.empty(1, np.float32)
    from_python(layers.through_activation)(delta, values, layers.TANH, bias_grad)
    assert delta == pytest.approx(0.19)
    assert bias_grad == pytest.approx(0.38)
    assert (np.abs(delta - 1.0) > 1e-4).all()


# Acting


@pytest.mark.parametrize("network", [{}, SHARED], ids=["plain", "shared layers"])
@pytest.mark.parametrize("action", ACTIONS)
def test_actions_are_drawn_from_the_stream_that_torch_draws_from(action: str, network: dict[str, Any]) -> None:
    policy = model(Fused, "box", action, policy_kwargs=network).policy
    fused = FusedPolicy(policy)
    fused.read_parameters()
    observations = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    th.manual_seed(7)
    with th.no_grad():
        expected = policy(th.as_tensor(observations))
    th.manual_seed(7)
    actions, values, log_probs, _ = fused.act(inputs_of(observations))
    if action == "box":
        np.testing.assert_allclose(actions, expected[0].numpy(), atol=1e-6)
    else:
        np.testing.assert_array_equal(actions, expected[0].numpy())
    np.testing.assert_allclose(values, expected[1].numpy().reshape(-1), atol=1e-6)
    np.testing.assert_allclose(log_probs, expected[2].numpy(), atol=1e-5)


def test_log_probabilities_of_rounded_actions_are_those_of_torch() -> None:
    """Beside a mean of 1e4 the noise is rounded to thousandths, in the action that is stored and updated on."""
    policy = model(Fused, "box", "box").policy
    policy.action_net.bias.data.fill_(1e4)
    fused = FusedPolicy(policy)
    observations = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    th.manual_seed(7)
    actions, _, log_probs, _ = fused.act(inputs_of(observations))
    with th.no_grad():
        _, expected, _ = policy.evaluate_actions(th.as_tensor(observations), th.as_tensor(actions))
    assert np.abs(log_probs - expected.numpy()).max() < 1e-5


# What it leaves to PyTorch


def replace_layer(algorithm: Any) -> None:
    algorithm.policy.mlp_extractor.policy_net.append(nn.LayerNorm(64))


RMSPROP: dict[str, Any] = {"optimizer_class": th.optim.RMSprop}
NOT_COVERED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "weight decay": ({"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.1}}}, None, "weight decay"),
    "other optimizer": ({"policy_kwargs": {"optimizer_class": th.optim.SGD}}, None, "optimizer SGD"),
    "momentum": ({"policy_kwargs": {**RMSPROP, "optimizer_kwargs": {"momentum": 0.5}}}, None, "momentum"),
    "centered": ({"policy_kwargs": {**RMSPROP, "optimizer_kwargs": {"centered": True}}}, None, "momentum"),
    "other activation": ({"policy_kwargs": {"activation_fn": nn.ELU}}, None, "activation ELU"),
    "shared layers with another activation": (
        {"policy_kwargs": {**SHARED, "features_extractor_kwargs": {"activation_fn": nn.ELU}}},
        None,
        "activation ELU",
    ),
    "layers that are not shared": (
        {"policy_kwargs": {**SHARED, "share_features_extractor": False}},
        None,
        "extractors that are not shared",
    ),
    "a shared layer put in": (
        {"policy_kwargs": SHARED},
        lambda a: a.policy.features_extractor.layers.insert(2, nn.LayerNorm(8)),
        "layers oth",
    ),
    "a frozen shared layer": (
        {"policy_kwargs": SHARED},
        lambda a: a.policy.features_extractor.requires_grad_(False),
        "frozen",
    ),
    "a layer put in": ({}, replace_layer, "layers other than linear ones"),
    "a hook": ({}, lambda a: a.policy.value_net.register_forward_hook(lambda *_: None), "hooks of the network"),
    "an optimizer hook": ({}, lambda a: a.policy.optimizer.register_step_pre_hook(lambda *_: None), "hooks of the opt"),
    "a frozen layer": ({}, lambda a: a.policy.value_net.requires_grad_(False), "frozen"),
    "a replaced method": ({}, lambda a: setattr(a.policy, "evaluate_actions", None), "replaced methods"),
}


def reasons_in(module: Any) -> Iterator[str]:
    """What functions that say why something is not covered may return, with `X` for what they put in."""
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        is_one = isinstance(function, ast.FunctionDef) and re.search("why_not|coverage", function.name)
        for node in ast.walk(function) if is_one else ():
            found = node.keys if isinstance(node, ast.Dict) else []
            if isinstance(node, ast.Return | ast.Assign):
                found = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            for each in found:
                parts = each.values if isinstance(each, ast.JoinedStr) else [each]
                texts = [getattr(part, "value", None) if isinstance(part, ast.Constant) else "X" for part in parts]
                if all(isinstance(text, str) for text in texts) and set(texts) != {"X"}:
                    yield "".join(map(str, texts))


@pytest.mark.parametrize("module", [coverage, compiled_rollouts, contrib, replay, rollout_processing])
def test_each_reason_that_the_code_may_give_is_in_a_table(module: Any) -> None:
    assert [each for each in reasons_in(module) if speed.remedy_of(each) is None] == []
    assert next(reasons_in(module))


@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_is_not_covered_takes_the_lean_way_and_cannot_be_forced(name: str) -> None:
    hyperparameters, change, reason = NOT_COVERED[name]
    algorithm = model(marl_sb3.PPO, "box", "discrete", **hyperparameters)
    if change is not None:
        assert algorithm.why_not_fused() is None
        change(algorithm)
    assert reason in (algorithm.why_not_fused() or "")
    assert algorithm.kernels() is None
    algorithm.update_path = "fused"
    with pytest.raises(ConfigError, match=f"does not cover this policy: .*{reason}"):
        algorithm.kernels()


def test_gsde_and_subclassed_training_take_the_lean_way() -> None:
    assert model(marl_sb3.PPO, "box", "box", use_sde=True).why_not_fused() == "gSDE"

    class Mine(marl_sb3.PPO):
        trained = 0

        def train(self) -> None:
            type(self).trained += 1
            super().train()

    env = make_vec_env("arena", n_envs=2, max_timesteps=5)
    MultiAgentAlgorithm(env, {"p": PolicySpec(Mine)}, n_steps=10, batch_size=20, device="cpu").train_iteration()
    assert Mine.trained == 1


def test_an_unknown_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="update_path is 'fast'; accepted: auto, fused, torch"):
        MultiAgentAlgorithm(make_vec_env("arena"), update_path="fast", n_steps=10, batch_size=10)


# Around the update


def test_torch_updates_go_on_where_fused_ones_ended_and_back() -> None:
    stock, mixed = model(stable_baselines3.PPO, "box", "box", batch_size=24), model(Fused, "box", "box", batch_size=24)
    stock.set_random_seed(1)
    stock.learn(3 * 48)
    mixed.set_random_seed(1)
    for path in ("fused", "torch", "fused"):
        mixed.update_path = path
        mixed.learn(48, reset_num_timesteps=path == "fused" and mixed.num_timesteps == 0)
    for name, expected in stock.policy.state_dict().items():
        assert relative(mixed.policy.state_dict()[name], expected) < 1e-4, name


def test_loaded_parameters_are_those_that_act_and_train(tmp_path: Any) -> None:
    first = model(Fused, "box", "discrete", batch_size=24)
    first.learn(48)
    first.save(tmp_path / "model.zip")
    again = marl_sb3.PPO.load(tmp_path / "model.zip", env=vec_env("box", "discrete"), device="cpu")
    other = model(Fused, "box", "discrete", batch_size=24, seed=5)
    other.set_parameters(first.get_parameters())
    observations = np.ones((4, 3), np.float32)
    for copy in (again, other):
        fused = copy.kernels()
        fused.read_parameters()
        expected = first.policy.predict_values(th.as_tensor(observations)).detach().numpy().reshape(-1)
        np.testing.assert_allclose(fused.values(inputs_of(observations)), expected, atol=1e-6)
        assert {int(state["step"]) for state in copy.policy.optimizer.state.values()} == {6}


def test_a_layer_replaced_between_updates_is_the_one_that_acts_and_trains() -> None:
    algorithm = model(Fused, "box", "discrete", batch_size=24)
    algorithm.learn(48)
    algorithm.policy.value_net = nn.Linear(64, 1)
    algorithm.policy.optimizer = th.optim.Adam(algorithm.policy.parameters(), eps=1e-5)
    before = algorithm.policy.value_net.weight.detach().clone()
    algorithm.learn(48)
    assert not th.equal(algorithm.policy.value_net.weight, before)


def test_policies_updated_beside_each_other_are_those_updated_in_turn() -> None:
    trained = []
    for at_once in (1, 2):
        env = make_vec_env("arena", n_envs=3, max_timesteps=9)
        algorithm = MultiAgentAlgorithm(
            env, "per_agent", n_steps=20, n_parallel_updates=at_once, batch_size=16, seed=2, device="cpu"
        )
        algorithm.learn(3 * 60)
        trained.append(algorithm.get_parameters())
    one, other = trained
    for policy_id, parameters in one.items():
        for name, value in parameters["policy"].items():
            assert th.equal(value, other[policy_id]["policy"][name])


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize("path", ["fused", "torch"])
def test_an_update_that_overflows_is_named_and_not_saved_as_a_number(path: str) -> None:
    env = make_vec_env("arena", n_envs=2, max_timesteps=5)
    algorithm = MultiAgentAlgorithm(env, update_path=path, n_steps=10, batch_size=20, seed=0, device="cpu")
    with th.no_grad():
        algorithm.policies["shared"].policy.value_net.bias.fill_(1e30)
    with pytest.raises(NumericError, match="policy 'shared': the value loss is not finite; the rollout is finite"):
        algorithm.train_iteration()
    assert algorithm.is_finite() or path == "torch"


def test_a_nan_in_the_rollout_is_placed() -> None:
    env = make_vec_env("arena", n_envs=2, max_timesteps=5)
    algorithm = MultiAgentAlgorithm(env, n_steps=10, batch_size=20, seed=0, device="cpu")

    class Poison(marl_sb3.MultiAgentCallback):
        def _on_rollout_end(self) -> None:
            self.algorithm.policies["shared"].rollout_buffer.advantages[3, 3] = np.nan

    with pytest.raises(NumericError, match="began in the advantages of the rollout, at agent 'agent2', env 1, step 3"):
        algorithm.learn(20, callback=Poison())


@pytest.mark.parametrize("number", [-1, 5])
def test_an_observation_out_of_range_is_refused_before_it_is_an_index(number: int) -> None:
    algorithm = model(Fused, "discrete", "discrete", batch_size=24)
    algorithm.learn(48)
    before = algorithm.get_parameters()["policy"]["action_net.weight"].clone()
    algorithm.rollout_buffer.observations[:] = number
    with pytest.raises(EnvError, match=rf"observation \[{number}\] is not in Discrete\(5\)"):
        algorithm.train()
    fused = algorithm.kernels()
    with pytest.raises(EnvError, match="is not in"):
        fused.act(inputs_of(np.array([0, number])))
    assert th.equal(algorithm.get_parameters()["policy"]["action_net.weight"], before)


def test_an_action_out_of_range_is_refused_before_it_is_an_index() -> None:
    algorithm = model(Fused, "box", "multi-discrete", batch_size=24)
    algorithm.learn(48)
    algorithm.rollout_buffer.actions[3, 1] = [1, 3]
    with pytest.raises(EnvError, match=r"action \[1, 3\] is not in MultiDiscrete"):
        algorithm.train()


MEMORY = {"policy_kwargs": {"net_arch": [4], "lstm_hidden_size": 5}}
# What is trained in one minibatch, how many of the returns are NaN, and what the error says.
NOT_FINITE: dict[str, tuple[type, str, dict[str, Any], slice, str]] = {
    "PPO": (marl_sb3.PPO, "discrete", {}, slice(None), "not finite; the update stopped at that minibatch"),
    "A2C": (marl_sb3.A2C, "discrete", {}, slice(1), "not finite"),
    "TRPO, whose advantages are not either": (marl_sb3.TRPO, "box", {}, slice(None), "not finite"),
    "RecurrentPPO": (marl_sb3.RecurrentPPO, "discrete", MEMORY, slice(3, 4), "a loss or a gradient is not finite"),
}


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("name", NOT_FINITE)
def test_a_nan_in_an_update_is_an_error_and_leaves_the_weights_and_the_optimizer(name: str) -> None:
    cls, action, more, where, words = NOT_FINITE[name]
    settings = {"n_steps": 24, "learning_rate": 1e-3, "seed": 1, "device": "cpu", **more}
    policy = "MlpLstmPolicy" if more else "MlpPolicy"
    algorithm: Any = cls(policy, vec_env("box", action), **settings, **({} if name == "A2C" else {"batch_size": 48}))
    algorithm.update_path = "fused"
    algorithm.learn(48)
    before = deepcopy(leaves(algorithm.get_parameters()))
    algorithm.rollout_buffer.returns[where] = np.nan
    if "TRPO" in name:
        algorithm.rollout_buffer.advantages[0] = np.nan
    with pytest.raises(NumericError, match=words):
        algorithm.train()
    after = leaves(algorithm.get_parameters())
    assert [path for path, value in before.items() if "step" not in path and not same(value, after[path])] == []
    assert algorithm.logger.name_to_value.get("train/is_line_search_success", 0) == 0


class AsksForParameters(ActorCriticPolicy):
    """A policy of a user's that looks at its parameters while it evaluates actions."""

    asks = True

    def evaluate_actions(self, obs: Any, actions: th.Tensor) -> Any:
        if self.asks:
            assert next(self.parameters(recurse=True)).device == self.device
        return super().evaluate_actions(obs, actions)


def test_on_pytorchs_path_a_policy_may_ask_for_its_parameters() -> None:
    norms = []
    for AsksForParameters.asks in (False, True):
        spec = PolicySpec(policy=AsksForParameters, n_steps=32, batch_size=32, n_epochs=2)
        algorithm = MultiAgentAlgorithm(make_vec_env("CartPole-v1", 2, 1), {"p": spec}, seed=1, update_path="torch")
        norms.append(algorithm.train_iteration()["learners"]["p"]["gradients_global_norm"])
    assert norms[0] == norms[1] > 0
