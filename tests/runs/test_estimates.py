"""Policies of a run, estimated on recorded episodes of others, against episodes that they have played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from recordings import copying, write_dataset

import marl_sb3
from marl_sb3 import estimate_policies
from marl_sb3.errors import ConfigError
from marl_sb3.evaluate import main as evaluate

SETTINGS = {
    "n_steps": 20, "batch_size": 20, "n_epochs": 1, "env.max_timesteps": 8, "policy_kwargs.net_arch": [8],
}  # fmt: skip
EPISODES = 80


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run in the arena, and a recording of its policies, which sample their actions."""
    folder = tmp_path_factory.mktemp("estimates")
    marl_sb3.train(
        "arena", settings=SETTINGS, timesteps=100, n_envs=4, seed=3, policies="per_agent", progress_bar=False,
        run_dir=folder / "run",
    )  # fmt: skip
    command = [str(folder / "run"), "--stochastic", "--episodes", str(EPISODES), "--seed", "5"]
    assert evaluate([*command, "--json", "--record", str(folder / "data")]) == 0
    return folder / "run", folder / "data"


def changed_policies(run: Path, by: float) -> Any:
    """The policies of the run, more inclined to one of the actions."""
    policies = marl_sb3.load_policies(run)
    for algorithm in policies.policies.values():
        algorithm.policy.action_net.bias.data[0] += by
    return policies


@pytest.fixture(scope="module")
def of_both(played: tuple[Path, Path]) -> Any:
    """Estimates of both policies changed."""
    return estimate_policies(changed_policies(played[0], 0.8), played[1])


def test_the_policies_that_have_played_have_the_recorded_returns(played: Any) -> None:
    found = estimate_policies(marl_sb3.load_policies(played[0]), played[1])
    assert found.effective_episodes == pytest.approx(EPISODES, rel=1e-3)
    assert found.warnings == []
    for name, estimates in found.estimates.items():
        recorded = found.recorded[name]
        for estimator in ("IS", "PDIS", "WIS", "WPDIS"):
            assert estimates[estimator].mean == pytest.approx(recorded.mean, abs=1e-2)


def test_other_policies_are_estimated_as_they_play(played: Any, of_both: Any) -> None:
    policies = changed_policies(played[0], 0.8)
    env = marl_sb3.make_vec_env("arena", n_envs=10, seed=1, max_timesteps=8)
    played_by_them = marl_sb3.evaluate_policies(policies, env, 500, deterministic=False)["episode_return_mean"]
    found = of_both
    assert abs(found.recorded["sum of returns"].mean - played_by_them) > 0.5  # else any number would do
    assert EPISODES / 20 < found.effective_episodes < EPISODES / 2
    for name, estimate in found.estimates["sum of returns"].items():
        assert estimate.ci95 is not None, name
        assert estimate.ci95[0] - 0.2 < played_by_them < estimate.ci95[1] + 0.2, (name, estimate, played_by_them)


def test_policies_that_are_not_replaced_are_those_that_have_played(played: Any, of_both: Any) -> None:
    policies = changed_policies(played[0], 0.8)
    one = estimate_policies(policies, played[1], replaced=["agent1"])
    assert one.effective_episodes > of_both.effective_episodes
    with pytest.raises(ConfigError, match="there is no policy 'agent3'; accepted: agent1, agent2"):
        estimate_policies(policies, played[1], replaced=["agent3"])


def test_the_command_warns_where_the_weights_have_collapsed(played: Any, capsys: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    marl_sb3.train(
        "arena", settings={**SETTINGS, "learning_rate": 0.3}, timesteps=400, n_envs=4, seed=9, policies="per_agent",
        progress_bar=False, run_dir=other,
    )  # fmt: skip
    assert evaluate([str(other), "--on", str(played[1])]) == 0
    assert "warning: the weights have collapsed: 80 episodes weigh like" in capsys.readouterr().out
    assert evaluate([str(played[0]), "--on", str(played[1]), "--gamma", "0.9", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["gamma"] == 0.9
    assert set(plain["estimates"]["sum of returns"]) == {"IS", "PDIS", "WIS", "WPDIS"}
    assert plain["warnings"] == []


def test_data_that_tell_nothing_are_refused(played: Any, tmp_path: Path, capsys: Any) -> None:
    run, data = played
    assert evaluate([str(run), "--deterministic", "--episodes", "2", "--record", str(tmp_path / "sure")]) == 0
    box = spaces.Box(-1, 1, (3,), np.float32)
    other = write_dataset(tmp_path / "other" / "data", box, spaces.Discrete(2), copying(spaces.Discrete(2), number=3))
    (tmp_path / "empty").mkdir()
    refused = [
        ([str(tmp_path / "sure")], "no log-probabilities of the actions; accepted: recordings of trainings by"),
        ([str(other.parent)], "has episodes of agent 'agent'; the policies act for agent1, agent2"),
        ([str(tmp_path / "empty")], "accepted: "),
        ([str(data), "--seed", "1"], "--on plays no episode: --seed does not go with it"),
        ([str(data), "--gamma", "2"], "gamma is 2.0; accepted:"),
    ]
    for arguments, words in refused:
        capsys.readouterr()
        assert evaluate([str(run), "--on", *arguments]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
    assert evaluate([str(run), "--gamma", "0.9"]) == 2
