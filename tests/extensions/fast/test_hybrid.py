"""Distributions of several parts equal those of SB3's, part by part; the algorithms are used as SB3's are."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableCategoricalDistribution
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    kl_divergence,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import SampledEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.extensions.fast.contrib import MaskableHybridDistribution
from marl_sb3.extensions.fast.hybrid import ChoicesDistribution, HybridDistribution
from marl_sb3.extensions.fast.joined_actions import joined_actions
from marl_sb3.extensions.transfer.export import export_policies

# In this order: aim (2 numbers), gear (2 and 3 choices), mode (3 choices), power (1 number), tools (2 flags).
PARTS: dict[str, spaces.Space[Any]] = {
    "aim": spaces.Box(-2, 2, (2,)),
    "gear": spaces.MultiDiscrete([2, 3]),
    "mode": spaces.Discrete(3, start=1),
    "power": spaces.Box(0, 1, (1,)),
    "tools": spaces.MultiBinary(2),
}
SPACE: Any = joined_actions(spaces.Dict(PARTS))
ROWS = 4
LOG_STD = th.tensor([0.1, -0.5, 0.3])


def parameters(size: int, seed: int = 0) -> th.Tensor:
    return th.randn((ROWS, size), generator=th.Generator().manual_seed(seed))


def sb3_parts(given: th.Tensor) -> list[tuple[Any, list[int]]]:
    """SB3's distributions of the parts, and the columns of their numbers: gear, mode, tools, then all Boxes."""
    gear, mode, tools, means = th.split(given, [5, 3, 2, 3], dim=1)
    return [
        (MultiCategoricalDistribution([2, 3]).proba_distribution(gear), [2, 3]),
        (CategoricalDistribution(3).proba_distribution(mode), [4]),
        (BernoulliDistribution(2).proba_distribution(tools), [6, 7]),
        (DiagGaussianDistribution(3).proba_distribution(means, LOG_STD), [0, 1, 5]),
    ]


def test_it_is_the_sum_of_sb3s_distributions_of_the_parts() -> None:
    given = parameters(13)
    whole = HybridDistribution(SPACE).proba_distribution(given, LOG_STD)
    actions = whole.sample()
    assert actions.shape == (ROWS, 8)
    parts = sb3_parts(given)
    log_probs = [part.log_prob(actions[:, own].squeeze(1) if own == [4] else actions[:, own]) for part, own in parts]
    th.testing.assert_close(whole.log_prob(actions), sum(log_probs))
    th.testing.assert_close(whole.entropy(), sum(part.entropy() for part, _ in parts))
    for part, own in parts:
        th.testing.assert_close(whole.mode()[:, own], part.mode().reshape(ROWS, -1).float())


def test_the_log_probability_by_hand() -> None:
    space: Any = joined_actions(spaces.Tuple([spaces.Discrete(2), spaces.Box(-9, 9, (1,))]))
    whole = HybridDistribution(space).proba_distribution(th.tensor([[np.log(3.0), 0.0, 2.0]]), th.zeros(1))
    log_prob = whole.log_prob(th.tensor([[0.0, 3.0]])).item()  # 3 of 4; one standard deviation away
    assert log_prob == pytest.approx(np.log(0.75) - 0.5 - 0.5 * np.log(2 * np.pi), abs=1e-6)
    entropy = -0.75 * np.log(0.75) - 0.25 * np.log(0.25) + 0.5 * np.log(2 * np.pi * np.e)
    assert whole.entropy().item() == pytest.approx(entropy, abs=1e-6)


def test_the_divergence_is_the_sum_of_those_of_the_parts_and_a_copy_keeps_its_parameters() -> None:
    one, other = parameters(13), parameters(13, seed=1)
    distribution = HybridDistribution(SPACE)
    before = th.clone(distribution.proba_distribution(one, LOG_STD).distribution.parts[0].logits)

    kept = copy.copy(distribution)  # as sb3-contrib's TRPO does
    found = kl_divergence(kept, distribution.proba_distribution(other, LOG_STD + 1))
    th.testing.assert_close(kept.distribution.parts[0].logits, before)
    expected = th.zeros(ROWS)
    for (mine, _), (theirs, _) in zip(sb3_parts(one)[:3], sb3_parts(other)[:3], strict=True):
        expected += kl_divergence(mine, theirs).reshape(ROWS, -1).sum(dim=1)
    mean, after = one[:, 10:], other[:, 10:]  # of two Gaussians, in closed form
    variance, wider = (2 * LOG_STD).exp(), (2 * (LOG_STD + 1)).exp()
    expected += (1 + (variance + (mean - after) ** 2) / (2 * wider) - 0.5).sum(dim=1)
    th.testing.assert_close(found, expected)


def test_without_a_box_there_is_no_standard_deviation() -> None:
    space: Any = joined_actions(spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)]))
    layer = ChoicesDistribution(space).proba_distribution_net(4)
    assert isinstance(layer, th.nn.Linear)
    assert layer.out_features == 5


