"""Tests of the env: python -m pytest."""

from __future__ import annotations

from pathlib import Path

from pettingzoo.test import parallel_api_test, parallel_seed_test

import marl_sb3
from marl_sb3.tools.scaffolding.templates.parallel import LEFT, RIGHT, STAY, ExampleEnv


def test_the_env_is_as_pettingzoo_wants_it() -> None:
    """Spaces, agents and returned values are right, and the same seed gives the same episode."""
    parallel_api_test(ExampleEnv(), num_cycles=100)
    parallel_seed_test(ExampleEnv, num_cycles=100)


def test_doctor_finds_no_fault() -> None:
    """Nothing in the env would keep agents from learning."""
    report = marl_sb3.examine(ExampleEnv, episodes=10, measure_s=0, isolated=False)
    assert [finding for finding in report.findings if finding.severity == "fault"] == []


def test_a_meeting_is_paid_and_ends_the_episode() -> None:
    """Who meets is terminated, not truncated."""
    env = ExampleEnv()
    env.reset(seed=0)
    env.cells = {"left": 3, "right": 5}
    _, rewards, _, _, _ = env.step({"left": STAY, "right": STAY})
    assert rewards == {"left": -0.1, "right": -0.1}
    _, rewards, terminated, truncated, _ = env.step({"left": RIGHT, "right": LEFT})
    assert rewards == {"left": 1.0, "right": 1.0}
    assert terminated == {"left": True, "right": True}
    assert truncated == {"left": False, "right": False}
    assert env.agents == []


def test_a_short_training_with_the_settings(tmp_path: Path) -> None:
    """The settings are of this env, and it trains."""
    env = "marl_sb3.tools.scaffolding.templates.parallel:ExampleEnv"
    settings = Path(__file__).with_name("settings.yml")
    run = marl_sb3.train(env, hparams=settings, timesteps=1000, seed=0, run_dir=tmp_path / "run", progress_bar=False)
    assert run.result is not None
    assert run.result["env_runners"]["num_episodes"] > 0
