"""Progress as views know it: pace, trends, and which agents to show."""

from __future__ import annotations

import io

import pytest
from display_results import Clock
from rich.console import Console

from marl_sb3.extensions.display.progress import ProgressClock, Series
from marl_sb3.extensions.display.tables import progress_bars, shown_agents
from marl_sb3.startup import COMPILING_S


def test_before_the_first_iteration_nothing_is_known_of_the_pace() -> None:
    clock = Clock()
    pace = ProgressClock(clock)
    assert (pace.elapsed_s(), pace.rate(), pace.left_s(0, 10)) == (0.0, None, None)
    pace.begin(500)
    clock.now_s += 2
    assert (pace.elapsed_s(), pace.rate()) == (2.0, None)


def test_the_pace_is_smooth_over_half_a_minute() -> None:
    clock = Clock()
    pace = ProgressClock(clock)
    pace.begin(1000)
    done = 1000
    for second in range(100):  # 100 steps/s, then 10 times as many in every tenth second
        clock.now_s += 1
        done += 1000 if second % 10 == 9 else 100
        pace.add(done)
    assert pace.rate() == pytest.approx(190, rel=0.02)
    assert pace.left_s(done, done + 1900) == pytest.approx(10, rel=0.02)
    assert pace.left_s(done, done - 1) == 0.0
    for _ in range(40):  # what is older than half a minute does not count
        clock.now_s += 1
        done += 50
        pace.add(done)
    assert pace.rate() == pytest.approx(50)


def test_the_time_of_compiling_is_no_part_of_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    pace = ProgressClock(clock)
    pace.begin(0)
    clock.now_s += 25
    monkeypatch.setattr("marl_sb3.extensions.display.progress.COMPILING_S", [COMPILING_S[0] + 20])
    pace.add(100)
    assert (pace.rate(), pace.left_s(100, 200), pace.elapsed_s()) == pytest.approx((20, 5, 25))


def test_many_short_iterations_are_one_sample_and_few_long_ones_all_count() -> None:
    clock = Clock()
    pace = ProgressClock(clock)
    pace.begin(0)
    for done in range(1, 100_001):
        clock.now_s += 0.001
        pace.add(done)
    assert pace.rate() == pytest.approx(1000)
    assert len(pace._samples) < 320
    pace.begin(100_000)  # rolled back
    for done in (100_600, 101_800):
        clock.now_s += 600
        pace.add(done)
    assert pace.rate() == pytest.approx(1.5)
    assert pace.elapsed_s() == pytest.approx(1300)


def test_a_series_keeps_the_whole_training_in_few_points() -> None:
    series = Series()
    assert (series.trend(8), series.best) == ([], None)
    for iteration in range(1, 10_001):
        series.add(float(iteration), iteration)
    series.add(None, 10_001)
    assert (series.best, series.best_iteration) == (10_000.0, 10_000)
    for width in (16, 30, 200):  # a trend is as wide as the room that there is
        assert len(series.trend(width)) == width
    trend = series.trend(16)
    assert trend == sorted(trend)
    assert trend[0] < 700
    assert trend[-1] > 9000
    assert series.trend(0) == []


def test_the_best_value_can_be_the_lowest() -> None:
    series = Series(higher_is_better=False)
    for iteration, value in enumerate([3.0, 1.0, 2.0], start=1):
        series.add(value, iteration)
    assert (series.best, series.best_iteration) == (1.0, 2)


def test_of_many_agents_the_best_and_the_worst_are_shown() -> None:
    returns = {"a": 1.0, "b": None, "c": 5.0, "d": 3.0, "e": -2.0, "f": 4.0}
    shown = shown_agents(returns, 3)
    assert (list(shown.first.items()), shown.others, dict(shown.last)) == ([("c", 5.0), ("f", 4.0)], 3, {"b": None})
    assert list(shown_agents(returns, 5).first) == list("abcdef")  # to mention one takes as much room
    assert list(shown_agents(returns, None).first) == list("abcdef")
    nobody = shown_agents(returns, 0)
    assert (nobody.first, nobody.others, nobody.last) == ({}, 6, {})


def test_a_constant_has_no_trend() -> None:
    series = Series()
    for iteration in range(1, 41):
        series.add(0.1, iteration)
    assert set(series.trend(7)) == {0.1}


def test_bars_count_in_units() -> None:
    bars = progress_bars()
    bars.add_task("arena, ppo, seed 0", total=4000, completed=1000, unit="env steps")
    bars.add_task("video frames", total=None)
    shown = io.StringIO()
    Console(file=shown, width=100).print(bars.get_renderable())
    first, second = shown.getvalue().splitlines()
    assert "1,000 of 4,000 env steps" in first
    assert "0 of ?" in second
    assert len(first.rstrip()) > 90  # the bar takes what the words leave
