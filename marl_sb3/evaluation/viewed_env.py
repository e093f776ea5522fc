"""What an env looks like while it is played live: the numbers of a scene, pictures, text; and films."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marl_sb3.core.envs.registry import EnvFactory, env_factory, make_env
from marl_sb3.envs.drawn import DrawnEnv
from marl_sb3.envs.turn_based import TurnBasedEnv
from marl_sb3.errors import ConfigError, MarlSb3Error, described
from marl_sb3.extensions.display.filmed_env import FilmedEnv, Scene, captioned, is_picture, rendered, with_images
from marl_sb3.extensions.display.video import VideoFile
from marl_sb3.types import AgentID, Array
from marl_sb3.wrappers.checks import innermost_env

_MOST_PIXELS = 100_000_000  # of a film; it needs a byte for each until it is written. 600 frames of the arena


@dataclass(frozen=True)
class View:
    """What an env shows after a reset or a step."""

    caption: Scene  # episode, step and returns so far
    scene: Mapping[str, Any] | None = None  # what its `scene()` returns, if it draws itself
    image: Array | None = None  # (height, width, 3) uint8, if it renders images
    text: str | None = None  # what it renders, if that is text


class ViewedEnv(FilmedEnv):
    """Keeps views of an env: the vec env resets it as soon as an episode ends, so nobody can look from outside.

    Args:
        env: the env.
        render_mode: that it was made with: `rgb_array`, `ansi`, `human`, with which it shows itself, or None.
        why_not: why it has no pictures; empty if it has.
        has_to_render: whether it is an error of the env that it does not render what its render mode says. Else it is
            played without, and `why_not` says why.
    """

    def __init__(
        self, env: ParallelEnv, render_mode: str | None, why_not: str = "", *, has_to_render: bool = False
    ) -> None:
        super().__init__(env, lambda _: None, sys.maxsize)
        inner = innermost_env(env)
        self._render_mode, self._has_to_render = render_mode, has_to_render
        self.takes_turns = _takes_turns(env)  # whether one agent acts in each step
        self.scene = inner.scene if isinstance(inner, DrawnEnv) else None  # its method `scene`, if it draws itself
        self.why_not = why_not  # the argument; a sentence too if `render()` has failed since
        self.looks = True  # whether steps are looked at; resets always are
        self.first: View | None = None  # view after the latest reset
        self.latest: View | None = None  # view after the latest step; None: nobody looked
        self.film: VideoFile | None = None  # gets a frame of each reset and step, if there is one, until `film_is_full`
        self.film_is_full = False

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Reset the env, and look at it."""
        ended, looks, self.looks = self.latest, self.looks, True
        returned = super().reset(seed, options)
        self.first, self.latest, self.looks = self.latest, ended, looks
        return returned

    def _film(self) -> None:
        """Look at the env; called after each reset and step."""
        is_drawn = self.scene is not None and not self._has_to_render
        seen = self._rendered() if self.film is not None or (self.looks and not is_drawn) else None
        image = seen if is_picture(seen) else None
        self.latest = None
        if self.looks:
            caption = Scene(self._scene.episode, self._scene.step, dict(self._scene.returns))
            scene = self.scene() if self.scene is not None else None
            text = seen if isinstance(seen, str) else None
            self.latest = View(caption, scene, None if is_drawn or image is None else image.copy(), text)
        if self.film is not None and image is not None and not self.film_is_full:
            self.film.add(self.captioned(image, self._scene))
            self.film_is_full = self.film.num_frames * image[..., 0].size > _MOST_PIXELS

    def _rendered(self) -> Any:
        """Return what the env renders; None, and the reason in `why_not`, if that cannot be shown.

        Raises:
            ConfigError: it has to render, and does not.
        """
        if self.why_not or self._render_mode == "human":
            return None
        try:
            image = rendered(self.env) if self._has_to_render else self.env.render()
        except Exception as error:  # in the code of the env, which may be played without pictures
            self.why_not = f"render() raised {described(error)}"
            if self._has_to_render:
                raise
            return None
        is_text = self._render_mode == "ansi" and isinstance(image, str)
        if is_text or is_picture(image):
            return image
        words = f"render() of the env returned {type(image).__name__}"
        self.why_not = f"{words}; accepted: an array (height, width, 3) of uint8, or text in render mode ansi"
        if self._has_to_render:
            raise ConfigError(self.why_not, key="env")
        return None

    def captioned(self, image: Array, caption: Scene) -> Array:
        """Return a picture with a caption below it."""
        return captioned(image, caption, self._legend)


def _takes_turns(env: Any) -> bool:
    while isinstance(env, BaseParallelWrapper):
        if isinstance(env, TurnBasedEnv):
            return True
        env = env.env
    return False


def view_if_drawn(env: str | EnvFactory, env_kwargs: Mapping[str, Any]) -> ViewedEnv:
    """Make an env that is looked at, with pictures if it renders them.

    Raises:
        ConfigError: the env is unknown, or its arguments are wrong.
    """
    factory = env_factory(env)
    try:
        return ViewedEnv(with_images(factory, env_kwargs), "rgb_array")
    except MarlSb3Error as error:
        return ViewedEnv(make_env(factory, 0, env_kwargs), None, str(error))
