"""What the joint loop asks of whatever steps the envs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from marl_sb3.metrics import Episode
from marl_sb3.storage.parts import Part, SavedPart
from marl_sb3.vec_env.step import VecStep


class StepListener(Protocol):
    """Hears of a rollout while it is under way."""

    def on_step(self, step: VecStep, episodes: Sequence[Episode]) -> bool:
        """All envs have taken a step, which ended these episodes; False stops the rollout."""


class Runner(Part, Protocol):
    """Collects experience: lets the policies act in the envs, and their collectors keep what comes of it."""

    def begin_rollouts(self, *, anew: bool) -> bool:
        """Begin the rollouts that are complete, or with `anew` all of them; whether there were any."""

    def collect(self, env_steps: int, listener: StepListener) -> bool:
        """Take steps in every env, and finish the rollouts that are then complete.

        Args:
            env_steps: of each env; no more than any rollout has left.
            listener: hears of steps and episodes.

        Returns:
            False if the listener stopped it.

        Raises:
            EnvError: an env broke the `ParallelEnv` contract.
        """

    def forget_episodes(self) -> None:
        """The next rollout begins new episodes in all envs."""

    def read_state(self, saved: SavedPart) -> Callable[[], Mapping[int, str]]:
        """See `Part.read_state`.

        Returns:
            A function that puts the envs back into the middle of their episodes. It raises `CheckpointError` if an env
            refuses its own state, `EnvError` if one fails; it returns, for every env that could not be put back
            exactly, why.
        """

    def restart_lost(self, lost: Mapping[int, str], seed: int | None) -> None:
        """The last step of loading, when all parts have been set: new episodes begin in these envs.

        Args:
            lost: what the function of `read_state` returned.
            seed: of the envs, if none of them was put back; None: they keep theirs.
        """
