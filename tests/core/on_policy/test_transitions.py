"""What reaches a rollout buffer, against transitions that a plain loop keeps: whatever turns the agents take."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trainings import with_known_values
from toy_envs import NoisyEnv
from turn_env import TurnEnv, turn_env_plans
from turn_plans import env_plans

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, make_vec_env
from marl_sb3.core.learners.finite import check_update
from marl_sb3.errors import NumericError

GAMMA, LAMBDA, WEIGHT = 0.7, 0.6, 3.0


def value_of(observation: Any) -> float:
    """The value function: 3 times the noise that the agent sees."""
    return WEIGHT * float(observation[1])


@dataclass
class Transition:
    """One action and all that came of it; `next_value` is None until its agent's next turn or its end."""

    observation: list[float]
    reward: float = 0.0
    next_value: float | None = None
    ended: bool = False


class PlainTrace(MultiAgentCallback):
    """Keeps the transitions of each (env, agent) in lists, and at the end of each rollout what is in the buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[Any, Transition] = {}
        self.done: dict[Any, list[Transition]] = defaultdict(list)
        self.compared = 0

    def _on_training_start(self) -> None:
        self.seen: Any = None

    def _on_rollout_start(self) -> None:
        if self.seen is None:
            self.seen = self.algorithm.env.latest.observations

    def _on_step(self) -> bool:
        step, agents = self.locals["step"], self.algorithm.env.agents
        for env_index in range(self.algorithm.env.num_envs):
            for column, agent in enumerate(agents):
                place = (env_index, column)
                if step.acted[place]:
                    self._act((env_index, agent), self.seen[0][place].tolist())
                self._pay((env_index, agent), place, step)
        self.seen = step.observations
        return True

    def _act(self, who: Any, observation: list[float]) -> None:
        if who in self.open:
            self.open[who].next_value = value_of(observation)
            self.done[who].append(self.open[who])
        self.open[who] = Transition(observation)

    def _pay(self, who: Any, place: Any, step: Any) -> None:
        ended = step.terminated[place] or step.truncated[place]
        if who not in self.open:  # paid before its first action
            return
        transition = self.open[who]
        transition.reward += float(step.rewards[place])
        if ended:
            transition.ended = True
            transition.next_value = 0.0 if step.terminated[place] else value_of(step.final_observations[place])
            self.done[who].append(self.open.pop(who))

    def _on_rollout_end(self) -> None:
        env = self.algorithm.env
        for policy_id, policy in self.algorithm.policies.items():
            mine = [agent for agent in env.agents if self.algorithm.policy_of[agent] == policy_id]
            buffer: Any = policy.rollout_buffer
            for row in range(buffer.n_envs):
                env_index, agent = row // len(mine), mine[row % len(mine)]
                self._compare(buffer, row, (env_index, agent), env.agents.index(agent))

    def _compare(self, buffer: Any, row: int, who: Any, column: int) -> None:
        expected, after = self.done.pop(who, []), None
        if who in self.open:  # it goes on: with a turn right now, or after the next rollout has begun
            after = self.open[who]
            if self.algorithm.env.latest.to_act[who[0], column]:
                after.next_value = value_of(self.seen[0][who[0], column])
                expected.append(self.open.pop(who))
        where = np.flatnonzero(buffer.acted[:, row])
        assert buffer.observations[where, row].tolist() == [transition.observation for transition in expected]
        advantage = 0.0
        for place, transition in reversed(list(zip(where, expected, strict=True))):
            value = value_of(transition.observation)
            delta = transition.reward + GAMMA * transition.next_value - value
            advantage = delta + (0.0 if transition.ended else GAMMA * LAMBDA * advantage)
            assert buffer.advantages[place, row] == pytest.approx(advantage, abs=1e-4)
            assert buffer.returns[place, row] == pytest.approx(advantage + value, abs=1e-4)
        self.compared += len(expected)


@pytest.mark.parametrize("policies", ["shared", "per_agent"])
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(plans=env_plans(max_agents=3), n_steps=st.integers(2, 7), rollouts=st.integers(1, 4))
def test_every_transition_reaches_the_buffer_once_with_all_that_it_was_paid(
    policies: str, plans: Any, n_steps: int, rollouts: int
) -> None:
    _train_and_compare(NoisyEnv, policies, plans, n_steps, rollouts)


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(plans=turn_env_plans(), n_steps=st.integers(2, 7), rollouts=st.integers(1, 4))
def test_every_transition_of_a_turn_based_env_reaches_the_buffer_once(plans: Any, n_steps: int, rollouts: int) -> None:
    _train_and_compare(TurnEnv, "per_agent", plans, n_steps, rollouts)


def _train_and_compare(made: Any, policies: str, plans: Any, n_steps: int, rollouts: int) -> None:
    env = make_vec_env(made, n_envs=len(plans), seed=0, plans=plans)
    algorithm = with_known_values(env, policies, n_steps, [0.0, WEIGHT, 0.0], GAMMA, LAMBDA)
    trace = PlainTrace()
    algorithm.learn(n_steps * rollouts * env.num_envs, callback=trace)
    assert trace.compared > 0


def test_weights_that_are_not_finite_are_refused_by_their_name() -> None:
    algorithm = MultiAgentAlgorithm("arena", n_steps=8, batch_size=8, device="cpu", seed=0)
    algorithm.train_iteration()
    learner = algorithm.parts.learners["shared"]
    check_update(learner.rows, learner.algorithm, {}, None)
    with th.no_grad():
        learner.algorithm.policy.action_net.bias[0] = np.nan
    with pytest.raises(NumericError, match=r"policy 'shared': the weights action_net.bias are not finite after"):
        check_update(learner.rows, learner.algorithm, {}, None)
