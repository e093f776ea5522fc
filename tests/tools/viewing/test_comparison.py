"""Comparisons of experiments: hand-worked numbers, verdicts, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from written_runs import write_run

import marl_sb3
from marl_sb3.compare import main as compare_command
from marl_sb3.core.metrics.statistics import difference_interval
from marl_sb3.errors import ConfigError
from marl_sb3.tools.viewing.comparison import tables

METRIC = "env_runners/episode_return_mean"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Experiments: `weak` ends at 1 to 4, `strong` at 11 to 14, each after three iterations on the way."""
    for seed in range(1, 5):
        write_run(tmp_path / "weak" / str(seed), [0.0, seed / 2, float(seed)], seed=seed)
        write_run(tmp_path / "strong" / str(seed), [5.0, 8.0, 10.0 + seed], seed=seed, algo="a2c")
    return tmp_path


def test_the_better_of_two_experiments_is_found(runs: Path) -> None:
    found = marl_sb3.compare({"weak": runs / "weak", "strong": runs / "strong"})
    (pair,) = found.pairs
    assert pair.sentence == "strong is better than weak"
    assert (pair.difference, pair.improvement, pair.improvement_interval) == (10.0, 1.0, None)
    words = "every run of strong is better than every one of weak, which says no more about P(better); of 4 and 4 runs"
    assert f"{words} of the same settings, one group is ahead like this in 2.9 %" in found.notes  # 2 of 8 over 4 = 70
    assert pair.interval == pytest.approx(difference_interval([11, 12, 13, 14], [1, 2, 3, 4]))
    assert [sample.stats.mean for sample in found.samples] == [2.5, 12.5]
    assert [sample.iqm for sample in found.samples] == [2.5, 12.5]
    assert found.threshold == 2.5
    weak, strong = (sample.reached for sample in found.samples)
    assert (weak.n, weak.of, weak.env_steps, weak.seconds) == (2, 4, 300.0, 3.0)
    assert (strong.n, strong.of, strong.env_steps, strong.seconds) == (4, 4, 100.0, 1.0)
    assert found.settings == {"algo": {"weak": "ppo", "strong": "a2c"}}
    thresholds, shares = found.profile()
    assert (thresholds[0], shares["weak"][0], shares["strong"][0]) == (1.0, 0.75, 1.0)


def test_what_one_experiment_sets_and_the_other_does_not_is_shown(tmp_path: Path) -> None:
    """What a policy does not set for itself is what all policies have."""
    write_run(tmp_path / "a", [1.0], hyperparameters={"gamma": 0.9, "policy_kwargs": None})
    write_run(
        tmp_path / "b", [1.0], env_kwargs={"height": 6}, policy_settings={"p.1": {"gamma": 0.5, "frame_stack": 2}},
        hyperparameters={"gamma": 0.9, "policy_kwargs": {"net_arch": [8]}}, processing={"frame_stack": 1},
    )  # fmt: skip
    found = marl_sb3.compare([tmp_path / "a", tmp_path / "b"])
    a, b = (str(tmp_path / name) for name in "ab")
    assert found.to_plain()["settings"] == {
        "hyperparameters.policy_kwargs.net_arch": {b: [8]},
        "env_kwargs.height": {b: 6},
        "policy_settings.p.1.gamma": {a: 0.9, b: 0.5},
        "policy_settings.p.1.frame_stack": {b: 2},
        "processing.frame_stack": {b: 1},
    }
    assert ["env.height", "not set", "6"] in tables(found)[2].rows  # as `--set` takes it


def test_runs_of_one_experiment_that_differ_in_more_than_seeds_are_named(runs: Path) -> None:
    write_run(runs / "weak" / "5", [4.0], seed=5, n_envs=9)
    found = marl_sb3.compare([runs / "weak", runs / "strong"])
    assert f"the runs of {runs / 'weak'} differ in n_envs, not in their seeds alone" in found.notes
    n_envs = [row[1:] for row in tables(found)[2].rows if row[0] == "n_envs"]
    assert n_envs == [["2 or 9", "2"]]  # not that of the first run alone


