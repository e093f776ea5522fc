"""The protocols through which the joint loop uses a learner: its collector acts, its jobs update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from marl_sb3.metrics import Result
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array, BoolArray
from marl_sb3.vec_env.step import VecStep


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

    def get_state(self) -> State:
        """Return the state of the rollout, with its experience as far as it is still needed."""

    def read_state(self, state: StateReader) -> Callable[[], None]:
        """Check what `get_state` returned; see `Part.read_state`."""


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
