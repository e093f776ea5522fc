"""`python -m marl_sb3.evaluate` plays the policies of every algorithm, as sampled and as most likely."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import marl_sb3
from marl_sb3.evaluate import main as evaluate
from marl_sb3.evaluation.playing import evaluate_policies
from marl_sb3.extensions.fast.builtin import ALGORITHMS

ROLLOUTS = {"n_steps": 4}
MINIBATCHES = {**ROLLOUTS, "batch_size": 4}
# A training ends with its first update.
REPLAY = {"learning_starts": 4, "batch_size": 4, "buffer_size": 50, "train_freq": 4}
CASES = {
    **dict.fromkeys(("ppo", "trpo", "recurrent_ppo"), ("CartPole-v1", MINIBATCHES)),
    **dict.fromkeys(("maskable_ppo", "maskable_trpo"), ("classic/tictactoe-v3", MINIBATCHES)),
    "maskable_recurrent_ppo": ("classic/tictactoe-v3", MINIBATCHES),
    "maskable_a2c": ("classic/tictactoe-v3", ROLLOUTS),
    "a2c": ("CartPole-v1", ROLLOUTS),
    **dict.fromkeys(("dqn", "qrdqn", "recurrent_dqn", "vdn"), ("CartPole-v1", REPLAY)),
    "qmix": ("arena", REPLAY),
    **dict.fromkeys(("maskable_dqn", "maskable_qrdqn"), ("classic/tictactoe-v3", REPLAY)),
    **dict.fromkeys(("sac", "recurrent_sac", "td3", "ddpg", "tqc", "crossq", "iql"), ("Pendulum-v1", REPLAY)),
}


def test_every_algorithm_is_evaluated_here() -> None:
    assert {*CASES} == {*ALGORITHMS}


@pytest.mark.parametrize("name", CASES)
def test_the_command_evaluates_as_the_library_does(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env, settings = CASES[name]
    network = {"net_arch": [4], **({"lstm_hidden_size": 4} if "recurrent" in name else {})}
    run = marl_sb3.train(
        env,
        algo=name,
        n_envs=2,
        timesteps=8,
        seed=1,
        hparams={env: {**settings, "policy_kwargs": network, "policy": "MlpPolicy", "episode_horizon": 9}},
        run_dir=tmp_path / "run",
    )
    for deterministic, option in ((True, "--deterministic"), (False, "--stochastic")):
        capsys.readouterr()
        assert evaluate([str(run.folder), "--episodes=2", "--seed=3", "--checkpoint=latest", "--json", option]) == 0
        found = json.loads(capsys.readouterr().out)["env_runners"]
        expected = evaluate_policies(run.algorithm, run.make_env(2), 2, deterministic, seed=3)
        assert found["num_episodes"] == 2
        assert found["episode_return_mean"] == expected["episode_return_mean"]
