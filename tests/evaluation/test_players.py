"""Who acts in an evaluation and on what; returns are those of SB3 and of plain loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch as th
from gymnasium import spaces
from playing import STAGGERED, make
from stable_baselines3.common.evaluation import evaluate_policy
from toy_envs import SampledEnv, ScriptedEnv, TwoKinds

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentVecEnv, PolicySpec, make_vec_env
from marl_sb3.core.acting.by_agent import PolicyBundle, PolicySpaces
from marl_sb3.core.config.settings import ProcessingSettings
from marl_sb3.core.learners.building import processing_of
from marl_sb3.core.mapping import rows_of_policy
from marl_sb3.core.sb3.spaces import SpacesOnlyVecEnv
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.evaluation.playing import evaluate_policies, play

# Who acts, and on what


class Recorder:
    """Takes the place of a policy's `predict`: the action is the observation's first number."""

    def __init__(self) -> None:
        self.batches: list[np.ndarray] = []
        self.deterministic: set[bool] = set()

    def __call__(self, observations: np.ndarray, deterministic: bool = False) -> tuple[np.ndarray, None]:
        self.batches.append(observations)
        self.deterministic.add(deterministic)
        return observations[:, 0].astype(np.int64) - 1, None


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_policy_acts_once_per_step_for_all_its_active_rows(deterministic: bool) -> None:
    algorithm = make(env_kwargs={"script": STAGGERED})
    algorithm.policies["shared"].predict = recorder = Recorder()
    env = make_vec_env(ScriptedEnv, n_envs=2, script=STAGGERED)
    evaluate_policies(algorithm, env, n_episodes=2, deterministic=deterministic)
    # Agent a has ended before the third step; zeros, which its place holds then, are never an observation.
    assert [batch.tolist() for batch in recorder.batches] == [
        [[1, 1, 0], [2, 1, 0], [1, 1, 0], [2, 1, 0]],
        [[1, 1, 1], [2, 1, 1], [1, 1, 1], [2, 1, 1]],
        [[2, 1, 2], [2, 1, 2]],
    ]
    assert recorder.deterministic == {deterministic}
    assert env.call("received", [0, 1]) == [[{"a": 0, "b": 1}, {"a": 0, "b": 1}, {"b": 1}]] * 2


def test_agents_that_join_late_act_from_then_on() -> None:
    options = {"script": {"a": (3, "truncated"), "b": (3, "truncated")}, "joins": {"b": 1}}
    algorithm = make(policies="per_agent", env_kwargs=options)
    recorders = {agent: Recorder() for agent in "ab"}
    for agent, recorder in recorders.items():
        algorithm.policies[agent].predict = recorder
    evaluate_policies(algorithm, make_vec_env(ScriptedEnv, **options), n_episodes=1)
    assert [len(recorder.batches) for recorder in recorders.values()] == [3, 2]


@pytest.mark.parametrize(
    ("policies", "mapping"),
    [("per_agent", None), ({"p": PolicySpec(), "q": PolicySpec()}, {"a": "p", "c": "p", "b": "q"})],
)
def test_agents_with_unequal_spaces_act_by_their_own_policies(policies: Any, mapping: Any) -> None:
    algorithm = make(TwoKinds, policies, policy_mapping_fn=mapping)
    env = make_vec_env(TwoKinds, n_envs=2)
    metrics = evaluate_policies(algorithm, env, n_episodes=2, deterministic=True)
    assert metrics["agent_episode_returns_mean"] == {"a": 2.0, "b": 6.0, "c": 3.0}
    for received in env.call("received", [0, 1]):
        for step, actions in enumerate(received):
            observed = {"a": [1, 1, step], "b": [2, step], "c": [3, 1, step]}
            expected = algorithm.predict(
                {agent: np.array(observed[agent], dtype=np.float32) for agent in actions}, deterministic=True
            )
            assert all(np.allclose(actions[agent], expected[agent]) for agent in actions)


def test_sampled_actions_stay_within_the_bounds_of_the_env() -> None:
    narrow = spaces.Box(-0.01, 0.01, (2,), np.float32)
    options = {"observation_space": spaces.Box(-1, 1, (3,), np.float32), "action_space": narrow}
    env = make_vec_env(SampledEnv, **options)
    evaluate_policies(make(SampledEnv, env_kwargs=options), env, n_episodes=3, deterministic=False)
    (received,) = env.call("received", [0])
    actions = np.array([list(step.values()) for step in received])
    assert np.abs(actions).max() == np.float32(0.01)


@pytest.mark.parametrize(
    ("policy", "observation_space"),
    [
        ("CnnPolicy", spaces.Box(0, 255, (36, 36, 3), np.uint8)),
        ("MultiInputPolicy", spaces.Dict({"x": spaces.Box(-1, 1, (2,), np.float32), "y": spaces.Discrete(3)})),
        ("MlpPolicy", spaces.Discrete(5)),
        ("MlpPolicy", spaces.MultiBinary(4)),
    ],
    ids=["image", "dict", "discrete", "binary"],
)
def test_every_kind_of_observation_is_acted_on(policy: str, observation_space: Any) -> None:
    options = {
        "observation_space": observation_space,
        "action_space": spaces.MultiDiscrete([2, 3]),
        "script": STAGGERED,
    }
    algorithm = make(SampledEnv, {"shared": PolicySpec(policy=policy)}, env_kwargs=options)
    metrics = evaluate_policies(algorithm, make_vec_env(SampledEnv, n_envs=2, **options), n_episodes=3)
    assert metrics["agent_episode_returns_mean"] == {"a": 2.0, "b": 6.0}


# Against others


def test_returns_and_lengths_are_those_of_sb3s_evaluate_policy() -> None:
    options = {"height": 4, "max_timesteps": 9}
    algorithm = make("arena", env_kwargs=options)
    algorithm.learn(64)
    rows = make_vec_env("arena", n_envs=3, seed=5, **options).as_sb3_vec_env()
    theirs, lengths = evaluate_policy(
        algorithm.policies["shared"], rows, n_eval_episodes=12, return_episode_rewards=True, warn=False
    )
    ours = play(algorithm, make_vec_env("arena", n_envs=3, **options), n_episodes=6, seed=5)
    assert ours.lengths() == lengths[::2]
    assert [r for e in ours.episodes for r in e.agent_returns.values()] == pytest.approx(theirs, abs=1e-5)
    assert len(set(theirs)) > 1


@pytest.mark.parametrize("algorithm_class", [marl_sb3.PPO, stable_baselines3.PPO])
def test_returns_are_those_of_a_plain_loop_over_a_gymnasium_env(algorithm_class: Any) -> None:
    algorithm = make("CartPole-v1", {"shared": PolicySpec(algorithm_class)})
    algorithm.learn(64)
    policy = algorithm.policies["shared"]

    def played(env_index: int, episode_index: int) -> float:
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=episode_seed(11, env_index, episode_index))
        total, ended = 0.0, False
        while not ended:
            action, _ = policy.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        return total

    evaluation = play(algorithm, make_vec_env("CartPole-v1", n_envs=2), n_episodes=5, seed=11)
    for env_index, share in enumerate([2, 3]):
        mine = [episode for episode in evaluation.episodes if episode.env_index == env_index]
        assert [e.agent_returns["agent"] for e in mine] == [played(env_index, k) for k in range(share)]
        assert [e.length for e in mine] == [e.agent_returns["agent"] for e in mine]


class ForbiddingEnv(ScriptedEnv):
    """In each step one action is forbidden; agent b waits now and then, and ends on another agent's move."""

    def __init__(self, env_index: int = 0) -> None:
        super().__init__({"a": (6, "truncated"), "b": (5, "terminated")}, env_index=env_index, skips={"b": [1, 4]})
        self.taken: list[tuple[int, int]] = []  # what an agent did, and what was forbidden then

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed, options)[0], self._masks()

    def step(self, actions: Mapping[str, Any]) -> Any:
        self.taken += [(int(action), self.forbidden) for action in actions.values()]
        return *super().step(actions)[:4], self._masks()

    def _masks(self) -> dict[str, Any]:
        self.forbidden = (self.step_count + self.env_index) % 3
        return {agent: {"action_mask": np.arange(3) != self.forbidden} for agent in self.agents}


