"""What is left of a study: the file of its trials, the page, and the settings that won."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState
from plotly.offline import get_plotlyjs
from searches import rows_of, trial_of

from marl_sb3.errors import ConfigError
from marl_sb3.runs.building import resolved
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.settings import load_config
from marl_sb3.tools.tuning.report import best_files, html_report, trials_csv
from marl_sb3.tools.tuning.search import Search
from marl_sb3.tools.tuning.space import parse_space
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trials import run_trial

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
TAIL = "wall_seconds,cpu_seconds,return,evaluations,retry_of,worker,folder,checkpoint,error"


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
    **stored: Any,
) -> FrozenTrial:
    """Add a trial that was not trained."""
    number = len(study.trials)
    stored = {"worker": "w1", "folder": str(study.folder / "trials" / f"{number:05d}"), "seed": 100 + number, **stored}
    study.optuna.add_trial(trial_of(study.space, number, state, value, curve, **stored))
    return study.trials[-1]


def some_of_each(study: TuneStudy) -> None:
    trained = {"iterations": 2, "env_steps": 100, "seconds": 1.5, "cpu_seconds": 0.9, "return": 30.25}
    for value in (1.0, 5.0, 3.0):
        checkpoint = str(Path("elsewhere") / "checkpoints" / "checkpoint_000002")
        add(study, value=value, curve=[0.5, value], checkpoint=checkpoint, **trained)
    add(study, TrialState.PRUNED, 9.0, curve=[9.0], **trained)
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
    rows = study.dataframe()
    assert [",".join(row) for row in rows] == [HEAD + TAIL] * len(study.trials)
    for row, trial in zip(rows, study.trials, strict=True):
        assert (row["number"], row["value"], row["seed"]) == (trial.number, trial.value, trial.user_attrs.get("seed"))
        assert {name: row[name] for name in trial.params} == trial.params
    assert repr(study).endswith(" of 50 trials, best 5.00 (trial 1)>")


def test_csv_has_a_row_per_trial(tmp_path: Path) -> None:
    study = new_study(tmp_path / "study")
    assert trials_csv(study).read_text(encoding="utf-8") == f"{HEAD}{TAIL}\n"
    some_of_each(study)
    path = trials_csv(study)
    rows = rows_of(path)
    assert path.read_text(encoding="utf-8").splitlines()[0] == HEAD + TAIL
    assert 0 <= float(rows[1].pop("wall_seconds")) < 60
    assert [row["state"] for row in rows] == ["COMPLETE"] * 3 + ["PRUNED", "FAIL", "RUNNING", "WAITING"]
    params = study.trials[1].params
    assert ",".join(rows[1].values()) == (
        f"1,COMPLETE,5.0,lin_{params['learning_rate']!r},{params['batch_size']},{params['policy_kwargs.net_arch']},101,2,100,"
        "1.5,0.9,30.25,2,,w1,trials/00001,trials/00001/checkpoints/checkpoint_000002,"
    )
    assert (rows[3]["value"], rows[3]["evaluations"]) == ("9.0", "1")
    assert rows[4]["error"] == "ConfigError: batch_size is 7; accepted: 5"
    assert (rows[6]["retry_of"], rows[6]["folder"], rows[6]["seed"], rows[6]["learning_rate"]) == ("4", "", "", "")
    assert not list(path.parent.glob(".unfinished-*"))


def test_csv_has_neither_the_noise_of_float32_nor_lines_of_an_error(tmp_path: Path) -> None:
    study = new_study(tmp_path)
    add(study, value=-2.80125014744699, **{"return": 4.439999853074551})
    add(study, TrialState.FAIL, error=HOSTILE)
    noisy, failed = rows_of(trials_csv(study))
    assert (noisy["value"], noisy["return"]) == ("-2.80125", "4.44")
    assert failed["error"].endswith(r"[red]\x1b[31m\x00\ud800 =cmd|, second line")
    assert len(trials_csv(study).read_text(encoding="utf-8").splitlines()) == 3


def test_parameter_may_be_called_like_another_column(tmp_path: Path) -> None:
    study = new_study(tmp_path, space={"folder": {"choices": [1, 2]}, "clip_range_vf": {"choices": [None]}})
    trial = add(study, value=1.0)
    (row,) = rows_of(trials_csv(study))
    assert (row["folder"], row["params_folder"]) == ("trials/00000", str(trial.params["folder"]))
    assert row["clip_range_vf"] == "null"


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
    policy = next(a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    assert "*" not in policy
    return page


def test_page_has_a_summary_plots_and_all_trials(tmp_path: Path) -> None:
    study = new_study(tmp_path, timesteps=None)
    some_of_each(study)
    add(study, value=1 / 3, seconds=2 / 3)
    page = page_of(study)
    assert page.plots() == 3 + 3  # of slices, one for each parameter
    rate = study.trials[1].params["learning_rate"]
    for words in (
        "study lr",
        "more is better",
        "4 COMPLETE",
        f"learning_rate=lin_{rate:.4g}",
        "mean_of_last_3 of 10 evaluations",
    ):
        assert words in page.text
    assert "python -m marl_sb3.train --hparams best.yml" in page.text
    assert "ConfigError: batch_size is 7; accepted: 5" in page.text
    assert [attributes for tag, attributes in page.elements if tag == "tr"].count({"class": "best"}) == 1
    for number in (1 / 3, 2 / 3, rate):
        assert repr(number) not in page.text
        assert f"{number:.4g}" in page.text


def test_hostile_words_are_words(tmp_path: Path) -> None:
    space = {"activation": {"choices": [HOSTILE, "tanh"]}, "x<b>": {"uniform": [0.0, 1.0]}}
    study = new_study(tmp_path, env=f"module:{HOSTILE}", name=HOSTILE, objective=HOSTILE.replace(",", ""), space=space)
    for value in range(30):
        add(study, value=float(value), curve=[value], checkpoint=HOSTILE)
    add(study, TrialState.FAIL, error=HOSTILE)
    page = page_of(study)
    assert page.plots() == 4 + 2
    assert "Not drawn" not in page.text
    assert len(page.scripts) == 2 + 6 + 1  # plotly.js and its settings, a plot each, and what legends need
    assert page.text.count("<script>alert(1)</script>") >= 4
    assert not re.search(r"[\x00\x1b]", page.text)


def test_own_env_is_named_in_the_command(tmp_path: Path) -> None:
    study = new_study(tmp_path, env="my_envs:make", space={"batch_size": {"choices": [50]}})
    assert "best.yml" not in page_of(study).text
    add(study, value=1.0)
    assert "python -m marl_sb3.train my_envs:make --hparams best.yml" in page_of(study).text


def test_without_plotly_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl_sb3.startup.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"report.html needs plotly, which is not installed; .*pip install .*report"):
        html_report(new_study(tmp_path))
    assert not (tmp_path / "report.html").exists()


# --- best.yml --------------------------------------------------------------------------------------------------------


def write_config(study: TuneStudy, trial: FrozenTrial) -> None:
    """As if it had been trained, by a worker with one core."""
    config = resolved(study.search.trial_config(study.space.settings(trial.params), 7))
    folder = RunFolder(study.folder_of(trial))
    folder.path.mkdir(parents=True)
    folder.write_config(replace(config, n_parallel_updates=1))


def lines_of_best(study: TuneStudy) -> list[str]:
    (path,) = best_files(study)
    assert path == study.folder / "best.yml"
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("env", ["arena", "toy_envs:make_it"])
def test_best_settings_are_those_of_a_training_without_a_search(tmp_path: Path, env: str) -> None:
    study = new_study(tmp_path, env=env, timesteps=2000, evaluations=2, settings={**TINY, "checkpoint_every": 3})
    for value in (1.0, 3.0, 2.0):
        write_config(study, add(study, value=value))
    lines = lines_of_best(study)
    if env == "arena":
        assert "# The trial had 2000 env steps; n_timesteps is that of a whole training." in lines
    settings = {**study.search.settings, **study.space.settings(study.trials[1].params)}
    budget = None if env == "arena" else 2000
    expected = resolved(load_config(env, settings=settings, seed=1, n_timesteps=budget))
    found = load_config(None, hparams=tmp_path / "best.yml", trusted_env=env)
    assert found == replace(expected, seed=None, n_parallel_updates=None)
    assert found.hyperparameters["learning_rate"].startswith("lin_")
    assert (found.checkpoints.every, found.evaluation.interval, found.evaluation.seed) == (3, 0, None)
    assert found.n_timesteps == (200_000 if env == "arena" else 2000)  # without a preset, that of a trial


def test_best_settings_say_where_they_are_from(tmp_path: Path) -> None:
    study = new_study(tmp_path, name="two\nlines", mode="min", evaluations=1, evaluation_episodes=5)
    write_config(study, add(study, value=-2.80125014744699))
    assert lines_of_best(study)[:4] == [
        "# Study two lines: Trial 0 has the best value, -2.80, of one training each. It was not compared with the "
        "preset, and the best of many values is partly due to chance.",
        "# Trial 0: -2.80125 (min) of sum, mean_of_last_3 of 1 evaluation of 5 episodes, with seed 100.",
        "# The trial had 100 env steps; n_timesteps is that of a whole training.",
        "arena:",
    ]


def test_best_settings_end_no_training_as_trials_ended(tmp_path: Path) -> None:
    study = new_study(tmp_path, settings={**TINY, "stop.iteration": 3}, evaluations=2)
    write_config(study, add(study, value=1.0))
    assert "# Trials ended when iteration was at least 3; a whole training does not." in lines_of_best(study)
    assert load_config(None, hparams=tmp_path / "best.yml").stop == {}


@pytest.mark.parametrize(
    ("options", "n_timesteps"),
    [
        ({"hparams": {"arena": {"n_timesteps": 5000, "gamma": 0.8}}, "timesteps": 100}, 5000),
        ({"settings": {**TINY, "n_timesteps": 400, "gamma": 0.8}, "timesteps": None}, 400),
    ],
)
def test_best_settings_keep_what_was_set_for_all_trials(
    tmp_path: Path, options: dict[str, Any], n_timesteps: int
) -> None:
    study = new_study(tmp_path, evaluations=2, **options)
    write_config(study, add(study, value=1.0))
    lines_of_best(study)
    found = load_config(None, hparams=tmp_path / "best.yml")
    assert (found.n_timesteps, found.n_envs, found.hyperparameters["gamma"]) == (n_timesteps, 2, 0.8)


def test_without_a_complete_trial_there_are_no_best_settings(tmp_path: Path) -> None:
    study = new_study(tmp_path)
    add(study, TrialState.FAIL, error="broken")
    add(study, TrialState.PRUNED, 99.0, curve=[99.0])
    assert best_files(study) == []
    assert not (tmp_path / "best.yml").exists()


def test_a_real_trial_leaves_all_of_it(tmp_path: Path) -> None:
    study = new_study(tmp_path, trials=1, evaluations=2, evaluation_episodes=1)
    trial = study.queue.claim("w1")
    assert trial is not None
    run_trial(study, trial)
    (row,) = rows_of(trials_csv(study))
    assert (row["state"], row["iterations"], row["env_steps"], row["evaluations"]) == ("COMPLETE", "2", "100", "2")
    assert (tmp_path / row["checkpoint"]).is_dir()
    assert float(row["seconds"]) > 0
    lines_of_best(study)
    assert load_config(None, hparams=tmp_path / "best.yml").n_timesteps == 200_000
