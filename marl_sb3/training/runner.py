"""Make the runner of a training: one for envs in this process, or one for shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from marl_sb3.config.ray import RaySettings, RunnerSettings
from marl_sb3.envs.registry import imported_modules
from marl_sb3.learners.threads import available_cores
from marl_sb3.metrics import EpisodeTracker
from marl_sb3.processes.pool import Pool
from marl_sb3.runners.interface import Runner
from marl_sb3.runners.local import LocalRunner
from marl_sb3.runners.rounds import ShardPlan
from marl_sb3.runners.shard_runners import ShardRunners
from marl_sb3.runners.sharded import Sampled, ShardedRunner
from marl_sb3.training.setup import Setup
from marl_sb3.vec_env.interface import MultiAgentVecEnv
from marl_sb3.vec_env.sharded_vec_env import ShardedVecEnv


def make_runner(
    env: MultiAgentVecEnv,
    setup: Setup,
    tracker: EpisodeTracker,
    sampled: Callable[[], Sampled],
    *,
    update_path: str,
    n_threads: int,
) -> Runner:
    """Make the runner of a training; if the envs are in shards, receivers replace the collectors of the learners.

    Args:
        sampled: returns how far the training is.
        update_path: see `marl_sb3.PPO`.
        n_threads: threads of one operation of PyTorch or BLAS.
    """
    if not isinstance(env, ShardedVecEnv):
        return LocalRunner(env, {name: each.collector for name, each in setup.learners.items()}, tracker)

    from marl_sb3.learners.shards.registry import make_receiver

    def plan() -> ShardPlan:
        return ShardPlan(
            env.plan,
            env.agents,
            setup.specs,
            setup.bundle.policy_of,
            frozenset(policy_id for policy_id, learner in setup.learners.items() if learner.trained),
            setup.rollout_steps,
            update_path,
            n_threads,
            tracker.custom_metrics,
            imported_modules(),
        )

    receivers = {policy_id: make_receiver(learner) for policy_id, learner in setup.learners.items()}
    runner = ShardedRunner(plan, shard_runners(env.runners, env.plan.n_shards), receivers, tracker, sampled)
    env.attach(runner)
    return runner


def shard_runners(settings: RunnerSettings | RaySettings | None, n_shards: int) -> ShardRunners:
    """Return what rolls out the shards of a training. Nothing is started before its `start`.

    Args:
        settings: which processes do; None: this one.
        n_shards: number of shards.
    """
    from marl_sb3.processes.pool import InProcessPool, LocalPool
    from marl_sb3.runners.shard import ShardHost

    if settings is None:
        return ShardRunners(partial(InProcessPool, ShardHost))
    number = settings.runners or min(n_shards, available_cores())

    def make_pool() -> Pool:
        if isinstance(settings, RaySettings):
            from marl_sb3.processes.ray import Connection, RayPool

            return RayPool(Connection(settings, number), ShardHost)
        return LocalPool(ShardHost, ShardHost.__module__, "runner", settings.round_timeout_s)

    return ShardRunners(make_pool, number, settings.start_timeout_s, settings.round_timeout_s)
