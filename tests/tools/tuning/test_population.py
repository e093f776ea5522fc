"""Population based training: who copies whom, what is changed then, and that kills change nothing of it."""

from __future__ import annotations

import html
import io
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial
from rich.console import Console
from searches import SMALL, claimed, rows_of, stored
from small_runs import assert_same_runs

import marl_sb3
from marl_sb3.core.metrics.names import Result
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.display.screen import ScreenSize
from marl_sb3.extensions.remote.ray import RaySettings
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.settings import load_config
from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.tools.tuning.population import copies_table, copy_run, enqueue_generation, exploit, explore
from marl_sb3.tools.tuning.report import write_files
from marl_sb3.tools.tuning.space import Parameter, parse_space
from marl_sb3.tools.tuning.study import IN_PROCESS, TuneStudy
from marl_sb3.tools.tuning.trial import COPIED, ERROR, GENERATION, INTERRUPTED, KILLED, MEMBER, PARENT
from marl_sb3.tools.tuning.trials import run_trial
from marl_sb3.tools.tuning.view import SearchView
from marl_sb3.tools.tuning.workers import Train, TrainedRun, TrainingRequest, train_here, work

SPACE = {
    "batch_size": {"choices": [10, 20, 40]},
    "learning_rate": {"log_uniform": [1e-4, 1e-2], "linear": True},
    "gamma": {"uniform": [0.8, 0.99]},
}
POPULATION: dict[str, Any] = {
    **SMALL,
    "space": SPACE,
    "trials": 4,
    "evaluations": 3,
    "timesteps": 240,
    "sampler": "pbt",
}


class Draws:
    """In the place of a random generator: what it draws, in its order."""

    def __init__(self, *drawn: float) -> None:
        self._drawn = list(drawn)

    def random(self) -> float:
        return self._drawn.pop(0)

    def integers(self, n: int) -> int:
        drawn = int(self._drawn.pop(0))
        assert drawn < n
        return drawn

    def choice(self, among: Sequence[int]) -> int:
        return among[self.integers(len(among))]


# --- Decisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "values", "quantile", "drawn", "copied"),
    [
        (0, [1.0, 5.0, 3.0, 4.0], 0.25, 0, 1),  # the worst of four copies the best
        (2, [1.0, 5.0, 3.0, 4.0], 0.25, None, None),  # neither of the best nor of the worst
        (1, [1.0, 5.0, 3.0, 4.0], 0.25, None, None),
        (2, [1.0, 5.0, 3.0, 4.0], 0.5, 1, 3),  # the lower half copies one of the upper half
        (0, [None, 5.0, 3.0, 4.0], 0.25, 0, 1),  # a failure is worse than all values
        (2, [None, None, 3.0, 4.0], 0.25, None, None),  # the last quarter is one of the failures
        (0, [None, None, 3.0, 4.0], 0.25, 0, 3),  # but both copy
        (1, [None, None, 3.0, 4.0], 0.25, 0, 3),
        (1, [2.0, 2.0], 0.5, None, None),  # none is better
        (0, [-3.0, -2.0, -1.0], 0.01, 0, 2),  # at least one
        (0, [None, None], 0.5, None, None),
    ],
)
def test_the_worst_copy_one_of_the_best(
    member: int, values: Sequence[float | None], quantile: float, drawn: int | None, copied: int | None
) -> None:
    rng: Any = Draws() if drawn is None else Draws(drawn)
    assert exploit(member, values, quantile, rng) == copied


@pytest.mark.parametrize(
    ("kind", "bounds", "value", "possible"),
    [
        ("uniform", (0.1, 2.0), 1.0, [0.8, 1.2]),
        ("uniform", (0.9, 0.999), 0.95, [0.9, 0.999]),  # within the space
        ("log_uniform", (1e-4, 1e-2), 1e-2, [8e-3]),  # what changes nothing is no change
        ("int", (3, 15), 10, [8, 12]),
        ("int", (3, 15), 4, [3, 5]),  # by one at least
        ("int", (3, 15), 3, [4]),
        ("choices", (0.9, 0.99, 0.95), 0.95, [0.9, 0.99]),  # neighbours by size
        ("choices", (0.9, 0.99, 0.95), 0.99, [0.95]),
        ("choices", (0.9,), 0.9, [0.9]),
        ("uniform", (0.0, 1.0), 0.0, [0.0]),  # a draw alone moves it
    ],
)
def test_a_copied_setting_moves_to_values_near_by(
    kind: str, bounds: tuple[Any, ...], value: Any, possible: list[Any]
) -> None:
    parameter = Parameter("x", kind, bounds)
    draws: list[Any] = [Draws(place) for place in range(len(possible))]
    assert [parameter.perturbed(value, each) for each in draws] == pytest.approx(possible)


