"""Replay buffers of stacked images that hold each frame once, in place of once in each stack that it is part of.

Frames are in slots of one array, and a transition has the slots of its two stacks. A stack that goes on from the row's
previous one needs a slot for its newest frame alone. Frames are compared to find that out: whatever is added, a
minibatch has the numbers that were added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from typing_extensions import override

from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.off_policy.off_policy import FRAMES
from marl_sb3.core.off_policy.per_row_replay import NStepBuffer
from marl_sb3.core.off_policy.replay import TransitionBuffer, TransitionReplayBuffer, Transitions
from marl_sb3.core.processing.processing import ORDER
from marl_sb3.core.processing.processors import channel_axis
from marl_sb3.core.state.state import Form, TensorFile
from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array

_BLACK = 0  # the slot of the frame of zeros, which is never free: frames before an episode are of zeros


class Stacks:
    """Reads as an array of stacks, (lines, rows, channels, height, width), which is put together when it is read.

    Args:
        buffer: holds the frames.
        number: 0 for what was seen before transitions, 1 for what was seen after them.
    """

    def __init__(self, buffer: HoldsFramesOnce, number: int) -> None:
        self._buffer, self._number = buffer, number

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return (*self._buffer.stacks.shape[:2], *self._buffer.obs_shape)

    def __getitem__(self, places: Any) -> Array:
        slots = self._buffer.stacks[:, :, self._number][places]
        frames: Array = self._buffer.frames.take(slots.reshape(-1), axis=0)
        return frames.reshape(*slots.shape[:-1], *self._buffer.obs_shape)


class HoldsFramesOnce(TransitionBuffer):
    """Mixin for a replay buffer of images that are stacked along their channels, which are first.

    Args:
        size: the number of transitions.
        space: that of the stacks.
        arguments: of the buffer.
        frames: how many of them are in a stack.
        settings: of the buffer.

    Attributes:
        frames: (slots, channels, height, width) uint8; there are more slots when needed.
        stacks: (lines, rows, 2, frames) int32; the slots of what was seen before and after a transition.
    """

    names = ("stacks", *TransitionBuffer.names[2:])

    def __init__(self, size: int, space: spaces.Box, *arguments: Any, frames: int, **settings: Any) -> None:
        no_image = spaces.Box(0, 255, (1,), np.uint8)  # SB3 makes arrays of stacks
        super().__init__(size, no_image, *arguments, **settings)
        self.observation_space, self.obs_shape = space, space.shape
        self.stacks = np.zeros((self.buffer_size, self.n_envs, 2, frames), np.int32)
        self.observations, self.next_observations = Stacks(self, 0), Stacks(self, 1)  # type: ignore[assignment]
        places = self.buffer_size * self.n_envs
        channels, *sides = space.shape
        self.frames = np.zeros((places + places // 64 + 1, channels // frames, *sides), np.uint8)
        self._forget()

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()
        self._forget()

    def _forget(self) -> None:
        """Empty all slots, and let no row have a previous stack."""
        self.stacks[:] = _BLACK
        self._latest = np.full((self.n_envs, self.stacks.shape[-1]), _BLACK)  # the slots of each row's latest stack
        self._free = np.arange(1, len(self.frames))  # slots that hold no frame
        self._next_free = 0  # the first of them that is still free

    # --- Adding ------------------------------------------------------------------------------------------------------

    @override
    def _put_observations(self, places: Any, added: Transitions) -> None:
        seen: Any = added.observations
        following: Any = added.next_observations
        self.stacks[places] = self._slots_of(seen, following, added.rows)

    def _slots_of(self, seen: Array, following: Array, rows: Array) -> Array:
        """Store the frames of stacks, (n, ...) each, of these rows; returns the slots, (n, 2, frames)."""
        number = self.stacks.shape[-1]
        self._make_room(2 * number * len(rows))
        pairs = np.stack([seen, following], axis=1).reshape(len(rows), 2, number, *self.frames.shape[1:])
        slots = np.empty((len(rows), 2, number), np.int32)
        for own, pair, row in zip(slots, pairs, rows.tolist(), strict=True):
            own[0] = self._stored(pair[0], self._latest[row])
            own[1] = self._latest[row] = self._stored(pair[1], own[0])
        return slots

    def _stored(self, stack: Array, before: Array) -> Array:
        """Return the slots of a stack: those of the stack before it, as far as its frames are there."""
        kept, known = before[:0], self.frames[before]
        for shift in (0, 1):
            if np.array_equal(known[shift:], stack[: len(stack) - shift]):
                kept = before[shift:]
                break
        new = [_BLACK] * (len(stack) - len(kept))
        for place, frame in enumerate(stack[len(kept) :]):
            if frame.any():
                new[place] = self._free[self._next_free]
                self._next_free += 1
                self.frames[new[place]] = frame
        return np.concatenate([kept, new])

    def _make_room(self, number: int) -> None:
        """Let at least so many slots be free: those that no stack has any more, or slots that are added."""
        if len(self._free) - self._next_free >= number:
            return
        is_held = np.zeros(len(self.frames), np.bool_)
        is_held[_BLACK] = is_held[self.stacks] = is_held[self._latest] = True
        self._free, self._next_free = np.flatnonzero(~is_held), 0
        places = self.buffer_size * self.n_envs
        if len(self._free) < max(number, places // 128):
            before = self.frames
            self.frames = np.zeros((len(before) + max(number, places // 16), *before.shape[1:]), np.uint8)
            self.frames[: len(before)] = before
            self._free = np.concatenate([self._free, np.arange(len(before), len(self.frames))])

    # --- Drawing -----------------------------------------------------------------------------------------------------

    @override
    def _taken(self, of_all: Any, places: Array) -> Any:
        if isinstance(of_all, Stacks):
            return of_all[np.divmod(places, self.n_envs)]
        return super()._taken(of_all, places)

    # --- State -------------------------------------------------------------------------------------------------------

    @override
    def tensors(self) -> dict[str, Array]:
        columns = super().tensors()
        return {**columns, "frames": self.frames[: int(columns["stacks"].max(initial=_BLACK)) + 1]}

    @override
    def forms(self, file: TensorFile, lines: int, rows: int) -> dict[str, Form]:
        forms = super().forms(file, lines, rows)
        given = file.forms.get("frames", Form(self.frames.dtype, ())).shape
        most = 4 * self.stacks.shape[-1] * (lines + 2) * rows  # in which transitions have two whole stacks each
        number = min(max(given[0] if given else 1, 1), most)
        return {**forms, "frames": Form(self.frames.dtype, (number, *self.frames.shape[1:]))}

    def require_columns(self, file: TensorFile, lines: int, rows: int) -> None:
        """See `TransitionBuffer.require_columns`; refuses slots that there are not."""
        super().require_columns(file, lines, rows)
        number = file.forms["frames"].shape[0]
        if any(((piece < 0) | (piece >= number)).any() for _, piece in file.pieces("stacks")):
            raise CheckpointError(f"{file.name}: stacks are not of the {number} frames that are there")

    @override
    def pieces(self, file: TensorFile, name: str) -> Iterator[tuple[int, Array]]:
        if name != "stacks":
            return super().pieces(file, name)
        self._forget()
        number = file.forms["frames"].shape[0]
        if number > len(self.frames):
            self.frames = np.zeros((number, *self.frames.shape[1:]), np.uint8)
        for begin, piece in file.pieces("frames"):
            self.frames[begin : begin + len(piece)] = piece
        self.frames[_BLACK] = 0
        self._free = self._free[:0]  # they are looked up when the next frame is added
        return file.pieces(name)


class FrameReplayBuffer(HoldsFramesOnce, TransitionReplayBuffer):
    """`TransitionReplayBuffer` that holds each frame once."""


class NStepFrameBuffer(HoldsFramesOnce, NStepBuffer):
    """`NStepBuffer` that holds each frame once."""


def stacked_frames(spec: PolicySpec, stored: spaces.Space[Any]) -> int:
    """See `AlgorithmTraits.stacked_frames`; `frame_stack` has stacked them, and nothing was appended to the stacks."""
    frames, settings = spec.processing.frame_stack, spec.processing.changed()
    last = [name for name in ORDER if name in settings][-1:]
    if last != ["frame_stack"] or not (isinstance(stored, spaces.Box) and is_image_space(stored)):
        return 0
    fits = stored.shape[channel_axis(stored)] % frames == 0 and not spec.values["optimize_memory_usage"]
    return frames if fits else 0


# For `AlgorithmTraits.replay_buffers`: these buffers in place of those of stacks.
OF_FRAMES: Mapping[Any, Any] = {
    (TransitionReplayBuffer, FRAMES): FrameReplayBuffer,
    (NStepBuffer, FRAMES): NStepFrameBuffer,
}
