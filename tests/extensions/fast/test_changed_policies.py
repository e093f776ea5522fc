"""Whatever a user changes in a policy from outside, it trains as the stock algorithm with the same change does.

The changes are drawn: replaced functions, shared modules, frozen parameters, hooks, other memory, other optimizers, and
so on, before the training, when a rollout starts, or in the middle of one.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from typing import Any
from unittest.mock import Mock

import gymnasium
import pytest
import sb3_contrib
import stable_baselines3
import torch as th
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.env_util import make_vec_env as make_sb3_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy, BaseModel
from stable_baselines3.sac.policies import Actor
from torch import nn
from toy_envs import SampledEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env
from marl_sb3.core.policies import MlpFeatures
from marl_sb3.core.training import loop
from marl_sb3.extensions.fast import coverage

SEED = 7
TOLERANCE = 2e-3  # of the distance moved; the fused path is as exact as floating point within these few updates
NETWORK = {"policy_kwargs": {"net_arch": [8, 8]}}
SHARED = {"net_arch": [8], "features_extractor_class": MlpFeatures, "features_extractor_kwargs": {"net_arch": [8]}}
ROLLOUTS: dict[str, Any] = {"n_steps": 12, "learning_rate": 1e-2, **NETWORK}
REPLAYED: dict[str, Any] = {
    "learning_starts": 6,
    "batch_size": 8,
    "buffer_size": 40,
    "learning_rate": 1e-2,
    "train_freq": 4,
    "gradient_steps": 2,
    **NETWORK,
}
EPOCHS = {"batch_size": 8, "n_epochs": 2}


@dataclass(frozen=True)
class Kind:
    """An algorithm, and what is trained by it."""

    stock: Any
    settings: dict[str, Any]
    env: str = "CartPole-v1"
    policy: str = "MlpPolicy"

    @property
    def own(self) -> Any:
        return getattr(marl_sb3, self.stock.__name__)


KINDS = {
    "PPO": Kind(stable_baselines3.PPO, {**ROLLOUTS, **EPOCHS}),
    "PPO, shared layers": Kind(stable_baselines3.PPO, {**ROLLOUTS, **EPOCHS, "policy_kwargs": SHARED}),
    "PPO, forces": Kind(stable_baselines3.PPO, {**ROLLOUTS, **EPOCHS}, "Pendulum-v1"),
    "PPO, places": Kind(stable_baselines3.PPO, {**ROLLOUTS, **EPOCHS}, "FrozenLake-v1"),
    "A2C": Kind(stable_baselines3.A2C, ROLLOUTS, "Pendulum-v1"),
    "TRPO": Kind(sb3_contrib.TRPO, {**ROLLOUTS, "batch_size": 8}),
    "MaskablePPO": Kind(sb3_contrib.MaskablePPO, {**ROLLOUTS, **EPOCHS}, "masked"),
    "RecurrentPPO": Kind(sb3_contrib.RecurrentPPO, {**ROLLOUTS, **EPOCHS}, policy="MlpLstmPolicy"),
    "DQN": Kind(stable_baselines3.DQN, {**REPLAYED, "target_update_interval": 5}),
    "QRDQN": Kind(sb3_contrib.QRDQN, {**REPLAYED, "target_update_interval": 5}),
    "SAC": Kind(stable_baselines3.SAC, REPLAYED, "Pendulum-v1"),
    "TD3": Kind(stable_baselines3.TD3, REPLAYED, "Pendulum-v1"),
    "DDPG": Kind(stable_baselines3.DDPG, REPLAYED, "Pendulum-v1"),
    "TQC": Kind(sb3_contrib.TQC, REPLAYED, "Pendulum-v1"),
}


# What is changed. Each function returns whether the algorithm has such a thing.


def linears(algorithm: Any) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Every linear layer with its owner and its name there."""
    owners = list(algorithm.policy.modules())
    return [(owner, name, layer) for owner in owners for name, layer in owner.named_children() if _is_linear(layer)]


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear


def owners_of_optimizers(algorithm: Any) -> Iterator[Any]:
    """The modules that have an optimizer."""
    return (each for each in algorithm.policy.modules() if getattr(each, "optimizer", None) is not None)


