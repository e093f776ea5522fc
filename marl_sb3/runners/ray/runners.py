"""Make the runners of a training on Ray from its settings."""

from __future__ import annotations

from marl_sb3.config.ray import RaySettings
from marl_sb3.learners.threads import available_cores
from marl_sb3.runners.shards.pool import Pool
from marl_sb3.runners.shards.supervised import SupervisedRunners


def ray_runners(settings: RaySettings, n_shards: int) -> SupervisedRunners:
    """Return runners that are Ray actors. Nothing is imported or started before their `start`.

    Args:
        settings: of the run.
        n_shards: number of shards.
    """
    number = settings.runners or min(n_shards, available_cores())

    def make_pool() -> Pool:
        from marl_sb3.runners.ray.connection import Connection
        from marl_sb3.runners.ray.pool import RayPool

        return RayPool(Connection(settings, number))

    return SupervisedRunners(make_pool, number, settings.start_timeout_s, settings.round_timeout_s)
