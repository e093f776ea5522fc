"""The envs of a worker as the main process uses them: what it asks for, each a method of `EnvServer`."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from marl_sb3.processes.messages import packed_result
from marl_sb3.processes.serve import Link
from marl_sb3.types import AgentID
from marl_sb3.vec_env.interface import Options
from marl_sb3.vec_env.observations import AgentGroup
from marl_sb3.vec_env.step import VecStep
from marl_sb3.vec_env.workers.envs import make_worker_envs
from marl_sb3.vec_env.workers.spec import Event, Shown, WorkerSpec, WorkerState, polling_s
from marl_sb3.vec_env.workers.steps import Extras, SharedArrays

# The agents and groups of a vec env, the metadata of its envs, and their render mode.
Facts = tuple[tuple[AgentID, ...], tuple[AgentGroup, ...], Mapping[str, Any], str | None]


class EnvServer:
    """Makes the envs of a worker, and answers requests.

    Args:
        link: to the main process; its descriptor is that of the shared memory.
        spec: of the envs.
    """

    def __init__(self, link: Link, spec: WorkerSpec) -> None:
        self._log = link.log
        self._memory, self._spec = link.descriptors[0], spec
        link.channel.polling_s = polling_s(spec.n_workers)
        np.random.seed(np.random.SeedSequence(spec.seed, spawn_key=(spec.first_index,)).generate_state(4))  # noqa: NPY002
        self._envs = envs = make_worker_envs(spec, link.heartbeat)
        # Requests that the envs themselves answer.
        self.limit_episodes, self.show_env_state = envs.limit_episodes, envs.show_env_state
        self.seed, self.close = envs.seed, envs.close

    def facts(self) -> Facts:
        """Return what the envs are."""
        return self._envs.agents, self._envs.groups, self._envs.metadata, self._envs.render_mode

    @cached_property
    def _arrays(self) -> SharedArrays:
        return SharedArrays(self._memory, self._envs.groups, self._spec.num_envs_of_all, self._spec.rows)

    def step(self) -> bytes:
        """Take a step with the actions in the shared arrays; returns the pickled `Extras`, or nothing."""
        step = self._envs.step([np.array(actions) for actions in self._arrays.actions])
        self._arrays.write(step)
        extras = Extras(
            None if self._envs.silent else packed_result(step.infos, "infos"),
            dict(step.final_observations),
            step.reset_infos,
            self._envs.found_masks(),
            self._log.taken(),
            step.env_state,
            step.final_env_states,
        )
        self._envs.lost = {}
        return b"" if extras.is_empty else pickle.dumps(extras)

    def reset(self, options: Sequence[Options] | None) -> tuple[Extras, WorkerState]:
        """See `MultiAgentVecEnv.reset`; what it returns without arrays, and the state afterwards."""
        self._envs.lost = {}
        return self._begun(self._envs.reset(options))

    def _begun(self, step: VecStep) -> tuple[Extras, WorkerState]:
        self._arrays.write(step)
        extras = Extras(reset_infos=step.reset_infos, masked=self._envs.found_masks(), env_state=step.env_state)
        return extras, self.get_state(silently=True)

    def settle_masks(self, masked: Mapping[int, bool]) -> None:
        """Take the decision of the main process: group -> whether it has masks."""
        self._arrays.write(self._envs.settle_masks(masked))

    def call(self, rows: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """See `MultiAgentVecEnv.call`."""
        return self._envs.call(name, rows, *args, **kwargs)

    def configure(self, rows: Sequence[int], settings: Mapping[str, Any]) -> None:
        """See `MultiAgentVecEnv.configure`."""
        self._envs.configure(rows, **settings)

    def get_state(self, silently: bool) -> WorkerState:
        """Return the state for `set_state`.

        Args:
            silently: without the warnings of envs that cannot say what it is.
        """
        state = self._envs.worker_state()
        if silently:
            self._log.taken()
        return state

    def set_state(self, state: WorkerState) -> tuple[Extras, WorkerState, Mapping[int, str]]:
        """See `MultiAgentVecEnv.set_state`; its first step without arrays, the state afterwards, reasons by row."""
        self._envs.lost = {}
        inexact = self._envs.set_worker_state(state)
        return (*self._begun(self._envs.latest), inexact)

    def restore(self, state: WorkerState | None, events: Sequence[Event], shown: Shown | None) -> dict[int, str]:
        """Bring the envs back, in a new worker.

        Args:
            state: an earlier state; None: they had none.
            events: what happened to them since.
            shown: what they showed last; None: nothing.

        Returns:
            Row -> reason, for envs that could not be brought back; they have begun new episodes.
        """
        if state is not None:
            self._envs.bring_back(state)
        if shown is not None and shown.masked:
            self._envs.settle_masks(shown.masked)
        for name, arguments in events:
            if name == "step":
                self._envs.repeat(arguments)
            else:
                getattr(self, name)(*arguments)
        return self._envs.replace_lost(shown) if state is not None else {}
