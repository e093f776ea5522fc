"""Processors of observations: images are resized or made gray, frames stacked, and features appended.

Images are uint8 Boxes from 0 to 255 with channels last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first

from marl_sb3.envs.gymnasium_envs import resize
from marl_sb3.errors import ConfigError
from marl_sb3.processing.interface import (
    Memory,
    ObservationProcessor,
    Policy,
    ProcessorInput,
    Space,
    map_parts,
    named,
    part,
    parts_of,
    with_parts,
)
from marl_sb3.types import Array, Observations

_LUMINANCE = np.array([0.2125, 0.7154, 0.0721])  # of ITU-R BT.709, as in Gymnasium's GrayscaleObservation
_AXES = 3


class Resize(ObservationProcessor):
    """Resizes images by averaging over areas.

    Args:
        space: the observation space; keys of a Dict that are no images stay unchanged.
        size: height and width of the results.

    Raises:
        ConfigError: there is no image.
    """

    def __init__(self, space: Space, size: tuple[int, int]) -> None:
        self._size = size
        images = _images_of(space, "resize", channels=None)
        self._functions = dict.fromkeys(images, self._resized)
        self.space = with_parts(space, {key: self._resized_space(box) for key, box in images.items()})

    def _resized_space(self, box: spaces.Box) -> Space:
        return spaces.Box(*(self._resized(bound[None])[0] for bound in (box.low, box.high)), dtype=np.uint8)

    def _resized(self, images: Array) -> Array:
        return resize(images, *self._size)

    def observe(self, inputs: ProcessorInput) -> tuple[Observations, Memory]:
        """See `ObservationProcessor.observe`."""
        return map_parts(inputs.seen, self._functions), {}


class Grayscale(ObservationProcessor):
    """Converts RGB images to grayscale, with the weights and the rounding of Gymnasium's `GrayscaleObservation`.

    Args:
        space: the observation space; keys of a Dict that are no RGB images stay unchanged.

    Raises:
        ConfigError: there is no RGB image.
    """

    def __init__(self, space: Space) -> None:
        images = _images_of(space, "grayscale", channels=len(_LUMINANCE))
        self._functions = dict.fromkeys(images, _gray)
        boxes = {key: spaces.Box(0, 255, (*box.shape[:2], 1), np.uint8) for key, box in images.items()}
        self.space = with_parts(space, boxes)

    def observe(self, inputs: ProcessorInput) -> tuple[Observations, Memory]:
        """See `ObservationProcessor.observe`."""
        return map_parts(inputs.seen, self._functions), {}


def _gray(images: Array) -> Array:
    gray: Array = np.sum(np.multiply(images, _LUMINANCE), axis=-1, keepdims=True)
    return gray.astype(np.uint8)


def _images_of(space: Space, setting: str, channels: int | None) -> dict[str, Any]:
    """Return the parts that are images with this number of channels; None: any number."""
    images = {key: box for key, box in parts_of(space).items() if _is_image(box, channels)}
    if not images:
        what = "an image" if channels is None else f"an image of {channels} channels"
        raise ConfigError(f"{setting}: the observation space is {space}; accepted: {what}, (height, width, channels) "
                          "of uint8 from 0 to 255", key=setting)  # fmt: skip
    return images


def _is_image(space: Space, channels: int | None) -> bool:
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == _AXES
        and channels in (None, space.shape[-1])
    )


class FrameStack(ObservationProcessor):
    """Stacks the latest observations of a row, the newest last: along the channels of an image, or along the last axis.

    Only observations that the row acts on are frames. Frames before the first one of an episode are zeros.

    Args:
        space: the observation space: a Box of at least one axis, or a Dict of such Boxes.
        frames: number of frames in a stack.

    Raises:
        ConfigError: a part of the space is no such Box.
    """

    def __init__(self, space: Space, frames: int) -> None:
        self._parts = {key: _StackedBox(key, box, frames) for key, box in parts_of(space).items()}
        self.space = with_parts(space, {key: each.space for key, each in self._parts.items()})

    def initial(self, rows: int) -> Memory:
        """See `ObservationProcessor.initial`."""
        return {_name(key): each.zeros(rows) for key, each in self._parts.items()}

    def observe(self, inputs: ProcessorInput) -> tuple[Observations, Memory]:
        """See `ObservationProcessor.observe`."""
        after = {
            _name(key): each.shifted(inputs.memory[_name(key)], part(inputs.seen, key))
            for key, each in self._parts.items()
        }
        if isinstance(inputs.seen, dict):
            return {key: after[_name(key)] for key in inputs.seen}, after
        return next(iter(after.values())), after


def _name(key: str) -> str:
    """Return the name of a part's frames in the memory."""
    return f"frames.{key}" if key else "frames"


