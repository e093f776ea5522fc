"""What a search tries, that it continues where it was, and that it refuses nonsense beforehand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searches import SETTINGS, SMALL, SPACE, finished, in_this_process, pretend, rows_of, work_on
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.tools.tuning.api import prepare_study, study_folder
from marl_sb3.tools.tuning.options import SearchOptions
from marl_sb3.tools.tuning.report import trials_csv
from marl_sb3.tools.tuning.search import Search, read_search
from marl_sb3.tools.tuning.space import parse_space, setting
from marl_sb3.tools.tuning.workers import TrainedRun, TrainingRequest


def test_the_same_search_tries_the_same_and_finds_the_same(in_tmp: Path) -> None:
    one, other = in_this_process(pretend, study="one"), in_this_process(pretend, study="other")
    assert finished(one) == finished(other)
    assert [state for state, _, _ in finished(one)] == ["COMPLETE"] * 3
    assert {params["batch_size"] for _, _, params in finished(one)} <= {10, 20}
    assert finished(in_this_process(pretend, study="third", seed=1)) != finished(one)


def test_a_trial_is_a_run_that_can_be_repeated(in_tmp: Path) -> None:
    study = in_this_process(trials=1)
    (trial,) = study.trials
    folder = study.folder_of(trial)
    again = marl_sb3.train(hparams=folder / "config.yaml", run_dir="again")
    theirs, ours = (CheckpointFolder(path / "checkpoints").load() for path in (folder, again.folder))
    assert all(np.array_equal(a, ours.tensors[f][n]) for f, group in theirs.tensors.items() for n, a in group.items())
    results = map(json.loads, (folder / "result.jsonl").read_text().splitlines())
    returns = [result["evaluation"]["env_runners"]["episode_return_mean"] for result in results]
    assert trial.value == pytest.approx(np.mean(returns[-2:]))  # as `over` says: there are two evaluations
    assert trial.user_attrs["seed"] == again.config.seed
    assert study.checkpoints() == {0: folder / "checkpoints"}
    assert study.best_trial == trial
    assert study.best_config() == study.config_of(trial)


def test_a_study_goes_on_where_it_was(in_tmp: Path) -> None:
    whole = in_this_process(pretend, study="whole", trials=3)
    in_this_process(pretend, study="parts", trials=1)
    assert finished(in_this_process(pretend, study="parts", trials=3)) == finished(whole)


def test_a_study_goes_on_with_what_it_was_begun_with(in_tmp: Path) -> None:
    begun = prepare_study(**{**SMALL, "space": None, "settings": {**SETTINGS, "batch_size": 20}}, study="s", seed=3,
        objective="min", over="best", sampler="random", policies="per_agent")  # fmt: skip
    assert prepare_study(study="s").search == begun.search
    assert prepare_study("arena", study="s", trials=7).search == replace(begun.search, trials=7)
    with pytest.raises(ConfigError, match="study 's' exists with other values of seed, objective; accepted"):
        prepare_study(study="s", seed=4, objective="sum")
    with pytest.raises(ConfigError, match="study 's' exists with other values of space; accepted: "):
        prepare_study(study="s", space={"gamma": {"uniform": [0.9, 0.99]}})


def test_a_study_with_callbacks_goes_on_where_the_user_names_the_same_ones(in_tmp: Path) -> None:
    callbacks = [{"my_callbacks:Longest": {"name": "x"}}]  # there is no such module: nothing is imported here
    begun = prepare_study(**{**SMALL, "settings": {**SETTINGS, "callbacks": callbacks}}, study="s")
    with pytest.raises(ConfigError, match="wants to import 'my_callbacks:Longest': if you trust this code, give --set"):
        prepare_study(study="s")
    assert prepare_study(study="s", settings={"callbacks": callbacks}).search == begun.search
    for others in (["my_callbacks:Other"], [*callbacks, "my_callbacks:Other"], ["my_callbacks:Longest"], None):
        with pytest.raises(ConfigError, match="study 's' exists with other values of --set callbacks; accepted: ano"):
            prepare_study(study="s", settings={"callbacks": others})
    with pytest.raises(ConfigError, match="study 's' exists with other values of --set n_steps, --set gamma; accepted"):
        prepare_study(study="s", settings={"callbacks": callbacks, "n_steps": 40, "gamma": 0.9})
    assert prepare_study(study="s", settings={"callbacks": callbacks}).search == begun.search


def test_a_file_of_settings_is_what_is_searched_and_compared_with(
    in_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = in_tmp / "mine.yml"
    file.write_text(
        "default: {lr: 1e-3, n_steps: 2e1, batch_size: 20, n_timesteps: 1e6, policy_kwargs: {net_arch: [8]}}\n"
    )
    options = {"space": {"gamma": {"uniform": [0.8, 0.9]}}, "timesteps": 1.6e2, "evaluations": 2, "trials": 1}
    study = prepare_study("arena", hparams=file, study="s", n_envs=4, device="cpu", vectorizer="sync", **options)
    assert caplog.messages == [
        f"{file} has no settings for env 'arena': those of its section 'default' are used",
        "the space does not contain the preset: gamma is 0.99, outside 0.8 to 0.9; no trial has its settings",
    ]
    file.unlink()  # the study has what it needs
    config = prepare_study(study="s").search.trial_config({}, seed=1)
    assert config.hyperparameters.items() >= {"learning_rate": 1e-3, "n_steps": 20, "batch_size": 20}.items()
    assert (config.n_envs, config.device, config.vectorizer, config.n_timesteps) == (4, "cpu", "sync", 160)
    work_on(study)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]
    with pytest.raises(ConfigError, match="study 's' exists with other values of hparams, n_envs; accepted"):
        prepare_study(study="s", hparams={"arena": {"n_steps": 20}}, n_envs=2)
    with pytest.raises(ConfigError, match="wants to import toy_envs:ScriptedEnv"):
        prepare_study(hparams={"toy_envs:ScriptedEnv": {}})


def test_a_study_of_another_env_is_another_study(in_tmp: Path) -> None:
    prepare_study(**SMALL, study="s")
    other = {**SMALL, "settings": {"n_envs": 4, "n_steps": 40}, "timesteps": 320}
    prepare_study("toy_envs:ScriptedEnv", **other, study="s")
    with pytest.raises(ConfigError, match="there are studies 's' of arena, toy_envs_ScriptedEnv: name the env"):
        prepare_study(study="s")
    with pytest.raises(ConfigError, match="wants to import toy_envs:ScriptedEnv: if you trust"):
        read_search(in_tmp / "runs" / "tune" / "toy_envs_ScriptedEnv" / "s")


def test_the_folders_of_studies_stay_the_same_over_versions() -> None:
    assert study_folder("a::b/c d-v0", "s") == Path("runs/tune/a__b_c_d-v0/s")


def test_a_name_is_no_pattern(in_tmp: Path) -> None:
    prepare_study(**{**SMALL, "seed": 5}, study="x1")
    prepare_study(**{**SMALL, "seed": 6}, study="x[1]")
    assert prepare_study(study="x[1]").search.seed == 6
    with pytest.raises(ConfigError, match="is too short"):
        prepare_study(study="x[12]", settings={"n_envs": 10_000})  # another, new study


def test_a_study_may_be_named_like_a_number(in_tmp: Path) -> None:
    settings = {**SETTINGS, "init_layers": ["1e5", "0o17"]}
    begun = prepare_study(**{**SMALL, "settings": settings}, study="3e-4")
    assert prepare_study(study="3e-4").search == begun.search


def test_what_is_set_is_not_searched(in_tmp: Path) -> None:
    study = prepare_study(**{**SMALL, "space": None, "settings": {**SETTINGS, "minibatch_size": 20}})
    searched = [parameter.name for parameter in study.space.parameters]
    assert searched[0] == "learning_rate"
    assert not {"batch_size", "n_epochs"} & set(searched)
    assert study.search.trial_config({}, 0).hyperparameters["batch_size"] == 20
    with pytest.raises(ConfigError, match="batch_size is both set and searched; accepted: one of them"):
        prepare_study(**{**SMALL, "settings": {**SETTINGS, "batch_size": 20}})
    shipped = {parameter.name: 0 for parameter in prepare_study("CartPole-v1").space.parameters}
    with pytest.raises(ConfigError, match="nothing to choose: batch_size, clip_range, "):
        prepare_study("CartPole-v1", settings=shipped)


def test_an_uneven_minibatch_is_said_once(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare_study(**{**SMALL, "space": {"batch_size": {"choices": [10, 30, 50]}, "gamma": {"uniform": [0.8, 0.9]}}})
    assert caplog.messages[:-1] == [
        "policy shared: the last minibatch of an epoch is smaller where batch_size is 30, 50: a rollout has 160 agent "
        "steps"
    ]


def test_each_policy_may_have_values_of_its_own(in_tmp: Path) -> None:
    space = {"agent1.learning_rate": {"log_uniform": [1e-4, 1e-2]}, "agent2.lr": {"choices": [1e-3]}}
    settings = {**SETTINGS, "batch_size": 20}
    study = in_this_process(pretend, space=space, settings=settings, policies="per_agent", trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    for trial in study.trials:
        own = study.config_of(trial).policy_settings
        assert own == {
            "agent1": {"learning_rate": trial.params["agent1.learning_rate"]}, "agent2": {"learning_rate": 1e-3}
        }  # fmt: skip


def test_every_trial_is_evaluated_as_often_whatever_its_rollouts(in_tmp: Path) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "n_steps"}
    study = in_this_process(space=None, grid={"n_steps": [7, 10, 20], "batch_size": [20]}, settings=settings)
    assert [len(trial.intermediate_values) for trial in study.trials] == [2, 2, 2]
    steps = [[trial.user_attrs[f"env_steps_{k}"] for k in (1, 2)] for trial in study.trials]
    assert steps == [[84, 168], [80, 160], [80, 160]]


@pytest.mark.parametrize(("timesteps", "evaluations"), [(80, 1), (400, 5), (8000, 10)])
def test_a_short_trial_has_as_many_evaluations_as_it_has_room_for(
    timesteps: int, evaluations: int, in_tmp: Path
) -> None:
    options = {**SMALL, "timesteps": timesteps, "evaluations": None}
    assert prepare_study(**options).search.evaluations == evaluations


def test_an_env_without_a_preset_is_searched_with_the_rollouts_of_a_training(in_tmp: Path) -> None:
    class Four(ScriptedEnv):
        def __init__(self, **options: Any) -> None:
            super().__init__(dict.fromkeys("abcd", (3, "truncated")), **options)

    policies = {"pack": {"agents": ["a", "b", "c"]}, "prey": {"agents": ["d"]}}
    given: dict[str, Any] = {"timesteps": 8000, "settings": {"policies": policies}, "trials": 2, "study": "s"}
    study = prepare_study(Four, **given)
    preset = study.search.preset()
    assert [preset.of_policy(name).hyperparameters["n_steps"] for name in policies] == [64, 256]
    assert study.search.trial_config({}, 0).n_timesteps == 8000
    assert prepare_study(Four, **given).search == study.search


def test_spaces_and_grids_take_numpys_numbers(in_tmp: Path) -> None:
    study = prepare_study(**{**SMALL, "space": None, "grid": {"gamma": np.linspace(0.5, 1, 2)}, "trials": np.int64(2)})
    assert study.search.space.to_plain() == {"gamma": {"choices": [0.5, 1.0]}}
    bounds = {"batch_size": {"int": [np.int64(10), np.int32(20)]}}
    assert parse_space(bounds, "space").to_plain() == {"batch_size": {"int": [10, 20]}}


def test_values_of_a_grid_may_be_close(in_tmp: Path) -> None:
    grid = {"learning_rate": [0.0003, 0.0003000001], "batch_size": [20]}
    assert len(prepare_study(**{**SMALL, "space": None, "trials": None}, grid=grid).trials) == 2


def test_a_grid_is_tried_exactly(in_tmp: Path) -> None:
    study = in_this_process(pretend, space=None, grid=["minibatch_size=10,20", "gamma=0.9,0.99"], trials=None)
    tried = [(trial.params["batch_size"], trial.params["gamma"]) for trial in study.trials]
    assert tried == [(10, 0.9), (10, 0.99), (20, 0.9), (20, 0.99)]
    configs = [study.config_of(trial) for trial in study.trials]
    assert [config.hyperparameters["batch_size"] for config in configs] == [10, 10, 20, 20]


def test_seeds_of_trials_and_confirmations_stay_the_same_over_versions() -> None:
    """A study that continues with a newer version would otherwise not be the same search."""
    search = Search("arena", parse_space(SPACE, "space"), "s", seed=3)
    assert [search.trial_seed(index) for index in (0, 1)] == [409691224, 822710854]
    assert (search.evaluation_seed(), search.fresh_seeds(0)) == (1163830263, (948649470, 2143035826))


def test_a_guess_of_the_user_is_tried_too(in_tmp: Path) -> None:
    study = prepare_study(**{**SMALL, "trials": 2, "pruner": "none"})
    study.optuna.enqueue_trial({"batch_size": 20, "learning_rate": 1e-3})
    work_on(study, pretend)
    guess, other = study.trials
    assert guess.params == {"batch_size": 20, "learning_rate": 1e-3}
    assert [trial.user_attrs["seed"] for trial in (guess, other)] == [study.search.trial_seed(i) for i in (0, 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": 3}, "root is 3; accepted: a path"),
        (
            {"root": "/proc/none"},
            "cannot write to the study folder /proc/none/tune/arena/.*: No such file or directory",
        ),
        (
            {"root": "a\udcff"},
            r"the study folder: the path '.*a\\udcff/tune/arena/.*' is not text in the encoding utf-8",
        ),
        ({"hparams": 3}, "hparams is 3; accepted: the path of a settings file, or a mapping"),
        ({"settings": {1: 2}}, "settings has the key 1; accepted: strings"),
        ({"over": f"mean_of_last_{'9' * 5000}"}, "accepted: last, best or mean_of_last_K"),
        ({"env": "nope"}, "unknown env 'nope'.*:factory, or --import"),
        ({"trials": 0}, "--trials is 0; accepted: an integer of at least 1"),
        ({"space": {"bach_size": {"choices": [1]}}}, "unknown hyperparameter 'bach_size'"),
        ({"space": {"gamma": {"uniform": [0.9, 1.5]}}}, r"gamma is 1.5; .*\(in a trial with gamma=1.5\)"),
        ({"timesteps": 159}, "a rollout has 80 env steps; accepted: --timesteps 160 or more, or fewer --evaluations"),
        ({"timesteps": 79, "evaluations": None}, "a rollout has 80 env steps; accepted: --timesteps 80 or more"),
        ({"space": {"n_epochs": {"choices": [1]}}, "settings": {"n_steps": 0}}, "n_steps is 0; accepted: an integer"),
        ({"storage": "sqlite:////nowhere/at/all.db"}, "--storage sqlite.* cannot be opened"),
        ({"storage": "nonsense"}, "--storage nonsense cannot be opened"),
        (
            {"objective": "agent7"},
            r"--objective is 'agent7'; accepted: sum, min, against_random, an agent \(agent1, agent2\), a policy \(sh",
        ),
        ({"mode": "largest"}, "--mode is 'largest'; accepted: max or min"),
        ({"sampler": "bayes"}, "--sampler is 'bayes'; accepted: tpe, random, grid, gp or pbt"),
        ({"pruner": "x"}, "--pruner is 'x'; accepted: median, asha or none"),
        ({"sampler": "grid"}, "a grid needs choices; learning_rate has a range"),
        ({"grid": ["gamma=0.9"]}, "a space and a grid are given"),
        ({"study": "../elsewhere"}, "--study is '../elsewhere'"),
        ({"study": ".."}, "--study is '..'"),
        ({"study": "aux.1"}, "--study is 'aux.1'"),
        ({"study": "a\nb"}, r"--study is 'a\\nb'"),
        ({"study": "x" * 300}, "--study is 'xxx"),
        ({"study": 5}, "--study is 5"),
        ({"space": 5}, "space is 5; accepted: a file, or a mapping"),
        ({"space": None, "grid": {"gamma": 0.9}}, "grid, gamma: is 0.9; accepted: a list of values"),
        ({"space": None, "grid": {"gamma": [0.9]}}, "--trials is 3, but the grid has 1"),
        ({"over": "mean_of_last_3"}, "--over is 'mean_of_last_3', but a trial has 2 evaluations"),
        (
            {
                "space": {"n_steps": {"choices": [10, 40]}, "n_envs": {"choices": [4, 2]}},
                "settings": {"batch_size": 20},
            },
            "a trial of 160 env steps is too short for its 2 evaluations: a rollout has 160 env steps",
        ),
        ({"seed": -1}, "--seed is -1; accepted: an integer of at least 0"),
        ({"timesteps": 0}, "--timesteps is 0; accepted: an integer of at least 1"),
        (
            {"space": {"batch_size": {"int": [10, 150]}, "n_envs": {"choices": [2, 4]}}, "settings": {"n_steps": 20}},
            r"batch_size is 150, larger than its rollout of 80 agent .*\(in a trial with batch_size=150, n_envs=2\)",
        ),
    ],
)
def test_nonsense_is_refused_before_anything_runs(options: dict[str, Any], message: str, in_tmp: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare_study(**{**SMALL, **options})
    assert not list(in_tmp.glob("runs/tune/*/*/trials"))


def test_trials_end_by_stop_conditions(in_tmp: Path) -> None:
    study = prepare_study("arena", **{**SMALL, "stop": {"iteration": 1}})
    assert study.search.settings["stop.iteration"] == 1
    assert study.search.trial_config(next(study.space.corners()), 1).stop == {"iteration": 1}
    with pytest.raises(ConfigError, match=r"stop\.iterations: unknown metric 'iterations'; did you mean iteration"):
        prepare_study("arena", study="other", **{**SMALL, "stop": {"iterations": 1}})
    with pytest.raises(ConfigError, match="stop is 3; accepted"):
        prepare_study("arena", **{**SMALL, "stop": 3})


# --- What is given is used or refused ---------------------------------------------------------------------------------

RATES = ["0.001", "0.0005"]
POINTS = [[0, 1e-3], [500, 1e-4]]
FIXED = {"learning_rate": {"choices": [1e-3]}}
# Options of a search in the arena, whose preset has `learning_rate: lin_1e-3`; the settings that its trials train with,
# those of one trial or of each; and what trials.csv says of the first parameter.
USED: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"grid": ["lr=0.001,0.0005"]}, {"learning_rate": [1e-3, 5e-4]}, RATES),
    ({"grid": {"learning_rate": [1e-3, 5e-4]}}, {"learning_rate": [1e-3, 5e-4]}, RATES),
    ({"grid": {"learning_rate": np.array([1e-3, 5e-4])}}, {"learning_rate": [1e-3, 5e-4]}, RATES),
    ({"grid": ["learning_rate = lin_1e-3, 5e-4"]}, {"learning_rate": ["lin_1e-3", 5e-4]}, ["lin_1e-3", "0.0005"]),
    ({"grid": {"lr": [POINTS]}}, {"learning_rate": [POINTS]}, [json.dumps(POINTS)]),
    ({"grid": ["minibatch_size=10,20.0"]}, {"batch_size": [10, 20]}, ["10", "20"]),
    ({"grid": ["entropy_coeff=0,0.0,0.01"]}, {"ent_coef": [0, 0.01]}, ["0", "0.01"]),
    ({"grid": ["fcnet_hiddens=[8],[16, 8]"]}, {"policy_kwargs.net_arch": [[8], [16, 8]]}, ["[8]", "[16, 8]"]),
    ({"grid": ["max_grad_norm=0.5", "clip_range_vf=null,0.2"]}, {"clip_range_vf": [None, 0.2]}, ["0.5", "0.5"]),
    ({"grid": ["agent1.gamma=0.8,0.9"], "policies": "per_agent"}, {"agent1.gamma": [0.8, 0.9]}, ["0.8", "0.9"]),
    ({"grid": ["policies=shared,per_agent"]}, {"policies": ["shared", "per_agent"]}, ["shared", "per_agent"]),
    ({"grid": ["env.observe=cells,coordinates"]}, {"env.observe": ["cells", "coordinates"]},
     ["cells", "coordinates"]),
    ({"grid": ["n_timesteps=160,320"], "timesteps": None}, {"n_timesteps": [160, 320]}, ["160", "320"]),
    ({"space": {"lr": {"choices": [1e-3]}}}, {"learning_rate": [1e-3]}, ["0.001"]),
    ({"space": {"lr": {"choices": [1e-3], "linear": True}}}, {"learning_rate": ["lin_0.001"]}, ["lin_0.001"]),
    ({"space": {**FIXED, "ent_coef": 0.02}}, {"ent_coef": [0.02]}, ["0.001"]),
    ({"settings": {"lr": 1e-4}, "grid": ["gamma=0.8"]}, {"learning_rate": [1e-4], "gamma": [0.8]}, ["0.8"]),
    ({"settings": {"checkpoints.every": 3}, "space": FIXED}, {"checkpoints.every": [3]}, RATES[:1]),
    ({"hparams": {"arena": {"checkpoints": {"every": 3}, "n_steps": 10}}, "space": FIXED},
     {"checkpoints.every": [0]}, RATES[:1]),
    ({"settings": {"n_timesteps": 400}, "grid": ["gamma=0.8"]}, {"n_timesteps": [160]}, ["0.8"]),
    ({"hparams": {"arena": {"gamma": 0.7, "lr": "lin_1e-3", "n_steps": 10}}, "space": FIXED},
     {"gamma": [0.7], "learning_rate": [1e-3]}, RATES[:1]),
    ({"algo": "a2c", "n_envs": 3, "space": FIXED}, {"algo": ["a2c"], "n_envs": [3]}, RATES[:1]),
    ({"policies": "per_agent", "device": "cpu", "vectorizer": "sync", "space": FIXED},
     {"policies": ["per_agent"], "device": ["cpu"], "vectorizer": ["sync"]}, RATES[:1]),
    ({"evaluations": 4, "evaluation_episodes": 7, "timesteps": 320.0, "space": FIXED},
     {"evaluation.interval": [80], "evaluation.duration": [7], "n_timesteps": [320]}, RATES[:1]),
    ({"stop": {"evaluation/env_runners/episode_return_mean": 3}, "space": FIXED},
     {"stop": [{"evaluation/env_runners/episode_return_mean": 3}]}, RATES[:1]),
]  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"grid": ["gamma=0.8", "gamma=0.9"]}, "--grid gamma is given twice; accepted: gamma=A,B,C once"),
    ({"grid": ["lr=1e-3", "learning_rate=1e-4"]}, "--grid: learning_rate is set twice"),
    ({"grid": ["env.height=1,true"]}, "--grid, env.height: 1 and True are both given, but count as the same"),
    ({"grid": ["gamma=.nan,0.9"]}, "--grid, gamma: nan; accepted: numbers, texts"),
    ({"grid": ["stop={1: 2}"]},
     "--grid, stop: {1: 2}; accepted: numbers, texts, true, false, null, lists of these, mappings of texts to these"),
    ({"grid": {"policy_kwargs.activation_fn": [int]}}, "grid, policy_kwargs.activation_fn: <class 'int'>; accepted: n"),
    ({"grid": ["gamme=0.9"]}, "unknown hyperparameter 'gamme' of PPO; did you mean gamma?"),
    ({"grid": ["seed=1,2"]}, "seed is not for trials to choose or share; accepted: --seed, of the search"),
    ({"settings": {"seed": 3}}, "seed is not for trials"),
    ({"grid": ["evaluation.interval=1,2"]}, "evaluation.interval is not for trials to choose or share; accepted: --ev"),
    ({"settings": {"evaluation": {"duration": 3}}}, "evaluation.duration is not for trials to choose or share"),
    ({"grid": ["extensions=[]"]}, "extensions is not for trials to choose or share; accepted: n_timesteps"),
    ({"space": {**FIXED, "evaluation.seed": 2}}, "evaluation.seed is not for trials to choose or share"),
    ({"grid": ["n_timesteps=160,320"]}, "n_timesteps is both set and searched"),
    ({"grid": ["n_envs=2,4"], "n_envs": 4}, "n_envs is both set and searched"),
    ({"grid": ["policies=shared"], "policies": "shared"}, "policies is both set and searched"),
    ({"grid": ["gamma=0.8"], "settings": {"gamma": 0.9}}, "gamma is both set and searched"),
    ({"space": {**FIXED, "gamma": 0.8}, "settings": {"gamma": 0.9}}, "gamma is both set and searched"),
    ({"space": {"lr": {"choices": ["lin_1e-3"], "linear": True}}}, "space, lr: 'lin_1e-3'; accepted: numbers"),
]  # fmt: skip
# What names, draws, judges or keeps trials, and changes no setting of theirs.
OF_THE_SEARCH = {"trials", "seed", "sampler", "pbt_quantile", "pbt_resample", "pruner", "objective", "mode", "over",
    "study", "new_study", "storage", "root"}  # fmt: skip
MINIMAL: dict[str, Any] = {
    "settings": {"env.max_timesteps": 15}, "hparams": {"arena": {"lr": "lin_1e-3", "n_envs": 4, "n_steps": 20}},
    "timesteps": 160, "evaluations": 2, "evaluation_episodes": 2, "trials": 1,
}  # fmt: skip


def test_every_option_of_a_search_is_in_the_tables() -> None:
    assert {name for options, *_ in USED for name in options} | OF_THE_SEARCH == set(SearchOptions.__annotations__)


@pytest.mark.parametrize(("given", "trained", "written"), USED, ids=lambda each: str(each)[:50])
def test_trials_train_with_what_is_given(
    given: dict[str, Any], trained: dict[str, list[Any]], written: list[str], in_tmp: Path
) -> None:
    configs: list[TrainConfig] = []

    def train(request: TrainingRequest) -> TrainedRun:
        configs.append(request.config)
        return pretend(request)

    options = {**MINIMAL, **given, "settings": {**MINIMAL["settings"], **given.get("settings", {})}}
    if "grid" in options:
        del options["trials"]
    study = prepare_study("arena", **options)
    work_on(study, train)
    for name, values in trained.items():
        assert [setting(config, name) for config in configs] == values * (len(configs) // len(values)), name
    assert [row[study.space.parameters[0].name] for row in rows_of(trials_csv(study))] == written


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=lambda each: str(each)[:50])
def test_what_trials_cannot_train_with_is_refused(given: dict[str, Any], message: str, in_tmp: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        prepare_study("arena", **{**MINIMAL, "trials": None, **given})
