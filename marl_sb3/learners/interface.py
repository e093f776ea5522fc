"""The protocols through which the joint loop uses an algorithm: it acts, says when it is due, and updates.

A new algorithm of SB3 gets a line in `learners/algorithms.py` and, if need be, a subclass of `OnPolicyLearner` or of
`OffPolicyLearner`, which implement these protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.learners.deciders import Decision
from marl_sb3.metrics import Result
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import Processing
from marl_sb3.storage.parts import TensorFile, TensorPart
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array, BoolArray, Observations, PolicyID
from marl_sb3.vec_env.step import VecStep


class Actor(Protocol):
    """Acts for the rows of one policy; owns their recurrent state and the exploration noise.

    The recurrent state of a row is reset where an episode of its agent starts, and does not change while the agent
    waits.

    Attributes:
        rows: the rows of the policy.
    """

    rows: PolicyRows

    @property
    def takes_masks(self) -> bool:
        """Whether the policy uses action masks; if not, it ignores them."""

    def begin_episodes(self) -> None:
        """Note that all envs have just been reset."""

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """Note that these envs have begun new episodes."""

    def end_episodes(self, ended: BoolArray) -> None:
        """Note that episodes of agents have ended: (rows,) bool. Their next actions start new episodes."""

    def begin_rollout(self) -> None:
        """Draw new exploration noise if the policy uses noise."""

    def act(self, observations: Observations, acting: BoolArray, masks: BoolArray | None = None) -> Decision:
        """Choose actions.

        Args:
            observations: (rows, ...); filler in rows that wait, which the policy does not see.
            acting: (rows,) bool; the rows that act. The decision is zeros in the others.
            masks: (rows, n) bool, True where an action is allowed; None: all actions are allowed.
        """

    def get_state(self, *, under_way: bool) -> State:
        """Return the state for `read_state`.

        Args:
            under_way: whether a rollout is under way. If not, the noise is left out: the next rollout draws its own.
        """

    def read_state(self, state: StateReader, step: int, *, under_way: bool) -> Callable[[], None]:
        """Check a saved state.

        Args:
            step: steps since the rollout began.

        Returns:
            A function that puts the state back.

        Raises:
            CheckpointError: the state does not fit this actor.
        """


class RolloutOwner(Protocol):
    """Has the rollout of one policy, whoever acts for its rows."""

    rows: PolicyRows
    records: bool  # whether the policy is trained; if not, it only acts and there is no rollout to complete

    @property
    def steps_left(self) -> int:
        """Env steps of each env until the rollout is complete; 0 if nothing is recorded."""

    def begin_episodes(self) -> None:
        """Note that all envs have just been reset."""

    def begin_rollout(self) -> None:
        """Discard the latest rollout and begin a new one."""

    @property
    def takes_masks(self) -> bool:
        """Whether the policy needs action masks."""

    def masks(self, step: VecStep) -> BoolArray | None:
        """Return the (rows, n) action masks of a step; None for a policy without masks.

        Raises:
            ConfigError: the policy needs masks, an agent acts next, and the env gives none.
        """


class Collector(RolloutOwner, Protocol):
    """Acts for the rows of one policy through an actor, and records the experience for the policy's learner."""

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """Note that these envs have begun new episodes: the open transitions of the old ones are given up."""

    def read_weights(self) -> None:
        """Note that the weights may have changed since the latest step, by a learner or a callback."""

    def act(self, step: VecStep) -> Array:
        """Choose actions.

        Returns:
            (rows, *action shape), as the env takes them; filler that no env reads in rows that do not act.
        """

    def observe(self, step: VecStep) -> None:
        """Record the rewards and ends of a step, also those of rows that wait."""

    def break_off(self, step: VecStep) -> None:
        """Give up the rollout instead of observing its latest step, so that a new rollout is due.

        Only what the next actions depend on is taken from the step: where episodes ended, and running statistics.
        """

    def finish_rollout(self, step: VecStep) -> None:
        """Complete the rollout; `step` is its last step."""


class UpdateJob(Protocol):
    """One update of one policy, in two parts. All random numbers that it needs were drawn when it was made."""

    parallel: bool  # whether `run` may run in a thread, at the same time as the jobs of other policies

    def run(self) -> None:
        """Compute the update."""

    def finish(self) -> Result:
        """Put the results into the policy.

        Returns:
            The metrics below `learners/{policy}/`, under the names in `Learner.metric_names`.

        Raises:
            NumericError: a loss, a gradient or a weight is not finite.
        """


class Pace(NamedTuple):
    """How long an iteration is for one policy, in env steps of each env, if the run does not set it.

    Attributes:
        report_steps: steps in an iteration.
        rollout_steps: steps in a rollout; None for a policy that learns from a replay buffer.
    """

    report_steps: int
    rollout_steps: int | None = None


class Learner(TensorPart, Protocol):
    """Trains one policy; it is a part of a checkpoint, which may be taken between any two env steps.

    Attributes:
        policy_id: the id of the policy.
        trained: whether the policy is trained; if not, it only acts.
    """

    policy_id: PolicyID
    trained: bool

    @property
    def algorithm(self) -> BaseAlgorithm:
        """The policy's SB3 algorithm."""

    @property
    def processing(self) -> Processing:
        """What is done to the policy's observations, rewards and actions."""

    @property
    def collector(self) -> Collector:
        """The collector that acts for the policy."""

    @property
    def metric_names(self) -> Sequence[str]:
        """The names of the learner's metrics, in order."""

    @property
    def pace(self) -> Pace:
        """How long an iteration is for this policy."""

    def due_in(self) -> int:
        """Return the env steps of each env until the next update; 0: now."""

    def begin_update(self, progress_remaining: float) -> UpdateJob:
        """Prepare an update. It draws random numbers, so that policies do this one after the other.

        Args:
            progress_remaining: from 1 at the start of training to 0 at its end, for schedules.
        """

    def metrics_before_training(self) -> Result:
        """Return the metrics as they are before the first update, under the same names."""

    def read_weights(self, files: Mapping[str, TensorFile]) -> Callable[[], object]:
        """Do what `read_state` does, but only for the weights."""


def joined_metrics(of_updates: Sequence[Result]) -> Result:
    """Join the metrics of several updates: the latest counts and settings, the sum of steps, means of the others."""
    latest = of_updates[-1]
    return {name: _joined(name, [metrics[name] for metrics in of_updates]) for name in latest}


_LATEST = frozenset(
    {"curr_lr", "exploration_rate", "num_grad_updates_lifetime", "num_trainable_parameters", "replay_buffer_size"}
)
_SUMMED = frozenset({"num_module_steps_trained"})


def _joined(name: str, values: Sequence[Any]) -> Any:
    if name in _LATEST or len(values) == 1:
        return values[-1]
    if name in _SUMMED:
        return sum(values)
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