def test_a_run_of_two_experiments_counts_in_the_first_one(runs: Path, capsys: Any) -> None:
    one, pattern = str(runs / "weak" / "1"), str(runs / "weak" / "*")
    assert compare_command([one, pattern, str(runs / "weak" / ".." / "weak" / "[23]"), "--json"]) == 2
    weak = str(runs / "weak")
    assert f"all runs of {weak}/../weak/[23] are in {weak}, too; accepted: experiments that" in " ".join(
        capsys.readouterr().err.split()
    )
    assert compare_command([one, pattern, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [(sample["label"], sample["finals"]) for sample in plain["samples"]] == [(one, [1.0]), (weak, [2, 3, 4])]
    words = f"1 run of {weak} is in {one}, too, and left out of {weak}: a run cannot stand on both sides"
    assert words in plain["notes"]
    twice = marl_sb3.compare({"a": [runs / "weak", runs / "weak" / "1"], "b": runs / "strong"})
    assert len(twice.samples[0].finals) == 4


def test_runs_of_other_lengths_are_said(runs: Path) -> None:
    """Each run has 100 env steps in an iteration."""
    write_run(runs / "weak" / "5", [0.0, 1.0, 2.0, 3.0], seed=5)
    for seed in (1, 2):
        write_run(runs / "long" / str(seed), [float(seed)] * 6, seed=seed)
    notes = marl_sb3.compare({"weak": runs / "weak", "long": runs / "long"}).notes
    assert "weak: runs end between 300 and 400 env steps; where one has ended, the curve is that of the others" in notes
    assert (
        "runs end at different env steps, and their last values are compared: weak at 300 env steps, long at 600"
        in notes
    )


def test_less_may_be_better(runs: Path) -> None:
    found = marl_sb3.compare({"weak": runs / "weak", "strong": runs / "strong"}, mode="min", threshold=3)
    (pair,) = found.pairs
    assert (pair.verdict, pair.difference, pair.improvement) == ("worse", 10.0, 0.0)
    assert any(
        note.startswith("no run of strong is better than any of weak, which says no more") for note in found.notes
    )
    assert pair.interval == pytest.approx(difference_interval([11, 12, 13, 14], [1, 2, 3, 4]))
    assert [sample.reached.n for sample in found.samples] == [4, 0]


def copied(runs: Path, name: str, to: Path) -> Path:
    """The runs of an experiment once more, as runs of their own."""
    return Path(shutil.copytree(runs / name, to))


def test_the_same_experiment_is_undecided_and_few_seeds_decide_nothing(runs: Path, tmp_path: Path) -> None:
    again = copied(runs, "weak", tmp_path / "again")
    halves = {"a": [runs / "weak" / "1", runs / "weak" / "2", runs / "weak" / "4"], "b": again}
    found = marl_sb3.compare(halves)
    assert found.pairs[0].verdict == "undecided"
    low, high = found.pairs[0].improvement_interval or (0.5, 0.5)
    assert 0.0 <= low < found.pairs[0].improvement < high <= 1.0
    assert any("fewer than 5 seeds of a, b" in line for line in found.notes)
    found = marl_sb3.compare([runs / "weak" / "1", runs / "strong"])
    assert found.pairs[0].sentence.startswith("too few seeds to compare")
    assert found.pairs[0].interval is None
    assert "one run, and so no interval" in " ".join(found.notes)


def test_several_pairs_hold_together(runs: Path, tmp_path: Path) -> None:
    """Their intervals are wider than that of one pair."""
    one = marl_sb3.compare({"weak": runs / "weak", "strong": runs / "strong"}).pairs[0].interval
    again = copied(runs, "strong", tmp_path / "again")
    both = marl_sb3.compare({"weak": runs / "weak", "strong": runs / "strong", "again": again}).pairs[0]
    assert one is not None
    assert both.interval is not None
    assert both.interval[0] < one[0]
    assert both.interval[1] > one[1]


def test_the_command_prints_tables_or_json_and_writes_a_page(runs: Path, capsys: Any) -> None:
    arguments = [str(runs / "weak"), str(runs / "strong")]
    page = runs / "page.html"
    assert compare_command([*arguments, "--out", str(page)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "strong is better than weak" in printed  # without the folder that both are in
    assert "<h1>arena: weak against strong</h1>" in page.read_text(encoding="utf-8")
    assert compare_command([f"{path}/*" for path in arguments]) == 0
    assert " ".join(capsys.readouterr().out.split()) == printed.removesuffix(f" {page}")
    html = page.read_text(encoding="utf-8")
    assert "a curve that lies above another is better everywhere" in html
    assert "<script src=" not in html  # it opens offline
    assert compare_command([*arguments, "--json", "--mode", "min", "--out", str(page)]) == 0
    assert "a curve that lies below another is better everywhere" in page.read_text(encoding="utf-8")
    plain = json.loads(capsys.readouterr().out)
    assert (plain["pairs"][0]["verdict"], plain["pairs"][0]["improvement_interval"]) == ("worse", None)
    assert plain["samples"][0]["stats"]["n"] == 4


def test_names_and_numbers_stay_whole_at_80_columns(runs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["20261128-214800-ab12", "20261128-214800-cd34"]
    for name, of in zip(names, ("weak", "strong"), strict=True):
        copied(runs, of, runs / name)
    monkeypatch.setenv("COLUMNS", "80")
    assert compare_command([str(runs / name) for name in names]) == 0
    words = capsys.readouterr().out.split()
    assert {*names, "experiment", "interval", "reached", "seconds", "difference", "P(better)"} <= {*words}
    assert words.count(names[0]) >= 3


def test_what_cannot_be_compared_is_refused(runs: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "other" / "1", [None, None])
    refused = [
        ({"a": runs / "weak"}, {}, "only a is given; accepted: two experiments"),
        ([runs / "weak", runs / "weak"], {}, "two experiments are the same"),
        ([runs / "weak", runs / "nothing"], {}, "there is no run in"),
        ([runs / "weak", tmp_path / "other"], {}, "has no env_runners/episode_return_mean"),
        ([runs / "weak", runs / "strong"], {"metric": "env_runners/episode_return"}, "did you mean"),
        ([runs / "weak", runs / "strong"], {"mode": "most"}, "mode is 'most'; accepted: max, min"),
    ]
    for experiments, how, words in refused:
        with pytest.raises(ConfigError, match=words):
            marl_sb3.compare(experiments, **how)
    assert compare_command([str(runs / "weak"), str(runs / "strong"), "--out", "page.pdf"]) == 2
