"""What all experience has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from marl_sb3.core.acting.actor import Acted, Actor, Observed
from marl_sb3.core.state.fields import Stateful
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.types import BoolArray

if TYPE_CHECKING:
    from marl_sb3.extensions.hooks.rewriting import TrajectoryRewriter


@runtime_checkable
class ExperienceHook(Protocol):
    """What may change the experience of policies before they learn from it; see the door `WATCHERS`.

    It is pickled where the envs are stepped in shards, and sent to these.
    """

    def rewriter(self, actors: Sequence[Actor], *, first_env: int, first_step: int) -> TrajectoryRewriter:
        """Return what shows the experience of these actors to the hook.

        Args:
            actors: those of all policies.
            first_env: index of the first env among those of all shards.
            first_step: number of the next step of each env, counted for each env from the start of the training.
        """


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

    rewriter: TrajectoryRewriter | None = None  # shows it to a hook; None: there is none

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

    def show_to(self, rewriter: TrajectoryRewriter | None) -> None:
        """Show what will be complete to a hook from now on; None: there is none any more."""
        if self.rewriter is not None:
            self.rewriter.release(self)
        self.rewriter = rewriter
        if rewriter is not None:
            rewriter.add(self)
