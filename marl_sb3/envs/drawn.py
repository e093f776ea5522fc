"""The base class of the built-in envs: spaces by agent, and pictures of the current state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.envs.window import EnvWindow, Image, check_render_mode
from marl_sb3.errors import EnvError
from marl_sb3.types import AgentID, Array


class DrawnEnv(ParallelEnv[AgentID, Array, Any]):  # type: ignore[misc]  # PettingZoo ships no types.
    """An env that draws its state.

    Args:
        render_mode: one of those in `metadata`, or None.

    Attributes:
        title: the name of the env in messages, and the title of its window.
        observation_spaces: by agent.
        action_spaces: by agent.

    Raises:
        ConfigError: there is no such mode, or pygame is missing for "human".
    """

    title: ClassVar[str]
    observation_spaces: Mapping[AgentID, spaces.Space[Any]]
    action_spaces: Mapping[AgentID, spaces.Space[Any]]
    _state: Any = None  # None before the first reset

    def __init__(self, render_mode: str | None) -> None:
        check_render_mode(render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self.agents: list[AgentID] = []
        self._window: EnvWindow | None = None

    def observation_space(self, agent: AgentID) -> Any:
        """Return the agent's observation space, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: AgentID) -> Any:
        """Return the agent's action space, always the same object."""
        return self.action_spaces[agent]

    @abstractmethod
    def _draw(self) -> Array | str | None:
        """Render the current state; see `render`."""

    def render(self) -> Array | str | None:
        """Return the picture or text of the current state; with "human", show it and return None."""
        if self.render_mode is None:
            gymnasium.logger.warn(f"{self.title}: render() draws nothing without a render_mode")
            return None
        self._require_reset("render()")
        return self._draw()

    def _shown(self, image: Image) -> Image | None:
        """Return a picture; with "human", show it and return None."""
        if self.render_mode == "rgb_array":
            return image
        if self._window is None:
            self._window = EnvWindow(self.title, fps=self.metadata["render_fps"])
        self._window.show(image)
        return None

    def _draw_if_human(self) -> None:
        if self.render_mode == "human":
            self._draw()

    def close(self) -> None:
        """Close the window, if one is open; the env can be used further."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _require_reset(self, caller: str) -> None:
        if self._state is None:
            raise EnvError(f"{self.title}: {caller} before the first reset(); call reset() first")

    def _require_episode(self) -> None:
        self._require_reset("step()")
        if not self.agents:
            raise EnvError(f"{self.title}: step() after the end of the episode; call reset() first")
