"""Check that a run can be built, and list its metrics, without starting it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from marl_sb3.config import TrainConfig
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.learners.threads import start_without_dynamo
from marl_sb3.runs.build import build, check_device, resolved
from marl_sb3.runs.evaluations import metric_names
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.run import Run
from marl_sb3.types import PolicyID


@dataclass(frozen=True)
class Preview:
    """What is known about a run before it starts.

    Attributes:
        metric_names: the flat names of all its metrics.
        minibatches: the minibatch size and the agent steps of a rollout, by policy; only for algorithms with both.
    """

    metric_names: Sequence[str]
    minibatches: Mapping[PolicyID, tuple[int, int]]


def preview(config: TrainConfig, factory: EnvFactory | None = None) -> Preview:
    """Build a run to check its settings; it is not started."""
    config = resolved(config)
    check_device(config)
    start_without_dynamo()
    run = Run(RunFolder(Path()), config, build(config, factory), factory=factory)
    try:
        policies = run.algorithm.policies.items()
        sizes = {
            policy_id: (policy.batch_size, policy.n_steps * policy.n_envs)
            for policy_id, policy in policies
            if hasattr(policy, "batch_size") and hasattr(policy, "n_steps")
        }
        return Preview(metric_names(run), sizes)
    finally:
        run.close()
