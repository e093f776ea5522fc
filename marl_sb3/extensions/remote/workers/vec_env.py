"""E envs that are stepped by N processes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import finalize

import numpy as np
from typing_extensions import override

from marl_sb3 import stacks
from marl_sb3.core.envs.registry import why_not_batched
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.vec_env.interface import Health, MultiAgentVecEnv, Options, VecEnvRequest
from marl_sb3.core.vec_env.masks import read_masks
from marl_sb3.core.vec_env.observations import AgentLayout, require_same_agents
from marl_sb3.core.vec_env.seeding import fresh_seed
from marl_sb3.core.vec_env.slot_states import pack, read_envs, unpack
from marl_sb3.core.vec_env.step import ActionMasks, FinalObservations, VecStep, first_step
from marl_sb3.doors import ENV_KINDS
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.remote.processes.messages import pass_on
from marl_sb3.extensions.remote.workers.spec import WorkerSpec, WorkerState
from marl_sb3.extensions.remote.workers.steps import NO_EXTRAS, Extras, SharedArrays, joined_extras, joined_infos
from marl_sb3.extensions.remote.workers.supervisor import Journal, Supervisor
from marl_sb3.systems import require_fork
from marl_sb3.types import Array

_READ_ONLY_CALLS = ("render", "get_wrapper_attr", "has_wrapper")


class WorkersVecEnv(MultiAgentVecEnv):
    """A vec env of envs that are made and stepped by worker processes; with any number of them it gives the same steps.

    A worker that ends, or in which a call of an env takes longer than `worker_timeout_s`, is replaced. Its envs are
    brought back, from a state and what has happened since, and the rollout is the same as without the loss. An env for
    which that is not possible begins a new episode: its agents are truncated on what they saw last.

    Args:
        request: as a `Vectorizer` gets it; the workers have the vectorizers `batched` and `sync`.

    Raises:
        ConfigError: there are more workers than envs, the vectorizer is another one, the factory cannot be sent to
            workers, or envs cannot be made.
        WorkerError: a worker was lost too often while it made its envs.
    """

    def __init__(self, request: VecEnvRequest) -> None:
        name, num_envs = request.vectorizer, request.n_envs
        if name not in ("auto", "batched", "sync"):
            words = f"vectorizer is {name!r}, which has no workers; accepted with n_workers: auto, batched or sync"
            raise ConfigError(words, key="vectorizer")
        require_fork("n_workers", request.n_workers, "0")
        if name == "auto":
            self.why_not_batched = why_not_batched(request.factory, request.env_kwargs)
        self._batched = name != "sync" and self.why_not_batched is None
        run_seed = fresh_seed() if request.seed is None else request.seed
        envs = request.factory, dict(request.env_kwargs), 0, num_envs, run_seed, self._batched, num_envs
        self._specs = WorkerSpec(*envs, kinds=ENV_KINDS.added()).divided(request.n_workers)
        self._supervisor = Supervisor(self._specs, request.worker_timeout_s, request.max_worker_restarts)
        self._free = finalize(self, self._supervisor.close)  # also if nobody closes the vec env
        try:
            self._set_up(num_envs)
        except BaseException:
            self.close()
            raise

    def _set_up(self, num_envs: int) -> None:
        layouts = [AgentLayout(agents, groups) for agents, groups, *_ in self._supervisor.facts]
        for spec, others in zip(self._specs, layouts, strict=True):
            require_same_agents(others, spec.first_index, layouts[0])
        self._layout = layouts[0]
        self.num_envs = num_envs
        self._all_stepped = np.ones(num_envs, dtype=np.bool_)
        self.agents, self.groups, self.metadata, self.render_mode = self._supervisor.facts[0]
        arguments = (self._supervisor.memory, self.groups, num_envs)
        SharedArrays.reserve(*arguments)
        self._arrays = SharedArrays(*arguments)
        self._journal = self._supervisor.journal = Journal(self._specs, self._layout)
        stacks.add_source(self._supervisor.stacks)

    @property
    @override
    def health(self) -> Health:
        healthy = [worker for worker in self._supervisor.workers if worker.is_healthy]
        return Health(len(healthy), self._supervisor.restarts)

    @override
    def episode_seeds(self, env_indices: Sequence[int]) -> list[int | None]:
        return self._of_envs("episode_seeds", env_indices)

    @override
    def limit_episodes(self, env_steps: int) -> None:
        self._supervisor.set_in_all("limit_episodes", env_steps)

    @override
    def show_env_state(self) -> None:
        super().show_env_state()
        self._supervisor.set_in_all("show_env_state")

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _seed(self, seed: int) -> None:
        self._supervisor.ask_all("seed", seed)
        self._journal.add("seed", None, seed)

    def _reset(self, options: Sequence[Options] | None) -> VecStep:
        given = [(None if options is None else options[spec.rows],) for spec in self._specs]
        extras, states = zip(*self._supervisor.ask_each("reset", given), strict=True)
        return self._begun(extras, states)

    def _begun(self, parts: Sequence[Extras], states: Sequence[WorkerState]) -> VecStep:
        """Return the first step after a reset, or after `set_state`."""
        self._supervisor.lost = {}  # they have begun new episodes, too
        extras, copies = joined_extras(parts, self._specs), self._arrays.copies()
        self._latest = first_step(
            copies["observations"],
            self._masks(),
            copies["to_act"],
            extras.reset_infos,
            extras.env_state,
            copies["in_play"],
        )
        self._journal.begin(states, self._latest)
        return self._with_settled_masks(extras)

    def _send(self, actions: Sequence[Array]) -> None:
        for given, shared in zip(actions, self._arrays.actions, strict=True):
            np.copyto(shared, given, casting="same_kind")
        self._supervisor.step()

    def _recv(self) -> VecStep:
        supervisor, arrays = self._supervisor, self._arrays
        payloads = [answer.payload for answer in supervisor.steps()]
        parts = [pickle.loads(payload) if payload else NO_EXTRAS for payload in payloads]
        extras = joined_extras(parts, self._specs) if any(payloads) else NO_EXTRAS
        acted = self.latest.to_act
        step = VecStep(
            **arrays.copies(),
            action_masks=self._masks(),
            acted=acted,
            stepped=self._all_stepped,
            final_observations=FinalObservations(extras.final_observations),
            infos=joined_infos(parts, self._specs, acted, self.agents),
            reset_infos=extras.reset_infos,
            env_state=extras.env_state,
            final_env_states=extras.final_env_states,
        )
        if supervisor.lost:
            step = self._journal.cut(step, supervisor.lost)
            supervisor.lost = {}
        self._journal.add_step(arrays.actions, step)
        self._latest = step
        step = self._with_settled_masks(extras)
        if self._journal.is_full:
            self._journal.renew(supervisor.ask_all("get_state", True))
        return step

    def _with_settled_masks(self, extras: Extras) -> VecStep:
        """Return the latest step, after the decision which groups have masks of which an agent acts for the first time.

        The journal has the step already, so that a worker which is lost meanwhile is brought back to it.
        """
        pass_on(extras.messages)
        if extras.masked:
            masked = self._journal.masked = {**extras.masked, **self._journal.masked}
            self._supervisor.ask_all("settle_masks", masked)
            self._latest = replace(self.latest, action_masks=self._masks())
        return self.latest

    def _masks(self) -> ActionMasks:
        masked, arrays = self._journal.masked, self._arrays.action_masks
        if True not in masked.values():
            return (None,) * len(arrays)
        return tuple(
            masks.copy() if masks is not None and masked.get(number) else None for number, masks in enumerate(arrays)
        )

    # --- Single envs -------------------------------------------------------------------------------------------------

    def _call(self, name: str, env_indices: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        results = self._of_envs("call", env_indices, name, args, kwargs)
        if name not in _READ_ONLY_CALLS:
            self._journal.add("call", env_indices, name, args, kwargs)
        return results

    def _of_envs(self, request: str, env_indices: Sequence[int], *arguments: Any) -> list[Any]:
        """Ask the workers of these envs; returns the result of each env."""
        rows = [spec.rows_of(env_indices) for spec in self._specs]
        answers = self._supervisor.ask_each(
            request, [(of_worker, *arguments) if of_worker else None for of_worker in rows]
        )
        by_env = {
            spec.first_index + row: result
            for spec, of_worker, results in zip(self._specs, rows, answers, strict=True)
            for row, result in zip(of_worker, results or (), strict=True)
        }
        return [by_env[index] for index in env_indices]

    def _configure(self, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        self._of_envs("configure", env_indices, settings)
        self._journal.add("configure", env_indices, settings)

    # --- State -------------------------------------------------------------------------------------------------------

    def _get_state(self) -> State:
        latest = self.latest
        states: list[WorkerState] = self._supervisor.ask_all("get_state", False)
        masks = list(latest.action_masks)
        if self._batched:
            seen = {"observations": list(latest.observations), "action_masks": masks}
            others = [{name: value for name, value in state.items() if name not in seen} for state in states]
            return {**_joined_values(others, [spec.num_envs for spec in self._specs]), **seen}
        slots = [slot for state in states for slot in state["slots"]]
        return {**pack(slots, self.groups), "action_masks": masks}

    def _set_state(self, state: StateReader) -> Mapping[int, str]:
        masks = read_masks(state, self.groups, self.num_envs)
        given = [(each,) for each in self._worker_states(state, masks)]
        extras, states, inexact = zip(*self._supervisor.ask_each("set_state", given), strict=True)
        self._journal.masked = {number: True for number, group in enumerate(masks) if group is not None}
        self._begun(extras, states)
        return {
            spec.first_index + row: why
            for each, spec in zip(inexact, self._specs, strict=True)
            for row, why in each.items()
        }

    def _worker_states(self, state: StateReader, masks: ActionMasks) -> list[WorkerState]:
        """Return the states of the workers' envs from the state of all envs, which is checked."""
        rows = [spec.rows for spec in self._specs]
        if self._batched:
            # Refuse a state of another number of envs: its parts might fit the batches of the workers.
            if not read_envs(state, self.groups, self.num_envs).apart and state.value("own") is not None:
                state.fields("own")
            whole = {name: state.value(name) for name in state}
            return [_split_state(whole, self.num_envs, of_worker) for of_worker in rows]
        slots = unpack(state, self._layout, self.num_envs)
        return [
            {
                "slots": slots[of_worker],
                "action_masks": tuple(None if group is None else group[of_worker] for group in masks),
            }
            for of_worker in rows
        ]

    # --- End ---------------------------------------------------------------------------------------------------------

    @override
    def close(self) -> None:
        if self._free.alive:
            try:
                self._supervisor.close_envs()
            finally:
                self._free()


