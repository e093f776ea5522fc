"""What is left of a study: the file of its trials, the table, the page, and the settings that won."""

from __future__ import annotations

import copy
import csv
import io
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from plotly.offline import get_plotlyjs
from rich.console import Console

from marl_sb3.config import load_config
from marl_sb3.errors import ConfigError
from marl_sb3.runs.build import resolved
from marl_sb3.runs.folder import RunFolder
from marl_sb3.tuning import figures as figures_module
from marl_sb3.tuning.figures import draw_all
from marl_sb3.tuning.jobs.trials import run_trial
from marl_sb3.tuning.report import best_yml, html_report, trials_csv
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.space import parse_space
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.view import trials_table

SPACE: Mapping[str, Any] = {
    "learning_rate": {"log_uniform": [1e-4, 1e-2], "linear": True},
    "batch_size": {"choices": [50, 100]},
    "policy_kwargs.net_arch": {"choices": [[64, 64], [32]]},
}
TINY: Mapping[str, Any] = {"n_envs": 2, "n_steps": 25, "n_epochs": 1}
HOSTILE = (
    "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)><a href='https://evil.example'>"
    'x</a> "&amp; [red]\x1b[31m\x00\ud800\n=cmd|, second line'
)
HEAD = "number,state,value,learning_rate,batch_size,policy_kwargs.net_arch,seed,iterations,env_steps,seconds,"
TAIL = "wall_seconds,return,evaluations,retry_of,worker,folder,checkpoint,error"