def bundle_of(algorithm_class: Any, policy: str, env: MultiAgentVecEnv, network: Any) -> PolicyBundle:
    rows = rows_of_policy(env, "p", dict.fromkeys(env.agents, "p"))
    settings = {"n_steps": 2, "batch_size": 2, "device": "cpu", "seed": 0, "policy_kwargs": network}
    algorithm = algorithm_class(
        policy, SpacesOnlyVecEnv(rows.num_rows, rows.group.observation_space, rows.group.action_space), **settings
    )
    its_spaces = PolicySpaces(rows.group.observation_space, rows.group.action_space)
    raw = processing_of(rows, ProcessingSettings())
    return PolicyBundle({"p": algorithm}, dict.fromkeys(env.agents, "p"), {"p": its_spaces}, {"p": raw})


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_policy_that_takes_masks_never_does_what_its_env_forbids(deterministic: bool) -> None:
    env = make_vec_env(ForbiddingEnv, n_envs=2)
    bundle = bundle_of(sb3_contrib.MaskablePPO, "MlpPolicy", env, {"net_arch": [4]})
    play(bundle, env, n_episodes=10, deterministic=deterministic, seed=0)
    for taken in env.call("taken", [0, 1]):
        assert len(taken) > 40
        assert all(action != forbidden for action, forbidden in taken)


def test_a_policy_that_takes_masks_does_not_play_without_them() -> None:
    env = make_vec_env(ScriptedEnv)
    bundle = bundle_of(sb3_contrib.MaskablePPO, "MlpPolicy", env, {"net_arch": [4]})
    with pytest.raises(ConfigError, match=r"policy 'p': action masks missing for MaskablePPO: .* none for a, b"):
        evaluate_policies(bundle, env, 1)


def test_a_policy_with_memory_plays_as_a_plain_loop_that_resets_it_with_each_episode() -> None:
    env = make_vec_env("CartPole-v1", n_envs=2)
    bundle = bundle_of(sb3_contrib.RecurrentPPO, "MlpLstmPolicy", env, {"net_arch": [], "lstm_hidden_size": 4})
    policy = bundle.policies["p"]
    th.manual_seed(0)
    with th.no_grad():
        for parameter in policy.policy.lstm_actor.parameters():
            parameter.normal_(0, 6)  # what it remembers decides
        policy.policy.action_net.weight.normal_()

    def played(env_index: int, episode_index: int) -> int:
        cart = gymnasium.make("CartPole-v1")
        observation, _ = cart.reset(seed=episode_seed(11, env_index, episode_index))
        length, state, ended = 0, None, False
        while not ended:
            action, state = policy.predict(observation, state, np.array([length == 0]), deterministic=True)
            observation, _, terminated, truncated, _ = cart.step(action)
            length, ended = length + 1, terminated or truncated
        return length

    evaluation = play(bundle, env, n_episodes=8, deterministic=True, seed=11)
    for env_index in range(2):
        lengths = [episode.length for episode in evaluation.episodes if episode.env_index == env_index]
        assert lengths == [played(env_index, episode) for episode in range(4)]
