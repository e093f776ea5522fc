"""Gymnasium envs: as a `ParallelEnv` of one agent, in wrappers that settings name, and images resized by areas.

The wrappers are those of rl-baselines3-zoo's key `env_wrapper`, by a fixed table: nothing is imported because a file
says so. Wrappers with statistics or weights of their own are not in it: no checkpoint would hold these.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array

AGENT: AgentID = "agent"
MASK = "action_mask"  # the entry of an agent's info that holds its action mask


class SingleAgentEnv(ParallelEnv):  # type: ignore[misc]
    """Wraps a Gymnasium env; its only agent is called `agent`.

    An env with a method `action_masks()` gives its agent action masks.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self.possible_agents: list[AgentID] = [AGENT]
        self.agents: list[AgentID] = []
        self.metadata = {**(env.metadata or {}), "name": env.spec.id if env.spec else type(env.unwrapped).__name__}
        self.render_mode = env.render_mode
        has_masks = env.has_wrapper_attr("action_masks")
        self._action_masks = env.get_wrapper_attr("action_masks") if has_masks else None

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The env's observation space."""
        return self.env.observation_space

    def action_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The env's action space."""
        return self.env.action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Reset the env."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.agents = [AGENT]
        return {AGENT: observation}, {AGENT: self._with_mask(info)}

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Step the env with its agent's action."""
        observation, reward, terminated, truncated, info = self.env.step(actions[AGENT])
        if terminated or truncated:
            self.agents = []
        else:
            info = self._with_mask(info)
        return {AGENT: observation}, {AGENT: reward}, {AGENT: terminated}, {AGENT: truncated}, {AGENT: info}

    def _with_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        """Add what the env's `action_masks()` returns, which is where sb3-contrib looks for masks."""
        if self._action_masks is None or MASK in info:
            return info
        return {**info, MASK: np.asarray(self._action_masks()).reshape(-1)}

    def render(self) -> Any:
        """Return what the env renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()


def resize(images: Array, height: int, width: int) -> Array:
    """Resize a batch of images.

    Every new pixel is the mean of the area that it covers; a pixel that it covers in part counts in part. For whole
    numbers of type integer the mean is rounded.

    Args:
        images: (n, old height, old width, channels).
        height: new height.
        width: new width.

    Returns:
        (n, height, width, channels) of the same dtype.
    """
    rows, columns = _weights(images.shape[1], height), _weights(images.shape[2], width)
    mixed = np.einsum("hi,nijc->nhjc", rows, images, optimize=True)
    mixed = np.einsum("wj,nhjc->nhwc", columns, mixed, optimize=True)
    resized: Array = (np.rint(mixed) if images.dtype.kind in "iu" else mixed).astype(images.dtype)
    return resized


@cache
def _weights(old: int, new: int) -> Array:
    """(new, old): the part of each old pixel in each new one; every row sums to 1."""
    edges = np.arange(new + 1) * (old / new)
    upper = np.minimum(edges[1:, None], np.arange(1, old + 1))
    lower = np.maximum(edges[:-1, None], np.arange(old))
    overlap = np.maximum(upper - lower, 0.0)
    weights: Array = (overlap / overlap.sum(axis=1, keepdims=True)).astype(np.float64)
    return weights


Env = gymnasium.Env[Any, Any]


class FrameSkip(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action, and adds up what the steps pay.

    Args:
        env: the env.
        skip: steps for each action.
    """

    def __init__(self, env: Env, skip: int = 4) -> None:
        super().__init__(env)
        self._skip = skip

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take up to `skip` steps; the end of an episode is the last one."""
        total = 0.0
        for _ in range(self._skip):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class ResizeImage(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Resizes images by averaging over areas, as Gymnasium's `ResizeObservation` does, without OpenCV.

    Args:
        env: the env; it observes images, (height, width, channels) or (height, width), of uint8.
        shape: new height and width.
    """

    def __init__(self, env: Env, shape: Sequence[int]) -> None:
        super().__init__(env)
        old = env.observation_space
        if not isinstance(old, spaces.Box) or old.dtype != np.uint8 or len(old.shape) not in (2, 3):
            raise ConfigError(
                f"ResizeObservation: the env observes {old}; accepted: images of uint8", key="env_wrapper"
            )
        self._size = int(shape[0]), int(shape[1])
        self.observation_space = spaces.Box(0, 255, (*self._size, *old.shape[2:]), np.uint8)

    def observation(self, observation: Any) -> Any:
        """Resize an image."""
        image = np.asarray(observation)
        return resize(image.reshape(1, *image.shape[:2], -1), *self._size).reshape(self.observation_space.shape)


