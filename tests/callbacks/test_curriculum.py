"""Curricula: envs get other tasks at their resets, alike with every vectorizer, and resumed exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.callbacks import ConvertCallback
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.callbacks import CurriculumCallback
from marl_sb3.errors import ConfigError, EnvError, HookError
from marl_sb3.train import main


class TaskEnv(ScriptedEnv):
    """Episodes of 3 steps; the agents see the task and are paid it."""

    task: Any = 1

    def set_task(self, task: Any) -> None:
        self.task = task
        if task == "x":
            raise ValueError("no such task")
        if task == "wide":
            self.observation_space = lambda agent: spaces.Box(0, 1, (9,))  # type: ignore[method-assign]

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, dict.fromkeys(rewards, float(np.sum(self.task))), *rest


def make_env() -> TaskEnv:
    return TaskEnv({"a": (3, "truncated")})


def learned(curriculum: CurriculumCallback, steps: int = 40, **more: Any) -> tuple[MultiAgentAlgorithm, list[float]]:
    """Train one env in iterations of 4 steps; returns the reward of each step, too."""
    rewards: list[float] = []

    def note(local: Any, _: Any) -> bool:
        rewards.append(float(local["rewards"][0, 0]))
        return True

    made = MultiAgentAlgorithm(make_vec_env(make_env), n_steps=4, batch_size=4, seed=1, device="cpu", **more)
    made.learn(steps, [curriculum, ConvertCallback(note)])
    return made, rewards


def test_a_task_begins_with_the_next_episode() -> None:
    seen = []

    def next_task(result: dict[str, Any], task: Any) -> Any:
        seen.append(task)
        return task + 1

    learned_with, rewards = learned(CurriculumCallback(next_task, stages=[2]), steps=12)
    # Iterations end after 4, 8 and 12 steps, episodes after 3, 6, 9 and 12.
    assert rewards == [2, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert seen == [2, 3, 4]
    assert learned_with.env.call("task", [0]) == [4]  # 5 comes with the next reset


def test_stages_advance_when_episodes_of_their_own_are_good_enough() -> None:
    curriculum = CurriculumCallback(stages=[5, 6, 7], advance_at={"env_runners/episode_return_mean": 15})
    results = []

    class Keeps(marl_sb3.MultiAgentCallback):
        def on_iteration_end(self, result: Any) -> bool:
            results.append((result["num_episodes_lifetime"], result["curriculum"]["stage"]))
            return True

    made = MultiAgentAlgorithm(
        make_vec_env(make_env), n_steps=3, batch_size=3, seed=1, device="cpu", stats_window_size=4
    )
    made.learn(3 * 12, [curriculum, Keeps()])
    # 15 is there after the first episode; then one episode may be of the stage before, and four more fill the window.
    assert results == [(1, 0), *((n, 1) for n in range(2, 7)), *((n, 2) for n in range(7, 13))]


def test_equal_stages_follow_one_another() -> None:
    curriculum = CurriculumCallback(stages=[5, 5, 6], advance_at={"env_runners/episode_return_mean": 15})
    learned(curriculum, steps=40, stats_window_size=1)
    assert (curriculum.stage, curriculum.task) == (2, 6)


def test_arrays_as_tasks_are_compared() -> None:
    tasks = iter([np.array([1.0]), np.array([1.0]), np.array([3.0])])
    curriculum = CurriculumCallback(lambda *_: next(tasks), stages=[np.array([1.0])])
    learned(curriculum, steps=12)
    assert (curriculum.stage, curriculum.task) == (1, [3.0])


SETTINGS = {
    "n_steps": 100,
    "curriculum": {
        "setting": "env.max_timesteps",
        "stages": [10, 20, 30],
        "advance_at": {"env_runners/episode_len_mean": 10},
    },
}


def lengths(folder: Path) -> list[Any]:
    lines = [json.loads(line) for line in (folder / "result.jsonl").read_text().splitlines()]
    return [
        (line["env_runners"]["episode_len_max"], line["env_runners"]["episode_return_mean"], line["curriculum"])
        for line in lines
    ]


@pytest.mark.parametrize("more", [{"vectorizer": "sync"}, {"n_workers": 2}, {"settings": {"n_shards": 2}}], ids=str)
def test_the_layout_changes_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    def run(name: str, **more: Any) -> list[Any]:
        settings = {**SETTINGS, **more.pop("settings", {})}
        marl_sb3.train(
            "arena", timesteps=3000, n_envs=4, seed=1, settings=settings, run_dir=tmp_path / name,
            progress_bar=False, **more,
        )  # fmt: skip
        return lengths(tmp_path / name)

    plain = run("plain")
    assert [line[2]["max_timesteps"] for line in plain[:3]] == [10, 20, 20]
    assert plain[-1][2] == {"stage": 2, "max_timesteps": 30}
    if "settings" in more:  # shards have random streams of their own
        assert [line[2] for line in run("other", **more)] == [line[2] for line in plain]
    else:
        assert run("other", **more) == plain


def test_a_resumed_run_has_the_tasks_of_all_envs(in_tmp: Path) -> None:
    hparams = {"arena": {"n_envs": 4, "n_steps": 25, "batch_size": 50, "checkpoints": {"every": 1}, **SETTINGS}}
    Path("c.yml").write_text(json.dumps({"arena": {**hparams["arena"], "n_steps": 25}}))
    options = ["--hparams", "c.yml", "--seed", "1", "--quiet"]
    assert main(["arena", *options, "--timesteps", "3000", "--run-dir", "whole"]) == 0
    assert main(["arena", *options, "--timesteps", "3000", "--run-dir", "parts", "--stop", "iteration=13"]) == 0
    assert len(lengths(Path("parts"))) == 13
    assert main(["--resume", "parts", "--quiet", "--stop", "iteration=1000"]) == 0
    assert lengths(Path("parts")) == lengths(Path("whole"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stages": []}, r"stages is \[\]; accepted: a list of at least one task"),
        ({"stages": [1], "setting": "height"}, "setting is 'height'; accepted: env.NAME"),
        ({"stages": [1, 2]}, "advance_at is missing"),
        ({"stages": [1, 2], "advance_at": {"iteration": "x"}}, "advance_at is .*; accepted: a mapping of metric names"),
        ({"stages": [object()]}, "a task is <object .*; accepted: numbers"),
        ({"stages": [1, 2], "next_task": lambda *_: 1}, "accepted: one of them"),
    ],
)
def test_wrong_curricula_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CurriculumCallback(**arguments)


@pytest.mark.parametrize(
    ("curriculum", "error", "words"),
    [
        (CurriculumCallback(stages=[1, 2], advance_at={"nope": 1}), ConfigError, "curriculum: .*unknown metric 'nope'"),
        (CurriculumCallback(stages=[1], setting="env.size"), ConfigError, "TaskEnv has set_task.task. alone: its size"),
        (CurriculumCallback(stages=["x"]), EnvError, r"configure\(\) of a curriculum or a callback raised ValueError"),
        (CurriculumCallback(lambda *_: 1 / 0, stages=[1]), HookError, "failed after iteration 1: ZeroDiv"),
        (CurriculumCallback(lambda *_: object(), stages=[1]), ConfigError, "a task is <object"),
        (
            CurriculumCallback(lambda *_: "wide", stages=[1]), EnvError,
            "env 0, episode 1, step 3, agent 'a': the new settings have changed a space; accepted: .*: it observes",
        ),
    ],
    ids=["metric", "setting", "value", "raises", "task", "space"],
)  # fmt: skip
def test_what_envs_cannot_do_is_refused(curriculum: CurriculumCallback, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        learned(curriculum)


def test_an_env_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ScriptedEnv has neither configure\(\*\*settings\) nor set_task"):
        marl_sb3.train(
            lambda: ScriptedEnv({"a": (3, "truncated")}), timesteps=8, progress_bar=False, run_dir=tmp_path / "run",
            settings={"curriculum": {"stages": [1]}},
        )  # fmt: skip
    settings = {"curriculum": {"stages": [1], "until": 3}}
    with pytest.raises(ConfigError, match="curriculum: 'until' is unknown; accepted: setting, stages, advance_at"):
        marl_sb3.train("arena", settings=settings, run_dir=tmp_path / "run", progress_bar=False)
    assert not (tmp_path / "run").exists()


def test_batched_envs_take_tasks() -> None:
    env = make_vec_env("arena", 2, seed=0)
    env.configure([1], task={"max_timesteps": 3})
    env.reset()
    zeros: Sequence[Any] = [np.zeros((2, 2), np.int64)]
    refused = make_vec_env("arena", 2, seed=0)
    refused.configure([1], max_timesteps="few")
    with pytest.raises(ConfigError, match=r"configure\(max_timesteps='few'\) of a curriculum or a callback: max_"):
        refused.reset()
    assert [env.step(zeros).episode_done.tolist() for _ in range(3)] == [[False, False]] * 2 + [[False, True]]
