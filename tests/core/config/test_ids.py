"""Ids of agents, policies and metrics: refused before the first step, or carried through everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import PPO, MultiAgentAlgorithm, PolicySpec, load_run, make_vec_env
from marl_sb3.core.config.values import MAX_ID_BYTES, id_fault
from marl_sb3.core.mapping import policies_that_train, policy_of_agents, resolve_policies
from marl_sb3.errors import ConfigError
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import prepare

TINY = {"n_steps": 6, "batch_size": 6, "n_epochs": 1, "checkpoint_every": 1}

# What checkpoints, metric names, file names, terminals and YAML treat in a way of their own.
STRANGE = ("1", "a/b", "a_b", "A_b", "x.a", "ä b%", "$array", "[red]", "null", "a" * MAX_ID_BYTES)


class Kind(str):
    """A string that shows itself as another one."""

    def __str__(self) -> str:
        return "A"


class StrangeAgents(ScriptedEnv):
    def __init__(self) -> None:
        super().__init__(dict.fromkeys(STRANGE, (3, "truncated")))


def env_of(*agents: Any) -> Any:
    def make() -> ScriptedEnv:
        env = ScriptedEnv()
        env.possible_agents = list(agents)
        return env

    return make


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "is of type int; accepted: strings"),
        (("team", 0), "is of type tuple; accepted: strings"),
        (Kind("kind"), "is a Kind; accepted: plain strings"),
        ("", "is empty or has unprintable characters"),
        ("a\nb", "is empty or has unprintable characters"),
        ("a\x1b[2J", "is empty or has unprintable characters"),
        ("\ud800", "is empty or has unprintable characters"),
        ("a" * 300, "has 300 bytes; accepted: at most 200"),
        ("ä" * 101, "has 202 bytes; accepted: at most 200"),
    ],
)
@pytest.mark.parametrize("vectorizer", ["sync", "supersuit"])
def test_agent_whose_id_cannot_be_saved_is_refused_before_the_first_step(
    value: Any, words: str, vectorizer: str
) -> None:
    with pytest.raises(ConfigError, match="agent id ") as caught:
        make_vec_env(env_of("a", value), vectorizer=vectorizer)
    assert words in str(caught.value)
    assert 'name the agents in the env, e.g. possible_agents = [f"agent_{i}"' in str(caught.value)
    with pytest.raises(ConfigError, match="policy id "):
        resolve_policies({"a": None, value: None}, ["a", "b"])


def test_id_that_is_a_path_within_another_is_refused() -> None:
    with pytest.raises(ConfigError, match="agent ids 'a/b' and 'a/b/c': the metrics of the second would lie within"):
        make_vec_env(env_of("a/b/c", "a/b"))


@pytest.mark.parametrize("value", [*STRANGE, np.str_("a")])
def test_any_printable_string_is_an_id(value: str) -> None:
    assert id_fault(value) is None


OF_TWO = ["1", "2"]


@pytest.mark.parametrize(
    ("resolve", "words"),
    [
        (lambda: make_vec_env(env_of("a", "b", "a")), "possible_agents has 'a' twice"),
        (lambda: make_vec_env(env_of()), "possible_agents is []; accepted: a list of agent ids"),
        *(
            (partial(policy_of_agents, OF_TWO, ["a", "b"], mapping), words)
            for mapping, words in (
                (lambda agent: 1, "sends agent 'a' to unknown policy 1 of type int; accepted: 1, 2"),
                (lambda agent: ["1"], "sends agent 'a' to unknown policy ['1'] of type list"),
                (lambda agent: None, "leaves out agent 'a'"),
                ({0: "1", "a": "1", "b": "2"}, "names agent 0 of type int; the env has a, b"),
                ({("a",): "1", 0: "1"}, "names agent ('a',) of type tuple"),
                ("1", "policy_mapping_fn is '1'; accepted: a function"),
            )
        ),
        *(
            (partial(policies_that_train, to_train, OF_TWO), words)
            for to_train, words in (
                ([1], "names unknown policy 1 of type int; accepted: 1, 2"),
                ([["1"]], "names unknown policy ['1'] of type list"),
                ("1", "policies_to_train is '1'; accepted: a list"),
                (1, "policies_to_train is 1; accepted: a list"),
            )
        ),
    ],
)
def test_agents_mappings_and_policies_to_train_that_are_no_ids_are_refused(
    resolve: Callable[[], Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve()
    assert words in str(caught.value)


def test_observations_of_an_agent_that_is_no_string_are_refused() -> None:
    algorithm = MultiAgentAlgorithm(make_vec_env(ScriptedEnv, 1), n_steps=6, batch_size=6)
    with pytest.raises(ConfigError, match="unknown agent 0; the env has a, b"):
        algorithm.predict({0: np.zeros(3), "z": np.zeros(3)})


def test_strange_ids_are_carried_through_training_resuming_loading_and_evaluating(in_tmp: Path) -> None:
    settings = {**TINY, "x.a.gamma": 0.5, "1.gamma": 0.25, "policies_to_train": [1, *STRANGE[1:]]}
    options: Mapping[str, Any] = {"policies": "per_agent", "n_envs": 2, "seed": 1, "settings": settings}
    run = marl_sb3.train(StrangeAgents, timesteps=24, run_dir="run", **options)
    assert [run.algorithm.policies[policy_id].gamma for policy_id in ("1", "x.a", "null")] == [0.25, 0.5, 0.99]
    assert len({str(path).casefold() for path in run.policy_files.values()}) == len(STRANGE)
    for policy_id, path in run.policy_files.items():
        assert PPO.load(path).num_timesteps == run.algorithm.policies[policy_id].num_timesteps
    resumed = marl_sb3.train(StrangeAgents, resume="run", timesteps=24)
    assert resumed.algorithm.num_timesteps == 48
    env = make_vec_env(StrangeAgents, 2)
    loaded = MultiAgentAlgorithm.load(run.files.checkpoints.path / str(resumed.checkpoint), env)
    assert loaded.policy_of == {agent: agent for agent in STRANGE}
    restored = load_run("run", env=StrangeAgents)
    found = marl_sb3.evaluate_policies(restored.algorithm, make_vec_env(StrangeAgents, 2), n_episodes=2)
    assert list(found["agent_episode_returns_mean"]) == list(STRANGE)


@pytest.mark.parametrize("key", ["env.gamma", "policy_kwargs.gamma", "p.policy_kwargs.gamma"])
def test_a_setting_that_may_mean_two_things_is_refused(in_tmp: Path, key: str) -> None:
    agents = dict.fromkeys(("env", "policy_kwargs", "p", "p.policy_kwargs"), (3, "truncated"))
    with pytest.raises(ConfigError, match=f"--set {key}: it may mean .* or gamma of policy '.*'; accepted: --set"):
        marl_sb3.train(lambda **env_kwargs: ScriptedEnv(agents), policies="per_agent", settings={**TINY, key: 0.9})


def test_ids_of_policies_in_python_are_strings_too() -> None:
    with pytest.raises(ConfigError, match='policy id 1 is of type int; accepted: strings, such as "policy_1"'):
        MultiAgentAlgorithm(make_vec_env(ScriptedEnv, 1), {1: PolicySpec()}, n_steps=6)


def test_stop_conditions_are_settings_and_no_policy(in_tmp: Path) -> None:
    name = "env_runners/agent_episode_returns_mean/a"
    config = load_config("arena", settings={f"stop.{name}": 2, "stop.iteration": 3})
    assert config.stop == {name: 2, "iteration": 3}
    policies = {"stop": {"agents": ["agent1"]}, "p": {"agents": ["agent2"]}}
    with pytest.raises(ConfigError, match=r"stop\.gamma: it may mean a stop condition or gamma of policy 'stop'"):
        prepare(load_config("arena", settings={"stop.gamma": 0.5}, policies=policies))
