"""A state of PyTorch's generator is checked before it is set: PyTorch would read foreign memory with a wrong index."""

from __future__ import annotations

from typing import Any

import pytest

from marl_sb3.core.state import randomness
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError


def read(**changed: Any) -> None:
    """Check the state of now, with other values in some fields of PyTorch's generator."""
    state = randomness.ProcessRandomness().get_state()
    torch = state["torch"].copy()
    for name, value in changed.items():
        torch.view(randomness._TORCH)[0][name] = value
    randomness.ProcessRandomness().read_state(StateReader({**state, "torch": torch}))


def test_the_last_index_that_stays_within_the_624_words_is_accepted() -> None:
    read(left=2, next=623)
    read(left=624, next=1)


@pytest.mark.parametrize(
    "changed",
    [
        {"left": 2, "next": 624},
        {"left": 0},
        {"left": 625, "next": 0},
        {"left": -1},
        {"seeded": 2},
        {"has_normal": 2},
        {"float_normal": float("nan")},
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="torch is not a state of PyTorch's generator"):
        read(**changed)
