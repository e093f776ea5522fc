"""Reports: what is on the page of a run, the table over runs, and what is said of damaged ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marl_sb3
from marl_sb3.core.metrics.names import flatten
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.display.text import markdown_text
from marl_sb3.report import main
from marl_sb3.tools.viewing.report import RunData, html_page, markdown, read_runs

GIF = b"GIF89a and so on"
SMALL = {"n_steps": 20, "batch_size": 20, "n_epochs": 1, "env.max_timesteps": 15, "policy_kwargs.net_arch": [8]}


def of_run(folder: Path) -> RunData:
    (run,), _ = read_runs([str(folder)])
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the arena with policies of their own, and one without a checkpoint or a log."""
    folder = tmp_path_factory.mktemp("report") / "runs" / "arena"
    for seed in (1, 2):
        setup = {"n_envs": 2, "timesteps": 80, "seed": seed, "policies": "per_agent"}
        marl_sb3.train("arena", settings=SMALL, run_dir=folder / f"seed{seed}", **setup).close()
    bare = folder.parent / "bare" / "a <b>"
    bare.mkdir(parents=True)
    (bare / "config.yaml").write_text((folder / "seed1" / "config.yaml").read_text())
    return folder


def text_of(html: str) -> str:
    """The page without scripts and tags."""
    html = re.sub("</?code>", "", html)
    return re.sub(r"<[^>]+>", " ", re.sub(r"<script.*?</script>|<style.*?</style>", " ", html, flags=re.DOTALL))


def test_the_page_of_a_run_has_all_its_sections(runs: Path) -> None:
    (runs / "seed1" / "play.gif").write_bytes(GIF)
    html = html_page([of_run(runs / "seed1")]).html()
    (runs / "seed1" / "play.gif").unlink()
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        *("Summary", "Hints", "Settings", "Curves", "Agents", "Policies", "Learner health", "Videos"),
        "How to repeat it",
    ]
    assert html.count('src="data:image/gif;base64,R0lGODlh') == 1
    assert re.search(r'(src|href)="(?!data:)', re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)) is None
    text = text_of(html)
    assert "Nothing looks wrong. 2 iterations: too few to judge." in text
    assert f"python -m marl_sb3.train --hparams {runs}/seed1/config.yaml" in text
    assert re.search(r"agent1\s+agent1\s", text) is not None  # an agent, and its policy
    assert {"KL divergence", "clip fraction"} <= {*re.findall('<th scope="col">(.*?)</th>', html)}  # as figures say
    assert re.search(r"policy agent1\s+compiled kernels choose the actions and compute the updates", text) is not None


def test_settings_that_differ_from_the_preset_come_first(runs: Path) -> None:
    html = html_page([of_run(runs / "seed1")]).html()
    first = html[html.index("<h2>Settings") : html.index("<details>")]
    rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", first)
    assert {name: (own, preset) for name, own, preset in rows} == {
        "n_timesteps": ("80", "200000"),
        "n_envs": ("2", "20"),
        "policies": ("per_agent", "shared"),
        "env.max_timesteps": ("15", ""),
        "n_steps": ("20", "100"),
        "batch_size": ("20", "200"),
        "n_epochs": ("1", "5"),
        "policy_kwargs.net_arch": ("[8]", ""),
    }
    assert "learning_rate" in html[html.index("<details>") :]


def test_several_runs_have_a_table_and_their_curves(runs: Path) -> None:
    html = html_page(read_runs([str(runs)])[0]).html()
    assert re.findall(r"<h[12]>(.*?)</h[12]>", html) == ["2 runs", "Runs", "Returns in arena", "Hints"]
    assert html.count("Plotly.newPlot") == 1
    assert html.count('<td class="long">n_timesteps=80, n_envs=2, policies=per_agent, ') == 2  # it is not cut
    assert "mean of 2 runs, band: 95 % bootstrap interval" in html  # they differ in their seeds alone


def data(folder: Path, returns: list[float], **more: Any) -> RunData:
    rows = [
        {"num_env_steps_sampled_lifetime": 10 * (n + 1), "env_runners": {"episode_return_mean": value}}
        for n, value in enumerate(returns)
    ]
    found = of_run(folder)
    return replace(found, record=replace(found.record, results=[flatten({**row, **more}) for row in rows]))


