"""A run that is resumed in its folder ends as one that was never broken off; what is not exact is said."""

from __future__ import annotations

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
from small_runs import Fail, assert_same_runs, broken, rows, start
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentCallback
from marl_sb3.core.state import checkpoint
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.start import resume_run
from marl_sb3.signals import handled

VARIANTS: dict[str, dict[str, Any]] = {
    "shared": {},
    "per agent": {"policies": "per_agent"},
    "sync": {"vectorizer": "sync"},
    "supersuit": {"vectorizer": "supersuit"},
    "turns": {"env": "classic/tictactoe-v3", "policies": "per_agent"},
    "one frozen": {"policies": "per_agent", "settings": {"policies_to_train": ["agent2"]}},
    "swap": {"policies": "per_agent", "settings": {"mapping": "swap"}},
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
    (entry,) = entries("broken")
    assert (entry["checkpoint"], entry["exact"], entry["inexact"]) == ("ckpt-000004", True, {})


def test_a_run_may_be_broken_off_many_times(in_tmp: Path) -> None:
    start("whole")
    broken("broken", step=90)
    for step in (170, 250, 290):
        with pytest.raises(RuntimeError, match="crash"):
            marl_sb3.train(resume="broken", callback=[Fail(step)])
    marl_sb3.train(resume="broken")
    assert_same_runs("whole", "broken")
    assert len(entries("broken")) == 4


def test_more_steps_are_added_in_the_same_folder(in_tmp: Path) -> None:
    constant = {"learning_rate": 1e-3}  # a line down to 0 would be another one
    start("whole", iterations=8, settings=constant)
    start("short", iterations=3, settings=constant)
    run = marl_sb3.train(resume="short", timesteps=5 * 40)
    assert run.config.n_timesteps == 8 * 40
    assert "n_timesteps: 320" in (in_tmp / "short" / "config.yaml").read_text()
    assert_same_runs("whole", "short")


def entries(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "resumes.jsonl").read_text().splitlines()]


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


SMALL_FILE = {"n_timesteps": 80, "n_envs": 2, "n_steps": 20, "batch_size": 20}


def changed_twice(folder: str) -> None:
    settings = {"learning_rate": "lin_1e-3", "gamma": 0.9}
    start(folder, iterations=6, policies="per_agent", stop={"iteration": 2}, settings=settings)
    changes = {"agent1.gamma": 0.8, "learning_rate": "lin_2e-3", "batch_size": 10}
    marl_sb3.train(resume=folder, settings=changes, stop={"iteration": 4})
    marl_sb3.train(resume=folder, settings={"gamma": 0.95, "ent_coef": 0.1}, stop={"iteration": 100})


EXTENDED = {
    changed_twice: ([(80, 240), (160, 240)], 240),
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
    assert again.config == RunFolder(Path("extended")).read_config()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gama": 0.9}, r"gama cannot change in a run that goes on"),
        ({"shared.n_steps": 5}, r"shared.n_steps cannot change in a run that goes on"),
        ({"gamma": "high"}, r"gamma is 'high'; accepted: "),
    ],
)
def test_a_phase_may_change_what_a_resume_may(settings: dict[str, Any], message: str, in_tmp: Path) -> None:
    phases = [{"until": 40, "n_timesteps": 80}, {"until": 60, "n_timesteps": 80, "settings": settings}]
    with pytest.raises(ConfigError, match=message):
        marl_sb3.train(hparams={"arena": {**SMALL_FILE, "extensions": phases}}, run_dir="run")
    assert not Path("run").exists()


def test_an_extension_moves_the_learning_rate_and_is_noted(in_tmp: Path) -> None:
    extended_when_complete("run")
    rates = [row["learners/shared/curr_lr"] for row in rows("run")]
    np.testing.assert_allclose(
        rates, [1e-3 * (1 - done / 3) for done in (1, 2, 3)] + [5e-4 * left / 3 for left in (2, 1, 0)]
    )
    (entry,) = entries("run")
    assert (entry["env_steps"], entry["n_timesteps"], entry["extended_from"]) == (120, 240, 120)


@pytest.mark.parametrize("iterations", [2, 4])  # broken off before and after the end of the first phase
def test_a_repeated_extended_run_that_crashed_goes_on_as_if_it_had_not(iterations: int, in_tmp: Path) -> None:
    extended_when_complete("extended")
    crash = Fail(40 * iterations + 30)
    with pytest.raises(RuntimeError, match="crash"):
        marl_sb3.train(hparams="extended/config.yaml", run_dir="again", callback=[crash])
    marl_sb3.train(resume="again")
    assert_same_runs("extended", "again")


