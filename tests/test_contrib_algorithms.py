"""Algorithms of sb3-contrib, and those with a replay buffer: training, resuming, evaluation and export by commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_sb3.evaluate import main as evaluate
from marl_sb3.export import main as export
from marl_sb3.train import main as train

FEW = ["--n-envs=2", "--quiet", "--seed=1", "--set=n_steps=4", "--set=batch_size=4", "--set=learning_rate=0.001"]
ENVS = {"trpo": "arena", "recurrent_ppo": "arena", "maskable_ppo": "classic/tictactoe-v3"}
ENVS["maskable_recurrent_ppo"] = "classic/tictactoe-v3"
SMALL = ["--set=policy_kwargs.net_arch=[4]", "--set=policy_kwargs.lstm_hidden_size=4"]
NETWORKS = {"recurrent_ppo": SMALL, "maskable_recurrent_ppo": [*SMALL, "--set=policy_kwargs.cell=gru"]}


def results(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "result.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["learners"] for line in lines]


REPLAY = ["--n-envs=2", "--quiet", "--seed=1", "--set=learning_starts=8", "--set=batch_size=4", "--set=buffer_size=100"]
REPLAY += ["--set=policy_kwargs.net_arch=[4]", "--set=train_freq=50"]
# Whatever the planned end.
STEADY = ["--set=exploration_initial_eps=0.1", "--set=exploration_final_eps=0.1", "--set=learning_rate=1e-3"]


@pytest.mark.parametrize(("env", "name"), [("arena", "DQN"), ("Pendulum-v1", "sac")])
def test_a_run_with_a_replay_buffer_resumes_exactly_and_is_evaluated(
    env: str, name: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [env, "--algo", name, *REPLAY, *(STEADY if name == "DQN" else [])]
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


@pytest.mark.parametrize("name", ENVS)
def test_a_run_resumes_exactly_and_is_evaluated_and_exported(
    name: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [ENVS[name], "--algo", name, *FEW, *NETWORKS.get(name, [])]
    assert train([*command, "--timesteps=40", "--run-dir=whole"]) == 0
    assert train([*command, "--timesteps=24", "--run-dir=parts"]) == 0
    assert train(["--resume=parts", "--timesteps=16", "--quiet"]) == 0
    assert results(in_tmp / "parts") == results(in_tmp / "whole")
    assert len(results(in_tmp / "whole")) == 5
    capsys.readouterr()
    assert evaluate(["whole", "--episodes=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert export(["whole", "--out=files"]) == 0
    assert [path.suffix for path in (in_tmp / "files").iterdir()] == [".zip"]


def test_masks_and_memory_train_in_one_episode(in_tmp: Path) -> None:
    own = {"algo": "RecurrentPPO", "policy_kwargs.lstm_hidden_size": 4, "n_steps": 4, "batch_size": 4}
    settings = [f"--set=player_2.{name}={value}" for name, value in own.items()]
    command = ["classic/tictactoe-v3", "--policies=per_agent", "--algo=maskable_ppo", *FEW, *settings]
    assert train([*command, "--timesteps=16", "--run-dir=r"]) == 0
    assert [set(learners) for learners in results(in_tmp / "r")] == [{"player_1", "player_2"}] * 2