def test_the_table_of_runs_takes_evaluations_and_has_means_over_runs(runs: Path) -> None:
    folder = runs / "seed1"
    evaluation = {"episode_return_mean": 4.0, "num_episodes": 10, "num_env_steps_sampled": 150}
    three = [
        data(folder, [1.0, 2.0]),
        data(folder, [1.0, 3.0, 9.0], evaluation={"env_runners": evaluation}),
        data(folder, []),
    ]
    head, _, row = markdown(three).splitlines()
    names = "algo env_id policies runs mean_reward std_reward n_timesteps eval_timesteps eval_episodes"
    assert head == f"| {' | '.join(names.split())} |"
    # The mean of 2 and 4, and their standard deviation, the square root of 2.
    assert row == "| ppo | arena | per_agent | 3 | 3.00 | 1.41 | 20 to 30 | 150 | 10 |"


def test_what_is_readable_of_a_cut_log_is_used_and_said(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text((runs / "seed1" / "config.yaml").read_text())
    log = (runs / "seed1" / "result.jsonl").read_text()
    (tmp_path / "result.jsonl").write_text(log[: log.index("\n") + 40])
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert re.fullmatch(r"warning: the last line of .*result.jsonl is cut off; 1 are used\n", said.err)
    assert said.out == f"report: {tmp_path}/report.html\n"
    assert "is cut off; 1 are used" in text_of((tmp_path / "report.html").read_text())


def test_a_run_without_log_and_with_an_odd_name_has_a_page(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    assert main([str(runs.parent / "bare"), "--out", str(out)]) == 0
    html = out.read_text()
    assert re.findall(r"<h2>(.*?)</h2>", html) == ["Summary", "Hints", "Settings", "How to repeat it"]
    assert "a &lt;b&gt;" in html
    assert "a <b>" not in html


def test_a_run_that_cannot_be_read_is_left_out_beside_others(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, config in {"good": (runs / "seed1" / "config.yaml").read_text(), "bad": "arena: {n_envs: many}"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(config)
        (tmp_path / name / "result.jsonl").write_text('{"huge": 1' + "0" * 400 + "}\n")
    assert main([str(tmp_path), "--markdown"]) == 0
    said = capsys.readouterr()
    assert "| ppo | arena | per_agent | 1 | - | - | - | - | - |" in said.out
    assert re.match(r"warning: .*bad is left out: .*n_envs", said.err)
    assert main([str(tmp_path / "bad"), "--markdown"]) == 2
    assert "n_envs" in capsys.readouterr().err


def test_hints_are_on_the_page(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((runs / "seed1" / "config.yaml").read_text())
    lines = [
        {"iteration": n, "num_env_steps_sampled_lifetime": n, "learners": {"p": {"mean_kl_loss": 3.0}}} for n in (1, 2)
    ]
    (tmp_path / "result.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = text_of(html_page([of_run(tmp_path)]).html())
    assert "policy p: the KL divergence explodes" in text
    assert "learners/p/mean_kl_loss is 3; usual: about 0.02 or less." in text
    lines = markdown([of_run(tmp_path)]).splitlines()[3:]
    assert lines[3].startswith(
        "- looks wrong: policy p: the KL divergence explodes, 3 (usual: about 0.02 or less). Try: "
    )
    assert lines[4] == f"- what it may mean: python -m marl_sb3.report {markdown_text(str(tmp_path))}"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nowhere", "nowhere: there is no run; accepted: run folders, folders of runs, or names of envs in runs/"),
        (". --out page.pdf", "--out is 'page.pdf'; accepted: a file that ends in .html or .htm"),
        (". --markdown --out page.html", "--out is 'page.html'; accepted: a file that ends in .md"),
    ],
)
def test_what_cannot_be_reported_is_said(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"error: {words}\n"


def test_the_table_is_printed_or_written(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs.parent.parent)
    assert main(["arena", "--markdown"]) == 0  # the runs of an env, by its name
    printed = capsys.readouterr().out
    assert printed.count("| ppo | arena | per_agent | 2 |") == 1
    assert main(["runs/arena", "--markdown", "--out", str(tmp_path / "b.md")]) == 0
    assert (tmp_path / "b.md").read_text() == printed
    monkeypatch.setattr("marl_sb3.tools.viewing.report._MOST_RUNS", 1)
    with pytest.raises(ConfigError, match="2 runs are found; accepted: up to 1"):
        read_runs(["arena"])
