"""What a worker has to know of its envs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from marl_sb3.core.config.values import counted
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.state.state import State
from marl_sb3.doors import EnvKind
from marl_sb3.errors import ConfigError
from marl_sb3.systems import cores
from marl_sb3.types import Array, Observations


@dataclass(frozen=True)
class WorkerSpec:
    """The envs of a worker."""

    factory: EnvFactory  # makes the envs
    env_kwargs: Mapping[str, Any]  # arguments of the factory
    first_index: int  # index of the first env of the worker
    num_envs: int  # number of envs of the worker
    seed: int  # the run seed
    batched: bool  # whether the worker steps its envs as one `BatchedEnv`
    num_envs_of_all: int  # number of envs of all workers
    worker: int = 0  # index of the worker
    n_workers: int = 1  # number of workers
    # what stands at the door `ENV_KINDS` of the main process
    kinds: Mapping[str, EnvKind | str] = field(default_factory=dict)

    @property
    def indices(self) -> range:
        """The indices of the envs."""
        return range(self.first_index, self.first_index + self.num_envs)

    @property
    def rows(self) -> slice:
        """The rows of the envs in arrays of all envs."""
        return slice(self.indices.start, self.indices.stop)

    @property
    def name(self) -> str:
        """The worker and its envs, for messages."""
        first, last = self.indices[0], self.indices[-1]
        return f"worker {self.worker} ({f'env {first}' if first == last else f'envs {first} to {last}'})"

    def rows_of(self, env_indices: Sequence[int]) -> list[int]:
        """Return the rows, within the worker's arrays, of those envs that belong to it."""
        return [index - self.first_index for index in env_indices if index in self.indices]

    def divided(self, n_workers: int | str) -> list[WorkerSpec]:
        """Divide the envs among workers; the first workers get one more where the envs do not divide equally.

        Args:
            n_workers: `auto` is one for each core, but no more than envs.

        Raises:
            ConfigError: there are more workers than envs.
        """
        number = min(cores(), self.num_envs) if n_workers == "auto" else int(n_workers)
        if number > self.num_envs:
            raise ConfigError(
                f"n_workers is {number}, but n_envs is {self.num_envs}; accepted: at most "
                f"{counted(self.num_envs, 'worker')}, or auto",
                key="n_workers",
            )
        firsts = [-(-worker * self.num_envs // number) for worker in range(number + 1)]
        return [
            replace(self, first_index=first, num_envs=last - first, worker=worker, n_workers=number)
            for worker, (first, last) in enumerate(pairwise(firsts))
        ]


_POLLING_S = 5e-4  # longer than most policies take to choose actions


def polling_s(n_workers: int) -> float:
    """Return how long a worker and the main process poll for a message; 0 if they have no core each."""
    return _POLLING_S if n_workers < cores() else 0.0


# The state of a worker's envs: of a batch as `BatchedVecEnv.get_state` returns it. Of separate envs, `slots` has the
# `SlotState` of each, and `action_masks` their masks. Both have the `episodes`.
WorkerState = State


class Shown(NamedTuple):
    """What the agents of a worker were shown last: the envs in a new worker are compared with it."""

    to_act: Array  # (envs of the worker, A) bool
    observations: Sequence[Observations]  # per group, (envs of the worker, A_group, ...)
    episodes: Array  # (envs of the worker,) index of the running episode
    masked: Mapping[int, bool]  # group -> whether it has masks, for the groups of which this is known


Event = tuple[str, tuple[Any, ...]]  # what happened to the envs of a worker: a method of `EnvServer`, its arguments
