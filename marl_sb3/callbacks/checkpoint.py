"""Write checkpoints during the training, and one at its end."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from marl_sb3.core.config.values import Count, PositiveInt, require
from marl_sb3.core.metrics.names import Result, flatten
from marl_sb3.core.metrics.opposition import Opposition
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.algorithm import MultiAgentCallback
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.hooks.episodes import RunningEpisode
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.files.paths import as_path

_log = logging.getLogger(__name__)

_SUMS = re.compile(r"(evaluation/)?env_runners/episode_return_(mean|min|max)")  # metrics of the sum of all returns
_MIXED = "others than the policies that learn play in its episodes, too"  # why a sum of returns tells nothing


class CheckpointCallback(MultiAgentCallback):
    """Writes checkpoints, and keeps the newest ones and the best. It should be the last callback: it saves the others.

    Where the metric is a sum of the agents' returns, each checkpoint says whether these have opposed each other so far;
    see `CheckpointFolder.load`.

    Args:
        folder: the folder of the checkpoints.
        every: iterations between checkpoints; 0: only one at the end.
        keep: how many of the newest checkpoints are kept.
        metric: the metric that decides which checkpoint is the best.
        higher_is_better: whether the best has the highest (True) or the lowest (False) value of the metric.
        at_start: save the untrained policies too.
        on_saved: called with the name of each new checkpoint.

    Raises:
        ConfigError: an argument is not accepted.
    """

    def __init__(
        self,
        folder: str | Path,
        every: int = 10,
        keep: int = 3,
        metric: str = "env_runners/episode_return_mean",
        higher_is_better: bool = True,
        at_start: bool = False,
        on_saved: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self._folder = CheckpointFolder(as_path("folder", folder))
        self._every, self._keep = require("every", every, Count), require("keep", keep, PositiveInt)
        self._at_start = at_start
        self._metric, self._higher_is_better = metric, higher_is_better
        self._value: float | None = None  # value of the metric in the latest iteration
        self._saved_at: int | None = None
        self._logged_at: int | None = None
        self._on_saved = on_saved
        self._opposition: Opposition | None = None
        self.latest: str | None = None  # name of the newest checkpoint; None before the first

    def _init_callback(self) -> None:
        if self._opposition is None and _SUMS.fullmatch(self._metric):
            self._opposition = Opposition(self.algorithm.env.agents, self.algorithm.policy_of)

    def _on_training_start(self) -> None:
        self._saved_at = self.algorithm.iteration  # the checkpoint that the run is resumed from exists already
        if self._at_start and self.algorithm.iteration == 0:
            self._save()

    def on_episode_end(self, episode: RunningEpisode) -> None:
        """Compare the returns of its agents."""
        if self._opposition is not None:
            self._opposition.add(episode.agent_returns)

    def on_iteration_logged(self, result: Result) -> None:
        """Write a checkpoint if one is due."""
        self._logged_at = self.algorithm.iteration
        self._value = flatten(result).get(self._metric)
        if self._every and self.algorithm.iteration % self._every == 0:
            try:
                self._save()
            except OSError as error:  # the next one may succeed; earlier checkpoints are unchanged
                _log.warning("no checkpoint of iteration %d: %s", self.algorithm.iteration, error)

    def _on_training_end(self) -> None:
        if self.algorithm.between_iterations and self.algorithm.iteration != self._saved_at:
            self._save()

    def rescue(self, *, within_iteration: bool = False) -> None:
        """After a failed training run, save the last iteration if it was finished and logged; an error is only logged.

        Args:
            within_iteration: save it also if steps of the next one have been taken; a resume is then not exact.
        """
        if self._logged_at in (None, self._saved_at) or self._logged_at != self.algorithm.iteration:
            return
        if not self.algorithm.between_iterations:
            if not within_iteration:
                return
            _log.warning("inexact: the checkpoint is written within an iteration, which a resume does not continue")
        try:
            self._save()
        except Exception as error:  # the error that ended the training is more important
            _log.warning("no checkpoint of iteration %d: %s", self.algorithm.iteration, error)

    def get_state(self) -> State:
        """Return how the agents' returns are related so far."""
        return {} if self._opposition is None else {"pairs_of_episodes": self._opposition.get_state()}

    def set_state(self, state: StateReader) -> None:
        """Set what `get_state` has returned."""
        if self._opposition is not None and "pairs_of_episodes" in state:
            self._opposition.read_state(state.fields("pairs_of_episodes"))()

    def _save(self) -> None:
        algorithm = self.algorithm
        score = {
            "metric": self._metric,
            "value": self._value,
            "higher_is_better": self._higher_is_better,
            "opposed": None if self._opposition is None or self._is_mixed else self._opposition.words(),
            "unfit": _MIXED if self._is_mixed else None,
        }
        policies, paths = dict[str, Any](algorithm.policies), dict[str, str]()
        for name, each in policies.items():
            with suppress(AttributeError, ConfigError):  # others' algorithms; what the kernels refuse ends the training
                paths[name] = each.described_path()
        about = {**algorithm.about(), "score": score, "paths": paths}
        state, tensors = algorithm.get_state()
        self.latest = self._folder.save(algorithm.iteration, state, tensors, about, self._keep)
        self._saved_at = algorithm.iteration
        _log.debug("saved %s", self.latest)
        if self._on_saved is not None:
            self._on_saved(self.latest)
        algorithm.tell("on_checkpoint_saved", self._folder.path / self.latest)

    @property
    def _is_mixed(self) -> bool:
        """Whether the metric is a sum of returns in episodes that others play, too: their returns say little."""
        has_others = hasattr(self.algorithm.assignment, "runner") and not self._metric.startswith("evaluation/")
        return self._opposition is not None and has_others
