"""Learning curves: groups, bands, notes, files of every kind, and the form of marl-eval."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from written_runs import write_run

from marl_sb3.core.metrics.statistics import bootstrap_interval, mean
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.display.page import Page
from marl_sb3.plot import main as plot_command
from marl_sb3.results.curves import draw_up, points_of
from marl_sb3.results.drawing import matplotlib_figure, plotly_html
from marl_sb3.results.exchange import marl_eval_data
from marl_sb3.results.reading import read_records
from marl_sb3.results.records import RETURN, STEPS, RunRecord, group_by_argument, group_by_settings


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in range(3):
        write_run(tmp_path / "runs" / f"ppo-{seed}", [None, 1.0 + seed, 4.0, 5.0], seed=seed)
        write_run(
            tmp_path / "runs" / f"a2c-{seed}", [0.0, 1.0, 2.0, 3.0 * seed], seed=seed, algo="a2c",
            hyperparameters={"gamma": 0.5},
        )  # fmt: skip
    return tmp_path / "runs"


def test_runs_that_differ_in_their_seeds_are_one_curve_with_a_band(runs: Path) -> None:
    figure = draw_up(group_by_settings(read_records(runs)))
    total, agents = figure.panels
    assert [curve.group for curve in total.curves] == ["a2c", "ppo"]  # gamma follows from it
    assert {curve.part for curve in agents.curves} == {"a", "b"}
    a2c, ppo = total.curves
    assert a2c.x.tolist() == [100, 200, 300, 400]
    assert a2c.center.tolist() == [0, 1, 2, 3]
    assert ppo.x.tolist() == [200, 300, 400]  # no episode had ended before
    low, high = bootstrap_interval(np.array([[1.0, 4, 5], [2, 4, 5], [3, 4, 5]]), mean)
    np.testing.assert_allclose([ppo.low, ppo.high], [low, high])
    assert figure.caption == "mean of 3 runs, band: 95 % bootstrap interval"


def test_groups_are_those_of_the_settings_that_are_asked_for(runs: Path) -> None:
    records = read_records(runs)
    for name in ("hyperparameters.gamma", "gamma"):  # as after --set
        assert set(group_by_settings(records, [name]).runs) == {"gamma=0.5", "gamma=0.9"}
    assert len(group_by_settings(records, ["n_envs"]).runs["n_envs=2"]) == 6
    with pytest.raises(ConfigError, match="no run has a setting 'gama'; did you mean gamma"):
        group_by_settings(records, ["gama"])


def test_labels_name_what_differs_from_most_runs(tmp_path: Path) -> None:
    """Settings that a run does not have differ from those that another has; long labels are told apart."""
    runs = {
        "usual": {},
        "again": {},
        "low": {"env_kwargs": {"height": 6}},
        "own": {"policy_settings": {"a": {"gamma": 0.5}}},
        "other": {"n_timesteps": 5, "policy_settings": {"a": {"gamma": 0.9, "algo": "dqn"}}},
        "wide": {"hyperparameters": {"gamma": 0.9, "policy_kwargs": {"net_arch": [64] * 30}}},
        "wider": {"hyperparameters": {"gamma": 0.9, "policy_kwargs": {"net_arch": [64] * 31}}},
    }
    for name, settings in runs.items():
        write_run(tmp_path / name, [1.0], **settings)
    groups = group_by_settings(read_records(tmp_path))
    net = "policy_kwargs.net_arch=[64, 64, 64, 64, 64, 64, 64, 64, 64, ..."
    assert {label: len(records) for label, records in groups.runs.items()} == {
        "arena, ppo": 2, "env.height=6": 1, "a.gamma=0.5": 1, "a.algo=dqn": 1, f"{net} (1)": 1, f"{net} (2)": 1
    }  # fmt: skip
    figure = matplotlib_figure(draw_up(groups))
    figure.draw_without_rendering()  # lays out
    (legend,) = figure.legends
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert all(box.x1 <= legend.get_window_extent().x0 for box in boxes)
    assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in legend.get_texts())


def test_axes_and_smoothing(runs: Path) -> None:
    record = read_records(runs / "a2c-2")[0]
    assert points_of(record, RETURN, "agent_steps")[0].tolist() == [150, 300, 450, 600]
    assert points_of(record, RETURN, "seconds")[0].tolist() == [1, 2, 3, 4]
    assert points_of(record, RETURN, smooth=2)[1].tolist() == [0, 0.5, 1.5, 4]
    figure = draw_up(group_by_settings([record]), smooth=2)
    assert figure.caption == "moving average over 2 iterations"
    assert figure.notes == ("one run, so there is no interval",)
    assert figure.panels[0].curves[0].low is None


def test_columns_have_a_number_for_each_iteration() -> None:
    results = [{"x": 1, "note": "text", "on": True}, {"x": None, "huge": 10**400}, {"y": 2.5}]
    run = RunRecord("a run", "arena", {}, results)
    assert run.metrics == ["x", "y"]
    assert np.array_equal(run.columns["x"], [1.0, np.nan, np.nan], equal_nan=True)
    assert (run.last("x"), run.last("note")) == (1.0, None)


def test_runs_that_cannot_be_read_are_left_out_beside_others(runs: Path, capsys: Any) -> None:
    (runs / "a2c-0" / "config.yaml").write_text("arena: [")
    (runs / "a2c-1" / "result.jsonl").write_text("")
    assert plot_command([str(runs), "--out", str(runs / "a.svg")]) == 0
    said = capsys.readouterr().err
    assert re.search(r"warning: \S+/a2c-0 is no run to use: \S+config.yaml", said)
    assert re.search(r"warning: \S+/a2c-1 has logged nothing yet", said)


def test_where_a_run_has_ended_the_curve_is_that_of_the_others(runs: Path) -> None:
    write_run(runs / "long", [0.0, 2.0, 4.0, 6.0, 8.0, 10.0], seed=7)
    figure = draw_up(group_by_settings(read_records(f"{runs}/ppo-*") + read_records(runs / "long")))
    ppo = next(curve for curve in figure.panels[0].curves if curve.n == 4)
    after = ppo.x > 400
    assert (ppo.x[-1], ppo.center[-1]) == (600, 10)
    assert ppo.center[after] == pytest.approx((ppo.x[after] - 100) / 50)  # the long run alone
    assert np.isnan(ppo.low).tolist() == after.tolist()
    assert any("runs end between 400 and 600" in line for line in figure.notes)


def test_runs_that_are_never_there_together_have_a_line_each(tmp_path: Path) -> None:
    write_run(tmp_path / "short", [1.0, 2.0], seed=1)
    write_run(tmp_path / "late", [None, None, None, 4.0, 5.0], seed=2)
    (curve,) = draw_up(group_by_settings(read_records(tmp_path)), [RETURN]).panels[0].curves
    assert np.interp([100, 200, 400, 500], curve.x, curve.center) == pytest.approx([1, 2, 4, 5], abs=0.05)
    assert np.isnan(curve.center[(curve.x > 200) & (curve.x < 400)]).all()


def test_a_single_point_has_a_bar_as_its_band(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / str(seed), [float(seed)], seed=seed)
    figure = draw_up(group_by_argument({"a  b": read_records(tmp_path)}), [RETURN])
    assert matplotlib_figure(figure).axes[0].collections[0].get_linewidth() == 5
    html = plotly_html(Page("bars"), figure)
    assert '"width":5},' in html
    assert html.count('"meta":["group a b",') == html.count('value="group a b"') + 1  # a button, a band and a curve


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "html"])
def test_a_file_of_each_kind(runs: Path, ending: str, capsys: Any) -> None:
    out = runs / "figures" / f"curves.{ending}"
    assert plot_command([str(runs), "--out", str(out), "--statistic", "iqm"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    if ending == "png":
        with Image.open(out) as image:
            assert min(image.size) > 400
    elif ending == "pdf":
        assert out.read_bytes()[:5] == b"%PDF-"
    else:
        text = out.read_text(encoding="utf-8")
        assert "interquartile mean of 3 runs" in text
        assert "arena" in text
        assert "<script src=" not in text
    if ending == "html":
        legend = text.partition('<div class="key">')[2].partition("</div>")[0]
        assert re.findall('value="([^"]*)"', legend) == ["group a2c", "group ppo", "part a", "part b"]
        assert len(re.findall(r'id="plot-\d"', text)) == 2  # a figure for each panel, beside or below each other


def test_the_form_of_marl_eval_is_written_and_read_back(runs: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "exchanged.json"
    assert plot_command([str(runs), "--format", "marl-eval", "--out", str(out)]) == 0
    data = json.loads(out.read_text())
    run = data["arena"]["arena"]["a2c"]["seed_2"]
    assert run["step_0"] == {
        "step_count": 100, "return": [0.0], "episode_length": [10.0], "return_a": [0.0], "return_b": [0.0]
    }  # fmt: skip
    assert run["absolute_metrics"]["return"] == [6.0]
    ours, theirs = (draw_up(group_by_settings(read_records(path))) for path in (runs, out))
    for one, other in zip(ours.panels, theirs.panels, strict=True):
        for mine, read in zip(one.curves, other.curves, strict=True):
            assert (mine.group, mine.part) == (read.group, read.part)
            np.testing.assert_allclose(mine.center, read.center)
    assert plot_command([str(runs), str(out), "--out", str(tmp_path / "both.png")]) == 0  # in one figure


def test_a_cut_log_is_used_as_far_as_it_goes_and_that_is_said(runs: Path, capsys: Any) -> None:
    log = runs / "ppo-0" / "result.jsonl"
    log.write_text(log.read_text()[:-30])
    assert plot_command([str(runs), "--out", str(runs / "a.svg")]) == 0
    assert "is cut off; 3 are used" in capsys.readouterr().err
    log.write_text(f"{log.read_text()}broken\n")
    assert plot_command([str(runs), "--out", str(runs / "a.svg")]) == 0
    assert "line 4 is not valid JSON" in capsys.readouterr().err
    log.write_text("broken\n")
    assert plot_command([str(runs / "ppo-0"), "--out", str(runs / "a.svg")]) == 2
    assert "has logged nothing yet" in capsys.readouterr().err


def test_what_cannot_be_plotted_is_refused(runs: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "bad.json").write_text('{"env": {"task": {"algo": {"run": {"step_1": {"return": [1]}}}}}}')
    (tmp_path / "list.json").write_text("[1]")
    large = {"step_1": {"step_count": 10**400}, "step_2": {"step_count": 1e999}}
    for name, step in large.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"env": {"task": {"algo": {"run": {name: step}}}}}))
    refused = [
        ([str(tmp_path / "none")], "there is no run in"),
        ([str(tmp_path / "bad.json")], "env/task/algo/run/step_1 has no step_count"),
        ([str(tmp_path / "step_1.json")], "env/task/algo/run/step_1 has no step_count"),
        ([str(tmp_path / "step_2.json")], "env/task/algo/run/step_2 has no step_count"),
        ([str(tmp_path / "list.json")], "not a mapping; accepted: marl-eval's form"),
        ([str(runs), "--metric", "env_runners/episode_lenmean"], "did you mean env_runners/episode_len_mean"),
        ([str(runs), "--smooth", "0"], "smooth is 0; accepted: at least 1"),
        ([str(runs), "--out", str(runs / "ppo-0" / "config.yaml" / "c.svg")], "--out: cannot write"),
        ([str(runs), "--out", "curves.gif"], "accepted: a file that ends with .png"),
    ]
    for arguments, words in refused:
        assert plot_command(arguments) == 2
        assert words in capsys.readouterr().err


def test_runs_have_values_at_the_same_env_steps_in_marl_evals_form_if_asked() -> None:
    def record(name: str, steps: list[int]) -> RunRecord:
        results = [{STEPS: step, RETURN: float(step), "env_runners/episode_len_mean": 5.0} for step in steps]
        return RunRecord(name, "arena", {"seed": name}, results)

    groups = group_by_argument({"a": [record("1", [40, 80, 120])], "b": [record("2", [60, 120, 180])]})
    data = marl_eval_data(groups, points=3, absolute={"2": {"return": [7.0, 8.0]}})["arena"]["arena"]
    a, b = data["a"]["seed_1"], data["b"]["seed_2"]
    assert [(step["step_count"], step["return"]) for step in [*a.values()][:-1]] == [
        (60, [40]),
        (90, [80]),
        (120, [120]),
    ]
    assert [(step["step_count"], step["return"]) for step in [*b.values()][:-1]] == [
        (60, [60]),
        (90, [60]),
        (120, [120]),
    ]
    assert a["absolute_metrics"]["return"] == [120.0]
    assert b["absolute_metrics"] == {"return": [7.0, 8.0]}
