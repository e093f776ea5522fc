"""A door holds implementations by name; those given as places are imported when they are first used."""

from __future__ import annotations

import sys

import pytest

from marl_sb3.doors import Door


@pytest.fixture
def door() -> Door[object]:
    return Door("shape of a hat")


def test_implementations_come_in_the_order_in_which_they_were_added(door: Door[object]) -> None:
    for name in ("tall", "flat"):
        door.add(name, object())
    assert door.names() == ["tall", "flat"]
    assert list(door) == [door["tall"], door["flat"]]
    assert "flat" in door


def test_a_later_implementation_of_the_same_name_takes_the_place_of_the_first(door: Door[object]) -> None:
    for name in ("tall", "flat", "tall"):
        door.add(name, implementation := object())
    assert door.names() == ["tall", "flat"]
    assert door["tall"] is implementation


def test_a_place_is_imported_when_it_is_first_used(door: Door[object]) -> None:
    door.add("zen", "colorsys:rgb_to_hsv")
    sys.modules.pop("colorsys", None)
    assert door.names() == ["zen"]
    assert "colorsys" not in sys.modules
    assert door["zen"] is sys.modules["colorsys"].rgb_to_hsv


def test_an_unknown_name_is_refused_with_those_that_are_there(door: Door[object]) -> None:
    door.add("tall", object())
    with pytest.raises(KeyError, match="unknown shape of a hat 'round'; accepted: tall"):
        door["round"]


def test_an_implementation_can_be_removed(door: Door[object]) -> None:
    door.add("tall", object())
    door.remove("tall")
    assert door.names() == []
