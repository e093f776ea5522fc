"""`marl_sb3.imitate` and its command: a run of cloned policies, which all other commands take."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from recordings import episode, write_dataset
from refusals import refusal
from small_trainings import are_equal, same_weights, weights

import marl_sb3
from marl_sb3 import imitate
from marl_sb3.errors import ConfigError
from marl_sb3.evaluate import main as evaluate_main
from marl_sb3.export import main as export_main
from marl_sb3.extensions.data.cloning import Cloning, OfflineTraining
from marl_sb3.imitate import main
from marl_sb3.runs import imitate as runs_imitate

BOUNDS = np.array([1, 1, 8.0], np.float32)
SEEN, TORQUES = spaces.Box(-BOUNDS, BOUNDS), spaces.Box(-2, 2, (1,))
SMALL = {"policy_kwargs.net_arch": [8], "buffer_size": 100, "normalize_observations": True}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    episodes = []
    for _ in range(10):
        seen = random.uniform(-1, 1, (7, 3)).astype(np.float32)
        episodes.append(episode(seen, 2 * seen[:-1, :1], ends="truncated"))
    return write_dataset(tmp_path_factory.mktemp("torques") / "data", SEEN, TORQUES, episodes)


def cloned(data: Path, folder: Path, **more: Any) -> marl_sb3.Run:
    settings = {**SMALL, **more.pop("settings", {})}
    options = {"algo": "sac", "seed": 1, "epochs": 3, "batch_size": 8, "progress_bar": False, **more}
    return imitate(data, "Pendulum-v1", settings=settings, run_dir=folder, **options)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> marl_sb3.Run:
    return cloned(data, tmp_path_factory.mktemp("runs") / "cloned")


def test_the_folder_is_that_of_a_run(run: marl_sb3.Run, data: Path) -> None:
    lines = [json.loads(line) for line in (run.folder / "result.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    losses = [line["learners"]["shared"]["imitation_loss"] for line in lines]
    assert losses == sorted(losses, reverse=True)
    assert {line["num_env_steps_sampled_lifetime"] for line in lines} == {0}
    assert run.checkpoint == "ckpt-000003"
    remark = (run.folder / "config.yaml").read_text().splitlines()[0]
    assert remark.startswith(f"# its policies were cloned from {data} by imitate with CloningOptions(epochs=3, ")
    assert [path.name for path in run.policy_files.values()] == ["shared.zip"]


@pytest.mark.usefixtures("one_onnx_registry")
def test_it_is_evaluated_and_exported(run: marl_sb3.Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert evaluate_main([str(run.folder), "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == "ckpt-000003"
    assert export_main([str(run.folder), "--format", "onnx", "--out", str(tmp_path / "out")]) == 0


def test_a_training_goes_on_from_it(run: marl_sb3.Run, tmp_path: Path) -> None:
    settings = {**SMALL, "learning_starts": 10**6}
    more: dict[str, Any] = {"settings": settings, "algo": "sac", "timesteps": 10, "progress_bar": False, "n_envs": 1}
    trained = marl_sb3.train("Pendulum-v1", init_from=[str(run.folder)], run_dir=tmp_path / "on", **more)
    np.testing.assert_array_equal(weights(trained)["shared/actor.mu.weight"], weights(run)["shared/actor.mu.weight"])
    mine, theirs = (each.algorithm.processing["shared"].statistics["observations"] for each in (trained, run))
    assert mine.count > theirs.count > 70


def test_it_is_resumed(data: Path, tmp_path: Path) -> None:
    settings = {"learning_starts": 2, "batch_size": 4, "train_freq": 100}
    run = cloned(data, tmp_path / "cloned", settings=settings)
    resumed = marl_sb3.train(resume=run.folder, timesteps=1000, progress_bar=False)
    assert resumed.algorithm.iteration == 4
    assert [result["iteration"] for result in resumed.results] == [1, 2, 3, 4]


def test_the_same_seed_is_the_same_run(run: marl_sb3.Run, data: Path, tmp_path: Path) -> None:
    again, other = cloned(data, tmp_path / "again"), cloned(data, tmp_path / "other", seed=2)
    first, same, different = map(weights, (run, again, other))
    assert are_equal(first, same)
    assert not np.array_equal(first["shared/actor.mu.weight"], different["shared/actor.mu.weight"])


def test_the_command_prints_a_line_for_each_epoch(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--set", "policy_kwargs.net_arch=[8]", "--epochs", "2", "--seed", "1"]
    assert main([str(data), "--env", "Pendulum-v1", *options, "--run-dir", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "policy shared: 9 episodes to learn from, 1 for the validation"
    assert [line.partition(":")[0] for line in lines[1:3]] == ["epoch 1 of 2", "epoch 2 of 2"]
    assert lines[3].startswith("policy shared: weights of epoch ")
    assert lines[-1] == str(tmp_path / "run")
    assert main([str(data), "--env", "Pendulum-v1", *options, "--quiet", "--run-dir", str(tmp_path / "quiet")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "quiet")]


WRONG = {
    "no text": (
        ["a\udcff", "--env", "Pendulum-v1"],
        "a\\udcff' is not text in the encoding utf-8; accepted: a path of characters",
    ),
    "no dataset": (["nowhere", "--env", "Pendulum-v1"], "data: nowhere is no dataset"),
    "other spaces": (["DATA", "--env", "MountainCarContinuous-v0"], "has observations of Box"),
    "epochs": (["DATA", "--env", "Pendulum-v1", "--epochs", "0"], "epochs is 0; accepted: an integer of at least 1"),
    "validation": (["DATA", "--env", "Pendulum-v1", "--validation", "1"], "which leaves nothing to learn from"),
    "no env": (["DATA"], "env"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_line_leaves_no_folder(
    case: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, words = WRONG[case]
    given = [str(data) if argument == "DATA" else argument for argument in arguments]
    assert words in refusal(main, [*given, "--run-dir", "run"], capsys)
    assert not (tmp_path / "run").exists()


def interrupt(monkeypatch: pytest.MonkeyPatch, kind: Any, run: Callable[[], Any]) -> None:
    """Run and send an interrupt in the second of its epochs."""

    def interrupted(learning: Any) -> Any:
        if learning.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return run_epoch(learning)

    run_epoch = kind.run_epoch
    monkeypatch.setattr(kind, "run_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.undo()


def test_an_interruption_keeps_what_was_learned_and_the_cloning_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: marl_sb3.Run
) -> None:
    folder = tmp_path / "run"
    interrupt(monkeypatch, Cloning, lambda: cloned(data, folder))
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["ckpt-000002"]
    assert evaluate_main([str(folder), "--episodes", "1"]) == 0
    went_on = imitate(resume=folder, progress_bar=False)
    assert [result["iteration"] for result in went_on.results] == [1, 2, 3]
    assert same_weights(run, went_on)
    before = weights(went_on)
    assert main(["--resume", str(folder), "--quiet"]) == 0  # nothing is left to do
    assert are_equal(before, weights(marl_sb3.load_run(folder)))


def test_only_what_was_cloned_goes_on_and_as_it_was(
    data: Path, run: marl_sb3.Run, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is no run of imitate" in refusal(main, ["--resume", str(run_folder)], capsys)
    assert "--epochs cannot change" in refusal(main, ["--resume", str(run.folder), "--epochs", "9"], capsys)
    assert "DATA is missing" in refusal(main, ["--env", "Pendulum-v1"], capsys)
    with pytest.raises(ConfigError, match="resume is given with settings"):
        imitate(resume=run.folder, epochs=9)
    spoiled = Path(shutil.copytree(run.folder, tmp_path / "spoiled"))
    for content in ("{", "[]", '{"data": 1}', '{"data": "x", "epochs": 0}', "[" * 10**5):
        (spoiled / "imitation.json").write_text(content)
        assert "imitation.json is damaged" in refusal(main, ["--resume", str(spoiled)], capsys)


# --- Offline training ------------------------------------------------------------------------------------------------


def offline(data: Path, folder: Path, **more: Any) -> marl_sb3.Run:
    settings = {**SMALL, "batch_size": 8, "learning_rate": "lin_0.01", **more.pop("settings", {})}
    given: dict[str, Any] = {"algo": "iql", "seed": 1, "epochs": 3, "progress_bar": False, **more}
    return imitate(data, "Pendulum-v1", settings=settings, run_dir=folder, **given)


@pytest.mark.usefixtures("one_onnx_registry")
def test_iql_learns_from_the_data_alone_and_every_command_takes_the_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = offline(data, tmp_path / "run")
    metrics = [result["learners"]["shared"] for result in run.results]
    assert [each["num_grad_updates_lifetime"] for each in metrics] == [8, 16, 24]  # 60 transitions, 8 in a minibatch
    assert [each["num_module_steps_trained"] for each in metrics] == [64, 64, 64]
    assert [each["curr_lr"] for each in metrics] == pytest.approx([0.01, 0.01 * 2 / 3, 0.01 / 3])
    assert all(each[name] is not None for each in metrics for name in ("vf_loss", "critic_loss", "actor_loss"))
    assert {result["num_env_steps_sampled_lifetime"] for result in run.results} == {0}
    assert (
        (run.folder / "config.yaml").read_text().startswith(f"# its policies were trained on {data} by imitate with ")
    )
    assert evaluate_main([str(run.folder), "--episodes", "1"]) == 0
    assert export_main([str(run.folder), "--format", "onnx", "--out", str(tmp_path / "out")]) == 0
    trained = marl_sb3.train(resume=run.folder, timesteps=20, progress_bar=False)
    last = trained.results[-1]["learners"]["shared"]
    assert last["replay_buffer_size"] == 60 + 20  # it has the data, and goes on online
    assert last["num_grad_updates_lifetime"] == 24 + 20


def test_offline_training_that_is_interrupted_goes_on_exactly(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = offline(data, tmp_path / "whole")
    interrupt(monkeypatch, OfflineTraining, lambda: offline(data, tmp_path / "run"))
    np.random.seed(99)  # noqa: NPY002 - the minibatches are drawn from this generator, whose state is in the checkpoint
    went_on = imitate(resume=tmp_path / "run", progress_bar=False)
    assert [result["iteration"] for result in went_on.results] == [1, 2, 3]
    assert same_weights(whole, went_on)


def test_options_of_cloning_are_refused_for_iql_and_leave_no_folder(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(data), "--env", "Pendulum-v1", "--algo", "iql", "--run-dir", str(tmp_path / "run")]
    words = "learning_rate is 0.1, but it is of cloning, and IQL learns from the data by its own losses"
    assert words in refusal(main, [*arguments, "--learning-rate", "0.1"], capsys)
    assert not (tmp_path / "run").exists()


# --- Trackers --------------------------------------------------------------------------------------------------------


def test_trackers_get_every_pass_and_the_checkpoints(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kept:
        name = "kept"

        def __init__(self) -> None:
            self.output, self.losses, self.saved = self, list[Any](), list[str]()

        def write(self, *_: Any) -> None:
            """Nothing of callbacks."""

        def write_result(self, result: Any, recorded: Any, step: int) -> None:
            self.losses.append((step, result["learners"]["shared"]["imitation_loss"]))

        def save(self, checkpoint: Path) -> None:
            self.saved.append(checkpoint.name)

    kept = Kept()
    monkeypatch.setattr(runs_imitate, "tracking", lambda run: nullcontext([kept]))
    run = cloned(data, tmp_path / "run", settings={"checkpoints.every": 2})
    assert kept.losses == [(n, each["learners"]["shared"]["imitation_loss"]) for n, each in enumerate(run.results, 1)]
    assert kept.saved == ["ckpt-000002", "ckpt-000003"]