def trained_layer(algorithm: Any) -> nn.Linear:
    """A layer that an optimizer trains."""
    groups = [group for owner in owners_of_optimizers(algorithm) for group in owner.optimizer.param_groups]
    held = {id(parameter) for group in groups for parameter in group["params"]}
    return next(layer for _, _, layer in linears(algorithm) if id(layer.weight) in held)


def renew_optimizers(algorithm: Any, make: Callable[[Any, Any], th.optim.Optimizer]) -> None:
    for owner in owners_of_optimizers(algorithm):
        owner.optimizer = make(owner.optimizer, list(owner.optimizer.param_groups[0]["params"]))


def wrap(owner: Any, name: str, change: Callable[[Any], Any]) -> bool:
    """Replace a method of an instance by one that changes what it returns."""
    method = getattr(owner, name, None)
    if method is None or owner is None:
        return False
    setattr(owner, name, lambda *args, **kwargs: change(method(*args, **kwargs)))
    return True


def halved(values: Any) -> Any:
    return tuple(map(halved, values)) if isinstance(values, tuple) else values * 0.5


def replaced_features(algorithm: Any) -> bool:
    return wrap(algorithm.policy, "extract_features", halved)


def replaced_values(algorithm: Any) -> bool:
    return hasattr(algorithm, "rollout_buffer") and wrap(algorithm.policy, "predict_values", halved)


def replaced_layer(algorithm: Any) -> bool:
    return wrap(trained_layer(algorithm), "forward", halved)


def replaced_actor_part(algorithm: Any) -> bool:
    return wrap(getattr(algorithm.policy, "mlp_extractor", None), "forward_actor", halved)


def replaced_samples(algorithm: Any) -> bool:
    """Minibatches in which all returns are halved."""
    buffer = getattr(algorithm, "rollout_buffer", None)
    if buffer is None:
        return False
    drawn = buffer.get
    buffer.get = lambda *args, **kwargs: (b._replace(returns=b.returns * 0.5) for b in drawn(*args, **kwargs))
    return True


def _twice(step: Callable[[], Any]) -> None:
    step()
    step()


def replaced_step(algorithm: Any) -> bool:
    """An optimizer that steps twice."""
    for owner in owners_of_optimizers(algorithm):
        owner.optimizer.step = partial(_twice, owner.optimizer.step)
    return True


def other_distribution(algorithm: Any) -> bool:
    """Actions with half the spread."""
    distribution = getattr(algorithm.policy, "action_dist", None)
    if type(distribution).__name__ != "DiagGaussianDistribution":
        return False
    own = type(distribution)(distribution.action_dim)
    proba = own.proba_distribution
    own.proba_distribution = lambda mean, log_std: proba(mean, log_std - 0.7)
    algorithm.policy.action_dist = own
    return True


def shared_trunk(algorithm: Any) -> bool:
    extractor = getattr(algorithm.policy, "mlp_extractor", None)
    if extractor is None:
        return False
    extractor.value_net = extractor.policy_net
    renew_optimizers(algorithm, lambda old, _: type(old)(algorithm.policy.parameters(), lr=1e-2))
    return True


def shared_critics(algorithm: Any) -> bool:
    critic = getattr(algorithm, "critic", None)
    if critic is None or len(critic.q_networks) < 2:
        return False
    critic.q_networks[1].load_state_dict(critic.q_networks[0].state_dict())
    for layer, other in zip(critic.q_networks[1], critic.q_networks[0], strict=True):
        if _is_linear(layer):
            layer.weight.data, layer.bias.data = other.weight.data, other.bias.data
    return True


def frozen(algorithm: Any) -> bool:
    trained_layer(algorithm).requires_grad_(False)
    return True


def gradient_hook(algorithm: Any) -> bool:
    trained_layer(algorithm).weight.register_hook(lambda gradient: gradient * -1.0)
    return True


def late_gradient_hook(algorithm: Any) -> bool:
    def turn_round(parameter: Any) -> None:
        parameter.grad.mul_(-1.0)

    trained_layer(algorithm).bias.register_post_accumulate_grad_hook(turn_round)
    return True


def forward_hook(algorithm: Any) -> bool:
    trained_layer(algorithm).register_forward_hook(lambda module, inputs, outputs: outputs * 0.5)
    return True


