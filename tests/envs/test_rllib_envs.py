"""RLlib's `MultiAgentEnv`s: by a copy of the interface, and by RLlib's own classes where Ray is installed."""

from __future__ import annotations

import importlib
import random
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from other_kinds import Echo, MultiAgentEnv

import marl_sb3
from marl_sb3 import make_vec_env
from marl_sb3.core.envs.registry import make_env
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.envs.rllib import RLlibEnv
from marl_sb3.errors import ConfigError, EnvError, EnvRaisedError

# observations, rewards, terminateds, truncateds of one step
Returned = tuple[dict[Any, int], dict[Any, float], dict[Any, bool], dict[Any, bool]]


class Scripted(MultiAgentEnv):
    """Two agents, 0 and 1; shows and pays what a script says, and notes the actions."""

    script: ClassVar[list[Returned]] = []

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.config = config
        self.possible_agents = [0, 1]
        self.observation_space = spaces.Discrete(100)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.steps, self.taken = iter(self.script), []
        return {0: 1}, {}

    def step(self, action_dict: Any) -> Any:
        self.taken.append({agent: int(action) for agent, action in action_dict.items()})
        return *next(self.steps), {"__common__": {"any": 1}}


def scripted(*script: Returned) -> type[Scripted]:
    return type("Scripted", (Scripted,), {"script": list(script)})


def transitions(factory: Any, choose: Any = lambda agent, seen: 1, episodes: int = 1) -> dict[str, list[Any]]:
    """By agent, its (observation, action, reward, terminated, truncated, final observation) out of a vec env."""
    vec = make_vec_env(factory, seed=7, vectorizer="sync")
    (group,) = vec.groups
    done: dict[str, list[Any]] = defaultdict(list)
    waiting: dict[str, list[Any]] = {}
    step = vec.reset()
    while episodes:
        actions = np.zeros((1, len(vec.agents)), np.int64)
        for column, agent in enumerate(group.agents):
            if step.to_act[0, column]:
                seen = np.array(step.observations[0][0, column])
                if agent in waiting:
                    done[agent].append((*waiting.pop(agent), False, False, None))
                actions[0, column] = choose(agent, seen)
                waiting[agent] = [seen.tolist(), int(actions[0, column]), 0.0]
        step = vec.step([actions])
        for column, agent in enumerate(group.agents):
            ends = bool(step.terminated[0, column]), bool(step.truncated[0, column])
            if agent in waiting:
                waiting[agent][2] += float(step.rewards[0, column])
                if any(ends):
                    final = step.final_observations.get((0, column))
                    done[agent].append(
                        (*waiting.pop(agent), *ends, None if final is None else np.array(final).tolist())
                    )
        episodes -= bool(step.episode_done[0])
        assert not step.episode_done[0] or waiting == {}
    vec.close()
    return dict(done)


NO = {"__all__": False}
END = {"__all__": True}


def test_agents_without_an_observation_wait_and_are_paid() -> None:
    env = scripted(({1: 2}, {0: 1.0}, NO, NO), ({0: 3}, {1: 5.0, 0: -2.0}, NO, NO), ({0: 4, 1: 6}, {0: 7.0}, END, {}))
    assert transitions(env) == {
        "0": [(1, 1, -1.0, False, False, None), (3, 1, 7.0, True, False, 4)],
        "1": [(2, 1, 5.0, True, False, 6)],
    }


def test_an_agent_ends_by_its_own_flag_and_not_by_that_of_the_episode() -> None:
    """Agent 0 is truncated alone; the end of the episode, a termination, is that of agent 1."""
    env = scripted(({0: 2, 1: 3}, {0: 1.0}, NO, {0: True}), ({1: 4}, {1: 2.0}, END, NO))
    assert transitions(env) == {"0": [(1, 1, 1.0, False, True, 2)], "1": [(3, 1, 2.0, True, False, 4)]}
    both_at_once = scripted(({0: 2, 1: 3}, {0: 1.0}, NO, NO), ({0: 8, 1: 9}, {0: 1.0, 1: 1.0}, END, {0: True}))
    assert transitions(both_at_once) == {
        "0": [(1, 1, 1.0, False, False, None), (2, 1, 1.0, False, True, 8)],
        "1": [(3, 1, 1.0, True, False, 9)],
    }


