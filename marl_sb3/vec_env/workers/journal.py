"""States of all envs that the main process keeps, and what has happened since: with both, envs can be brought back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_sb3.types import Array, BoolArray
from marl_sb3.vec_env.workers.plan import Event, SeparateState, SharePlan, ShareState

MOST_STEPS = 500  # since the latest state; afterwards the workers are asked for a new one


class Journal:
    """The states of all shares, and the events since then.

    Args:
        plans: of the shares.
    """

    def __init__(self, plans: Sequence[SharePlan]) -> None:
        self._plans = plans
        self.begin([None for _ in plans])

    def begin(self, states: Sequence[ShareState | None]) -> None:
        """Begin with these states of the shares; None: envs that have not been reset."""
        self._states = states
        self._events: list[tuple[str, tuple[Any, ...]]] = []
        self._steps = 0
        self._episodes = np.concatenate(
            [_episodes(state, plan.num_envs) for state, plan in zip(states, self._plans, strict=True)]
        )

    @property
    def is_full(self) -> bool:
        """Whether it is time for new states."""
        return self._steps >= MOST_STEPS

    def add_step(self, actions: Sequence[Array], episode_done: BoolArray) -> None:
        """Note a step.

        Args:
            actions: per group, (E, A_group, ...); they are copied.
            episode_done: (E,) bool.
        """
        self._events.append(("step", tuple(group.copy() for group in actions)))
        self._steps += 1
        if episode_done.any():
            self._episodes += episode_done

    def add(self, name: str, env_indices: Sequence[int], *arguments: Any) -> None:
        """Note a request that changes some envs."""
        self._events.append((name, (tuple(env_indices), *arguments)))

    def state_of(self, worker: int) -> ShareState | None:
        """Return the state of a share with which the journal begins."""
        return self._states[worker]

    def events_of(self, worker: int) -> list[Event]:
        """Return the events of a share since then, with rows instead of indices of envs."""
        indices = self._plans[worker].indices
        rows = slice(indices.start, indices.stop)
        found = []
        for name, arguments in self._events:
            if name == "step":
                found.append(Event("step", tuple(group[rows] for group in arguments)))
            else:
                env_indices, *others = arguments
                own = rows_of(env_indices, self._plans[worker])
                if own:
                    found.append(Event(name, _with_rows(name, own, others)))
        return found

    def episodes_of(self, worker: int) -> Array:
        """Return the indices of the running episodes of a share."""
        indices = self._plans[worker].indices
        return self._episodes[indices.start : indices.stop]


def rows_of(env_indices: Sequence[int], plan: SharePlan) -> list[int]:
    """Return the rows, within a share, of those envs that belong to it."""
    return [index - plan.first_index for index in env_indices if index in plan.indices]


def _with_rows(name: str, rows: Sequence[int], arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Put the rows where the handler of the request takes them."""
    if name == "seed":
        return tuple(arguments)
    return (arguments[0], rows, *arguments[1:]) if name == "call" else (rows, *arguments)


def _episodes(state: ShareState | None, num_envs: int) -> Array:
    if state is None:
        return np.full(num_envs, -1)
    if isinstance(state, SeparateState):
        return np.array([slot.episode for slot in state.slots])
    assert isinstance(state, Mapping)
    return np.array(state["episodes"])
