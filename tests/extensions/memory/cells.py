"""What the tests of several algorithms with a memory share."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "buffer_size": 200,
    "learning_starts": 99,
    "batch_size": 8,
    "train_freq": 2,
    "burn_in": 2,
    "sequence_length": 3,
    "gamma": 0.5,
}
CELLS = ("lstm", "gru")
