"""Hints on trainings: each is given where its numbers are wrong, and none for whole trainings of the presets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marl_sb3.results.health import LEAST_ITERATIONS, Problem, find_problems, hints, policies_in

# Every n-th iteration of whole trainings with the presets, seed 1.
HEALTHY = json.loads((Path(__file__).parent / "healthy_runs.json").read_text())
N = 24  # iterations


def columns(**learner: Any) -> dict[str, np.ndarray]:
    """A run of two agents whose return rises from 0 to 23, of episodes that differ by 40, and a policy `a/b`."""
    rising = np.arange(N, dtype=float)
    found = {
        "env_runners/episode_return_mean": rising,
        "env_runners/episode_return_min": rising - 20,
        "env_runners/episode_return_max": rising + 20,
        "env_runners/agent_episode_returns_mean/x": rising / 4,
        "env_runners/agent_episode_returns_mean/y": 3 * rising / 4,
    }
    return {**found, **{f"learners/a/b/{name}": spread(values) for name, values in learner.items()}}


def spread(values: Any) -> np.ndarray:
    """A column with each of the values equally often, one after the other."""
    values = values if isinstance(values, list) else [values]
    return np.repeat(np.array(values, float), N // len(values))


def found(given: dict[str, np.ndarray]) -> list[tuple[str, str, float]]:
    return [(each.subject, each.title, each.value) for each in find_problems(given)]


@pytest.mark.parametrize("name", HEALTHY)
def test_whole_trainings_of_presets_give_no_hint(name: str) -> None:
    given = {metric: np.array(values, float) for metric, values in HEALTHY[name].items()}
    assert len(policies_in(given)) == (2 if name == "waterworld" else 1)
    assert find_problems(given) == []


@pytest.mark.parametrize(
    ("learner", "title", "value"),
    [
        # The 0.9 quantile of 20 times 0.02 and 4 times 0.2 is 0.2; one step of 14 is enough.
        ({"mean_kl_loss": [0.02] * 20 + [0.2] * 4}, "the KL divergence explodes", 0.2),
        ({"mean_kl_loss": [14.0] + [0.01] * 23}, "the KL divergence explodes", 14.0),
        ({"clip_fraction": [0.3, 0.4, 0.6]}, "most of each update is clipped", 0.4),
        ({"mean_kl_loss": 1e-7, "curr_lr": 1e-6}, "the policy hardly changes", 1e-7),
        ({"mean_kl_loss": 0.0, "curr_lr": 0.0}, "the policy hardly changes", 0.0),
        ({"vf_explained_var": [0.9, 0.5, 0.04, -0.2], "vf_loss": 4.0}, "the value function explains nothing", -0.2),
        ({"entropy": [1.386, 0.06, 0.05, 0.05]}, "the entropy has collapsed early", 0.06),
        # Two numbers: 2.838 - 6 = -3.162 nats are too few.
        ({"entropy": [2.838, -3.2, -3.3, -3.3]}, "the entropy has collapsed early", -3.2),
        ({"entropy": [2.838, 3.0, 3.5, 4.0]}, "the actions become ever more random", 4.0),
        ({"gradients_global_norm": [0.5, 1.0, 50.0, 600.0]}, "gradients explode", 600.0),
        ({"critic_loss": [2.0, 1.0, 1e3, 1e4]}, "losses of the critic explode", 1e4),
        ({"qf_loss": [0.2, 1.0, 1e3, 1e4]}, "losses of the Q values explode", 1e4),
        ({"exploration_rate": [1.0, 0.8, 0.6]}, "most actions are random to the end", 0.6),
        ({"ent_coef": [1.0, 5.0, 20.0]}, "the entropy coefficient explodes", 20.0),
    ],
)
def test_what_is_wrong_in_updates_is_found(learner: dict[str, Any], title: str, value: float) -> None:
    assert found(columns(**learner)) == [("policy a/b", title, pytest.approx(value))]


@pytest.mark.parametrize(
    "learner",
    [
        {"mean_kl_loss": [0.05] * 22 + [0.3] * 2},  # rarely
        {"mean_kl_loss": [0.01, 1e-7], "curr_lr": [1e-3, 0.0]},  # a learning rate that falls
        {"mean_kl_loss": math.nan, "vf_explained_var": math.nan},
        {"vf_explained_var": [0.9, -3.0, -4.0, -4.0], "vf_loss": [40.0, 0.3, 1e-5, 1e-5]},  # nothing left to explain
        {"vf_explained_var": [0.9, 0.9, 0.9, -0.2], "vf_loss": 4.0},  # only at the end
        {"entropy": [0.69, 0.4, 0.3, 0.02]},  # late
        {"entropy": [2.838, 0.05, -1.0, -1.5]},  # continuous actions pass 0
        {"gradients_global_norm": [0.5, 5.0, 50.0, 400.0]},
        {"exploration_rate": [1.0, 0.5, 0.05]},
    ],
)
def test_what_only_looks_wrong_is_left_alone(learner: dict[str, Any]) -> None:
    assert found(columns(**learner)) == []


def test_policies_that_were_frozen_by_their_learning_rate_are_told_so() -> None:
    (frozen,) = find_problems(columns(mean_kl_loss=0.0, curr_lr=0.0))
    (slow,) = find_problems(columns(mean_kl_loss=0.0, curr_lr=1e-9))
    assert ("learning rate is 0" in frozen.meaning, "learning rate is 0" in slow.meaning) == (True, False)


def test_a_collapsed_policy_is_not_also_said_to_be_still() -> None:
    given = columns(mean_kl_loss=[14.0] + [0.0] * 23, entropy=[0.69] + [0.0] * 23)
    assert [title for _, title, _ in found(given)] == ["the KL divergence explodes", "the entropy has collapsed early"]


def test_opposing_sides_need_no_rising_sum_and_no_values() -> None:
    wave = np.sin(np.arange(N))
    given = {
        **columns(vf_explained_var=-0.1, vf_loss=1.0),
        "env_runners/episode_return_mean": np.zeros(N),
        "env_runners/agent_episode_returns_mean/x": wave,
        "env_runners/agent_episode_returns_mean/y": -wave,
    }
    assert found(given) == []
    given["env_runners/agent_episode_returns_mean/y"] = wave
    assert [title for _, title, _ in found(given)] == [
        "the return has not risen",
        "the value function explains nothing",
    ]


def test_returns_that_fall_again_are_found_if_they_fall_far() -> None:
    given = columns()
    given["env_runners/episode_return_mean"] = spread([0.0, 10.0, 20.0, 20.0, 6.0, 6.0])
    assert found(given) == [("training", "the return has fallen again", 6.0)]
    given["env_runners/episode_return_mean"] = spread([0.0, 10.0, 20.0, 20.0, 12.0, 12.0])
    assert found(given) == []  # 8 are less than a quarter of 40, the spread of episodes
    given |= {"env_runners/episode_return_min": spread(-10.0), "env_runners/episode_return_max": spread(20.0)}
    assert found(given) == [("training", "the return has fallen again", 12.0)]  # 8 of 20 are more than a third
    given["env_runners/episode_return_mean"] = spread([10.0, 10.0, 20.0, 30.0, 23.0, 23.0])
    assert found(given) == []  # 7 of 20


def test_a_return_that_rises_by_less_than_a_tenth_of_its_spread_has_not_risen() -> None:
    given = columns()
    given["env_runners/episode_return_mean"] = spread([0.0, 3.0, 2.0])
    assert found(given) == [("training", "the return has not risen", 2.0)]
    assert find_problems(given, begins_trained=True) == []
    given["env_runners/episode_return_mean"] = spread([0.0, 3.0, 5.0])
    assert found(given) == []


def test_a_goal_that_was_reached_once_is_no_progress() -> None:
    returns = np.where(np.arange(N) == 5, -199.0, -200.0)  # in one of the windows, an episode was worth -100
    given = {"env_runners/episode_return_mean": returns, "env_runners/episode_return_min": spread(-200.0)}
    given["env_runners/episode_return_max"] = np.where(np.arange(N) == 5, -100.0, -200.0)
    assert found(given) == [("training", "the return has not risen", -200.0)]


def test_starving_agents_are_named() -> None:
    steps = {"x": 1000.0, "y": 900.0, "z": 40.0}  # 4 % of 950
    given = columns() | {f"num_agent_steps_sampled_lifetime/{agent}": spread(n) for agent, n in steps.items()}
    given["env_runners/agent_episode_returns_mean/y"] = spread(0.0)
    assert found(given) == [
        ("agent z", "it hardly acts", 40.0),
        ("agent y", "the return is always the same", 0.0),
    ]
    given["env_runners/agent_episode_returns_mean/x"] = spread(1.0)
    assert found(given)[1:] == [("all agents", "the return is always the same", 1.0)]


def test_runs_without_an_ended_episode_and_with_replaced_workers_say_so() -> None:
    given = {
        "env_runners/episode_return_mean": spread(math.nan),
        "num_episodes_lifetime": spread(0.0),
        "fault_tolerance/num_worker_restarts": spread([0.0, 2.0]),
    }
    assert found(given) == [("training", "no episode has ended", 0.0), ("training", "workers were replaced", 2.0)]


def test_few_iterations_are_not_judged_but_for_the_size_of_steps() -> None:
    given = columns(mean_kl_loss=2.0, entropy=0.0, vf_explained_var=-1.0, clip_fraction=0.9)
    short = {name: column[: LEAST_ITERATIONS - 1] for name, column in given.items()}
    assert [title for _, title, _ in found(short)] == ["the KL divergence explodes"]
    assert find_problems({}) == []


def test_every_finding_says_what_it_means_what_to_do_and_what_is_usual() -> None:
    every = columns(
        mean_kl_loss=2.0,
        clip_fraction=0.9,
        entropy=[1.0, 0.0, 0.0, 0.0],
        vf_explained_var=-1.0,
        exploration_rate=1.0,
        qf_loss=0.1,
    )
    findings = find_problems(every)
    assert len(findings) == 5
    assert hints(findings, "report runs/a") == [
        "looks wrong: policy a/b: the KL divergence explodes, 2 (usual: about 0.02 or less). "
        "Try: a lower learning_rate, or lin_ before it so that it falls",
        "looks wrong: policy a/b: most of each update is clipped, 0.9 (usual: 0.05 to 0.3). "
        "Try: a lower learning_rate, fewer n_epochs, or larger minibatches (batch_size)",
        "3 hints more, and what they may mean: report runs/a",
    ]
    for finding in findings:
        assert isinstance(finding, Problem)
        assert min(len(finding.meaning), len(finding.remedy), len(finding.usual)) > 3
        assert finding.metric in every
