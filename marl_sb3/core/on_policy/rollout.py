"""SB3's rollout buffers extended to rows that do not act in every step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from typing_extensions import override

from marl_sb3.core.acting.actor import Acted, Actor, Observed
from marl_sb3.core.acting.policy import Decision, PolicyInputs
from marl_sb3.core.experience import Experience
from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.fields import Commit, Field, Fields, in_order, scalar
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.vec_env.observations import map_arrays, pairs
from marl_sb3.core.vec_env.slot_states import require_categories, require_observed
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.types import Array, BoolArray, Observations

if TYPE_CHECKING:  # the base class, to mypy, of a mixin for both buffers
    _Base = RolloutBuffer
else:
    _Base = object


class TurnAwareRollout(_Base):
    """A mixin for SB3's rollout buffers: holds the transitions of rows that do not act in every step.

    A row is one agent of one env. Its transition runs from its action to its next turn or its end. Rewards in between
    are added to the reward of the step in which it acted. Returns and advantages run over the steps in which it acted
    and skip the others, and `get` draws minibatches from the steps in which it acted. Where every row acts in every
    step, the results equal those of SB3's buffer bit for bit.
    """

    # names of the arrays that are filled when a row acts, (buffer_size, n_envs, ...) each
    of_transition: ClassVar[tuple[str, ...]] = ("actions", "rewards", "episode_starts", "values", "log_probs")
    # names of the arrays that minibatches are made of
    of_sample: ClassVar[tuple[str, ...]] = ("actions", "values", "log_probs", "advantages", "returns")
    least_minibatch: int = 1  # a last minibatch of fewer transitions becomes a part of the one before it
    # whether each env fills the columns of its rows from the first line on, so that a line holds different steps: for
    # envs that step at different times. The buffer is full when the rows of one env are.
    packs_rows: bool = False
    # (buffer_size, n_envs) bool; True where a transition does not follow from the row's one before it, though no
    # episode starts: a hook has dropped those between. None: nowhere.
    breaks: BoolArray | None = None
    acted: BoolArray  # (buffer_size, n_envs) bool; True where a row acted, so that there is a transition
    samples_drawn: int  # number of agent steps in the minibatches drawn since `reset`
    # Returns what a buffer of another kind keeps of each transition besides, (n_envs, ...) by name.
    more_columns: Callable[[PolicyInputs], Mapping[str, Array]] | None = None
    _open_at: Array  # (n_envs,) the step at which each row's open transition began; -1: it has none
    _all_opened: bool  # whether the latest step opened a transition in every row, and none of them has been closed

    def reset(self) -> None:
        """Empty the buffer; its arrays are reused unless `get` has flattened them."""
        self.samples_drawn = 0
        self._open_at = np.full(self.n_envs, -1)
        self._all_opened = False
        self._filled = np.zeros(self.n_envs, dtype=np.int64)
        self.breaks = None
        if hasattr(self, "acted") and not self.generator_ready:
            self.pos, self.full = 0, False
            self.acted.fill(not self.packs_rows)
            self.rewards.fill(0.0)
            return
        super().reset()
        self.acted = np.full((self.buffer_size, self.n_envs), not self.packs_rows)

    def begin_step(
        self, inputs: PolicyInputs, decision: Decision, acted: BoolArray, stepping: BoolArray | None = None
    ) -> None:
        """Open a transition for each row that acts, (n_envs,) bool; there is filler in all other rows.

        Args:
            inputs: what the policy was shown; masks and states are kept only by buffers of policies that have them.
            decision: what it chose.
            acted: the rows that act.
            stepping: (n_envs,) bool; the rows whose env takes a step; None: all.
        """
        if stepping is not None:
            self._begin_packed(inputs, decision, acted, np.flatnonzero(stepping))
            return
        here = self.pos
        own: Any = self.observations
        if isinstance(own, dict):
            for key, seen in inputs.observations.items():  # type: ignore[union-attr]
                own[key][here] = seen.reshape(own[key].shape[1:])
        else:
            own[here] = inputs.observations.reshape(own.shape[1:])  # type: ignore[union-attr]
        self.actions[here] = decision.learned.reshape(self.n_envs, self.action_dim)  # type: ignore[union-attr]
        self.episode_starts[here] = inputs.starts
        self.values[here], self.log_probs[here] = decision.values, decision.log_probs
        for name, array in () if self.more_columns is None else self.more_columns(inputs).items():
            getattr(self, name)[here] = array
        self._all_opened = np.count_nonzero(acted) == self.n_envs
        if self._all_opened:
            self._open_at.fill(here)  # a quarter of the time
        else:
            self._open_at[acted], self.acted[here] = here, acted
        self.pos += 1
        self.full = self.pos == self.buffer_size

    def note_steps(self, steps: int, ended: BoolArray) -> None:
        """Note that the next lines are filled for rows that all acted, (n_envs,) of which the last step ended some."""
        self.pos += steps
        self.full = self.pos == self.buffer_size
        self._open_at, self._all_opened = np.where(ended, -1, self.pos - 1), not ended.any()

    def _begin_packed(self, inputs: PolicyInputs, decision: Decision, acted: BoolArray, rows: Array) -> None:
        """Write the step of these rows, by their indices, into the first free line of each."""
        places = self._filled[rows], rows
        for own, seen in pairs(self.observations, inputs.observations):
            own[places] = seen.reshape(own.shape[1:])[rows]
        columns: dict[str, Any] = {
            "actions": decision.learned.reshape(self.n_envs, self.action_dim),  # type: ignore[union-attr]
            "rewards": np.zeros(self.n_envs, dtype=np.float32),
            "episode_starts": inputs.starts,
            "values": decision.values,
            "log_probs": decision.log_probs,
            "acted": acted,
            **({} if self.more_columns is None else self.more_columns(inputs)),
        }
        for name, array in columns.items():
            getattr(self, name)[places] = array[rows]
        opened = rows[acted[rows]]
        self._open_at[opened] = self._filled[opened]
        self._all_opened = False
        self._fill(rows, self._filled[rows] + 1)

    def _fill(self, rows: Array, lines: Array | int) -> None:
        """Note how many lines these rows have filled."""
        self._filled[rows] = lines
        self.pos = int(self._filled.max())
        self.full = self.pos == self.buffer_size

    def add_rewards(self, rewards: Array) -> None:
        """Store the (n_envs,) rewards of the open transitions that are over; 0 for those that are not."""
        if self._all_opened:  # one line of the array
            self.rewards[self.pos - 1] += rewards
            return
        rows = np.flatnonzero(self._open_at >= 0)
        self.rewards[self._open_at[rows], rows] += rewards[rows]

    def end(self, ended: BoolArray) -> None:
        """Close the open transitions of these rows, (n_envs,) bool."""
        self._open_at[ended] = -1
        self._all_opened = False

    def break_off(self, rows: BoolArray) -> None:
        """Drop the open transitions of these rows, (n_envs,) bool, because their episodes were given up.

        The transition before a dropped one did not terminate: its return is bootstrapped from the value that the policy
        estimated at the dropped one.
        """
        for row in np.flatnonzero(rows & (self._open_at >= 0)):
            lost = self._open_at[row]
            before = np.flatnonzero(self.acted[:lost, row])
            if len(before) and not self.episode_starts[lost, row]:
                self.rewards[before[-1], row] += self.gamma * self.values[lost, row]
            self.acted[lost, row] = False
            self._open_at[row] = -1
            self._all_opened = False

    def take_open(self, waiting: BoolArray) -> CarriedTransitions | None:
        """Move the open transitions of waiting rows, (n_envs,) bool, out of the full buffer; None if there are none."""
        rows = waiting & (self._open_at >= 0)
        if not rows.any():
            return None
        taken = CarriedTransitions(rows, *self._at((np.where(rows, self._open_at, 0), np.arange(self.n_envs))))
        self.acted[self._open_at[rows], np.flatnonzero(rows)] = False
        return taken

    def put_open(self, waited: CarriedTransitions) -> None:
        """Put transitions from `take_open` into the first step of the rollout, which has just begun."""
        rows = waited.rows
        for own, given in pairs(self.observations, waited.observations):
            own[0][rows] = given[rows]
        for name, array in waited.columns.items():
            getattr(self, name)[0][rows] = array[rows]
        self.acted[0] |= rows
        self._open_at[rows] = 0
        if self.packs_rows:
            self._fill(rows, np.maximum(self._filled[rows], 1))

    def begun_state(self) -> State:
        """Return the steps taken so far of the rollout, as plain data and arrays."""
        observations, columns = self._at(slice(self.pos))
        acted = self.acted[: self.pos]
        return {"observations": observations, "columns": columns, "acted": acted, "open_at": self._open_at}

    def read_begun(self, state: StateReader, steps: int) -> Commit:
        """Check what `begun_state` returned after `steps` steps.

        Returns:
            A function that puts the steps into the empty buffer.

        Raises:
            CheckpointError: the state does not fit this buffer.
        """
        seen, columns = self._read_at(slice(steps), state)
        open_at = state.array("open_at", np.int64, (self.n_envs,), -1, steps - 1)
        columns["acted"] = state.array("acted", np.bool_, (steps, self.n_envs))

        def commit() -> None:
            for own, given in pairs(self.observations, seen):
                own[:steps] = given
            for name, array in columns.items():
                getattr(self, name)[:steps] = array
            self._open_at, self._all_opened, self.pos = open_at, False, steps
            self._filled = np.where(self.acted.any(axis=0), self.buffer_size - self.acted[::-1].argmax(axis=0), 0)

        return commit

    def read_carried(self, state: StateReader) -> CarriedTransitions:
        """Read carried transitions, a mapping of their attributes.

        Raises:
            CheckpointError: the state does not fit this buffer.
        """
        return CarriedTransitions(state.array("rows", np.bool_, (self.n_envs,)), *self._read_at(0, state))

    def _at(self, index: Any) -> tuple[Observations, dict[str, Array]]:
        """Return the observations and the other arrays of transitions at an index of the arrays."""
        columns = {name: getattr(self, name)[index] for name in self.of_transition}
        return map_arrays(lambda array: array[index], self.observations), columns

    def _read_at(self, index: Any, state: StateReader) -> tuple[Observations, dict[str, Array]]:
        """Read what is to be at an index of the arrays."""
        observations, own = self._at(index)
        columns = state.like("columns", own)
        require_categories(columns["actions"], self.action_space, f"{state.where}/columns/actions")
        seen = state.like("observations", observations)
        require_observed(seen, self.observation_space, f"{state.where}/observations")
        return seen, columns

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: Array) -> None:
        """GAE (Schulman et al. 2016, eq. 16) over the transitions of each row.

        Args:
            last_values: (n_envs,) value of the observation after each row's last transition.
            dones: (n_envs,) whether that transition ended the episode.
        """
        if self.acted.all():
            super().compute_returns_and_advantage(last_values, dones)
            return
        next_values: Array = last_values.clone().cpu().numpy().flatten()
        not_done: Array = 1.0 - dones.astype(np.float32)
        advantage: Array = np.zeros(self.n_envs, dtype=np.float32)
        starts = self.episode_starts if self.breaks is None else np.maximum(self.episode_starts, self.breaks)
        for step in reversed(range(self.buffer_size)):
            acted = self.acted[step]
            delta = self.rewards[step] + self.gamma * next_values * not_done - self.values[step]
            advantage = np.where(acted, delta + self.gamma * self.gae_lambda * not_done * advantage, advantage)
            next_values = np.where(acted, self.values[step], next_values)
            not_done = np.where(acted, 1.0 - starts[step], not_done)
            self.advantages[step] = advantage
        self.returns = self.advantages + self.values

    @property
    def num_transitions(self) -> int:
        """The number of transitions in the buffer."""
        return int(self.acted.sum())

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """Minibatches of transitions in random order, see `RolloutBuffer.get`."""
        if self.acted.all() and self.least_minibatch == 1:
            yield from self._counted(super().get(batch_size))
            return
        if not self.generator_ready:
            self._keep_transitions()
            self.generator_ready = True
        order = np.random.permutation(self.num_transitions)  # noqa: NPY002 - as SB3 draws
        yield from self._counted(self._get_samples(batch) for batch in self._split(order, batch_size))

    def _split(self, order: Array, batch_size: int | None) -> list[Array]:
        """Split indices of transitions into minibatches."""
        return np.split(order, minibatch_starts(len(order), batch_size, self.least_minibatch)[1:])

    def _counted(self, batches: Iterable[Any]) -> Generator[Any, None, None]:
        for batch in batches:
            self.samples_drawn += len(batch.advantages)
            yield batch

    def _keep_transitions(self) -> None:
        """Flatten all arrays as SB3 does, row after row, and keep only the transitions."""
        for name in ("observations", *self.of_sample):
            setattr(self, name, flat_samples(self, name))


def minibatch_starts(samples: int, batch_size: int | None, least: int) -> Array:
    """Return where the minibatches of an epoch begin.

    Args:
        samples: number of samples in the epoch.
        batch_size: samples of a minibatch; None: all of them.
        least: a last minibatch of fewer samples becomes a part of the one before it.
    """
    starts = np.arange(0, samples, batch_size or max(1, samples))
    return starts[:-1] if len(starts) > 1 and samples - starts[-1] < least else starts


class MaskedRolloutBuffer(TurnAwareRollout, RolloutBuffer):
    """A `RolloutBuffer` that leaves steps in which a row does not act out of loss and normalisation."""


class MaskedDictRolloutBuffer(TurnAwareRollout, DictRolloutBuffer):
    """A `MaskedRolloutBuffer` for `Dict` observations."""


def flat_samples(rollout: Any, name: str) -> Any:
    """Return an array of a rollout buffer as (samples, ...): only transitions, in SB3's order, row after row.

    Observations of a `Dict` space are a dictionary of such arrays.
    """
    observations: Observations = getattr(rollout, name)
    if rollout.generator_ready:
        return observations
    acted = getattr(rollout, "acted", None)
    keep = None if acted is None or acted.all() else rollout.swap_and_flatten(acted).reshape(-1)

    def flat(array: Array) -> Array:
        rows: Array = rollout.swap_and_flatten(array)
        return np.ascontiguousarray(rows if keep is None else rows[keep])

    return map_arrays(flat, observations)


@dataclass(frozen=True)
class CarriedTransitions:
    """Transitions that were still open at the end of a rollout; they are put at the start of the next one."""

    rows: BoolArray  # (rows,) bool; the rows that have an open transition. The arrays hold filler for the others.
    observations: Observations  # (rows, ...) what the agent saw when it acted
    columns: Mapping[str, Array]  # name -> (rows, ...): the buffer's `of_transition`; `rewards` are those so far


# --- Experience ------------------------------------------------------------------------------------------------------


class RolloutExperience(Experience):
    """See `Experience`; the rollout is that of `algorithm.rollout_buffer`, which has the rows of the actor.

    The order of random draws and of floating point operations is that of SB3's `on_policy_algorithm.py`, so that one
    shared policy trains bit for bit as SB3 does.
    """

    fields: ClassVar[Fields] = {
        "steps": scalar("steps", 0, lambda own: own.algorithm.n_steps),
        "carried": Field(
            lambda own: None if own.carried is None else vars(own.carried),
            lambda own, state, name: None if state.value(name) is None else own.buffer.read_carried(state.fields(name)),
            lambda own, carried: setattr(own, "carried", carried),
        ),
        "begun": Field(
            lambda own: own.buffer.begun_state() if own.is_under_way(own.steps) else None,
            lambda own, state, name: own.read_begun(state, name),
        ),
    }

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor)
        self.carried: CarriedTransitions | None = None  # transitions that go on from the latest rollout to the next
        if actor.rows.steps_apart:
            self.buffer.packs_rows = True
            self.buffer.reset()

    @property
    def buffer(self) -> TurnAwareRollout:
        """The rollout buffer."""
        return self.algorithm.rollout_buffer  # type: ignore[no-any-return]

    @override
    def due_in(self) -> int:
        return int(self.algorithm.n_steps) - self.steps

    def is_under_way(self, steps: int) -> bool:
        """Whether a rollout is under way after so many steps: it has begun and is not complete."""
        return bool(0 < steps < self.algorithm.n_steps)

    @override
    def begin_episodes(self) -> None:
        self.carried = None

    @override
    def give_up(self, rows: BoolArray) -> None:
        if self.rewriter is not None:
            self.rewriter.give_up(self, rows)
        if not self.buffer.generator_ready:
            self.buffer.break_off(rows)
        if self.carried is not None:
            self.carried = replace(self.carried, rows=self.carried.rows & ~rows)

    @override
    def begin_rollout(self) -> None:
        self.buffer.reset()
        self.steps = 0
        if self.rewriter is not None:
            self.rewriter.begin_rollout(self, None if self.carried is None else self.carried.rows)

    @override
    def begin(self, acted: Acted) -> None:
        buffer: TurnAwareRollout = self.algorithm.rollout_buffer
        buffer.begin_step(acted.inputs, acted.decision, acted.acting, acted.stepping)
        if self.carried is not None:
            buffer.put_open(self.carried)
            self.carried = None
        self.algorithm.num_timesteps += int(np.count_nonzero(acted.acting))
        self.steps = buffer.pos

    @override
    def add(self, observed: Observed) -> None:
        buffer: TurnAwareRollout = self.algorithm.rollout_buffer
        buffer.add_rewards(observed.rewards)
        if np.count_nonzero(observed.ended):
            buffer.end(observed.ended)

    @override
    def break_off(self) -> None:
        self.steps = self.algorithm.n_steps

    def complete(self, step: VecStep) -> None:
        """Compute returns and advantages.

        The open transition of a row that waits is moved to the start of the next rollout. The return of the row's
        transition before it is bootstrapped from the value that the policy estimated when the open one began.
        """
        acting = self.actor.rows.of_agents(step.to_act)
        values, starts = self.actor.next_values(step, acting), self.actor.starts
        self.carried = self.buffer.take_open(~acting)
        if self.carried is not None:
            values = np.where(self.carried.rows, self.carried.columns["values"], values)
            starts = np.where(self.carried.rows, self.carried.columns["episode_starts"] > 0, starts)
        if self.rewriter is not None:
            starts = self.rewriter.rewrite(self, starts)
        trait(self.algorithm, "compute_returns")(last_values=th.as_tensor(values), dones=starts)

    def recorded(self) -> dict[str, Any] | None:
        """Return the arrays of a complete rollout by name, with returns and advantages; None if it is not complete."""
        names = ["observations", *self.buffer.of_transition, "acted", "advantages", "returns"]
        names += [] if self.buffer.breaks is None else ["breaks"]
        return {name: getattr(self.buffer, name) for name in names} if self.due_in() == 0 else None

    def read_begun(self, state: StateReader, name: str) -> Commit:
        """Check the steps taken so far; returns a function that puts them into the emptied buffer."""
        steps = state.integer("steps")
        begun = [self.buffer.read_begun(state.fields(name), steps)] if self.is_under_way(steps) else []
        noted = [] if self.rewriter is None else [partial(self.rewriter.begin_rollout, self, None)]
        return in_order([self.buffer.reset, *noted, *begun])
