"""What the main process keeps to bring envs back: states, what has happened since, and what the agents saw last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from marl_sb3.types import Array
from marl_sb3.vec_env.observations import map_arrays
from marl_sb3.vec_env.step import VecStep
from marl_sb3.vec_env.workers.plan import Event, SeparateState, SharePlan, ShareState, Shown

MOST_STEPS = 500  # since the latest state; afterwards the workers are asked for a new one


class Journal:
    """The states of all shares, the events since then, and the latest step.

    Args:
        plans: of the shares.

    Attributes:
        masked: group -> whether it has masks, for the groups of which this is known.
    """

    def __init__(self, plans: Sequence[SharePlan]) -> None:
        self._plans = plans
        self.masked: dict[int, bool] = {}
        self._latest: VecStep | None = None
        self._states: Sequence[ShareState | None] = [None for _ in plans]
        self._episodes = np.full(sum(plan.num_envs for plan in plans), -1)
        self._events: list[tuple[str, Sequence[int] | None, tuple[Any, ...]]] = []
        self._steps = 0

    def begin(self, states: Sequence[ShareState], latest: VecStep) -> None:
        """Begin with these states of the shares.

        Args:
            states: of the shares.
            latest: what the agents were shown last.
        """
        self._states, self._latest = states, latest
        self._events, self._steps = [], 0
        self._episodes = np.concatenate([_episodes(state) for state in states])

    @property
    def is_full(self) -> bool:
        """Whether it is time for new states."""
        return self._steps >= MOST_STEPS

    def add_step(self, actions: Sequence[Array], step: VecStep) -> None:
        """Note a step.

        Args:
            actions: per group, (E, A_group, ...); they are copied.
            step: its result.
        """
        self._events.append(("step", None, tuple(group.copy() for group in actions)))
        self._steps += 1
        self._latest = step
        if step.reset_infos:
            self._episodes += step.episode_done

    def add(self, name: str, env_indices: Sequence[int] | None, *arguments: Any) -> None:
        """Note a request that changes some envs.

        Args:
            name: a method of `ShareServer`.
            env_indices: the envs, whose rows are its first argument; None: all envs, and it takes no rows.
            arguments: the other ones.
        """
        self._events.append((name, env_indices, deepcopy(arguments)))

    def state_of(self, worker: int) -> ShareState | None:
        """Return the state of a share with which the journal begins; None if its envs have not been reset."""
        return self._states[worker]

    def events_of(self, worker: int) -> list[Event]:
        """Return the events of a share since then, with rows instead of indices of envs."""
        plan = self._plans[worker]
        found: list[Event] = []
        for name, env_indices, arguments in self._events:
            if name == "step":
                found.append((name, tuple(group[plan.rows] for group in arguments)))
            elif env_indices is None:
                found.append((name, arguments))
            elif own := plan.rows_of(env_indices):
                found.append((name, (own, *arguments)))
        return found

    def shown_of(self, worker: int) -> Shown | None:
        """Return what the agents of a share were shown last; None before the first reset."""
        if self._latest is None:
            return None
        rows = self._plans[worker].rows
        observations = [map_arrays(lambda array: array[rows], group) for group in self._latest.observations]
        return Shown(self._latest.to_act[rows], observations, self._episodes[rows], self.masked)


def _episodes(state: ShareState) -> Array:
    if isinstance(state, SeparateState):
        return np.array([slot.episode for slot in state.slots])
    assert isinstance(state, Mapping)
    return np.array(state["episodes"])
