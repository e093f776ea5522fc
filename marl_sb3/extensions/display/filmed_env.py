"""Film the first episodes of an env, with their last frames, and with a caption below each frame."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marl_sb3.core.envs.converted import BENEATH
from marl_sb3.core.envs.faults import in_words
from marl_sb3.core.envs.registry import EnvFactory, env_factory, make_env
from marl_sb3.errors import ConfigError, EnvRaisedError, MarlSb3Error, is_disk_full
from marl_sb3.systems import lacks_display
from marl_sb3.types import AgentID, Array

Colour = tuple[int, int, int]

_NARROWEST_PX = 120  # narrower frames get no caption: its text would not be readable
_MOST_AGENTS = 8  # of more agents, the sum of returns is shown
_CELL_PX, _PADDING_PX = 150, 6
_PAPER: Colour = (255, 255, 255)
_INK: Colour = (40, 44, 52)
_RIM: Colour = (190, 196, 204)


@dataclass
class Scene:
    """What a caption says about a frame."""

    episode: int  # counted from 1
    step: int  # env steps since the start of the episode
    returns: dict[AgentID, float]  # return of each agent so far
    players: Mapping[AgentID, str] = field(default_factory=dict)  # the names of who plays, where two play each other
    tally: str = ""  # how often they have won


def captioned(frame: Array, scene: Scene, legend: Mapping[str, Colour]) -> Array:
    """Return a frame with a caption below it; its height is the same for all scenes of the same agents.

    Args:
        frame: (height, width, 3) uint8; returned unchanged if it is too narrow for text.
        legend: colours by name. An agent's colour is drawn before its return; all others are listed at the end.

    Returns:
        (height + caption, width, 3) uint8.
    """
    width = frame.shape[1]
    if width < _NARROWEST_PX:
        return frame
    cells = _cells(scene, legend)
    columns = max(1, width // (_CELL_PX * (2 if scene.players else 1)))  # names of players are long
    size_px = 14 if width >= 2 * _CELL_PX else 11
    line_px = size_px + _PADDING_PX
    height = (-(-len(cells) // columns) * line_px + _PADDING_PX + 1) // 2 * 2  # even: video encoders need even sides
    return np.concatenate([frame, _strip(cells, columns, (width, height), size_px)])


def is_picture(frame: Any) -> bool:
    """Whether a frame is an array (height, width, 3) of uint8."""
    return isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3


def legend_of(metadata: Mapping[str, Any]) -> dict[str, Colour]:
    """The legend in an env's metadata: `metadata["legend"] = {"agent1": (29, 91, 214), ...}`, RGB from 0 to 255."""
    entries: Any = metadata.get("legend")
    colours: list[Any] = list(entries.values()) if isinstance(entries, Mapping) else [None]
    triples = all(isinstance(each, Sequence) and len(each) == 3 for each in colours)
    if not triples or not all(isinstance(part, int) and 0 <= part < 256 for each in colours for part in each):
        return {}  # the env uses this key for something else
    return {str(name): tuple(colour) for name, colour in entries.items()}


def _cells(scene: Scene, legend: Mapping[str, Colour]) -> list[tuple[str, Colour | None]]:
    """Texts, each with the colour drawn before it."""
    cells: list[tuple[str, Colour | None]] = [(f"episode {scene.episode}, step {scene.step}", None)]
    if len(scene.returns) > _MOST_AGENTS:
        cells.append((f"{len(scene.returns)} agents: {_score(sum(scene.returns.values()))}", None))
        return cells + list(legend.items())
    names = {agent: f"{agent} ({scene.players[agent]})" if scene.players else agent for agent in scene.returns}
    cells += [(f"{names[agent]}: {_score(value)}", legend.get(agent)) for agent, value in scene.returns.items()]
    cells += [(scene.tally, None)] if scene.players else []  # an empty one keeps its place
    return cells + [(name, colour) for name, colour in legend.items() if name not in scene.returns]


def _score(value: float) -> str:
    text = f"{round(value, 2) + 0.0:.2f}"  # never -0
    return text.rstrip("0").rstrip(".")


def _strip(cells: Sequence[tuple[str, Colour | None]], columns: int, size: tuple[int, int], font_px: int) -> Array:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(font_px)
    draw.line((0, 0, size[0], 0), fill=_RIM)
    width_px = size[0] // columns
    for index, (text, colour) in enumerate(cells):
        row, column = divmod(index, columns)
        left, top = column * width_px + _PADDING_PX, row * (font_px + _PADDING_PX) + _PADDING_PX // 2 + 1
        if colour is not None:
            draw.rectangle((left, top + 3, left + font_px - 4, top + font_px - 1), fill=colour, outline=_RIM)
            left += font_px + 2
        room = (column + 1) * width_px - left
        draw.text((left, top), _cut(text, lambda text: draw.textlength(text, font), room), fill=_INK, font=font)
    return np.asarray(image)


def _cut(text: str, length: Any, room: int) -> str:
    """Shorten a text that is too long in its middle, because a return stands at its end."""
    shown, head = text, len(text) - 1
    while head > 0 and length(shown) > room:
        head -= 1
        name, colon, rest = text.rpartition(":")
        shown = f"{name[:head]}..{colon}{rest}" if colon and head < len(name) else f"{text[:head]}.."
    return shown


