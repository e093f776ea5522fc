"""Answers the requests of the main process, in a worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from marl_sb3.envs.faults import RAISED, raise_in_words
from marl_sb3.types import Observations
from marl_sb3.vec_env.interface import Options
from marl_sb3.vec_env.observations import map_arrays
from marl_sb3.vec_env.step import VecStep
from marl_sb3.vec_env.workers.arrays import SharedArrays, boards
from marl_sb3.vec_env.workers.batched_share import BatchedShare
from marl_sb3.vec_env.workers.channel import Kind, Message
from marl_sb3.vec_env.workers.division import polling_s
from marl_sb3.vec_env.workers.extras import NO_EXTRAS, Extras
from marl_sb3.vec_env.workers.pickling import packed_answer, packed_error
from marl_sb3.vec_env.workers.plan import EnvFacts, Event, SharePlan, ShareState, Shown, Surroundings
from marl_sb3.vec_env.workers.separate_share import SeparateShare
from marl_sb3.vec_env.workers.share import Share
from marl_sb3.vec_env.workers.worker_log import MessageLog


class ShareServer:
    """The requests of the main process, each a method of the same name.

    Args:
        memory: descriptor of the shared memory.
        log: the messages of this process.

    Attributes:
        polling_s: how long to poll for a request, before the process sleeps.
        closed: whether the envs are closed.
    """

    def __init__(self, memory: int, log: MessageLog) -> None:
        self._memory = memory
        self._log = log
        self.polling_s = 0.0
        self.closed = False

    def answer(self, message: Message) -> tuple[int, bytes]:
        """Do what a message asks for; returns kind and payload of the answer."""
        try:
            if message.kind == Kind.STEP:
                return Kind.STEPPED, self._step()
            name, arguments = pickle.loads(message.payload)
            handler: Callable[..., Any] = getattr(self, name)
            result = handler(*arguments)
            self._board.advance()
            return Kind.DONE, packed_answer((result, self._log.taken()), name)
        except BaseException as error:  # Ctrl-C does not reach a worker: an env has raised KeyboardInterrupt, too
            return Kind.FAILED, pickle.dumps((packed_error(error), self._log.taken()))

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _step(self) -> bytes:
        step = self._share.step([np.array(actions) for actions in self._actions])
        self._publish(step)
        extras = self._extras(step)
        self._share.go_on()
        return b"" if extras is NO_EXTRAS else pickle.dumps(extras)

    def _publish(self, step: VecStep) -> None:
        """Write a step into the shared arrays."""
        for ours, theirs in zip(step.observations, self._views.observations, strict=True):
            _write(ours, theirs)
        for masks, shared in zip(step.action_masks, self._views.action_masks, strict=True):
            if masks is not None and shared is not None:
                shared[:] = masks
        views = self._views
        views.rewards[:] = step.rewards
        views.terminated[:] = step.terminated
        views.truncated[:] = step.truncated
        views.to_act[:] = step.to_act
        views.episode_done[:] = step.episode_done

    def _extras(self, step: VecStep) -> Extras:
        messages, masked = self._log.taken(), self._share.found_masks()
        infos = None if self._share.silent else packed_answer(step.infos, "infos")
        if infos is None and not (messages or masked or step.final_observations or step.reset_infos):
            return NO_EXTRAS
        finals = dict(step.final_observations.items()) or None
        return Extras(infos, finals, step.reset_infos or None, masked or None, messages)

    # --- Requests ----------------------------------------------------------------------------------------------------

    def make(self, surroundings: Surroundings, packed: bytes) -> EnvFacts:
        """Make the envs."""
        surroundings.enter()
        self._plan = plan = _unpacked(packed)
        self.polling_s = polling_s(plan.n_workers)
        self._board = boards(self._memory, plan.n_workers)[plan.worker]
        np.random.seed(np.random.SeedSequence(plan.seed, spawn_key=(plan.first_index,)).generate_state(4))  # noqa: NPY002
        self._share: Share = (BatchedShare if plan.batched else SeparateShare)(plan, self._board)
        return EnvFacts.of(self._share)

    def attach(self, num_envs: int) -> None:
        """Map the shared arrays, which the main process has made, for so many envs of all workers."""
        arrays = SharedArrays(self._memory, self._share.groups, num_envs, self._plan.n_workers)
        self._views = _Rows(arrays, self._plan.rows)
        self._actions = self._views.actions

    def limit_episodes(self, env_steps: int) -> None:
        """See `MultiAgentVecEnv.limit_episodes`."""
        self._share.limit_episodes(env_steps)

    def seed(self, seed: int) -> None:
        """See `MultiAgentVecEnv.seed`."""
        self._share.seed(seed)

    def reset(self, options: Sequence[Options] | None) -> tuple[Extras, ShareState]:
        """See `MultiAgentVecEnv.reset`; what it returns without arrays, and the state afterwards."""
        self._share.go_on()
        step = self._share.reset(options)
        self._publish(step)
        return Extras(reset_infos=step.reset_infos, masked=self._share.found_masks() or None), self.get_state(True)

    def settle_masks(self, masked: Mapping[int, bool]) -> None:
        """Take the decision of the main process: group -> whether it has masks."""
        self._publish(self._share.settle_masks(masked))

    def call(self, rows: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """See `MultiAgentVecEnv.call`."""
        return self._share.call(name, rows, *args, **kwargs)

    def configure(self, rows: Sequence[int], settings: Mapping[str, Any]) -> None:
        """See `MultiAgentVecEnv.configure`."""
        self._share.configure(rows, **settings)

    def get_state(self, silently: bool) -> ShareState:
        """Return the state for `set_state`.

        Args:
            silently: without the warnings of envs that cannot say what it is.
        """
        state = self._share.share_state()
        if silently:
            self._log.taken()
        return state

    def set_state(self, state: ShareState) -> tuple[Extras, ShareState, Mapping[int, str]]:
        """See `MultiAgentVecEnv.set_state`; its first step without arrays, the state afterwards, reasons by row."""
        self._share.go_on()
        inexact = self._share.set_share_state(state)
        step = self._share.latest
        self._publish(step)
        extras = Extras(reset_infos=step.reset_infos, masked=self._share.found_masks() or None)
        return extras, self.get_state(True), inexact

    def restore(self, state: ShareState | None, events: Sequence[Event], shown: Shown | None) -> dict[int, str]:
        """Bring the envs back, in a new worker.

        Args:
            state: an earlier state; None: they had none.
            events: what happened to them since.
            shown: what they showed last; None: nothing.

        Returns:
            Row -> reason, for envs that could not be brought back; they have begun new episodes.
        """
        if state is not None:
            self._share.bring_back(state)
        if shown is not None and shown.masked:
            self._share.settle_masks(shown.masked)
        for name, arguments in events:
            if name == "step":
                self._share.repeat(arguments)
            else:
                getattr(self, name)(*arguments)
        return self._share.replace_lost(shown) if state is not None else {}

    def close(self) -> None:
        """Close the envs."""
        self._share.close()
        self.closed = True


class _Rows:
    """The rows of one worker in the shared arrays; the attributes are those of `SharedArrays`."""

    def __init__(self, arrays: SharedArrays, rows: slice) -> None:
        self.actions = [actions[rows] for actions in arrays.actions]
        self.observations: list[Observations] = [map_arrays(lambda a: a[rows], group) for group in arrays.observations]
        self.action_masks = [None if masks is None else masks[rows] for masks in arrays.action_masks]
        self.rewards, self.terminated, self.truncated = (
            array[rows] for array in (arrays.rewards, arrays.terminated, arrays.truncated)
        )
        self.to_act, self.episode_done = arrays.to_act[rows], arrays.episode_done[rows]


def _write(ours: Observations, shared: Observations) -> None:
    if isinstance(ours, dict):
        assert isinstance(shared, dict)
        for key, array in ours.items():
            shared[key][:] = array
    else:
        assert not isinstance(shared, dict)
        shared[:] = ours


def _unpacked(packed: bytes) -> SharePlan:
    try:
        plan: SharePlan = pickle.loads(packed)
    except RAISED as error:
        raise_in_words(error, "importing the env factory in a worker", "the envs")
        raise
    return plan
