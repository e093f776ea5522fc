"""Replay buffers in which the transitions of a row follow one another: for n-step returns, goals, and less memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from typing_extensions import override

from marl_sb3.core.off_policy.replay import TransitionBuffer, Transitions
from marl_sb3.core.state.fields import Fields, array
from marl_sb3.core.state.state import TensorFile
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.errors import CheckpointError, EnvError
from marl_sb3.types import AgentID, Array, BoolArray, GoalRewards


class PerRowReplay(TransitionBuffer):
    """Mixin for an SB3 replay buffer: each row has a ring of its own, its column of the arrays.

    Line `i + 1` of a column is what its row did after line `i`. A row that acts rarely fills its column slowly;
    minibatches are drawn from all transitions with equal probability. If all columns are equally full, this is SB3's
    layout, and minibatches are drawn with the same random numbers.

    Attributes:
        pos: the next line, which is SB3's if all columns are equally full.
        full: whether all columns are full.
    """

    _next: Array  # (rows,) int64; the line of a row's next transition
    _wrapped: BoolArray  # (rows,) whether a row's column is full

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._begin()

    def reset(self) -> None:
        """Empty the buffer; its arrays stay."""
        super().reset()
        self._begin()

    def _begin(self) -> None:
        self._next = np.zeros(self.n_envs, dtype=np.int64)
        self._wrapped = np.zeros(self.n_envs, dtype=np.bool_)

    @property
    def counts(self) -> Array:
        """(rows,) int64; the number of transitions of each row."""
        return np.where(self._wrapped, self.buffer_size, self._next)

    @property
    def num_transitions(self) -> int:
        """Number of transitions in the buffer."""
        return int(self.counts.sum())

    @property
    def can_sample(self) -> bool:
        """Whether there is a transition to draw."""
        return bool((self._drawable() > 0).any())

    # --- Adding ------------------------------------------------------------------------------------------------------

    def _places_for(self, rows: Array) -> Any:
        return self._next[rows], rows

    def _advance(self, rows: Array) -> None:
        self._next[rows] += 1
        self._wrapped |= self._next >= self.buffer_size
        self._next %= self.buffer_size
        self._show_position()

    def _show_position(self) -> None:
        self.pos, self.full = int(self._next.max()), bool(self._wrapped.all())

    def break_off(self, rows: BoolArray) -> None:
        """Note that the next transitions of these rows, (rows,) bool, do not follow from their latest ones.

        The latest ones count as truncated, so that nothing is added up beyond them.
        """
        columns = np.flatnonzero(rows & (self.counts > 0))
        latest = (self._next[columns] - 1) % self.buffer_size, columns
        self.timeouts[latest] = np.maximum(self.timeouts[latest], 1 - self.dones[latest])

    # --- Drawing -----------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw a minibatch.

        Args:
            batch_size: number of transitions.
            env: normalises them; None: they are as they were added.
        """
        return self._samples_at(*self._drawn(self._drawable(), batch_size), env)

    def _drawable(self) -> Array:
        """(rows,) the number of transitions of each row that may be drawn."""
        return self.counts

    @staticmethod
    def _drawn(counts: Array, batch_size: int) -> tuple[Array, Array]:
        """Draw transitions, counted from the first of each column, and their columns; if possible as SB3 does."""
        if (counts == counts[0]).all():
            return _drawn_below(counts[0], batch_size), _drawn_below(len(counts), batch_size)
        ends = counts.cumsum()
        drawn = _drawn_below(ends[-1], batch_size)
        columns: Array = np.searchsorted(ends, drawn, side="right")
        return drawn - (ends - counts)[columns], columns

    def _seen(self, of_all: Any, places: Any, env: VecNormalize | None) -> Any:
        """Return observations as tensors."""
        normal: Any = self._normalize_obs(map_arrays(lambda array: array[places], of_all), env)
        return map_arrays(self.to_torch, normal)  # type: ignore[arg-type]

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        "next": array("_next", 0, lambda self: self.buffer_size - 1),
        "wrapped": array("_wrapped"),
    }

    @override
    def _lines_of(self, values: Mapping[str, Any]) -> int:
        return self.buffer_size if values["wrapped"].any() else int(values["next"].max())

    def state_was_set(self) -> None:
        """Set SB3's own position."""
        self._show_position()