class _StackedBox:
    def __init__(self, key: str, box: Any, frames: int) -> None:
        if not isinstance(box, spaces.Box) or not box.shape:
            words = f"frame_stack: {named(key)}the space is {box}; accepted: a Box of at least one axis"
            raise ConfigError(words, key="frame_stack")
        channels_first = is_image_space(box) and is_image_space_channels_first(box)
        self._axis = 0 if channels_first else len(box.shape) - 1
        self._length = box.shape[self._axis]
        low, high = (np.concatenate([bound] * frames, axis=self._axis) for bound in (box.low, box.high))
        assert box.dtype is not None
        # The zeros before the first frame belong to the space, too.
        self.space = spaces.Box(np.minimum(low, 0), np.maximum(high, 0), dtype=box.dtype.type)

    def zeros(self, rows: int) -> Array:
        return np.zeros((rows, *self.space.shape), dtype=self.space.dtype)

    def shifted(self, frames: Array, newest: Array) -> Array:
        kept = (slice(None),) * (self._axis + 1) + (slice(self._length, None),)
        return np.concatenate([frames[kept], newest.astype(frames.dtype, copy=False)], axis=self._axis + 1)


def flat_box(space: spaces.Space[Any]) -> spaces.Box:
    """Return the space of the vectors that `flat_values` returns."""
    if isinstance(space, spaces.Box):
        low, high = (bound.reshape(-1).astype(np.float32) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=np.float32)
    return spaces.Box(0, 1, (sum(_choices(space)),), np.float32)


def flat_values(space: spaces.Space[Any], values: Array) -> Array:
    """Convert (rows, ...) values of a space to (rows, numbers) float32 vectors."""
    rows = values.reshape(len(values), -1)
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return rows.astype(np.float32)
    sizes = _choices(space)
    first = np.cumsum([0, *sizes[:-1]])
    start = np.asarray(getattr(space, "start", 0)).reshape(-1)
    flat = np.zeros((len(rows), sum(sizes)), dtype=np.float32)
    np.put_along_axis(flat, rows.astype(np.int64) - start + first, 1.0, axis=1)
    return flat


def _choices(space: Any) -> list[int]:
    """Return the length of each one-hot code; 1 for each bit."""
    if isinstance(space, spaces.MultiBinary):
        return [1] * int(np.prod(space.shape))
    return [int(n) for n in np.asarray(space.nvec).reshape(-1)] if hasattr(space, "nvec") else [int(space.n)]


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
    def values(self, inputs: ProcessorInput) -> Array:
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

    def values(self, inputs: ProcessorInput) -> Array:
        """See `Feature.values`."""
        return inputs.memory["action"]

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

    def values(self, inputs: ProcessorInput) -> Array:
        """See `Feature.values`."""
        return inputs.memory[REWARD]


class TimeFeature(Feature):
    """A number that falls from 1 to 0 over a fixed number of an agent's actions, and then stays at 0."""

    name = "time_feature"

    def __init__(self, policy: Policy, steps: int) -> None:
        self._steps = steps
        self.box: spaces.Box[Any] = spaces.Box(0, 1, (1,), np.float32)

    def initial(self, rows: int) -> Memory:
        """See `ObservationProcessor.initial`."""
        return {"time": np.zeros(rows, dtype=np.int64)}

    def values(self, inputs: ProcessorInput) -> Array:
        """See `Feature.values`."""
        left = np.maximum(1 - inputs.memory["time"] / self._steps, 0)
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

    def values(self, inputs: ProcessorInput) -> Array:
        """See `Feature.values`."""
        codes: Array = self._codes[inputs.agents]
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

    def observe(self, inputs: ProcessorInput) -> tuple[Observations, Memory]:
        """See `ObservationProcessor.observe`."""
        return self._append(self._inner, inputs.seen, self._feature.name, self._feature.values(inputs)), {}


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
