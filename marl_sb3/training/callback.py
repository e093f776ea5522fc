"""Callbacks for several agents: SB3's `BaseCallback` with more methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.metrics import Episode, Result
from marl_sb3.sb3.private import all_callbacks
from marl_sb3.storage.state import State, StateReader

if TYPE_CHECKING:
    from marl_sb3.training.algorithm import MultiAgentAlgorithm


class MultiAgentCallback(BaseCallback):
    """An SB3 callback that is also called at the end of episodes and iterations.

    `self.model` is the `MultiAgentAlgorithm`, `self.num_timesteps` counts env steps. In `_on_step`,
    `self.locals["step"]` is the `VecStep` just taken; `dones` ((E,) bool: env episodes that ended), `rewards`
    ((E, A)) and `infos` are provided for callbacks written for SB3. The arrays are read-only: rewards are changed by a
    wrapper of the env.
    """

    @property
    def algorithm(self) -> MultiAgentAlgorithm:
        """`self.model` with its type."""
        return self.model  # type: ignore[return-value]

    def _on_step(self) -> bool:
        return True

    def on_episode_end(self, episode: Episode) -> None:
        """Called once for each env episode that ends, before `on_step` of that step."""

    def complete_result(self, result: Result) -> None:
        """Add metrics to an iteration's result; called on all callbacks before any of them gets `on_iteration_end`."""

    def on_iteration_end(self, result: Result) -> bool:
        """Called after each iteration with its complete result; False ends the training."""
        return True

    def on_iteration_logged(self, result: Result) -> None:
        """Called after the iteration's metrics were written, when the iteration is complete."""

    def get_state(self) -> State:
        """Return the state that a resumed run needs, as plain data and arrays.

        Also called when a training starts, to check that a checkpoint can hold the state.
        """
        return {}

    def set_state(self, state: StateReader) -> None:
        """Called after `on_training_start` of a resumed run, with what `get_state` returned.

        Raises:
            CheckpointError: the state does not fit the callback. It may come from a stranger: check all of it.
        """


def multi_agent_callbacks(callback: Any) -> Iterator[MultiAgentCallback]:
    """Yield the `MultiAgentCallback`s within SB3's lists and event callbacks, in order."""
    return (each for each in all_callbacks(callback) if isinstance(each, MultiAgentCallback))
