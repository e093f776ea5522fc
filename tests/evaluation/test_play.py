"""Metrics of evaluations, worked by hand, and which episodes count."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces
from playing import PAY, STAGGERED, make
from small_trainings import without_clock
from toy_envs import SampledEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, InfoMetric, MultiAgentAlgorithm, MultiAgentVecEnv, load_policies, make_vec_env
from marl_sb3.core.metrics.names import flatten
from marl_sb3.evaluation.playing import episodes_of_env, evaluate_policies, metric_names, play


def test_metrics_are_those_of_the_episodes_played() -> None:
    options = {"script": STAGGERED, "rewards": PAY}
    algorithm = make(policies="per_agent", env_kwargs=options)
    metrics = marl_sb3.evaluate_policies(algorithm, make_vec_env(ScriptedEnv, n_envs=3, **options), n_episodes=7)
    assert metrics.pop("episode_duration_sec_mean") > 0
    assert metrics == {
        "episode_return_mean": 63.0,
        "episode_return_min": 63.0,
        "episode_return_max": 63.0,
        "episode_len_mean": 3.0,
        "episode_len_min": 3,
        "episode_len_max": 3,
        "agent_episode_returns_mean": {"a": 3.0, "b": 60.0},
        "module_episode_returns_mean": {"a": 3.0, "b": 60.0},
        "agent_steps": {"a": 2.0, "b": 3.0},
        "custom_metrics": {},
        "num_episodes": 7,
        "num_env_steps_sampled": 21,
        "num_agent_steps_sampled": {"a": 14, "b": 21},
    }


def test_names_are_those_of_a_training_result() -> None:
    algorithm = make("arena")
    env = make_vec_env("arena", n_envs=1)
    names = metric_names(algorithm, env)
    assert names == list(flatten(evaluate_policies(algorithm, env, n_episodes=1)))
    assert [f"env_runners/{name}" for name in names] == [
        name for name in algorithm.metric_names() if name.startswith("env_runners/")
    ]


def test_custom_metrics_of_the_training_are_measured_too() -> None:
    algorithm = make(custom_metrics={"last_step": InfoMetric("step", "a", "last")})
    evaluation = play(algorithm, make_vec_env(ScriptedEnv), n_episodes=2)
    assert evaluation.metrics["custom_metrics"] == {"last_step_mean": 3.0, "last_step_min": 3.0, "last_step_max": 3.0}
    assert evaluation.custom("last_step") == [3.0, 3.0]


class Rising(ScriptedEnv):
    """In its k-th episode an env pays k to a and 2 k to b, in a single step; b sits out the even ones."""

    def __init__(self) -> None:
        super().__init__({"a": (1, "terminated"), "b": (1, "truncated")})

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.joins = {"b": 9} if self.episode % 2 else {}
        return super().reset(seed, options)

    def _reward(self, agent: str) -> float:
        return float(self.episode * (1 if agent == "a" else 2))


def test_every_episode_is_kept() -> None:
    evaluation = play(make(Rising), make_vec_env(Rising), n_episodes=3)
    assert evaluation.returns() == [3.0, 2.0, 9.0]
    assert evaluation.agent_returns("a") == [1.0, 2.0, 3.0]
    assert evaluation.agent_returns("b") == [2.0, 6.0]
    assert evaluation.lengths() == [1, 1, 1]
    assert evaluation.metrics["agent_episode_returns_mean"] == {"a": 2.0, "b": 4.0}


def test_someone_may_watch_the_episodes() -> None:
    seen: list[Any] = []
    evaluation = play(make(), make_vec_env(ScriptedEnv, n_envs=2), n_episodes=3, on_episode=seen.append)
    assert tuple(seen) == evaluation.episodes


# Which episodes count


def short_and_long(env_index: int) -> ScriptedEnv:
    """Env 0 plays episodes of one step, the others of ten; every step pays 1."""
    return ScriptedEnv({"a": (10 if env_index else 1, "terminated")})


@pytest.mark.parametrize(
    ("n_episodes", "n_envs", "by_env"),
    [(1, 1, [1]), (4, 2, [2, 2]), (5, 2, [2, 3]), (7, 3, [2, 2, 3]), (2, 3, [0, 1, 1]), (3, 3, [1, 1, 1])],
)
def test_each_env_plays_its_share(n_episodes: int, n_envs: int, by_env: list[int]) -> None:
    assert [episodes_of_env(index, n_envs, n_episodes) for index in range(n_envs)] == by_env
    played = play(make(short_and_long), make_vec_env(short_and_long, n_envs), n_episodes)
    counts = Counter(episode.env_index for episode in played.episodes)
    assert [counts[index] for index in range(n_envs)] == by_env
    assert played.metrics["num_episodes"] == n_episodes


def test_short_episodes_are_not_favoured() -> None:
    algorithm, env = make(short_and_long), make_vec_env(short_and_long, n_envs=2)
    metrics = evaluate_policies(algorithm, env, n_episodes=4)
    # Those of env 0 pay 1, those of env 1 pay 10. The first four to end are all of env 0.
    assert metrics["episode_return_mean"] == metrics["episode_len_mean"] == 5.5
    assert metrics["num_env_steps_sampled"] == 22


@pytest.mark.parametrize(
    ("n_env_steps", "lengths"),
    [(8, [1, 1, 1, 1]), (20, [1] * 10 + [10]), (19, [1] * 10 + [10]), (1, [1])],
)
def test_a_duration_in_env_steps_counts_what_ends_in_it(n_env_steps: int, lengths: list[int]) -> None:
    evaluation = play(make(short_and_long), make_vec_env(short_and_long, n_envs=2), n_env_steps=n_env_steps)
    assert evaluation.lengths() == lengths


def test_too_short_a_duration_has_names_but_no_values() -> None:
    metrics = evaluate_policies(make(), make_vec_env(ScriptedEnv), n_env_steps=2)
    assert metrics["episode_return_mean"] is None
    assert metrics["num_episodes"] == 0


def test_many_episodes_may_end_in_one_step() -> None:
    def by_env(env_index: int) -> ScriptedEnv:
        return ScriptedEnv({"a": (1, "terminated")}, rewards={"a": [env_index]})

    metrics = evaluate_policies(make(by_env), make_vec_env(by_env, n_envs=9), n_env_steps=1)
    assert metrics["num_episodes"] == metrics["num_env_steps_sampled"] == 9
    assert metrics["episode_return_mean"] == 4.0


# What is refused


def test_other_agents_and_other_spaces_are_refused() -> None:
    algorithm = make()
    with pytest.raises(ConfigError, match=r"the env has agents x; the policies act for a, b"):
        evaluate_policies(algorithm, make_vec_env(ScriptedEnv, script={"x": (1, "truncated")}))
    other = {"observation_space": spaces.Discrete(3), "action_space": spaces.Discrete(3)}
    with pytest.raises(ConfigError, match=r"the env has space Discrete\(3\) for agent 'a'; its policy: Box"):
        evaluate_policies(algorithm, make_vec_env(SampledEnv, **other))


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "ten"])
@pytest.mark.parametrize("name", ["n_episodes", "n_env_steps"])
def test_an_empty_duration_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; accepted: an integer of at least 1"):
        evaluate_policies(make(), make_vec_env(ScriptedEnv), **{name: value})


def test_policies_alone_play_as_with_their_training(tmp_path: Path) -> None:
    metrics = {"reward": InfoMetric("bonus", agent="a")}
    algorithm = make(policies="per_agent", custom_metrics=metrics)
    algorithm.evaluation_deterministic = False
    algorithm.train_iteration()
    algorithm.save(tmp_path / "saved")
    env = make_vec_env(ScriptedEnv, n_envs=2)
    assert not load_policies(tmp_path / "saved").evaluation_deterministic
    alone = replace(load_policies(tmp_path / "saved", device="cpu"), custom_metrics=metrics)
    of_training, of_policies = (without_clock(evaluate_policies(each, env, 4, seed=5)) for each in (algorithm, alone))
    assert of_policies == of_training
    loaded = MultiAgentAlgorithm.load(tmp_path / "saved", make_vec_env(ScriptedEnv))
    for each in (algorithm.bundle(), replace(loaded.bundle(), custom_metrics=metrics)):
        assert without_clock(evaluate_policies(each, env, 4, seed=5)) == of_training
    assert without_clock(evaluate_policies(algorithm, env, 4, deterministic=False, seed=5)) == of_training
    assert "custom_metrics/reward_mean" in of_training


def test_other_agents_order_does_not_matter() -> None:
    script = {"a": (2, "truncated"), "b": (3, "truncated")}
    turned: MultiAgentVecEnv = make_vec_env(ScriptedEnv, script=dict(reversed(script.items())))
    metrics = evaluate_policies(make(policies="per_agent", env_kwargs={"script": script}), turned, n_episodes=1)
    assert metrics["agent_steps"] == {"b": 3.0, "a": 2.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            lambda algo: ("runs/arena", algo.env),
            r"algo is 'runs/arena'; accepted: .*Algorithm.load\(folder",
        ),
        (lambda algo: (algo, "arena"), "env is 'arena'; accepted: envs from make_vec_env"),
    ],
)
def test_what_is_no_algorithm_and_what_are_no_envs_is_refused(arguments: Any, message: str) -> None:
    algo = MultiAgentAlgorithm(make_vec_env(ScriptedEnv), n_steps=4, batch_size=4, device="cpu")
    with pytest.raises(ConfigError, match=message):
        evaluate_policies(*arguments(algo))
