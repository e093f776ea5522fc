"""Results of iterations, as views get them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

RESULT: dict[str, Any] = {
    "iteration": 3,
    "num_env_steps_sampled_lifetime": 1500,
    "env_runners": {
        "episode_return_mean": 12.5,
        "episode_len_mean": 99.0,
        "agent_episode_returns_mean": {"a": 10.25, "b": 2.25},
        "custom_metrics": {"found_mean": 7.5, "found_min": 1.0, "found_max": 9.0},
    },
    "timers": {"env_runner_sampling_timer": 0.3, "learner_update_timer": 0.1},
    "throughput": {"env_steps_per_s": 1234.5, "agent_steps_per_s": 2469.0},
}


def without_values() -> dict[str, Any]:
    """A result as it is before the first episode, on a clock that stood still."""
    result = deepcopy(RESULT)
    result["env_runners"] = {
        "episode_return_mean": None,
        "episode_len_mean": None,
        "agent_episode_returns_mean": {"a": None, "b": None},
        "custom_metrics": {"found_mean": None, "found_min": None, "found_max": None},
    }
    result["timers"] = {"env_runner_sampling_timer": 0.0, "learner_update_timer": 0.0}
    result["throughput"] = {"env_steps_per_s": None, "agent_steps_per_s": None}
    return result


def with_agents(count: int) -> dict[str, Any]:
    """A result of agents a0, a1, ... whose returns are their numbers."""
    result = deepcopy(RESULT)
    result["env_runners"]["agent_episode_returns_mean"] = {f"a{i}": float(i) for i in range(count)}
    result["env_runners"]["episode_return_mean"] = count * (count - 1) / 2
    return result


def at(iteration: int, steps: int, **env_runners: Any) -> dict[str, Any]:
    """A result of another iteration."""
    result = {**deepcopy(RESULT), "iteration": iteration, "num_env_steps_sampled_lifetime": steps}
    result["env_runners"].update(env_runners)
    return result


def evaluated(result: dict[str, Any], value: float) -> dict[str, Any]:
    """The same, with an evaluation of this return."""
    metrics = {"episode_return_mean": value, "agent_episode_returns_mean": {"a": value - 1, "b": 1.0}}
    return {**result, "evaluation": {"env_runners": {**metrics, "custom_metrics": {}}}}


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s
