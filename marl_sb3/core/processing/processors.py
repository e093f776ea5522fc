"""Processors of observations: images are resized or made gray, frames stacked, and features appended.

Each is made with the observation space, the settings and the policy. Images are uint8 Boxes from 0 to 255 with channels
last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from typing_extensions import override

from marl_sb3.core.config.settings import ProcessingSettings
from marl_sb3.core.envs.converted import resize
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, Observations
from marl_sb3.wrappers.observations import choices_of

Space = spaces.Space[Any]
WHOLE = ""  # the key of an observation that has none


def parts_of(space: Space) -> dict[str, Space]:
    """Return the space of each key of a Dict; for any other space, that space alone."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {WHOLE: space}


def with_parts(space: Space, parts: Mapping[str, Space]) -> Space:
    """Return a space with these parts instead of those of `space`."""
    own = {**parts_of(space), **parts}
    return spaces.Dict([*own.items()]) if isinstance(space, spaces.Dict) else own[WHOLE]


def part(seen: Observations, key: str) -> Array:
    """Return the array of a part."""
    return seen[key] if isinstance(seen, dict) else seen


def map_parts(seen: Observations, function: Callable[[str, Array], Array], keys: Collection[str]) -> Observations:
    """Apply a function of key and array to the parts with these keys; the other parts stay unchanged."""
    if isinstance(seen, dict):
        return {key: function(key, array) if key in keys else array for key, array in seen.items()}
    return function(WHOLE, seen) if WHOLE in keys else seen


def named(key: str) -> str:
    """Name a part in a message."""
    return f"key {key!r}: " if key else ""


RowMemory = Mapping[str, Array]  # what rows remember within an episode: (rows, ...) arrays, never changed in place


class ProcessorInput(NamedTuple):
    """The input of a processor."""

    seen: Observations  # (rows, ...) observations, as the previous processor returned them
    memory: RowMemory  # memory of these rows before this observation
    agents: Array  # (rows,) index of each row's agent among the agents of the policy
    learn: bool = False  # whether the observations update running statistics


class ObservationProcessor(ABC):
    """Processes the observations of a policy's rows; it is made for one input space."""

    space: spaces.Space[Any]  # space of its results

    def initial(self, rows: int) -> RowMemory:
        """Return the memory of `rows` rows at the start of an episode; empty for a processor without memory."""
        return {}

    @abstractmethod
    def observe(self, inputs: ProcessorInput) -> tuple[Observations, RowMemory]:
        """Process observations.

        Returns:
            The observations for the next processor, and the parts of the memory that change.
        """

    def acted(self, memory: RowMemory, actions: Array) -> RowMemory:
        """Return the parts of the memory that change when rows take these (rows, ...) actions of the policy."""
        return {}


class ProcessedPolicy(NamedTuple):
    """What a processor knows about its policy."""

    policy_id: str  # id of the policy, for messages
    agents: tuple[AgentID, ...]  # the agents that the policy acts for
    action_space: spaces.Space[Any]  # the space in which the policy acts


_LUMINANCE = np.array([0.2125, 0.7154, 0.0721])  # of ITU-R BT.709, as in Gymnasium's GrayscaleObservation
_AXES = 3
LEAST_PIXELS = 36  # the shortest side of an image that NatureCNN takes


class Resize(ObservationProcessor):
    """Resizes images by averaging over areas; keys of a Dict that are no images stay unchanged.

    Raises:
        ConfigError: there is no image.
    """

    def __init__(self, space: Space, settings: ProcessingSettings, policy: ProcessedPolicy) -> None:
        self._size = settings.resize or (0, 0)
        self._images = _images_of(space, "resize", channels=None)
        bounds = {key: [resize(bound[None], *self._size)[0] for bound in (box.low, box.high)]
                  for key, box in self._images.items()}  # fmt: skip
        self.space = with_parts(space, {key: spaces.Box(*own, dtype=np.uint8) for key, own in bounds.items()})

    @override
    def observe(self, inputs: ProcessorInput) -> tuple[Observations, RowMemory]:
        return map_parts(inputs.seen, lambda _, images: resize(images, *self._size), self._images), {}


