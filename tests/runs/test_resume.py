"""A run that is resumed in its folder ends as one that was never broken off; what is not exact is said."""

from __future__ import annotations

import csv
import errno
import io
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentCallback
from marl_sb3.errors import CheckpointError, ConfigError, NumericError
from marl_sb3.metrics import flatten
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.restore import restore
from marl_sb3.runs.resume import resume_run
from marl_sb3.storage.checkpoint_folder import CheckpointFolder

SMALL = {"n_steps": 20, "batch_size": 20, "n_epochs": 1, "env.max_timesteps": 15, "policy_kwargs.net_arch": [8]}
CLOCKS = ("time", "throughput", "perf", "env_runners/episode_duration", "evaluation/env_runners/episode_duration")


def start(folder: str, iterations: int = 8, **options: Any) -> marl_sb3.Run:
    settings = {**SMALL, "checkpoint_every": 2, **options.pop("settings", {})}
    arguments = {"env": "arena", "n_envs": 2, "seed": 7, "timesteps": 40 * iterations, **options}
    return marl_sb3.train(settings=settings, run_dir=folder, **arguments)


class Fail(MultiAgentCallback):
    """Ends the training as a crash would."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step:
            raise RuntimeError("crash")
        return True


def broken(folder: str, step: int = 210, **options: Any) -> None:
    with pytest.raises(RuntimeError, match="crash"):
        start(folder, callback=[Fail(step)], **options)


def rows(folder: str) -> list[dict[str, Any]]:
    lines = [flatten(json.loads(line)) for line in (Path(folder) / "result.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(CLOCKS)} for line in lines]


def table(folder: str) -> list[dict[str, str]]:
    with (Path(folder) / "progress.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in csv.DictReader(file)]


def scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(folder)
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith(CLOCKS)]
    # Sorted: files of one process and second are read in the order of their names.
    return {tag: sorted((event.step, event.value) for event in events.Scalars(tag)) for tag in tags}


def assert_same_runs(one: str, other: str) -> None:
    assert rows(one) == rows(other)
    assert table(one) == table(other)
    assert scalars(one) == scalars(other)
    a, b = (CheckpointFolder(Path(folder) / "checkpoints").load("latest") for folder in (one, other))
    assert a.name == b.name
    for file in a.tensors:
        for name, array in a.tensors[file].items():
            np.testing.assert_array_equal(array, b.tensors[file][name])


VARIANTS: dict[str, dict[str, Any]] = {
    "shared": {},
    "per agent": {"policies": "per_agent"},
    "sync": {"vectorizer": "sync"},
    "supersuit": {"vectorizer": "supersuit"},
    "one frozen": {"policies": "per_agent", "settings": {"policies_to_train": ["agent2"]}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_crashed_goes_on_as_if_it_had_not(variant: str, in_tmp: Path) -> None:
    options = VARIANTS[variant]
    start("whole", **options)
    broken("broken", **options)
    assert len(rows("broken")) == 5  # one more than the checkpoint knows of
    run = marl_sb3.train(resume="broken")
    assert run.algorithm.iteration == 8
    assert_same_runs("whole", "broken")
    (entry,) = map(json.loads, (in_tmp / "broken" / "resumes.jsonl").read_text().splitlines())
    assert (entry["checkpoint"], entry["exact"], entry["inexact"]) == ("ckpt-000004", True, {})


def test_a_run_may_be_broken_off_many_times(in_tmp: Path) -> None:
    start("whole")
    broken("broken", step=90)
    for step in (170, 250, 290):
        with pytest.raises(RuntimeError, match="crash"):
            marl_sb3.train(resume="broken", callback=[Fail(step)])
    marl_sb3.train(resume="broken")
    assert_same_runs("whole", "broken")
    assert len((in_tmp / "broken" / "resumes.jsonl").read_text().splitlines()) == 4


def test_more_steps_are_added_in_the_same_folder(in_tmp: Path) -> None:
    constant = {"learning_rate": 1e-3}  # a line down to 0 would be another one
    start("whole", iterations=8, settings=constant)
    start("short", iterations=3, settings=constant)
    run = marl_sb3.train(resume="short", timesteps=5 * 40)
    assert run.config.n_timesteps == 8 * 40
    assert "n_timesteps: 320" in (in_tmp / "short" / "config.yaml").read_text()
    assert_same_runs("whole", "short")


LINE = {"settings": {"learning_rate": "lin_1e-3"}}  # to the planned end, which moves
RETURN = "env_runners/episode_return_mean"


def extended_when_complete(folder: str) -> None:
    start(folder, iterations=3, **LINE)
    marl_sb3.train(resume=folder, timesteps=3 * 40)


def extended_when_broken_off(folder: str) -> None:
    broken(folder, **LINE)  # at 210 of 320 env steps; the newest checkpoint is of 160
    marl_sb3.train(resume=folder, timesteps=2 * 40)


def extended_twice(folder: str) -> None:
    extended_when_broken_off(folder)
    marl_sb3.train(resume=folder, timesteps=40, stop={RETURN: 10_000})


def extended_at_once_again(folder: str) -> None:
    start(folder, iterations=2, **LINE)
    with pytest.raises(RuntimeError, match="crash"):
        marl_sb3.train(resume=folder, timesteps=200, callback=[Fail(90)])  # before its first checkpoint
    marl_sb3.train(resume=folder, timesteps=80)


def extended_after_a_stop(folder: str) -> None:
    start(folder, iterations=8, stop={"iteration": 2}, **LINE)
    marl_sb3.train(resume=folder, stop={"iteration": 5})


def gone_on_with_after_a_stop(folder: str) -> None:
    start(folder, iterations=8, stop={"iteration": 2}, **LINE)
    marl_sb3.train(resume=folder)  # one more, in which the condition still holds


def test_without_timesteps_a_resume_extends_nothing(in_tmp: Path) -> None:
    broken("run")
    assert marl_sb3.train(resume="run").config.extensions is None


EXTENDED = {
    extended_when_complete: ([(120, 120)], 240),
    extended_when_broken_off: ([(160, 320)], 240),
    extended_twice: ([(160, 320), (240, 240)], 280),
    extended_at_once_again: ([(80, 80)], 160),
    extended_after_a_stop: ([(80, 320)], 320),
    gone_on_with_after_a_stop: ([(80, 320)], 320),
}


@pytest.mark.parametrize("extend", EXTENDED, ids=lambda extend: extend.__name__)
def test_the_config_of_an_extended_run_repeats_it_bit_for_bit(extend: Any, in_tmp: Path) -> None:
    extend("extended")
    again = marl_sb3.train(hparams="extended/config.yaml", run_dir="again")
    extensions, n_timesteps = EXTENDED[extend]
    assert [(each["until"], each["n_timesteps"]) for each in again.config.extensions or ()] == extensions
    assert again.config.n_timesteps == n_timesteps
    assert_same_runs("extended", "again")
    assert again.config == RunFolder.existing("extended").read_config()


def test_an_extension_moves_the_learning_rate_and_is_noted(in_tmp: Path) -> None:
    extended_when_complete("run")
    rates = [row["learners/shared/curr_lr"] for row in rows("run")]
    np.testing.assert_allclose(
        rates, [1e-3 * (1 - done / 3) for done in (1, 2, 3)] + [5e-4 * left / 3 for left in (2, 1, 0)]
    )
    (entry,) = map(json.loads, (in_tmp / "run" / "resumes.jsonl").read_text().splitlines())
    assert (entry["env_steps"], entry["n_timesteps"], entry["extended_from"]) == (120, 240, 120)


@pytest.mark.parametrize("iterations", [2, 4])  # broken off before and after the end of the first phase
def test_a_repeated_extended_run_that_crashed_goes_on_as_if_it_had_not(iterations: int, in_tmp: Path) -> None:
    extended_when_complete("extended")
    crash = Fail(40 * iterations + 30)
    with pytest.raises(RuntimeError, match="crash"):
        marl_sb3.train(hparams="extended/config.yaml", run_dir="again", callback=[crash])
    marl_sb3.train(resume="again")
    assert_same_runs("extended", "again")


def test_another_number_of_steps_is_another_plan(in_tmp: Path) -> None:
    extended_when_complete("extended")
    run = marl_sb3.train(hparams="extended/config.yaml", timesteps=80)
    assert (run.config.extensions, run.config.n_timesteps) == (None, 80)


def test_a_signal_in_an_earlier_phase_ends_the_run(in_tmp: Path) -> None:
    class Interrupt(MultiAgentCallback):
        def on_iteration_end(self, result: dict[str, Any]) -> bool:
            if result["iteration"] == 3:  # with which the first phase ends
                signal.raise_signal(signal.SIGTERM)
            return True

    extended_when_complete("extended")
    run = marl_sb3.train(hparams="extended/config.yaml", run_dir="again", callback=[Interrupt()])
    assert (run.interrupted, run.algorithm.iteration) == (True, 3)
    marl_sb3.train(resume="again")
    assert_same_runs("extended", "again")


def test_a_complete_run_stays_as_it_is(in_tmp: Path) -> None:
    start("whole", iterations=2)
    before, config = rows("whole"), (in_tmp / "whole" / "config.yaml").read_text()
    assert marl_sb3.train(resume="whole", stop={"iteration": 1}).result is None
    assert rows("whole") == before
    assert (in_tmp / "whole" / "config.yaml").read_text() == config
    assert not (in_tmp / "whole" / "resumes.jsonl").exists()


@pytest.mark.parametrize("timesteps", [0, -5])
def test_nothing_can_be_added_or_taken_away(timesteps: int, in_tmp: Path) -> None:
    start("run", iterations=1)
    with pytest.raises(
        ConfigError, match=f"--timesteps is {timesteps}; accepted with --resume: an integer of at least 1"
    ):
        marl_sb3.train(resume="run", timesteps=timesteps)


def test_a_run_starts_from_the_newest_of_a_folder_and_notes_which(in_tmp: Path) -> None:
    start("runs/arena/first", iterations=1)
    run = start("second", iterations=1, init_from=["shared=runs/arena:shared"])
    assert run.config.init_from == ["shared=runs/arena/first:shared"]
    assert "shared=runs/arena/first:shared" in (in_tmp / "second" / "config.yaml").read_text()


def test_half_written_lines_of_a_killed_process_are_cut(in_tmp: Path) -> None:
    start("whole")
    broken("broken")
    for name in ("result.jsonl", "progress.csv"):
        with (in_tmp / "broken" / name).open("a") as file:
            file.write('{"iteration": 6, "num_env')
    events = max((in_tmp / "broken").glob("events*"))  # the newest; the other one holds the settings
    with events.open("ab") as binary:
        binary.write(b"\x18\x00\x00\x00\x00\x00\x00\x00half")
    marl_sb3.train(resume="broken")
    assert_same_runs("whole", "broken")


class Moody(ScriptedEnv):
    """Counts its games over the process: no seed brings them back."""

    games = 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        type(self).games += 1
        return super().reset(seed, options)

    def observation(self, agent: str) -> np.ndarray:
        return super().observation(agent) + type(self).games


def test_a_resume_that_is_not_exact_is_marked(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"n_steps": 10, "batch_size": 10, "checkpoint_every": 2}
    with pytest.raises(RuntimeError):
        marl_sb3.train(Moody, n_envs=2, timesteps=120, settings=settings, run_dir="run", callback=[Fail(110)])
    with caplog.at_level(logging.WARNING, logger="marl_sb3"):
        run = marl_sb3.train(Moody, resume="run")
    assert run.algorithm.num_timesteps == 120
    message = "inexact resume: env 0: the same seed and actions led to something else"
    assert message in [record.getMessage() for record in caplog.records]
    (entry,) = map(json.loads, (in_tmp / "run" / "resumes.jsonl").read_text().splitlines())
    assert entry["exact"] is False
    assert set(entry["inexact"]) == {"env 0", "env 1"}


def test_another_version_of_torch_is_marked(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken("run")
    from marl_sb3.training import persistence

    versions = {**persistence.versions(), "torch": "1.0"}
    monkeypatch.setattr(persistence, "versions", lambda: versions)
    marl_sb3.train(resume="run")
    entry = json.loads((in_tmp / "run" / "resumes.jsonl").read_text())
    assert entry["inexact"]["torch"].endswith("is 1.0")


def test_a_run_with_code_of_the_users_own_wants_it_named(in_tmp: Path) -> None:
    marl_sb3.train(ScriptedEnv, n_envs=2, timesteps=40, settings={"n_steps": 10, "batch_size": 10}, run_dir="run")
    with pytest.raises(ConfigError, match=r"wants to import toy_envs:ScriptedEnv: if you trust"):
        resume_run("run")
    run = marl_sb3.train("toy_envs:ScriptedEnv", resume="run", timesteps=20)
    assert run.algorithm.num_timesteps == 60


def test_a_run_of_another_env_is_not_resumed(in_tmp: Path) -> None:
    start("run", iterations=2)
    with pytest.raises(ConfigError, match=r"has no settings for env|is of env 'arena', not of 'CartPole-v1'"):
        resume_run("run", env="CartPole-v1")


def test_a_run_that_is_training_is_not_resumed_beside(in_tmp: Path) -> None:
    class Beside(MultiAgentCallback):
        def on_iteration_logged(self, result: dict[str, Any]) -> None:
            with pytest.raises(ConfigError, match="run is in use: another process is training this run"):
                resume_run("run")

    start("run", iterations=2, callback=[Beside()])
    resume_run("run").files.unlock()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda run: (run / "config.yaml").unlink(), "is not a run folder: it has no config.yaml"),
        (lambda run: [p.unlink() for p in run.glob("checkpoints/*/state.json")], "holds no valid checkpoint"),
        (lambda run: (run / "config.yaml").write_text("arena: {n_steps: 99}"), "state/num_envs is 2; accepted: 8"),
    ],
)
def test_a_folder_that_cannot_be_resumed_says_why(make: Any, message: str, in_tmp: Path) -> None:
    start("run", iterations=2)
    make(in_tmp / "run")
    with pytest.raises((ConfigError, CheckpointError), match=message):
        resume_run("run")
    assert not (in_tmp / "run" / "resumes.jsonl").exists()


@pytest.mark.parametrize("what", ["lock", ".unfinished-config.yaml", "resumes.jsonl", ".unfinished-result.jsonl"])
def test_a_folder_that_cannot_be_written_is_not_resumed(
    what: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, *arguments: Any, **options: Any) -> Any:  # who runs the tests may be permitted everything
        if str(path).endswith(what):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, *arguments, **options)

    broken("run")
    original = os.open if what == "lock" else io.open
    with monkeypatch.context() as patched:
        patched.setattr(os if what == "lock" else io, "open", refuse)
        with pytest.raises(ConfigError, match="cannot write to the run folder run: Permission denied"):
            resume_run("run")
    resume_run("run").files.unlock()


def test_a_damaged_checkpoint_is_passed_over(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    start("whole")
    broken("run")
    (in_tmp / "run" / "checkpoints" / "ckpt-000004" / "arrays.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING, logger="marl_sb3"):
        marl_sb3.train(resume="run")
    assert "arrays.safetensors has 0 bytes; the manifest says" in caplog.text
    assert_same_runs("whole", "run")


# --- restore ---------------------------------------------------------------------------------------------------------


def test_the_best_and_the_newest_are_kept_and_can_be_asked_for(in_tmp: Path) -> None:
    settings = {"checkpoint_every": 1, "checkpoint_keep": 2}
    start("run", iterations=8, settings=settings)
    returns = [row["env_runners/episode_return_mean"] for row in rows("run")]
    best = f"ckpt-{max(range(1, 9), key=lambda i: (returns[i - 1], i)):06d}"
    names = CheckpointFolder(in_tmp / "run" / "checkpoints").names()
    assert names == sorted({best, "ckpt-000007", "ckpt-000008"})
    assert restore("run").checkpoint == best
    assert restore("run", "latest").checkpoint == "ckpt-000008"
    assert restore("run", "7").checkpoint == "ckpt-000007"
    with pytest.raises(CheckpointError, match="has no checkpoint '99'; accepted: best, latest, or one of"):
        restore("run", "99")


def test_the_lowest_is_the_best_where_that_is_said(in_tmp: Path) -> None:
    settings = {"checkpoint_every": 1, "checkpoint_keep": 1, "checkpoint_mode": "min"}
    start("run", iterations=6, settings=settings)
    returns = [row["env_runners/episode_return_mean"] for row in rows("run")]
    assert restore("run").checkpoint == f"ckpt-{min(range(1, 7), key=lambda i: (returns[i - 1], -i)):06d}"


def test_restored_policies_act_as_those_of_the_run(in_tmp: Path) -> None:
    run = start("run", iterations=2, policies="per_agent")
    again = restore("run", "latest")
    observations = {agent: np.array([3, 40]) for agent in ("agent1", "agent2")}
    observations = {agent: run.algorithm.env.groups[0].observation_space.sample() for agent in observations}
    assert run.algorithm.predict(observations, True) == again.algorithm.predict(observations, True)


# --- Numeric faults --------------------------------------------------------------------------------------------------


class Poisonous(ScriptedEnv):
    """Pays a NaN, once or always, from some step on."""

    doses = 0

    def _reward(self, agent: str) -> float:
        if type(self).doses and self.env_index == 0 and self.episode >= 5:
            type(self).doses -= 1
            return float("nan")
        return super()._reward(agent)


def poisoned(doses: int, **settings: Any) -> marl_sb3.Run:
    Poisonous.doses = doses
    settings = {"n_steps": 10, "batch_size": 10, "checkpoint_every": 1, **settings}
    return marl_sb3.train(Poisonous, n_envs=2, timesteps=120, seed=1, settings=settings, run_dir="run")


def test_a_nan_ends_the_run_and_is_named(in_tmp: Path) -> None:
    with pytest.raises(NumericError, match=r"env 0, episode 4, step 1, agent 'a': reward is nan"):
        poisoned(1)
    assert CheckpointFolder(in_tmp / "run" / "checkpoints").names() == ["ckpt-000001"]
    assert len(rows("run")) == 1


def test_a_rollback_goes_back_to_the_latest_checkpoint(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="marl_sb3"):
        run = poisoned(1, on_nan="rollback")
    assert [row["iteration"] for row in rows("run")] == [1, 2, 3, 4, 5, 6]
    assert run.algorithm.num_timesteps == 120
    assert "rollback 1 of 3, to ckpt-000001, with other random numbers" in caplog.text


def test_a_rollback_is_tried_three_times(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="marl_sb3"), pytest.raises(NumericError, match="reward is nan"):
        poisoned(99, on_nan="rollback")
    assert caplog.text.count("with other random numbers") == 3


def test_weights_that_are_not_finite_never_reach_a_checkpoint(in_tmp: Path) -> None:
    class Poison(MultiAgentCallback):
        def on_iteration_end(self, result: dict[str, Any]) -> bool:
            if result["iteration"] == 3:
                import torch as th

                with th.no_grad():
                    next(self.algorithm.policies["shared"].policy.parameters())[0] = float("inf")
            return True

    with pytest.raises(NumericError):
        start("run", callback=[Poison()], settings={"checkpoint_every": 1})
    assert CheckpointFolder(in_tmp / "run" / "checkpoints").names() == ["ckpt-000001", "ckpt-000002"]


# --- Evaluation within a run -----------------------------------------------------------------------------------------

EVALUATED = {"evaluation_interval": 2, "evaluation_duration": 3, "learning_rate": 1e-3}
NAME = "evaluation/env_runners/episode_return_mean"


def test_a_run_that_evaluates_learns_and_resumes_as_one_that_does_not(in_tmp: Path) -> None:
    start("plain", settings={"learning_rate": 1e-3})
    start("whole", settings=EVALUATED)
    broken("broken", settings=EVALUATED)
    marl_sb3.train(resume="broken")
    assert_same_runs("whole", "broken")
    assert [NAME in row and row[NAME] is not None for row in rows("whole")] == [False, True] * 4
    evaluated = [{k: v for k, v in row.items() if not k.startswith("evaluation/")} for row in rows("whole")]
    assert evaluated == rows("plain")


def test_an_evaluation_may_stop_the_run_and_choose_the_best_checkpoint(in_tmp: Path) -> None:
    run = start("run", stop={NAME: -1000}, settings={**EVALUATED, "checkpoint_metric": NAME})
    assert run.algorithm.iteration == 2
    assert run.stopped_by is not None
    assert run.stopped_by.startswith(NAME)
    with pytest.raises(ConfigError, match="unknown metric 'evaluation/env_runners/episode_return_mean'"):
        start("other", stop={NAME: 1})


def test_evaluating_a_restored_run_gives_the_figures_of_the_run(in_tmp: Path) -> None:
    run = start("run", settings={**EVALUATED, "checkpoint_every": 1}, iterations=4)
    from marl_sb3.evaluation import evaluation_seed

    again = restore("run", "4")
    env = marl_sb3.make_vec_env("arena", n_envs=2, max_timesteps=15)
    metrics = marl_sb3.evaluate_policies(
        again.algorithm, env, 3, again.config.evaluation.deterministic, evaluation_seed(again.config.seed)
    )
    assert metrics["episode_return_mean"] == rows("run")[-1][NAME]
    assert run.config.evaluation.deterministic is False  # the arena's preset says so