def step_hook(algorithm: Any) -> bool:
    def no_steps_of_half(optimizer: Any, args: Any, kwargs: Any) -> None:
        for parameter in optimizer.param_groups[0]["params"][::2]:
            if parameter.grad is not None:
                parameter.grad.zero_()

    for owner in owners_of_optimizers(algorithm):
        owner.optimizer.register_step_pre_hook(no_steps_of_half)
    return True


def rebound(algorithm: Any) -> bool:
    """Other memory, other numbers."""
    for parameter in algorithm.policy.parameters():
        parameter.data = parameter.data * 0.7
    return True


def set_through_data(algorithm: Any) -> bool:
    """Numbers that PyTorch does not know to have changed."""
    for parameter in algorithm.policy.parameters():
        parameter.data.mul_(0.7)
    return True


def annealed(algorithm: Any) -> bool:
    log_std = getattr(algorithm.policy, "log_std", None)
    if log_std is None:
        return False
    log_std.data.fill_(-1.5)
    return True


def loaded(algorithm: Any) -> bool:
    """Numbers set in place, as `load_state_dict` does."""
    with th.no_grad():
        for parameter in algorithm.policy.parameters():
            parameter.mul_(0.7)
    return True


def optimizer_of_a_part(algorithm: Any) -> bool:
    for parameter in algorithm.policy.parameters():
        parameter.grad = None  # stock leaves that of the latest minibatch, which would count in the norm for ever
    renew_optimizers(algorithm, lambda old, parameters: type(old)(parameters[::2], lr=1e-2))
    return True


def optimizer_in_another_order(algorithm: Any) -> bool:
    renew_optimizers(algorithm, lambda old, parameters: type(old)(parameters[::-1], lr=1e-2))
    return True


def plain_sgd(algorithm: Any) -> bool:
    renew_optimizers(algorithm, lambda _, parameters: th.optim.SGD(parameters, lr=1e-2))
    return True


def parameter_groups(algorithm: Any) -> bool:
    def split(old: Any, parameters: Any) -> Any:
        return type(old)([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 1e-3}], lr=1e-2)

    renew_optimizers(algorithm, split)
    return True


def without_bias(algorithm: Any) -> bool:
    biases = {id(layer.bias) for _, _, layer in linears(algorithm)}
    renew_optimizers(algorithm, lambda old, given: type(old)([p for p in given if id(p) not in biases], lr=1e-2))
    for _, _, layer in linears(algorithm):  # of targets too: stock copies parameters in pairs
        layer.bias = None
    return True


def replaced_parameter(algorithm: Any) -> bool:
    """A parameter that no optimizer knows."""
    layer = trained_layer(algorithm)
    layer.weight = nn.Parameter(layer.weight.detach() * 0.5)
    return True


def other_activation(algorithm: Any) -> bool:
    for owner in list(algorithm.policy.modules()):
        for name, part in list(owner.named_children()):
            if isinstance(part, (nn.Tanh, nn.ReLU)) and isinstance(owner, nn.Sequential):
                owner._modules[name] = nn.ELU()
                return True
    return False


def double_precision(algorithm: Any) -> bool:
    """A layer that computes in float64."""
    layer = trained_layer(algorithm)
    layer.double()
    renew_optimizers(algorithm, lambda old, parameters: type(old)(parameters, lr=1e-2))
    layer.register_forward_pre_hook(lambda module, inputs: tuple(each.double() for each in inputs))
    layer.register_forward_hook(lambda module, inputs, outputs: outputs.float())
    return True


def another_target_kl(algorithm: Any) -> bool:
    if not hasattr(algorithm, "target_kl") or hasattr(algorithm, "cg_max_steps"):
        return False
    algorithm.target_kl = 1e-6
    return True


def replaced_log_std(algorithm: Any) -> bool:
    """A parameter of the policy itself, that no optimizer knows."""
    if getattr(algorithm.policy, "log_std", None) is None:
        return False
    algorithm.policy.log_std = nn.Parameter(th.full_like(algorithm.policy.log_std, -1.5))
    return True


class Halved(nn.Linear):
    def forward(self, inputs: th.Tensor) -> th.Tensor:
        return super().forward(inputs) * 0.5


