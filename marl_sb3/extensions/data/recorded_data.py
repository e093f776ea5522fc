"""Recorded episodes of a learner: read when they are needed, put into replay buffers, drawn beside its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch as th
from typing_extensions import override

from marl_sb3.core.learners.building import policy_rows, stored_space
from marl_sb3.core.learners.learner import LearnerOptions, LearnerPart
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.off_policy.off_policy import replay_buffer
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.sb3.schedules import make_schedule
from marl_sb3.core.state.fields import Fields, Stateful, scalar
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.data.dataset import read_data
from marl_sb3.extensions.data.demonstrations import Demonstrations, demonstrations, require_episodes
from marl_sb3.extensions.data.imitation import ImitationLoss, action_loss, require_masks
from marl_sb3.extensions.settings import DataSettings
from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.extensions.data.dataset import RecordedEpisode

_log = logging.getLogger(__name__)


class RecordedData(Stateful):
    """The recorded episodes of one policy; in a checkpoint there is only what tells whether they are still the same.

    Args:
        path: where they are.
        key: the setting that says so, for messages.
        rows: of the policy.
    """

    fields: ClassVar[Fields] = {"checksum": scalar("_checksum", 0, 2**32 - 1, like=0)}

    def __init__(self, path: str, key: str, rows: PolicyRows) -> None:
        self._path, self._key, self._rows = path, key, rows
        self._checksum: int | None = None
        self._episodes: list[RecordedEpisode] = []
        self._read: int | None = None

    def read(
        self, processing: Processing, algorithm: Any, *, learn: bool = False, normalize: bool = True
    ) -> Demonstrations:
        """Return them as the policy learns from them; the arguments are those of `demonstrations`."""
        if not self._episodes:
            found = read_data(self._path, self._key)
            try:
                self._episodes = require_episodes(found, self._rows, self._path)
            except ConfigError as error:
                raise ConfigError(f"{self._key}: {error}", key=self._key) from error
        data = demonstrations(self._episodes, self._rows, processing, algorithm, learn=learn, normalize=normalize)
        self._read = data.checksum()
        self.state_was_set()
        return data

    def forget(self) -> None:
        """Free the memory of the episodes; they are read again if they are needed."""
        self._episodes = []

    def state_was_set(self) -> None:
        """Compare what was read with what was learned from so far."""
        if self._read is None:
            return
        if self._checksum not in (None, self._read):
            _log.warning("inexact: policy %s: %s has changed since the checkpoint", self._rows.policy_id, self._path)
        self._checksum = self._read


# --- Replay buffers ---------------------------------------------------------------------------------------------------


def columns_of(data: Demonstrations, rows: PolicyRows) -> list[Array]:
    """Return the transitions of each row of a replay buffer: whole episodes, each in a row of its agent."""
    agents = len(rows.agents)
    columns: list[list[int]] = [[] for _ in range(rows.num_rows)]
    sizes = np.zeros(rows.num_rows, dtype=np.int64)
    for episode, agent in enumerate(data.agents.tolist()):
        of_agent = np.arange(agent, rows.num_rows, agents)
        row = int(of_agent[np.argmin(sizes[of_agent])])
        columns[row].append(episode)
        sizes[row] += data.lengths[episode]
    return [data.of_episodes(np.array(episodes)) if episodes else np.zeros(0, np.int64) for episodes in columns]


def fill(buffer: Any, data: Demonstrations, rows: PolicyRows, name: str) -> None:
    """Put recorded transitions into a replay buffer, as if its rows had experienced them side by side.

    Args:
        rows: of the policy.
        name: of the data, for a warning if there are more than the buffer holds.
    """
    columns, capacity = columns_of(data, rows), buffer.buffer_size * rows.num_rows
    if len(data) > capacity:
        words = "policy %s: %s has %d transitions, the replay buffer holds %d: the latest stay"
        _log.warning(words, rows.policy_id, name, len(data), capacity)
    for step in range(max(map(len, columns))):
        present = np.array([row for row, of_row in enumerate(columns) if len(of_row) > step])
        chosen = np.array([columns[row][step] for row in present])
        buffer.add_transitions(data.transitions(chosen, present))
    buffer.break_off(np.ones(len(columns), dtype=np.bool_))


def drawing_from_both(own: Any, recorded: Any, share: float) -> Callable[..., Any]:
    """Return the `sample` of a replay buffer that draws a share of each minibatch from another one.

    So does RLPD with one half (Ball et al. 2023, "Efficient online reinforcement learning with offline data").

    Args:
        own: the replay buffer.
        recorded: one of the same class, with recorded transitions.
    """
    sample = own.sample

    def draw(batch_size: int, env: Any = None) -> Any:
        number = round(share * batch_size)
        parts = [(own, sample, batch_size - number), (recorded, recorded.sample, number)]
        drawn = [draw_part(size, env=env) for _, draw_part, size in parts if size]
        if hasattr(own, "next_masks"):
            own.drawn_masks = np.concatenate([buffer.drawn_masks for buffer, _, size in parts if size])
        return drawn[0] if len(drawn) == 1 else type(drawn[0])(*map(_joined_samples, *drawn))

    return draw


def _joined_samples(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {key: th.cat([part, other[key]]) for key, part in one.items()}
    return None if one is None else th.cat([one, other])


# --- Parts of learners ------------------------------------------------------------------------------------------------


class ImitationData(LearnerPart):
    """Recorded actions as a part of the loss of an algorithm with rollouts; see `ImitationLoss`."""

    adds_loss = True
    metrics = MappingProxyType({name: f"train/{name}" for name in ("imitation_loss", "imitation_coefficient")})

    def __init__(self, learner: Any, spec: PolicySpec, seed: int | None, options: LearnerOptions) -> None:
        name, settings = "imitation_coefficient", vars(spec)["data"]
        coefficient = make_schedule(settings.imitation_coefficient, name, DataSettings.kinds()[name])
        self._learner = learner
        self._recorded = RecordedData(str(settings.imitation_data), "imitation_data", learner.rows)
        takes_masks = learner.actor.policy.takes_masks
        of_actions = action_loss(learner.policy_id, learner.algorithm, takes_masks=takes_masks)
        self.loss = ImitationLoss(of_actions, coefficient, seed)
        self.states = {"imitation": self.loss, "recorded": self._recorded}

    @override
    def read(self) -> None:
        if self.loss.data is not None:
            return
        learner, data = self._learner, self._read()
        if learner.actor.policy.takes_masks:
            require_masks(data, learner.policy_id, learner.algorithm)
        self.loss.data = data
        if learner.processing.normalizer is None:
            self._recorded.forget()

    @override
    def before_update(self) -> None:
        if self._learner.processing.normalizer is not None:  # by the present statistics
            self.loss.data = self._read()

    def _read(self) -> Demonstrations:
        return self._recorded.read(self._learner.processing, self._learner.algorithm)

    @override
    def recorded(self) -> Mapping[str, float]:
        return self.loss.recorded()


class ReplayData(LearnerPart):
    """Recorded transitions in the replay buffer, or beside it."""

    def __init__(self, learner: Any, spec: PolicySpec, seed: int | None, options: LearnerOptions) -> None:
        assert options.goal_rewards is not None
        settings: DataSettings = vars(spec)["data"]
        self._learner = learner
        self._recorded = RecordedData(str(settings.replay_data), "replay_data", learner.rows)
        self._share, self.first_updates = settings.replay_data_share, settings.replay_data_updates
        if self._share is not None and hasattr(learner.buffer, "priorities"):
            words = (
                f"policy {learner.policy_id!r}: replay is prioritized, and a part of each minibatch is recorded data"
            )
            raise ConfigError(f"{words}; accepted: uniform, or no replay_data_share", key="replay_data_share")
        rows, algorithm = policy_rows(learner.rows, learner.processing), learner.algorithm
        stored = stored_space(learner.processing, algorithm)
        self._make_buffer = partial(replay_buffer, rows, spec, algorithm, stored, options.goal_rewards)
        self._has_read = False
        self.states = {"recorded": self._recorded}

    @override
    def read(self) -> None:
        """Put the transitions into the replay buffer of a new training, or into one beside it, once."""
        learner, buffer = self._learner, self._learner.buffer
        is_new = learner.algorithm.num_timesteps == 0 and buffer.num_transitions == 0
        if not self._has_read and (is_new or self._share is not None):
            # Running statistics take them in as those of the policy's own.
            data = self._recorded.read(learner.processing, learner.algorithm, learn=is_new, normalize=False)
            self._recorded.forget()
            if learner.actor.policy.takes_masks and learner.actor.policy.needs_masks:
                require_masks(data, learner.policy_id, learner.algorithm)
            if self._share is not None:
                longest = max(map(len, columns_of(data, learner.rows)))
                buffer = self._make_buffer(size=longest * learner.rows.num_rows)
                learner.buffer.sample = drawing_from_both(learner.buffer, buffer, self._share)
            fill(buffer, data, learner.rows, "replay_data")
        self._has_read = True
