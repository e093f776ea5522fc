"""Actions of several parts as vectors: their order, their bounds, and back again."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from marl_sb3.core.vec_env.observations import ZeroBased
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast.joined_actions import JoinedActions, joined_actions
from marl_sb3.wrappers.observations import choices_of

# In the order of their names: a Tuple, a Discrete, a MultiBinary.
PARTS: dict[str, spaces.Space[Any]] = {
    "move": spaces.Discrete(3, start=1),
    "aim": spaces.Tuple([spaces.Box(-2, 2, (2,)), spaces.MultiDiscrete([2, 4], start=[0, 5])]),
    "tools": spaces.MultiBinary(2),
    "power": spaces.Box(0, 10, (), np.float64),
}
SPACE = joined_actions(spaces.Dict(PARTS))
ACTION = {
    "move": np.int64(3),
    "aim": (np.array([0.5, -2], np.float32), np.array([1, 8])),
    "tools": np.array([0, 1], np.int8),
    "power": np.array(7.25),
}
VECTOR = np.array([0.5, -2, 1, 3, 2, 7.25, 0, 1], np.float32)


def test_the_numbers_of_all_parts_stand_one_after_the_other_counted_from_0() -> None:
    assert isinstance(SPACE, JoinedActions)
    np.testing.assert_array_equal(SPACE.from_env(ACTION), VECTOR)
    np.testing.assert_equal(SPACE.to_env(VECTOR), ACTION)
    assert SPACE.of_env.contains(SPACE.to_env(VECTOR))
    assert SPACE.low.tolist() == [-2, -2, 0, 0, 0, 0, 0, 0]
    assert SPACE.high.tolist() == [2, 2, 1, 3, 2, 10, 1, 1]
    assert choices_of(SPACE) == (2, 4, 3, 2, 2)
    assert SPACE.choice_columns.tolist() == [2, 3, 4, 6, 7]
    assert ZeroBased(SPACE).space is SPACE


def test_a_batch_is_a_list_of_actions() -> None:
    assert SPACE is not None
    actions = SPACE.to_env(np.stack([VECTOR, 0 * VECTOR]))
    np.testing.assert_equal(actions[0], ACTION)
    np.testing.assert_array_equal(SPACE.from_env(actions), [VECTOR, 0 * VECTOR])
    many = np.stack([VECTOR, 0 * VECTOR])
    np.testing.assert_array_equal(SPACE.split(many)["aim"][1], [[1, 8], [0, 5]])
    np.testing.assert_array_equal(SPACE.join_parts(SPACE.split_parts(many), (2,)), many)


def test_numbers_that_a_stock_algorithm_draws_are_rounded_and_brought_within_bounds() -> None:
    assert SPACE is not None
    action = SPACE.to_env(np.array([9, -9, 0.6, -1, 7, -3, 0.4, 5], np.float32))
    assert SPACE.of_env.contains(action)
    assert (action["move"], action["power"], action["tools"].tolist()) == (3, 0, [0, 1])
    assert (action["aim"][0].tolist(), action["aim"][1].tolist()) == ([2, -2], [1, 5])


def test_dicts_that_differ_in_their_order_are_the_same() -> None:
    """Minari may give back another order than that of the env."""
    other = joined_actions(spaces.Dict([(name, PARTS[name]) for name in ("tools", "move", "power", "aim")]))
    assert other == SPACE
    assert other is not None
    np.testing.assert_array_equal(other.from_env(ACTION), VECTOR)
    assert spaces.Box(other.low, other.high) != other
    assert joined_actions(spaces.Tuple([spaces.Discrete(2)])) != joined_actions(spaces.Tuple([spaces.Discrete(3)]))
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE


def test_samples_are_actions_that_the_mask_allows_and_repeat_by_their_seed() -> None:
    assert SPACE is not None
    mask = np.array([1, 0, 0, 0, 1, 1, 0, 1, 0, 1, 0, 1, 1], bool)
    SPACE.seed(3)
    drawn = [SPACE.sample(mask) for _ in range(30)]
    assert all(SPACE.contains(each) and SPACE.of_env.contains(SPACE.to_env(each)) for each in drawn)
    assert {tuple(each[SPACE.choice_columns]) for each in drawn} == {
        (0, second, 1, 0, tool) for second in (2, 3) for tool in (0, 1)
    }
    SPACE.seed(3)
    np.testing.assert_array_equal([SPACE.sample(mask) for _ in range(30)], drawn)


@pytest.mark.parametrize("wrong", [{**ACTION, "move": 0}, {"move": 1}, (1, 2), VECTOR[:3], [ACTION, {"move": 1}]])
def test_what_is_no_action_is_refused(wrong: Any) -> None:
    assert SPACE is not None
    with pytest.raises(ConfigError, match=r"accepted: one in Dict"):
        SPACE.from_env(wrong)


def test_a_vector_with_a_part_of_a_choice_is_none() -> None:
    assert SPACE is not None
    assert SPACE.contains(VECTOR)
    assert SPACE.contains(ACTION)
    assert not SPACE.contains(VECTOR + np.eye(8, dtype=np.float32)[2] * 0.5)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(2),
        spaces.Box(-1, 1, (2,)),
        spaces.Dict(),
        spaces.Tuple([spaces.Text(3)]),
        spaces.Dict(a=spaces.Box(0, 3, (2,), np.int64)),
        spaces.Tuple([spaces.Discrete(2**24 + 2)]),
    ],
    ids=str,
)
def test_other_spaces_have_no_such_form(space: spaces.Space[Any]) -> None:
    assert joined_actions(space) is None
