"""What shards are told and what they send back: how they are made, a round to roll out, and its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from marl_sb3.core.learners import PolicySpec
from marl_sb3.core.mapping import PolicyMapping
from marl_sb3.core.metrics import Episode, InfoMetric
from marl_sb3.core.sb3 import Progress
from marl_sb3.core.state import State
from marl_sb3.core.vec_env import NO_FINAL_OBSERVATIONS, ArrayInfos, DictInfos, StepInfos, VecStep
from marl_sb3.errors import VecEnvOrderError
from marl_sb3.extensions.remote.shard_experience import PolicyOrder, PolicyRollout
from marl_sb3.extensions.remote.sharded_vec_env import EnvPlan
from marl_sb3.extensions.remote.workers.steps import JoinedInfos
from marl_sb3.types import AgentID, Array, PolicyID

Inexact = dict[int, str]  # env index -> the reason why an env could not be restored exactly


@dataclass(frozen=True)
class ShardPlan:
    """How the shards of a training are made; it does not change while the training lasts."""

    envs: EnvPlan  # how the envs are made
    agents: tuple[AgentID, ...]  # the agents of each env, in order
    specs: Mapping[PolicyID, PolicySpec]  # policy id -> spec
    mapping: PolicyMapping  # which policies play which agents
    trained: frozenset[PolicyID]  # the policies that are trained
    n_steps: int | None  # see `LearnerOptions`
    update_path: str  # see `marl_sb3.PPO`
    n_threads: int  # threads of one operation of PyTorch or BLAS
    custom_metrics: Mapping[str, InfoMetric]  # see `EpisodeTracker`
    imports: Sequence[str] = ()  # modules that register networks, as after `--import`

    def name_of(self, shard: int) -> str:
        """Return a shard in words, for messages."""
        envs = self.envs.envs_of(shard)
        which = f"env {envs[0]}, number 0" if len(envs) == 1 else f"envs {envs[0]} to {envs[-1]}, numbered from 0"
        return f"shard {shard} ({which} within the shard)"


@dataclass(frozen=True)
class RoundOrder:
    """What all shards do in one round."""

    env_steps: int  # steps of each env
    anew: bool  # whether all rollouts begin anew
    new_episodes: bool  # whether all envs begin new episodes first
    policies: Mapping[PolicyID, PolicyOrder]  # policy id -> its weights and statistics
    seed: int  # the random numbers of a shard in this round follow from it and the shard
    progress: Sequence[Progress]  # what is left of the training before and after each step, from 1 to 0
    # pickled; what it keeps in itself is forgotten after the round. None: there is none.
    experience_hook: bytes | None = None
    assignment: State | None = None  # of the `Assignment`; None: there is none


@dataclass(frozen=True)
class SavedShard:
    """The state of a shard between two rounds."""

    state: State | None = None  # what `Shard.get_state` returned; None: the shard begins new episodes
    env_seed: int | None = None  # seed of the envs if they begin new episodes; None: they keep theirs


@dataclass(frozen=True)
class ShardRollout:
    """What came of one round of one shard."""

    steps: RecordedSteps  # all steps of its envs
    # the episodes that ended in each step; env indices are counted within the shard
    episodes: Sequence[Sequence[Episode]]
    policies: Mapping[PolicyID, PolicyRollout]  # policy id -> what it experienced
    state: SavedShard  # the state of the shard afterwards


# --- Steps -----------------------------------------------------------------------------------------------------------

_ARRAYS = ("rewards", "terminated", "truncated", "acted", "to_act", "in_play", "stepped", "episode_done")


@dataclass(frozen=True)
class RecordedSteps:
    """The steps of some envs without their observations."""

    arrays: Mapping[str, Array]  # name in `VecStep` -> (steps, E, ...)
    infos: Sequence[StepInfos | None]  # of each step; None if all of its infos are empty
    played: Array | None = None  # (steps, E, A); see `LocalRunner.played`

    def __len__(self) -> int:
        return len(self.arrays["acted"])

    def step(self, number: int) -> VecStep:
        """Return a step; its observations are not there."""
        arrays = {name: array[number] for name, array in self.arrays.items()}
        return VecStep(
            observations=_NotHere(),
            action_masks=(),
            final_observations=NO_FINAL_OBSERVATIONS,
            infos=self.infos_of(number),
            reset_infos={},
            **arrays,
        )

    def infos_of(self, number: int) -> StepInfos:
        """Return the infos of a step."""
        return self.infos[number] or DictInfos([{}] * self.arrays["acted"].shape[1])


def side_by_side(shards: Sequence[RecordedSteps]) -> RecordedSteps:
    """Put the envs of all shards side by side."""
    arrays = {name: np.concatenate([shard.arrays[name] for shard in shards], axis=1) for name in _ARRAYS}
    starts = np.cumsum([0, *(shard.arrays["acted"].shape[1] for shard in shards)])[:-1].tolist()
    steps = range(len(shards[0]))
    infos = [JoinedInfos([shard.infos_of(step) for shard in shards], starts) for step in steps]
    played = [shard.played for shard in shards if shard.played is not None]
    return RecordedSteps(arrays, infos, np.concatenate(played, axis=1) if played else None)


class StepRecorder:
    """Keeps the steps and the episodes of a round."""

    def __init__(self) -> None:
        self.episodes: list[Sequence[Episode]] = []  # that ended in each step
        self._arrays: dict[str, list[Array]] = {name: [] for name in _ARRAYS}
        self._infos: list[StepInfos | None] = []
        self._played: list[Array] = []

    def add(self, step: VecStep, episodes: Sequence[Episode], played: Array | None = None) -> None:
        """Keep a step, the episodes that it ended, and who played in it, see `LocalRunner.played`."""
        if played is not None:
            self._played.append(played)
        for name, kept in self._arrays.items():
            kept.append(getattr(step, name).copy())
        self._infos.append(_copied(step.infos, len(step.acted)))
        self.episodes.append(episodes)

    def recorded(self) -> RecordedSteps:
        """Return the steps."""
        arrays = {name: np.stack(kept) for name, kept in self._arrays.items()}
        return RecordedSteps(arrays, self._infos, np.stack(self._played) if self._played else None)


_PLAIN = (int, float, bool, str, np.generic)


def _copied(infos: StepInfos, num_envs: int) -> StepInfos | None:
    """Return a copy of the infos of a step, which the envs may change later; None if they are empty."""
    if isinstance(infos, ArrayInfos):
        columns = {agent: {key: each.copy() for key, each in own.items()} for agent, own in infos.columns.items()}
        return ArrayInfos(columns, num_envs)
    copies = [
        {agent: _copy(own) for agent, own in info.items()} if any(info.values()) else {}
        for info in (infos[index] for index in range(num_envs))
    ]
    return DictInfos(copies) if any(copies) else None


def _copy(own: Any) -> Any:
    if not isinstance(own, dict):
        return deepcopy(own)
    return {key: value if isinstance(value, _PLAIN) else deepcopy(value) for key, value in own.items()}


class _NotHere(tuple[Any, ...]):
    """Stands for observations, which stay with the shards."""

    def __getitem__(self, index: Any) -> NoReturn:
        raise VecEnvOrderError("the observations of a step stay with its shard; callbacks get rewards, ends and infos")