def other_class_of_a_layer(algorithm: Any) -> bool:
    trained_layer(algorithm).__class__ = Halved
    return True


def other_class_of_a_network(algorithm: Any) -> bool:
    network = next((getattr(algorithm, name) for name in ("q_net", "quantile_net") if hasattr(algorithm, name)), None)
    if network is None:
        return False
    kind = type(network)
    network.__class__ = type("Own", (kind,), {"forward": lambda self, obs: kind.forward(self, obs) * 0.5})
    return True


def another_network_acts(algorithm: Any) -> bool:
    """Stock acts by the policy's networks, and trains the algorithm's."""
    name = next((name for name in ("actor", "q_net", "quantile_net") if hasattr(algorithm, name)), None)
    if name is None:
        return False
    own = deepcopy(getattr(algorithm, name))
    for parameter in own.parameters():
        parameter.data.mul_(-1.0)
    setattr(algorithm.policy, name, own)
    return True


def forgotten_steps(algorithm: Any) -> bool:
    """An optimizer that begins anew with some parameters."""
    for owner in owners_of_optimizers(algorithm):
        for parameter in owner.optimizer.param_groups[0]["params"][::2]:
            owner.optimizer.state.pop(parameter, None)
    return True


def transposed(algorithm: Any) -> bool:
    for _, _, layer in linears(algorithm):
        if layer.in_features == layer.out_features:
            layer.weight.data = layer.weight.data.t()
    return True


def other_epsilon(algorithm: Any) -> bool:
    distribution = getattr(getattr(algorithm, "actor", None), "action_dist", None)
    if distribution is None:
        return False
    distribution.epsilon = 0.5
    return True


class Wrapped:
    """Another optimizer's wrapper, with what SB3 calls and no more."""

    def __init__(self, inner: th.optim.Optimizer) -> None:
        self.inner, self.param_groups = inner, inner.param_groups

    def step(self) -> None:
        for group in self.inner.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(-1.0)
        self.inner.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


def wrapped_optimizer(algorithm: Any) -> bool:
    for owner in owners_of_optimizers(algorithm):
        owner.optimizer = Wrapped(owner.optimizer)
    return True


def nothing(algorithm: Any) -> bool:
    return True


_OF_A_CHANGE = {"algorithm": "Any", "return": "bool"}
CHANGES: list[Any] = [made for made in list(globals().values()) if getattr(made, "__annotations__", 0) == _OF_A_CHANGE]
MOMENTS = ("before", "rollout", "step")


class Changes(BaseCallback):
    """Changes the policy when the second rollout starts."""

    def __init__(self, change: Callable[[Any], bool], moment: str) -> None:
        super().__init__()
        self.change, self.moment = change, moment
        self.rollouts = self.steps = 0

    @property
    def policy_algorithm(self) -> Any:
        return self.model.policies["p"] if isinstance(self.model, MultiAgentAlgorithm) else self.model

    def _on_rollout_start(self) -> None:
        self.rollouts += 1
        if self.moment == "rollout" and self.rollouts == 2:
            self.change(self.policy_algorithm)

    def _on_step(self) -> bool:
        return True


class ChangesInStep(Changes):
    """Changes the policy in the middle of the second rollout."""

    def _on_step(self) -> bool:
        self.steps += 1
        if self.steps == 15:
            self.change(self.policy_algorithm)
        return True


def callback(change: Callable[[Any], bool], moment: str) -> Changes:
    return (ChangesInStep if moment == "step" else Changes)(change, moment)


def make_env(kind: Kind) -> Any:
    if kind.env == "masked":
        script = {"a": (5, "truncated"), "b": (5, "terminated")}
        box, choice = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(3)
        return make_vec_env(SampledEnv, observation_space=box, action_space=choice, script=script, masked=True)
    return make_vec_env(kind.env, n_envs=2, max_episode_steps=9)


def train_apart(kind: Kind, cls: Any, change: Callable[[Any], bool], moment: str) -> Any:
    """Train by one algorithm alone, on its VecEnv of two rows."""
    algorithm = cls(kind.policy, make_env(kind).as_sb3_vec_env(), seed=SEED, device="cpu", **deepcopy(kind.settings))
    if moment == "before":
        change(algorithm)
    return algorithm.learn(72, callback=callback(change, moment))


