"""Record the episodes of a training as Minari datasets."""

from __future__ import annotations

import re
from pathlib import Path

from typing_extensions import override

from marl_sb3.core.config.values import PositiveInt, require
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm, MultiAgentCallback
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.extensions.data.recorder import recorder_of
from marl_sb3.extensions.data.store import EpisodeStore, require_recordable
from marl_sb3.files.paths import as_path


class RecordEpisodes(MultiAgentCallback):
    """Records the complete episodes of a training, with what the policies were paid, chose and expected.

    Whatever a checkpoint has seen is on the disk with it. A run that is resumed from a checkpoint removes what was
    recorded after it, and goes on; episodes that were running at the checkpoint are not recorded.

    Args:
        directory: the folder of the recording: new, empty, or, if a run is resumed, that of the same run.
        limit_bytes: size of the files beyond which nothing is recorded, while the training goes on, in bytes or as a
            text such as `"2GB"`; None: no limit.
        shard_episodes: joint episodes that are written together, at most; a kill loses the ones that wait.
        continues: whether the folder may hold a recording of the run, which is resumed.
        name: of the env, in the ids of the datasets; None: `env`.

    Raises:
        ConfigError: Minari is not installed, or an argument is not accepted; when the training starts: the folder
            holds something else, or the envs are rolled out in shards.
    """

    def __init__(
        self,
        directory: str | Path,
        limit_bytes: int | str | None = None,
        shard_episodes: int = 100,
        *,
        continues: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.directory = as_path("record", directory)
        self._limit = None if limit_bytes is None else _bytes(limit_bytes)
        self._shard_episodes = require("shard_episodes", shard_episodes, PositiveInt)
        self._continues, self._name = continues, name
        self._goes_on = not require_recordable(self.directory, continues=continues)
        self._store: EpisodeStore | None = None

    def open(self, algorithm: MultiAgentAlgorithm) -> None:
        """Make or open the recording, and follow the envs from the next step on; a second call does nothing.

        Raises:
            ConfigError: see the class.
        """
        if self._store is not None:
            return
        algorithm.require_watchable()
        if self._goes_on and not algorithm.parts.callbacks.has_state(f"{type(self).__name__}-0"):
            words = f"cannot go on with the recording in {self.directory}: the checkpoint does not belong to it"
            raise ConfigError(f"{words}; accepted: a new or empty folder", key="record")
        recorder, self._store = recorder_of(
            algorithm.env,
            algorithm.bundle().policy_of,
            self.directory,
            self._name or "env",
            algorithm.candidates,
            continues=self._continues,
            shard_episodes=self._shard_episodes,
            limit_bytes=self._limit,
            may_fail=True,
        )
        algorithm.add_watcher(recorder)

    @override
    def _on_training_start(self) -> None:
        self.open(self.algorithm)

    @override
    def _on_training_end(self) -> None:
        self.flush()

    def flush(self) -> None:
        """Write the episodes that wait."""
        if self._store is not None:
            self._store.flush()

    @override
    def get_state(self) -> State:
        self.flush()
        return {} if self._store is None else self._store.get_state()

    @override
    def set_state(self, state: StateReader) -> None:
        if self._store is not None and state.names():
            self._store.go_back_to(state)


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _bytes(size: int | str) -> int:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", str(size).strip().upper())
    number = int(float(parts[1]) * _UNITS[parts[2]]) if parts else 0
    if number < 1 or isinstance(size, (bool, float)):
        refuse("the limit of the recording", size, "a size, such as 500MB or 2GB, or bytes", "record_limit")
    return number
