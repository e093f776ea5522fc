"""Checkpoints of runs: which are kept, which one is taken where none is named, and to which one NaNs lead back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stable_baselines3
import torch as th
from rich.console import Console
from small_runs import rows, start
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentCallback, evaluate, export, load_run
from marl_sb3.errors import CheckpointError, NumericError
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import prepare
from marl_sb3.runs.view import print_start, print_summary

METRIC = "env_runners/episode_return_mean"


def names() -> list[str]:
    return CheckpointFolder(Path("run/checkpoints")).names()


def assert_same_weights(one: Any, other: Any) -> None:
    expected, found = one.policy.state_dict(), other.policy.state_dict()
    assert all(th.equal(found[layer], weights) for layer, weights in expected.items())


def test_the_best_and_the_newest_are_kept_and_can_be_asked_for(in_tmp: Path) -> None:
    start("run", iterations=8, settings={"checkpoint_every": 1, "checkpoint_keep": 2})
    returns = [row[METRIC] for row in rows("run")]
    best = f"ckpt-{max(range(1, 9), key=lambda i: (returns[i - 1], i)):06d}"
    assert names() == sorted({best, "ckpt-000007", "ckpt-000008"})
    assert load_run("run").checkpoint == best
    assert load_run("run", "latest").checkpoint == "ckpt-000008"
    assert load_run("run", "7").checkpoint == "ckpt-000007"
    with pytest.raises(CheckpointError, match="has no checkpoint '99'; accepted: best, latest, or one of"):
        load_run("run", "99")


def test_the_lowest_is_the_best_where_that_is_said(in_tmp: Path) -> None:
    start("run", iterations=6, settings={"checkpoint_every": 1, "checkpoint_keep": 1, "checkpoint_mode": "min"})
    returns = [row[METRIC] for row in rows("run")]
    assert load_run("run").checkpoint == f"ckpt-{min(range(1, 7), key=lambda i: (returns[i - 1], -i)):06d}"


def test_restored_policies_act_as_those_of_the_run(in_tmp: Path) -> None:
    run = start("run", iterations=2, policies="per_agent")
    again = load_run("run", "latest")
    observations = {agent: run.algorithm.env.groups[0].observation_space.sample() for agent in ("agent1", "agent2")}
    assert run.algorithm.predict(observations, True) == again.algorithm.predict(observations, True)
    for policy_id, policy in run.policies.items():
        assert_same_weights(policy, again.policies[policy_id])


# --- Best or latest: one rule for all commands, functions and files --------------------------------------------------


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


def trained(env: type[ScriptedEnv], n_envs: int = 20, **settings: Any) -> marl_sb3.Run:
    settings = {"n_steps": 3, "batch_size": 6 * n_envs, "n_epochs": 1, "stats_window_size": 4, **settings}
    settings |= {"policy_kwargs.net_arch": [4], "checkpoints.every": 2, "checkpoints.keep": 2}
    return marl_sb3.train(env, timesteps=36 * n_envs, n_envs=n_envs, seed=3, settings=settings, run_dir="run")


def printed(show: Callable[..., None], run: marl_sb3.Run) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        show(console, run)
    return str(captured.get())


def trained_from(source: str, env: str) -> marl_sb3.Run:
    settings = {"n_steps": 3, "batch_size": 6, "policy_kwargs.net_arch": [4]}
    run = prepare(load_config(env, settings=settings, n_timesteps=6, n_envs=2, init_from=[source]), "next")
    run.close()
    return run


def assert_all_take(run: marl_sb3.Run, name: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = f"test_checkpoints_of_runs:{run.config.env.partition(':')[2]}"
    taken, loaded = marl_sb3.load_policies("run"), load_run("run", env=env)
    loaded.close()
    capsys.readouterr()
    assert evaluate.main(["run", "--env", env, "--episodes", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (taken.checkpoint, loaded.checkpoint, shown["checkpoint"]) == (name, name, name)
    assert (taken.checkpoint_why, loaded.checkpoint_why, shown["checkpoint_why"]) == (why, why, why)
    assert export.main(["run", "--env", env, "--out", "out"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == why
    assert f"evaluate and export take these policies: {why}\n" in printed(print_summary, run)
    assert f"weights from run: {why}\n" in printed(print_start, trained_from("run", env))
    assert_same_weights(taken.policies["shared"], loaded.policies["shared"])
    for path in (run.policy_files["shared"], Path("out/shared.zip")):
        assert_same_weights(taken.policies["shared"], stable_baselines3.PPO.load(path, device="cpu"))


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
    resumed = marl_sb3.train("test_checkpoints_of_runs:Hunt", resume="run", timesteps=120)  # it remembers them
    assert resumed.checkpoint_why.startswith("ckpt-000014 is the latest: ")
    assert "in 100 % of 124 pairs" in resumed.checkpoint_why


def test_a_metric_of_ones_own_decides_also_among_opponents(in_tmp: Path) -> None:
    metric = "env_runners/agent_episode_returns_mean/a"
    trained(Hunt, n_envs=2, **{"checkpoints.metric": metric})
    assert f" is the best by {metric} (" in marl_sb3.load_policies("run").checkpoint_why


# --- NaNs and infinities ---------------------------------------------------------------------------------------------


class Poisonous(ScriptedEnv):
    """Pays a NaN, once or always, from some step on."""

    doses = 0

    def _reward(self, agent: str) -> float:
        if type(self).doses and self.env_index == 0 and self.episode >= 5:
            type(self).doses -= 1
            return float("nan")
        return super()._reward(agent)


def poisoned(doses: int, **settings: Any) -> marl_sb3.Run:
    Poisonous.doses = doses
    settings = {"n_steps": 10, "batch_size": 10, "checkpoint_every": 1, **settings}
    return marl_sb3.train(Poisonous, n_envs=2, timesteps=120, seed=1, settings=settings, run_dir="run")


def test_a_nan_ends_the_run_and_is_named(in_tmp: Path) -> None:
    with pytest.raises(NumericError, match=r"env 0, episode 4, step 1, agent 'a': reward is nan"):
        poisoned(1)
    assert names() == ["ckpt-000001"]
    assert len(rows("run")) == 1


def test_a_rollback_goes_back_to_the_latest_checkpoint(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = poisoned(1, on_nan="rollback")
    assert [row["iteration"] for row in rows("run")] == [1, 2, 3, 4, 5, 6]
    assert run.algorithm.num_timesteps == 120
    assert "rollback 1 of 3, to ckpt-000001, with other random numbers" in caplog.text


def test_a_rollback_is_tried_three_times(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NumericError, match="reward is nan"):
        poisoned(99, on_nan="rollback")
    assert caplog.text.count("with other random numbers") == 3


def test_weights_that_are_not_finite_never_reach_a_checkpoint(in_tmp: Path) -> None:
    class Poison(MultiAgentCallback):
        def on_iteration_end(self, result: dict[str, Any]) -> bool:
            if result["iteration"] == 3:
                with th.no_grad():
                    next(self.algorithm.policies["shared"].policy.parameters())[0] = float("inf")
            return True

    with pytest.raises(NumericError):
        start("run", callback=[Poison()], settings={"checkpoint_every": 1})
    assert names() == ["ckpt-000001", "ckpt-000002"]