# The states of batches are joined to the state of one large batch, and split again. An item of a state that has an
# entry for each env is divided; other items are the same in all batches.


def _joined_values(states: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Join values; arrays that differ in their other axes are filled up with zeros. None: one of them is None."""
    if any(state is None for state in states):
        return None
    first = states[0]
    if isinstance(first, Mapping):
        return {key: _joined_values([state[key] for state in states], sizes) for key in first}
    if isinstance(first, list) and _by_env(states, sizes):
        return [item for state in states for item in state]
    if isinstance(first, np.ndarray) and first.ndim and _by_env(states, sizes):
        widths = np.max([array.shape[1:] for array in states], axis=0)
        return np.concatenate(
            [np.pad(array, [(0, 0), *((0, more) for more in widths - array.shape[1:])]) for array in states]
        )
    return first


def _by_env(states: Sequence[Any], sizes: Sequence[int]) -> bool:
    return all(len(state) == size for state, size in zip(states, sizes, strict=True))


def _split_state(state: Any, num_envs: int, rows: slice) -> Any:
    """Return the part of a state of `num_envs` envs that belongs to some of them."""
    if isinstance(state, Mapping):
        return {key: _split_state(value, num_envs, rows) for key, value in state.items()}
    if isinstance(state, list):
        return state[rows] if len(state) == num_envs else [_split_state(item, num_envs, rows) for item in state]
    if isinstance(state, np.ndarray) and state.ndim and len(state) == num_envs:
        return state[rows]
    return state
