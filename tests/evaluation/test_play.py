"""Evaluations against numbers worked by hand, against SB3's own, and without a trace in the training."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from toy_envs import NoisyEnv, SampledEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, EnvError, InfoMetric, MultiAgentAlgorithm, MultiAgentVecEnv, PolicySpec, make_vec_env
from marl_sb3.evaluation import (
    episodes_of_env,
    evaluate_policies,
    evaluation_seed,
    metric_names,
    play_episodes,
    preserve_training_state,
)
from marl_sb3.learners.bundle import PolicyBundle, PolicySpaces
from marl_sb3.learners.load import load_policies
from marl_sb3.learners.processed import processing_of
from marl_sb3.learners.sb3.spaces_only_vec_env import SpacesOnlyVecEnv
from marl_sb3.metrics import flatten
from marl_sb3.policies.placement import rows_of_policy
from marl_sb3.vec_env.seeding import episode_seed

SMALL: dict[str, Any] = {
    "n_steps": 8,
    "batch_size": 4,
    "n_epochs": 1,
    "policy_kwargs": {"net_arch": [4]},
    "seed": 0,
    "device": "cpu",
}
STAGGERED = {"a": (2, "truncated"), "b": (3, "terminated")}
PAY = {"a": [1.0, 2.0], "b": [10.0, 20.0, 30.0]}


def make(env: Any = ScriptedEnv, policies: Any = "shared", env_kwargs: Any = None, **options: Any) -> Any:
    vec_env = make_vec_env(env, n_envs=2, seed=0, **(env_kwargs or {}))
    return MultiAgentAlgorithm(vec_env, policies, **{**SMALL, **options})


def without_clock(metrics: Mapping[str, Any]) -> dict[str, Any]:
    timed = ("time_total_s", "timers/", "throughput/", "perf/", "env_runners/episode_duration", "episode_duration")
    return {name: value for name, value in flatten(metrics).items() if not name.startswith(timed)}


def weights(algorithm: MultiAgentAlgorithm) -> dict[str, th.Tensor]:
    return {
        f"{policy_id}/{name}": value
        for policy_id, policy in algorithm.policies.items()
        for name, value in policy.policy.state_dict().items()
    }


# Numbers worked by hand


def test_metrics_are_those_of_the_episodes_played() -> None:
    options = {"script": STAGGERED, "rewards": PAY}
    algorithm = make(policies="per_agent", env_kwargs=options)
    metrics = marl_sb3.evaluate_policies(algorithm, make_vec_env(ScriptedEnv, n_envs=3, **options), n_episodes=7)
    assert metrics.pop("episode_duration_sec_mean") > 0
    assert metrics == {
        "episode_return_mean": 63.0,
        "episode_return_min": 63.0,
        "episode_return_max": 63.0,
        "episode_len_mean": 3.0,
        "episode_len_min": 3,
        "episode_len_max": 3,
        "agent_episode_returns_mean": {"a": 3.0, "b": 60.0},
        "module_episode_returns_mean": {"a": 3.0, "b": 60.0},
        "agent_steps": {"a": 2.0, "b": 3.0},
        "custom_metrics": {},
        "num_episodes": 7,
        "num_env_steps_sampled": 21,
        "num_agent_steps_sampled": {"a": 14, "b": 21},
    }


def test_names_are_those_of_a_training_result() -> None:
    algorithm = make("arena")
    env = make_vec_env("arena", n_envs=1)
    names = metric_names(algorithm, env)
    assert names == list(flatten(evaluate_policies(algorithm, env, n_episodes=1)))
    assert [f"env_runners/{name}" for name in names] == [
        name for name in algorithm.metric_names() if name.startswith("env_runners/")
    ]


def test_custom_metrics_of_the_training_are_measured_too() -> None:
    algorithm = make(custom_metrics={"last_step": InfoMetric("step", "a", "last")})
    evaluation = play_episodes(algorithm, make_vec_env(ScriptedEnv), n_episodes=2)
    assert evaluation.metrics["custom_metrics"] == {"last_step_mean": 3.0, "last_step_min": 3.0, "last_step_max": 3.0}
    assert evaluation.custom("last_step") == [3.0, 3.0]


class Rising(ScriptedEnv):
    """In its k-th episode an env pays k to a and 2 k to b, in a single step; b sits out the even ones."""

    def __init__(self) -> None:
        super().__init__({"a": (1, "terminated"), "b": (1, "truncated")})

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.joins = {"b": 9} if self.episode % 2 else {}
        return super().reset(seed, options)

    def _reward(self, agent: str) -> float:
        return float(self.episode * (1 if agent == "a" else 2))


def test_every_episode_is_kept() -> None:
    evaluation = play_episodes(make(Rising), make_vec_env(Rising), n_episodes=3)
    assert evaluation.returns() == [3.0, 2.0, 9.0]
    assert evaluation.agent_returns("a") == [1.0, 2.0, 3.0]
    assert evaluation.agent_returns("b") == [2.0, 6.0]
    assert evaluation.lengths() == [1, 1, 1]
    assert evaluation.metrics["agent_episode_returns_mean"] == {"a": 2.0, "b": 4.0}


def test_someone_may_watch_the_episodes() -> None:
    seen: list[Any] = []
    evaluation = play_episodes(make(), make_vec_env(ScriptedEnv, n_envs=2), n_episodes=3, on_episode=seen.append)
    assert tuple(seen) == evaluation.episodes


# Which episodes count


def short_and_long(env_index: int) -> ScriptedEnv:
    """Env 0 plays episodes of one step, the others of ten; every step pays 1."""
    return ScriptedEnv({"a": (10 if env_index else 1, "terminated")})


@pytest.mark.parametrize(
    ("n_episodes", "n_envs", "by_env"),
    [(1, 1, [1]), (4, 2, [2, 2]), (5, 2, [2, 3]), (7, 3, [2, 2, 3]), (2, 3, [0, 1, 1]), (3, 3, [1, 1, 1])],
)
def test_each_env_plays_its_share(n_episodes: int, n_envs: int, by_env: list[int]) -> None:
    assert [episodes_of_env(index, n_envs, n_episodes) for index in range(n_envs)] == by_env
    played = play_episodes(make(short_and_long), make_vec_env(short_and_long, n_envs), n_episodes)
    counts = Counter(episode.env_index for episode in played.episodes)
    assert [counts[index] for index in range(n_envs)] == by_env
    assert played.metrics["num_episodes"] == n_episodes


def test_short_episodes_are_not_favoured() -> None:
    algorithm, env = make(short_and_long), make_vec_env(short_and_long, n_envs=2)
    metrics = evaluate_policies(algorithm, env, n_episodes=4)
    # Those of env 0 pay 1, those of env 1 pay 10. The first four to end are all of env 0.
    assert metrics["episode_return_mean"] == metrics["episode_len_mean"] == 5.5
    assert metrics["num_env_steps_sampled"] == 22


@pytest.mark.parametrize(
    ("n_env_steps", "lengths"),
    [(8, [1, 1, 1, 1]), (20, [1] * 10 + [10]), (19, [1] * 10 + [10]), (1, [1])],
)
def test_a_duration_in_env_steps_counts_what_ends_in_it(n_env_steps: int, lengths: list[int]) -> None:
    evaluation = play_episodes(make(short_and_long), make_vec_env(short_and_long, n_envs=2), n_env_steps=n_env_steps)
    assert evaluation.lengths() == lengths


def test_too_short_a_duration_has_names_but_no_values() -> None:
    metrics = evaluate_policies(make(), make_vec_env(ScriptedEnv), n_env_steps=2)
    assert metrics["episode_return_mean"] is None
    assert metrics["num_episodes"] == 0


def test_many_episodes_may_end_in_one_step() -> None:
    def by_env(env_index: int) -> ScriptedEnv:
        return ScriptedEnv({"a": (1, "terminated")}, rewards={"a": [env_index]})

    metrics = evaluate_policies(make(by_env), make_vec_env(by_env, n_envs=9), n_env_steps=1)
    assert metrics["num_episodes"] == metrics["num_env_steps_sampled"] == 9
    assert metrics["episode_return_mean"] == 4.0


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


class TwoKinds(ScriptedEnv):
    """Agents a and c see three numbers and choose one of three; b sees two and answers with two."""

    def __init__(self) -> None:
        super().__init__({"a": (2, "truncated"), "b": (3, "truncated"), "c": (1, "terminated")})

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-9, 9, (2,), np.float32) if agent == "b" else super().observation_space(agent)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,), np.float32) if agent == "b" else super().action_space(agent)

    def observation(self, agent: str) -> np.ndarray:
        return super().observation(agent)[: 2 if agent == "b" else 3]


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
            observed = {"a": [1, 1, step], "b": [2, 1], "c": [3, 1, step]}
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
    ours = play_episodes(algorithm, make_vec_env("arena", n_envs=3, **options), n_episodes=6, seed=5)
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

    evaluation = play_episodes(algorithm, make_vec_env("CartPole-v1", n_envs=2), n_episodes=5, seed=11)
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
    algorithm = algorithm_class(policy, SpacesOnlyVecEnv(rows), **settings)
    its_spaces = PolicySpaces(rows.group.observation_space, rows.group.action_space)
    raw = processing_of(rows, PolicySpec())
    return PolicyBundle({"p": algorithm}, dict.fromkeys(env.agents, "p"), {"p": its_spaces}, {"p": raw})


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_policy_that_takes_masks_never_does_what_its_env_forbids(deterministic: bool) -> None:
    env = make_vec_env(ForbiddingEnv, n_envs=2)
    bundle = bundle_of(sb3_contrib.MaskablePPO, "MlpPolicy", env, {"net_arch": [4]})
    play_episodes(bundle, env, n_episodes=10, deterministic=deterministic, seed=0)
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

    evaluation = play_episodes(bundle, env, n_episodes=8, deterministic=True, seed=11)
    for env_index in range(2):
        lengths = [episode.length for episode in evaluation.episodes if episode.env_index == env_index]
        assert lengths == [played(env_index, episode) for episode in range(4)]


# Seeds


def plans(n_envs: int) -> list[Any]:
    """Each env has its own scripts: agents end at different times, in each episode differently."""
    return [
        [({"a": (2 + index, "truncated"), "b": (4, "terminated")}, {}), ({"a": (5, "both"), "b": (1, "truncated")}, {})]
        for index in range(n_envs)
    ]


def noisy(seed: int | None, deterministic: bool = False, **options: Any) -> dict[str, Any]:
    algorithm = make(NoisyEnv, env_kwargs={"plans": plans(2)})
    env = make_vec_env(NoisyEnv, n_envs=3, plans=plans(3), **options)
    return without_clock(evaluate_policies(algorithm, env, 7, deterministic, seed))


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_seed_gives_the_same_numbers(deterministic: bool) -> None:
    assert noisy(3, deterministic) == noisy(3, deterministic) == noisy(3, deterministic, vectorizer="supersuit")
    assert noisy(3, deterministic) != noisy(4, deterministic)


def test_without_a_seed_there_are_new_numbers_each_time() -> None:
    algorithm, env = make("arena"), make_vec_env("arena", n_envs=2)
    one, other = (without_clock(evaluate_policies(algorithm, env, 4, deterministic=False)) for _ in range(2))
    assert one != other


def test_any_vectorizer_gives_the_same_numbers() -> None:
    options = {"max_timesteps": 15, "height": 4}
    algorithm = make("arena", policies="per_agent", env_kwargs=options)
    envs = [make_vec_env("arena", 3, vectorizer=name, **options) for name in ("batched", "sync", "supersuit")]
    for deterministic in (True, False):
        batched, sync, supersuit = (
            without_clock(evaluate_policies(algorithm, env, 7, deterministic, seed=2)) for env in envs
        )
        assert batched == sync == supersuit


def test_sampled_actions_are_others_than_the_most_likely_ones() -> None:
    algorithm, env = make("arena"), make_vec_env("arena", n_envs=2)
    sampled, likely = (
        without_clock(evaluate_policies(algorithm, env, 4, deterministic, seed=0)) for deterministic in (False, True)
    )
    assert sampled != likely


def test_some_policies_may_sample_while_the_others_take_the_most_likely_actions(tmp_path: Path) -> None:
    script = {"a": (30, "terminated"), "b": (30, "terminated")}
    specs = dict.fromkeys("ab", PolicySpec(policy_kwargs={"net_arch": [4]}))
    algo = MultiAgentAlgorithm(
        make_vec_env(ScriptedEnv, script=script), specs, seed=0, evaluation_deterministic={"b": False}, device="cpu"
    )
    algo = MultiAgentAlgorithm.load(algo.save(tmp_path / "saved"), make_vec_env(ScriptedEnv, script=script))
    for deterministic in (None, {"a": False}):
        env: Any = make_vec_env(ScriptedEnv, script=script)
        evaluate_policies(algo, env, 1, deterministic, seed=0)
        seen = {agent: [np.array([i + 1, 1, step]) for step in range(30)] for i, agent in enumerate("ab")}
        likeliest = {agent: algo.predict({agent: np.stack(seen[agent])}, deterministic=True)[agent] for agent in "ab"}
        taken = {agent: [actions[agent] for actions in env.envs[0].unwrapped.received] for agent in "ab"}
        same = {agent: taken[agent] == likeliest[agent].tolist() for agent in "ab"}
        assert same == ({"a": True, "b": False} if deterministic is None else {"a": False, "b": True})
    for wrong, words in (({"c": True}, "has policy 'c'; accepted: a, b"), ({"a": 1}, "has 1 for policy 'a'")):
        with pytest.raises(ConfigError, match=rf"evaluation.deterministic {words}"):
            evaluate_policies(algo, env, 1, wrong)  # type: ignore[arg-type]


def test_episodes_have_the_seeds_of_the_evaluation() -> None:
    algorithm, env = make(), make_vec_env(ScriptedEnv, n_envs=2, seed=77)
    for _ in range(2):
        evaluate_policies(algorithm, env, n_episodes=2, seed=5)
    first = [[episode_seed(5, index, episode) for episode in (0, 1)] for index in range(2)]
    assert env.call("seeds", [0, 1]) == [seeds * 2 for seeds in first]


def test_seeds_of_evaluations_differ_from_those_of_their_runs() -> None:
    seeds = [evaluation_seed(run_seed) for run_seed in range(100)]
    assert len({*seeds, *range(100)}) == 200
    assert all(0 <= seed < 2**31 for seed in seeds)


# Without a trace


def generators() -> tuple[Any, ...]:
    numpy_state = np.random.get_state()  # noqa: NPY002 - SB3's stream
    return th.get_rng_state().tolist(), numpy_state[1].tolist(), numpy_state[2:], random.getstate()


@pytest.mark.parametrize("seed", [None, 9])
def test_global_generators_are_left_as_they_were(seed: int | None) -> None:
    algorithm, env = make("arena"), make_vec_env("arena", n_envs=2)
    before = generators()
    evaluate_policies(algorithm, env, n_episodes=2, deterministic=False, seed=seed)
    assert generators() == before


class Breaks(ScriptedEnv):
    def step(self, actions: Mapping[str, Any]) -> Any:
        raise EnvError("it broke")


def test_generators_and_modes_are_put_back_after_a_failure_too() -> None:
    algorithm = make()
    algorithm.policies["shared"].policy.set_training_mode(True)
    before = generators()
    with pytest.raises(EnvError, match="it broke"):
        evaluate_policies(algorithm, make_vec_env(Breaks), deterministic=False)
    assert generators() == before
    assert all(module.training for module in algorithm.policies["shared"].policy.modules())


def test_each_module_keeps_its_mode() -> None:
    algorithm = make()
    policy = algorithm.policies["shared"].policy
    policy.set_training_mode(True)
    policy.action_net.train(False)
    evaluate_policies(algorithm, make_vec_env(ScriptedEnv), n_episodes=1)
    assert policy.training
    assert not policy.action_net.training


@pytest.mark.parametrize(
    ("env", "env_kwargs", "options"),
    [
        ("arena", {"max_timesteps": 5}, {"update_path": "fused"}),
        ("arena", {"max_timesteps": 5}, {"update_path": "torch", "policies": "per_agent"}),
        (NoisyEnv, {"plans": plans(2)}, {"policies": {"p": PolicySpec(stable_baselines3.PPO)}}),
        (
            SampledEnv,
            {
                "observation_space": spaces.Box(-1, 1, (2,), np.float32),
                "action_space": spaces.Box(-1, 1, (2,), np.float32),
            },
            {"use_sde": True, "sde_sample_freq": 3},
        ),
    ],
    ids=["fused", "torch", "stock", "gSDE"],
)
def test_a_training_is_the_same_with_and_without_evaluations(env: Any, env_kwargs: Any, options: Any) -> None:
    plain = make(env, env_kwargs=env_kwargs, **options)  # seeds the global generators, as SB3 does
    expected = [without_clock(plain.train_iteration()) for _ in range(4)]
    evaluated = make(env, env_kwargs=env_kwargs, **options)
    own_env = make_vec_env(env, n_envs=2, **env_kwargs)
    for seed, result in enumerate(expected):
        evaluate_policies(evaluated, own_env, n_episodes=3, deterministic=False, seed=seed or None)
        assert without_clock(evaluated.train_iteration()) == result
    assert all(th.equal(value, weights(evaluated)[name]) for name, value in weights(plain).items())


class Steering(ScriptedEnv):
    """Observations are always the same; an action is two numbers."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,), np.float32)


