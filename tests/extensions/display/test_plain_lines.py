"""A training as lines of text."""

from __future__ import annotations

import io
from copy import deepcopy

import pytest
from display_results import RESULT, Clock, at, evaluated, with_agents, without_values
from rich.console import Console

from marl_sb3.extensions.display.progress import Goals, PlainLines


class Printed(PlainLines):
    """Lines that have begun at 0 of 100,000 steps, on a clock of their own."""

    def __init__(self, goals: Goals | None = None, total: int = 100_000) -> None:
        self.clock = Clock()
        self.console = Console(file=io.StringIO(), width=40)
        super().__init__(self.console, goals or Goals(), self.clock)
        self.begin(0, total)

    def lines(self) -> list[str]:
        return self.console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_line_has_progress_returns_speed_and_times() -> None:
    printed = Printed()
    printed.clock.now_s += 1.25
    printed.add(RESULT)
    assert printed.lines() == [
        "iteration 3: 1,500 of 100,000 env steps, return 12.50 (a 10.25, b 2.25), 1,200 env steps/s, 0:00:01 elapsed, "
        "0:01:22 left"
    ]


@pytest.mark.parametrize(("longest", "more"), [(0, ""), (400, "; the longest runs for 400 env steps")])
def test_before_the_first_episode_there_are_words(longest: int, more: str) -> None:
    printed = Printed(Goals(longest_episode=lambda: longest))
    printed.add(without_values())
    assert printed.lines() == [
        f"iteration 3: 1,500 of 100,000 env steps, no episode has ended yet{more}, - env steps/s, 0:00:00 elapsed"
    ]


def test_more_steps_than_asked_for_leave_no_time() -> None:
    printed = Printed(total=1000)
    printed.clock.now_s += 1
    printed.add(RESULT)
    assert printed.lines()[0].startswith("iteration 3: 1,500 of 1,000 env steps (updates are complete), return 12")
    assert printed.lines()[0].endswith("0:00:00 left")


def test_lines_come_at_most_once_a_second_and_the_last_always() -> None:
    printed, counts = Printed(), []
    for iteration, now_s in enumerate([100.0, 100.9, 101.0, 101.1, 101.2], start=1):
        printed.clock.now_s = now_s
        printed.add(at(iteration, 1500))
        counts.append(len(printed.lines()))
    assert counts == [1, 1, 2, 2, 2]
    printed.close()
    printed.close()
    assert [line.partition(":")[0] for line in printed.lines()] == ["iteration 1", "iteration 3", "iteration 5"]


def test_a_long_training_has_fewer_lines() -> None:
    printed, counts = Printed(), []
    for iteration, now_s in enumerate([4000.0, 4019.0, 4020.0, 4021.0], start=1):
        printed.clock.now_s = now_s
        printed.add(at(iteration, 1500))
        counts.append(len(printed.lines()))
    assert counts == [1, 1, 2, 2]  # a line for each 200th of the time


def test_an_iteration_that_takes_long_tells_its_steps() -> None:
    printed, counts = Printed(), []
    began_s = printed.clock.now_s
    for elapsed_s in (0, 29, 30, 31, 60, 61):
        printed.clock.now_s = began_s + elapsed_s
        printed.advance(10 * elapsed_s)
        counts.append(len(printed.lines()))
    assert counts == [0, 0, 1, 1, 1, 2]
    assert printed.lines()[0] == "300 of 100,000 env steps, 0:00:30 elapsed"


def test_an_evaluation_waits_for_the_next_line_and_tells_the_best_one() -> None:
    printed = Printed()
    printed.add(at(1, 500))
    printed.add(evaluated(at(2, 1000), 5.0))
    printed.add(evaluated(at(3, 1500), 4.0))
    printed.clock.now_s += 1
    printed.add(at(4, 2000))
    assert [line.partition(":")[0] for line in printed.lines()] == [
        "iteration 1",
        "iteration 4",
        "evaluation of iteration 3",
    ]
    assert printed.lines()[-1] == "evaluation of iteration 3: return 4.00 (a 3.00, b 1.00), best 5.00 in iteration 2"


def test_an_evaluation_of_ones_own_shows_what_it_returned() -> None:
    printed = Printed()
    printed.add({**RESULT, "evaluation": {"env_runners": {"elo": 1512.345, "games": {"won": 7}}}})
    assert printed.lines()[-1] == "evaluation of iteration 3: elo 1512, games/won 7"


def test_of_many_agents_the_best_and_worst_are_in_the_line() -> None:
    printed = Printed()
    printed.add(with_agents(40))
    assert "return 780.00 (best a39 39.00, a38 38.00; worst a1 1.00, a0 0.00; 36 others)" in printed.lines()[0]
    everyone = Printed(Goals(most_agents=None))
    everyone.add(with_agents(40))
    assert "(a0 0.00, a1 1.00, a2 2.00, " in everyone.lines()[0]


def test_agents_named_like_markup_are_printed_as_they_are() -> None:
    result = deepcopy(RESULT)
    result["env_runners"]["agent_episode_returns_mean"] = {"[red]a[/x]": 1.0}
    printed = Printed()
    printed.add(result)
    assert "([red]a[/x] 1.00)" in printed.lines()[0]