def test_some_settings_are_drawn_anew_and_those_without_an_order_always() -> None:
    space = parse_space(
        {
            "gamma": {"uniform": [0.5, 0.99]},
            "n_epochs": {"int": [1, 9]},
            "normalize_advantage": {"choices": [True, False]},
            "ent_coef": 0.0,
        },
        "space",
    )
    params = {"gamma": 0.75, "n_epochs": 5, "normalize_advantage": True}
    rng: Any = Draws(0.05, 0.1, 1)  # below the probability, not below it, and up
    assert explore(params, space, 0.1, rng) == {"n_epochs": 6}


# --- Whole searches --------------------------------------------------------------------------------------------------


def pretend(request: TrainingRequest) -> TrainedRun:
    """In the place of a training: its value follows from its seed, its settings and its generation."""
    folder, settings = request.folder, "" if request.settings is None else sorted(request.settings.items())
    done = [int(path.name.removeprefix("ckpt-")) for path in folder.glob("checkpoints/*")]
    assert len(done) <= 1  # of a run that is copied, the newest alone
    generation = sum(done) + 1
    (folder / "checkpoints" / f"ckpt-{generation:06d}").mkdir(parents=True)
    value = random.Random(f"{request.config.seed} {generation} {settings}").random()
    evaluated = {"evaluation": {"env_runners": {"episode_return_mean": value}}}
    result: Result = {"num_env_steps_sampled_lifetime": 80 * generation, "env_runners": {}, **evaluated}
    assert request.goes_on is not None
    assert request.goes_on(result) == (generation == 3)
    return TrainedRun(result, [result], f"ckpt-{generation:06d}")


@pytest.fixture
def study(in_tmp: Path) -> TuneStudy:
    return prepare_study(**POPULATION, study="s")


def train_generation(study: TuneStudy, train: Train = pretend) -> bool:
    """Returns whether there was one to train."""
    if is_wanted := enqueue_generation(study):
        work(study, study.queue, run_trial, "here", train)
    return is_wanted


def train_all(study: TuneStudy, train: Train = pretend) -> None:
    while train_generation(study, train):
        pass


def latest(study: TuneStudy) -> dict[tuple[int, int], FrozenTrial]:
    """The trial of each generation and member."""
    return study.queue.latest(GENERATION, MEMBER)


def outcome(study: TuneStudy) -> list[Any]:
    """What came of each member in each generation."""
    found = sorted(latest(study).items())
    trials = study.trials
    parents = [trials[trial.user_attrs[PARENT]] if PARENT in trial.user_attrs else None for _, trial in found]
    members = [None if parent is None else parent.user_attrs["member"] for parent in parents]
    return [
        (place, trial.state.name, trial.value, trial.params, trial.user_attrs.get(COPIED), member)
        for (place, trial), member in zip(found, members, strict=True)
    ]


def test_the_same_seed_finds_the_same_and_kills_lose_no_member_and_repeat_no_generation(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, study = (prepare_study(**POPULATION, seed=3, study=name) for name in ("whole", "killed"))
    train_all(whole)
    assert [place for place, *_ in outcome(whole)] == [(g, m) for g in range(3) for m in range(4)]
    assert len(copies_table(whole)[1]) == 2  # one of four in each generation
    assert (whole.n_done(), len(whole.completed())) == (12, 4)
    for generation in range(3):
        with monkeypatch.context() as patch:
            enqueue, before_the_kill = study.queue.enqueue, iter(range(1 + generation))

            def some(params: Any, **stored: Any) -> None:
                next(before_the_kill)  # noqa: B023 - called at once
                enqueue(params, **stored)  # noqa: B023

            patch.setattr(study.queue, "enqueue", some)
            with pytest.raises(StopIteration):
                enqueue_generation(study)
        for worker in (IN_PROCESS, "a process"):  # killed as it trains: the search itself, then one of its workers
            study = prepare_study(study="killed")
            assert enqueue_generation(study)
            claimed(study, worker)
        study = prepare_study(study="killed")
        work(study, study.queue, run_trial, "here", pretend)
    assert not enqueue_generation(study)
    assert outcome(study) == outcome(whole)
    errors = filter(None, stored(study, ERROR))
    assert sorted(errors) == sorted([KILLED, INTERRUPTED] * 3)
    assert study.n_done() == 12


def test_a_copy_that_was_interrupted_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "checkpoints/ckpt-000001").mkdir(parents=True)
    (source / "checkpoints/ckpt-000001/weights").touch()
    (source / "config.yaml").write_text("arena: {}\n")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copystat", interrupted)  # after the first file
        with pytest.raises(KeyboardInterrupt):
            copy_run(source, target, "arena")
    assert [*tmp_path.iterdir()] == [source]
    copy_run(source, target, "arena")
    assert sorted(path.name for path in target.rglob("*")) == ["checkpoints", "ckpt-000001", "config.yaml", "weights"]
    assert sorted(tmp_path.iterdir()) == [source, target]


