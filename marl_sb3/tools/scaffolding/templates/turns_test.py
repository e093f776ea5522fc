"""Tests of the env: python -m pytest."""

from __future__ import annotations

from pathlib import Path

from pettingzoo.test import api_test, seed_test

import marl_sb3
from marl_sb3.tools.scaffolding.templates.turns import ExampleEnv


def test_the_env_is_as_pettingzoo_wants_it() -> None:
    """Spaces, agents and returned values are right, and the same seed gives the same game."""
    api_test(ExampleEnv(), num_cycles=100)
    seed_test(ExampleEnv, num_cycles=100)


def test_doctor_finds_no_fault() -> None:
    """Nothing in the env would keep agents from learning."""
    report = marl_sb3.examine(ExampleEnv, episodes=10, measure_s=0, isolated=False)
    assert [finding for finding in report.findings if finding.severity == "fault"] == []


def test_who_takes_the_last_stick_wins() -> None:
    """And no player may take more sticks than there are."""
    env = ExampleEnv()
    env.reset(seed=0)
    env.sticks = 4
    env.step(1)
    assert env.observe("player_1")["action_mask"].tolist() == [1, 1, 0]
    env.step(1)
    assert env.rewards == {"player_0": -1.0, "player_1": 1.0}
    assert env.terminations == {"player_0": True, "player_1": True}


def test_a_short_training_with_the_settings(tmp_path: Path) -> None:
    """The settings are of this env, and it trains."""
    env = "marl_sb3.tools.scaffolding.templates.turns:ExampleEnv"
    settings = Path(__file__).with_name("settings.yml")
    run = marl_sb3.train(env, hparams=settings, timesteps=1000, seed=0, run_dir=tmp_path / "run", progress_bar=False)
    assert run.result is not None
    assert run.result["env_runners"]["num_episodes"] > 0
