"""What the main process keeps to bring envs back into a new worker, and to end the episodes of those that it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from marl_sb3.core.vec_env import AgentLayout, FinalObservations, VecStep, map_arrays, put, taken
from marl_sb3.extensions.remote.workers.spec import Event, Shown, WorkerSpec, WorkerState
from marl_sb3.types import Array, BoolArray, Observations

MOST_STEPS = 500  # since the latest state; afterwards the workers are asked for a new one


class Journal:
    """The states of all workers' envs, the events since then, and what the agents in play saw last.

    Args:
        specs: of the workers.
        layout: the places of the agents in the arrays.
        most_steps: after how many steps it is time for new states.
    """

    def __init__(self, specs: Sequence[WorkerSpec], layout: AgentLayout, most_steps: int = MOST_STEPS) -> None:
        self._specs = specs
        self._layout = layout
        self._most_steps = most_steps
        self.masked: dict[int, bool] = {}  # group -> whether it has masks, for the groups of which this is known
        self._latest: VecStep | None = None
        self._seen: list[Observations] | None = None  # by all agents in play; None: all of them are shown `_latest`
        self._states: Sequence[WorkerState | None] = [None for _ in specs]
        self._episodes = np.full(sum(spec.num_envs for spec in specs), -1)
        self._events: list[tuple[str, Sequence[int] | None, tuple[Any, ...]]] = []
        self._steps = 0

    def begin(self, states: Sequence[WorkerState], latest: VecStep) -> None:
        """Begin with the first step after a reset, or after `set_state`, and the states of each worker then."""
        self._latest, self._seen = latest, None
        self.renew(states)

    def renew(self, states: Sequence[WorkerState]) -> None:
        """Begin anew with the states of each worker after the latest step."""
        self._states, self._events, self._steps = states, [], 0
        self._episodes = np.concatenate([state["episodes"] for state in states])

    @property
    def is_full(self) -> bool:
        """Whether it is time for new states."""
        return self._steps >= self._most_steps

    def add_step(self, actions: Sequence[Array], step: VecStep) -> None:
        """Note a step.

        Args:
            actions: per group, (E, A_group, ...); they are copied.
            step: its result.
        """
        self._events.append(("step", None, tuple(group.copy() for group in actions)))
        self._steps += 1
        if step.reset_infos:
            self._episodes += step.episode_done
        self._keep_seen(step)
        self._latest = step

    def _keep_seen(self, step: VecStep) -> None:
        """Keep what agents that wait have seen: they are not shown anything."""
        assert self._latest is not None
        everybody_acts = b"\0" not in step.to_act.tobytes()  # faster than `all`
        if everybody_acts or not (_left_in_play(step) & ~step.to_act).any():
            self._seen = None
            return
        if self._seen is None:
            self._seen = [map_arrays(np.copy, group) for group in self._latest.observations]
        for group, new, seen in zip(self._layout.groups, step.observations, self._seen, strict=True):
            shown = step.to_act[:, group.columns]
            put(taken(new, shown), seen, shown)

    def add(self, name: str, env_indices: Sequence[int] | None, *arguments: Any) -> None:
        """Note a request that changes some envs.

        Args:
            name: a method of `EnvServer`.
            env_indices: the envs, whose rows are its first argument; None: all envs, and it takes no rows.
            arguments: the other ones.
        """
        self._events.append((name, env_indices, deepcopy(arguments)))

    def of_worker(self, worker: int) -> tuple[WorkerState | None, list[Event], Shown | None]:
        """Return the arguments of `EnvServer.restore` for one worker."""
        spec, latest, rows = self._specs[worker], self._latest, self._specs[worker].rows
        shown = None
        if latest is not None:
            observations = [map_arrays(lambda array: array[rows], group) for group in latest.observations]
            shown = Shown(latest.to_act[rows], observations, self._episodes[rows], self.masked)
        return self._states[worker], self._events_of(spec), shown

    def _events_of(self, spec: WorkerSpec) -> list[Event]:
        found: list[Event] = []
        for name, env_indices, arguments in self._events:
            if name == "step":
                found.append((name, tuple(group[spec.rows] for group in arguments)))
            elif env_indices is None:
                found.append((name, arguments))
            elif rows := spec.rows_of(env_indices):
                found.append((name, (rows, *arguments)))
        return found

    def cut(self, step: VecStep, env_indices: Iterable[int]) -> VecStep:
        """Return a step in which the agents in play of these envs are truncated, on what they saw last.

        Args:
            step: the envs stood still in it, and have been reset; it has not been added yet.
            env_indices: the envs.
        """
        latest, rows = self._latest, list(env_indices)
        assert latest is not None
        truncated, in_play = step.truncated.copy(), step.in_play.copy()
        truncated[rows] = in_play[rows] = (_left_in_play(latest) | latest.to_act)[rows]
        seen = latest.observations if self._seen is None else self._seen
        finals = dict(step.final_observations)
        for row, column in np.argwhere(truncated).tolist():
            if row in rows:
                place = self._layout.places[self._layout.possible_agents[column]]
                finals[row, column] = map_arrays(np.copy, taken(seen[place.group], (row, place.group_column)))
        return replace(step, truncated=truncated, in_play=in_play, final_observations=FinalObservations(finals))


def _left_in_play(step: VecStep) -> BoolArray:
    """Return the agents that have acted and have not ended after a step, (E, A) bool."""
    return step.in_play & ~(step.terminated | step.truncated)