def not_finite(request: TrainingRequest) -> TrainedRun:
    raise ValueError("it is not finite")


def test_a_member_that_fails_copies_another_one(study: TuneStudy) -> None:
    def fails_once(request: TrainingRequest) -> TrainedRun:
        return (not_finite if request.folder.name == "00002" else pretend)(request)

    train_all(study, fails_once)
    assert latest(study)[0, 2].state.name == "FAIL"
    assert latest(study)[1, 2].user_attrs[COPIED] in (0, 1, 3)
    assert len(study.completed()) == 4


def test_a_population_of_failures_ends(study: TuneStudy) -> None:
    train_all(study, not_finite)
    assert len(study.trials) == 4


# --- What is left of it ----------------------------------------------------------------------------------------------


def test_a_member_is_one_training_which_its_settings_repeat(in_tmp: Path) -> None:
    # Evaluations of so short trainings are all the same.
    study = prepare_study(**POPULATION, study="s", objective="env_runners/episode_return_mean", seed=1)
    train_all(study, train_here)
    member = next(trial for trial in study.completed() if "extensions" in study.settings_of(trial))
    run = RunFolder(study.folder_of(member))
    config, found = run.read_config("arena"), study.search.whole_config(study.settings_of(member))
    assert (found.extensions, found.n_timesteps) == (config.extensions, 240)
    assert {**config.hyperparameters, **found.hyperparameters} == config.hyperparameters
    marl_sb3.train(hparams=run.config_file, run_dir="again", progress_bar=False)
    assert_same_runs(str(run.path), "again")
    kept = [int(path.parent.name) for path in study.folder.glob("trials/*/checkpoints")]
    assert sorted(kept) == sorted(trial.number for trial in study.completed())
    write_files(study)
    best = load_config("arena", hparams=study.folder / "best.yml")
    assert best.extensions == study.search.whole_config(study.settings_of(study.best_trial)).extensions


def test_who_copied_whom_is_a_table(study: TuneStudy) -> None:
    train_all(study)
    write_files(study)
    rows = rows_of(study.folder / "copies.csv")
    assert len(rows) == 2
    for row, generation in zip(rows, (1, 2), strict=True):
        trials = {place: trial for place, trial in latest(study).items() if place[0] == generation - 1}
        values = {member: trial.value or 0.0 for (_, member), trial in trials.items()}
        worst, best = (choose(values, key=lambda member: values[member]) for choose in (min, max))
        assert (int(row["member"]), int(row["copied"]), int(row["generation"])) == (worst, best, generation)
        assert float(row["env_steps"]) == 80 * generation
        assert (float(row["value"]), float(row["copied_value"])) == pytest.approx((values[worst], values[best]))
        new, old = latest(study)[generation, worst], trials[generation - 1, best]
        assert (int(row["trial"]), int(row["copied_trial"])) == (new.number, old.number)
        assert [row["copied_gamma"], row["gamma"]] == [str(each.params["gamma"]) for each in (old, new)]
        assert row["learning_rate"] == f"lin_{new.params['learning_rate']}"
    places = [(int(row["generation"]), int(row["member"])) for row in rows_of(study.folder / "trials.csv")]
    assert places == [(generation, member) for generation in range(3) for member in range(4)]
    page = html.unescape((study.folder / "report.html").read_text(encoding="utf-8"))
    for heading in ("Who copied whom", "Settings over time", "Copies"):
        assert f"<h2>{heading}</h2>" in page
    assert "Not drawn" not in page
    assert "the run of the best member" in page
    changed = {name for name in ("batch_size", "learning_rate", "gamma") if rows[0][name] != rows[0][f"copied_{name}"]}
    assert changed == {"batch_size", "learning_rate", "gamma"}
    assert f"batch_size {rows[0]['copied_batch_size']} to {rows[0]['batch_size']}, " in page


