"""Values of spaces as JSON: what is read, what is refused with which words, and that both directions agree."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from marl_sb3.errors import ConfigError
from marl_sb3.tools.serving.spaces_json import SpaceError, decode, describe, encode

UNIT = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 2, 3), np.uint8)
NESTED = spaces.Dict(
    {
        "position": spaces.Box(np.array([0.0, -5.0]), np.array([1.0, 5.0]), dtype=np.float64),
        "hand": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)]),
    }
)
ALL = [
    UNIT,
    IMAGE,
    NESTED,
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3], start=[0, 10]),
    spaces.MultiBinary([2, 2]),
    spaces.Tuple([UNIT, spaces.Discrete(2)]),
    spaces.Box(-np.inf, np.inf, (2,), np.float64),
    spaces.Box(0, 1, (), np.float32),
    spaces.Box(0, 1, (2,), np.bool_),
]


@pytest.mark.parametrize("space", ALL, ids=str)
def test_a_value_is_the_same_after_json(space: spaces.Space[Any]) -> None:
    space.seed(0)
    for _ in range(20):
        value = space.sample()
        read = decode(space, json.loads(json.dumps(encode(space, value))), "it")
        assert space.contains(read)
        flat = [spaces.flatten(space, each) for each in (read, value)]
        np.testing.assert_array_equal(*flat)


def test_a_batch_has_a_leading_axis_in_each_part() -> None:
    plain = {"position": [[0.5, 1], [0, 2]], "hand": [[1, 3], [[0, 1], [True, False]]]}
    read = decode(NESTED, plain, "it", rows=2)
    assert read["position"].shape == (2, 2)
    assert read["hand"][0].tolist() == [1, 3]
    assert read["hand"][1].tolist() == [[0, 1], [1, 0]]


def test_negative_zero_keeps_its_sign() -> None:
    assert math.copysign(1, decode(UNIT, msgspec.json.decode(b"[-0.0, 0, 1]"), "it")[0]) == -1
    assert encode(UNIT, np.array([-0.0, 0, 0]))[0].hex() == "-0x0.0p+0"


def test_a_bound_of_float32_may_be_written_as_it_is_read() -> None:
    space = spaces.Box(0, 0.7, (1,), np.float32)  # 0.7 is above float32's 0.7
    assert decode(space, [0.7], "it") == np.float32(0.7)


@pytest.mark.parametrize(
    ("space", "plain", "words"),
    [
        (UNIT, [0, 0], "the observation is of shape (2,); accepted: numbers of shape (3,), -1 to 1"),
        (UNIT, [0, 0, 1.5], "the observation, [2], is 1.5; accepted: numbers of shape (3,), -1 to 1"),
        (UNIT, [0, float("nan"), 0], "the observation, [1], is nan; accepted: numbers of shape (3,), -1 to 1"),
        (UNIT, [0, float("inf"), 0], "the observation, [1], is inf; "),
        (UNIT, [0, 10**30, 0], "the observation, [1], is 1e+30; "),
        (UNIT, [0, 10**400, 0], "is not as its space says (Number out of range - at $[1]); "),
        (UNIT, [0, True, 0], "is not as its space says (Expected float, got bool - at $[1]); "),
        (UNIT, [0, None, 0], "got null - at $[1]); "),
        (UNIT, [0, "1", 0], "got str - at $[1]); "),
        (UNIT, [[0], [0], [0]], "got array - at $[0]); "),
        (UNIT, None, "the observation is null; accepted: numbers of shape (3,)"),
        (UNIT, {"0": 0, "1": 0, "2": 0}, "the observation is an object; accepted: numbers of shape (3,)"),
        (spaces.Box(-np.inf, np.inf, (1,), np.float32), [1e39], "[0], is 1e+39; accepted: numbers of shape (1,), -inf"),
        (IMAGE, [[[0, 0, 256]] * 2] * 2, "[0][0][2], is 256; accepted: integers of shape (2, 2, 3), 0 to 255"),
        (IMAGE, [[[0, 0, 2**70]] * 2] * 2, "[0][0][2], is 1180591620717411303424; "),
        (IMAGE, [[[0, 0, 0.5]] * 2] * 2, "Expected int, got float"),
        (IMAGE, [[[0, 0, 0]] * 2, [[0, 0, 0]]], "is not as its space says"),
        (spaces.Discrete(3, start=2), 5, "the observation is 5; accepted: one of the integers 2 to 4"),
        (spaces.Discrete(3), 1.0, "the observation is 1.0; accepted: one of the integers 0 to 2"),
        (spaces.Discrete(3), -0.0, "the observation is -0.0; accepted: one of the integers 0 to 2"),
        (spaces.Discrete(3), True, "the observation is True; "),
        (spaces.Discrete(3), 10**30, "the observation is 1000000000000000000000000000000; "),
        (spaces.MultiDiscrete([2, 3]), [0, 3], "[1], is 3; accepted: integers of shape (2,), 0 to 2"),
        (spaces.MultiBinary(2), [0, 2], "[1], is 2; accepted: integers of shape (2,), 0 to 1"),
        (NESTED, [1], "the observation is a list of 1; accepted: an object with the keys hand, position"),
        (NESTED, {"position": [0, 0], "x": 1}, "an object without hand and with x; accepted: the keys hand, position"),
        (NESTED, {"position": [0, 6], "hand": [1, [0, 0]]}, "position[1], is 6.0; accepted: numbers of shape (2,), -5"),
        (NESTED, {"position": [0, 0], "hand": [1]}, "hand, is a list of 1; accepted: a list of 2 parts"),
        (NESTED, {"position": [0, 0], "hand": [4, [0, 0]]}, "hand[0], is 4; accepted: one of the integers 1 to 3"),
        (spaces.Text(3), "abc", "cannot be sent; accepted: Box, Discrete"),
    ],
)  # fmt: skip
def test_what_is_not_in_its_space_is_refused_in_words(space: spaces.Space[Any], plain: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decode(space, plain, "the observation")
    assert words in str(refused.value)


def test_the_error_names_key_and_accepted_values() -> None:
    with pytest.raises(SpaceError) as refused:
        decode(NESTED, {"position": [[0, 0], [0, 6]], "hand": [[1, 1], [[0, 0], [0, 0]]]}, "it", rows=2)
    assert (refused.value.key, refused.value.accepted) == ("position[1][1]", "numbers of shape (2, 2), -5 to 5")


def test_bounds_are_left_out_where_the_caller_says_so() -> None:
    assert decode(UNIT, [2, 3, 4], "it", within_bounds=False).tolist() == [2, 3, 4]
    with pytest.raises(SpaceError, match=r"is 256; accepted: integers of shape \(2, 2, 3\), 0 to 255"):
        decode(IMAGE, [[[0, 0, 256]] * 2] * 2, "it", within_bounds=False)


def test_what_json_cannot_hold_is_not_written() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        encode(UNIT, np.array([0, np.nan, 0], np.float32))
    with pytest.raises(ConfigError, match="has no part 'hand'"):
        encode(NESTED, {"position": [0, 0]})


def test_spaces_are_described() -> None:
    box = spaces.Box(np.array([0, -np.inf]), np.array([1, np.inf]), dtype=np.float64)
    assert describe(box) == {"kind": "Box", "shape": [2], "dtype": "float64", "low": [0, None], "high": [1, None]}
    assert describe(IMAGE) == {"kind": "Box", "shape": [2, 2, 3], "dtype": "uint8", "low": 0, "high": 255}
    nested = describe(spaces.Dict({"a": spaces.Discrete(3, start=1), "b": spaces.Tuple([spaces.MultiBinary(2)])}))
    assert nested == {
        "kind": "Dict",
        "spaces": {
            "a": {"kind": "Discrete", "n": 3, "start": 1},
            "b": {"kind": "Tuple", "spaces": [{"kind": "MultiBinary", "shape": [2]}]},
        },
    }
    with pytest.raises(ConfigError, match="cannot be described"):
        describe(spaces.Text(3))
