"""Wrappers of envs that settings name, by a fixed table: nothing is imported because a file says so.

Those of Gymnasium envs are the ones of rl-baselines3-zoo's key `env_wrapper`. Wrappers with statistics or weights of
their own are not among them: no checkpoint would hold these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import BaseParallelWrapper
from typing_extensions import override

from marl_sb3.core.envs.converted import BENEATH, SingleAgentEnv, resize
from marl_sb3.doors import EnvKind, imported
from marl_sb3.envs.tuples import KIND as TUPLES
from marl_sb3.envs.tuples import AsAgents
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.types import AgentID

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


class WeighRewards(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Makes one reward of several: their weighted sum. The episode's sum of each is a metric, reward_0 and so on.

    Args:
        env: the env; it pays an array in each step.
        weight: of each number; None: 1.
    """

    def __init__(self, env: Env, weight: Sequence[float] | None = None) -> None:
        super().__init__(env)
        self._weight = weight
        self.metadata = _with_metrics(env.metadata, weight)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env; the info has each reward."""
        observation, rewards, terminated, truncated, info = self.env.step(action)
        reward, parts = _weighed(rewards, self._weight)
        return observation, reward, terminated, truncated, {**info, **parts}


class WeighRewardsOfAgents(BaseParallelWrapper):  # type: ignore[misc]
    """Does for each agent of a `ParallelEnv` what `WeighRewards` does for the one of a Gymnasium env."""

    def __init__(self, env: ParallelEnv, weight: Sequence[float] | None = None) -> None:
        super().__init__(env)
        self._weight = weight
        self.metadata = _with_metrics(env.metadata, weight)

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Step the env; the info of each agent has its rewards."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        paid, noted = {}, dict(infos)
        for agent, of_agent in rewards.items():
            paid[agent], parts = _weighed(of_agent, self._weight)
            noted[agent] = {**infos.get(agent, {}), **parts}
        return observations, paid, terminated, truncated, noted


def _weighed(rewards: Any, weight: Sequence[float] | None) -> tuple[float, dict[str, float]]:
    """Return the weighted sum of several rewards, and each of them by its name.

    Raises:
        ConfigError: there are not as many as weights.
    """
    parts = np.atleast_1d(rewards)
    weights: Any = np.ones(len(parts)) if weight is None else weight
    if parts.shape != np.shape(weights):
        refuse("reward_weights", weights, f"{parts.size} numbers, for the env pays {rewards!r}")
    return float(np.dot(parts, weights)), {f"reward_{i}": float(part) for i, part in enumerate(parts)}


def _with_metrics(metadata: Mapping[str, Any] | None, weight: Sequence[float] | None) -> dict[str, Any]:
    """Return the metadata of an env, with a metric for each reward."""
    names = [f"reward_{i}" for i in range(len(weight or ()))]
    given = metadata or {}
    return {**given, "custom_metrics": {**given.get("custom_metrics", {}), **{name: {"key": name} for name in names}}}


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


class _Meter(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts the episodes of an env beneath other wrappers, as SB3's `Monitor` does there: rewards, and steps."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.running = 0.0, 0  # return and length
        self.ended: list[tuple[float, int]] = []

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: it ends the running one, however that was."""
        self.ended += [self.running] if self.running[1] else []
        self.running = 0.0, 0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and count it."""
        step = self.env.step(action)
        self.running = self.running[0] + float(step[1]), self.running[1] + 1
        return step


class _ShowsEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes what a `_Meter` beneath counts into the infos; see `BENEATH`."""

    def __init__(self, env: Env, meter: _Meter) -> None:
        super().__init__(env)
        self._meter = meter
        self.metadata = {**(env.metadata or {}), BENEATH: True}

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        ended = self._meter.ended[:1]  # more, if the episode has ended in the first actions of a wrapper
        self._meter.ended = []
        return observation, {**info, BENEATH: ended[0] if ended else None}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *step, info = self.env.step(action)
        return *step, {**info, BENEATH: self._meter.running}


_COUNTING = ("stable_baselines3.common.monitor:Monitor", "gymnasium.wrappers.common:RecordEpisodeStatistics")


class GymnasiumKind(EnvKind):
    """Gymnasium envs, which become envs of one agent.

    Where a wrapper that counts episodes stands beneath others, the episodes that it counts are those of the run.
    """

    what = "a gymnasium.Env"

    @override
    def recognises(self, env: Any) -> bool:
        return isinstance(env, gymnasium.Env) and not isinstance(env, (ParallelEnv, AECEnv))

    @override
    def as_parallel(self, env: Any) -> SingleAgentEnv:
        above = _above_counting(env)
        if above is None:
            return SingleAgentEnv(env)
        above.env = meter = _Meter(above.env)
        return SingleAgentEnv(_ShowsEpisodes(env, meter))


GYMNASIUM = GymnasiumKind()


