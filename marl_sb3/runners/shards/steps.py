"""The steps of a round, as they are sent from the shards: what callbacks and counters read of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from marl_sb3.errors import VecEnvOrderError
from marl_sb3.metrics import Episode
from marl_sb3.types import Array
from marl_sb3.vec_env.step import NO_FINAL_OBSERVATIONS, DictInfos, VecStep

_ARRAYS = ("rewards", "terminated", "truncated", "acted", "to_act", "episode_done")


@dataclass(frozen=True)
class RecordedSteps:
    """The steps of some envs without their observations.

    Attributes:
        arrays: name in `VecStep` -> (steps, E, ...).
        infos: of each step, one dictionary per env; None if all infos of all steps are empty.
    """

    arrays: Mapping[str, Array]
    infos: Sequence[Sequence[Mapping[str, Any]]] | None

    def __len__(self) -> int:
        return len(self.arrays["acted"])

    def step(self, number: int) -> VecStep:
        """Return a step; its observations are not there."""
        arrays = {name: array[number] for name, array in self.arrays.items()}
        infos = [{}] * len(arrays["acted"]) if self.infos is None else self.infos[number]
        return VecStep(
            observations=_NotHere(),
            action_masks=(),
            final_observations=NO_FINAL_OBSERVATIONS,
            infos=DictInfos(infos),
            reset_infos={},
            **arrays,
        )


def side_by_side(shards: Sequence[RecordedSteps]) -> RecordedSteps:
    """Put the envs of all shards side by side."""
    arrays = {name: np.concatenate([shard.arrays[name] for shard in shards], axis=1) for name in _ARRAYS}
    if all(shard.infos is None for shard in shards):
        return RecordedSteps(arrays, None)
    infos = [[info for shard in shards for info in _infos_of(shard, number)] for number in range(len(shards[0]))]
    return RecordedSteps(arrays, infos)


def _infos_of(shard: RecordedSteps, number: int) -> Sequence[Mapping[str, Any]]:
    return [{}] * shard.arrays["acted"].shape[1] if shard.infos is None else shard.infos[number]


class StepRecorder:
    """A `StepListener` that keeps the steps and the episodes of a round.

    Attributes:
        episodes: that ended in each step.
    """

    def __init__(self) -> None:
        self.episodes: list[Sequence[Episode]] = []
        self._arrays: dict[str, list[Array]] = {name: [] for name in _ARRAYS}
        self._infos: list[list[Mapping[str, Any]]] = []

    def on_step(self, step: VecStep, episodes: Sequence[Episode]) -> bool:
        """See `StepListener.on_step`."""
        for name, kept in self._arrays.items():
            kept.append(getattr(step, name).copy())
        self._infos.append([_copied(step.infos[index]) for index in range(len(step.acted))])
        self.episodes.append(episodes)
        return True

    def recorded(self) -> RecordedSteps:
        """Return the steps."""
        empty = not any(info for of_step in self._infos for info in of_step)
        return RecordedSteps(
            {name: np.stack(kept) for name, kept in self._arrays.items()}, None if empty else self._infos
        )


def _copied(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a copy of what an env's infos hold; {} if there is nothing in them."""
    return deepcopy(dict(info)) if any(info.values()) else {}


class _NotHere(tuple[Any, ...]):
    """Stands for observations, which stay with the shards."""

    def __getitem__(self, index: Any) -> NoReturn:
        raise VecEnvOrderError("the observations of a step stay with its shard; callbacks get rewards, ends and infos")
