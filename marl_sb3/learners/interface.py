"""What the joint loop knows of an algorithm: how it acts, how far it is from an update, and how it updates.

A new algorithm implements `Collector` and `Learner` in a file of its own and gets a line in `learners/registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.learners.deciders import Decision
from marl_sb3.metrics import Result
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.storage.parts import TensorFile, TensorPart
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array, BoolArray, Observations, PolicyID
from marl_sb3.vec_env.step import VecStep


class Actor(Protocol):
    """Acts for the rows of one policy; it owns their recurrent state and the exploration noise.

    What a row remembers belongs to one episode of its agent: it is dropped where an episode starts, and it stands still
    while the agent waits.

    Attributes:
        rows: the rows.
    """

    rows: PolicyRows

    @property
    def takes_masks(self) -> bool:
        """Whether its policy looks at action masks; one that does not ignores them."""

    def begin_episodes(self) -> None:
        """All envs have just been reset."""

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """These envs have begun new episodes."""

    def end_episodes(self, ended: BoolArray) -> None:
        """The episodes of these rows' agents, (rows,) bool, are over: what they do next starts new ones."""

    def begin_rollout(self) -> None:
        """Draw exploration noise anew, where the policy has any."""

    def act(self, observations: Observations, acting: BoolArray, masks: BoolArray | None = None) -> Decision:
        """Choose actions.

        Args:
            observations: (rows, ...); rows that wait hold filler that the policy does not see.
            acting: (rows,) bool; the rows that act. The others get zeros.
            masks: (rows, n) bool, True where an action is allowed; None: all are.
        """

    def get_state(self, *, under_way: bool) -> State:
        """All that `read_state` needs.

        Args:
            under_way: whether the rollout goes on: noise is drawn anew at the beginning of the next one.
        """

    def read_state(self, state: StateReader, step: int, *, under_way: bool) -> Callable[[], None]:
        """Check what `get_state` returned.

        Args:
            state: what it returned.
            step: steps since the rollout began.
            under_way: as in `get_state`.

        Returns:
            What puts it back.

        Raises:
            CheckpointError: it is not the state of such an actor.
        """


class Collector(Protocol):
    """Lets an actor act for the rows of one policy, and keeps what its learner wants to know of it."""

    rows: PolicyRows
    records: bool  # whether its learner learns; if not it only acts, and has no rollout to complete

    @property
    def steps_left(self) -> int:
        """Env steps, of each env, until the rollout is complete; 0 if it records none."""

    def begin_episodes(self) -> None:
        """All envs have just been reset."""

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """These envs have begun new episodes: nothing follows from their last step."""

    def begin_rollout(self) -> None:
        """Forget the latest rollout, which is complete or was given up."""

    def read_weights(self) -> None:
        """The weights may be others since the latest step: a learner or a callback has set them."""

    def act(self, step: VecStep) -> Array:
        """Choose actions.

        Args:
            step: the latest step, with the observations to act on.

        Returns:
            `(rows, *action shape)`, as the env takes them; rows that do not act hold filler that no env reads.
        """

    def observe(self, step: VecStep) -> None:
        """Keep what came of the actions, and what rows that wait were paid."""

    def finish_rollout(self, step: VecStep) -> None:
        """The rollout is complete; `step` is its last one."""


class UpdateJob(Protocol):
    """One update of one policy, in two parts; what draws random numbers was done when it was made."""

    parallel: bool  # whether `run` may run in a thread of its own, beside the jobs of other policies

    def run(self) -> None:
        """The update itself."""

    def finish(self) -> Result:
        """Take over the results.

        Returns:
            The metrics below `learners/{policy}/`, by `Learner.metric_names`.

        Raises:
            NumericError: a loss, a gradient or a weight is not finite.
        """


class Learner(TensorPart, Protocol):
    """Trains one policy; a part of a checkpoint, between any two env steps.

    Attributes:
        policy_id: which one.
        trained: whether it learns; if not it only acts.
    """

    policy_id: PolicyID
    trained: bool

    @property
    def algorithm(self) -> BaseAlgorithm:
        """The policy's SB3 algorithm."""

    @property
    def collector(self) -> Collector:
        """What acts for the policy."""

    @property
    def metric_names(self) -> Sequence[str]:
        """The names of its metrics, in their order."""

    def due_in(self) -> int:
        """Env steps, of each env, until it wants to update; 0: now."""

    def begin_update(self, progress_remaining: float) -> UpdateJob:
        """Prepare an update. The policies take turns here: it draws random numbers.

        Args:
            progress_remaining: from 1 at the start of training to 0 at its end, for schedules.
        """

    def metrics_before_training(self) -> Result:
        """The same names as an update has, nothing measured yet."""

    def read_weights(self, files: Mapping[str, TensorFile]) -> Callable[[], object]:
        """As `read_state`, for the weights alone.

        Args:
            files: as in `SavedPart`.
        """


def joined_metrics(of_updates: Sequence[Result]) -> Result:
    """One result of several updates: the latest counts and settings, the sum of steps, means of the rest."""
    latest = of_updates[-1]
    return {name: _joined(name, [metrics[name] for metrics in of_updates]) for name in latest}


_LATEST = frozenset({"curr_lr", "num_grad_updates_lifetime", "num_trainable_parameters"})
_SUMMED = frozenset({"num_module_steps_trained"})


def _joined(name: str, values: Sequence[Any]) -> Any:
    if name in _LATEST or len(values) == 1:
        return values[-1]
    if name in _SUMMED:
        return sum(values)
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