def test_masks_are_those_of_the_choices() -> None:
    given = parameters(5 + 3 + 4 + 3)  # each flag has a parameter of each of its values here
    whole = MaskableHybridDistribution(SPACE).proba_distribution(given, LOG_STD)
    free = whole.entropy()
    masks = np.ones((ROWS, 12), bool)
    masks[:, 5:8] = [[False, True, True]]  # of the mode
    whole.apply_masking(masks)
    for _ in range(20):
        assert (whole.sample()[:, 4] > 0).all()
    mode, masked = (MaskableCategoricalDistribution(3).proba_distribution(given[:, 5:8]) for _ in range(2))
    masked.apply_masking(masks[:, 5:8])
    th.testing.assert_close(free - whole.entropy(), mode.entropy() - masked.entropy())
    actions = whole.mode()
    assert (actions[:, 4] == masked.mode()).all()
    whole.apply_masking(None)
    th.testing.assert_close(whole.entropy(), free)


# --- As SB3's algorithms are used ------------------------------------------------------------------------------------


class Aimed(gymnasium.Env[Any, Any]):
    """Five steps of random observations; each action has to be in the space, and the first mode is forbidden."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), 1.0, False, self.steps == 5, {}

    def action_masks(self) -> Any:
        masks = np.ones(12, bool)
        masks[5] = False
        return masks


VECTOR, IMAGE = spaces.Box(-1, 1, (3,)), spaces.Box(0, 255, (36, 36, 1), np.uint8)
SMALL: dict[str, Any] = {"n_steps": 8, "device": "cpu", "seed": 0, "policy_kwargs": {"net_arch": [4]}}
BATCHES = {**SMALL, "batch_size": 8}
MEMORY = {**BATCHES, "policy_kwargs": {"net_arch": [4], "lstm_hidden_size": 4}}
ALGORITHMS: dict[str, tuple[Any, str, dict[str, Any], spaces.Space[Any]]] = {
    "PPO": (marl_sb3.PPO, "MlpPolicy", BATCHES, VECTOR),
    "PPO of images": (marl_sb3.PPO, "CnnPolicy", BATCHES, IMAGE),
    "PPO of parts": (marl_sb3.PPO, "MultiInputPolicy", BATCHES, spaces.Dict(x=VECTOR)),
    "A2C": (marl_sb3.A2C, "MlpPolicy", SMALL, VECTOR),
    "TRPO": (marl_sb3.TRPO, "MlpPolicy", {**BATCHES, "n_critic_updates": 1}, VECTOR),
    "RecurrentPPO": (marl_sb3.RecurrentPPO, "MlpLstmPolicy", MEMORY, VECTOR),
    "MaskablePPO": (marl_sb3.MaskablePPO, "MlpPolicy", BATCHES, VECTOR),
    "MaskablePPO of parts": (marl_sb3.MaskablePPO, "MultiInputPolicy", BATCHES, spaces.Dict(x=VECTOR)),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns_is_saved_and_loaded_and_predicts_actions_of_the_env(name: str, tmp_path: Path) -> None:
    cls, policy, settings, observed = ALGORITHMS[name]
    env = Aimed(observed, spaces.Dict(PARTS) if name != "A2C" else spaces.Tuple(list(PARTS.values())))
    env.observation_space.seed(0)
    model = cls(policy, env, **settings).learn(16)
    assert model.rollout_buffer.actions.dtype == np.float32  # not those of the choices alone
    model.save(tmp_path / "model.zip")
    again = cls.load(tmp_path / "model.zip", env=env)
    seen = env.observation_space.sample()
    action, _ = model.predict(seen, deterministic=True)
    assert env.action_space.contains(action)
    np.testing.assert_equal(again.predict(seen, deterministic=True)[0], action)
    again.learn(8, reset_num_timesteps=False)
    more = {} if "Maskable" not in name else {"action_masks": env.action_masks()}
    modes = [model.predict(seen, **more)[0] for _ in range(20)]
    assert all(env.action_space.contains(each) for each in modes)
    if more:
        assert min(each["mode"] for each in modes) == 2
    assert evaluate_policy(again, env, 1, warn=False) == (5, 0)  # in a vec env that SB3 makes
    assert evaluate_policy(again, again.get_env(), 1, warn=False) == (5, 0)
    assert len(again.predict(again.get_env().reset())[0]) == 1


@pytest.mark.parametrize("name", ["PPO", "A2C", "TRPO", "RecurrentPPO", "MaskablePPO", "MaskableA2C", "MaskableTRPO"])
def test_predict_takes_what_that_of_sb3_takes(name: str) -> None:
    """Whether it takes `action_masks` says whether evaluations give it any."""
    cls: Any = getattr(marl_sb3, name)
    stock: Any = stable_baselines3.PPO if "Maskable" not in name else sb3_contrib.MaskablePPO
    own, wanted = (list(inspect.signature(each.predict).parameters) for each in (cls, stock))
    assert own == wanted


def test_loaded_without_an_env_it_takes_one_of_the_same_actions_only(tmp_path: Path) -> None:
    env = Aimed(VECTOR, spaces.Dict(PARTS))
    marl_sb3.PPO("MlpPolicy", DummyVecEnv([lambda: env]), **BATCHES).save(tmp_path / "model.zip")
    model = marl_sb3.PPO.load(tmp_path / "model.zip")
    model.set_env(env)
    with pytest.raises(ValueError, match="Action spaces do not match"):
        model.set_env(Aimed(VECTOR, spaces.Dict({**PARTS, "mode": spaces.Discrete(4)})))


def test_gsde_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"use_sde is True, .* accepted for actions of several parts: False"):
        marl_sb3.PPO("MlpPolicy", Aimed(VECTOR, spaces.Dict(PARTS)), use_sde=True, **BATCHES)


# --- In trainings of several agents ----------------------------------------------------------------------------------


def trained(spec: PolicySpec) -> MultiAgentAlgorithm:
    env = make_vec_env(SampledEnv, n_envs=2, seed=0, observation_space=VECTOR, action_space=spaces.Dict(PARTS))
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, seed=0, n_steps=8, device="cpu")
    algorithm.train_iteration()
    return algorithm


def test_agents_are_asked_for_actions_of_their_env_and_what_they_think_of_these() -> None:
    algorithm = trained(PolicySpec(marl_sb3.PPO, batch_size=8, policy_kwargs={"net_arch": [4]}))
    received = algorithm.env.call("received", [0])[0]
    assert all(spaces.Dict(PARTS).contains(action) for actions in received for action in actions.values())
    seen = np.zeros(3, np.float32)
    action = algorithm.predict({"a": seen}, deterministic=True)["a"]
    assert spaces.Dict(PARTS).contains(action)
    both = algorithm.predict({"a": np.stack([seen, seen])}, deterministic=True)["a"]
    np.testing.assert_equal(both, [action, action])
    log_prob = algorithm.log_prob({"a": seen}, {"a": action})["a"]
    log_probs = algorithm.log_prob({"a": np.stack([seen, seen])}, {"a": both})["a"]
    np.testing.assert_allclose(log_probs, [log_prob, log_prob], rtol=1e-6)
    with pytest.raises(ConfigError, match="accepted: one in Dict"):
        algorithm.log_prob({"a": seen}, {"a": {"mode": 9}})
    loaded = algorithm.policies["p"].predict(seen, deterministic=True)[0]  # as a single algorithm of SB3
    np.testing.assert_equal(loaded, action)


@pytest.mark.parametrize(
    "spec",
    [
        PolicySpec(marl_sb3.SAC),
        PolicySpec(marl_sb3.DQN),
        PolicySpec(stable_baselines3.PPO, batch_size=8),
        PolicySpec(marl_sb3.MaskableA2C),
        PolicySpec(marl_sb3.MaskableRecurrentPPO, batch_size=8),
    ],
    ids=["SAC", "DQN", "SB3's PPO", "MaskableA2C", "MaskableRecurrentPPO"],
)
def test_other_algorithms_are_refused_in_words(spec: PolicySpec) -> None:
    words = r"the action space is Dict\(.*; accepted: ppo, a2c, trpo, recurrent_ppo, maskable_ppo"
    with pytest.raises(ConfigError, match=words):
        trained(spec)


def test_actions_of_several_parts_are_not_rescaled() -> None:
    with pytest.raises(ConfigError, match=r"rescale_actions: the action space is Dict\("):
        trained(PolicySpec(marl_sb3.PPO, batch_size=8, rescale_actions=True))


class OfParts(SampledEnv):
    """Two agents with actions of several parts."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1, 1, (3,)), spaces.Dict(PARTS))