def test_another_number_of_steps_is_another_plan(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    extended_when_complete("extended")
    run = marl_sb3.train(hparams="extended/config.yaml", timesteps=80)
    assert (run.config.extensions, run.config.n_timesteps) == (None, 80)
    assert "left out" not in caplog.text
    changed_twice("changed")
    assert marl_sb3.train(hparams="changed/config.yaml", timesteps=40).config.extensions is None
    words = "changed/config.yaml, arena: extensions, with their settings, are left out: they belong to n_timesteps=240"
    assert words in caplog.text


def test_a_signal_in_an_earlier_phase_ends_the_run(in_tmp: Path) -> None:
    class Interrupt(MultiAgentCallback):
        def on_iteration_end(self, result: dict[str, Any]) -> bool:
            if result["iteration"] == 3:  # with which the first phase ends
                signal.raise_signal(signal.SIGTERM)
            return True

    extended_when_complete("extended")
    passed_on: list[int] = []
    with handled([signal.SIGTERM], lambda number, _: passed_on.append(number)):
        run = marl_sb3.train(hparams="extended/config.yaml", run_dir="again", callback=[Interrupt()])
    assert passed_on == [signal.SIGTERM]
    assert (run.interrupted, run.algorithm.iteration) == (True, 3)
    marl_sb3.train(resume="again")
    assert_same_runs("extended", "again")


def test_ctrl_c_ends_a_loop_over_trainings_when_all_is_saved(in_tmp: Path) -> None:
    class Interrupt(MultiAgentCallback):
        def on_iteration_end(self, result: dict[str, Any]) -> bool:
            if result["iteration"] == 1:
                signal.raise_signal(signal.SIGINT)
            return True

    def loop() -> None:
        for seed in range(2):
            settings: dict[str, Any] = {"n_envs": 2, "n_steps": 10, "batch_size": 20, "seed": seed}
            marl_sb3.train("arena", timesteps=80, **settings, run_dir=f"run-{seed}", callback=Interrupt())

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert [path.name for path in in_tmp.iterdir()] == ["run-0"]
    assert marl_sb3.train(resume="run-0", progress_bar=False).algorithm.num_timesteps == 80


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
    message = "inexact resume: env 0: the same seed and actions led to a different state"
    assert message in [record.getMessage() for record in caplog.records]
    (entry,) = entries("run")
    assert entry["exact"] is False
    assert set(entry["inexact"]) == {"env 0", "env 1"}


def test_another_version_of_torch_is_marked(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken("run")
    others = {**checkpoint.versions(), "torch": "1.0"}
    monkeypatch.setattr("marl_sb3.core.training.algorithm.versions", lambda: others)
    marl_sb3.train(resume="run")
    (entry,) = entries("run")
    assert entry["inexact"]["torch"].endswith("is 1.0")


def test_a_checkout_that_is_not_installed_knows_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "version", lambda name: "1")
    assert checkpoint.versions.__wrapped__()["marl_sb3"] == marl_sb3.__version__


def test_a_checkpoint_names_the_versions_that_decide_what_is_computed(run_folder: Path) -> None:
    about = CheckpointFolder(run_folder / "checkpoints").load().about
    assert list(about.fields("versions")) == ["marl_sb3", "stable-baselines3", "torch", "numpy", "gymnasium"]


def test_a_run_with_code_of_the_users_own_wants_it_named(in_tmp: Path) -> None:
    marl_sb3.train(ScriptedEnv, n_envs=2, timesteps=40, settings={"n_steps": 10, "batch_size": 10}, run_dir="run")
    with pytest.raises(ConfigError, match=r"wants to import toy_envs:ScriptedEnv: if you trust"):
        resume_run("run")
    run = marl_sb3.train("toy_envs:ScriptedEnv", resume="run", timesteps=20)
    assert run.algorithm.num_timesteps == 60


def test_a_run_is_not_resumed_in_an_env_that_it_does_not_fit(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    start("run", iterations=2)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"the env does not take these arguments: .*max_timesteps"):
        resume_run("run", env="CartPole-v1")
    assert "run/config.yaml is of env 'arena'; it is used with CartPole-v1" in caplog.text
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


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


# --- Changed settings -------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_changed_settings_and_is_marked(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start("run", policies="per_agent", iterations=2, settings={"learning_rate": 3e-4})
    before = marl_sb3.load_run("run", "latest").algorithm.get_parameters()
    settings = {"learning_rate": 0.0, "agent2.lr": 1e-3, "evaluation.interval": 1}
    capsys.readouterr()
    run = marl_sb3.train(resume="run", timesteps=80, settings=settings)
    assert [row.get("learners/agent1/curr_lr") for row in rows("run")] == [3e-4, 3e-4, 0.0, 0.0]
    assert [row.get("learners/agent2/curr_lr") for row in rows("run")] == [3e-4, 3e-4, 1e-3, 1e-3]
    after = run.algorithm.get_parameters()
    same = {
        policy: all(np.array_equal(before[policy]["policy"][name], after[policy]["policy"][name]) for name in weights)
        for policy, weights in ((policy, before[policy]["policy"]) for policy in before)
    }
    assert same == {"agent1": True, "agent2": False}
    assert "evaluation/env_runners/episode_return_mean" in rows("run")[-1]
    (entry,) = entries("run")
    assert (entry["exact"], entry["inexact"]) == (False, {})
    assert entry["changed"] == {
        "evaluation.interval": {"from": 0, "to": 1},
        "learning_rate": {"from": 3e-4, "to": 0.0},
        "agent2.learning_rate": {"from": 3e-4, "to": 1e-3},
    }
    remark = "changed after 80 env steps: agent2.learning_rate from 0.0003 to 0.001, evaluation.interval from 0 to 1, "
    assert f"{remark}learning_rate from 0.0003 to 0.0\n" in capsys.readouterr().out
    assert Path("run/config.yaml").read_text().startswith(f"# {remark}")


CHANGES = {"learning_rate": 1e-3, "gamma": 0.5, "batch_size": 10}


def test_a_changed_run_that_is_broken_off_goes_on_exactly(in_tmp: Path) -> None:
    of_dqn = {"algo": "dqn", "learning_starts": 20, "train_freq": 4, "batch_size": 8}
    options: dict[str, Any] = {
        "policies": "per_agent",
        "settings": {f"agent2.{name}": value for name, value in of_dqn.items()},
    }
    changes = {f"{policy}{name}": value for policy in ("", "agent2.") for name, value in CHANGES.items()}
    for folder in ("whole", "broken"):
        broken(folder, **options)
    marl_sb3.train(resume="whole", settings=changes)
    with pytest.raises(RuntimeError, match="crash"):
        marl_sb3.train(resume="broken", settings=changes, callback=[Fail(290)])
    marl_sb3.train(resume="broken")
    assert_same_runs("whole", "broken")
    assert [entry["exact"] for entry in entries("broken")] == [False, True]
    assert Path("broken/config.yaml").read_text() == Path("whole/config.yaml").read_text()


def test_a_complete_run_is_not_changed(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start("run", iterations=2)
    before = Path("run/config.yaml").read_bytes()
    marl_sb3.train(resume="run", settings={"learning_rate": 1e-4})
    assert "changed after" not in capsys.readouterr().out
    assert Path("run/config.yaml").read_bytes() == before
    assert not Path("run/resumes.jsonl").exists()


def test_settings_that_are_the_same_change_nothing(in_tmp: Path) -> None:
    start("run", iterations=2)
    marl_sb3.train(resume="run", timesteps=40, settings={"n_epochs": 1, "checkpoint_every": 1})
    (entry,) = entries("run")
    assert (entry["exact"], list(entry["changed"])) == (True, ["checkpoints.every"])
    assert not Path("run/config.yaml").read_text().startswith("#")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env.height": 6}, "--set env.height: env.height cannot change in a run that goes on: its state "),
        ({"n_steps": 10}, "--set n_steps: n_steps cannot change in a run that goes on: "),
        ({"net_arch": [9]}, "policy_kwargs cannot change in a run that goes on: "),
        ({"shared.algo": "dqn"}, "--set shared.algo: shared.algo cannot change in a run that goes on"),
        ({"normalize_rewards": True}, "processing.normalize_rewards cannot change in a run that goes on"),
        ({"seed": 8}, "start a new run from its weights: train arena --init-from RUN --set KEY=VALUE"),
        ({"n_timesteps": 900}, "--set n_timesteps: with --resume, accepted: --timesteps N, env steps to add"),
        ({"stop": {"iteration": 3}}, "--set stop: with --resume, accepted: --stop METRIC=VALUE, or --stop none"),
        ({"gamma": 5}, "--set gamma: gamma is 5; accepted: a number from 0 to 1"),
        ({"tau": 0.5}, "--set tau: unknown hyperparameter 'tau' of PPO"),
    ],
)
def test_a_change_that_the_state_depends_on_is_refused(
    settings: dict[str, Any], message: str, run_folder: Path
) -> None:
    before = (run_folder / "config.yaml").read_bytes()
    with pytest.raises(ConfigError) as caught:
        marl_sb3.train(resume=run_folder, timesteps=10, settings=settings)
    assert message in str(caught.value)
    assert (run_folder / "config.yaml").read_bytes() == before
    assert not (run_folder / "resumes.jsonl").exists()


def test_the_entropy_coefficient_that_is_learned_stays_so(in_tmp: Path) -> None:
    settings = {"batch_size": 8, "learning_starts": 20, "policy_kwargs.net_arch": [8]}
    arguments = {"algo": "sac", "n_envs": 2, "seed": 7, "timesteps": 40, "run_dir": "run"}
    marl_sb3.train("Pendulum-v1", settings=settings, **arguments)
    with pytest.raises(ConfigError, match="ent_coef cannot change in a run that goes on"):
        marl_sb3.train(resume="run", timesteps=10, settings={"ent_coef": 0.1})