class Grayscale(ObservationProcessor):
    """Converts RGB images to grayscale, with the weights and the rounding of Gymnasium's `GrayscaleObservation`.

    Keys of a Dict that are no RGB images stay unchanged.

    Raises:
        ConfigError: there is no RGB image.
    """

    def __init__(self, space: Space, settings: ProcessingSettings, policy: ProcessedPolicy) -> None:
        self._images = _images_of(space, "grayscale", channels=len(_LUMINANCE))
        boxes = {key: spaces.Box(0, 255, (*box.shape[:2], 1), np.uint8) for key, box in self._images.items()}
        self.space = with_parts(space, boxes)

    @override
    def observe(self, inputs: ProcessorInput) -> tuple[Observations, RowMemory]:
        def gray(key: str, images: Array) -> Array:
            numbers: Array = np.sum(np.multiply(images, _LUMINANCE), axis=-1, keepdims=True)
            return numbers.astype(np.uint8)

        return map_parts(inputs.seen, gray, self._images), {}


def _images_of(space: Space, setting: str, channels: int | None) -> dict[str, Any]:
    """Return the parts that are images with this number of channels; None: any number."""
    images = {
        key: box
        for key, box in parts_of(space).items()
        if isinstance(box, spaces.Box) and box.dtype == np.uint8 and len(box.shape) == _AXES
        if channels in (None, box.shape[-1])
    }
    if not images:
        what = "an image" if channels is None else f"an image of {channels} channels"
        raise ConfigError(f"{setting}: the observation space is {space}; accepted: {what}, (height, width, channels) "
                          "of uint8 from 0 to 255", key=setting)  # fmt: skip
    return images


class FrameStack(ObservationProcessor):
    """Stacks the latest observations of a row, the newest last: along the channels of an image, or along the last axis.

    Only observations that the row acts on are frames. Numbers of a Box are 0 in the frames before the first one of an
    episode. Numbers that stand for choices, of a Discrete, MultiDiscrete or MultiBinary, have one more choice there,
    which no observation has: of n choices from 0 to n - 1, it is n. Frames without an axis of channels are stacked as
    channels, if they are images that SB3's convolutions take.

    Raises:
        ConfigError: a part of the space is an array of choices with several axes, or a single number of a Box.
    """

    def __init__(self, space: Space, settings: ProcessingSettings, policy: ProcessedPolicy) -> None:
        self._axes: dict[str, int] = {}
        self._choices: dict[str, Array] = {}  # how many choices each number of a frame has
        self._before: dict[str, Array] = {}  # the stack before the first frame
        # the shape of a frame of each part, as SB3's networks see it: the channels of an image first, and choices
        # one-hot
        self.frame_shapes: dict[str, tuple[int, ...]] = {}
        # the index of a number, in a frame of that shape, that is 1 only before the first frame of an episode; for the
        # parts that have it
        self.fillers: dict[str, int] = {}
        self.remembered: dict[str, Space] = {}  # the spaces of stacked choices, by their names in the memory
        own = {key: self._stacked(key, part, settings.frame_stack) for key, part in parts_of(space).items()}
        self.space = with_parts(space, own)

    def _stacked(self, key: str, space: Space, frames: int) -> Space:
        """Return the space of the stacked frames of a part."""
        choices = choices_of(space)
        if choices and len(space.shape or ()) < 2:
            return self._stacked_choices(key, space.dtype, np.array(choices), frames)
        if not isinstance(space, spaces.Box) or not space.shape:
            accepted = "a Box of at least one axis, Discrete, MultiDiscrete or MultiBinary of one axis"
            raise ConfigError(f"frame_stack: {named(key)}the space is {space}; accepted: {accepted}", key="frame_stack")
        if len(space.shape) == _AXES - 1 and min(space.shape) >= LEAST_PIXELS:
            image = spaces.Box(space.low[..., None], space.high[..., None], dtype=space.dtype.type)
            space = image if is_image_space(image) else space
        is_image = is_image_space(space)
        self._axes[key] = axis = channel_axis(space) if is_image else len(space.shape) - 1
        shape = (space.shape[axis], *np.delete(space.shape, axis)) if is_image else space.shape
        self.frame_shapes[key] = tuple(map(int, shape))
        low, high = (np.concatenate([bound] * frames, axis=axis) for bound in (space.low, space.high))
        self._before[key] = np.zeros(low.shape, space.dtype)
        return spaces.Box(np.minimum(low, 0), np.maximum(high, 0), dtype=space.dtype.type)

    def _stacked_choices(self, key: str, dtype: Any, choices: Array, frames: int) -> Space:
        self._axes[key], self._choices[key] = 0, choices
        self.frame_shapes[key], self.fillers[key] = (int((choices + 1).sum()),), int(choices[0])
        dtype = dtype if choices.max() < np.iinfo(dtype).max else np.dtype(np.int64)
        self._before[key] = np.tile(choices, frames).astype(dtype)
        self.remembered[_name(key)] = space = spaces.MultiDiscrete(np.tile(choices + 1, frames), dtype=dtype.type)
        return space

    @override
    def initial(self, rows: int) -> RowMemory:
        return {_name(key): np.stack([before] * rows) for key, before in self._before.items()}

    @override
    def observe(self, inputs: ProcessorInput) -> tuple[Observations, RowMemory]:
        after: dict[str, Array] = {}

        def stacked(key: str, newest: Array) -> Array:
            frames, axis = inputs.memory[_name(key)], self._axes[key] + 1
            if key in self._choices:
                newest = newest.reshape(len(newest), -1)  # a Discrete has no axis
                require_choices(newest, self._choices[key])
            elif newest.ndim < frames.ndim:
                newest = newest[..., None]
            kept = (slice(None),) * axis + (slice(newest.shape[axis], None),)
            after[_name(key)] = np.concatenate([frames[kept], newest.astype(frames.dtype, copy=False)], axis=axis)
            return after[_name(key)]

        return map_parts(inputs.seen, stacked, self._axes), after


