"""The learner class of each algorithm. A new algorithm gets a line here and one in `algorithms`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.config.values import PositiveInt, require
from marl_sb3.learners.algorithms import class_at, place_of
from marl_sb3.learners.interface import Learner
from marl_sb3.learners.processed import policy_rows, processing_of
from marl_sb3.learners.sb3.build import build_algorithm, build_with_replay, is_off_policy
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.learners.update_path import TwoPaths, choose_path
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.types import GoalRewards, PolicyID

# By the place of an algorithm's class, see `algorithms`. A subclass of an algorithm has the learner of its base class.
LEARNERS: Mapping[str, str] = {
    "stable_baselines3.ppo.ppo:PPO": "marl_sb3.learners.ppo.learner:PPOLearner",
    "stable_baselines3.a2c.a2c:A2C": "marl_sb3.learners.a2c.learner:A2CLearner",
    "sb3_contrib.trpo.trpo:TRPO": "marl_sb3.learners.trpo.learner:TRPOLearner",
    "sb3_contrib.ppo_mask.ppo_mask:MaskablePPO": "marl_sb3.learners.ppo.maskable:MaskablePPOLearner",
    "sb3_contrib.ppo_recurrent.ppo_recurrent:RecurrentPPO": "marl_sb3.learners.ppo.recurrent:RecurrentPPOLearner",
    "stable_baselines3.dqn.dqn:DQN": "marl_sb3.learners.dqn:DQNLearner",
    "sb3_contrib.qrdqn.qrdqn:QRDQN": "marl_sb3.learners.dqn:DQNLearner",
    "stable_baselines3.sac.sac:SAC": "marl_sb3.learners.sac:SACLearner",
    "stable_baselines3.td3.td3:TD3": "marl_sb3.learners.td3:TD3Learner",
    "stable_baselines3.ddpg.ddpg:DDPG": "marl_sb3.learners.td3:TD3Learner",
    "sb3_contrib.tqc.tqc:TQC": "marl_sb3.learners.sac:SACLearner",
    "sb3_contrib.crossq.crossq:CrossQ": "marl_sb3.learners.sac:SACLearner",
}


def learner_class(algorithm: type[BaseAlgorithm]) -> Any:
    """Import the learner class of an algorithm."""
    bases = map(place_of, algorithm.__mro__)
    return class_at(next(LEARNERS[base] for base in bases if base in LEARNERS))


def make_learner(
    rows: PolicyRows,
    spec: PolicySpec,
    trained: bool,
    seed: int | None,
    device: str,
    n_steps: int | None,
    update_path: str,
    progress_remaining: Callable[[], float],
    goal_rewards: GoalRewards,
) -> Learner:
    """Make the learner of a policy.

    Args:
        spec: algorithm, network and hyperparameters.
        trained: whether the policy is trained; if not, it only acts.
        seed: for the initial weights and all random draws of the algorithm.
        n_steps: env steps per env in a rollout, if the spec does not set it; A2C has a default of its own.
        update_path: see `TwoPaths`; SB3's own classes have no such choice.
        progress_remaining: from 1 at the start of training to 0 at its end, for schedules of exploration.
        goal_rewards: the env's `compute_reward`, for hindsight experience replay.

    Raises:
        ConfigError: the hyperparameters do not fit the rollout or the spaces.
    """
    learner = learner_class(spec.algorithm)
    if n_steps is not None and learner.takes_common_steps:
        spec = spec.with_defaults({"n_steps": n_steps})
    processing = processing_of(rows, spec)
    processed = policy_rows(rows, processing)
    more: dict[str, Any] = {}
    if is_off_policy(spec.algorithm):
        algorithm = build_with_replay(processed, spec, seed, device, processing, goal_rewards)
        more["progress_remaining"] = progress_remaining
    else:
        is_dict = isinstance(processed.group.observation_space, spaces.Dict)
        algorithm = build_algorithm(processed, spec, seed, device, learner.buffer_class(is_dict=is_dict))
    if isinstance(algorithm, TwoPaths):
        choose_path(rows.policy_id, algorithm, update_path)
    made: Learner = learner(rows, algorithm, trained, processing, **more)
    return made


def common_steps(n_steps: int | None, specs: Mapping[PolicyID, PolicySpec]) -> int | None:
    """Return the length of rollouts for specs without `n_steps`.

    It is the given one, else that of the first spec with `n_steps`, else None: SB3's default.
    """
    require("n_steps", n_steps, PositiveInt | None)
    on_policy = [spec for spec in specs.values() if not is_off_policy(spec.algorithm)]  # others mean n-step returns
    own = [spec.hyperparameters["n_steps"] for spec in on_policy if "n_steps" in spec.hyperparameters]
    return n_steps if n_steps is not None else next(iter(own), None)


def iteration_steps(learners: Sequence[Learner], n_steps: int | None) -> int:
    """Return the env steps of each env in an iteration.

    They are as given. Else an iteration is as long as the longest rollout, times the fewest rollouts that a policy has
    in an iteration of its own; without rollouts, it is the longest one of a policy.
    """
    if n_steps is not None:
        return n_steps
    paces = [learner.pace for learner in learners]
    rollouts = [(pace.report_steps, pace.rollout_steps) for pace in paces if pace.rollout_steps is not None]
    if not rollouts:
        return max(pace.report_steps for pace in paces)
    return max(steps for _, steps in rollouts) * min(report // steps for report, steps in rollouts)
