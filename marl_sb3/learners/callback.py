"""Callbacks that know what several agents are: SB3's `BaseCallback` with two more moments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback

from marl_sb3.metrics import Episode, Result

if TYPE_CHECKING:
    from marl_sb3.learners.multi_agent_algorithm import MultiAgentAlgorithm


class MultiAgentCallback(BaseCallback):
    """An SB3 callback that also hears of finished episodes and iterations.

    `self.model` is the `MultiAgentAlgorithm`, `self.num_timesteps` counts env steps. In `_on_step`,
    `self.locals["step"]` is the `EnvStep` just taken; `dones` ((E,) bool: env episodes that ended), `rewards`
    ((E, A)) and `infos` are there for callbacks written for SB3.
    """

    @property
    def algorithm(self) -> MultiAgentAlgorithm:
        """`self.model`, by its type."""
        return self.model  # type: ignore[return-value]

    def _on_step(self) -> bool:
        return True

    def on_episode_end(self, episode: Episode) -> None:
        """Called once for each env episode that ends, before `on_step` of that step."""

    def on_iteration_end(self, result: Result) -> bool:
        """Called after each iteration with its result; False ends the training."""
        return True


def multi_agent_callbacks(callback: Any) -> Iterator[MultiAgentCallback]:
    """The `MultiAgentCallback`s within SB3's lists and event callbacks, in order."""
    if isinstance(callback, MultiAgentCallback):
        yield callback
    elif isinstance(callback, CallbackList):
        for child in callback.callbacks:
            yield from multi_agent_callbacks(child)
    elif isinstance(callback, EventCallback):
        yield from multi_agent_callbacks(callback.callback)
