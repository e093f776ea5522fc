"""The settings of an evaluation of a run, with defaults from the run's configuration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marl_sb3.config import TrainConfig
from marl_sb3.errors import ConfigError
from marl_sb3.policies.mapping import Deterministic


@dataclass(frozen=True)
class EvaluationPlan:
    """The settings of an evaluation."""

    n_episodes: int  # complete episodes over all envs together
    deterministic: Deterministic  # the most likely actions (True) or sampled ones (False), of all policies or by policy
    seed: int  # seed of the episodes and the actions
    n_envs: int  # envs that step together
    film_episodes: int = 0  # how many episodes of env 0 are filmed

    @classmethod
    def of_run(
        cls,
        config: TrainConfig,
        n_episodes: int = 20,
        deterministic: Deterministic | None = None,
        seed: int | None = None,
        n_envs: int | None = None,
        film_episodes: int = 0,
    ) -> EvaluationPlan:
        """Make a plan, with the run's settings for arguments that are not given.

        Args:
            deterministic: None: the run's `evaluation.deterministic`.
            seed: None: follows from the run's, so that evaluations compare.
            n_envs: None: as in the training, but no more than episodes, and so few that env 0 plays all filmed ones.

        Raises:
            ConfigError: env 0 plays fewer than `film_episodes` episodes.
        """
        # All envs play the same number of episodes, or some play one more; env 0 is not among these.
        most = max(1, n_episodes // film_episodes if film_episodes else n_episodes)
        if n_envs is None:
            n_envs = min(config.n_envs, most)
        elif film_episodes and n_envs > most:
            raise ConfigError(
                f"--video-episodes is {film_episodes}, but in {n_envs} envs env 0 plays {n_episodes // n_envs} of the "
                f"{n_episodes} episodes; accepted: --n-envs up to {most}",
                key="--n-envs",
            )
        if deterministic is None:
            deterministic = config.evaluation.deterministic
        if seed is None:
            if config.seed is None:
                raise ConfigError("config.yaml has no seed; accepted: the one that the run drew, or --seed", key="seed")
            seed = evaluation_seed(config.seed)
        return cls(n_episodes, deterministic, seed, n_envs, film_episodes)


def evaluation_seed(run_seed: int) -> int:
    """Return a seed in [0, 2**31) for evaluations of a run. It gives other episodes than those of its training."""
    return int(np.random.SeedSequence(run_seed).generate_state(1)[0]) >> 1
