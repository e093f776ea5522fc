"""Features appended to an observation: previous action, previous reward, time, and which agent it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first

from marl_sb3.errors import ConfigError
from marl_sb3.processing.by_key import Space
from marl_sb3.processing.interface import Look, Memory, ObservationProcessor, Policy
from marl_sb3.processing.one_hot import flat_box, flat_values
from marl_sb3.types import Array, Observations

REWARD = "reward"  # in the memory: what rows were paid for their previous action


class Feature(ABC):
    """Numbers that are appended to an observation.

    Attributes:
        name: name of the setting, and of the key in a Dict observation.
        box: space of the numbers; it has one axis.
    """

    name: str
    box: spaces.Box[Any]

    def initial(self, rows: int) -> Memory:
        """See `ObservationProcessor.initial`."""
        return {}

    @abstractmethod
    def values(self, look: Look) -> Array:
        """(rows, numbers) float32."""

    def acted(self, memory: Memory, actions: Array) -> Memory:
        """See `ObservationProcessor.acted`."""
        return {}


class PreviousAction(Feature):
    """The previous action: one-hot, or the numbers of a Box; zeros at the start of an episode."""

    name = "previous_action"

    def __init__(self, policy: Policy) -> None:
        self._space = policy.action_space
        box = flat_box(self._space)
        self.box: spaces.Box[Any] = spaces.Box(np.minimum(box.low, 0), np.maximum(box.high, 0), dtype=np.float32)

    def initial(self, rows: int) -> Memory:
        """See `ObservationProcessor.initial`."""
        return {"action": np.zeros((rows, *self.box.shape), dtype=np.float32)}

    def values(self, look: Look) -> Array:
        """See `Feature.values`."""
        return look.memory["action"]

    def acted(self, memory: Memory, actions: Array) -> Memory:
        """See `ObservationProcessor.acted`."""
        return {"action": flat_values(self._space, actions)}


class PreviousReward(Feature):
    """The reward of the previous action, as the env gave it; 0 at the start of an episode."""

    name = "previous_reward"

    def __init__(self, policy: Policy) -> None:
        self.box: spaces.Box[Any] = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def initial(self, rows: int) -> Memory:
        """See `ObservationProcessor.initial`."""
        return {REWARD: np.zeros((rows, 1), dtype=np.float32)}

    def values(self, look: Look) -> Array:
        """See `Feature.values`."""
        return look.memory[REWARD]


class TimeFeature(Feature):
    """A number that falls from 1 to 0 over a fixed number of an agent's actions, and then stays at 0."""

    name = "time_feature"

    def __init__(self, policy: Policy, steps: int) -> None:
        self._steps = steps
        self.box: spaces.Box[Any] = spaces.Box(0, 1, (1,), np.float32)

    def initial(self, rows: int) -> Memory:
        """See `ObservationProcessor.initial`."""
        return {"time": np.zeros(rows, dtype=np.int64)}

    def values(self, look: Look) -> Array:
        """See `Feature.values`."""
        left = np.maximum(1 - look.memory["time"] / self._steps, 0)
        return left.astype(np.float32)[:, None]

    def acted(self, memory: Memory, actions: Array) -> Memory:
        """See `ObservationProcessor.acted`."""
        return {"time": memory["time"] + 1}


class AgentIndicator(Feature):
    """The index of a row's agent among the agents of the policy, one-hot."""

    name = "agent_indicator"

    def __init__(self, policy: Policy) -> None:
        self._codes = np.eye(len(policy.agents), dtype=np.float32)
        self.box: spaces.Box[Any] = spaces.Box(0, 1, (len(policy.agents),), np.float32)

    def values(self, look: Look) -> Array:
        """See `Feature.values`."""
        codes: Array = self._codes[look.agents]
        return codes


class Appended(ObservationProcessor):
    """Appends a feature to observations.

    A Dict gets a key with the feature's name. An image gets a channel for each number, filled with 255 times that
    number. Any other observation becomes a vector, categories one-hot, with the feature's numbers at its end.

    Args:
        space: the observation space.
        feature: the feature to append.

    Raises:
        ConfigError: a Dict has the key already, or the numbers do not lie between 0 and 1 and the space is an image.
    """

    def __init__(self, space: Space, feature: Feature) -> None:
        self._feature = feature
        self._inner = space
        self._append = next(append for fits, append in _WAYS if fits(space))
        self.space = self._space()

    def _space(self) -> Space:
        name, box, inner = self._feature.name, self._feature.box, self._inner
        if isinstance(inner, spaces.Dict):
            if name in inner.spaces:
                raise ConfigError(f"{name}: the observation has a key of this name already: {inner}", key=name)
            return spaces.Dict([*inner.spaces.items(), (name, box)])
        if not is_image_space(inner):
            flat = flat_box(inner)
            low, high = (np.concatenate(bounds) for bounds in ((flat.low, box.low), (flat.high, box.high)))
            return spaces.Box(low, high, dtype=np.float32)
        if (box.low < 0).any() or (box.high > 1).any():
            words = "the observation is an image, whose channels can show numbers from 0 to 1 only"
            raise ConfigError(f"{name}: {words}; accepted: a vector or a Dict observation", key=name)
        axis = _channel_axis(inner)
        shape = list(inner.shape or ())
        shape[axis] += box.shape[0]
        return spaces.Box(0, 255, tuple(shape), np.uint8)

    def initial(self, rows: int) -> Memory:
        """See `ObservationProcessor.initial`."""
        return self._feature.initial(rows)

    def acted(self, memory: Memory, actions: Array) -> Memory:
        """See `ObservationProcessor.acted`."""
        return self._feature.acted(memory, actions)

    def observe(self, look: Look) -> tuple[Observations, Memory]:
        """See `ObservationProcessor.observe`."""
        return self._append(self._inner, look.seen, self._feature.name, self._feature.values(look)), {}


def _to_dict(space: Space, seen: Any, name: str, values: Array) -> Observations:
    return {**seen, name: values}


def _to_image(space: Space, seen: Any, name: str, values: Array) -> Observations:
    axis = _channel_axis(space) + 1
    shape = list(seen.shape)
    shape[axis] = values.shape[1]
    planes = np.rint(255 * values).astype(np.uint8)
    places = [len(values), 1, 1, 1]
    places[axis] = values.shape[1]
    return np.concatenate([seen, np.broadcast_to(planes.reshape(places), shape)], axis=axis)


def _to_vector(space: Space, seen: Any, name: str, values: Array) -> Observations:
    return np.concatenate([flat_values(space, seen), values], axis=1)


def _channel_axis(space: Any) -> int:
    return 0 if is_image_space_channels_first(space) else len(space.shape) - 1


_WAYS = (
    (lambda space: isinstance(space, spaces.Dict), _to_dict),
    (is_image_space, _to_image),
    (lambda space: True, _to_vector),
)
