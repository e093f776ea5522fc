"""What an env looks like while it is played live: the numbers of a scene, or pictures; and films."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from typing import Any

from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marl_sb3.core.envs import EnvFactory, TurnBasedEnv, env_factory, make_env
from marl_sb3.envs import DrawnEnv
from marl_sb3.errors import MarlSb3Error, described
from marl_sb3.extensions.display import FilmedEnv, VideoFile, captioned, is_picture, with_images
from marl_sb3.types import AgentID, Array
from marl_sb3.wrappers import innermost_env

View = dict[str, Any] | bytes | None  # a scene, a PNG or JPEG file, or nothing

_MOST_PIXELS = 100_000_000  # of a film; it needs a byte for each until it is written. 600 frames of the arena


class ShownEnv(FilmedEnv):
    """Keeps views of an env: the vec env resets it as soon as an episode ends, so nobody can look from outside.

    Args:
        env: with `render_mode="rgb_array"`, if it takes that.
        why_not: why it has no pictures; empty if it has.
    """

    def __init__(self, env: ParallelEnv, why_not: str) -> None:
        super().__init__(env, lambda _: None, sys.maxsize)
        inner = innermost_env(env)
        self.takes_turns = _takes_turns(env)  # whether one agent acts in each step
        self.scene = inner.scene if isinstance(inner, DrawnEnv) else None  # its method `scene`, if it draws itself
        self.why_not = why_not  # the argument; a sentence too if `render()` has failed since
        self.shows = True  # whether steps are looked at; resets always are
        self.first: View = None  # view after the latest reset
        self.latest: View = None  # view after the latest step
        self.film: VideoFile | None = None  # gets a frame of each reset and step, if there is one, until `film_is_full`
        self.film_is_full = False

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Reset the env, and look at it."""
        ended, shows, self.shows = self.latest, self.shows, True
        returned = super().reset(seed, options)
        self.first, self.latest, self.shows = self.latest, ended, shows
        return returned

    def _film(self) -> None:
        """Look at the env; called after each reset and step."""
        needs_picture = self.film is not None or (self.shows and self.scene is None)
        frame = self._frame() if needs_picture else None
        self.latest = None
        if self.shows:
            self.latest = self.scene() if self.scene is not None else None if frame is None else _as_file(frame)
        if self.film is not None and frame is not None and not self.film_is_full:
            self.film.add(captioned(frame, self._scene, self._legend))
            self.film_is_full = self.film.num_frames * frame[..., 0].size > _MOST_PIXELS

    def _frame(self) -> Array | None:
        """Return what the env renders; None, and the reason in `why_not`, if that is no picture."""
        frame = None
        if not self.why_not:
            try:
                frame = self.env.render()
                self.why_not = "" if is_picture(frame) else "render() returns no array (height, width, 3) of uint8"
            except Exception as error:  # in the code of the env, which can be played without pictures
                self.why_not = f"render() raised {described(error)}"
        return None if self.why_not else frame


def _takes_turns(env: Any) -> bool:
    while isinstance(env, BaseParallelWrapper):
        if isinstance(env, TurnBasedEnv):
            return True
        env = env.env
    return False


def _as_file(picture: Array) -> bytes:
    """Return a picture as PNG if it has few colours, which JPEG would blur; else as JPEG."""
    from PIL import Image

    image, file = Image.fromarray(picture), io.BytesIO()
    if image.getcolors(256) is not None:
        image.save(file, "PNG", compress_level=1)
    else:
        image.save(file, "JPEG", quality=88)
    return file.getvalue()


def make_shown_env(env: str | EnvFactory, env_kwargs: Mapping[str, Any]) -> ShownEnv:
    """Make an env that is shown, with pictures if it renders them.

    Raises:
        ConfigError: the env is unknown, or its arguments are wrong.
    """
    factory = env_factory(env)
    try:
        return ShownEnv(with_images(factory, env_kwargs), "")
    except MarlSb3Error as error:
        return ShownEnv(make_env(factory, 0, env_kwargs), str(error))
