"""Base class of the built-in envs, which draw themselves: as an array, as text, or in a window."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.errors import ConfigError, EnvError, install_words
from marl_sb3.types import AgentID, Array

Image: TypeAlias = npt.NDArray[np.uint8]


def import_pygame() -> Any:
    """Return the pygame module; raise ConfigError with the way to install it where it is missing."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        with warnings.catch_warnings():
            # pygame 2.6 imports pkg_resources, of which some versions of setuptools warn.
            warnings.filterwarnings("ignore", message=".*pkg_resources.*")
            import pygame
    except ImportError as error:
        raise ConfigError(
            f"render_mode 'human' needs pygame; {install_words('human')}", key="env.render_mode"
        ) from error
    return pygame


def check_render_mode(render_mode: str | None, accepted: Sequence[str]) -> None:
    """Refuse a mode that an env does not have, and "human" where pygame is missing."""
    if render_mode is not None and render_mode not in accepted:
        raise ConfigError(
            f"render_mode must be one of {', '.join(accepted)} or None; received {render_mode!r}",
            key="env.render_mode",
        )
    if render_mode == "human":
        import_pygame()  # Fails now if pygame is missing, and not in the middle of an episode.


class EnvWindow:
    """A window that shows images at a steady rate; the first image opens it.

    After the user has closed it, further images are dropped and the program continues.

    Args:
        fps: images per second, at most.
    """

    def __init__(self, title: str, fps: int) -> None:
        self._pygame = import_pygame()
        self._title = title
        self._fps = fps
        self._clock = self._pygame.time.Clock()
        self._screen: Any = None
        self.is_closed = False

    def show(self, image: Image) -> None:
        """Show a (height, width, 3) uint8 image, then wait for the rest of 1 / fps seconds."""
        if self.is_closed:
            return
        if self._screen is None:
            self._open(image)
        if self._pygame.event.get(self._pygame.QUIT):
            self.close()
            return
        self._pygame.event.clear()  # Keys and the mouse are not used; a full queue would drop the next QUIT.
        self._pygame.surfarray.blit_array(self._screen, image.swapaxes(0, 1))
        self._pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Close the window; closing it twice is fine."""
        if self._screen is not None:
            # Only the display, because other code in this process may use pygame.
            self._pygame.display.quit()
        self._screen = None
        self.is_closed = True

    def _open(self, image: Image) -> None:
        self._pygame.display.init()
        self._screen = self._pygame.display.set_mode((image.shape[1], image.shape[0]))
        self._pygame.display.set_caption(self._title)


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

    def close(self) -> None:
        """Close the window, if one is open; the env can be used further."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _require_reset(self, caller: str) -> None:
        if self._state is None:
            raise EnvError(f"{self.title}: {caller} before the first reset(); call reset() first")

    def _no_episode(self) -> EnvError:
        """Make the error for a step without an episode."""
        self._require_reset("step()")
        return EnvError(f"{self.title}: step() after the end of the episode; call reset() first")