@pytest.fixture(autouse=True)
def importances_of_few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw importances for as few trials as these tests have."""
    monkeypatch.setattr(figures_module, "_LEAST_TO_COMPARE", 2)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def new_study(folder: Path, space: Mapping[str, Any] = SPACE, **changes: Any) -> TuneStudy:
    fields = {"env": "arena", "name": "lr", "settings": TINY, "timesteps": 100, **changes}
    search = Search(space=parse_space(space, "space"), **fields)
    folder.mkdir(exist_ok=True)
    return TuneStudy(search, folder)


def add(
    study: TuneStudy,
    state: TrialState = TrialState.COMPLETE,
    value: float | None = None,
    curve: Sequence[float] = (),
    **notes: Any,
) -> optuna.trial.Trial:
    """A trial that was not trained: drawn, noted and told."""
    trial = study.next_trial("w1")
    assert trial is not None
    study.space.suggest(trial)
    for step, reported in enumerate(curve, start=1):
        trial.report(reported, step)
    for name, note in {"folder": str(study.folder_of(trial)), "seed": 100 + trial.number, **notes}.items():
        trial.set_user_attr(name, note)
    if state.is_finished():
        study.optuna.tell(trial, value, state=state)
    return trial


def some_of_each(study: TuneStudy) -> None:
    trained = {"iterations": 2, "env_steps": 100, "seconds": 1.5, "return": 30.25}
    for value in (1.0, 5.0, 3.0):
        checkpoint = str(Path("elsewhere") / "checkpoints" / "checkpoint_000002")
        add(study, value=value, curve=[0.5, value], checkpoint=checkpoint, **trained)
    add(study, TrialState.PRUNED, curve=[9.0], **trained)
    add(study, TrialState.FAIL, error="ConfigError: batch_size is 7;\naccepted: 5")
    add(study, TrialState.RUNNING, curve=[2.0])
    study.optuna.enqueue_trial({"batch_size": 50}, user_attrs={"retry_of": 4})


# --- trials.csv ------------------------------------------------------------------------------------------------------


def test_a_study_as_a_table_has_a_row_per_trial_with_values_as_they_were_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    study = new_study(tmp_path / "study")
    assert repr(study) == f"<Study {study.folder}: arena, 0 of 50 trials>"
    assert study.dataframe() == []
    some_of_each(study)
    trials_csv(study)
    rows = study.dataframe()
    assert [",".join(row) for row in rows] == [HEAD + TAIL] * len(study.trials)
    for row, trial in zip(rows, study.trials, strict=True):
        assert (row["number"], row["value"], row["seed"]) == (trial.number, trial.value, trial.user_attrs.get("seed"))
        assert {name: row[name] for name in trial.params} == trial.params
    assert repr(study).endswith(" of 50 trials, best 5.00 (trial 1)>")


def test_csv_is_without_the_noise_of_float32(tmp_path: Path) -> None:
    study = new_study(tmp_path)
    add(study, value=-2.80125014744699, **{"return": 4.439999853074551})
    (noisy,) = rows_of(trials_csv(study))
    assert (noisy["value"], noisy["return"]) == ("-2.80125", "4.44")


def test_csv_has_a_row_per_trial(tmp_path: Path) -> None:
    study = new_study(tmp_path / "study")
    some_of_each(study)
    path = trials_csv(study)
    rows = rows_of(path)
    assert path.read_text(encoding="utf-8").splitlines()[0] == HEAD + TAIL
    assert 0 <= float(rows[1].pop("wall_seconds")) < 60
    assert [row["state"] for row in rows] == ["COMPLETE"] * 3 + ["PRUNED", "FAIL", "RUNNING", "WAITING"]
    params = study.trials[1].params
    assert rows[1] == {
        "number": "1",
        "state": "COMPLETE",
        "value": "5.0",
        "learning_rate": repr(params["learning_rate"]),
        "batch_size": str(params["batch_size"]),
        "policy_kwargs.net_arch": params["policy_kwargs.net_arch"],
        "seed": "101",
        "iterations": "2",
        "env_steps": "100",
        "seconds": "1.5",
        "return": "30.25",
        "evaluations": "2",
        "retry_of": "",
        "worker": "w1",
        "folder": "trials/00001",
        "checkpoint": "trials/00001/checkpoints/checkpoint_000002",
        "error": "",
    }
    assert (rows[3]["value"], rows[3]["evaluations"]) == ("9.0", "1")
    assert rows[4]["error"] == "ConfigError: batch_size is 7; accepted: 5"
    assert (rows[6]["retry_of"], rows[6]["folder"], rows[6]["seed"], rows[6]["learning_rate"]) == ("4", "", "", "")
    assert not list(path.parent.glob(".unfinished-*"))


def test_csv_without_trials_has_a_head(tmp_path: Path) -> None:
    assert trials_csv(new_study(tmp_path)).read_text(encoding="utf-8") == f"{HEAD}{TAIL}\n"


def test_parameter_may_be_called_like_another_column(tmp_path: Path) -> None:
    study = new_study(tmp_path, space={"folder": {"choices": [1, 2]}, "clip_range_vf": {"choices": [None]}})
    add(study, value=1.0)
    (row,) = rows_of(trials_csv(study))
    assert (row["folder"], row["params_folder"]) == ("trials/00000", str(study.trials[0].params["folder"]))
    assert row["clip_range_vf"] == "null"


def test_hostile_error_stays_in_its_row(tmp_path: Path) -> None:
    study = new_study(tmp_path)
    add(study, TrialState.FAIL, error=HOSTILE)
    (row,) = rows_of(trials_csv(study))
    assert row["error"].endswith(r"[red]\x1b[31m\x00\ud800 =cmd|, second line")
    assert len(trials_csv(study).read_text(encoding="utf-8").splitlines()) == 2


# --- The table -------------------------------------------------------------------------------------------------------


def shown(study: TuneStudy, width: int = 200) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(trials_table(study.trials, study.search.mode, width))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_table_marks_the_best_and_tells_errors_below(tmp_path: Path) -> None:
    study = new_study(tmp_path)
    some_of_each(study)
    lines = shown(study)
    (best,) = [line for line in lines if line.lstrip().startswith("* 1 ")]
    assert re.search(r"COMPLETE .* 2 +1\.5 +0\.\d +100 +30\.25 +5\.00$", best)
    assert f"{study.trials[1].params['learning_rate']:.4g}" in best
    assert lines[-1] == "trial 4: ConfigError: batch_size is 7; accepted: 5"
    assert [line.split()[0] for line in lines[-8:-1]] == ["0", "*", "2", "3", "4", "5", "6"]


def test_least_is_the_best_where_less_is_better(tmp_path: Path) -> None:
    study = new_study(tmp_path, mode="min")
    some_of_each(study)
    assert [line for line in shown(study) if line.lstrip().startswith("* 0 ")]


def test_of_many_trials_the_best_ten_are_shown(tmp_path: Path) -> None:
    study = new_study(tmp_path, sampler="random")
    for value in range(29):
        add(study, value=float(value))
    add(study, TrialState.FAIL, error="broken")
    assert len([line for line in shown(study) if "COMPLETE" in line or "FAIL" in line]) == 30
    add(study, value=100.0)
    lines = shown(study)
    assert lines[-1] == "10 of 31 trials, the best first: 30 COMPLETE, 1 FAIL"
    assert [line.split()[-1] for line in lines[-11:-1]] == ["100.00", *(f"{value}.00" for value in range(28, 19, -1))]


def test_many_parameters_have_a_table_of_their_own(tmp_path: Path) -> None:
    space = {**SPACE, "gamma": {"choices": [0.9]}, "n_epochs": {"choices": [5]}}
    study = new_study(tmp_path, space=space)
    add(study, value=1.0)
    assert re.search(r"COMPLETE +0\.\d+ +\d+ +\[.*\] +0\.9 +5 +- ", shown(study)[-1])
    lines = shown(study, 80)
    assert [line.split() for line in lines[-3:-1]] == [
        ["learning_", "batch_"], ["trial", "rate", "size", "net_arch", "gamma", "n_epochs"]
    ]  # fmt: skip
    assert re.search(r"^ *\* 0 +0\.\d+ +\d+ +\[.*\] +0\.9 +5$", lines[-1])
    assert max(map(len, lines)) <= 80
    assert re.search(r"^\* 0: learning_rate=0\.\d+ batch_size=\d+ ", " ".join(shown(study, 40)[-4:]))


@pytest.mark.parametrize("width", [40, 80])
def test_table_of_nothing_and_of_hostile_words(tmp_path: Path, width: int) -> None:
    study = new_study(tmp_path)
    assert "objective" in " ".join(shown(study, 80))
    add(study, TrialState.FAIL, error=HOSTILE)
    text = "\n".join(shown(study, width))
    assert "\x1b" not in text
    assert "trial 0: </script><script>alert" in text


# --- report.html -----------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The elements of a page, its text, and its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._script = False
        self.scripts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._script = tag == "script"
        if self._script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[-1] += data
        else:
            self.text += data

    def plots(self) -> int:
        return sum("Plotly.newPlot" in script for script in self.scripts)


def page_of(study: TuneStudy) -> Page:
    """The page, after a look at what it would load."""
    html = html_report(study).read_text(encoding="utf-8")
    before, script, after = html.partition(get_plotlyjs())
    page = Page(f"{before}/* plotly.js */{after}" if script else html)
    assert html.count("plotly.js v") <= 1
    assert bool(script) == bool(page.plots())
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "a")
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import", before.partition("</head>")[0])
    return page


def test_page_has_a_summary_six_plots_and_all_trials(tmp_path: Path) -> None:
    study = new_study(tmp_path, timesteps=None)
    some_of_each(study)
    page = page_of(study)
    assert page.plots() == 6
    assert "Not drawn" not in page.text
    rate = study.trials[1].params["learning_rate"]
    for words in (
        "study lr",
        "more is better",
        "3 COMPLETE",
        f"learning_rate=lin_{rate:.4g}",
        "last of 10 evaluations",
    ):
        assert words in page.text
    assert "python -m marl_sb3.train --hparams best.yml" in page.text
    assert "ConfigError: batch_size is 7; accepted: 5" in page.text
    assert [attributes for tag, attributes in page.elements if tag == "tr"].count({"class": "best"}) == 1


def test_page_has_no_number_of_many_digits(tmp_path: Path) -> None:
    study = new_study(tmp_path)
    add(study, value=1 / 3, seconds=2 / 3)
    text, rate = page_of(study).text, study.trials[0].params["learning_rate"]
    assert not [number for number in (1 / 3, 2 / 3, rate) if repr(number) in text]
    assert not [number for number in (1 / 3, 2 / 3, rate) if f"{number:.4g}" not in text]


def figures_of(study: TuneStudy, winner: int | None) -> dict[str, Any]:
    return {title: figure for title, _, figure in draw_all(study.optuna, study.trials, winner)}


def test_slices_fit_the_page_and_the_winner_stands_out(tmp_path: Path) -> None:
    space = {**SPACE, "gamma": {"uniform": [0.8, 0.9]}, "n_epochs": {"choices": [5, 6]}}
    study = new_study(tmp_path, space=space)
    some_of_each(study)
    figures = figures_of(study, 1)
    slices = figures["Slices"]
    assert slices.layout.width is None
    axes = [slices.layout[f"{side}axis{n or ''}"].domain for side in "xy" for n in (0, 2, 3, 4, 5)]
    assert all(0 <= low < high <= 1 for low, high in axes)
    assert len({slices.layout[f"yaxis{n or ''}"].domain for n in (0, 2, 3, 4, 5)}) == 2  # rows
    stars = [trace for trace in slices.data if trace.name == "winner: trial 1"]
    assert [(trace.x[0], trace.y[0]) for trace in stars] == [
        (value, 5.0) for _, value in sorted(study.trials[1].params.items())
    ]
    assert [trace.name for trace in figures["Optimization history"].data][-1] == "winner: trial 1"
    figures_of(study, None)  # while there is none yet


def test_learning_curves_have_names(tmp_path: Path) -> None:
    study = new_study(tmp_path, sampler="random")
    for value in range(12):
        add(study, value=float(value), curve=[0.0, float(value)])
    add(study, TrialState.PRUNED, curve=[9.0])
    figure = figures_of(study, 11)["Learning curves"]
    named = {trace.name: trace for trace in figure.data if trace.showlegend is None}
    assert {*named} == {"trial 11 (winner)", *(f"trial {number}" for number in range(2, 11))}
    assert figure.data[-1].name == "trial 11 (winner)"  # on top of the others
    widths = [trace.line.width for trace in figure.data]
    assert widths[-1] > max(widths[:-1])
    (dotted,) = [trace for trace in figure.data if trace.line.dash == "dot"]
    assert (dotted.text[0], dotted.y[0]) == ("trial 12 (pruned)", 9.0)
    grey = figure.data[0]
    assert (grey.text, grey.y) == (
        ("trial 0", "trial 0", "", "trial 1", "trial 1", ""),
        (0.0, 0.0, None, 0.0, 1.0, None),
    )


def test_the_figures_of_many_trials_have_few_traces_and_copy_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = new_study(tmp_path, sampler="random")
    for value in range(40):
        add(study, value=float(value), curve=[0.0, float(value)])
    copies: list[int] = []
    deepcopy = copy.deepcopy
    monkeypatch.setattr(
        copy, "deepcopy", lambda x, *memo: (copies.append(1) if type(x) is FrozenTrial else None, deepcopy(x, *memo))[1]
    )
    monkeypatch.setattr(figures_module, "_N_PARALLEL", 20)
    figures = figures_of(study, 39)
    assert len(copies) == 40 + 20  # each trial once into the study that is drawn, and into that of one figure
    assert len(figures["Learning curves"].data) == 1 + 10
    lines = [trace.customdata[0][1] for trace in figures["Parallel coordinates"].data if trace.customdata is not None]
    assert sorted(map(float, lines)) == list(range(20, 40))


def test_page_loads_nothing(tmp_path: Path) -> None:
    study = new_study(tmp_path)
    add(study, value=1.0)
    policy = next(a["content"] for tag, a in page_of(study).elements if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    assert "*" not in policy


def test_hostile_words_are_words(tmp_path: Path) -> None:
    space = {"activation": {"choices": [HOSTILE, "tanh"]}, "x<b>": {"uniform": [0.0, 1.0]}}
    study = new_study(tmp_path, env=f"module:{HOSTILE}", name=HOSTILE, objective=HOSTILE, space=space)
    for value in (1.0, 2.0, 3.0):
        add(study, value=value, curve=[value], checkpoint=HOSTILE)
    add(study, TrialState.FAIL, error=HOSTILE)
    page = page_of(study)
    assert page.plots() == 6
    assert len(page.scripts) == 1 + 1 + 6  # plotly.js, its settings, a plot each
    assert page.text.count("<script>alert(1)</script>") >= 4
    assert not re.search(r"[\x00\x1b]", page.text)


TOO_FEW = "fewer than 2 trials were trained to their end, so that it would show chance"
NONE_ENDED = {"no trial was trained to its end", TOO_FEW}
NO_CURVE = "no trial that did not fail was evaluated"


@pytest.mark.parametrize(
    ("values", "n_plots", "reasons"),
    [
        ([], 0, {*NONE_ENDED, NO_CURVE, "no trial was started"}),
        ([None, None], 1, {*NONE_ENDED, NO_CURVE}),
        ([1.0], 5, {TOO_FEW}),
        ([2.0, 2.0, 2.0], 5, {"all trials have the same value"}),
    ],
)
def test_plots_that_cannot_be_made_say_why(
    tmp_path: Path, values: list[float | None], n_plots: int, reasons: set[str]
) -> None:
    study = new_study(tmp_path)
    for value in values:
        if value is None:
            add(study, TrialState.FAIL, error="broken")
        else:
            add(study, value=value, curve=[value])
    page = page_of(study)
    assert page.plots() == n_plots
    assert {*re.findall(r"Not drawn: (.*?)\.", page.text)} == reasons
    assert ("best.yml" in page.text) == (n_plots > 1)


def test_one_parameter_has_no_importances(tmp_path: Path) -> None:
    study = new_study(tmp_path, space={"batch_size": {"choices": [50, 100]}})
    for value in (1.0, 2.0):
        add(study, value=value, curve=[value])
    page = page_of(study)
    assert page.plots() == 5
    assert "Not drawn: there is one parameter only." in page.text


def test_plot_that_optuna_refuses_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: optuna.Study) -> None:
        raise ValueError(HOSTILE)

    monkeypatch.setattr(figures_module.visualization, "plot_slice", refuse)
    study = new_study(tmp_path)
    some_of_each(study)
    page = page_of(study)
    assert page.plots() == 5
    assert "Not drawn: ValueError: </script><script>alert(1)" in page.text


def test_own_env_is_named_in_the_command(tmp_path: Path) -> None:
    study = new_study(tmp_path, env="my_envs:make", space={"batch_size": {"choices": [50]}})
    add(study, value=1.0)
    assert "python -m marl_sb3.train my_envs:make --hparams best.yml" in page_of(study).text


def test_without_plotly_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna.visualization, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=re.escape("pip install -c constraints.txt '.[report]'")):
        html_report(new_study(tmp_path))
    assert not (tmp_path / "report.html").exists()


# --- best.yml --------------------------------------------------------------------------------------------------------


def write_config(study: TuneStudy, trial: optuna.trial.Trial) -> None:
    """As if it had been trained, by a worker with one core."""
    config = resolved(study.search.trial_config(study.space.settings(trial.params), 7))
    folder = RunFolder(study.folder_of(trial))
    folder.path.mkdir(parents=True)
    folder.write_config(replace(config, n_parallel_updates=1))


@pytest.mark.parametrize("env", ["arena", "toy_envs:make_it"])
def test_best_settings_are_those_of_a_training_without_a_search(tmp_path: Path, env: str) -> None:
    study = new_study(tmp_path, env=env, timesteps=2000, evaluations=2, settings={**TINY, "checkpoint_every": 3})
    for value in (1.0, 3.0, 2.0):
        write_config(study, add(study, value=value))
    path = best_yml(study)
    assert path == tmp_path / "best.yml"
    settings = {**study.search.settings, **study.space.settings(study.trials[1].params)}
    expected = resolved(load_config(env, settings=settings, seed=1))
    found = load_config(None, hparams=path, trusted_env=env)
    assert found == replace(expected, seed=None, n_parallel_updates=None)
    assert found.hyperparameters["learning_rate"].startswith("lin_")
    assert (found.checkpoints.every, found.evaluation.interval, found.evaluation.seed) == (3, 0, None)
    assert found.n_timesteps == load_config(env).n_timesteps
    said = "# The trial had 2000 env steps; n_timesteps is that of a whole training."
    assert said in path.read_text(encoding="utf-8").splitlines()


def test_best_settings_say_where_they_are_from(tmp_path: Path) -> None:
    study = new_study(tmp_path, name="two\nlines", mode="min", evaluations=1, evaluation_episodes=5)
    write_config(study, add(study, value=-1.5))
    path = best_yml(study)
    assert path is not None
    assert path.read_text(encoding="utf-8").splitlines()[:3] == [
        "# Trial 0 of study two lines: -1.5 (min) of sum, last of 1 evaluation of 5 episodes, in one training run with "
        "seed 100.",
        "# The trial had 100 env steps; n_timesteps is that of a whole training.",
        "arena:",
    ]


def test_best_settings_end_no_training_as_trials_ended(tmp_path: Path) -> None:
    study = new_study(tmp_path, settings={**TINY, "stop.iteration": 3}, evaluations=2)
    write_config(study, add(study, value=-2.80125014744699))
    path = best_yml(study)
    assert path is not None
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith("# Trial 0 of study lr: -2.80125 (max) of ")
    assert "# Trials ended when iteration was at least 3; a whole training does not." in lines
    assert load_config(None, hparams=path).stop == {}


def test_best_settings_keep_what_was_set_for_all_trials(tmp_path: Path) -> None:
    hparams = {"arena": {"n_timesteps": 5000, "gamma": 0.8}}
    study = new_study(tmp_path, hparams=hparams, n_envs=2, timesteps=100, evaluations=2)
    write_config(study, add(study, value=1.0))
    path = best_yml(study)
    assert path is not None
    found = load_config(None, hparams=path)
    assert (found.n_timesteps, found.n_envs, found.hyperparameters["gamma"]) == (5000, 2, 0.8)
    other = new_study(tmp_path / "other", settings={**TINY, "n_timesteps": 400}, timesteps=None, evaluations=2)
    write_config(other, add(other, value=1.0))
    path = best_yml(other)
    assert path is not None
    assert load_config(None, hparams=path).n_timesteps == 400


def test_without_a_complete_trial_there_are_no_best_settings(tmp_path: Path) -> None:
    study = new_study(tmp_path)
    assert best_yml(study) is None
    add(study, TrialState.FAIL, error="broken")
    add(study, TrialState.PRUNED, curve=[99.0])
    assert best_yml(study) is None
    assert not (tmp_path / "best.yml").exists()


def test_best_settings_of_a_trial_that_was_run_in_another_folder(tmp_path: Path) -> None:
    study = new_study(tmp_path, timesteps=2000)
    trial = add(study, value=1.0)
    path = best_yml(study)
    assert path is not None
    found = load_config(None, hparams=path)
    assert found.hyperparameters["batch_size"] == trial.params["batch_size"]
    assert (found.seed, found.n_timesteps) == (None, 200_000)


def test_a_real_trial_leaves_all_of_it(tmp_path: Path) -> None:
    study = new_study(tmp_path, trials=1, evaluations=2, evaluation_episodes=1)
    trial = study.next_trial("w1")
    assert trial is not None
    assert run_trial(study, trial)
    (row,) = rows_of(trials_csv(study))
    assert (row["state"], row["iterations"], row["env_steps"], row["evaluations"]) == ("COMPLETE", "2", "100", "2")
    assert (tmp_path / row["checkpoint"]).is_dir()
    assert float(row["seconds"]) > 0
    path = best_yml(study)
    assert path is not None
    assert load_config(None, hparams=path).n_timesteps == 200_000
    assert page_of(study).plots() == 5
