"""The features extractor with layers that actor and critic share."""

from __future__ import annotations

import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn
from toy_envs import RandomEnv

import marl_sb3
from marl_sb3 import ConfigError, PolicySpec
from marl_sb3.core.policies import MlpFeatures


class ByHand(BaseFeaturesExtractor):
    """Two shared layers, as users of SB3 write them."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 5)
        self.layers = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU())

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.layers(observations)


@pytest.mark.parametrize("net_arch", [[], [6]])
def test_shared_layers_are_those_of_a_hand_written_extractor_bit_for_bit(net_arch: list[int]) -> None:
    own = {
        "features_extractor_class": "mlp",
        "features_extractor_kwargs": {"net_arch": [7, 5], "activation_fn": "relu"},
    }
    spec = PolicySpec(policy_kwargs={**own, "net_arch": net_arch})
    env = DummyVecEnv([lambda: RandomEnv(spaces.Box(-2, 2, (3,)), spaces.Discrete(3))])
    made = []
    for algorithm, network in (
        (stable_baselines3.PPO, {"features_extractor_class": ByHand, "net_arch": net_arch}),
        (marl_sb3.PPO, spec.hyperparameters["policy_kwargs"]),
    ):
        model = algorithm("MlpPolicy", env, policy_kwargs=network, n_steps=24, batch_size=8, seed=1, device="cpu")
        model.update_path = "torch"
        made.append(model.learn(48).policy)
    stock, ours = made
    assert isinstance(ours.features_extractor, MlpFeatures)
    assert ours.pi_features_extractor is ours.vf_features_extractor
    for name, value in stock.state_dict().items():
        assert th.equal(ours.state_dict()[name], value), name


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([3, 2]), spaces.Box(-1, 1, (2, 3))])
def test_shared_layers_take_every_space_that_is_one_vector(space: spaces.Space) -> None:
    extractor = MlpFeatures(space, net_arch=[6])
    observation = th.as_tensor(np.asarray(space.sample()))[None]
    assert extractor(preprocess_obs(observation, space)).shape == (1, extractor.features_dim) == (1, 6)


def test_shared_layers_are_at_least_one() -> None:
    kwargs = {"features_extractor_class": "mlp", "features_extractor_kwargs": {"net_arch": []}}
    with pytest.raises(ConfigError, match=r"features_extractor_kwargs.net_arch is \[\]; accepted: "):
        PolicySpec(policy_kwargs=kwargs)