def test_noise_of_gsde_is_the_evaluations_own() -> None:
    algorithm = make(Steering, use_sde=True)
    algorithm.train_iteration()
    distribution = algorithm.policies["shared"].policy.action_dist
    noise = distribution.exploration_mat
    played = []
    for seed in (1, 1, 2):
        env = make_vec_env(Steering, n_envs=2)
        evaluate_policies(algorithm, env, n_episodes=2, deterministic=False, seed=seed)
        played.append([received[0]["a"].tolist() for received in env.call("received", [0, 1])])
    assert algorithm.policies["shared"].policy.action_dist is distribution
    assert distribution.exploration_mat is noise
    assert played[0] == played[1] != played[2]
    assert played[0][0] != played[0][1]  # noise of its own in each env


def test_generators_inside_follow_from_the_seed() -> None:
    def drawn(seed: int | None) -> list[float]:
        with preserve_training_state(algorithm, seed):
            return [float(th.rand(1)), np.random.random(), random.random()]  # noqa: NPY002

    algorithm = make()
    assert drawn(4) == drawn(4)
    assert not set(drawn(4)) & set(drawn(5))
    assert not set(drawn(None)) & set(drawn(None))


def test_the_envs_of_the_training_begin_new_episodes_afterwards() -> None:
    algorithm = make(env_kwargs={"script": {"a": (5, "truncated")}}, n_steps=7)
    algorithm.train_iteration()  # 2 steps into the second episode
    assert evaluate_policies(algorithm, algorithm.env, n_episodes=4)["episode_len_mean"] == 5.0
    result = algorithm.train_iteration()
    assert result["env_runners"]["episode_len_max"] == 5
    assert result["env_runners"]["num_episodes"] == 2  # of 5 steps each: the first of 7 was an episode's first