def train_jointly(kind: Kind, change: Callable[[Any], bool], moment: str, own: Any = None) -> Any:
    """Train as the only policy of a joint algorithm."""
    env, spec = make_env(kind), PolicySpec(own or kind.own, kind.policy, **deepcopy(kind.settings))
    joint = MultiAgentAlgorithm(env, {"p": spec}, n_steps=12, seed=SEED, device="cpu")
    if moment == "before":
        change(joint.policies["p"])
    return joint.learn(36 * env.num_envs, callback=callback(change, moment)).policies["p"]


@cache
def applies(name: str, change: Callable[[Any], bool]) -> bool:
    kind = KINDS[name]
    env = make_env(kind).as_sb3_vec_env()
    return change(kind.stock(kind.policy, env, seed=SEED, device="cpu", **deepcopy(kind.settings)))


@cache
def stock_weights(name: str, change: Callable[[Any], bool], moment: str) -> dict[str, th.Tensor]:
    return weights(train_apart(KINDS[name], KINDS[name].stock, change, moment))


@cache
def first_weights(name: str) -> dict[str, th.Tensor]:
    kind = KINDS[name]
    env = make_env(kind).as_sb3_vec_env()
    return weights(kind.stock(kind.policy, env, seed=SEED, device="cpu", **deepcopy(kind.settings)))


def weights(algorithm: Any) -> dict[str, th.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in algorithm.policy.state_dict().items()}


def distance(found: dict[str, th.Tensor], expected: dict[str, th.Tensor]) -> float:
    assert found.keys() == expected.keys()
    return float(sum((found[name].double() - expected[name].double()).norm() ** 2 for name in expected)) ** 0.5


FAILS_IN_STOCK = [("TRPO", frozen), ("TRPO", double_precision)]  # it differentiates with respect to all parameters
CASES = [case for case in itertools.product(KINDS, CHANGES, MOMENTS) if case[:2] not in FAILS_IN_STOCK]


def check(name: str, change: Callable[[Any], bool], moment: str, jointly: bool) -> None:
    expected = stock_weights(name, change, moment)
    kind = KINDS[name]
    found = weights(train_jointly(kind, change, moment) if jointly else train_apart(kind, kind.own, change, moment))
    moved = distance(stock_weights(name, nothing, "before"), first_weights(name))
    assert distance(found, expected) < TOLERANCE * moved


@given(case=st.sampled_from(CASES), jointly=st.booleans())
@settings(max_examples=12, deadline=None, derandomize=True)
def test_a_changed_policy_trains_as_the_stock_algorithm_does(case: tuple[Any, ...], jointly: bool) -> None:
    assume(applies(*case[:2]))
    check(*case, jointly)


@pytest.mark.proof
@pytest.mark.parametrize("jointly", [False, True])
@pytest.mark.parametrize(("name", "change", "moment"), CASES)
def test_every_change_in_every_algorithm(name: str, change: Any, moment: str, jointly: bool) -> None:
    if applies(name, change):
        check(name, change, moment, jointly)


# What is put into a class of a library: the kind that is trained, the class, the method, and what is made of it.