OnFrame = Callable[[Any], None]  # its argument is what `render()` returned, with a caption

_RENDER_MODE = "rgb_array"


class FilmedEnv(BaseParallelWrapper):  # type: ignore[misc]
    """Renders after the reset and each step of the first episodes, and adds a caption to each frame.

    It wraps an env inside a vec env. The vec env resets an env as soon as its episode ends, so that the last frame of
    an episode cannot be rendered from outside.

    Args:
        env: an env with `render_mode="rgb_array"`.
    """

    def __init__(self, env: ParallelEnv, on_frame: OnFrame, n_episodes: int) -> None:
        super().__init__(env)
        self._on_frame = on_frame
        self._n_episodes = n_episodes
        self._scene = Scene(0, 0, {})
        self._legend = legend_of(env.metadata)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Reset the env and film the first frame of the episode."""
        returned: tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]] = self.env.reset(seed=seed, options=options)
        self._scene = Scene(self._scene.episode + 1, 0, dict.fromkeys(self.env.possible_agents, 0.0))
        self._film()
        return returned

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[Mapping[str, Any], ...]:
        """Step the env and film the frame after the step."""
        returned: tuple[Mapping[str, Any], ...] = self.env.step(actions)
        self._scene.step += 1
        for agent, reward in returned[1].items():
            beneath = returned[4].get(agent, {}).get(BENEATH)  # of wrappers that may clip rewards
            self._scene.returns[agent] = beneath[0] if beneath else self._scene.returns[agent] + reward
        self._film()
        return returned

    def _film(self) -> None:
        if self._scene.episode > self._n_episodes:
            return
        frame = rendered(self.env)
        if is_picture(frame):  # `VideoFile.add` refuses anything else
            frame = captioned(frame, self._scene, self._legend)
        try:
            self._on_frame(frame)
        except OSError as error:
            if is_disk_full(error):
                raise
            # As an error of this package, so that it is not reported as an exception of the env.
            why = str(error).partition("\n")[0]  # imageio adds the command line of ffmpeg
            raise MarlSb3Error(f"the video cannot be written: {why}") from error


def rendered(env: ParallelEnv) -> Any:
    """Return what an env renders, of a picture its red, green and blue.

    Raises:
        ConfigError: a package is missing, or the env renders nothing.
        EnvRaisedError: the env raised something else; the message says how to render where there is no display.
    """
    try:
        image = env.render()
    except (ImportError, DependencyNotInstalled, NotImplementedError) as error:
        way = "" if isinstance(error, (ModuleNotFoundError, NotImplementedError)) else _way()  # no display helps there
        raise ConfigError(f"the env cannot render: {error}{way}", key="video") from error
    except (MarlSb3Error, MemoryError, OSError):
        raise
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1].line if not str(error) else ""
        words = f"the env cannot render: {in_words(error, 'render()')}{f', at `{line}`' if line else ''}"
        raise EnvRaisedError(f"{words}{_way()}") from error
    is_transparent = isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[2] == 4
    return image[..., :3] if is_transparent else image


def _way() -> str:
    """Say how to render where there is no display."""
    way = "MUJOCO_GL=egl in the environment lets MuJoCo draw without one, and xvfb-run before the command all others"
    return f"; there is no display: {way}" if lacks_display() else ""


def filming_factory(env: str | EnvFactory, on_frame: OnFrame, n_episodes: int) -> EnvFactory:
    """Return a factory of the same envs that films env 0.

    The factory has no batched env: its envs are stepped one by one, and play the same episodes.

    Args:
        env: an env id, or a factory of `ParallelEnv`s.

    Raises:
        ConfigError: from this function or the factory; the env is unknown, or does not render images.
    """
    factory = env_factory(env)

    def make(env_index: int, **env_kwargs: Any) -> ParallelEnv:
        if env_index != 0:
            return make_env(factory, env_index, env_kwargs)
        return FilmedEnv(with_images(factory, env_kwargs), on_frame, n_episodes)

    return make


def with_images(factory: EnvFactory, env_kwargs: Mapping[str, Any]) -> ParallelEnv:
    """Make env 0 of a factory with `render_mode="rgb_array"`.

    Raises:
        ConfigError: it does not render images.
    """
    try:
        with warnings.catch_warnings():
            # Gymnasium warns of a missing render mode; below, it is an error.
            warnings.filterwarnings("ignore", message=".*initialised with render_mode")
            env = make_env(factory, 0, {**env_kwargs, "render_mode": _RENDER_MODE})
    except EnvRaisedError as error:
        raise EnvRaisedError(f"{error}{_way()}") from error
    except ConfigError as error:
        if "'render_mode'" not in str(error):
            raise
        raise ConfigError(f"a video needs an env that takes render_mode='rgb_array': {error}", key="video") from error
    modes = env.metadata.get("render_modes")
    if modes is not None and _RENDER_MODE not in modes:
        env.close()
        raise ConfigError(
            f"a video needs render_mode 'rgb_array'; the env has {', '.join(modes) or 'none'}", key="video"
        )
    return env
