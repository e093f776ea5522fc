"""What runners have in common, from which the joint loop gets its experience."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from marl_sb3.metrics import Episode
from marl_sb3.storage.parts import Part, SavedPart
from marl_sb3.storage.state import is_plain
from marl_sb3.vec_env.interface import Health
from marl_sb3.vec_env.step import VecStep

_log = logging.getLogger(__name__)


class StepListener(Protocol):
    """Is called after every step of a rollout.

    Attributes:
        changes_policies: whether it may change policies in the middle of a rollout. Shards see such changes from their
            next round on.
    """

    changes_policies: bool

    def on_step(self, step: VecStep, episodes: Sequence[Episode]) -> bool:
        """Note a step of all envs, and the episodes that it ended; return False to stop the rollout."""


class Runner(Part, Protocol):
    """Steps the envs with the policies' actions, and records the experience.

    Attributes:
        episodes_left_out: whether running episodes were left out of a checkpoint; a warning was logged then.
    """

    episodes_left_out: bool = False

    @property
    def health(self) -> Health | None:
        """The state of the processes that step the envs; None if this process does."""

    def start(self) -> None:
        """Start the processes that step the envs; without a call, the first rollout starts them.

        Raises:
            ConfigError: they cannot be started.
        """

    def begin_rollouts(self) -> bool:
        """Begin new rollouts where the last one is complete or was broken off; return whether any began."""

    def collect(self, env_steps: int, listener: StepListener) -> bool:
        """Take steps in every env, and finish the rollouts that are complete afterwards.

        If the listener stops the rollout or raises, all rollouts are broken off; the episodes go on. If anything else
        fails, new episodes begin with the next rollouts.

        Args:
            env_steps: number of steps of each env; at most as many as any rollout has left.

        Returns:
            False if the listener stopped the rollout.

        Raises:
            EnvError: an env broke the `ParallelEnv` contract.
        """

    def forget_episodes(self) -> None:
        """Make the next rollout begin new episodes in all envs."""

    def read_state(self, saved: SavedPart) -> Callable[[], Mapping[int, str]]:
        """See `Part.read_state`.

        Returns:
            A function that restores the envs in the middle of their episodes. It returns env index -> reason for every
            env that could not be restored exactly. It raises `CheckpointError` if an env refuses its saved state,
            `EnvError` if an env fails.
        """

    def restart_lost(self, lost: Mapping[int, str], seed: int | None) -> None:
        """Begin new episodes in these envs; the last step of loading, after all parts are restored.

        Args:
            lost: env index -> reason, from the function that `read_state` returned.
            seed: new seed of the envs if none of them was restored; None: they keep their seeds.
        """

    def episodes_to_save(self, running: Any) -> tuple[Any, str | None]:
        """Return the running episodes for a checkpoint; or None, and the reason why they are left out of it."""
        if is_plain(running):
            return running, None
        why = "an env's get_state() returned something other than plain data"
        if not self.episodes_left_out:
            self.episodes_left_out = True
            _log.warning("inexact: %s: a run that is resumed from one begins new episodes", why)
        return None, why

    def without_episodes(self, saved: SavedPart, num_envs: int) -> Callable[[], dict[int, str]] | None:
        """Return what `read_state` returns for a checkpoint that has no episodes of so many envs; None: it has some."""
        if saved.num_envs != num_envs:
            why = f"the checkpoint has {saved.num_envs} envs, the run {num_envs}"
        elif saved.value("left_out") is not None:
            why = saved.string("left_out")
        else:
            return None

        def begin_anew() -> dict[int, str]:
            self.forget_episodes()
            return dict.fromkeys(range(num_envs), why)

        return begin_anew
