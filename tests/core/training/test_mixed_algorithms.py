"""Algorithms of different kinds learn in the same episodes, each at its own cadence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import stable_baselines3
from stock_training import counts_of, leaves, same

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, load_policies, make_vec_env
from marl_sb3.train import main

NETWORK = {"net_arch": [8]}
REPLAY: dict[str, Any] = {"buffer_size": 60, "learning_starts": 4, "batch_size": 4, "policy_kwargs": NETWORK}


def arena() -> MultiAgentAlgorithm:
    """PPO every 6 steps, DQN every 4: neither is a multiple of the other."""
    env = make_vec_env("arena", n_envs=2, max_timesteps=7, height=4)
    specs = {
        "agent1": PolicySpec(marl_sb3.PPO, n_steps=6, batch_size=4, n_epochs=1, policy_kwargs=NETWORK),
        "agent2": PolicySpec(stable_baselines3.DQN, train_freq=4, target_update_interval=8, **REPLAY),
    }
    return MultiAgentAlgorithm(env, specs, n_steps=10, seed=1, device="cpu")


def waterworld() -> MultiAgentAlgorithm:
    env = make_vec_env("waterworld", n_envs=2, n_sensors=3)
    specs = {
        "pursuer_0": PolicySpec(stable_baselines3.SAC, train_freq=2, **REPLAY),
        "pursuer_1": PolicySpec(
            stable_baselines3.TD3, train_freq=3, action_noise={"ornstein_uhlenbeck": 0.2}, policy_delay=1, **REPLAY
        ),
    }
    return MultiAgentAlgorithm(env, specs, n_steps=10, seed=1, device="cpu")


def weights(algorithm: MultiAgentAlgorithm) -> dict[str, Any]:
    return {name: leaves(policy.get_parameters()) for name, policy in algorithm.policies.items()}


@pytest.mark.parametrize("build", [arena, waterworld])
def test_each_updates_at_its_own_cadence_and_all_go_on_exactly(build: Any, tmp_path: Path) -> None:
    class Updates(MultiAgentCallback):
        """Env steps of each env after which a policy was updated."""

        def _on_training_start(self) -> None:
            self.steps: dict[str, list[int]] = {name: [] for name in self.algorithm.policies}
            self.counts = dict.fromkeys(self.algorithm.policies, 0)
            self.number = 0

        def _note(self) -> None:
            for name, policy in self.algorithm.policies.items():
                if counts_of(policy)[1] != self.counts[name]:
                    self.counts[name] = counts_of(policy)[1]
                    self.steps[name].append(self.number)

        def _on_step(self) -> bool:
            self._note()
            self.number += 1
            return True

    whole, updates = build(), Updates()
    whole.learn(2 * 10 * 2, callback=updates)
    expected = {arena: {"agent1": [6, 12, 18], "agent2": [4, 8, 12, 16]}}.get(
        build, {"pursuer_0": [*range(4, 20, 2)], "pursuer_1": [*range(3, 20, 3)]}
    )
    assert updates.steps == expected
    whole.save(tmp_path / "saved")
    result = whole.train_iteration()["learners"]
    again = build()
    again.set_state(marl_sb3.extensions.store.checkpoint_folder.find_checkpoint(tmp_path / "saved", "latest"))
    assert again.train_iteration()["learners"] == result
    for name, expected_weights in weights(whole).items():
        found = weights(again)[name]
        assert [path for path, value in expected_weights.items() if not same(value, found[path])] == []


def test_a_loaded_policy_has_the_exploration_rate_of_its_checkpoint(tmp_path: Path) -> None:
    algorithm = arena()
    algorithm.learn(20)
    bundle = load_policies(algorithm.save(tmp_path / "saved"), device="cpu")
    rate = algorithm.policies["agent2"].exploration_rate
    assert bundle.policies["agent2"].exploration_rate == rate < 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["CartPole-v1", "--algo", "sac"], "--algo: policy 'shared'.*Discrete(2); accepted by SAC: Box"),
        (["Pendulum-v1", "--algo", "dqn"], "accepted by DQN: Discrete"),
        (["Pendulum-v1", "--algo", "td3", "--set", "action_noise=0.1"], "accepted: {normal: SCALE}"),
        (["Pendulum-v1", "--algo", "sac", "--set", "buffer_size=1e13"], "--set buffer_size: the replay buffers need"),
    ],
)
def test_what_does_not_fit_ends_with_a_line_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--run-dir", str(tmp_path / "run")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert all(part in said for part in words.split(".*")), said
    assert not (tmp_path / "run").exists()
