"""What all experience has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from marl_sb3.core.acting import Acted, ActingWatcher, Actor, Observed
from marl_sb3.core.state import Stateful
from marl_sb3.core.vec_env import VecStep
from marl_sb3.types import Array, BoolArray

if TYPE_CHECKING:
    from marl_sb3.core.off_policy import HeldTransitions, ReplayExperience
    from marl_sb3.core.on_policy import RolloutExperience, RolloutNotes

NEVER = np.iinfo(np.int64).max  # number of an env step that is not needed


@runtime_checkable
class ExperienceHook(Protocol):
    """What may change the experience of policies before they learn from it; see the door `WATCHERS`.

    It is pickled where the envs are stepped in shards, and sent to these.
    """

    def rewriter(self, actors: Sequence[Actor], *, first_env: int, first_step: int) -> Rewriter:
        """Return what shows the experience of these actors to the hook.

        Args:
            actors: of all policies.
            first_env: index of the first env among those of all shards.
            first_step: number of the next step of each env, counted for each env from the start of the training.
        """


class Rewriter(ActingWatcher, Protocol):
    """Shows what policies experience to an `ExperienceHook`; it sees every step of the envs before."""

    hook: Any  # it may be replaced

    def of_rollouts(self, experience: RolloutExperience) -> RolloutNotes:
        """Return what notes the transitions in the rollouts of a policy from now on, and shows them."""

    def of_replay(self, experience: ReplayExperience) -> HeldTransitions:
        """Return what holds the transitions of a policy with a replay buffer back from now on, and shows them."""

    def forget(self, needed: Array) -> None:
        """Forget the env steps before these, (E,) numbers, of which nothing will be shown any more."""


class LearnedExperience(Stateful, ABC):
    """What a learner learns from, wherever it is recorded."""

    @abstractmethod
    def due_in(self) -> int:
        """Return the env steps of each env until the next update, at the end of a rollout; 0: now."""

    @abstractmethod
    def begin_episodes(self) -> None:
        """Note that all envs have just been reset."""

    @abstractmethod
    def begin_rollout(self) -> None:
        """Begin a new rollout."""

    def due_updates(self) -> Iterator[None]:
        """Go through what was recorded since the last update, and pause wherever one is due: here, at its end."""
        yield


class Experience(LearnedExperience):
    """What a policy learns from, recorded in this process: a rollout, or transitions in a replay buffer.

    A transition of an agent runs from its action to its next turn or its end, with all that it is paid meanwhile.

    Args:
        actor: acts for the rows of the policy.
    """

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.algorithm: Any = actor.policy.algorithm
        self.steps = 0  # since the rollout began

    @abstractmethod
    def give_up(self, rows: BoolArray) -> None:
        """Give up the open transitions of these rows, (rows,) bool, because other episodes have begun there."""

    @abstractmethod
    def begin(self, acted: Acted) -> None:
        """Open a transition for each row that acts."""

    @abstractmethod
    def add(self, observed: Observed) -> None:
        """Take in rewards and ends of a step, also those of rows that wait."""

    @abstractmethod
    def break_off(self) -> None:
        """Give up the rollout instead of taking in its latest step, so that a new rollout is due."""

    def complete(self, step: VecStep) -> None:
        """Complete the rollout after its last step."""

    @abstractmethod
    def show_to(self, rewriter: Rewriter | None) -> None:
        """Show what will be complete to a hook from now on; None: there is none any more.

        Of what has already been recorded of running episodes, the hook does not see anything.
        """

    def held_from(self) -> Array:
        """Return the (rows,) numbers of the first env steps that a hook has yet to see; `NEVER`: it has seen all."""
        return np.full(self.actor.rows.num_rows, NEVER)