def test_a_run_is_evaluated_resumed_and_exported_as_sb3s_file_but_not_as_a_graph(tmp_path: Path) -> None:
    settings = {"n_steps": 8, "batch_size": 8, "policy_kwargs": {"net_arch": [4]}, "checkpoints.every": 1}
    options: dict[str, Any] = {"n_envs": 2, "seed": 0, "settings": settings, "progress_bar": False}
    whole = marl_sb3.train(OfParts, timesteps=48, run_dir=tmp_path / "whole", **options)
    run = marl_sb3.train(OfParts, timesteps=32, run_dir=tmp_path / "run", **options)
    resumed = marl_sb3.train(OfParts, resume=run.folder, timesteps=16, progress_bar=False)
    for name, tensor in whole.algorithm.policies["shared"].policy.state_dict().items():
        assert th.equal(tensor, resumed.algorithm.policies["shared"].policy.state_dict()[name])
    bundle = marl_sb3.load_policies(run.folder)  # the checkpoint holds the spaces
    assert marl_sb3.evaluate_policies(bundle, make_vec_env(OfParts), 3, seed=1)["episode_return_mean"] == 9
    (exported,) = export_policies(bundle, "sb3", tmp_path / "out")
    seen = np.zeros(3, np.float32)
    action = marl_sb3.PPO.load(exported.path).predict(seen, deterministic=True)[0]
    np.testing.assert_equal(action, bundle.predict({"a": seen}, deterministic=True)["a"])
    with pytest.raises(ConfigError, match="HybridActorCriticPolicy with HybridDistribution has no ONNX form"):
        export_policies(bundle, "onnx", tmp_path / "onnx")
