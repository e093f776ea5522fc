"""Make the copies of policies in shards, and the receivers of their experience."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gymnasium import spaces

from marl_sb3.learners.building import build_for_collecting, is_off_policy, policy_rows, processing_of
from marl_sb3.learners.learner import Learner
from marl_sb3.learners.off_policy import OffPolicyLearner
from marl_sb3.learners.shards.interface import Receiver, ShardPolicy
from marl_sb3.learners.shards.rollouts import OnPolicyShard, RolloutReceiver
from marl_sb3.learners.shards.transitions import OffPolicyShard, ReceivedJob, TransitionReceiver, TransitionRecorder
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.learners.update_path import TwoPaths, choose_path
from marl_sb3.policies.placement import PolicyRows


def make_receiver(learner: Learner) -> Receiver:
    """Let shards collect the experience of a learner: its collector is replaced by the receiver that is returned."""
    owner: Any = learner
    if isinstance(learner, OffPolicyLearner):
        owner.collector = receiver = TransitionReceiver(learner)
        owner.make_job = partial(ReceivedJob, receiver=receiver)
    else:
        owner.collector = RolloutReceiver(learner)
    made: Receiver = owner.collector
    return made


def make_shard_policy(
    rows: PolicyRows,
    spec: PolicySpec,
    trained: bool,
    n_steps: int | None,
    update_path: str,
    progress_remaining: Callable[[], float],
    num_shards: int,
) -> ShardPolicy:
    """Make the copy of a policy that acts in one shard, on the CPU; its weights come with the order of each round.

    Args:
        rows: in the shard.
        trained: whether the policy is trained; if not, it only acts.
        n_steps: see `LearnerOptions`.
        update_path: see `marl_sb3.PPO`; it also decides how actions are computed.
        progress_remaining: from 1 at the start of training to 0 at its end, for schedules of exploration.
    """
    learner = spec.info.learner_class
    spec = learner.completed(spec, n_steps)
    processing = processing_of(rows, spec)
    processed = policy_rows(rows, processing)
    is_dict = isinstance(processed.group.observation_space, spaces.Dict)
    if is_off_policy(spec.algorithm):
        algorithm: Any = build_for_collecting(processed, spec, None)
        algorithm.replay_buffer = TransitionRecorder(rows.num_rows, algorithm.action_space)
        return OffPolicyShard(learner(rows, algorithm, trained, processing, progress_remaining), num_shards)
    algorithm = build_for_collecting(processed, spec, learner.buffer_class(is_dict=is_dict))
    if isinstance(algorithm, TwoPaths):
        choose_path(rows.policy_id, algorithm, update_path)
    return OnPolicyShard(learner(rows, algorithm, trained, processing, progress_remaining))