# What is refused


def test_other_agents_and_other_spaces_are_refused() -> None:
    algorithm = make()
    with pytest.raises(ConfigError, match=r"the env has agents x; the policies act for a, b"):
        evaluate_policies(algorithm, make_vec_env(ScriptedEnv, script={"x": (1, "truncated")}))
    other = {"observation_space": spaces.Discrete(3), "action_space": spaces.Discrete(3)}
    with pytest.raises(ConfigError, match=r"the env has space Discrete\(3\) for agent 'a'; its policy: Box"):
        evaluate_policies(algorithm, make_vec_env(SampledEnv, **other))


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "ten"])
@pytest.mark.parametrize("name", ["n_episodes", "n_env_steps"])
def test_an_empty_duration_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; accepted: an integer of at least 1"):
        evaluate_policies(make(), make_vec_env(ScriptedEnv), **{name: value})


def test_policies_alone_play_as_with_their_training(tmp_path: Path) -> None:
    metrics = {"reward": InfoMetric("bonus", agent="a")}
    algorithm = make(policies="per_agent", custom_metrics=metrics)
    algorithm.evaluation_deterministic = False
    algorithm.train_iteration()
    algorithm.save(tmp_path / "saved")
    env = make_vec_env(ScriptedEnv, n_envs=2)
    assert not load_policies(tmp_path / "saved").evaluation_deterministic
    alone = replace(load_policies(tmp_path / "saved", device="cpu"), custom_metrics=metrics)
    of_training, of_policies = (without_clock(evaluate_policies(each, env, 4, seed=5)) for each in (algorithm, alone))
    assert of_policies == of_training
    assert without_clock(evaluate_policies(algorithm.bundle(), env, 4, seed=5)) == of_training
    assert without_clock(evaluate_policies(algorithm, env, 4, deterministic=False, seed=5)) == of_training
    assert "custom_metrics/reward_mean" in of_training


def test_other_agents_order_does_not_matter() -> None:
    script = {"a": (2, "truncated"), "b": (3, "truncated")}
    turned: MultiAgentVecEnv = make_vec_env(ScriptedEnv, script=dict(reversed(script.items())))
    metrics = evaluate_policies(make(policies="per_agent", env_kwargs={"script": script}), turned, n_episodes=1)
    assert metrics["agent_steps"] == {"b": 3.0, "a": 2.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            lambda algo: ("runs/arena", algo.env),
            r"algo is 'runs/arena'; accepted: .*Algorithm.load\(folder",
        ),
        (lambda algo: (algo, "arena"), "env is 'arena'; accepted: envs from make_vec_env"),
    ],
)
def test_what_is_no_algorithm_and_what_are_no_envs_is_refused(arguments: Any, message: str) -> None:
    algo = MultiAgentAlgorithm(make_vec_env(ScriptedEnv), n_steps=4, batch_size=4, device="cpu")
    with pytest.raises(ConfigError, match=message):
        evaluate_policies(*arguments(algo))