def test_a_terminated_agent_needs_no_last_observation_and_a_truncated_one_does() -> None:
    assert transitions(scripted(({1: 5}, {}, {0: True}, NO), ({}, {1: 3.0}, END, NO))) == {
        "0": [(1, 1, 0.0, True, False, 1)],
        "1": [(5, 1, 3.0, True, False, 5)],
    }
    with pytest.raises(EnvError, match="agent '0': observation is missing"):
        transitions(scripted(({1: 5}, {}, NO, NO), ({1: 6}, {1: 0.0}, NO, END)))


def test_an_agent_that_has_ended_may_not_come_back() -> None:
    env = scripted(({0: 2, 1: 3}, {0: 1.0}, {0: True}, NO), ({0: 2, 1: 3}, {1: 1.0}, NO, NO))
    with pytest.raises(EnvRaisedError, match="agent '0' has ended, but is shown another observation"):
        transitions(env)
    repeated = scripted(({0: 2, 1: 3}, {0: 1.0}, {0: True}, NO), ({1: 4}, {1: 1.0}, {0: True, **END}, NO))
    assert transitions(repeated)["0"] == [(1, 1, 1.0, True, False, 2)]


def test_what_is_no_dictionary_is_named() -> None:
    with pytest.raises(EnvRaisedError, match="rewards are float; accepted: a dictionary by agent"):
        transitions(scripted(({0: 1}, 1.0, NO, NO)))  # type: ignore[arg-type]


def test_settings_come_in_one_dictionary_as_from_rllib() -> None:
    env = make_env(Scripted, 3, {"length": 7})
    assert isinstance(env, RLlibEnv)
    config = env.env.config
    assert (config, config.worker_index, config.vector_index) == ({"length": 7}, 0, 3)
    assert make_env(Scripted, 0, {"env_config": {"length": 7}}).env.config == {"length": 7}
    assert make_env(Scripted, 0, {}).env.config == {}
    assert make_env(lambda config: Scripted({**config}), 0, {"length": 7}).env.config == {"length": 7}
    assert make_env(lambda _: Scripted({}), 0, {}).possible_agents == ["0", "1"]