def _put(owner: type, name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    method = getattr(owner, name)
    return wraps(method)(lambda self, *args, **kwargs: change(method(self, *args, **kwargs)))


def _trained_twice(train: Any) -> Any:
    def train_twice(self: Any, *args: Any, **kwargs: Any) -> None:
        train(self, *args, **kwargs)
        train(self, *args, **kwargs)

    return train_twice


INTO_CLASSES: dict[str, tuple[str, type, str, Any]] = {
    "a policy": ("PPO", ActorCriticPolicy, "evaluate_actions", lambda x: (x[0], x[1], x[2] * 3.0)),
    "a base": ("A2C", BaseModel, "extract_features", halved),
    "a layer": ("DQN", nn.Linear, "forward", halved),
    "a distribution": ("PPO, forces", DiagGaussianDistribution, "entropy", lambda x: x * 3.0),
    "samples": ("PPO", RolloutBuffer, "get", lambda x: (each._replace(returns=each.returns * 0.5) for each in x)),
    "an actor": ("SAC", Actor, "action_log_prob", lambda x: (x[0], x[1] * 3.0)),
    "a training": ("PPO", stable_baselines3.PPO, "train", None),
    "another training": ("TD3", stable_baselines3.TD3, "train", None),
}


@pytest.mark.parametrize("where", INTO_CLASSES)
def test_a_method_that_is_put_into_a_class_counts(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, owner, method, change = INTO_CLASSES[where]
    kind = KINDS[name]
    if "entropy" in method or "evaluate" in method:
        kind = replace(kind, settings={**kind.settings, "ent_coef": 0.3})
    plain = weights(train_apart(kind, kind.own, nothing, "before"))
    monkeypatch.setattr(owner, method, _put(owner, method, change) if change else _trained_twice(owner.train))  # type: ignore[attr-defined]
    expected, *found = (train_apart(kind, cls, nothing, "before") for cls in (kind.stock, kind.own))
    found.append(train_jointly(kind, nothing, "before"))
    moved = distance(weights(expected), plain)
    assert moved > 1e-3
    for each in found:
        assert distance(weights(each), weights(expected)) < 1e-6 * moved
        assert each.why_not_fused() == f"a replaced {owner.__name__}.{method}"


def test_a_class_that_is_changed_in_the_course_of_a_training_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = train_apart(KINDS["PPO"], marl_sb3.PPO, nothing, "before")
    assert algorithm.kernels() is not None
    monkeypatch.setattr(nn.Tanh, "forward", Mock(return_value=None))
    assert algorithm.kernels() is None


@pytest.mark.parametrize("of_sb3", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_a_verbose_drop_in_prints_its_path_once(name: str, of_sb3: bool, capsys: pytest.CaptureFixture[str]) -> None:
    kind = KINDS[name]
    env = make_sb3_vec_env(kind.env, n_envs=2) if of_sb3 and kind.env != "masked" else make_env(kind).as_sb3_vec_env()
    quiet, algorithm = (kind.own(kind.policy, env, verbose=v, **deepcopy(kind.settings)) for v in (0, 1))
    printed = []
    for change in (nothing, forward_hook):
        change(algorithm)
        algorithm.learn(24).learn(24)
        printed += [line for line in capsys.readouterr().out.splitlines() if line.startswith("marl_sb3 ")]
    path = "compiled kernels choose the actions and compute the updates"
    assert printed[0] == f"marl_sb3 {kind.own.__name__}: {path}"
    torch = "PyTorch chooses the actions and computes the updates"
    slow = f"{torch}, not the faster kernels (hooks of the network); faster with no hooks"
    assert printed[1:] == [f"marl_sb3 {kind.own.__name__}: {slow}"]
    quiet.learn(24)
    assert not capsys.readouterr().out


# The comparison can fail: each of these faults is found by a change.

BLIND: dict[str, tuple[str, Any, tuple[str, Any, str]]] = {
    "replaced methods": ("has_replaced_methods", lambda owner: False, ("PPO", replaced_features, "before")),
    "hooks of gradients": (
        "_is_frozen_or_hooked",
        lambda tensor: not tensor.requires_grad,
        ("SAC", gradient_hook, "before"),
    ),
    "hooks of modules": (
        "_any_hook",
        lambda of_modules: False,
        ("DQN", forward_hook, "rollout"),
    ),
    "optimizers": ("why_not_optimizer", lambda optimizer, kinds=(): None, ("TD3", step_hook, "rollout")),
    "tensors": ("_why_not_tensors", lambda tensors: None, ("PPO", shared_trunk, "before")),
    "identity": ("_are_same", lambda ones, others: True, ("A2C", optimizer_of_a_part, "before")),
}


@pytest.mark.parametrize("fault", BLIND)
def test_a_check_that_looks_away_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, blind, case = BLIND[fault]
    check(*case, jointly=False)
    monkeypatch.setattr(coverage, name, blind)
    with pytest.raises(AssertionError):
        check(*case, jointly=False)


def test_weights_that_are_read_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = "PPO, places", loaded, "step"  # the weights that one-hot observations are multiplied with are copied
    check(*case, jointly=True)
    monkeypatch.setattr(loop, "has_step_hook", lambda callback: False)
    with pytest.raises(AssertionError):
        check(*case, jointly=True)


def train_with_one_critic(update_path: str) -> dict[str, th.Tensor]:
    env = make_vec_env("arena", n_envs=2, max_timesteps=7, height=4)
    specs = {name: PolicySpec(marl_sb3.PPO, **deepcopy({**ROLLOUTS, **EPOCHS})) for name in ("one", "two")}
    mapping = {"agent1": "one", "agent2": "two"}
    joint = MultiAgentAlgorithm(env, specs, mapping, seed=SEED, device="cpu", update_path=update_path)
    one, two = (joint.policies[name].policy for name in specs)
    two.mlp_extractor.value_net, two.value_net = one.mlp_extractor.value_net, one.value_net  # type: ignore[union-attr]
    two.optimizer = th.optim.Adam(two.parameters(), lr=1e-2)
    joint.learn(72)
    return {f"{name}/{key}": tensor for name in specs for key, tensor in weights(joint.policies[name]).items()}


def test_a_critic_of_two_policies_gets_the_updates_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train_with_one_critic("torch")
    assert distance(train_with_one_critic("fused"), expected) < 1e-2
    monkeypatch.setattr(loop, "_without_shared_parameters", lambda learners: [learners])
    assert distance(train_with_one_critic("fused"), expected) > 0.1


@pytest.mark.parametrize("name", ["PPO", "TRPO", "RecurrentPPO", "DQN", "SAC"])
def test_a_trained_algorithm_is_copied_and_pickled(name: str) -> None:
    trained = train_apart(KINDS[name], KINDS[name].own, nothing, "before")
    copies = [pickle.loads(pickle.dumps(trained))]
    if name != "RecurrentPPO":  # stock fails on its own distribution
        copies.append(deepcopy(trained))
    for copied in copies:
        assert distance(weights(copied), weights(trained)) == 0.0
        copied.learn(24, reset_num_timesteps=False)
        assert distance(weights(copied), weights(trained)) > 0.0


# What a user's subclass does


class OwnRate:
    """A learning rate of one's own."""

    def _update_learning_rate(self, optimizers: Any) -> None:
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            optimizer.param_groups[0]["lr"] = 1e-4


class OwnExploration:
    """Acts by what it would do next to last."""

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        actions, state = super().predict(*args, **kwargs)  # type: ignore[misc]
        return 1 - actions, state


@pytest.mark.parametrize("jointly", [False, True])
@pytest.mark.parametrize(
    ("name", "own"), [("PPO", OwnRate), ("A2C", OwnRate), ("SAC", OwnRate), ("DQN", OwnExploration)]
)
def test_a_subclass_trains_in_its_own_way(name: str, own: type, jointly: bool) -> None:
    kind = KINDS[name]
    ours, stock = (type(f"Own{cls.__name__}", (own, cls), {}) for cls in (kind.own, kind.stock))
    expected = weights(train_apart(kind, stock, nothing, "before"))
    found = weights(train_jointly(kind, nothing, "before", ours) if jointly else train_apart(kind, ours, nothing, ""))
    assert distance(found, expected) < TOLERANCE * distance(expected, first_weights(name))


class AnnealsAtEnds(MultiAgentCallback):
    """Has no step hook, but a hook that is called within rollouts."""

    def on_episode_end(self, episode: Any) -> None:
        annealed(self.algorithm.policies["p"])


def test_weights_that_are_set_when_an_episode_ends_count() -> None:
    found = []
    for path in ("fused", "torch"):
        env, spec = make_env(KINDS["A2C"]), PolicySpec(marl_sb3.A2C, **deepcopy(ROLLOUTS))
        joint = MultiAgentAlgorithm(env, {"p": spec}, n_steps=12, seed=SEED, device="cpu", update_path=path)
        found.append(weights(joint.learn(72, callback=AnnealsAtEnds()).policies["p"]))
    assert distance(*found) < 1e-4


def test_an_activation_may_be_a_function_that_makes_it() -> None:
    settings = {**ROLLOUTS, "policy_kwargs": {"activation_fn": partial(nn.LeakyReLU, 0.2)}}
    algorithm = marl_sb3.PPO(
        "MlpPolicy", make_env(KINDS["PPO"]).as_sb3_vec_env(), device="cpu", batch_size=8, **settings
    )
    assert "LeakyReLU" in str(algorithm.learn(24).why_not_fused())
