"""Train policies on recorded episodes alone.

Policies of any algorithm learn to act as the episodes do, by behaviour cloning (Pomerleau 1991); those of an algorithm
whose own losses are made for it, such as IQL, learn by these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch as th

from marl_sb3.core.acting.actor import not_finite_refused
from marl_sb3.core.config.settings import PolicySection
from marl_sb3.core.config.values import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, require
from marl_sb3.core.learners.learner import Learner
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.off_policy.off_policy import OffPolicyLearner
from marl_sb3.core.off_policy.replay import TransitionDictReplayBuffer, TransitionReplayBuffer
from marl_sb3.core.sb3.tensors import reset_optimizers
from marl_sb3.core.state.fields import Fields, Stateful, array, scalar
from marl_sb3.core.state.randomness import generator
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import ConfigError, NumericError
from marl_sb3.extensions.data.demonstrations import demonstrations
from marl_sb3.extensions.data.imitation import Minibatch, action_loss, require_masks
from marl_sb3.extensions.data.recorded_data import fill
from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.extensions.data.dataset import RecordedEpisode

_VALIDATION_BATCH = 4096  # transitions
_SQUARES = ("step", "exp_avg_sq")  # of Adam, which are never negative


@dataclass(frozen=True)
class CloningOptions(PolicySection):
    """How policies are cloned."""

    epochs: PositiveInt = 100  # maximum number of passes over the data
    # transitions in a minibatch; policies with memory take whole episodes of about as many
    batch_size: PositiveInt = 256
    learning_rate: PositiveFloat = 1e-3  # of Adam
    # share of the episodes that are kept apart; their loss decides when to stop, and which weights stay
    validation: Fraction = 0.1
    patience: PositiveInt = 10  # passes without a lower loss of these episodes after which a policy is done
    entropy_coefficient: NonNegativeFloat = 0.0  # weight of the policy's entropy, subtracted from its loss

    def __post_init__(self) -> None:
        for name, kind in self.kinds().items():
            require(name, getattr(self, name), kind)
        if self.validation == 1:
            raise ConfigError(
                "validation is 1, which leaves nothing to learn from; accepted: below 1", key="validation"
            )


class Cloning(Stateful):
    """The cloning of one policy.

    Its running statistics are those of the data, of all episodes. Only the networks that act are trained: critics stay
    as they are, and target networks follow at the end. The optimizers of the algorithm are not used.

    Args:
        learner: of the policy.
        episodes: of its agents, at least one.
        options: see there.
        seed: of the split and of the order of the minibatches.
        learn: whether the policy's running statistics take in the data; not if they are restored from a checkpoint.

    Attributes:
        epoch: passes done.
        best_epoch: the pass with the lowest loss of the validation episodes; without any, the last one.
        num_episodes: episodes that are learned from, and those of the validation.

    Raises:
        ConfigError: the policy cannot learn from these data.
    """

    fields: ClassVar[Fields] = {
        "epoch": scalar("epoch", 1),
        "best_epoch": scalar("best_epoch", 1),
        "best_loss": scalar("_best_loss", like=0.0),
        "checksum": scalar("checksum", 0, 2**32 - 1),
        "random": generator("_random"),
        "moments": array("_moments"),
        "weights": array("_weights"),
    }

    def __init__(
        self,
        learner: Learner,
        episodes: Sequence[RecordedEpisode],
        options: CloningOptions,
        seed: int,
        *,
        learn: bool = True,
    ) -> None:
        self._learner, self._options = learner, options
        algorithm: Any = learner.algorithm
        self._algorithm = algorithm
        self._loss = action_loss(learner.policy_id, algorithm, takes_masks=learner.actor.policy.takes_masks)
        self._data = demonstrations(episodes, learner.rows, learner.processing, algorithm, learn=learn)
        self.checksum = self._data.checksum()
        if learner.actor.policy.takes_masks:
            require_masks(self._data, learner.policy_id, algorithm)
        self._random = np.random.default_rng(seed)
        self._train, self._validation = _split(len(episodes), options.validation, self._random)
        self.num_episodes = len(self._train), len(self._validation)
        self._optimizer = th.optim.Adam(self._loss.trained.parameters(), options.learning_rate)
        self.epoch = self.best_epoch = 0
        self._best_loss: float | None = None  # without episodes for the validation
        self._best: dict[str, th.Tensor] = {}

    @property
    def is_done(self) -> bool:
        """Whether no further pass is wanted."""
        waited = self.epoch - self.best_epoch
        return self.epoch >= self._options.epochs or (bool(self.num_episodes[1]) and waited >= self._options.patience)

    def run_epoch(self) -> Result:
        """Pass over the data once; returns the metrics.

        Raises:
            NumericError: the loss is not finite.
        """
        policy = self._algorithm.policy
        policy.set_training_mode(True)
        sums = [self._step(batch) for batch in self._batches(self._random.permutation(self._train))]
        self._settle_batch_norms()
        policy.set_training_mode(False)
        self.epoch += 1
        trained = sum(float(mean) * number for mean, number in sums)
        number = sum(number for _, number in sums)
        if not np.isfinite(trained):
            words = "the loss of its cloning is not finite; a lower learning rate may help"
            raise NumericError(f"policy {self._learner.policy_id!r}: {words}")
        measured = self._validation_loss() if len(self._validation) else None
        if measured is None or self._best_loss is None or measured < self._best_loss:
            self.best_epoch = self.epoch
            self._best_loss = measured if measured is not None and np.isfinite(measured) else None
            self._best = self._copies()
        return {
            "imitation_loss": trained / number,
            "imitation_loss_validation": measured,
            "num_module_steps_trained": number,
            "curr_lr": self._options.learning_rate,
        }

    @staticmethod
    def losses_in(metrics: Result) -> Mapping[str, float | None]:
        """Return what to show of the metrics of a pass, by words."""
        return {"loss": metrics["imitation_loss"], "validation": metrics["imitation_loss_validation"]}

    def finish(self) -> None:
        """Give the policy the weights of the best pass, and its target networks the same."""
        self._algorithm.policy.load_state_dict(self._best)
        self._loss.finish()
        reset_optimizers(self._algorithm)

    def _copies(self) -> dict[str, th.Tensor]:
        return deepcopy(self._algorithm.policy.state_dict())

    # --- State -------------------------------------------------------------------------------------------------------

    # A checkpoint between two passes has the policy as `finish` would leave it, so that it can be evaluated, and beside
    # it the present weights. `_best` is the former when a state is set.

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Let the policy be, within the context, what `finish` would make of it."""
        present = self._copies()
        self.finish()
        try:
            yield
        finally:
            self._algorithm.policy.load_state_dict(present)

    @property
    def _weights(self) -> dict[str, Array]:
        return {name: tensor.cpu().numpy() for name, tensor in self._copies().items()}

    @_weights.setter
    def _weights(self, weights: Mapping[str, Array]) -> None:
        self._best = self._copies()
        self._algorithm.policy.load_state_dict({name: th.as_tensor(array) for name, array in weights.items()})

    @property
    def _moments(self) -> dict[str, dict[str, Array]]:
        """What Adam keeps of each parameter; before its first gradient these are zeros."""
        found = {}
        for place, parameter in enumerate(self._optimizer.param_groups[0]["params"]):
            zeros = {"step": th.zeros(()), "exp_avg": th.zeros_like(parameter), "exp_avg_sq": th.zeros_like(parameter)}
            kept = {**zeros, **self._optimizer.state.get(parameter, {})}
            found[str(place)] = {name: value.detach().cpu().numpy().copy() for name, value in kept.items()}
        return found

    @_moments.setter
    def _moments(self, moments: Mapping[str, Mapping[str, Array]]) -> None:
        state = {
            int(place): {name: th.as_tensor(array) for name, array in kept.items()} for place, kept in moments.items()
        }
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})

    def check_state(self, values: Mapping[str, Any], state: StateReader) -> None:
        """See `Stateful.check_state`; with negative means of squares, Adam would divide by a NaN."""
        negative = any(float(each[name].min(initial=0)) < 0 for each in values["moments"].values() for name in _SQUARES)
        if negative or values["best_epoch"] > values["epoch"]:
            raise state.error("moments", "a negative one, or a best pass after the last", "those of a cloning")

    def _settle_batch_norms(self) -> None:
        """Make the running statistics of batch norms, which CrossQ has, those of the present weights."""
        norms: list[Any] = [each for each in self._algorithm.policy.modules() if hasattr(each, "momentum")]
        momenta = [each.momentum for each in norms]
        with th.no_grad():
            for number, batch in enumerate(self._batches(self._train) if norms else [], 1):
                for each in norms:
                    each.momentum = 1.0 / number  # the mean over all minibatches
                self._loss.losses(batch)
        for each, momentum in zip(norms, momenta, strict=True):
            each.momentum = momentum

    def _step(self, batch: Minibatch) -> tuple[th.Tensor, int]:
        """Take a gradient step; returns the mean loss and the number of transitions."""
        total, mean = self._loss.mean(batch, self._options.entropy_coefficient)
        self._optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return mean.detach(), batch.number

    def _validation_loss(self) -> float:
        with th.no_grad():
            batches = self._batches(self._validation, _VALIDATION_BATCH, shuffled=False)
            found = [(self._loss.mean(batch)[1], batch.number) for batch in batches]
        total = sum(float(mean) * number for mean, number in found)
        return total / sum(number for _, number in found)

    def _batches(self, episodes: Array, size: int | None = None, *, shuffled: bool = True) -> Iterator[Minibatch]:
        together, chosen = self._loss.together(self._data, size or self._options.batch_size), episodes
        if not self._loss.in_sequences:
            chosen = self._data.of_episodes(episodes)
            chosen = self._random.permutation(chosen) if shuffled else chosen
        for begin in range(0, len(chosen), together):
            yield self._loss.batch(self._data, chosen[begin : begin + together])


