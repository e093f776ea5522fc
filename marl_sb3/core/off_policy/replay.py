"""SB3's replay buffers, for rows that do not act in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecNormalize
from typing_extensions import override

from marl_sb3.core.acting.actor import Acted, Actor, Observed
from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.experience import Experience
from marl_sb3.core.sb3.private import after_step, set_progress_remaining
from marl_sb3.core.state.fields import Commit, Fields, Stateful, array, part, scalar
from marl_sb3.core.state.state import MAX_COUNT, Form, StateReader, TensorFile
from marl_sb3.core.vec_env.masks import mask_fault
from marl_sb3.core.vec_env.observations import joined_observations, map_arrays, pairs, zeros
from marl_sb3.core.vec_env.slot_states import require_categories, require_observed
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import EnvError
from marl_sb3.types import Array, BoolArray, Observations

_COLUMNS = ("actions", "rewards", "dones", "timeouts")

if TYPE_CHECKING:  # base class of the mixin for type checkers: both buffers have its attributes
    _Base = ReplayBuffer
else:
    _Base = object


class Transitions(NamedTuple):
    """n transitions that are over; (n, ...) each."""

    observations: Observations
    next_observations: Observations
    actions: Array
    rewards: Array
    dones: Array  # whether the episode of the agent ended
    timeouts: Array  # whether it was truncated and not terminated
    rows: Array  # the indices of the rows that they are of, in ascending order
    next_masks: BoolArray | None = None  # which actions the agents may take next; None: their policy takes no masks
    states: Array | None = None  # (n, states, layers, size) recurrent ones before the actions; None: no memory
    more: Any = None  # arrays by name, (n, ...) each, that a buffer of another kind keeps besides; None: there are none

    def at(self, places: slice) -> Transitions:
        """Return some of them."""
        parts: list[Any] = [None if part is None else map_arrays(lambda array: array[places], part) for part in self]
        return Transitions(*parts)


def joined_transitions(parts: Sequence[Transitions]) -> Transitions:
    """Join transitions, one after the other."""
    of_all: list[Any] = [
        None if arrays[0] is None else joined_observations(arrays) for arrays in zip(*parts, strict=True)
    ]
    return Transitions(*of_all)


class TransitionBuffer(Stateful, _Base):
    """Mixin for an SB3 replay buffer, whose arrays have lines of a place for each row: puts transitions into places.

    In a checkpoint, the arrays are tensors beside the fields of its state.
    """

    names: ClassVar[Sequence[str]] = ("observations", "next_observations", *_COLUMNS)  # the arrays' names

    def add_transitions(self, added: Transitions) -> None:
        """Add transitions, at most one of each row."""
        places, number = self._places_for(added.rows), len(added.rows)
        self._put_observations(places, added)
        self.actions[places] = added.actions.reshape(number, self.action_dim)
        self.rewards[places] = added.rewards
        self.dones[places] = added.dones
        self.timeouts[places] = added.timeouts if self.handle_timeout_termination else 0
        self._advance(added.rows)

    def _places_for(self, rows: Array) -> Any:
        """Return the index of the places, one for the next transition of each of these rows."""
        raise NotImplementedError

    def _put_observations(self, places: Any, added: Transitions) -> None:
        seen = pairs(self.observations, added.observations), pairs(self.next_observations, added.next_observations)
        for own, given in chain(*seen):
            own[places] = given.reshape(len(added.rows), *own.shape[2:])

    def _advance(self, rows: Array) -> None:
        """Go on to the next places, because these rows have filled one each."""
        raise NotImplementedError

    def break_off(self, rows: BoolArray) -> None:
        """Note that the next transitions of these rows, (rows,) bool, do not follow from their latest ones."""

    # --- Drawing -----------------------------------------------------------------------------------------------------

    def _samples_at(self, lines: Array, columns: Array, env: VecNormalize | None) -> Any:
        """Return the minibatch of these transitions: that of SB3, but each array is read once and not copied again."""
        places = lines * self.n_envs + columns
        seen, following = self._taken(self.observations, places), self._following(places)
        actions, rewards, dones, timeouts = (self._taken(getattr(self, name), places) for name in _COLUMNS)
        drawn: Any = self._normalize_obs(seen, env), actions, self._normalize_obs(following, env)
        drawn += (dones * (1 - timeouts))[:, None], self._normalize_reward(rewards[:, None], env)
        tensors: Any = partial(map_arrays, partial(self.to_torch, copy=False))  # type: ignore[arg-type]
        return (DictReplayBufferSamples if isinstance(seen, dict) else ReplayBufferSamples)(*map(tensors, drawn))

    def _following(self, places: Array) -> Any:
        return self._taken(self.next_observations, places)

    def _taken(self, of_all: Any, places: Array) -> Any:
        return map_arrays(lambda column: column.reshape(-1, *column.shape[2:]).take(places, axis=0), of_all)

    # --- State -------------------------------------------------------------------------------------------------------

    def _lines_of(self, values: Mapping[str, Any]) -> int:
        """Return the number of lines with transitions, from the values of the fields."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Array]:
        """Return views of the lines that hold transitions, by name."""
        lines = self._lines_of(self.get_state())
        return {name: array[:lines] for name, array in self.arrays().items()}

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name, (lines, rows, ...) each."""
        named: dict[str, Array] = {}
        for name in self.names:
            of_all: Any = getattr(self, name)
            parts = {f"{name}/{key}": part for key, part in of_all.items()} if isinstance(of_all, dict) else None
            named.update(parts or {name: of_all})
        return named

    def read_state(self, state: StateReader, file: TensorFile) -> Commit:  # type: ignore[override]
        """Check what `get_state` and `tensors` returned, without reading whole tensors into memory.

        Returns:
            A function that sets it.

        Raises:
            CheckpointError: it does not fit this buffer.
        """
        values = self.read_fields(state)
        self.require_columns(file, self._lines_of(values), self.n_envs)

        def commit() -> None:
            self.set_fields(values)
            for name, own in self.arrays().items():
                for begin, piece in self.pieces(file, name):
                    own[begin : begin + len(piece)] = piece

        return commit

    def pieces(self, file: TensorFile, name: str) -> Iterator[tuple[int, Array]]:
        """See `TensorFile.pieces`; a buffer may hold a column in another form than the file."""
        return file.pieces(name)

    def forms(self, file: TensorFile, lines: int, rows: int) -> dict[str, Form]:
        """Return the forms that the tensors of this file must have; see `require_columns`."""
        return {name: Form(own.dtype, (lines, rows, *own.shape[2:])) for name, own in self.arrays().items()}

    def require_columns(self, file: TensorFile, lines: int, rows: int) -> None:
        """Refuse tensors that are not those of such a buffer, without reading whole tensors into memory.

        Args:
            file: the tensors.
            lines: the lines with transitions.
            rows: the number of rows of the buffer.

        Raises:
            CheckpointError: they are not.
        """
        file.require(self.forms(file, lines, rows))
        for name in self.arrays():
            column, _, key = name.partition("/")
            if column in ("observations", "next_observations", "actions"):
                space: Any = self.action_space if column == "actions" else self.observation_space
                space = space.spaces[key] if key else space
                if not isinstance(space, spaces.Box):  # categories are indices into arrays
                    for _, piece in file.pieces(name):
                        require_categories(piece, space, f"{file.name}: {name}")


class TurnAwareReplay(TransitionBuffer):
    """Mixin for an SB3 replay buffer: a ring of single transitions, whatever rows they are of.

    SB3 adds a line of `n_envs` transitions at once. Here the places of a line are filled one after the other: line by
    line, and in the order in which the transitions ended. If every row acts in every step, this is SB3's layout, and
    minibatches are drawn with the same random numbers. A line that is being filled for the first time is not drawn
    from yet.
    """

    fields: ClassVar[Fields] = {
        "pos": scalar("pos", 0, lambda self: self.buffer_size - 1),
        "filled": scalar("_filled", 0, lambda self: self.n_envs - 1),
        "full": scalar("full"),
    }

    _filled: int = 0  # places of the line `pos` that hold a transition

    def reset(self) -> None:
        """Empty the buffer; its arrays stay."""
        super().reset()
        self._filled = 0

    @property
    def num_transitions(self) -> int:
        """Number of transitions in the buffer."""
        return self.n_envs * (self.buffer_size if self.full else self.pos) + self._filled * (not self.full)

    @property
    def can_sample(self) -> bool:
        """Whether there is a line to draw from."""
        return self.full or self.pos > 0

    def _places_for(self, rows: Array) -> Any:
        if len(rows) == self.n_envs and self._filled == 0:
            return self.pos  # a whole line, which is faster
        places = self.pos * self.n_envs + self._filled + np.arange(len(rows))
        return np.divmod(places % (self.buffer_size * self.n_envs), self.n_envs)

    def _advance(self, rows: Array) -> None:
        self.fill(len(rows))

    def fill(self, number: int) -> None:
        """Note that the next so many places hold transitions."""
        lines, self._filled = divmod(self._filled + number, self.n_envs)
        self.pos += lines
        if self.pos >= self.buffer_size:
            self.full = True
            self.pos -= self.buffer_size

    def _get_samples(self, batch_inds: Array, env: VecNormalize | None = None) -> Any:
        columns = np.random.randint(0, self.n_envs, len(batch_inds))  # noqa: NPY002 - as SB3 draws them
        return self._samples_at(batch_inds, columns, env)

    @override
    def _lines_of(self, values: Mapping[str, Any]) -> int:
        return self.buffer_size if values["full"] else values["pos"] + (values["filled"] > 0)


class TransitionReplayBuffer(TurnAwareReplay, ReplayBuffer):
    """`ReplayBuffer` of single transitions."""


class TransitionDictReplayBuffer(TurnAwareReplay, DictReplayBuffer):
    """The same for `Dict` observations."""


def read_resized(
    buffer: TransitionReplayBuffer | TransitionDictReplayBuffer, state: StateReader, file: TensorFile, rows: int
) -> Callable[[], None]:
    """Check what `get_state` and `tensors` of a buffer with another number of rows returned.

    Args:
        buffer: into which the transitions go, from the oldest to the newest; if it is smaller, the newest ones.
        rows: the number of rows of the other buffer.

    Returns:
        A function that puts them in.

    Raises:
        CheckpointError: they do not fit this buffer.
    """
    full, filled = state.boolean("full"), state.integer("filled", 0, rows - 1)
    lines = (file.forms["rewards"].shape or (0,))[0] if "rewards" in file.forms else 0
    pos = state.integer("pos", 0, max(lines - 1, 0) if full else max(lines - (filled > 0), 0))
    buffer.require_columns(file, lines if full else pos + (filled > 0), rows)
    held, oldest = (lines * rows, pos * rows + filled) if full else (pos * rows + filled, 0)
    capacity = buffer.buffer_size * buffer.n_envs
    dropped = max(held - capacity, 0)

    def commit() -> None:
        buffer.reset()
        for name, own in buffer.arrays().items():
            flat = own.reshape(capacity, *own.shape[2:])
            for begin, piece in buffer.pieces(file, name):
                numbers = (begin * rows + np.arange(len(piece) * rows) - oldest) % (lines * rows) - dropped
                kept = (numbers >= 0) & (numbers < held - dropped)
                flat[numbers[kept]] = piece.reshape(len(numbers), *own.shape[2:])[kept]
        buffer.fill(held - dropped)

    return commit


# --- Experience ------------------------------------------------------------------------------------------------------


class OpenTransitions(Stateful):
    """The transition of each row that is not over: what its agent saw and did. `RowProcessing` sums its rewards.

    Args:
        actor: acts for the rows.
        observation_space: what a row observes, as SB3 sees it.
    """

    fields: ClassVar[Fields] = {
        "rows": array("rows"),
        "actions": array("_actions"),
        "observations": array("_observations"),
    }

    def __init__(self, actor: Actor, observation_space: spaces.Space[Any]) -> None:
        num_rows, action_space = actor.rows.num_rows, actor.policy.algorithm.action_space
        self.rows = np.zeros(num_rows, dtype=np.bool_)  # (rows,) bool; the rows that have one
        self._states = actor.policy.initial_states(num_rows)
        self._observation_space = observation_space
        self._action_space = action_space
        self._observations = zeros(observation_space, (num_rows,))
        dtype = np.float32 if action_space.dtype == np.float64 else action_space.dtype  # SB3's buffers do so, too
        self._actions = np.zeros((num_rows, *(action_space.shape or ())), dtype=dtype)

    @override
    def all_fields(self) -> Fields:
        return {**self.fields, "states": array("_states")} if self._states else self.fields

    def begin(self, acted: Acted) -> None:
        """Open a transition for each row that acts."""
        chosen, learned = index_of(acted.acting), acted.decision.learned
        assert learned is not None
        for own, given in pairs(self._observations, acted.seen):
            own[chosen] = given.reshape(own.shape)[chosen]
        self._actions[chosen] = learned[chosen]
        for own, given in zip(self._states, acted.inputs.states, strict=True):
            own[:, chosen] = np.where(acted.inputs.starts[:, None], 0, given)[:, chosen]
        self.rows |= acted.acting

    def pop(self, rows: BoolArray) -> tuple[Observations, Array, Array | None]:
        """Close the transitions of these rows, (rows,) bool; returns their observations, actions and states."""
        chosen = index_of(rows)
        taken = map_arrays(lambda array: array[chosen].copy(), self._observations)
        states = np.stack(self._states)[:, :, chosen].transpose(2, 0, 1, 3) if self._states else None
        self.rows = self.rows & ~rows
        return taken, self._actions[chosen].copy(), states

    def check_state(self, values: Mapping[str, Any], state: StateReader) -> None:
        """Refuse categories outside their space: they are indices into arrays."""
        require_categories(values["actions"], self._action_space, f"{state.where}/actions")
        require_observed(values["observations"], self._observation_space, f"{state.where}/observations")


def index_of(rows: BoolArray) -> Any:
    """Return an index of these rows, (rows,) bool: a slice if it is all of them, which NumPy takes much faster."""
    return slice(None) if np.count_nonzero(rows) == len(rows) else rows


class ReplayExperience(Experience):
    """See `Experience`; transitions that are over are added to `algorithm.replay_buffer`.

    The order of random draws and of floating point operations is that of SB3's `off_policy_algorithm.py`, so that one
    shared policy trains bit for bit as in SB3. A rollout is what SB3 collects between two updates.

    Args:
        stored: the space of the observations that the buffer keeps.
        progress_remaining: from 1 at the start of training to 0 at its end, for schedules of exploration.

    Attributes:
        episodes: how many episodes of agents have ended since the rollout began.
        agent_steps: how many actions agents have taken since then.
    """

    fields: ClassVar[Fields] = {
        "steps": scalar("steps", 0, lambda own: own.most_steps),
        "episodes": scalar("episodes"),
        "agent_steps": scalar("agent_steps"),
        "open": part("_open"),
    }

    def __init__(self, actor: Actor, stored: spaces.Space[Any], progress_remaining: Callable[[], float]) -> None:
        super().__init__(actor)
        self.episodes = self.agent_steps = 0
        self._progress_remaining = progress_remaining
        self._open = OpenTransitions(actor, stored)
        self._turns = 0  # steps of single envs that make up no step of all envs yet, if they are taken apart
        self._advanced = 0  # steps of all envs that the latest one has completed

    @property
    def most_steps(self) -> int:
        """The most steps that a rollout has."""
        every = self.algorithm.train_freq
        return min(every.frequency, MAX_COUNT) if every.unit is TrainFrequencyUnit.STEP else MAX_COUNT

    def due_in(self) -> int:
        """See `Experience.due_in`; when an episode ends is not known beforehand."""
        every = self.algorithm.train_freq
        if every.unit is TrainFrequencyUnit.STEP:
            return int(every.frequency) - self.steps
        return 0 if self.episodes >= every.frequency else 1

    @override
    def begin_episodes(self) -> None:
        self.give_up(np.ones(self.actor.rows.num_rows, dtype=np.bool_))

    def give_up(self, rows: BoolArray) -> None:
        """See `Experience.give_up`; returns over several steps are given up too."""
        if self.rewriter is not None:
            self.rewriter.give_up(self, rows)
        self._open.rows = self._open.rows & ~rows
        self.break_returns(rows)

    def break_returns(self, rows: BoolArray) -> None:
        """Let no return of these rows, (rows,) bool, run on over what will be recorded next."""
        self.algorithm.replay_buffer.break_off(rows)

    def begin_rollout(self) -> None:
        """See `Experience.begin_rollout`; open transitions go on."""
        self.steps = self.episodes = self.agent_steps = 0

    @override
    def begin(self, acted: Acted) -> None:
        self._open.begin(acted)
        number = int(np.count_nonzero(acted.acting))
        self.algorithm.num_timesteps += number
        self.agent_steps += number
        self._advanced = 1
        if acted.stepping is not None:  # the envs take their steps apart
            self._turns += int(np.count_nonzero(acted.stepping)) // len(self.actor.rows.agents)
            self._advanced, self._turns = divmod(self._turns, self.actor.rows.num_envs)
        self.steps += self._advanced

    @override
    def add(self, observed: Observed) -> None:
        step, _, ended = observed
        over = self._open.rows & (ended | self.actor.rows.of_agents(step.to_act))
        if np.count_nonzero(over):  # for few rows much faster than any()
            self._add_transitions(observed, over)
        set_progress_remaining(self.algorithm, self._progress_remaining())
        if self._advanced:
            after_step(self.algorithm)
        self.episodes += int(np.count_nonzero(ended))

    def _add_transitions(self, observed: Observed, over: BoolArray) -> None:
        step, rewards, ended = observed
        timeouts = self.actor.rows.of_agents(step.truncated & ~step.terminated)
        following, chosen = self.actor.following(step), index_of(over)
        masks = self._next_masks(step, ended & over) if self.actor.policy.takes_masks else None
        masks, places = None if masks is None else masks[chosen], np.flatnonzero(over)
        seen, actions, states = self._open.pop(over)
        after = map_arrays(lambda array: array[chosen], following)
        transitions = Transitions(
            seen, after, actions, rewards[chosen], ended[chosen], timeouts[chosen], places, masks, states
        )
        if self.rewriter is None:
            self.record(transitions)
        else:
            self.rewriter.hold(self, transitions)

    def record(self, transitions: Transitions) -> None:
        """Add transitions to the replay buffer."""
        self.algorithm.replay_buffer.add_transitions(transitions)

    def _next_masks(self, step: VecStep, ended: BoolArray) -> BoolArray | None:
        """Return which actions are allowed after a step, (rows, n); None if the env gives no masks.

        Of agents that ended, (rows,) bool: all, but what its mask says if an agent was truncated and its info has one
        that allows anything.
        """
        rows = self.actor.rows
        masks = rows.masks(step.action_masks)
        if masks is None or not np.count_nonzero(ended):
            return masks
        masks[ended] = True
        for row in np.flatnonzero(ended & rows.of_agents(step.truncated & ~step.terminated)).tolist():
            env_index, place = divmod(row, len(rows.agents))
            agent = rows.agents[place]
            given = step.infos[env_index].get(agent, {}).get(MASK)
            if given is not None:
                mask = np.asarray(given)
                if fault := mask_fault(mask, masks.shape[1], rows.group.action_space):
                    raise EnvError(f"env {env_index}, agent {agent!r}, which was truncated: {fault}")
                masks[row] = mask if mask.any() else True
        return masks

    def break_off(self) -> None:
        """See `Experience.break_off`: as in SB3, the step leaves no transition; transitions from before stay."""
        self.begin_episodes()
        self.steps = self.episodes = self.algorithm.train_freq.frequency
