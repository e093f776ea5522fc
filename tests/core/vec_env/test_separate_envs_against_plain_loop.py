"""Whatever agents do, a vec env gives what a plain loop over its envs gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import NoisyEnv
from turn_plans import env_plans

from marl_sb3 import make_vec_env
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep

pytestmark = pytest.mark.usefixtures("each_vectorizer")
NUM_STEPS = 50


@dataclass
class OneEnvStep:
    """A step of one env, by agent; agents that act next are shown, agents in play are paid, those there have flags."""

    acted: set[str]
    in_play: set[str]
    shown: dict[str, list[float]]
    rewards: dict[str, np.float32]
    terminated: dict[str, bool]
    truncated: dict[str, bool]
    final: dict[str, list[float]]
    infos: dict[str, Any]
    reset_infos: dict[str, Any] | None


def plain_loop(env: NoisyEnv, env_index: int, run_seed: int, actions) -> Iterator[OneEnvStep]:
    """Play one env, without anything of this package."""
    seeds = (
        int(np.random.SeedSequence(run_seed, spawn_key=(env_index, episode)).generate_state(1)[0] >> 1)
        for episode in range(NUM_STEPS + 1)
    )
    env.reset(seed=next(seeds))
    in_play: set[str] = set()
    over: set[str] = set()  # have ended and not come back
    for chosen in actions:
        acted = set(env.agents)
        in_play |= acted
        by_agent = {agent: chosen[env.possible_agents.index(agent)] for agent in acted}
        shown, rewards, terminated, truncated, infos = env.step(by_agent)
        paid = {agent: np.float32(reward) for agent, reward in rewards.items() if agent not in over}
        playing = set(in_play)
        ended = {agent for agent in shown if terminated.get(agent) or truncated.get(agent)}
        final = {agent: shown[agent].tolist() for agent in ended}
        in_play -= ended
        over = (over | ended) - set(env.agents)
        reset_infos = None
        if not env.agents:
            shown, reset_infos = env.reset(seed=next(seeds))
            over = set()
        live = {agent: shown[agent].tolist() for agent in env.agents}
        yield OneEnvStep(acted, playing, live, paid, terminated, truncated, final, infos, reset_infos)


def step_of_env(vec: MultiAgentVecEnv, taken: VecStep, env_index: int, there: OneEnvStep) -> OneEnvStep:
    """Read one env's part of a step; check on the way that there is nothing but zeros where it says nothing."""
    acted = {agent for agent, flag in zip(vec.agents, taken.acted[env_index], strict=True) if flag}
    live = {agent for agent, flag in zip(vec.agents, taken.to_act[env_index], strict=True) if flag}
    in_play = {agent for agent, flag in zip(vec.agents, taken.in_play[env_index], strict=True) if flag}
    assert np.array_equal(taken.to_act, vec.latest.to_act)
    assert taken.stepped[env_index]

    def by_agent(values: Any, present: set[str]) -> dict[str, Any]:
        assert not any(np.any(value) for agent, value in zip(vec.agents, values, strict=True) if agent not in present)
        return {agent: value for agent, value in zip(vec.agents, values, strict=True) if agent in present}

    reset_infos = taken.reset_infos.get(env_index)
    assert taken.episode_done[env_index] == (reset_infos is not None)
    final = {vec.agents[place[1]]: seen for place, seen in taken.final_observations.items() if place[0] == env_index}
    return OneEnvStep(
        acted,
        in_play,
        by_agent(taken.observations[0][env_index].tolist(), live),
        by_agent(taken.rewards[env_index], set(there.rewards)),
        by_agent(taken.terminated[env_index], set(there.terminated)),
        by_agent(taken.truncated[env_index], set(there.truncated)),
        {agent: seen.tolist() for agent, seen in final.items()},
        taken.infos[env_index],
        reset_infos,
    )


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(plans=env_plans(), seed=st.integers(0, 2**32 - 1))
def test_any_script_gives_what_a_plain_loop_over_the_envs_gives(plans, seed):
    vec = make_vec_env(NoisyEnv, n_envs=len(plans), seed=seed, plans=plans)
    actions = np.random.default_rng(seed).integers(0, 3, (NUM_STEPS, vec.num_envs, len(vec.agents)))
    loops = [plain_loop(NoisyEnv(plans, env), env, seed, actions[:, env]) for env in range(vec.num_envs)]
    vec.reset()
    for chosen in actions:
        taken = vec.step((chosen,))
        for env_index, loop in enumerate(loops):
            expected = next(loop)
            assert step_of_env(vec, taken, env_index, expected) == expected
