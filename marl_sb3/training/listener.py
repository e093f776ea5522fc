"""Pass the steps of a rollout to the counters and to the callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.metrics import Episode
from marl_sb3.sb3.private import has_step_hook
from marl_sb3.training.callback import multi_agent_callbacks
from marl_sb3.training.counters import Counters
from marl_sb3.vec_env.step import VecStep


class CallbackListener:
    """A `StepListener` that counts steps and episodes, and calls the callbacks."""

    def __init__(self, model: Any, counters: Counters, callback: BaseCallback) -> None:
        self._model = model
        self._counters = counters
        self._callback = callback
        self.changes_policies = has_step_hook(callback)

    def on_step(self, step: VecStep, episodes: Sequence[Episode]) -> bool:
        """See `StepListener.on_step`."""
        self._counters.count_step(step, len(episodes))
        for episode in episodes:
            for hearing in multi_agent_callbacks(self._callback):
                hearing.on_episode_end(episode)
        self._callback.update_locals(
            {
                "self": self._model,
                "step": step,
                "rewards": step.rewards,
                "dones": step.episode_done,
                "infos": step.infos,
            }
        )
        return self._callback.on_step()
