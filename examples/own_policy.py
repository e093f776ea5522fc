"""A policy class of your own: a residual network for actor and critic, saved and loaded by its name."""

import argparse
import tempfile

import torch
from stable_baselines3.common.policies import ActorCriticPolicy

from marl_sb3 import PPO, MultiAgentAlgorithm, PolicySpec, load_policies, make_vec_env, register_network


class Residual(torch.nn.Module):
    """Adds to its input what layers make of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (N, width)."""
        return inputs + self.layers(inputs)


class ResidualPolicy(ActorCriticPolicy):
    """An actor and a critic with a residual block after their layers of `net_arch`."""

    def _build_mlp_extractor(self) -> None:
        super()._build_mlp_extractor()
        layers = self.mlp_extractor
        layers.policy_net = torch.nn.Sequential(*layers.policy_net, Residual(layers.latent_dim_pi))
        layers.value_net = torch.nn.Sequential(*layers.value_net, Residual(layers.latent_dim_vf))


register_network("residual", ResidualPolicy)


def main(env_steps: int) -> None:
    """Train a policy of SB3 against the own one; a checkpoint that has its name loads without it being passed again."""
    env = make_vec_env("arena", n_envs=10, seed=0)
    policies = {"agent1": PolicySpec(PPO, "residual", policy_kwargs={"net_arch": [32]}), "agent2": PolicySpec(PPO)}
    algo = MultiAgentAlgorithm(env, policies, n_steps=100, batch_size=200, seed=0)
    algo.learn(env_steps)
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_policies(algo.save(f"{folder}/saved"))
    observations = {"agent1": [0, 99], "agent2": [99, 0]}
    same = loaded.predict(observations, deterministic=True) == algo.predict(observations, deterministic=True)
    policy = loaded.policies["agent1"].policy
    print(f"{algo.num_timesteps} env steps; the loaded {type(policy).__name__} chooses the same actions: {same}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, default=20_000, help="default: 20000")
    main(parser.parse_args().env_steps)
