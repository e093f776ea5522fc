"""Film the first episodes of an env, with their last frames."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium.error import DependencyNotInstalled
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marl_sb3.envs.registry import EnvFactory, env_factory, make_env
from marl_sb3.errors import ConfigError, MarlSb3Error, is_disk_full
from marl_sb3.types import AgentID
from marl_sb3.wrappers.caption import Scene, captioned, is_picture, legend_of

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
        self._episode = 0  # counted from 1
        self._step = 0
        self._returns: dict[AgentID, float] = {}
        self._legend = legend_of(env.metadata)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Reset the env and film the first frame of the episode."""
        returned: tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]] = self.env.reset(seed=seed, options=options)
        self._episode += 1
        self._step, self._returns = 0, dict.fromkeys(self.env.possible_agents, 0.0)
        self._film()
        return returned

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[Mapping[str, Any], ...]:
        """Step the env and film the frame after the step."""
        returned: tuple[Mapping[str, Any], ...] = self.env.step(actions)
        self._step += 1
        for agent, reward in returned[1].items():
            self._returns[agent] += reward
        self._film()
        return returned

    def _film(self) -> None:
        if self._episode <= self._n_episodes:
            frame = _rendered(self.env)
            if is_picture(frame):  # `VideoFile.add` refuses anything else
                frame = captioned(frame, Scene(self._episode, self._step, self._returns), self._legend)
            self._write(frame)

    def _write(self, frame: Any) -> None:
        try:
            self._on_frame(frame)
        except OSError as error:
            if is_disk_full(error):
                raise
            # As an error of this package, so that it is not reported as an exception of the env.
            why = str(error).partition("\n")[0]  # imageio adds the command line of ffmpeg
            raise MarlSb3Error(f"the video cannot be written: {why}") from error


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
        return FilmedEnv(_with_images(factory, env_kwargs), on_frame, n_episodes)

    return make


def _with_images(factory: EnvFactory, env_kwargs: Mapping[str, Any]) -> ParallelEnv:
    try:
        with warnings.catch_warnings():
            # Gymnasium warns of a missing render mode; below, it is an error.
            warnings.filterwarnings("ignore", message=".*initialised with render_mode")
            env = make_env(factory, 0, {**env_kwargs, "render_mode": _RENDER_MODE})
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


def _rendered(env: Any) -> Any:
    try:
        return env.render()
    except (ImportError, DependencyNotInstalled) as error:
        raise ConfigError(f"the env cannot render: {error}", key="video") from error
