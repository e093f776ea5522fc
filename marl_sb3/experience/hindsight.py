"""Hindsight experience replay: transitions with goals that were reached later (Andrychowicz et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from marl_sb3.errors import CheckpointError, EnvError
from marl_sb3.experience.replay import Transitions
from marl_sb3.experience.row_rings import RowRings
from marl_sb3.storage.parts import Fields, TensorFile, array
from marl_sb3.storage.tensor_file import pieces
from marl_sb3.types import AgentID, Array, BoolArray, GoalRewards


class GoalEnv:
    """Answers `HerReplayBuffer` when it asks its env for the rewards of a batch.

    Args:
        agents: those of a policy; row `i` is of agent `i % len(agents)`.
        rewards: the env's `compute_reward`.

    Attributes:
        rows: (n,) rows of the batch.
    """

    def __init__(self, agents: Sequence[AgentID], rewards: GoalRewards) -> None:
        self._agents, self._rewards = agents, rewards
        self.rows = np.zeros(0, dtype=np.int64)

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


class HindsightBuffer(RowRings, HerReplayBuffer):
    """SB3's `HerReplayBuffer` for rows that do not act in every step: an episode is that of an agent.

    Args:
        arguments: of `DictReplayBuffer`.
        goals: gives the rewards of new goals.
        n_sampled_goal: number of transitions with new goals for each one as it was.
        goal_selection_strategy: which goals: `future`, achieved later in the episode; `final`, at its end; `episode`,
            anywhere in it.
        settings: of `DictReplayBuffer`.
    """

    names: ClassVar[Sequence[str]] = (*RowRings.names, "ep_start", "ep_length")
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
        """See `Lines.add_transitions`; episodes whose first transition is overwritten are no longer drawn from."""
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
        """See `RowRings.break_off`: the episodes end there, as if truncated."""
        super().break_off(rows)
        for column in np.flatnonzero(rows & (self._current_ep_start != self._next)).tolist():
            self._complete(column)

    def _sample_goals(self, batch_indices: Array, env_indices: Array) -> Array:
        self._goals.rows = env_indices
        return super()._sample_goals(batch_indices, env_indices)

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        **RowRings.fields,
        "episode_start": array("_current_ep_start", 0, lambda self: self.buffer_size - 1),
    }

    def set_fields(self, values: Mapping[str, Any]) -> None:
        """See `Stateful.set_fields`."""
        self._begin()  # lines beyond those of the file hold no episodes
        super().set_fields(values)

    def require_columns(self, file: TensorFile, lines: int, rows: int) -> None:
        """See `Lines.require_columns`; refuses transitions that do not lie in their episode.

        Its start and its length are used as indices.
        """
        super().require_columns(file, lines, rows)
        for (begin, starts), (_, lengths) in zip(
            pieces(file.arrays, "ep_start"), pieces(file.arrays, "ep_length"), strict=True
        ):
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
