"""A saved value is compared with one like it, and a state of PyTorch's generator is checked: nothing else is set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from marl_sb3.core.state import randomness
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError

FLOATS = np.zeros(2, np.float32)
REFUSED: list[tuple[Any, Any, str]] = [
    (np.int64(3), "3", "from 0 to"), (np.float64(3), [], "a number from"),
    (3, True, "from 0 to"), (3, 3.0, "from 0 to"), (3, -1, "from 0 to"), (3, 10**400, "out of range"),
    (0.5, False, "a number from"), (0.5, 1e301, "a number from"), (0.5, "1", "a number from"),
    (True, 1, "true or false"), (None, 0, "null"), (None, np.zeros(3), "null"), ("PCG64", "MT19937", "PCG64"),
    ("PCG64", np.array(["PCG64"] * 2), "PCG64"), (FLOATS, [0.0, 0.0], "float32"), (FLOATS, FLOATS * np.nan, "finite"),
    (FLOATS, np.zeros(2), "float32"), (FLOATS, FLOATS[:1], "float32"), ((1, 2), [1], "a list of 2"),
    ((1, 2), [1, None], "x/1 is None"), ({"a": 1}, {"a": 1, "b": 1}, "unexpected"), ({"a": 1}, {}, "x/a is missing"),
    ({"a": {"b": 0.5}}, {"a": {"b": None}}, "x/a/b is None"), ({"a": 1}, [1], "a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("own", "saved", "words"), REFUSED)
def test_what_is_not_like_the_own_value_is_refused_by_its_place(own: Any, saved: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        StateReader({"x": saved}).like("x", own)


def test_a_tree_like_the_own_one_is_taken_over_within_bounds() -> None:
    own = {"a": (np.int64(1), None), "b": {"c": FLOATS, "d": np.float32(0.5)}, "e": np.bool_(True)}
    saved = {"b": {"c": FLOATS + 7, "d": 7}, "a": [7, None], "e": False}
    read = StateReader({"x": saved}).like("x", own, 0, 7)
    assert read["a"] == (7, None)
    assert read["b"]["c"].tolist() == [7.0, 7.0]
    assert (read["b"]["d"], read["e"]) == (7.0, False)
    read["b"]["c"][:] = 0
    assert saved["b"]["c"][0] == 7, "it is a copy"
    with pytest.raises(CheckpointError, match="x/a/0 is 7; accepted: an integer from 0 to 6"):
        StateReader({"x": saved}).like("x", own, 0, 6)


def read_generator(**changed: Any) -> None:
    """Check the state of now, with other values in some fields of PyTorch's generator."""
    state = randomness.ProcessRandomness().get_state()
    torch = state["torch"].copy()
    for name, value in changed.items():
        torch.view(randomness._TORCH)[0][name] = value
    randomness.ProcessRandomness().read_state(StateReader({**state, "torch": torch}))


def test_the_last_index_that_stays_within_the_624_words_is_accepted() -> None:
    read_generator(left=2, next=623)
    read_generator(left=624, next=1)


@pytest.mark.parametrize(
    "changed",
    [
        {"left": 2, "next": 624},  # PyTorch would read foreign memory
        {"left": 0},
        {"left": 625, "next": 0},
        {"left": -1},
        {"seeded": 2},
        {"has_normal": 2},
        {"float_normal": float("nan")},
    ],
    ids=str,
)
def test_what_is_no_state_of_a_generator_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="torch is not a state of PyTorch's generator"):
        read_generator(**changed)
