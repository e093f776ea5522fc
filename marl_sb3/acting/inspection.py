"""Values, distributions and Q values of one agent's policy, for a single observation or a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.distributions import Distribution

from marl_sb3.acting.agent_policy import AgentPolicy
from marl_sb3.sb3 import inference as look
from marl_sb3.sb3.inference import States
from marl_sb3.types import FloatArray


def value(agent: AgentPolicy, observation: Any, state: Any, episode_start: Any, reward: Any) -> Any:
    """See `PolicyByAgent.value`."""
    if state is not None and look.critic_states(agent.algorithm, 1):
        raise agent.error(
            f"{agent.its_policy} has a critic with an LSTM of its own, whose state is not in what predict_with_state "
            "returns; accepted: value_with_state, or no state"
        )
    return value_with_state(agent, observation, state, None, episode_start, reward)[0]


def value_with_state(
    agent: AgentPolicy, observation: Any, state: Any, critic_state: Any, episode_start: Any, reward: Any
) -> tuple[Any, States]:
    """See `PolicyByAgent.value_with_state`."""
    if not look.has_values(agent.algorithm):
        raise agent.error(f"{agent.its_policy} has no values of observations; accepted: q_values")
    its = agent.prepared(observation, state, episode_start, reward=reward)
    fresh = look.critic_states(agent.algorithm, len(its.starts))
    states = agent.arrays(critic_state, fresh, "critic_state", "value_with_state") or its.states
    with agent.misfit_refused():
        values, after = look.values(agent.algorithm, its.observation, states, its.starts)
    return _of_shape(values, its.shape), after


def distribution(
    agent: AgentPolicy, observation: Any, state: Any, episode_start: Any, action_mask: Any, reward: Any
) -> Distribution:
    """See `PolicyByAgent.distribution`."""
    if not look.has_distribution(agent.algorithm):
        raise agent.error(f"{agent.its_policy} chooses actions without a distribution; accepted: q_values")
    its = agent.prepared(observation, state, episode_start, action_mask, reward)
    with agent.misfit_refused():
        return look.distribution(agent.algorithm, its.observation, its.states, its.starts, its.masks)


def log_prob(
    agent: AgentPolicy, observation: Any, action: Any, state: Any, episode_start: Any, action_mask: Any, reward: Any
) -> Any:
    """See `PolicyByAgent.log_prob`."""
    of_actions = distribution(agent, observation, state, episode_start, action_mask, reward)
    shape = agent.batch_shape(observation)
    taken = agent.actions_of_policy(action, shape)
    return _of_shape(look.log_prob(agent.algorithm, of_actions, taken), shape)


def q_values(
    agent: AgentPolicy, observation: Any, action: Any, state: Any, episode_start: Any, reward: Any
) -> FloatArray:
    """See `PolicyByAgent.q_values`."""
    if not look.has_q_values(agent.algorithm):
        raise agent.error(f"{agent.its_policy} has no Q values; accepted: value")
    if action is not None and look.has_q_value_of_each_action(agent.algorithm):
        raise agent.error(f"{agent.its_policy} has a Q value of each action; leave the agent out of actions")
    its = agent.prepared(observation, state, episode_start, reward=reward)
    taken = None if action is None else agent.actions_of_policy(action, its.shape)
    with agent.misfit_refused():
        found = look.q_values(agent.algorithm, its.observation, taken)
    return found if its.shape else found[0]


def _of_shape(values: FloatArray, shape: tuple[int, ...]) -> Any:
    """(n,) for a batch; a number for a single observation."""
    return values if shape else np.float32(values[0])
