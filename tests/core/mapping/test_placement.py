"""Which policy acts for which agent, and that each sees, does and learns what is its agents' alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import ScriptedEnv, TwoKinds

from marl_sb3 import ConfigError, MultiAgentAlgorithm, MultiAgentCallback, MultiAgentVecEnv, PolicySpec, make_vec_env
from marl_sb3.core.mapping import policy_of_agents, resolve_policies, rows_of_policy

TINY = {"batch_size": 2, "n_epochs": 1, "policy_kwargs": {"net_arch": [2]}}

# From agents to policies


@pytest.mark.parametrize(
    ("policies", "expected"),
    [("shared", ["shared"]), ("per_agent", ["a", "b"]), ({"q": 1, "p": 2}, ["q", "p"])],
)
def test_policies_are_named_by_a_word_or_a_mapping(policies: Any, expected: list[str]) -> None:
    assert resolve_policies(policies, ["a", "b"]) == expected


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ("each", "policies is 'each'; accepted: shared, per_agent or a mapping"),
        (["p", "q"], r"policies is \['p', 'q'\]; accepted: shared, per_agent or a mapping"),
        (None, "policies is None; accepted"),
        ({}, "policies is empty; at least one"),
    ],
)
def test_other_policies_are_refused(policies: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_policies(policies, ["a", "b"])
    assert caught.value.key == "policies"


@pytest.mark.parametrize(
    ("policy_ids", "mapping", "expected"),
    [
        (["only"], None, {"a": "only", "b": "only"}),
        (["b", "a"], None, {"a": "a", "b": "b"}),
        (["p", "q"], {"b": "p", "a": "q"}, {"a": "q", "b": "p"}),
        (["p", "q"], lambda agent: "p" if agent == "a" else "q", {"a": "p", "b": "q"}),
    ],
)
def test_mapping_is_a_function_a_dictionary_or_evident(policy_ids: Any, mapping: Any, expected: Any) -> None:
    assert policy_of_agents(policy_ids, ["a", "b"], mapping) == expected


@pytest.mark.parametrize(
    ("policy_ids", "mapping", "message"),
    [
        (["p"], {"a": "p"}, "leaves out agent 'b'"),
        (["p"], {"a": "p", "b": "p", "x": "p"}, "names agent 'x'; the env has a, b"),
        (["p"], {"a": "p", "b": "r"}, "sends agent 'b' to unknown policy 'r'; accepted: p"),
        (["p", "q"], {"a": "p", "b": "p"}, "policy 'q' acts for no agent; agents: a, b"),
        (["p", "q"], None, "policies p, q and agents a, b: a policy_mapping_fn is needed"),
        (["a", "b", "c"], None, "a policy_mapping_fn is needed"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(policy_ids: Any, mapping: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        policy_of_agents(policy_ids, ["a", "b"], mapping)
    assert caught.value.key == "policies"


# From policies to rows


class Marked(ScriptedEnv):
    """Agent k of env e sees [10 * e + k, episode, step] and ends after k steps (but three at most), k from 1."""

    def __init__(self, num_agents: int, env_index: int = 0) -> None:
        script = {f"agent{k}": (min(k, 3), "terminated") for k in range(1, num_agents + 1)}
        super().__init__(script, env_index=env_index)

    def observation(self, agent: str) -> np.ndarray:
        return super().observation(agent) + np.array([10 * self.env_index, 0, 0], dtype=np.float32)


@st.composite
def mappings(draw: Any) -> dict[str, str]:
    """Up to five agents, each with one of up to five policies."""
    num_agents = draw(st.integers(1, 5))
    return {f"agent{k}": f"p{draw(st.integers(1, num_agents))}" for k in range(1, num_agents + 1)}


anyhow = settings(max_examples=12, deadline=None, derandomize=True, database=None)


@anyhow
@given(mapping=mappings(), n_envs=st.integers(1, 3))
def test_rows_run_over_envs_then_over_the_agents_of_the_policy(mapping: dict[str, str], n_envs: int) -> None:
    env = make_vec_env(Marked, n_envs=n_envs, num_agents=len(mapping))
    per_agent = 10 * np.arange(n_envs)[:, None] + np.arange(1, len(mapping) + 1)
    actions = [np.zeros((n_envs, len(mapping)), dtype=np.int64)]
    for policy_id in set(mapping.values()):
        mine = [agent for agent in env.agents if mapping[agent] == policy_id]
        rows = rows_of_policy(env, policy_id, mapping)
        expected = [10 * e + int(agent.removeprefix("agent")) for e in range(n_envs) for agent in mine]
        assert rows.num_rows == len(expected)
        assert rows.of_agents(per_agent).tolist() == expected
        assert rows.observations([np.repeat(per_agent[..., None], 3, axis=2)]).tolist() == [[n] * 3 for n in expected]
        rows.put_actions(np.array(expected), actions)
        assert [agent for agent, is_mine in zip(env.agents, rows.mine, strict=True) if is_mine] == mine
    np.testing.assert_array_equal(actions[0], per_agent)


class Keep(MultiAgentCallback):
    """The buffers as the first rollout filled them."""

    def _on_rollout_end(self) -> None:
        self.kept = {
            policy_id: {
                name: getattr(algorithm.rollout_buffer, name).copy() for name in ("acted", "actions", "episode_starts")
            }
            | {"observations": algorithm.rollout_buffer.observations.copy()}
            for policy_id, algorithm in self.algorithm.policies.items()
        }


@anyhow
@given(mapping=mappings())
def test_each_policy_gets_the_steps_of_its_agents_and_they_its_actions(mapping: dict[str, str]) -> None:
    n_envs, n_steps, episode_steps = 2, 5, min(len(mapping), 3)
    env = make_vec_env(Marked, n_envs=n_envs, num_agents=len(mapping))
    specs = {policy_id: PolicySpec(**TINY) for policy_id in sorted(set(mapping.values()))}
    keep = Keep()
    algorithm = MultiAgentAlgorithm(env, specs, mapping, n_steps=n_steps, seed=0, device="cpu")
    algorithm.learn(n_steps * n_envs, callback=keep)
    received = env.call("received", range(n_envs))
    for policy_id, kept in keep.kept.items():
        mine = [agent for agent in env.agents if mapping[agent] == policy_id]
        for step in range(n_steps):
            episode, in_episode = divmod(step, episode_steps)
            for row in range(n_envs * len(mine)):
                e, agent = row // len(mine), mine[row % len(mine)]
                number = int(agent.removeprefix("agent"))
                acts = in_episode < min(number, 3)
                assert kept["acted"][step, row] == acts
                assert (agent in received[e][step]) == acts
                if acts:
                    assert kept["observations"][step, row].tolist() == [10 * e + number, episode + 1, in_episode]
                    assert kept["episode_starts"][step, row] == (in_episode == 0)
                    assert kept["actions"][step, row] == received[e][step][agent]


# Agents with different spaces


def two_groups() -> MultiAgentVecEnv:
    script = {"a": (4, "truncated"), "b": (2, "terminated"), "c": (4, "truncated")}
    return make_vec_env(TwoKinds, n_envs=2, script=script)


def test_agents_of_one_policy_with_different_spaces_are_refused() -> None:
    message = (
        r"the agents of policy 'shared' have different spaces: a, c: Box.*, Discrete\(3\); b: Box.*\(2,\).*Box.*"
        "accepted: .*per_agent"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        MultiAgentAlgorithm(two_groups(), "shared", n_steps=8)
    assert caught.value.key == "policies"


def test_different_spaces_have_no_sb3_vec_env() -> None:
    with pytest.raises(ConfigError, match="needs the same spaces for all agents"):
        two_groups().as_sb3_vec_env()


GROUPINGS = {
    "per group": ({"pair": PolicySpec(**TINY), "b": PolicySpec(**TINY)}, {"a": "pair", "b": "b", "c": "pair"}),
    "per agent": ({agent: PolicySpec(**TINY) for agent in "abc"}, None),
}


@pytest.mark.parametrize("name", GROUPINGS)
def test_policies_of_different_groups_learn_side_by_side(name: str) -> None:
    policies, mapping = GROUPINGS[name]
    env, keep = two_groups(), Keep()
    algorithm = MultiAgentAlgorithm(env, policies, mapping, n_steps=6, seed=0, device="cpu")
    before = {policy_id: policy.policy.action_net.bias.clone() for policy_id, policy in algorithm.policies.items()}
    algorithm.learn(6 * env.num_envs, callback=keep)
    for policy_id, policy in algorithm.policies.items():
        assert not th.equal(policy.policy.action_net.bias, before[policy_id])
    episodes, taken = [1, 1, 1, 1, 2, 2], [0, 1, 2, 3, 0, 1]
    assert keep.kept["b"]["acted"].T.tolist() == [[True, True, False, False, True, True]] * 2
    seen = keep.kept["b"]["observations"][keep.kept["b"]["acted"]]
    assert seen.tolist() == [[2, s] for s in (0, 1, 0, 1) for _ in range(2)]
    rows = keep.kept["pair" if mapping else "c"]["observations"]
    assert rows[:, -1].tolist() == [[3, *at] for at in zip(episodes, taken, strict=True)]
    for index, received in enumerate(env.call("received", range(2))):
        assert [len(actions) for actions in received] == [3, 3, 2, 2, 3, 3]
        for step, actions in enumerate(received):
            if "b" in actions:
                np.testing.assert_array_equal(actions["b"], np.clip(keep.kept["b"]["actions"][step, index], -1, 1))
            if mapping:
                of_pair = keep.kept["pair"]["actions"][step, 2 * index : 2 * index + 2, 0]
                assert [actions["a"], actions["c"]] == of_pair.tolist()
