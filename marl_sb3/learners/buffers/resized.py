"""Read the transitions of a replay buffer that was made for another number of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from marl_sb3.learners.buffers.replay import TransitionDictReplayBuffer, TransitionReplayBuffer
from marl_sb3.storage.parts import TensorFile
from marl_sb3.storage.state import StateReader
from marl_sb3.storage.tensor_file import form_of, pieces


def read_resized(
    buffer: TransitionReplayBuffer | TransitionDictReplayBuffer, state: StateReader, file: TensorFile, rows: int
) -> Callable[[], None]:
    """Check what `get_state` and `tensors` of a buffer with another number of rows returned, in little memory.

    Args:
        buffer: into which the transitions go, from the oldest to the newest; if it is smaller, the newest ones.
        rows: of the other buffer.

    Returns:
        A function that puts them in.

    Raises:
        CheckpointError: they do not fit this buffer.
    """
    full, filled = state.boolean("full"), state.integer("filled", 0, rows - 1)
    lines = form_of(file.arrays, "rewards").shape[0] if "rewards" in file.arrays else 0
    pos = state.integer("pos", 0, max(lines - 1, 0) if full else max(lines - (filled > 0), 0))
    buffer.require_columns(file, lines if full else pos + (filled > 0), rows)
    held, oldest = (lines * rows, pos * rows + filled) if full else (pos * rows + filled, 0)
    capacity = buffer.buffer_size * buffer.n_envs
    dropped = max(held - capacity, 0)

    def put_back() -> None:
        for name, array in buffer.arrays().items():
            flat = array.reshape(capacity, *array.shape[2:])
            for begin, piece in pieces(file.arrays, name):
                numbers = (begin * rows + np.arange(len(piece) * rows) - oldest) % (lines * rows) - dropped
                kept = (numbers >= 0) & (numbers < held - dropped)
                flat[numbers[kept]] = piece.reshape(len(numbers), *array.shape[2:])[kept]
        buffer.hold(held - dropped)

    return put_back
