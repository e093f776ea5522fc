"""Kinds of values: what each accepts, and in which words it refuses the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from msgspec import Meta

from marl_sb3.core.config.networks import Networks
from marl_sb3.core.config.values import (
    Count,
    FiniteFloat,
    Fraction,
    Named,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Seed,
    Strings,
    accepts,
    require,
    takes_integers_only,
    words,
)
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast.builtin import ALGORITHMS, Schedule
from marl_sb3.runs.schema import ACCEPTED

INFINITE = [float("nan"), float("inf"), -float("inf"), 10**400, -(10**400), 10**5000]
KINDS: list[tuple[Any, str, list[Any], list[Any]]] = [
    (PositiveInt, "an integer of at least 1", [1, 10**5000], [0, True, 1.0, "1", None, -(10**5000), np.int64(1)]),
    (Count | None, "an integer of at least 0, or null", [0, None], [-1, False]),
    (Seed, "an integer from 0 to 4294967295", [0, 2**32 - 1], [-1, 2**32]),
    (FiniteFloat, "a number", [-1, 1e308, np.float64(2)], [True, "1", *INFINITE]),
    (PositiveFloat, "a number above 0", [1, 1e-300], [0, -1.0, *INFINITE]),
    (NonNegativeFloat, "a number of at least 0", [0, 0.0], [-1e-9, *INFINITE]),
    (Fraction, "a number from 0 to 1", [0, 1.0], [1.1, *INFINITE]),
    (bool, "true or false", [True], [1, "true"]),
    (Literal["max", "min"], "max or min", ["min"], ["mean", ["max"], None]),
    (str, "a string", [""], [1, None]),
    (Strings | None, "a list of strings, or null", [[], ("a",), None], ["a", [1]]),
    (Sequence[Any], "a list", [[1]], ["a", {}]),
    (Mapping[Any, Any], "a mapping", [{}, {1: 2}], [[], "a"]),
    (Named, "a mapping of names to values", [{"a": None}], [{1: 2}]),
    (
        Schedule,
        "a number above 0 and at most 1000000, or lin_X for a line from X down to 0, or exp_X or exp_X_Y for equal "
        "factors from X to X/100 or Y, or [[ENV_STEPS, X], ...] for lines between points",
        [1, 1e6, "lin_.5e-3", "lin_1.", "exp_1e-3", "exp_1_.1", [[0, 1]], ((0, 1.0), (9, 2))],
        ["1", "lin_-1", "lin_1\n", "lin_1e", "lin_1_2", "exp_1_", "exp_1_2_3", [], [[1]], [[0, "1"]], [[0, 1, 2]]],
    ),
    (
        Networks,
        "a list of layer widths such as [64, 64], or {pi: [64, 64], vf: [64, 64]}, or null; widths from 1 to 1048576",
        [None, [], [2**20], {"pi": [3]}, [{"pi": [3], "vf": ()}]],
        [[0], [2**20 + 1], [True], {"pi": 3}, [[3]], "64", [3] * 1001],
    ),
]


@pytest.mark.parametrize(("kind", "expected", "accepted", "refused"), KINDS, ids=[each[1][:40] for each in KINDS])
def test_a_kind_accepts_what_its_words_say(kind: Any, expected: str, accepted: list[Any], refused: list[Any]) -> None:
    assert words(kind) == expected
    assert [value for value in accepted if not accepts(kind, value)] == []
    assert [index for index, value in enumerate(refused) if accepts(kind, value)] == []


def test_every_kind_has_words_and_takes_no_stranger() -> None:
    kinds = dict(ACCEPTED)
    for algorithm, table in {name: info.kinds for name, info in ALGORITHMS.items()}.items():
        kinds.update({f"{algorithm}.{name}": kind for name, kind in table.items()})
    for name, kind in kinds.items():
        with pytest.raises(ConfigError) as caught:
            require(name, object(), kind)
        assert str(caught.value).partition("; accepted: ")[2] == words(kind) != "", name


def test_a_refused_value_is_shown_shortened() -> None:
    with pytest.raises(ConfigError) as caught:
        require("n", -(10**5000), PositiveInt, "key")
    assert str(caught.value) == "n is a number of too many digits; accepted: an integer of at least 1"
    assert caught.value.key == "key"
    with pytest.raises(ConfigError, match=r"n is 'x{199}\.\.\.; accepted"):
        require("n", "x" * 10_000, PositiveInt)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (int, True),
        (PositiveInt | None, True),
        (Annotated[int | str, Meta(description="steps or a name")], True),
        (bool, False),
        (float, False),
        (PositiveInt | Fraction, False),
        (Sequence[int], False),
    ],
)
def test_which_kinds_read_floats_as_integers(kind: Any, expected: bool) -> None:
    assert takes_integers_only(kind) is expected
