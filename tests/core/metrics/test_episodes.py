"""The metrics of episodes against numbers worked by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch as th
from toy_envs import ScriptedEnv

from marl_sb3 import ConfigError, Episode, InfoMetric, make_vec_env
from marl_sb3.core.metrics.episodes import EpisodeTracker, info_metrics
from marl_sb3.core.metrics.names import finite_or_none, flatten, require_metric
from marl_sb3.errors import EnvError

ONE_STEP = {"a": (1, "truncated"), "b": (1, "terminated")}


def played(
    make_env: Any, steps: int, n_envs: int = 1, policies: Any = None, **options: Any
) -> tuple[Any, list[Episode]]:
    """A tracker that has seen some steps, and the episodes that finished."""
    env = make_vec_env(make_env, n_envs=n_envs)
    tracker = EpisodeTracker(env, policies or dict.fromkeys(env.agents, "shared"), **options)
    env.reset()
    tracker.begin()
    actions = (np.zeros((n_envs, len(env.agents)), dtype=np.int64),)
    return tracker, [episode for _ in range(steps) for episode in tracker.record(env.step(actions))]


# Returns and lengths


def scripted() -> ScriptedEnv:
    """Agent a ends after 2 steps of reward 1 and 2, b after 3 of 10, 20 and 30."""
    return ScriptedEnv({"a": (2, "truncated"), "b": (3, "terminated")}, rewards={"a": [1, 2], "b": [10, 20, 30]})


def test_episode_counts_the_steps_and_rewards_of_each_agent() -> None:
    tracker, (first, second) = played(scripted, steps=7)
    assert first == Episode(0, 3, {"a": 3.0, "b": 60.0}, {"a": 2, "b": 3}, {}, first.duration_s, first.policy_of)
    assert second == Episode(0, 3, {"a": 3.0, "b": 60.0}, {"a": 2, "b": 3}, {}, second.duration_s, second.policy_of)
    summary = tracker.summary()
    duration_s = summary.pop("episode_duration_sec_mean")
    assert duration_s == pytest.approx((first.duration_s + second.duration_s) / 2)
    assert summary == {
        "episode_return_mean": 63.0,
        "episode_return_min": 63.0,
        "episode_return_max": 63.0,
        "episode_len_mean": 3.0,
        "episode_len_min": 3,
        "episode_len_max": 3,
        "agent_episode_returns_mean": {"a": 3.0, "b": 60.0},
        "module_episode_returns_mean": {"shared": 31.5},
        "agent_steps": {"a": 2.0, "b": 3.0},
        "custom_metrics": {},
    }


def test_before_the_first_episode_there_are_names_but_no_values() -> None:
    tracker, episodes = played(scripted, steps=2, custom_metrics={"m": InfoMetric("k")})
    flat = flatten(tracker.summary())
    assert episodes == []
    assert set(flat.values()) == {None}
    assert "custom_metrics/m_mean" in flat
    assert "agent_episode_returns_mean/b" in flat


class Rising(ScriptedEnv):
    """In episode k agent a is paid k, agent b 2 * k, in its only step."""

    def __init__(self) -> None:
        super().__init__(ONE_STEP)

    def _reward(self, agent: str) -> float:
        return float(self.episode * (1 if agent == "a" else 2))


@pytest.mark.parametrize(
    ("window", "expected"),
    # Returns are 3, 6, 9, 12 and 15; those of a policy are averaged over its agents.
    [
        (1, {"mean": 15.0, "min": 15.0, "max": 15.0, "a": 5.0, "b": 10.0, "module": 7.5}),
        (2, {"mean": 13.5, "min": 12.0, "max": 15.0, "a": 4.5, "b": 9.0, "module": 6.75}),
        (100, {"mean": 9.0, "min": 3.0, "max": 15.0, "a": 3.0, "b": 6.0, "module": 4.5}),
    ],
)
def test_mean_minimum_and_maximum_run_over_the_latest_episodes(window: int, expected: dict[str, float]) -> None:
    tracker, episodes = played(Rising, steps=5, window=window)
    summary = tracker.summary()
    assert len(episodes) == 5
    assert {kind: summary[f"episode_return_{kind}"] for kind in ("mean", "min", "max")} == {
        kind: expected[kind] for kind in ("mean", "min", "max")
    }
    assert summary["agent_episode_returns_mean"] == {"a": expected["a"], "b": expected["b"]}
    assert summary["module_episode_returns_mean"] == {"shared": expected["module"]}


def test_policies_have_the_returns_of_their_agents() -> None:
    tracker, _ = played(Rising, steps=1, policies={"a": "p", "b": "q"})
    assert tracker.summary()["module_episode_returns_mean"] == {"p": 1.0, "q": 2.0}


def test_each_env_has_episodes_of_its_own() -> None:
    def by_env(env_index: int) -> ScriptedEnv:
        return ScriptedEnv({"a": (1 + env_index, "terminated")}, rewards={"a": [1, 5]})

    tracker, episodes = played(by_env, steps=2, n_envs=2)
    assert [(e.env_index, e.length, e.agent_returns["a"]) for e in episodes] == [(0, 1, 1.0), (0, 1, 1.0), (1, 2, 6.0)]
    summary = tracker.summary()
    assert (summary["episode_len_mean"], summary["episode_len_min"], summary["episode_len_max"]) == (4 / 3, 1, 2)
    assert summary["episode_return_mean"] == pytest.approx(8 / 3)


def test_an_agent_that_never_takes_part_has_no_return() -> None:
    tracker, (episode,) = played(lambda: ScriptedEnv(ONE_STEP, joins={"b": 9}), steps=1)
    assert episode.agent_returns == {"a": 1.0}
    assert episode.agent_steps == {"a": 1, "b": 0}
    summary = tracker.summary()
    assert summary["agent_episode_returns_mean"] == {"a": 1.0, "b": None}
    assert summary["agent_steps"] == {"a": 1.0, "b": 0.0}
    assert summary["module_episode_returns_mean"] == {"shared": 1.0}


def test_returns_of_an_agent_run_over_the_episodes_that_it_took_part_in() -> None:
    class EveryOther(Rising):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.joins = {"b": 9} if self.episode % 2 else {}
            return super().reset(seed, options)

    summary = played(EveryOther, steps=4)[0].summary()
    assert summary["agent_episode_returns_mean"] == {"a": 2.5, "b": (2 + 6) / 2}
    assert summary["agent_steps"] == {"a": 1.0, "b": 0.5}
    assert summary["episode_return_mean"] == (3 + 2 + 9 + 4) / 4


def test_beginning_anew_forgets_running_episodes_and_keeps_finished_ones() -> None:
    tracker, _ = played(scripted, steps=5, custom_metrics={"steps": InfoMetric("step", "b")})
    tracker.begin()
    env = make_vec_env(scripted)
    env.reset()
    (episode,) = [e for _ in range(3) for e in tracker.record(env.step((np.zeros((1, 2), dtype=np.int64),)))]
    assert (episode.length, episode.agent_returns, episode.custom) == (3, {"a": 3.0, "b": 60.0}, {"steps": 6.0})
    assert len(tracker.episodes) == 2


def test_duration_runs_from_the_first_step_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = iter(range(0, 1000, 10))  # each look at the clock is ten seconds after the one before
    monkeypatch.setattr(
        "marl_sb3.core.metrics.episodes.time", SimpleNamespace(perf_counter=lambda: float(next(clock_s)))
    )
    tracker, episodes = played(Rising, steps=2)
    # Looks: two beginnings (0, 10), the end of episode 1 (20), the start of 2 (30), its end (40).
    assert [episode.duration_s for episode in episodes] == [10.0, 10.0]
    assert tracker.summary()["episode_duration_sec_mean"] == 10.0


# Custom metrics


class Eventful(ScriptedEnv):
    """Four steps; in the first episode a says what `says` has for each step, in later ones nothing. b says 100."""

    metadata = {"custom_metrics": {"seen": {"key": "value", "agent": "a"}}}  # noqa: RUF012
    says: tuple[Mapping[str, Any], ...] = ({"value": 3}, {}, {"value": np.float32(1)}, {"value": 2, "found": True})

    def __init__(self) -> None:
        super().__init__({"a": (4, "truncated"), "b": (4, "truncated")})

    def step(self, actions: Mapping[str, Any]) -> Any:
        *returned, _ = super().step(actions)
        of_a = self.says[self.step_count - 1] if self.episode == 1 else {}
        return *returned, {"a": of_a, "b": {"value": 100}}


@pytest.mark.parametrize(("reduce", "first"), [("sum", 6.0), ("mean", 2.0), ("min", 1.0), ("max", 3.0), ("last", 2.0)])
def test_steps_become_one_number_per_episode(reduce: str, first: float) -> None:
    tracker, episodes = played(Eventful, steps=8, custom_metrics={"m": InfoMetric("value", "a", reduce)})
    # The second episode had no event: a sum of 0, but no mean, minimum, maximum or last value.
    assert [episode.custom.get("m") for episode in episodes] == [first, 0.0 if reduce == "sum" else None]
    custom = tracker.summary()["custom_metrics"]
    mean, least = (3.0, 0.0) if reduce == "sum" else (first, first)
    assert (custom["m_mean"], custom["m_min"], custom["m_max"]) == (mean, least, first)


def test_metric_without_agent_takes_the_infos_of_all() -> None:
    metrics = {reduce: InfoMetric("value", reduce=reduce) for reduce in ("sum", "mean", "min")}
    _, (first, second) = played(Eventful, steps=8, custom_metrics=metrics)
    assert {name: first.custom[name] for name in metrics} == {"sum": 406.0, "mean": 406 / 7, "min": 1.0}
    assert {name: second.custom[name] for name in metrics} == {"sum": 400.0, "mean": 100.0, "min": 100.0}


def test_an_env_announces_metrics_and_the_caller_may_replace_them() -> None:
    _, (announced, _) = played(Eventful, steps=8)
    assert announced.custom == {"seen": 6.0}
    own = {"seen": InfoMetric("value", "b", "max"), "flags": InfoMetric("found"), "never": InfoMetric("k", "a", "mean")}
    tracker, (replaced, _) = played(Eventful, steps=8, custom_metrics=own)
    assert replaced.custom == {"seen": 100.0, "flags": 1.0}
    custom = tracker.summary()["custom_metrics"]
    assert custom["never_mean"] is custom["never_min"] is custom["never_max"] is None


@pytest.mark.parametrize("entries", [{"m": {"kye": 1}}, {"m": 3}, {"m": {}}, ["m"], 5])
def test_what_is_not_a_metric_is_refused_with_its_source(entries: Any) -> None:
    with pytest.raises(ConfigError, match=r"the file is .*; accepted: \{name: \{key, agent, reduce\}\}"):
        info_metrics(entries, "the file")


def test_unknown_reduction_and_empty_window_are_refused() -> None:
    with pytest.raises(ConfigError, match="info key 'k': reduce is 'median'; accepted: sum, mean, min, max, last"):
        InfoMetric("k", reduce="median")
    with pytest.raises(ConfigError, match="stats_window_size is 0; accepted: an integer of at least 1"):
        played(Rising, steps=0, window=0)


# Names and numbers


def test_flatten_joins_the_path() -> None:
    assert flatten({"a": 1, "b": {"c": 2, "d": {"e": None}}, "f": {}}) == {"a": 1, "b/c": 2, "b/d/e": None}


def test_what_is_not_finite_becomes_none_and_numbers_pythons_own() -> None:
    result = {
        "nan": float("nan"),
        "deep": {"inf": -np.inf, "half": np.float32(0.5), "count": np.int64(3), "flag": np.bool_(True)},
        "tensor": th.tensor(1.5),
        "array": np.array([1.0, np.nan]),
        "one": np.array([2.5]),
        "text": "as it is",
        "nothing": None,
    }
    clean = finite_or_none(result)
    assert clean == {
        "nan": None,
        "deep": {"inf": None, "half": 0.5, "count": 3, "flag": True},
        "tensor": 1.5,
        "array": [1.0, None],
        "one": 2.5,
        "text": "as it is",
        "nothing": None,
    }
    assert json.loads(json.dumps(clean, allow_nan=False)) == clean


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "env_runners/episode_retrun_mean",
            "did you mean env_runners/episode_return_mean, env_runners/episode_r",
        ),
        ("xyz", "unknown metric 'xyz'; accepted: iteration, env_runners/episode_return_mean"),
    ],
)
def test_unknown_metric_is_refused_with_those_that_come_close(name: str, message: str) -> None:
    known = ["iteration", "env_runners/episode_return_mean", "env_runners/episode_return_min"]
    require_metric(known[1], known)
    with pytest.raises(ConfigError, match=message) as caught:
        require_metric(name, iter(known))
    assert caught.value.key == "stop"


@pytest.mark.parametrize("value", ["many", [1, 2], np.zeros(2), 1j])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_info_that_is_no_number_is_refused_by_the_name_of_its_metric(value: Any, n_envs: int) -> None:
    class Says(ScriptedEnv):
        def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
            returned = super().step(actions)
            if self.step_count == 2 and self.env_index == n_envs - 1:
                returned[4]["b"]["step"] = value
            return returned

    metrics = {"last_step": InfoMetric("step", "b", "last")}
    words = f"env {n_envs - 1}, step 2 of its episode, agent 'b': custom metric 'last_step': info 'step' is {value!r}"
    with pytest.raises(EnvError, match=re.escape(f"{words}; accepted: a number")):
        played(Says, 2, n_envs, custom_metrics=metrics)


def test_custom_metric_whose_name_cannot_be_saved_is_refused() -> None:
    with pytest.raises(ConfigError, match="custom metric id 1 is of type int"):
        played(ScriptedEnv, 1, custom_metrics={1: InfoMetric("step")})
