"""A page for people: what is escaped, what stands out, and that plotly.js is in it once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

from marl_sb3.extensions.display.page import Page, note, shorter, table, words

HOSTILE = "</p><script>alert(1)</script>\x1b[31m\n&amp;"


def test_page_has_its_sections_in_their_order(tmp_path: Path) -> None:
    page = Page("a < b")
    page.add("First", note("one"), note("two"))
    page.add("Second & last", table([["name", 1]]))
    text = page.write(tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("a &lt; b") == 2  # title and heading
    assert re.findall(r"<h2>(.*)</h2>", text) == ["First", "Second &amp; last"]
    assert text.index("one") < text.index("two") < text.index("Second") < text.index('<th scope="row">name</th><td>1')
    assert "default-src 'none'" in text
    assert "<script" not in text


def test_the_first_figure_includes_plotly_and_none_can_be_sent_anywhere() -> None:
    page = Page("figures")
    first, second = [page.figure(Figure().add_scatter(x=[1], y=[2])) for _ in range(2)]
    assert [get_plotlyjs() in first, get_plotlyjs() in second] == [True, False]
    assert ["plot-0" in first, "plot-1" in second] == [True, True]
    for html in (first.replace(get_plotlyjs(), ""), second):
        assert '"showSendToCloud": false' in html
        assert '"displaylogo": false' in html
        assert "http" not in html


def test_words_are_escaped_wherever_they_are() -> None:
    expected = "&lt;/p&gt;&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m &amp;amp;"
    assert words(HOSTILE) == expected
    page = Page(HOSTILE)
    page.add(HOSTILE, note(HOSTILE), table([[HOSTILE, HOSTILE]], [HOSTILE, HOSTILE]))
    assert page.html().count(expected) == 8


def test_the_best_row_stands_out_and_what_is_missing_is_empty() -> None:
    html = table([["a", None], ["b", 0.123456]], ["name", "value"], best=1)
    assert html.splitlines()[2:5] == [
        '<tr><th scope="col">name</th><th scope="col">value</th></tr>',
        "<tr><td>a</td><td></td></tr>",
        '<tr class="best"><td>b</td><td>0.1235</td></tr>',
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 / 3, 0.3333),
        ("lin_0.00123456", "lin_0.001235"),
        ("a=1.23456789e-05 b=0.1", "a=1.235e-05 b=0.1"),
        (123456, 123456),
        (None, None),
    ],
)
def test_numbers_have_four_significant_digits(value: object, expected: object) -> None:
    assert shorter(value) == expected
