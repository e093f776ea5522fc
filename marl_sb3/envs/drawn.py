"""Base classes of envs: those with fixed spaces, and the built-in ones, which draw themselves or open a window."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.errors import ConfigError, EnvError, install_words, shown
from marl_sb3.types import AgentID, Array

Image: TypeAlias = npt.NDArray[np.uint8]

_MOST_KEYS = 100  # that nobody has asked for


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


def refused(name: str, accepted: str, value: Any) -> ConfigError:
    """Return the error for an argument of an env that is not accepted."""
    return ConfigError(f"{name} must be {accepted}; received {shown(value)}", key=f"env.{name}")


def blend(patch: Image, depths: Array, colour: tuple[int, int, int], opacity: float = 1.0) -> None:
    """Paint a shape into a patch of a picture, in place.

    Args:
        patch: (h, w, 3) uint8.
        depths: (h, w); pixels inwards from the shape's outline, negative outside.
        colour: of the shape: red, green and blue, 0 to 255.
        opacity: 0 to 1.
    """
    # A pixel that the outline cuts through is covered in part: that is what smooths the edge.
    cover = opacity * np.clip(depths + 0.5, 0.0, 1.0)[..., None]
    patch[:] = np.rint(cover * np.array(colour) + (1.0 - cover) * patch)


class EnvWindow:
    """A window that shows images at a steady rate; the first image opens it.

    After the user has closed it, further images are dropped and the program continues.

    Args:
        fps: images per second, at most; 0: as fast as they come.
    """

    def __init__(self, title: str, fps: int) -> None:
        self._pygame = import_pygame()
        self._title = title
        self._fps = fps
        self._clock = self._pygame.time.Clock()
        self._screen: Any = None
        self._keys: deque[str] = deque(maxlen=_MOST_KEYS)
        self.is_closed = False

    def show(self, image: Image) -> None:
        """Show a (height, width, 3) uint8 image, then wait for the rest of 1 / fps seconds."""
        if self.is_closed:
            return
        if self._screen is None:
            self._pygame.display.init()
            self._screen = self._pygame.display.set_mode((image.shape[1], image.shape[0]))
            self._pygame.display.set_caption(self._title)
        self._take_events()
        if self.is_closed:
            return
        self._pygame.surfarray.blit_array(self._screen, image.swapaxes(0, 1))
        self._pygame.display.flip()
        self._clock.tick(self._fps)

    def pressed(self) -> list[str]:
        """Return the names of the keys pressed since the last call, such as `space`; notice that it was closed."""
        if self._screen is not None:
            self._take_events()
        keys = list(self._keys)
        self._keys.clear()
        return keys

    def _take_events(self) -> None:
        # All of them, since a full queue would drop the next QUIT.
        for event in self._pygame.event.get():
            if event.type == self._pygame.QUIT:
                self.close()
                return
            if event.type == self._pygame.KEYDOWN:
                self._keys.append(self._pygame.key.name(event.key))

    def close(self) -> None:
        """Close the window; closing it twice is fine."""
        if self._screen is not None:
            # Only the display, because other code in this process may use pygame.
            self._pygame.display.quit()
        self._screen = None
        self.is_closed = True


class FixedSpaces:
    """An env whose agents have the same spaces all the time, always the same objects."""

    observation_spaces: Mapping[AgentID, spaces.Space[Any]]  # by agent
    action_spaces: Mapping[AgentID, spaces.Space[Any]]  # by agent

    def observation_space(self, agent: AgentID) -> Any:
        """Return the agent's observation space."""
        return self.observation_spaces[agent]

    def action_space(self, agent: AgentID) -> Any:
        """Return the agent's action space."""
        return self.action_spaces[agent]


Infos = dict[AgentID, dict[str, Any]]
StepResult = tuple[dict[AgentID, Array], dict[AgentID, float], dict[AgentID, bool], dict[AgentID, bool], Infos]


class DrawnEnv(FixedSpaces, ParallelEnv[AgentID, Array, Any]):  # type: ignore[misc]  # PettingZoo ships no types.
    """An env that draws its state. All its agents act in each step of an episode, which truncates all of them.

    Args:
        render_mode: one of those in `metadata`, or None.

    Raises:
        ConfigError: there is no such mode, or pygame is missing for "human".
    """

    title: ClassVar[str]  # the name of the env in messages, and the title of its window
    _state: Any = None  # None before the first reset
    _rng: np.random.Generator | None = None

    def __init__(self, render_mode: str | None) -> None:
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise refused("render_mode", f"one of {', '.join(modes)} or None", render_mode)
        if render_mode == "human":
            import_pygame()  # Fails now if pygame is missing, and not in the middle of an episode.
        self.render_mode = render_mode
        self.agents: list[AgentID] = []
        self._window: EnvWindow | None = None

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Array], Infos]:
        """Start an episode. Without a seed, the current generator is used further; `options` are ignored."""
        if seed is not None or self._rng is None:
            self._rng = np.random.default_rng(seed)
        self._state = self._first_state(self._rng)
        self.agents = list(self.possible_agents)
        if self.render_mode == "human":
            self.render_state(self._state)
        return dict(zip(self.agents, self._observed(), strict=True)), {agent: {} for agent in self.agents}

    def _stepped(self, rewards: Sequence[float], ended: bool, infos: Infos) -> StepResult:
        """Return the result of a step, from the rewards of all agents and whether the episode is over."""
        if ended:
            self.agents = []
        if self.render_mode == "human":
            self.render_state(self._state)
        agents = self.possible_agents
        return (
            dict(zip(agents, self._observed(), strict=True)),
            dict(zip(agents, rewards, strict=True)),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, ended),
            infos,
        )

    def _read(self, actions: Mapping[AgentID, Any], read: Callable[[Any], Any], accepted: str, step: int) -> list[Any]:
        """Return what `read` makes of each agent's action; it raises TypeError or ValueError for what is not accepted.

        Raises:
            EnvError: an action is missing or not accepted, or there is no such agent.
        """
        where, agents, found = f"{self.title}, step {step}", self.possible_agents, []
        if unknown := sorted(map(str, set(actions).difference(agents))):
            raise EnvError(f"{where}: no such agent: {', '.join(unknown)}; agents: {', '.join(agents)}")
        for agent in agents:
            try:
                found.append(read(actions[agent]))
            except (KeyError, TypeError, ValueError) as error:
                received = repr(actions[agent]) if agent in actions else "no action"
                raise EnvError(f"{where}: {agent} must act {accepted}; received {received}") from error
        return found

    @abstractmethod
    def _first_state(self, rng: np.random.Generator) -> Any:
        """Return the state at the start of an episode."""

    @abstractmethod
    def _observed(self) -> Array:
        """Return the observation of each agent, (A, ...)."""

    @abstractmethod
    def render_state(self, state: Any) -> Array | str | None:
        """Render an env in such a state; see `render`."""

    @abstractmethod
    def scene(self) -> dict[str, Any]:
        """Return what there is to draw in the current state as plain data, for pages that draw it in any size."""

    def render(self) -> Array | str | None:
        """Return the picture or text of the current state; with "human", show it and return None."""
        if self.render_mode is None:
            gymnasium.logger.warn(f"{self.title}: render() draws nothing without a render_mode")
            return None
        self._require_reset("render()")
        return self.render_state(self._state)

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

    def _require_episode(self) -> None:
        if not self.agents:  # as also before the first reset
            self._require_reset("step()")
            raise EnvError(f"{self.title}: step() after the end of the episode; call reset() first")
