"""Which checkpoint is taken where none is named: one rule for all commands, functions and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stable_baselines3
import torch as th
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import evaluate, export
from marl_sb3.runs.view import print_start, print_summary

METRIC = "env_runners/episode_return_mean"


class Hunt(ScriptedEnv):
    """What the first action of `a` is paid, `b` pays three times."""

    share, drift = -3.0, 0.0

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        observations, _, *rest = super().step(actions)
        paid = float(actions["a"]) + self.drift * self.episode
        return observations, {"a": paid, "b": self.share * paid}, *rest


class Team(Hunt):
    """What `a` is paid, `b` is paid; it becomes less with every episode."""

    share, drift = 1.0, -1.0


def trained(env: type[ScriptedEnv], **options: Any) -> marl_sb3.Run:
    settings = {"n_steps": 3, "batch_size": 120, "n_epochs": 1, "policy_kwargs.net_arch": [4], "stats_window_size": 4}
    settings |= {"checkpoints.every": 2, "checkpoints.keep": 2}
    return marl_sb3.train(env, timesteps=12 * 60, n_envs=20, seed=3, settings=settings, run_dir="run", **options)


def printed(show: Callable[..., None], run: marl_sb3.Run) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as captured:
        show(console, run)
    return str(captured.get())


def assert_all_take(run: marl_sb3.Run, name: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = f"test_best_or_latest:{run.config.env.partition(':')[2]}"
    taken = marl_sb3.load_policies("run")
    assert (taken.checkpoint, taken.checkpoint_why) == (name, why)
    loaded = marl_sb3.load_run("run", env=env)
    assert (loaded.checkpoint, loaded.checkpoint_why) == (name, why)
    loaded.close()
    capsys.readouterr()
    assert evaluate.main(["run", "--env", env, "--episodes", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["checkpoint"], shown["checkpoint_why"]) == (name, why)
    assert export.main(["run", "--env", env, "--out", "out"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == why
    assert f"evaluate and export take these policies: {why}\n" in printed(print_summary, run)
    again = trained_from("run", env)
    assert f"weights from run: {why}\n" in printed(print_start, again)
    expected = taken.policies["shared"].policy.state_dict()
    for path in (run.policy_files["shared"], Path("out/shared.zip")):
        found = stable_baselines3.PPO.load(path, device="cpu").policy.state_dict()
        assert all(th.equal(found[layer], weights) for layer, weights in expected.items())


def trained_from(source: str, env: str) -> marl_sb3.Run:
    from marl_sb3.runs.settings import load_config
    from marl_sb3.runs.start import prepare

    settings = {"n_steps": 3, "batch_size": 6, "policy_kwargs.net_arch": [4]}
    run = prepare(load_config(env, settings=settings, n_timesteps=6, n_envs=2, init_from=[source]), "next")
    run.close()
    return run


def test_of_a_team_all_take_the_best(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(Team)
    value = run.results[1]["env_runners"]["episode_return_mean"]
    assert_all_take(run, "ckpt-000002", f"ckpt-000002 is the best by {METRIC} ({value:.4g})", capsys)


def test_of_opponents_all_take_the_latest(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(Hunt)
    reason = "the agents' returns oppose each other: that of a is higher where the others' are lower, in 100 % of"
    why = f"ckpt-000012 is the latest: {reason} 106 pairs of episodes, so that {METRIC} does not show which is the best"
    assert_all_take(run, "ckpt-000012", why, capsys)
    best = marl_sb3.load_policies("run", "best")
    assert best.checkpoint_why.startswith(f"{best.checkpoint} is the best by {METRIC} (")
    assert best.checkpoint_why.endswith("pairs of episodes")


def test_a_metric_of_ones_own_decides_also_among_opponents(in_tmp: Path) -> None:
    settings = {"n_steps": 3, "batch_size": 6, "checkpoints.every": 2, "stats_window_size": 4}
    settings["checkpoints.metric"] = "env_runners/agent_episode_returns_mean/a"
    marl_sb3.train(Hunt, timesteps=12 * 6, n_envs=2, seed=3, settings=settings, run_dir="run")
    assert " is the best by env_runners/agent_episode_returns_mean/a (" in marl_sb3.load_policies("run").checkpoint_why


def test_a_resumed_run_remembers_what_opposed(in_tmp: Path) -> None:
    trained(Hunt).close()
    resumed = marl_sb3.train("test_best_or_latest:Hunt", resume="run", timesteps=120)
    assert resumed.checkpoint_why.startswith("ckpt-000014 is the latest: ")
    assert "in 100 % of 124 pairs" in resumed.checkpoint_why
