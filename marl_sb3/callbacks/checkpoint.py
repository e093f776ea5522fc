"""Write checkpoints while a run trains, and one when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from marl_sb3.metrics import Result, flatten
from marl_sb3.storage.checkpoint_folder import CheckpointFolder
from marl_sb3.training.callback import MultiAgentCallback

_log = logging.getLogger(__name__)


class CheckpointCallback(MultiAgentCallback):
    """Keeps the newest checkpoints and the best one. It should be the last callback, so that it saves all others.

    Args:
        folder: the folder that they go into.
        every: iterations from one to the next; 0: only at the end.
        keep: how many of the newest are kept.
        metric: which of them is the best is told by this metric in its iteration.
        higher_is_better: the best has the highest value; False: the lowest.
        at_start: save the untrained policies too.
        on_saved: called with the name of each new checkpoint.

    Attributes:
        latest: name of the newest checkpoint; None before the first.
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
        self._folder = CheckpointFolder(Path(folder))
        self._every, self._keep, self._at_start = every, keep, at_start
        self._metric, self._higher_is_better = metric, higher_is_better
        self._value: float | None = None  # of the metric, in the latest iteration
        self._saved_at: int | None = None
        self._logged_at: int | None = None
        self._on_saved = on_saved
        self.latest: str | None = None

    def _on_training_start(self) -> None:
        self._saved_at = self.algorithm.iteration  # what a run is resumed from is there already
        if self._at_start and self.algorithm.iteration == 0:
            self._save()

    def on_iteration_logged(self, result: Result) -> None:
        """Save, if it is time."""
        self._logged_at = self.algorithm.iteration
        self._value = flatten(result).get(self._metric)
        if self._every and self.algorithm.iteration % self._every == 0:
            try:
                self._save()
            except OSError as error:  # the next one may succeed; the earlier ones are as they were
                _log.warning("no checkpoint of iteration %d: %s", self.algorithm.iteration, error)

    def _on_training_end(self) -> None:
        if self.algorithm.between_iterations and self.algorithm.iteration != self._saved_at:
            self._save()

    def rescue(self) -> None:
        """Save what a failed training leaves, if it has just finished and logged an iteration; failures are logged."""
        if self._logged_at is None or self._logged_at == self._saved_at:
            return
        if self._logged_at != self.algorithm.iteration or not self.algorithm.between_iterations:
            return
        try:
            self._save()
        except Exception as error:  # the error that ended the training is the one to be told
            _log.warning("no checkpoint of iteration %d: %s", self.algorithm.iteration, error)

    def _save(self) -> None:
        algorithm = self.algorithm
        score = {"metric": self._metric, "value": self._value, "higher_is_better": self._higher_is_better}
        about = {**algorithm.about(), "score": score}
        state, tensors = algorithm.get_state()
        self.latest = self._folder.save(algorithm.iteration, state, tensors, about, self._keep)
        self._saved_at = algorithm.iteration
        _log.debug("saved %s", self.latest)
        if self._on_saved is not None:
            self._on_saved(self.latest)
