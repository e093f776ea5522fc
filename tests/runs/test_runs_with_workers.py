"""Runs whose envs are stepped by workers: the same runs, resumed with any number of them, and their ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from crashing_envs import AlwaysFatal
from run_records import json_rows

import marl_sb3
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.training.algorithm import MultiAgentCallback
from marl_sb3.errors import ConfigError, WorkerError
from marl_sb3.evaluate import main as evaluate
from marl_sb3.runs.folder import TRACEBACK_FILE
from marl_sb3.train import main as train

SMALL = {"n_steps": 10, "batch_size": 20, "n_epochs": 1, "policy_kwargs.net_arch": [4], "env.max_timesteps": 7}
SMALL |= {"evaluation.interval": 1, "evaluation.duration": 2}


class LongerEpisodes(MultiAgentCallback):
    """A curriculum: episodes of one env get longer; their length is a metric."""

    def complete_result(self, result: Result) -> None:
        env = self.algorithm.env
        env.configure([1], max_timesteps=7 + self.algorithm.iteration)
        lengths = env.call("get_wrapper_attr", [0, 1], "max_timesteps")
        result["lengths"] = {str(index): float(length) for index, length in enumerate(lengths)}


def trained(folder: Path, timesteps: int, n_workers: int, **arguments: Any) -> marl_sb3.Run:
    return marl_sb3.train(
        "arena", timesteps=timesteps, n_envs=3, seed=1, n_workers=n_workers, settings=SMALL, run_dir=folder, **arguments
    )


@pytest.mark.parametrize("vectorizer", ["sync", "batched"])
def test_a_run_goes_on_with_any_number_of_workers(vectorizer: str, tmp_path: Path) -> None:
    callback = [LongerEpisodes()]
    whole = trained(tmp_path / "whole", 90, 0, vectorizer=vectorizer, callback=callback)
    parts = trained(tmp_path / "parts", 90, 2, vectorizer=vectorizer, callback=callback, stop={"iteration": 1})
    assert parts.result is not None
    assert parts.result["fault_tolerance"] == {"num_healthy_workers": 2, "num_worker_restarts": 0}
    marl_sb3.train(resume=tmp_path / "parts", n_workers=0, callback=callback, stop={"iteration": 2})
    last = marl_sb3.train(resume=tmp_path / "parts", n_workers=3, callback=callback, stop={"iteration": 3})
    assert json_rows(last.folder) == json_rows(whole.folder)
    lengths = [row["lengths/1"] for row in json_rows(last.folder)]
    assert lengths[0] == 7
    assert lengths[-1] > 7
    assert all(json.loads(line)["exact"] for line in (last.folder / "resumes.jsonl").read_text().splitlines())
    assert last.config.n_workers == 3
    assert last.evaluate(2) == {**whole.evaluate(2), "episode_duration_sec_mean": pytest.approx(0, abs=9)}


def test_the_commands_train_evaluate_and_film_with_workers(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    command = ["arena", "--timesteps", "30", "--n-envs", "3", "--seed", "1", "--quiet", *settings]
    assert train([*command, "--workers", "2", "--run-dir", "run"]) == 0
    assert evaluate(["run", "--episodes", "2", "--json", "--video", "film.gif"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["video"]["frames"] > 7
    assert train([*command, "--workers", "4", "--run-dir", "more"]) == 2
    said = capsys.readouterr().err
    assert said == "error: --workers: n_workers is 4, but n_envs is 3; accepted: at most 3 workers, or auto\n"
    with pytest.raises(SystemExit):
        train([*command, "--workers", "two"])
    assert "accepted: an integer, such as 100000, 1e5 or 100k, or auto" in capsys.readouterr().err
    assert sorted(os.listdir(in_tmp)) == ["film.gif", "run"]
    assert train(["--resume", "run", "--workers", "1", "--timesteps", "30", "--quiet"]) == 0


def test_a_worker_that_keeps_ending_leaves_a_checkpoint_and_its_stacks(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = {"n_steps": 2, "batch_size": 4, "n_epochs": 1, "policy_kwargs.net_arch": [4], "max_worker_restarts": 0}
    with pytest.raises(WorkerError, match=r"^worker 0 \(env 0\) has ended: signal SIGSEGV, in env 0; it was lost once"):
        marl_sb3.train(AlwaysFatal, timesteps=90, n_envs=2, seed=1, n_workers=2, settings=settings, run_dir=folder)
    assert "crashing_envs.py" in (folder / TRACEBACK_FILE).read_text()
    assert os.listdir(folder / "checkpoints") == ["ckpt-000001"]
    with pytest.raises(WorkerError):
        marl_sb3.train(AlwaysFatal, resume=folder)
    (resumed,) = (folder / "resumes.jsonl").read_text().splitlines()
    assert json.loads(resumed)["inexact"] == {f"env {index}": "a step of the envs failed" for index in (0, 1)}


def test_an_argument_of_the_env_with_the_name_of_a_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env.n_workers: the argument of the env has the name of a setting; acc"):
        marl_sb3.train("arena", settings={"env.n_workers": 3})