def _above_counting(env: Any) -> Any:
    """Return the wrapper above the one that counts; None if there is none."""
    while isinstance(env, gymnasium.Wrapper) and isinstance(env.env, gymnasium.Wrapper):
        if f"{type(env.env).__module__}:{type(env.env).__qualname__}" in _COUNTING:
            return env
        env = env.env
    return None


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
_WEIGHING = ("reward_weights", "mo_gymnasium.wrappers.LinearReward")
_TIME_FEATURE = "sb3_contrib.common.wrappers:TimeFeatureWrapper"

# Name in a file -> the class, or `module:class` of what is imported when it is used.
WRAPPERS: Mapping[str, type[Any] | str] = {
    **{f"{_ATARI}.{name}": f"{_ATARI}:{name}" for name in _OF_ATARI},
    **{f"{_GYMNASIUM}.{name}": f"{_GYMNASIUM}:{name}" for name in _OF_GYMNASIUM},
    f"{_GYMNASIUM}.transform_observation.GrayscaleObservation": f"{_GYMNASIUM}:GrayscaleObservation",
    f"{_GYMNASIUM}.ResizeObservation": ResizeImage,
    f"{_GYMNASIUM}.transform_observation.ResizeObservation": ResizeImage,
    **{f"minigrid.wrappers.{name}": f"minigrid.wrappers:{name}" for name in _OF_MINIGRID},
    "as_agents": AsAgents,
    **dict.fromkeys(_WEIGHING, WeighRewards),
    "sb3_contrib.common.wrappers.TimeFeatureWrapper": _TIME_FEATURE,
    "rl_zoo3.wrappers.TimeFeatureWrapper": _TIME_FEATURE,
    "rl_zoo3.wrappers.FrameSkip": FrameSkip,
    "rl_zoo3.wrappers.YAMLCompatResizeObservation": ResizeImage,
}

Named = tuple[str, dict[str, Any]]  # a wrapper's name and its arguments


def named_wrappers(given: Any, reward_weights: Any = None) -> list[Named]:
    """Read what `env_wrapper` says: a name, `{name: arguments}`, or a list of these, the innermost first.

    Args:
        reward_weights: those of the setting, a further wrapper.

    Raises:
        ConfigError: something else, or a name that is not in the table.
    """
    named: list[Named] = [] if reward_weights is None else [(_WEIGHING[0], {"weight": reward_weights})]
    for each in given if isinstance(given, (list, tuple)) else [given] if given else []:
        name, arguments = next(iter(each.items())) if isinstance(each, Mapping) and len(each) == 1 else (each, {})
        if name not in WRAPPERS or not isinstance(arguments or {}, Mapping):
            accepted = f"a name, {{name: arguments}} or a list of these; the names are {', '.join(WRAPPERS)}"
            refuse("env_wrapper", each, accepted)
        named.append((name, dict(arguments or {})))
    return named


def wrapping_factory(factory: Callable[..., Any], wrappers: Sequence[Named]) -> Callable[..., Any]:
    """Return a factory of the same envs in wrappers; the factory itself without any.

    Args:
        factory: of Gymnasium envs; or of envs of several agents, for `reward_weights` alone.
        wrappers: the innermost first.
    """
    if not wrappers:
        return factory

    @functools.wraps(factory, updated=())  # it has the signature of the factory, but no `make_batched`
    def make(**arguments: Any) -> Env:
        env = factory(**arguments)
        others = [each for each in wrappers if each[0] not in _WEIGHING]
        weighing = [each for each in wrappers if each[0] in _WEIGHING]
        if isinstance(env, ParallelEnv) and not others:
            return functools.reduce(lambda inner, each: WeighRewardsOfAgents(inner, **each[1]), weighing, env)
        if not isinstance(env, gymnasium.Env):
            key, more = ("env_wrapper", "") if others else ("reward_weights", " or a ParallelEnv")
            words = f"{key}: the env is a {type(env).__name__}; accepted: a Gymnasium env{more}"
            raise ConfigError(f"{words}; processing has settings for envs of several agents", key=key)
        if "as_agents" in dict(wrappers) or TUPLES.recognises(env):
            return functools.reduce(_wrapped, wrappers, env)
        meter = _Meter(functools.reduce(_wrapped, weighing, env))  # these first, so that a meter gets one number
        return _ShowsEpisodes(functools.reduce(_wrapped, others, meter), meter)

    return make


def _wrapped(env: Env, named: Named) -> Env:
    name, arguments = named
    try:
        wrapped: Env = imported(WRAPPERS[name])(env, **arguments)
    except ConfigError:
        raise
    except ImportError as error:
        raise ConfigError(f"env_wrapper: {name} needs a package that is missing: {error}", key="env_wrapper") from error
    except Exception as error:  # a wrapper may raise anything of an env that does not suit it
        raise ConfigError(f"env_wrapper: {name} raised: {type(error).__name__}: {error}", key="env_wrapper") from error
    return wrapped
