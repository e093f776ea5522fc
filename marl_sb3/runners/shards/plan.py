"""What a process has to know to roll out shards: how their envs and policies are made, and what to do in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_sb3.learners.shards.interface import PolicyOrder, PolicyRollout
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.metrics import Episode, InfoMetric
from marl_sb3.runners.shards.steps import RecordedSteps
from marl_sb3.storage.state import State
from marl_sb3.types import AgentID, PolicyID
from marl_sb3.vec_env.sharded_vec_env import EnvPlan


@dataclass(frozen=True)
class ShardPlan:
    """How the shards of a training are made; it does not change while the training lasts.

    Attributes:
        envs: how the envs are made.
        agents: the agents of each env, in order.
        specs: policy id -> spec.
        policy_of: agent -> policy id.
        trained: the policies that are trained.
        n_steps: see `LearnerOptions`.
        update_path: see `marl_sb3.PPO`.
        n_threads: threads of one operation of PyTorch or BLAS.
        custom_metrics: see `EpisodeTracker`.
        imports: modules that register networks, as after `--import`.
    """

    envs: EnvPlan
    agents: tuple[AgentID, ...]
    specs: Mapping[PolicyID, PolicySpec]
    policy_of: Mapping[AgentID, PolicyID]
    trained: frozenset[PolicyID]
    n_steps: int | None
    update_path: str
    n_threads: int
    custom_metrics: Mapping[str, InfoMetric]
    imports: Sequence[str] = ()

    @property
    def shards(self) -> range:
        """The indices of the shards."""
        return range(self.envs.n_shards)

    def name_of(self, shard: int) -> str:
        """Return a shard in words, for messages."""
        envs = self.envs.envs_of(shard)
        which = f"env {envs[0]}, number 0" if len(envs) == 1 else f"envs {envs[0]} to {envs[-1]}, numbered from 0"
        return f"shard {shard} ({which} within the shard)"


@dataclass(frozen=True)
class RoundOrder:
    """What all shards do in one round.

    Attributes:
        env_steps: steps of each env.
        anew: whether all rollouts begin anew.
        new_episodes: whether all envs begin new episodes first.
        policies: policy id -> its weights and statistics.
        seed: the random numbers of a shard in this round follow from it and the shard.
        sampled: env steps of the training so far, over all envs.
        planned: env steps at its planned end; None: there is none.
    """

    env_steps: int
    anew: bool
    new_episodes: bool
    policies: Mapping[PolicyID, PolicyOrder]
    seed: int
    sampled: int
    planned: int | None

    def progress(self, sampled: int) -> float:
        """Return 1 at the start of training, 0 at its planned end; `sampled` env steps after the start."""
        return 1.0 if self.planned is None else max(0.0, 1.0 - sampled / self.planned)


@dataclass(frozen=True)
class SavedShard:
    """The state of a shard between two rounds.

    Attributes:
        state: what `Shard.get_state` returned; None: the shard begins new episodes.
        env_seed: seed of the envs if they begin new episodes; None: they keep theirs.
    """

    state: State | None = None
    env_seed: int | None = None


@dataclass(frozen=True)
class ShardRollout:
    """What came of one round of one shard.

    Attributes:
        steps: all steps of its envs.
        episodes: the episodes that ended in each step; env indices are counted within the shard.
        policies: policy id -> what it experienced.
        state: the state of the shard afterwards.
        seconds: time that the round took, in seconds.
    """

    steps: RecordedSteps
    episodes: Sequence[Sequence[Episode]]
    policies: Mapping[PolicyID, PolicyRollout]
    state: SavedShard
    seconds: float


@dataclass(frozen=True)
class ShardFault:
    """An exception in a shard, in a form that any process can read.

    Attributes:
        kind: name of its class.
        message: its message, which names the shard.
        traceback: its traceback as text.
        key: of a `ConfigError`.
    """

    kind: str
    message: str
    traceback: str
    key: str | None = None


Inexact = dict[int, str]  # env index -> the reason why an env could not be restored exactly