def _drawn_below(limit: int, number: int) -> Array:
    """Draw integers from 0 on by NumPy's global generator, as SB3 does."""
    return np.random.randint(0, limit, size=number)  # noqa: NPY002


class _NStepReturns(PerRowReplay):
    """Mixin: returns over the next `n_steps` transitions of a row, or fewer where they end.

    Operation by operation as SB3's `NStepReplayBuffer`. A step is an action of the agent; what the agent is paid while
    it waits belongs to its latest action.

    Args:
        n_steps: the most transitions that a return runs over.
        gamma: discount of a transition.
    """

    def __init__(self, *args: Any, n_steps: int, gamma: float, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.n_steps, self.gamma = n_steps, gamma

    def _samples_at(self, lines: Array, columns: Array, env: VecNormalize | None) -> Any:
        span = np.arange(self.n_steps)
        places = (lines[:, None] + span) % self.buffer_size, columns[:, None]
        last = self._last_steps(*places)
        taken = span <= last[:, None]
        rewards = self._normalize_reward(self.rewards[places], env) * self.gamma ** span.astype(np.float32) * taken
        final = (lines + last) % self.buffer_size, columns
        dones = self.dones[final] * (1 - self.timeouts[final])
        discounts = self.gamma ** taken.sum(axis=1, keepdims=True).astype(np.float32)
        of_batch: Any = DictReplayBufferSamples if isinstance(self.observations, dict) else ReplayBufferSamples
        return of_batch(
            observations=self._seen(self.observations, (lines, columns), env),
            actions=self.to_torch(self.actions[lines, columns]),
            next_observations=self._seen(self.next_observations, final, env),
            dones=self.to_torch(dones[:, None]),
            rewards=self.to_torch(rewards.sum(axis=1, keepdims=True)),
            discounts=self.to_torch(discounts),
        )

    def _last_steps(self, lines: Array, columns: Array) -> Array:
        """(batch,) the number of the first transition that ended an episode or has no successor; else of the last."""
        over = (self.dones[lines, columns] > 0) | (self.timeouts[lines, columns] > 0)
        over |= (lines + 1) % self.buffer_size == self._next[columns]
        return np.where(over.any(axis=1), over.argmax(axis=1), self.n_steps - 1)


class NStepBuffer(_NStepReturns, ReplayBuffer):
    """`ReplayBuffer` with n-step returns."""


class NStepDictBuffer(_NStepReturns, DictReplayBuffer):
    """The same for `Dict` observations, which SB3 does not have."""


class CompactBuffer(PerRowReplay, ReplayBuffer):
    """SB3's `ReplayBuffer` with `optimize_memory_usage`: the next observation is that of the row's next transition.

    At the end of an episode, that is the first observation of the next one. No target depends on it, because ends by a
    time limit count as terminations. Where a row was broken off, its column gets a line without a transition, a gap.
    """

    names: ClassVar[Sequence[str]] = ("observations", "actions", "rewards", "dones", "timeouts", "gaps")

    def _begin(self) -> None:
        super()._begin()
        self.gaps = np.zeros((self.buffer_size, self.n_envs), dtype=np.bool_)

    def _put_observations(self, places: Any, added: Transitions) -> None:
        lines, columns = places
        for line, given in ((lines, added.observations), ((lines + 1) % self.buffer_size, added.next_observations)):
            self.observations[line, columns] = np.reshape(given, (len(columns), *self.obs_shape))  # type: ignore[arg-type]
        self.gaps[places] = False

    def break_off(self, rows: BoolArray) -> None:
        """See `PerRowReplay.break_off`; the next observations of the latest transitions stay."""
        latest = (self._next - 1) % self.buffer_size, np.arange(self.n_envs)
        columns = np.flatnonzero(rows & (self.counts > 0) & ~self.gaps[latest] & (self.dones[latest] == 0))
        self.gaps[self._next[columns], columns] = True
        self._advance(columns)

    def _drawable(self) -> Array:
        """All but the line that is overwritten next: it holds the next observation of the latest transition."""
        return self.counts - self._wrapped

    @override
    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        lines, columns = self._places(batch_size)
        missed = self.gaps[lines, columns]
        while missed.any():
            lines[missed], columns[missed] = self._places(int(missed.sum()))
            missed = self.gaps[lines, columns]
        return self._samples_at(lines, columns, env)

    def _places(self, batch_size: int) -> tuple[Array, Array]:
        numbers, columns = self._drawn(self._drawable(), batch_size)
        first = np.where(self._wrapped, self._next + 1, 0)
        return (numbers + first[columns]) % self.buffer_size, columns

    @override
    def _following(self, places: Array) -> Any:
        return self._taken(self.observations, (places + self.n_envs) % (self.buffer_size * self.n_envs))

    # --- State -------------------------------------------------------------------------------------------------------

    def _lines_of(self, values: Mapping[str, Any]) -> int:
        """See `TransitionBuffer._lines_of`; with the line of the latest next observations."""
        return min(super()._lines_of(values) + 1, self.buffer_size)

    def require_columns(self, file: TensorFile, lines: int, rows: int) -> None:
        """See `TransitionBuffer.require_columns`; refuses gaps that are not between transitions."""
        super().require_columns(file, lines, rows)
        before = np.ones(self.n_envs, dtype=np.bool_)
        for _, gaps in file.pieces("gaps"):
            if (gaps & np.concatenate([before[None], gaps[:-1]])).any():
                raise CheckpointError(f"{file.name}: gaps are not between transitions")
            before = gaps[-1]


# --- Hindsight experience replay: goals that were reached later (Andrychowicz et al. 2017) ---------------------------


class GoalEnv:
    """Answers `HerReplayBuffer` when it asks its env for the rewards of a batch.

    Args:
        agents: those of a policy; row `i` is of agent `i % len(agents)`.
        rewards: the env's `compute_reward`.
    """

    def __init__(self, agents: Sequence[AgentID], rewards: GoalRewards) -> None:
        self._agents, self._rewards = agents, rewards
        self.rows = np.zeros(0, dtype=np.int64)  # (n,) rows of the batch

    def env_method(self, name: str, achieved: Array, desired: Array, infos: Any, indices: Any) -> list[Array]:
        """Return the rewards of the batch, (n,), as the only item of a list."""
        places = self.rows % len(self._agents)
        rewards = np.zeros(len(achieved), dtype=np.float64)
        for place in np.unique(places):
            wanted = np.flatnonzero(places == place)
            own_infos = [infos[index] for index in wanted]
            rewards[wanted] = self.of_agent(self._agents[place], achieved[wanted], desired[wanted], own_infos)
        return [rewards]

    def of_agent(self, agent: AgentID, achieved: Array, desired: Array, infos: Sequence[dict[str, Any]]) -> Array:
        """Return the rewards of one agent, (n,).

        Raises:
            EnvError: the env returned something else.
        """
        rewards = np.asarray(self._rewards(agent, achieved, desired, infos))
        if rewards.shape != (len(achieved),) or rewards.dtype.kind not in "fiub":
            what = f"{rewards.dtype} of shape {rewards.shape}"
            raise EnvError(f"compute_reward for agent {agent!r} returned {what}; accepted: ({len(achieved)},) numbers")
        return rewards


class HindsightBuffer(PerRowReplay, HerReplayBuffer):
    """SB3's `HerReplayBuffer` for rows that do not act in every step: an episode is that of an agent.

    Args:
        arguments: of `DictReplayBuffer`.
        goals: gives the rewards of new goals.
        n_sampled_goal: number of transitions with new goals for each one as it was.
        goal_selection_strategy: which goals: `future`, achieved later in the episode; `final`, at its end; `episode`,
            anywhere in it.
        settings: of `DictReplayBuffer`.
    """

    names: ClassVar[Sequence[str]] = (*PerRowReplay.names, "ep_start", "ep_length")
    sample = HerReplayBuffer.sample  # its parts are those of the ring

    def __init__(
        self,
        *arguments: Any,
        goals: GoalEnv,
        n_sampled_goal: int = 4,
        goal_selection_strategy: str = "future",
        **settings: Any,
    ) -> None:
        # Not the constructor of `HerReplayBuffer`: it makes a dictionary for the infos of each transition.
        DictReplayBuffer.__init__(self, *arguments, **settings)
        self._goals = goals
        self.env: Any = goals
        self.copy_info_dict = False
        self.goal_selection_strategy = KEY_TO_GOAL_STRATEGY[goal_selection_strategy]
        self.n_sampled_goal = n_sampled_goal
        self.her_ratio = 1 - 1 / (n_sampled_goal + 1)
        self._begin()

    def _begin(self) -> None:
        super()._begin()
        self._current_ep_start = np.zeros(self.n_envs, dtype=np.int64)
        self.ep_start = np.zeros((self.buffer_size, self.n_envs), dtype=np.int64)
        self.ep_length = np.zeros((self.buffer_size, self.n_envs), dtype=np.int64)

    @property
    def can_sample(self) -> bool:
        """Whether an episode is over: SB3 draws from whole episodes."""
        return bool((self.ep_length > 0).any())

    def add_transitions(self, added: Transitions) -> None:
        """Add transitions, at most one of each row; an episode is not drawn from when its first one is overwritten."""
        columns = added.rows
        for column in columns.tolist():
            line = self._next[column]
            self.ep_length[(line + np.arange(self.ep_length[line, column])) % self.buffer_size, column] = 0
        self.ep_start[self._next[columns], columns] = self._current_ep_start[columns]
        super().add_transitions(added)
        for column in columns[np.asarray(added.dones, dtype=np.bool_)].tolist():
            self._complete(column)

    def _complete(self, column: int) -> None:
        """Let the episode that ended be drawn from."""
        start, end = self._current_ep_start[column], self._next[column]
        length = (end - start) % self.buffer_size
        self.ep_length[(start + np.arange(length)) % self.buffer_size, column] = length
        self._current_ep_start[column] = end

    def break_off(self, rows: BoolArray) -> None:
        """See `PerRowReplay.break_off`: the episodes end there, as if truncated."""
        super().break_off(rows)
        for column in np.flatnonzero(rows & (self._current_ep_start != self._next)).tolist():
            self._complete(column)

    def _sample_goals(self, batch_indices: Array, env_indices: Array) -> Array:
        self._goals.rows = env_indices
        return super()._sample_goals(batch_indices, env_indices)

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        **PerRowReplay.fields,
        "episode_start": array("_current_ep_start", 0, lambda self: self.buffer_size - 1),
    }

    @override
    def set_fields(self, values: Mapping[str, Any]) -> None:
        self._begin()  # lines beyond those of the file hold no episodes
        super().set_fields(values)

    def require_columns(self, file: TensorFile, lines: int, rows: int) -> None:
        """See `TransitionBuffer.require_columns`; refuses transitions that do not lie in their episode.

        Its start and its length are used as indices.
        """
        super().require_columns(file, lines, rows)
        for (begin, starts), (_, lengths) in zip(file.pieces("ep_start"), file.pieces("ep_length"), strict=True):
            numbers = np.arange(begin, begin + len(starts))[:, None]
            outside = (starts < 0) | (starts >= self.buffer_size) | (lengths < 0) | (lengths > self.buffer_size)
            beyond = (lengths > 0) & ((numbers - starts) % self.buffer_size >= lengths)
            if (outside | beyond).any():
                raise CheckpointError(f"{file.name}: ep_start and ep_length are not those of episodes in the buffer")


def goal_spaces(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], spaces.Space[Any]] | None:
    """Return the spaces of achieved and desired goals; None if the observations have none."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    if not {"observation", "achieved_goal", "desired_goal"} <= set(parts):
        return None
    return parts["achieved_goal"], parts["desired_goal"]