_ATARI = "stable_baselines3.common.atari_wrappers"
_OF_ATARI = ("AtariWrapper", "ClipRewardEnv", "EpisodicLifeEnv", "FireResetEnv", "MaxAndSkipEnv", "NoopResetEnv",
             "StickyActionEnv", "WarpFrame")  # fmt: skip
_GYMNASIUM = "gymnasium.wrappers"
_OF_GYMNASIUM = ("AtariPreprocessing", "ClipAction", "ClipReward", "DelayObservation", "FilterObservation",
                 "FlattenObservation", "FrameStackObservation", "GrayscaleObservation", "MaxAndSkipObservation",
                 "RescaleAction", "RescaleObservation", "ReshapeObservation", "StickyAction", "TimeAwareObservation",
                 "TimeLimit")  # fmt: skip
_OF_MINIGRID = ("FlatObsWrapper", "FullyObsWrapper", "ImgObsWrapper", "OneHotPartialObsWrapper", "RGBImgObsWrapper",
                "RGBImgPartialObsWrapper")  # fmt: skip
_TIME_FEATURE = "sb3_contrib.common.wrappers:TimeFeatureWrapper"

# Name in a file -> the class, or `module:class` of what is imported when it is used.
WRAPPERS: Mapping[str, type[Any] | str] = {
    **{f"{_ATARI}.{name}": f"{_ATARI}:{name}" for name in _OF_ATARI},
    **{f"{_GYMNASIUM}.{name}": f"{_GYMNASIUM}:{name}" for name in _OF_GYMNASIUM},
    f"{_GYMNASIUM}.transform_observation.GrayscaleObservation": f"{_GYMNASIUM}:GrayscaleObservation",
    f"{_GYMNASIUM}.ResizeObservation": ResizeImage,
    f"{_GYMNASIUM}.transform_observation.ResizeObservation": ResizeImage,
    **{f"minigrid.wrappers.{name}": f"minigrid.wrappers:{name}" for name in _OF_MINIGRID},
    "sb3_contrib.common.wrappers.TimeFeatureWrapper": _TIME_FEATURE,
    "rl_zoo3.wrappers.TimeFeatureWrapper": _TIME_FEATURE,
    "rl_zoo3.wrappers.FrameSkip": FrameSkip,
    "rl_zoo3.wrappers.YAMLCompatResizeObservation": ResizeImage,
}

Named = tuple[str, dict[str, Any]]  # a wrapper's name and its arguments


def named_wrappers(given: Any) -> list[Named]:
    """Read what `env_wrapper` says: a name, `{name: arguments}`, or a list of these, the innermost first.

    Raises:
        ConfigError: something else, or a name that is not in the table.
    """
    named: list[Named] = []
    for each in given if isinstance(given, (list, tuple)) else [given] if given else []:
        name, arguments = next(iter(each.items())) if isinstance(each, Mapping) and len(each) == 1 else (each, {})
        if name not in WRAPPERS or not isinstance(arguments or {}, Mapping):
            accepted = f"a name, {{name: arguments}} or a list of these; the names are {', '.join(WRAPPERS)}"
            raise ConfigError(f"env_wrapper is {each!r:.200}; accepted: {accepted}", key="env_wrapper")
        named.append((name, dict(arguments or {})))
    return named


def wrapping_factory(factory: Callable[..., Any], wrappers: Sequence[Named]) -> Callable[..., Any]:
    """Return a factory of the same envs in wrappers; the factory itself without any.

    Args:
        factory: of Gymnasium envs.
        wrappers: the innermost first.
    """
    if not wrappers:
        return factory

    @functools.wraps(factory, updated=())  # it has the signature of the factory, but no `make_batched`
    def make(**arguments: Any) -> Env:
        env = factory(**arguments)
        if not isinstance(env, gymnasium.Env):
            words = f"env_wrapper: the env is a {type(env).__name__}; accepted: a Gymnasium env"
            raise ConfigError(f"{words}; processing has settings for envs of several agents", key="env_wrapper")
        for name, own in wrappers:
            env = _wrapped(env, name, own)
        return env

    return make


def _wrapped(env: Env, name: str, arguments: Mapping[str, Any]) -> Env:
    try:
        wrapper: Any = WRAPPERS[name]
        if isinstance(wrapper, str):
            module, _, attribute = wrapper.partition(":")
            wrapper = getattr(importlib.import_module(module), attribute)
        wrapped: Env = wrapper(env, **arguments)
    except ConfigError:
        raise
    except ImportError as error:
        raise ConfigError(f"env_wrapper: {name} needs a package that is missing: {error}", key="env_wrapper") from error
    except Exception as error:  # a wrapper may raise anything of an env that does not suit it
        raise ConfigError(f"env_wrapper: {name} raised: {type(error).__name__}: {error}", key="env_wrapper") from error
    return wrapped
