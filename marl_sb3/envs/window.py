"""The window in which built-in envs show their pictures; it needs pygame."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from marl_sb3.errors import ConfigError, install_words

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