def test_a_population_is_shown_by_its_members(study: TuneStudy) -> None:
    assert train_generation(study)
    assert enqueue_generation(study)
    claimed(study, "here")
    screen = Console(file=io.StringIO(), width=200)
    screen.print(SearchView(screen, study).draw(ScreenSize(200, 20)))
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("generation 1 of 0 to 2  4 of 12 trials")
    assert [line.partition(":")[0] for line in lines[2:]] == [
        "running  trial 4 (member 0, generation 1)",
        *(f"trained  trial {number} (member {number}, generation 0)" for number in (1, 2, 3)),
    ]


# --- What cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pruner": "asha"}, "--pruner is 'asha'; accepted with --sampler pbt: none: "),
        ({"trials": 1}, "--trials is 1; accepted with --sampler pbt: at least 2 members"),
        ({"evaluations": 1, "over": "last"}, "--evaluations is 1; accepted with --sampler pbt: at least 2: "),
        ({"objective": "agent1,agent2"}, "--objective is 'agent1,agent2'; accepted with --sampler pbt: a single one"),
        ({"pbt_quantile": 0.6}, "--pbt-quantile is 0.6; accepted: a number above 0 and at most 0.5"),
        ({"pbt_resample": -0.1}, "--pbt-resample is -0.1; accepted: "),
        (
            {"sampler": "random", "pbt_resample": 0.3},
            "--pbt-resample is 0.3, and --sampler random; accepted: --sampler ",
        ),
        ({"stop": {"iteration": 3.0}}, "--stop is given; accepted with --sampler pbt: all members train to the end"),
        (
            {"space": {"n_envs": {"choices": [2, 4]}, "policy_kwargs.net_arch": {"choices": [[8]]}}, "settings": {}},
            "n_envs, policy_kwargs.net_arch cannot change in a run that goes on: weights and optimizers are copied as "
            "they are; accepted with --sampler pbt: batch_size, ",
        ),
        (
            {"ray": RaySettings()},
            "--ray is given, where no trial can go on from the run of another one; accepted with --sampler pbt: "
            "--workers N",
        ),
    ],
)
def test_what_a_population_cannot_do_is_said(options: dict[str, Any], message: str, in_tmp: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        marl_sb3.tune(**{**POPULATION, **options})
    assert message in str(caught.value)
    assert not list(in_tmp.glob("runs/tune/*/*/trials"))


def test_a_population_is_of_one_folder(in_tmp: Path) -> None:
    shared: dict[str, Any] = {**POPULATION, "study": "s", "storage": "sqlite:///study.db"}
    here, there = (prepare_study(**shared, root=root) for root in ("here", "there"))  # neither has begun
    assert train_generation(there)
    theirs = prepare_study(**shared, root="there")
    own = theirs.folder_of(theirs.trials[0])
    with pytest.raises(ConfigError) as begun:
        prepare_study(**shared, root="here")
    with pytest.raises(ConfigError) as going_on:
        enqueue_generation(here)
    words = f"study 's': trial 0 is trained in {own}, this search is in {here.folder}; accepted with "
    assert str(begun.value) == str(going_on.value)
    assert str(begun.value).startswith(words)
    assert enqueue_generation(there)


def test_a_population_keeps_its_size(study: TuneStudy) -> None:
    assert prepare_study(study="s", trials=4).search.is_population
    with pytest.raises(ConfigError, match=r"study 's' exists with other values of trials"):
        prepare_study(study="s", trials=5)


def test_the_space_of_an_algorithm_loses_what_cannot_change(in_tmp: Path) -> None:
    study = prepare_study(**{**POPULATION, "space": None, "settings": {"n_envs": 4}, "timesteps": 20_000})
    names = ["learning_rate", "batch_size", "n_epochs", "gamma", "gae_lambda", "ent_coef", "clip_range"]
    assert [parameter.name for parameter in study.space.parameters] == names
    assert (study.search.pruner, study.search.n_trainings) == ("none", 12)
