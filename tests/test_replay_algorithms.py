"""Algorithms with a replay buffer from the command line: train, resume, evaluate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_sb3.evaluate import main as evaluate
from marl_sb3.train import main as train

FEW = ["--n-envs=2", "--quiet", "--seed=1", "--set=learning_starts=8", "--set=batch_size=4", "--set=buffer_size=100"]
# Whatever the planned end.
STEADY = ["--set=exploration_initial_eps=0.1", "--set=exploration_final_eps=0.1", "--set=learning_rate=1e-3"]
SMALL = ["--set=policy_kwargs.net_arch=[4]", "--set=train_freq=50"]


def results(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "result.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["learners"] for line in lines]


@pytest.mark.parametrize(("env", "name"), [("arena", "DQN"), ("Pendulum-v1", "sac")])
def test_a_run_resumes_exactly_and_is_evaluated(
    env: str, name: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [env, "--algo", name, *FEW, *SMALL, *(STEADY if name == "DQN" else [])]
    assert train([*command, "--timesteps=2000", "--run-dir=whole", "--set=checkpoint_every=1"]) == 0
    assert train([*command, "--timesteps=1000", "--run-dir=parts"]) == 0
    assert (next((in_tmp / "parts/checkpoints").glob("ckpt-*")) / "replay-000.safetensors").stat().st_size > 1000
    assert train(["--resume=parts", "--timesteps=1000", "--quiet"]) == 0
    whole = results(in_tmp / "whole")
    assert results(in_tmp / "parts") == whole
    assert [set(learners) for learners in whole] == [{"shared"}] * 2
    capsys.readouterr()
    assert evaluate(["whole", "--episodes=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