class Plain(gymnasium.Env):
    """A Gymnasium env with names of RLlib's interface."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self.config = config
        self.agents = ["a car", "another car"]

    def get_observation_space(self) -> Any:
        return self.observation_space


def test_gymnasium_envs_are_not_mistaken_for_it() -> None:
    env = make_env(Plain, 0, {})
    assert env.possible_agents == ["agent"]
    assert env.env.config is None


def spaces_of(**attributes: Any) -> Any:
    made = type("Ours", (MultiAgentEnv,), {"reset": Scripted.reset, **attributes})()
    env = make_env(lambda: made, 0, {})
    return [(agent, env.observation_space(agent), env.action_space(agent)) for agent in env.possible_agents]


def test_agents_and_spaces_are_found_where_rllib_looks_for_them() -> None:
    two, three = spaces.Discrete(2), spaces.Discrete(3)
    both = [("a", two, three), ("b", three, two)]
    by_agent = {"a": two, "b": three}, {"a": three, "b": two}
    assert spaces_of(possible_agents=["a", "b"], observation_spaces=by_agent[0], action_spaces=by_agent[1]) == both
    assert spaces_of(observation_spaces=by_agent[0], action_spaces=by_agent[1]) == both
    asked = {"get_observation_space": lambda self, agent: by_agent[0][agent]}
    assert spaces_of(possible_agents=["a", "b"], action_spaces=by_agent[1], **asked) == both
    of_dicts = {"observation_space": spaces.Dict(by_agent[0]), "action_space": spaces.Dict(by_agent[1])}
    assert spaces_of(agents=["a", "b"], **of_dicts) == both
    assert spaces_of(**of_dicts) == both
    shared = {"observation_space": two, "action_space": three}
    assert spaces_of(_agent_ids={10, 9}, **shared) == [("9", two, three), ("10", two, three)]
    with pytest.raises(ConfigError, match="Ours names no agents; accepted: possible_agents"):
        spaces_of(**shared)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Dict({0: spaces.Discrete(3)})], ids=["shared", "dict"])
def test_an_env_without_rays_class_may_have_the_space_of_all_agents(space: spaces.Space[Any]) -> None:
    """As the envs of tutorials, whose `MultiAgentEnv` is `object` where Ray is not installed."""
    env = type("Ours", (), {"reset": Scripted.reset, "step": Scripted.step, "script": [({0: 2}, {0: 1.0}, END, NO)]})
    env.possible_agents, env.observation_space, env.action_space = [0], space, space  # type: ignore[attr-defined]
    assert transitions(env) == {"0": [(1, 1, 1.0, True, False, 2)]}


def test_an_env_may_have_the_interface_without_its_class() -> None:
    """As in older versions of RLlib, whose class has no methods for single spaces."""
    old = type("Old", (), {"reset": Scripted.reset, "step": Scripted.step, "script": [({0: 2}, {0: 1.0}, END, NO)]})
    old.possible_agents = [0]  # type: ignore[attr-defined]
    old.observation_spaces = old.action_spaces = {0: spaces.Discrete(3)}  # type: ignore[attr-defined]
    assert transitions(old) == {"0": [(1, 1, 1.0, True, False, 2)]}


def test_it_is_trained_evaluated_and_resumed(in_tmp: Path) -> None:
    settings = {"n_steps": 64, "batch_size": 32, "learning_rate": 0.01, "env_config": {"length": 6}}
    run = marl_sb3.train(Echo, timesteps=1024, n_envs=2, seed=1, settings=settings, policies="per_agent")
    assert run.result["env_runners"]["episode_len_mean"] == 6
    assert run.evaluate(20)["episode_return_mean"] > 4  # of 6; 2 by chance
    again = marl_sb3.train(env=Echo, resume=run.folder, timesteps=256)
    assert again.algorithm.num_timesteps == 1280


# --- RLlib's own classes, where Ray is installed ----------------------------------------------------------------------

EXAMPLES = "ray.rllib.examples.envs.classes.multi_agent"


def of_rllib(name: str, module: str = "") -> Any:
    pytest.importorskip("ray.rllib.env.multi_agent_env")
    return getattr(importlib.import_module(f"{EXAMPLES}{module}"), name)


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "module", "settings", "choices"),
    [
        ("TicTacToe", ".tic_tac_toe", {}, 9),
        ("RockPaperScissors", ".rock_paper_scissors", {"sheldon_cooper_mode": True}, 5),
        ("DoubleRowCorridorEnv", ".double_row_corridor_env", {"length": 3}, 4),
        ("TwoStepGame", "", {}, 2),
        ("MultiAgentCartPole", "", {"num_agents": 3}, 2),
    ],
)
def test_transitions_are_those_that_rllib_records(
    name: str, module: str, settings: dict[str, Any], choices: int
) -> None:
    """The same env, seed and actions: what RLlib's `MultiAgentEpisode` keeps of each agent is what is trained on."""
    cls = of_rllib(name, module)
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    def chooser() -> Any:
        rng = np.random.default_rng(3)
        return lambda agent, seen: int(rng.integers(choices))

    episodes: list[Any] = []
    random.seed(5)
    choose, env = chooser(), cls(dict(settings))
    for number in range(20):
        episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: "any")
        observations, infos = env.reset(seed=episode_seed(7, 0, number))
        episode.add_env_reset(observations=observations, infos=infos)
        while not episode.is_done:
            to_act = [agent for agent in sorted(observations) if agent not in done_in(episode)]
            actions = {agent: choose(agent, None) for agent in to_act}
            observations, rewards, terminateds, truncateds, infos = env.step(actions)
            episode.add_env_step(observations, actions, rewards, infos, terminateds=terminateds, truncateds=truncateds)
        episodes.append(episode)
    random.seed(5)
    ours = transitions(lambda: cls(dict(settings)), chooser(), len(episodes))
    theirs: dict[str, list[Any]] = defaultdict(list)
    for episode in episodes:
        for agent, single in episode.agent_episodes.items():
            for at in range(len(single)):
                last = at == len(single) - 1
                final = np.array(single.observations[at + 1]).tolist() if last else None
                ends = (single.is_terminated and last, single.is_truncated and last)
                seen = np.array(single.observations[at]).tolist()
                reward = float(np.float32(single.rewards[at]))  # as it is kept here
                theirs[str(agent)].append((seen, single.actions[at], reward, *ends, final))
    assert ours == theirs


def done_in(episode: Any) -> set[Any]:
    return {agent for agent, single in episode.agent_episodes.items() if single.is_done}


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore")
def test_an_example_of_rllib_is_learned(in_tmp: Path) -> None:
    cls = of_rllib("DoubleRowCorridorEnv", ".double_row_corridor_env")
    settings = {"n_steps": 128, "n_epochs": 4, "env_config": {"length": 4}, "episode_horizon": 50}
    run = marl_sb3.train(cls, timesteps=20_000, n_envs=8, seed=1, settings=settings, policies="per_agent")
    # Both agents collide (+5 each) and then reach their goals (+10 each): 30, less 0.1 for each step of each agent.
    assert run.evaluate(20)["episode_return_mean"] > 27
