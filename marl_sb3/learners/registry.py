"""The learner class of each algorithm. A new algorithm gets a line here and one in `algorithms`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces

from marl_sb3.config.values import PositiveInt, require
from marl_sb3.learners.a2c import A2CLearner
from marl_sb3.learners.algorithms import place_of
from marl_sb3.learners.on_policy import OnPolicyLearner
from marl_sb3.learners.ppo.learner import PPOLearner
from marl_sb3.learners.ppo.maskable import MaskablePPOLearner
from marl_sb3.learners.ppo.recurrent import RecurrentPPOLearner
from marl_sb3.learners.processed import policy_rows, processing_of
from marl_sb3.learners.sb3.build import build_algorithm
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.learners.trpo import TRPOLearner
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.types import PolicyID

# By the place of an algorithm's class, see `algorithms`. A subclass of an algorithm has the learner of its base class.
LEARNERS: Mapping[str, type[OnPolicyLearner]] = {
    "stable_baselines3.ppo.ppo:PPO": PPOLearner,
    "stable_baselines3.a2c.a2c:A2C": A2CLearner,
    "sb3_contrib.trpo.trpo:TRPO": TRPOLearner,
    "sb3_contrib.ppo_mask.ppo_mask:MaskablePPO": MaskablePPOLearner,
    "sb3_contrib.ppo_recurrent.ppo_recurrent:RecurrentPPO": RecurrentPPOLearner,
}


def make_learner(
    rows: PolicyRows,
    spec: PolicySpec,
    trained: bool,
    seed: int | None,
    device: str,
    n_steps: int | None,
    update_path: str,
) -> OnPolicyLearner:
    """Make the learner of a policy.

    Args:
        spec: algorithm, network and hyperparameters.
        trained: whether the policy is trained; if not, it only acts.
        seed: for the initial weights and all random draws of the algorithm.
        n_steps: env steps per env in a rollout, if the spec does not set it; A2C has a default of its own.
        update_path: see `marl_sb3.PPO`.

    Raises:
        ConfigError: the hyperparameters do not fit the rollout or the spaces.
    """
    bases = map(place_of, spec.algorithm.__mro__)
    learner = next(LEARNERS[base] for base in bases if base in LEARNERS)
    if n_steps is not None and learner.takes_common_steps:
        spec = spec.with_defaults({"n_steps": n_steps})
    processing = processing_of(rows, spec)
    processed = policy_rows(rows, processing)
    is_dict = isinstance(processed.group.observation_space, spaces.Dict)
    algorithm = build_algorithm(processed, spec, seed, device, learner.buffer_class(is_dict=is_dict))
    more: dict[str, Any] = {"update_path": update_path} if learner is PPOLearner else {}
    return learner(rows, algorithm, trained, processing, **more)


def common_steps(n_steps: int | None, specs: Mapping[PolicyID, PolicySpec]) -> int | None:
    """Return the length of rollouts for specs without `n_steps`.

    It is the given one, else that of the first spec with `n_steps`, else None: SB3's default.
    """
    require("n_steps", n_steps, PositiveInt | None)
    own = [spec.hyperparameters["n_steps"] for spec in specs.values() if "n_steps" in spec.hyperparameters]
    return n_steps if n_steps is not None else next(iter(own), None)


def iteration_steps(learners: Sequence[OnPolicyLearner], n_steps: int | None) -> int:
    """Return the env steps of each env in an iteration: as given, or the longest rollout times rollouts per report."""
    if n_steps is not None:
        return n_steps
    return max(learner.algorithm.n_steps for learner in learners) * min(each.rollouts_per_report for each in learners)
