"""A run that is resumed in its folder ends as one that was never broken off; what is not exact is said."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from odd_files import content
from small_runs import assert_same_runs, broken, crash, rows, start
from state_envs import Forgetful

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
    "turns": {"env": "classic/tictactoe-v3", "policies": "per_agent"},
    "one frozen, supersuit": {
        "policies": "per_agent",
        "settings": {"policies_to_train": ["agent2"]},
        "vectorizer": "supersuit",
    },
    "swap, sync": {"policies": "per_agent", "settings": {"mapping": "swap"}, "vectorizer": "sync"},
}


def entries(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "resumes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_crashed_goes_on_as_if_it_had_not(variant: str, in_tmp: Path) -> None:
    options = VARIANTS[variant]
    start("whole", **options)
    broken("broken", **options)
    assert len(rows("broken")) == 5  # one more than the checkpoint knows of
    run = marl_sb3.train(resume="broken")
    assert (run.algorithm.iteration, run.config.extensions) == (8, None)
    assert_same_runs("whole", "broken")
    (entry,) = entries("broken")
    assert (entry["checkpoint"], entry["exact"], entry["inexact"]) == ("ckpt-000004", True, {})


CONSTANT = {"settings": {"learning_rate": 1e-3}}  # where steps are added, a line down to 0 would be another one


def broken_off_many_times(caplog: pytest.LogCaptureFixture) -> None:
    broken("run", step=90, **CONSTANT)
    for step in (170, 250, 290):
        crash(step, resume="run")
    marl_sb3.train(resume="run")
    assert len(entries("run")) == 4


def more_steps_are_added(caplog: pytest.LogCaptureFixture) -> None:
    start("run", iterations=3, **CONSTANT)
    assert marl_sb3.train(resume="run", timesteps=5 * 40).config.n_timesteps == 8 * 40
    assert "n_timesteps: 320" in Path("run/config.yaml").read_text()


def killed_in_the_middle_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    broken("run", **CONSTANT)
    newest = max(Path("run").glob("events*"))  # the other one holds the settings
    half_lines = dict.fromkeys(map(Path, ("run/result.jsonl", "run/progress.csv")), b'{"iteration": 6, "num_env')
    for path, half in {**half_lines, newest: b"\x18\x00\x00\x00\x00\x00\x00\x00half"}.items():
        path.write_bytes(path.read_bytes() + half)
    marl_sb3.train(resume="run")


def the_newest_checkpoint_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    broken("run", **CONSTANT)
    Path("run/checkpoints/ckpt-000004/arrays.safetensors").write_bytes(b"")
    marl_sb3.train(resume="run")
    assert "arrays.safetensors has 0 bytes; the manifest says" in caplog.text


@pytest.mark.parametrize(
    "disturb",
    [
        broken_off_many_times,
        more_steps_are_added,
        killed_in_the_middle_of_lines,
        the_newest_checkpoint_is_damaged,
    ],
    ids=lambda disturb: disturb.__name__,
)
def test_however_a_run_is_disturbed_it_ends_as_one_that_was_not(
    disturb: Callable[[pytest.LogCaptureFixture], None], in_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start("whole", **CONSTANT)
    disturb(caplog)
    assert_same_runs("whole", "run")


# --- More steps ------------------------------------------------------------------------------------------------------


class Extended(NamedTuple):
    """A run that goes on beyond its first end."""

    begin: dict[str, Any]  # of `start`; with a `step`, of `broken`
    resumes: list[dict[str, Any]]  # of `marl_sb3.train`; with a `step`, of `crash`
    extensions: list[tuple[int, int]]  # in the configuration then: (until, n_timesteps)
    n_timesteps: int

    def make(self, folder: str) -> None:
        """A run whose learning rate leads to the planned end, which moves."""
        options = {**self.begin, "settings": {"learning_rate": "lin_1e-3", **self.begin.get("settings", {})}}
        (broken if "step" in options else start)(folder, **options)
        for each in self.resumes:
            (crash if "step" in each else marl_sb3.train)(resume=folder, **each)


COMPLETE = Extended({"iterations": 3}, [{"timesteps": 3 * 40}], [(120, 120)], 240)
CHANGED = Extended(
    {"iterations": 6, "policies": "per_agent", "stop": {"iteration": 2}, "settings": {"gamma": 0.9}},
    [
        {"settings": {"agent1.gamma": 0.8, "learning_rate": "lin_2e-3", "batch_size": 10}, "stop": {"iteration": 4}},
        {"settings": {"gamma": 0.95, "ent_coef": 0.1}, "stop": {"iteration": 100}},
    ],
    [(80, 240), (160, 240)],
    240,
)
RETURN = "env_runners/episode_return_mean"
EXTENDED = {
    "complete": COMPLETE,
    "changed twice": CHANGED,
    "changed alone": Extended({"step": 210}, [{"settings": {"gamma": 0.5}}], [(160, 320)], 320),
    # at 210 of 320 env steps; the newest checkpoint is of 160
    "broken off": Extended({"step": 210}, [{"timesteps": 2 * 40}], [(160, 320)], 240),
    "twice": Extended(
        {"step": 210},
        [{"timesteps": 2 * 40}, {"timesteps": 40, "stop": {RETURN: 10_000}}],
        [(160, 320), (240, 240)],
        280,
    ),
    # broken off before its first checkpoint
    "at once again": Extended({"iterations": 2}, [{"timesteps": 200, "step": 90}, {"timesteps": 80}], [(80, 80)], 160),
    "after a stop": Extended({"stop": {"iteration": 2}}, [{"stop": {"iteration": 5}}], [(80, 320)], 320),
    "gone on with after a stop": Extended({"stop": {"iteration": 2}}, [{}], [(80, 320)], 320),  # which still holds
}


@pytest.mark.parametrize("name", EXTENDED)
def test_the_config_of_an_extended_run_repeats_it_bit_for_bit(name: str, in_tmp: Path) -> None:
    extended = EXTENDED[name]
    extended.make("extended")
    again = marl_sb3.train(hparams="extended/config.yaml", run_dir="again")
    assert [(each["until"], each["n_timesteps"]) for each in again.config.extensions or ()] == extended.extensions
    assert again.config.n_timesteps == extended.n_timesteps
    assert_same_runs("extended", "again")
    assert again.config == RunFolder(Path("extended")).read_config()


def test_an_extension_moves_the_learning_rate_and_is_noted(in_tmp: Path) -> None:
    COMPLETE.make("run")
    rates = [row["learners/shared/curr_lr"] for row in rows("run")]
    np.testing.assert_allclose(
        rates, [1e-3 * (1 - done / 3) for done in (1, 2, 3)] + [5e-4 * left / 3 for left in (2, 1, 0)]
    )
    (entry,) = entries("run")
    assert (entry["env_steps"], entry["n_timesteps"], entry["extended_from"]) == (120, 240, 120)


class Signal(MultiAgentCallback):
    """Ends the training with an iteration, as the user may."""

    def __init__(self, number: signal.Signals, iteration: int) -> None:
        super().__init__()
        self.number, self.iteration = number, iteration

    def on_iteration_end(self, result: dict[str, Any]) -> bool:
        if result["iteration"] == self.iteration:
            signal.raise_signal(self.number)
        return True


def test_a_repeated_extended_run_that_is_broken_off_goes_on_as_if_it_had_not(in_tmp: Path) -> None:
    COMPLETE.make("extended")
    for step in (110, 190):  # before and after the end of the first phase
        crash(step, hparams="extended/config.yaml", run_dir=f"at {step}")
        marl_sb3.train(resume=f"at {step}")
        assert_same_runs("extended", f"at {step}")
    passed_on: list[int] = []
    with handled([signal.SIGTERM], lambda number, _: passed_on.append(number)):
        ending = Signal(signal.SIGTERM, 3)  # with which the first phase ends
        run = marl_sb3.train(hparams="extended/config.yaml", run_dir="signal", callback=[ending])
    assert passed_on == [signal.SIGTERM]
    assert (run.interrupted, run.algorithm.iteration) == (True, 3)
    marl_sb3.train(resume="signal")
    assert_same_runs("extended", "signal")


def test_another_number_of_steps_is_another_plan(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    COMPLETE.make("extended")
    run = marl_sb3.train(hparams="extended/config.yaml", timesteps=80)
    assert (run.config.extensions, run.config.n_timesteps) == (None, 80)
    assert "left out" not in caplog.text
    CHANGED.make("changed")
    assert marl_sb3.train(hparams="changed/config.yaml", timesteps=40).config.extensions is None
    words = "changed/config.yaml, arena: extensions, with their settings, are left out: they belong to n_timesteps=240"
    assert words in caplog.text


def test_ctrl_c_ends_a_loop_over_trainings_when_all_is_saved(in_tmp: Path) -> None:
    def loop() -> None:
        for seed in range(2):
            start(f"run-{seed}", iterations=2, seed=seed, callback=Signal(signal.SIGINT, 1))

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert [path.name for path in in_tmp.iterdir()] == ["run-0"]
    assert marl_sb3.train(resume="run-0", progress_bar=False).algorithm.num_timesteps == 80


def test_a_run_starts_from_the_newest_of_a_folder_and_notes_which(in_tmp: Path) -> None:
    start("runs/arena/first", iterations=1)
    run = start("second", iterations=1, init_from=["shared=runs/arena:shared"])
    assert run.config.init_from == ["shared=runs/arena/first:shared"]
    assert "shared=runs/arena/first:shared" in (in_tmp / "second" / "config.yaml").read_text()


# --- What is not exact -----------------------------------------------------------------------------------------------


def test_a_resume_that_is_not_exact_is_marked(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken("run", env=Forgetful)
    with pytest.raises(ConfigError, match=r"wants to import state_envs:Forgetful: if you trust"):
        resume_run("run")  # code of the user's own has to be named
    run = marl_sb3.train("state_envs:Forgetful", resume="run")
    assert run.algorithm.num_timesteps == 320
    message = "inexact resume: env 0: the same seed and actions led to a different state"
    assert message in [record.getMessage() for record in caplog.records]
    (entry,) = entries("run")
    assert entry["exact"] is False
    assert set(entry["inexact"]) == {"env 0", "env 1"}


def test_another_version_of_torch_is_marked(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken("run")
    about = CheckpointFolder(Path("run/checkpoints")).load().about
    assert list(about.fields("versions")) == ["marl_sb3", "stable-baselines3", "torch", "numpy", "gymnasium"]
    others = {**checkpoint.versions(), "torch": "1.0"}
    monkeypatch.setattr("marl_sb3.core.training.algorithm.versions", lambda: others)
    marl_sb3.train(resume="run")
    (entry,) = entries("run")
    assert entry["inexact"]["torch"].endswith("is 1.0")


def test_a_checkout_that_is_not_installed_knows_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "version", lambda name: "1")
    assert checkpoint.versions.__wrapped__()["marl_sb3"] == marl_sb3.__version__


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"stop": {"iteration": 1}}, {"settings": {"learning_rate": 1e-4}}], ids=str)
def test_a_complete_run_stays_as_it_is(
    options: dict[str, Any], run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ("config.yaml", "result.jsonl", "resumes.jsonl")
    before = {path: data for path, data in content(run_folder).items() if path.endswith(kept)}
    assert marl_sb3.train(resume=run_folder, **options).result is None
    assert "changed after" not in capsys.readouterr().out
    assert {path: data for path, data in content(run_folder).items() if path.endswith(kept)} == before
    assert len(before) == 2  # no resume is noted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timesteps": 0}, "--timesteps is 0; accepted with --resume: an integer of at least 1"),
        ({"timesteps": -5}, "--timesteps is -5; accepted with --resume: an integer of at least 1"),
        ({"env": "CartPole-v1"}, "the env does not take these arguments: "),
        *(
            ({"settings": settings}, words)
            for settings, words in [
                ({"env.height": 6}, "--set env.height: env.height cannot change in a run that goes on: its state "),
                ({"n_steps": 10}, "--set n_steps: n_steps cannot change in a run that goes on: "),
                ({"net_arch": [9]}, "policy_kwargs cannot change in a run that goes on: "),
                ({"shared.algo": "dqn"}, "--set shared.algo: shared.algo cannot change in a run that goes on"),
                ({"normalize_rewards": True}, "processing.normalize_rewards cannot change in a run that goes on"),
                ({"seed": 8}, "start a new run from its weights: train arena --init-from RUN --set KEY=VALUE"),
                ({"n_timesteps": 900}, "--set n_timesteps: with --resume, accepted: --timesteps N, env steps to add"),
                (
                    {"stop": {"iteration": 3}},
                    "--set stop: with --resume, accepted: --stop METRIC=VALUE, or --stop none",
                ),
                ({"gamma": 5}, "--set gamma: gamma is 5; accepted: a number from 0 to 1"),
                ({"tau": 0.5}, "--set tau: unknown hyperparameter 'tau' of PPO"),
            ]
        ),
    ],
)
def test_a_change_that_the_state_depends_on_is_refused(options: dict[str, Any], message: str, run_folder: Path) -> None:
    before = content(run_folder)
    with pytest.raises(ConfigError) as caught:
        marl_sb3.train(resume=run_folder, **{"timesteps": 10, **options})
    assert message in str(caught.value)
    assert content(run_folder) == before


def test_the_entropy_coefficient_that_is_learned_stays_so(in_tmp: Path) -> None:
    settings = {"batch_size": 8, "learning_starts": 20, "policy_kwargs.net_arch": [8]}
    marl_sb3.train("Pendulum-v1", algo="sac", n_envs=2, timesteps=40, settings=settings, run_dir="run")
    with pytest.raises(ConfigError, match="ent_coef cannot change in a run that goes on"):
        marl_sb3.train(resume="run", timesteps=10, settings={"ent_coef": 0.1})


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
    file = {"n_timesteps": 80, "n_envs": 2, "n_steps": 20, "batch_size": 20, "extensions": phases}
    with pytest.raises(ConfigError, match=message):
        marl_sb3.train(hparams={"arena": file}, run_dir="run")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda run: (run / "config.yaml").unlink(), "is not a run folder: it has no config.yaml"),
        (lambda run: [p.unlink() for p in run.glob("checkpoints/*/state.json")], "holds no valid checkpoint"),
        (lambda run: (run / "config.yaml").write_text("arena: {n_steps: 99}"), "state/num_envs is 3; accepted: 8"),
    ],
)
def test_a_folder_that_cannot_be_resumed_says_why(make: Any, message: str, run_folder: Path, in_tmp: Path) -> None:
    shutil.copytree(run_folder, "run")
    make(Path("run"))
    before = content(Path("run"))
    with pytest.raises((ConfigError, CheckpointError), match=message):
        resume_run("run")
    assert content(Path("run")) == before


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


# --- Changed settings -------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_changed_settings_and_is_marked(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start("run", policies="per_agent", iterations=2, settings={"learning_rate": 3e-4})
    before = marl_sb3.load_run("run", "latest").algorithm.get_parameters()
    settings = {"learning_rate": 0.0, "agent2.lr": 1e-3, "evaluation.interval": 1}
    capsys.readouterr()
    run = marl_sb3.train(resume="run", timesteps=80, settings=settings)
    rates = {agent: [row.get(f"learners/{agent}/curr_lr") for row in rows("run")] for agent in ("agent1", "agent2")}
    assert rates == {"agent1": [3e-4, 3e-4, 0.0, 0.0], "agent2": [3e-4, 3e-4, 1e-3, 1e-3]}
    same = {
        policy: all(np.array_equal(value, before[policy]["policy"][name]) for name, value in after["policy"].items())
        for policy, after in run.algorithm.get_parameters().items()
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


def test_a_changed_run_that_is_broken_off_goes_on_exactly(in_tmp: Path) -> None:
    dqn = {"algo": "dqn", "learning_starts": 20, "train_freq": 4, "batch_size": 8}
    settings = {f"agent2.{name}": value for name, value in dqn.items()}
    changed = {"learning_rate": 1e-3, "gamma": 0.5, "batch_size": 10}
    changes = {f"{policy}{name}": value for policy in ("", "agent2.") for name, value in changed.items()}
    for folder in ("whole", "broken"):
        broken(folder, policies="per_agent", settings=settings)
    marl_sb3.train(resume="whole", settings=changes)
    crash(290, resume="broken", settings=changes)
    marl_sb3.train(resume="broken")
    assert_same_runs("whole", "broken")
    assert [entry["exact"] for entry in entries("broken")] == [False, True]
    assert Path("broken/config.yaml").read_text() == Path("whole/config.yaml").read_text()


def test_settings_that_are_the_same_change_nothing(in_tmp: Path) -> None:
    start("run", iterations=2)
    marl_sb3.train(resume="run", timesteps=40, settings={"n_epochs": 1, "checkpoint_every": 1})
    (entry,) = entries("run")
    assert (entry["exact"], list(entry["changed"])) == (True, ["checkpoints.every"])
    assert not Path("run/config.yaml").read_text().startswith("#")
