"""What every view of a training keeps, and the writer of films; a new view joins by a line in the table."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from display_results import at

from marl_sb3.doors import VIEWS, View
from marl_sb3.errors import EnvError
from marl_sb3.extensions.display.video import write_film


class CountingView:
    """The smallest view: it counts the results, and prints their number when it is closed."""

    def __init__(self) -> None:
        self._results = 0
        self._is_closed = False

    def begin(self, done: int, total: int) -> None:
        self._is_closed = False

    def advance(self, done: int) -> None:
        pass

    def add(self, result: Any) -> None:
        self._results += 1

    def close(self) -> None:
        if not self._is_closed:
            print(f"{self._results} iterations")
        self._is_closed = True


VIEWS_TESTED: dict[str, Callable[[], View]] = {**{name: VIEWS[name] for name in VIEWS.names()}, "toy": CountingView}


@pytest.mark.parametrize("make", VIEWS_TESTED.values(), ids=VIEWS_TESTED)
def test_a_view_shows_a_training_that_goes_on(make: Callable[[], View], capsys: pytest.CaptureFixture[str]) -> None:
    view, shown = make(), at(1, 100)
    before = copy.deepcopy(shown)
    for done in (0, 100):  # a second `begin`: the training goes on, or was rolled back
        view.begin(done, 200)
        view.advance(done + 1)
        view.add(shown)
    view.close()
    view.close()
    assert shown == before
    assert "iteration" in capsys.readouterr().out


@pytest.mark.parametrize("make", VIEWS_TESTED.values(), ids=VIEWS_TESTED)
def test_a_view_is_closed_before_it_has_seen_anything(make: Callable[[], View]) -> None:
    make().close()
    view = make()
    view.begin(0, 10)
    view.close()


def test_a_film_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "film.gif"
    write_film(path, np.zeros((2, 4, 6, 3), np.uint8))
    before = path.read_bytes()
    with pytest.raises(EnvError):
        write_film(path, np.zeros((2, 4, 6), np.float32))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
