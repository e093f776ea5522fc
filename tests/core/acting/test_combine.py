"""Policies of several trainings act together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicyBundle, combine_policies, evaluate_policies, make_vec_env
from marl_sb3.evaluation.opponents import Source

SMALL = {"n_steps": 8, "batch_size": 8, "device": "cpu", "policy_kwargs": {"net_arch": [4]}}
OBSERVATIONS = {"agent1": [[0, 99], [37, 5], [12, 80]], "agent2": [[99, 0], [5, 37], [80, 12]]}


def bundle(policies: str, seed: int, **settings: Any) -> PolicyBundle:
    return MultiAgentAlgorithm("arena", policies, seed=seed, **SMALL, **settings).bundle()


@pytest.fixture(scope="module")
def shared() -> PolicyBundle:
    return bundle("shared", 0, evaluation_deterministic=False)


@pytest.fixture(scope="module")
def apart() -> PolicyBundle:
    return bundle("per_agent", 1)


def logits(policies: PolicyBundle, agent: str, as_agent: str | None = None) -> Any:
    observations = OBSERVATIONS[agent]
    return policies.distribution({as_agent or agent: observations})[as_agent or agent].distribution.logits.tolist()


def test_each_agent_acts_by_the_policy_that_was_chosen_for_it(shared: PolicyBundle, apart: PolicyBundle) -> None:
    match = combine_policies({"agent1": shared, "agent2": (apart, "agent1")})
    assert match.policy_of == {"agent1": "agent1", "agent2": "agent2"}
    assert logits(match, "agent1") == logits(shared, "agent1")
    assert logits(match, "agent2") == logits(apart, "agent2", as_agent="agent1")
    assert match.evaluation_deterministic == {"agent1": False, "agent2": True}


def test_a_policy_of_two_agents_stays_one(shared: PolicyBundle) -> None:
    same = combine_policies({"agent1": shared, "agent2": (shared, "shared")})
    assert same.policy_of == {"agent1": "agent1", "agent2": "agent1"}
    arguments = {"env": make_vec_env("arena", n_envs=2, max_timesteps=20), "n_episodes": 2, "seed": 3}
    metrics, expected = (evaluate_policies(each, **arguments) for each in (same, shared))
    for name in ("episode_return_mean", "agent_episode_returns_mean", "agent_steps"):
        assert metrics[name] == expected[name]


def test_a_policy_that_observes_which_agent_it_is_takes_no_other_agents(apart: PolicyBundle) -> None:
    told_apart = bundle("shared", 0, agent_indicator=True)
    combine_policies({"agent1": told_apart, "agent2": told_apart})
    with pytest.raises(ConfigError, match=r"agent_indicator.*acts for agent2; accepted: agent1, agent2, in this order"):
        combine_policies({"agent1": apart, "agent2": told_apart})


Sources = Callable[[PolicyBundle], Mapping[str, Source]]


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (lambda apart: {}, "there are no agents"),
        (
            lambda apart: {"agent1": "runs/arena"},
            "agent 'agent1' has 'runs/arena'; accepted: policies from load_policies",
        ),
        (lambda apart: {"agent3": apart}, "no agent 'agent3'; accepted: a pair of them and one of 'agent1', 'agent2'"),
        (
            lambda apart: {"agent1": (apart, "x")},
            "no policy 'x'; accepted: a pair of them and one of 'agent1', 'agent2'",
        ),
    ],
)
def test_wrong_sources_are_refused_in_words(sources: Sources, expected: str, apart: PolicyBundle) -> None:
    with pytest.raises(ConfigError, match=expected):
        combine_policies(sources(apart))
