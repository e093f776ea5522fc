"""What an agent is paid before its first action counts in its return, and is part of no transition.

In each episode of both envs, adam is paid 5 before his first action and 7 for it, dora 2 for hers and, in turns, carl 3
without ever acting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from toy_envs import ScriptedEnv
from turn_env import Move, TurnEnv, TurnPlan

from marl_sb3 import DQN, PPO, MultiAgentAlgorithm, PolicySpec, evaluate_policies, make_vec_env
from marl_sb3.errors import EnvError

pytestmark = pytest.mark.usefixtures("each_vectorizer")
RETURNS = {"dora": 2, "adam": 12}


def in_turns(last: str) -> Any:
    """Return a factory of envs in which carl ends by a dead turn, or is removed."""
    early = Move("dora", {"adam": 5, "carl": 3, "dora": 2}, {"carl": last})
    plan = TurnPlan(
        [early, Move("adam", {"adam": 7}, dict.fromkeys(("dora", "adam"), "terminated"))],
        present=["dora", "adam", "carl"],
    )
    return lambda env_index: TurnEnv([[plan]] * 2, env_index)


def at_once(env_index: int) -> ScriptedEnv:
    """Make an env in which adam waits in the first of two steps."""
    script = {"dora": (2, "truncated"), "adam": (2, "terminated")}
    return ScriptedEnv(script, {"dora": [2, 0], "adam": [5, 7]}, skips={"adam": {0}})


ON_POLICY = PolicySpec(PPO, policy_kwargs={"net_arch": [2]}, batch_size=8)
OFF = {"policy_kwargs": {"net_arch": [2]}, "learning_starts": 99, "buffer_size": 50}
OFF_POLICY, PROCESSED = PolicySpec(DQN, **OFF), PolicySpec(DQN, normalize_observations=True, **OFF)


@pytest.mark.parametrize(
    ("make_env", "others", "spec"),
    [
        (in_turns("terminated"), {"carl": 3}, ON_POLICY),
        (in_turns("removed"), {"carl": 3}, OFF_POLICY),
        (at_once, {}, PROCESSED),
    ],
    ids=["dead turn", "removed", "at once"],
)
def test_early_rewards_are_in_the_returns_but_in_no_transition(make_env: Any, others: Any, spec: PolicySpec) -> None:
    env = make_vec_env(make_env, n_envs=2, seed=0)
    algo = MultiAgentAlgorithm(env, dict.fromkeys(env.agents, spec), n_steps=8, seed=0)
    metrics = algo.train_iteration()["env_runners"]
    expected = {**RETURNS, **others}
    assert {
        agent: paid for agent, paid in metrics["agent_episode_returns_mean"].items() if paid is not None
    } == expected
    assert metrics["episode_return_mean"] == sum(expected.values())
    policy: Any = algo.policies["adam"]
    rewards = (policy.rollout_buffer if spec is ON_POLICY else policy.replay_buffer).rewards
    assert set(np.unique(rewards).tolist()) == {0, 7}
    played = evaluate_policies(algo, env, n_episodes=2)
    assert (played["agent_episode_returns_mean"]["adam"], played["episode_return_mean"]) == (12, sum(expected.values()))


def test_an_early_reward_is_checked_as_others_are() -> None:
    env = make_vec_env(lambda: ScriptedEnv(rewards={"a": [1.0], "b": [float("nan")]}, skips={"b": {0}}))
    env.reset()
    with pytest.raises(EnvError, match="agent 'b': reward is nan"):
        env.step((np.zeros((1, 2), np.int64),))