def _split(episodes: int, share: float, random: np.random.Generator) -> tuple[Array, Array]:
    """Divide episodes at random into those to learn from, and those of the validation; one alone is to learn from."""
    order = random.permutation(episodes)
    apart = min(max(1, round(share * episodes)), episodes - 1) if share else 0
    return np.sort(order[apart:]), np.sort(order[:apart])


# --- By the algorithm's own losses ------------------------------------------------------------------------------------


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
        for name, value in options.changed().items():
            if name != "epochs":  # it is of cloning alone
                own = (
                    f"its own {name}, as --set {name}={value!r}"
                    if name in ("batch_size", "learning_rate")
                    else "epochs"
                )
                learns = f"{type(self._algorithm).__name__} learns from the data by its own losses"
                words = f"{name} is {value!r}, but it is of cloning, and {learns}; accepted: {own}"
                raise ConfigError(words, key=name)
        data = demonstrations(episodes, learner.rows, learner.processing, self._algorithm, learn=learn, normalize=False)
        if learn:
            fill(learner.buffer, data, learner.rows, "the data")
            # The last line of a buffer that is drawn from by lines is filled by some transitions a second time: else
            # the last ones would wait there for others that never come.
            missing = -learner.buffer.num_transitions % learner.buffer.n_envs
            if missing and isinstance(learner.buffer, TransitionReplayBuffer | TransitionDictReplayBuffer):
                again = data.transitions(np.arange(missing) % len(data), np.arange(missing))
                learner.buffer.add_transitions(again)
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