def _name(key: str) -> str:
    """Return the name of a part's frames in the memory."""
    return f"frames.{key}" if key else "frames"


def channel_axis(image: spaces.Box[Any]) -> int:
    """Return the axis of an image's channels."""
    return 0 if is_image_space_channels_first(image) else len(image.shape) - 1


def flat_box(space: spaces.Space[Any]) -> spaces.Box:
    """Return the space of the vectors that `flat_values` returns."""
    flat: Any = spaces.flatten_space(space)
    return spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)


def flat_values(space: spaces.Space[Any], values: Array) -> Array:
    """Convert (rows, ...) values of a space to (rows, numbers) float32 vectors.

    Raises:
        ValueError: a number of a Discrete or MultiDiscrete is out of range.
    """
    rows = values.reshape(len(values), -1)
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return rows.astype(np.float32)
    sizes: Array = np.reshape(getattr(space, "nvec", getattr(space, "n", 1)), -1)
    first = np.cumsum([0, *sizes[:-1]])
    start = np.asarray(getattr(space, "start", 0)).reshape(-1)
    numbers = rows.astype(np.int64) - start
    require_choices(numbers, sizes)
    flat = np.zeros((len(rows), sum(sizes)), dtype=np.float32)
    np.put_along_axis(flat, numbers + first, 1.0, axis=1)
    return flat


def require_choices(numbers: Array, sizes: Array) -> None:
    """Refuse (rows, numbers) numbers that are none of so many choices: they would stand for others.

    Raises:
        ValueError: a number is out of range; envs are checked before, so that it is an argument of `predict`.
    """
    outside = (numbers < 0) | (numbers >= sizes)
    if outside.any():
        row, place = np.argwhere(outside)[0]
        raise ValueError(f"number {place} is {numbers[row, place]}; accepted: 0 to {sizes[place] - 1}")


REWARD = "reward"  # in the memory: what rows were paid for their previous action


