"""Numbers, durations and trends in words."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from marl_sb3.extensions.display.screen import SafeConsole, standard_console
from marl_sb3.extensions.display.text import duration, folded, markdown_text, number, packed, sparkline


def test_names_stay_text_in_markdown() -> None:
    assert markdown_text("a|b<img src=x> [c](d) `e` *f* &lt;\n") == r"a\|b&lt;img src=x> \[c\](d) \`e\` \*f\* &amp;lt;"


@pytest.mark.parametrize(
    ("value", "digits", "expected"), [(None, 2, "-"), (0, 2, "0.00"), (-1234.567, 1, "-1,234.6"), (7, 0, "7")]
)
def test_numbers_are_for_people(value: float | None, digits: int, expected: str) -> None:
    assert number(value, digits) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (0.0, "0:00:00"), (59.6, "0:01:00"), (83, "0:01:23"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_durations_are_hours_minutes_and_seconds(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([1.0], ""),
        ([0.0, 7.0], "▁█"),
        ([3.0, 3.0], "▅▅"),
        ([0, 1, 2, 7], "▁▂▃█"),
        ([-1.7e308, 1.7e308], "▁█"),
    ],
)
def test_a_sparkline_goes_from_the_lowest_to_the_highest_value(values: list[float], expected: str) -> None:
    assert sparkline(values) == expected


def test_a_sparkline_can_be_ascii() -> None:
    assert sparkline([0, 1, 7], ascii_only=True) == "_.#"


def test_parts_are_packed_without_breaking_one() -> None:
    parts = ["abc", "de", "fghijk", "l"]
    assert packed(parts, 100) == ["abc  de  fghijk  l"]
    assert packed(parts, 7) == ["abc  de", "fghijk", "l"]
    assert packed(parts, 1) == parts


def test_lines_end_between_words_and_commands_and_paths_stay_whole() -> None:
    command = "python -m marl_sb3.train --resume runs/arena/20260101-000000-abcd"
    text = f"error: the run is not complete (see runs/arena/seed-1); continue with: {command}\n"
    assert folded(text, 40).split("\n") == [
        "error: the run is not complete (see",
        "runs/arena/seed-1); continue with:",
        command,
        "",
    ]
    for width in (200, 0):  # 0: a terminal that has not said it
        assert folded(text, width) == text
    quoted = "evaluate with: marl-sb3 evaluate 'my runs/a long name (b)/run one'"
    assert folded(quoted, 20).split("\n") == quoted.replace(": ", ":\n").split("\n")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_gets_whole_words_and_a_file_whole_lines(is_terminal: bool) -> None:
    console = SafeConsole(file=io.StringIO(), width=20, force_terminal=is_terminal, color_system=None)
    for line in ("means of the latest episodes", Text("means of the latest episodes")):
        console.print(line, soft_wrap=True)
    lines = ["means of the latest", "episodes"] if is_terminal else ["means of the latest episodes"]
    assert console.file.getvalue().splitlines() == 2 * lines  # type: ignore[attr-defined]


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    standard_console().print("wild:Fire: 60 env steps, [bold]a[/bold]")
    assert capsys.readouterr().out == "wild:Fire: 60 env steps, [bold]a[/bold]\n"
