"""A features extractor of your own by name: it embeds the cell numbers of the arena, and the run folder names it."""

import argparse

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

import marl_sb3


class CellEmbedding(BaseFeaturesExtractor):
    """Learns a vector for each cell; SB3 passes the two cells of an observation as one-hot vectors, (N, 200)."""

    def __init__(self, observation_space: spaces.MultiDiscrete, width: int = 16) -> None:
        super().__init__(observation_space, features_dim=2 * width)
        self.cells = int(observation_space.nvec[0])
        self.embed = torch.nn.Linear(self.cells, width, bias=False)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the (N, 2 * width) vectors of the cells."""
        own, other = observations[:, : self.cells], observations[:, self.cells :]
        return torch.cat([self.embed(own), self.embed(other)], dim=1)


marl_sb3.register_network("cell_embedding", CellEmbedding)


def main(env_steps: int) -> None:
    """Train with the extractor, load the run by its folder, and print the number of weights that it embeds by."""
    network = {
        "features_extractor_class": "cell_embedding",
        "features_extractor_kwargs": {"width": 8},
        "net_arch": [32],
    }
    settings = {"policy_kwargs": network, "n_steps": 100, "batch_size": 200}
    run = marl_sb3.train("arena", timesteps=env_steps, n_envs=10, seed=0, settings=settings)
    again = marl_sb3.load_run(run.folder, "latest")
    embedding = again.policies["shared"].policy.features_extractor.embed
    print(f"loaded {again.checkpoint}: {embedding.weight.numel()} weights embed {embedding.in_features} cells")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, default=20_000, help="default: 20000")
    main(parser.parse_args().env_steps)
