"""The strip below a film's frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import ImageDraw

from marl_sb3.extensions.display.filmed_env import Scene, captioned, legend_of

BLUE, RED = (0, 0, 255), (255, 0, 0)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written on captions."""
    texts: list[str] = []
    draw = ImageDraw.ImageDraw.text

    def note(self: Any, place: Any, text: str, **options: Any) -> None:
        texts.append(text)
        draw(self, place, text, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", note)
    return texts


def frame(width: int) -> np.ndarray:
    return np.full((10, width, 3), 77, dtype=np.uint8)


def test_a_caption_tells_step_returns_and_colours(written: list[str]) -> None:
    legend = {"a": BLUE, "seen by a": RED}
    image = captioned(frame(400), Scene(2, 17, {"a": -0.5, "b": -1e-9}), legend)
    assert written == ["episode 2, step 17", "a: -0.5", "b: 0", "seen by a"]
    assert np.array_equal(image[:10], frame(400))
    strip = image[10:]
    assert strip.shape == (46, 400, 3)
    assert strip.dtype == np.uint8
    assert strip.min() < 60  # ink
    for colour in (BLUE, RED):
        assert (strip == colour).all(axis=2).sum() > 50


def test_all_captions_of_an_episode_are_of_one_size() -> None:
    sizes = {
        captioned(frame(width), Scene(episode, step, {"a": value, "b": -value}), {}).shape
        for width in (300,)
        for episode, step, value in ((1, 0, 0.0), (999, 10**7, -123456.789), (2, 5, 1e300))
    }
    assert sizes == {(10 + 46, 300, 3)}


def test_of_many_agents_the_sum_is_told(written: list[str]) -> None:
    captioned(frame(200), Scene(1, 3, {f"a{i}": float(i) for i in range(40)}), {"a1": BLUE})
    assert written == ["episode 1, step 3", "40 agents: 780", "a1"]


def test_long_names_are_cut_and_returns_are_not(written: list[str]) -> None:
    captioned(frame(200), Scene(1, 3, {"a very long name of an agent that goes on and on": -7.25}), {})
    assert written[1].startswith("a very ")
    assert written[1].endswith("..: -7.25")


def test_a_frame_that_is_too_narrow_stays_as_it_is() -> None:
    assert captioned(frame(100), Scene(1, 0, {"a": 0.0}), {}) is not None
    assert captioned(frame(100), Scene(1, 0, {"a": 0.0}), {}).shape == (10, 100, 3)


@pytest.mark.parametrize("legend", [None, "blue", {"a": "blue"}, {"a": (0, 0)}, {"a": (0, 0, 256)}, {"a": (0.5, 0, 0)}])
def test_a_legend_of_another_kind_is_left_alone(legend: Any) -> None:
    assert legend_of({"legend": legend}) == {}
    assert legend_of({"legend": {"a": [0, 0, 255]}}) == {"a": BLUE}