class Feature(ObservationProcessor):
    """Appends numbers to observations.

    A Dict gets a key with the feature's name. An image gets a channel for each number, filled with 255 times that
    number. Any other observation becomes a vector, categories one-hot, with the numbers at its end.

    Args:
        space: the observation space.
        box: space of the numbers; it has one axis.

    Raises:
        ConfigError: a Dict has the key already, or the numbers do not lie between 0 and 1 and the space is an image.
    """

    name: ClassVar[str]  # name of the setting, and of the key in a Dict observation

    def __init__(self, space: Space, box: spaces.Box[Any]) -> None:
        self._inner = space
        self._channel_axis: int | None = None
        if isinstance(space, spaces.Dict):
            if self.name in space.spaces:
                words = f"{self.name}: the observation has a key of this name already: {space}"
                raise ConfigError(words, key=self.name)
            self.space = spaces.Dict([*space.spaces.items(), (self.name, box)])
        elif isinstance(space, spaces.Box) and is_image_space(space):
            if (box.low < 0).any() or (box.high > 1).any():
                words = "the observation is an image, whose channels can show numbers from 0 to 1 only"
                raise ConfigError(f"{self.name}: {words}; accepted: a vector or a Dict observation", key=self.name)
            self._channel_axis = channel_axis(space)
            shape = list(space.shape)
            shape[self._channel_axis] += box.shape[0]
            self.space = spaces.Box(0, 255, tuple(shape), np.uint8)
        else:
            flat = flat_box(space)
            low, high = (np.concatenate(bounds) for bounds in ((flat.low, box.low), (flat.high, box.high)))
            self.space = spaces.Box(low, high, dtype=np.float32)

    @abstractmethod
    def values(self, inputs: ProcessorInput) -> Array:
        """Return the (rows, numbers) float32 that are appended."""

    @override
    def observe(self, inputs: ProcessorInput) -> tuple[Observations, RowMemory]:
        seen, values = inputs.seen, self.values(inputs)
        if isinstance(seen, dict):
            return {**seen, self.name: values}, {}
        if self._channel_axis is None:
            return np.concatenate([flat_values(self._inner, seen), values], axis=1), {}
        axis = self._channel_axis + 1
        shape = list(seen.shape)
        shape[axis] = values.shape[1]
        planes = np.expand_dims(np.rint(255 * values).astype(np.uint8), (2, 3) if axis == 1 else (1, 2))
        return np.concatenate([seen, np.broadcast_to(planes, shape)], axis=axis), {}


class PreviousAction(Feature):
    """The previous action: one-hot, or the numbers of a Box; zeros at the start of an episode."""

    name = "previous_action"

    def __init__(self, space: Space, settings: ProcessingSettings, policy: ProcessedPolicy) -> None:
        self._actions, box = policy.action_space, flat_box(policy.action_space)
        self._numbers = box.shape[0]
        super().__init__(space, spaces.Box(np.minimum(box.low, 0), np.maximum(box.high, 0), dtype=np.float32))

    @override
    def initial(self, rows: int) -> RowMemory:
        return {"action": np.zeros((rows, self._numbers), dtype=np.float32)}

    @override
    def values(self, inputs: ProcessorInput) -> Array:
        return inputs.memory["action"]

    @override
    def acted(self, memory: RowMemory, actions: Array) -> RowMemory:
        return {"action": flat_values(self._actions, actions)}


class PreviousReward(Feature):
    """The reward of the previous action, as the env gave it; 0 at the start of an episode."""

    name = "previous_reward"

    def __init__(self, space: Space, settings: ProcessingSettings, policy: ProcessedPolicy) -> None:
        super().__init__(space, spaces.Box(-np.inf, np.inf, (1,), np.float32))

    @override
    def initial(self, rows: int) -> RowMemory:
        return {REWARD: np.zeros((rows, 1), dtype=np.float32)}

    @override
    def values(self, inputs: ProcessorInput) -> Array:
        return inputs.memory[REWARD]


class TimeFeature(Feature):
    """A number that falls from 1 to 0 over a fixed number of an agent's actions, and then stays at 0."""

    name = "time_feature"

    def __init__(self, space: Space, settings: ProcessingSettings, policy: ProcessedPolicy) -> None:
        self._steps = settings.time_feature or 1
        super().__init__(space, spaces.Box(0, 1, (1,), np.float32))

    @override
    def initial(self, rows: int) -> RowMemory:
        return {"time": np.zeros(rows, dtype=np.int64)}

    @override
    def values(self, inputs: ProcessorInput) -> Array:
        left = np.maximum(1 - inputs.memory["time"] / self._steps, 0)
        return left.astype(np.float32)[:, None]

    @override
    def acted(self, memory: RowMemory, actions: Array) -> RowMemory:
        return {"time": memory["time"] + 1}


class AgentIndicator(Feature):
    """The index of a row's agent among the agents of the policy, one-hot."""

    name = "agent_indicator"

    def __init__(self, space: Space, settings: ProcessingSettings, policy: ProcessedPolicy) -> None:
        self._codes = np.eye(len(policy.agents), dtype=np.float32)
        super().__init__(space, spaces.Box(0, 1, (len(policy.agents),), np.float32))

    @override
    def values(self, inputs: ProcessorInput) -> Array:
        codes: Array = self._codes[inputs.agents]
        return codes
