"""Networks for images on PyTorch's path: `update_path=torch` has SB3's bits, `auto` is equal to float tolerance."""

from __future__ import annotations

import platform
import subprocess
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch as th
from gymnasium import spaces
from small_trainings import assert_goes_on_exactly
from stable_baselines3.common.env_util import make_vec_env as make_sb3_vec_env
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn
from toy_envs import RandomEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.extensions.fast.torch_updates import channels_last, has_faster_images

TOLERANCE = 1e-2  # of the distance moved; a ReLU next to its kink may fall on its other side
TINY = {"features_extractor_kwargs": {"features_dim": 16}}
ROLLOUTS = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "policy_kwargs": TINY}
REPLAYED = {"learning_starts": 10, "buffer_size": 60, "batch_size": 16, "policy_kwargs": TINY}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "PPO": (stable_baselines3.PPO, ROLLOUTS),
    "A2C": (stable_baselines3.A2C, {"n_steps": 8, "use_rms_prop": False, "policy_kwargs": TINY}),
    "RecurrentPPO": (sb3_contrib.RecurrentPPO, ROLLOUTS),
    "DQN": (stable_baselines3.DQN, REPLAYED),
    "QRDQN": (sb3_contrib.QRDQN, REPLAYED),
    "SAC": (stable_baselines3.SAC, {**REPLAYED, "train_freq": 4}),
}


def made(algorithm: Any, settings: dict[str, Any], channels: int = 4, policy: Any = "CnnPolicy") -> Any:
    policy = "CnnLstmPolicy" if "Recurrent" in algorithm.__name__ else policy
    actions = spaces.Box(-1, 1, (2,)) if algorithm.__name__ == "SAC" else spaces.Discrete(3)
    env = make_sb3_vec_env(partial(RandomEnv, spaces.Box(0, 255, (channels, 36, 40), np.uint8), actions), 2, seed=1)
    return algorithm(policy, env, seed=3, device="cpu", **deepcopy(settings))  # SB3 writes into `policy_kwargs`


def state(model: Any) -> dict[str, th.Tensor]:
    return {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("name", KINDS)
def test_auto_stays_within_rounding_of_stock_sb3_and_torch_has_its_bits(name: str, channels: int) -> None:
    stock = made(*KINDS[name], channels)
    before, expected = state(stock), state(stock.learn(64))
    for path in ("auto", "torch"):
        model = made(getattr(marl_sb3, name), KINDS[name][1], channels)
        model.update_path = path
        assert has_faster_images(model) == (path == "auto")
        found = state(model.learn(64))
        for key, tensor in expected.items():
            assert th.equal(found[key], tensor) or path == "auto", key
            assert (found[key] - tensor).norm() <= TOLERANCE * (tensor - before[key]).norm() + 1e-7, key


class Viewing(NatureCNN):
    """A user's network, which takes only images that are laid out as SB3 does."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations.view(-1).view(observations.shape))


class OwnPolicy(ActorCriticCnnPolicy):
    """A user's policy."""


@pytest.mark.parametrize("change", ["an extractor", "a policy", "a hook", "a method"])
def test_what_users_change_in_a_network_trains_with_the_bits_of_stock_sb3(change: str) -> None:
    network = {**TINY, "features_extractor_class": Viewing} if change == "an extractor" else TINY
    found = []
    for algorithm in (stable_baselines3.PPO, marl_sb3.PPO):
        policy = OwnPolicy if change == "a policy" else "CnnPolicy"
        model = made(algorithm, {**ROLLOUTS, "policy_kwargs": network}, policy=policy)
        layer = model.policy.features_extractor.cnn[1]
        if change == "a hook":
            layer.register_forward_hook(lambda module, seen, out: out.view(-1).view(out.shape))
        if change == "a method":
            layer.forward = lambda seen: nn.functional.relu(seen.view(-1).view(seen.shape))
        found.append(state(model.learn(32)))
    assert not has_faster_images(model)
    assert all(th.equal(found[0][key], found[1][key]) for key in found[0])


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_files_are_those_of_stock_sb3_and_a_loaded_training_goes_on_with_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    env = partial(RandomEnv, spaces.Box(0, 255, (36, 40, 4), np.uint8), spaces.Discrete(3))
    spec = PolicySpec(getattr(marl_sb3, name), "CnnPolicy", **deepcopy(KINDS[name][1]))
    begun = partial(MultiAgentAlgorithm, policies={"p": spec}, n_steps=16, seed=3, device="cpu")
    _, again = assert_goes_on_exactly(lambda: begun(make_vec_env(env, n_envs=2)), tmp_path, 32, 32)
    model = again.policies["p"]
    assert has_faster_images(model)
    assert not model.policy.optimizer.param_groups[0]["fused"]
    model.save(tmp_path / "model.zip")
    loaded = KINDS[name][0].load(tmp_path / "model.zip", device="cpu")
    assert all(th.equal(state(loaded)[key], tensor) for key, tensor in state(model).items())


def test_images_keep_their_numbers_and_a_failed_update_leaves_the_optimizer_as_it_was() -> None:
    seen = th.arange(2 * 4 * 3 * 5, dtype=th.uint8).reshape(2, 4, 3, 5)
    assert th.equal(channels_last(seen), seen)
    assert channels_last(seen).stride() == (60, 1, 20, 4)
    model = made(marl_sb3.PPO, ROLLOUTS).learn(32)
    vars(model.policy)["evaluate_actions"] = Mock(side_effect=KeyError("lost"))
    with pytest.raises(KeyError, match="lost"):
        model.train()
    assert model.policy.optimizer.param_groups[0]["fused"] is None
    assert "get" not in vars(model.rollout_buffer)


PAGES = """
import resource
import torch as th
from marl_sb3.extensions.fast.torch_updates import keep_freed_memory

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    th.zeros(10 << 20).add_(1.0)  # 40 MB: 10,000 pages that the system would clear anew
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
print(min(new_pages() for _ in range(12)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_the_memory_of_a_minibatch_is_used_again_without_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000
