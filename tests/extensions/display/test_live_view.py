"""A training as a picture on a terminal or in a notebook."""

from __future__ import annotations

import io
import re
import sys
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from display_results import RESULT, Clock, at, evaluated, with_agents, without_values
from rich.console import Console, Group
from rich.text import Text
from waiting import wait_for

from marl_sb3.extensions.display.progress import Goals, LiveView, PlainLines, training_view
from marl_sb3.extensions.display.screen import ScreenSize, cut_line, screen_for, standard_console
from marl_sb3.extensions.display.tables import returns_table


def no_terminal() -> Console:
    return Console(file=io.StringIO(), width=100)


def drawn(view: LiveView, width: int = 80, height: int = 23, *, ascii_only: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(view.draw(ScreenSize(width, height, ascii_only)))
    return console.file.getvalue().rstrip("\n").split("\n")  # type: ignore[attr-defined]


def words(lines: list[str]) -> list[str]:
    return [" ".join(line.split()) for line in lines]


def view_of(*results: dict[str, Any], goals: Goals | None = None, title: str = "toy") -> LiveView:
    clock = Clock()
    view = LiveView(no_terminal(), title, goals or Goals(), clock=clock)
    view.begin(0, 2000)
    for result in results:
        clock.now_s += 1
        view.add(result)
    return view


def test_the_picture_has_progress_speed_returns_trends_and_goals() -> None:
    goals = Goals(stop={"env_runners/episode_return_mean": 15.0}, checkpoint=lambda: "ckpt-000002")
    view = view_of(
        evaluated(at(1, 500, episode_return_mean=1.0), 5.0), at(2, 1000, episode_return_mean=20.0), RESULT, goals=goals
    )
    lines = words(drawn(view))
    assert lines[0].startswith("toy ━")
    assert lines[0].endswith("75%")
    assert lines[1:] == [
        "1,500 of 2,000 env steps 0:00:03 elapsed 0:00:01 left",
        "iteration 3 500 env steps/s 1,000 agent steps/s rollout 75% update 25%",
        "training evaluation trend",
        "sum of returns 12.50 5.00 ▁█▅",
        "return of a 10.25 4.00 ▅▅▅",
        "return of b 2.25 1.00 ▅▅▅",
        "episode length 99.0 - ▅▅▅",
        "found 7.50 - ▅▅▅",
        "best 20.00 in iteration 2, by env_runners/episode_return_mean",
        "evaluated in iteration 1, best 5.00 in iteration 1",
        "stop at 15, now 12.50: env_runners/episode_return_mean",
        "saved ckpt-000002",
    ]


def test_before_the_first_iteration_and_the_first_episode_there_are_dashes() -> None:
    assert words(drawn(view_of()))[1:] == ["0 of 2,000 env steps 0:00:00 elapsed", "iteration 1"]
    lines = words(drawn(view_of(without_values())))
    assert lines[2].endswith("env steps/s - agent steps/s rollout 0% update 0%")
    assert [line for line in lines if line.endswith(" -")] == [
        "sum of returns -",
        "return of a -",
        "return of b -",
        "episode length -",
        "found -",
    ]


@pytest.mark.parametrize("height", [10, 23, 59])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("agents", [2, 40])
def test_the_picture_fits_every_terminal(width: int, height: int, agents: int) -> None:
    goals = Goals(stop={f"env_runners/custom_metrics/{'long' * i}": 1.0 for i in range(5)}, checkpoint=lambda: "ckpt-1")
    for most_agents in (8, None):
        view = view_of(evaluated(with_agents(agents), 7.0), goals=Goals(**{**vars(goals), "most_agents": most_agents}))
        lines = drawn(view, width, height)
        assert max(map(len, lines)) <= width
        # On 10 lines nothing fits but what is cut off below; everything else does.
        assert len(lines) <= height or height == 10
        assert any(line.startswith("sum of r") for line in lines)


def test_many_agents_leave_room_for_the_sum_the_best_and_the_worst() -> None:
    lines = words(drawn(view_of(with_agents(40))))
    assert lines[4:14] == [
        "sum of returns 780.00",
        *(f"return of a{i} {i}.00" for i in (39, 38, 37, 36)),
        "32 other agents",
        *(f"return of a{i} {i}.00" for i in (3, 2, 1, 0)),
    ]
    everyone = view_of(with_agents(40), goals=Goals(most_agents=None))
    assert sum("return of" in line for line in drawn(everyone, height=60)) == 40


def test_on_an_ascii_console_the_picture_is_ascii() -> None:
    view = view_of(at(1, 500, episode_return_mean=1.0), RESULT)
    below_the_bar = "\n".join(drawn(view, ascii_only=True)[1:])
    assert below_the_bar.isascii()
    assert " _#" in below_the_bar


def test_agents_named_like_markup_are_shown_as_they_are() -> None:
    result = deepcopy(RESULT)
    result["env_runners"]["agent_episode_returns_mean"] = {"[red]a[/x]": 1.0}
    result["env_runners"]["custom_metrics"] = {"[b]m_mean": 2.0}
    lines = words(drawn(view_of(result, title="[toy][/x]")))
    assert lines[0].startswith("[toy][/x] ")
    assert {"return of [red]a[/x] 1.00", "[b]m 2.00"} <= set(lines)


def test_the_table_of_the_end_cuts_labels_and_never_numbers() -> None:
    console = Console(file=io.StringIO(), width=30)
    console.print(returns_table(RESULT, evaluated(RESULT, 12345.0), 30))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert words(lines)[:2] == ["training evaluation", "sum of … 12.50 12,345.00"]


# Where it is shown


def terminal(**options: Any) -> Console:
    return Console(file=io.StringIO(), width=100, height=30, force_terminal=True, **options)


def test_a_terminal_gets_a_picture_and_is_given_back() -> None:
    console = terminal()
    view = training_view(console, "toy", Goals())
    stdout, stderr = sys.stdout, sys.stderr
    view.close()
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
    view.begin(0, 2000)
    view.add(RESULT)
    wait_for(lambda: "1,500 of 2,000" in console.file.getvalue())  # type: ignore[attr-defined]
    print("from the env")
    view.close()
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("toy", "1,500 of 2,000 env steps", "return of a", "10.25", "from the env"):
        assert text in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor, hidden and shown again
    assert (sys.stdout, sys.stderr) == (stdout, stderr)
    assert "1,500" not in shown.rpartition("\x1b[2K")[2]  # nothing is left of the picture
    view.close()
    assert console.file.getvalue() == shown  # type: ignore[attr-defined]


def test_the_last_picture_can_stay() -> None:
    console = terminal()
    view = training_view(console, "toy", Goals(), keep=True)
    view.begin(0, 2000)
    view.add(RESULT)
    view.close()
    assert "return of a" in console.file.getvalue().rpartition("toy")[2]  # type: ignore[attr-defined]


def test_no_line_of_a_picture_is_so_long_that_an_interrupt_begins_another() -> None:
    console = terminal(color_system=None)
    screen = screen_for(console, lambda size: Group(Text("left"), cut_line("x" * 200)), keep=False)
    screen.open()
    screen.close()
    lines = re.findall("x+…", console.file.getvalue())  # type: ignore[attr-defined]
    assert lines
    assert {len(line) for line in lines} == {100 - len("^C^C")}


@pytest.mark.parametrize("name", ["dumb", "unknown"])
def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TERM", name)
    assert isinstance(training_view(terminal(), "toy", Goals()), PlainLines)


def test_a_file_is_no_terminal_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(training_view(standard_console(), "toy", Goals()), PlainLines)


def test_a_notebook_gets_one_output_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    handle = SimpleNamespace(update=lambda bundle, raw: shown.append(bundle))

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> SimpleNamespace:
        shown.append(bundle)
        return handle

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    view = training_view(Console(force_jupyter=True), "<toy>", Goals(), keep=True)
    view.begin(0, 2000)
    view.add(RESULT)
    view.add(RESULT)  # a moment later
    view.close()
    view.close()
    assert len(shown) == 3
    assert "return of a" in shown[-1]["text/plain"]
    assert "&lt;toy&gt;" in shown[-1]["text/html"]
    assert shown[-1]["text/html"].startswith("<pre")
