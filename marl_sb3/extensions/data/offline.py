"""Train a policy on recorded episodes alone, by an algorithm whose own losses are made for that, such as IQL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from marl_sb3.core.acting.actor import not_finite_refused
from marl_sb3.core.learners.learner import Learner
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.off_policy.off_policy import OffPolicyLearner
from marl_sb3.core.off_policy.replay import TransitionDictReplayBuffer, TransitionReplayBuffer
from marl_sb3.core.state.fields import Fields, Stateful, scalar
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.data.cloning import CloningOptions
from marl_sb3.extensions.data.demonstrations import Demonstrations, demonstrations
from marl_sb3.extensions.data.recorded_data import fill

if TYPE_CHECKING:
    from marl_sb3.extensions.data.dataset import RecordedEpisode


class OfflineTraining(Stateful):
    """The training of one policy on recorded episodes; to its caller it is like a `Cloning`.

    The episodes are in the policy's replay buffer, and stay there: a training that goes on learns from them, too. A
    pass is as many gradient steps as the data have minibatches; these are drawn as the algorithm always does.

    Args:
        learner: of the policy.
        episodes: of its agents, at least one. All are learned from.
        options: only the number of passes; all else is the algorithm's own.
        learn: whether to take the data into the replay buffer, and running statistics; not if these are restored from a
            checkpoint.

    Attributes:
        epoch: passes done.

    Raises:
        ConfigError: an option is given that the algorithm does not have.
    """

    fields: ClassVar[Fields] = {"epoch": scalar("epoch", 1), "checksum": scalar("checksum", 0, 2**32 - 1)}

    def __init__(
        self,
        learner: Learner,
        episodes: Sequence[RecordedEpisode],
        options: CloningOptions,
        *,
        learn: bool = True,
    ) -> None:
        assert isinstance(learner, OffPolicyLearner)
        self._learner, self._algorithm, self._most = learner, learner.algorithm, options.epochs
        _refuse_others(options, type(self._algorithm).__name__)
        data = demonstrations(episodes, learner.rows, learner.processing, self._algorithm, learn=learn, normalize=False)
        if learn:
            fill(learner.buffer, data, learner.rows, "the data")
            _complete(learner.buffer, data)
        self.checksum = data.checksum()
        self.num_episodes = len(episodes), 0
        self._steps = math.ceil(len(data) / self._algorithm.batch_size)
        self.epoch = 0

    @property
    def best_epoch(self) -> int:
        """The pass whose weights the policy has: the latest."""
        return self.epoch

    @property
    def is_done(self) -> bool:
        """Whether no further pass is wanted."""
        return self.epoch >= self._most

    def run_epoch(self) -> Result:
        """Pass over the data once; returns the metrics.

        Raises:
            NumericError: a loss is not finite.
        """
        learner = self._learner
        learner.follow_schedules(1.0 - self.epoch / self._most)
        with not_finite_refused(learner.policy_id, "update"):
            self._algorithm.train(gradient_steps=self._steps, batch_size=self._algorithm.batch_size)
        self.epoch += 1
        return learner.finish_update(self._steps)

    @staticmethod
    def losses_in(metrics: Result) -> dict[str, float | None]:
        """Return what to show of the metrics of a pass, by words."""
        return {f"{name} loss": metrics[f"{name}_loss"] for name in ("critic", "actor")}

    def finish(self) -> None:
        """Do nothing: the policy is what it is, and its optimizers go on."""

    def finished(self) -> AbstractContextManager[None]:
        """See `Cloning.finished`."""
        return nullcontext()


def _complete(buffer: Any, data: Demonstrations) -> None:
    """Fill the last line of a replay buffer that is drawn from by lines, by some transitions a second time.

    Otherwise the last transitions of the data would wait there for others that never come.
    """
    missing = -buffer.num_transitions % buffer.n_envs
    if missing and isinstance(buffer, TransitionReplayBuffer | TransitionDictReplayBuffer):
        buffer.add_transitions(data.transitions(np.arange(missing) % len(data), np.arange(missing)))


def _refuse_others(options: CloningOptions, algorithm: str) -> None:
    """Refuse options that are of cloning alone."""
    for name, value in options.changed().items():
        if name != "epochs":
            own = f"its own {name}, as --set {name}={value!r}" if name in ("batch_size", "learning_rate") else "epochs"
            words = f"{name} is {value!r}, but it is of cloning, and {algorithm} learns from the data by its own losses"
            raise ConfigError(f"{words}; accepted: {own}", key=name)
