"""The rewards of goals, for hindsight experience replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_sb3.envs.single_agent import SingleAgentEnv
from marl_sb3.types import AgentID, Array, GoalRewards
from marl_sb3.vec_env.interface import MultiAgentVecEnv


def goal_rewards_of(env: MultiAgentVecEnv) -> GoalRewards:
    """Return a function that asks the first env for the rewards of goals.

    It calls the env's `compute_reward(agent, achieved_goals, desired_goals, infos)`; a Gymnasium env's method takes no
    agent. Goals are (n, ...) arrays, infos a list of n dictionaries; the env returns n rewards.
    """

    def rewards(agent: AgentID, achieved: Array, desired: Array, infos: Sequence[dict[str, Any]]) -> Any:
        whose = () if env.call("has_wrapper", [0], SingleAgentEnv)[0] else (agent,)
        return env.call("compute_reward", [0], *whose, achieved, desired, infos)[0]

    return rewards
