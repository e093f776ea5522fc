"""Spaces as plain data: what is written is read again, and what a stranger may write is refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from marl_sb3.core.state.checkpoint import space_to_plain
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint, write_checkpoint
from marl_sb3.extensions.store.load import space_from_plain
from marl_sb3.wrappers.observations import policy_actions

MIXED = np.array([-np.inf, -1.5, 0.0], np.float32)
SPACES = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    spaces.Box(MIXED, np.array([0.0, np.inf, np.inf], np.float32)),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(np.array([0, 5]), np.array([7, 6]), dtype=np.int16),
    spaces.Box(-1, 1, ()),
    spaces.Box(0, 1, (2,), np.bool_),
    spaces.Box(-1, 1, (0,)),
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, 0]]),
    spaces.MultiBinary(5),
    spaces.MultiBinary([2, 3]),
    spaces.Dict([("z", spaces.Discrete(3)), ("a", spaces.Box(0, 1, (2,)))]),
    policy_actions(
        spaces.Dict(z=spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(0, 1, (2,))]), a=spaces.Discrete(2))
    ),
]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The spaces' descriptions, through the files of a checkpoint."""
    folder: Path = tmp_path_factory.mktemp("spaces") / "saved"
    write_checkpoint(folder, {"all": [space_to_plain(space) for space in SPACES]}, {}, {})
    return list(read_checkpoint(folder).state["all"])


@pytest.mark.parametrize("number", range(len(SPACES)), ids=[str(space)[:40] for space in SPACES])
def test_a_space_comes_back_through_a_checkpoint_as_it_was(number: int, read: list[Any]) -> None:
    space = space_from_plain(StateReader(read[number]))
    assert space == SPACES[number]
    assert (type(space), space.dtype, space.shape) == (type(SPACES[number]), SPACES[number].dtype, SPACES[number].shape)
    if isinstance(space, spaces.Dict):
        assert list(space.spaces) == ["z", "a"]
    if isinstance(space, spaces.Box) and isinstance(SPACES[number], spaces.Box):
        assert space.is_bounded("below") == SPACES[number].is_bounded("below")  # type: ignore[union-attr]


@pytest.mark.parametrize("number", range(len(SPACES)), ids=[str(space)[:40] for space in SPACES])
def test_keys_that_another_version_writes_are_not_read_and_each_of_ours_is_needed(number: int, read: list[Any]) -> None:
    plain = read[number]
    assert space_from_plain(StateReader({**plain, "sort_keys": True, "dtypes": None})) == SPACES[number]
    for key in plain:
        with pytest.raises(CheckpointError, match=f"state/{key} is missing"):
            space_from_plain(StateReader({name: value for name, value in plain.items() if name != key}))


def test_a_dict_is_read_with_a_gymnasium_whose_dict_cannot_be_told_to_keep_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = spaces.Dict.__init__

    def of_gymnasium_1_2(self: spaces.Dict, of: Any = None, seed: Any = None, **parts: spaces.Space[Any]) -> None:
        assert "sort_keys" not in parts, "Dict space element is not an instance of Space"
        made(self, of, seed, **parts)

    monkeypatch.setattr(spaces.Dict, "__init__", of_gymnasium_1_2)
    plain = {"kind": "Dict", "spaces": {"z": space_to_plain(spaces.Discrete(3)), "a": space_to_plain(SPACES[0])}}
    space = space_from_plain(StateReader(plain))
    assert list(space.spaces) == ["z", "a"]  # type: ignore[attr-defined]
    assert space == spaces.Dict({"a": SPACES[0], "z": spaces.Discrete(3)})


class Own(spaces.Discrete):
    """A space of somebody's own."""


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Tuple([spaces.Discrete(2)]),
        Own(2),
        spaces.Dict({"a": spaces.Text(3)}),
        spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}),
    ],
    ids=str,
)
def test_other_spaces_have_no_description(space: spaces.Space[Any]) -> None:
    assert space_to_plain(space) is None


def nested(depth: int) -> dict[str, Any]:
    return {"kind": "Tuple", "spaces": {"0": nested(depth - 1)} if depth else {}}


BOX = {"kind": "Box", "dtype": "float32", "shape": [2], "low": -1.0, "high": "inf"}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "state/kind is missing"),
        ({"kind": "Tuple"}, "state/kind is 'Tuple'; accepted: Box, Discrete, MultiDiscrete, MultiBinary, Dict"),
        ({**BOX, "dtype": "object"}, "state/dtype is 'object'; accepted: float16"),
        ({**BOX, "shape": [-1]}, "state/shape/0 is -1; accepted: an integer from 0"),
        ({**BOX, "shape": [1] * 33}, "accepted: at most 32 dimensions"),
        ({**BOX, "low": "nan"}, "state/low is 'nan'; accepted: a number of float32"),
        ({**BOX, "low": 1e300}, "accepted: a number of float32"),
        ({**BOX, "low": 10**400}, "accepted: a number of float32"),
        ({**BOX, "dtype": "uint8"}, "state/low is -1.0; accepted: a number of uint8"),
        ({**BOX, "dtype": "uint8", "low": -1}, "state/low is -1; accepted: a number of uint8"),
        ({**BOX, "high": -2.0}, "state has a low bound above the high one"),
        ({**BOX, "low": {"finite": np.zeros(3, np.float32)}}, "state/low/finite is an array of float32"),
        ({"kind": "Discrete", "n": 0, "start": 0}, "state/n is 0; accepted: an integer from 1"),
        (
            {"kind": "MultiDiscrete", "dtype": "int64", "shape": [1], "nvec": np.array([0]), "start": np.array([0])},
            "has numbers of choices below 1",
        ),
        ({"kind": "MultiBinary", "n": [-1]}, "state/n/0 is -1"),
        ({"kind": "Dict", "spaces": {"a": {"kind": "Dict", "spaces": {}}}}, "state/spaces/a/kind is 'Dict'"),
        ({"kind": "Joined", "of": {"kind": "Discrete", "n": 2, "start": 0}}, "has parts in which no policy acts"),
        ({"kind": "Joined", "of": nested(33)}, "/kind is 'Tuple'; accepted: Box, Discrete"),
    ],
)
def test_a_description_of_a_stranger_is_refused_in_words(plain: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        space_from_plain(StateReader(plain))
    assert message in str(raised.value)
