"""Several policies that act and learn in the same episodes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from small_trainings import Results, are_equal, weights, without_clock
from toy_envs import SampledEnv, ScriptedEnv

from marl_sb3 import PPO, ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.metrics.names import flatten
from marl_sb3.envs.arena import ArenaEnv

TINY: dict[str, Any] = {"batch_size": 4, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}, "learning_rate": 0.01}
NETWORK = {"net_arch": [4]}
N_ENVS, N_STEPS = 2, 6
ITERATION = N_ENVS * N_STEPS  # env steps
STAGGERED = {"a": (1, "terminated"), "b": (4, "truncated")}


def make(policies: Any = "per_agent", script: Any = None, n_envs: int = N_ENVS, **options: Any) -> MultiAgentAlgorithm:
    env = make_vec_env(ScriptedEnv, n_envs=n_envs, script=script)
    return MultiAgentAlgorithm(env, policies, **{"n_steps": N_STEPS, "seed": 0, "device": "cpu", **TINY, **options})


# Which policies there are, and which of them learn


@pytest.mark.parametrize(
    ("policies", "mapping", "rows"),
    [
        ("shared", None, {"shared": 6}),
        ("per_agent", None, {"a": 2, "b": 2, "c": 2}),
        ({"p": PolicySpec(), "q": PolicySpec()}, {"a": "q", "b": "p", "c": "q"}, {"p": 2, "q": 4}),
        ({"p": PolicySpec(), "q": PolicySpec()}, lambda agent: "p" if agent == "a" else "q", {"p": 2, "q": 4}),
    ],
)
def test_every_policy_learns_from_the_rows_of_its_agents(policies: Any, mapping: Any, rows: dict[str, int]) -> None:
    algorithm = make(policies, dict.fromkeys("abc", (3, "truncated")), policy_mapping_fn=mapping)
    assert {policy_id: policy.n_envs for policy_id, policy in algorithm.policies.items()} == rows
    before = {policy_id: weights(algorithm, policy_id) for policy_id in rows}
    result = algorithm.train_iteration()
    for policy_id, num_rows in rows.items():
        assert not are_equal(before[policy_id], weights(algorithm, policy_id))
        assert result["learners"][policy_id]["num_module_steps_trained"] == num_rows * N_STEPS
    assert set(result["env_runners"]["module_episode_returns_mean"]) == set(rows)


@pytest.mark.parametrize(
    ("to_train", "trained"),
    [(["b"], {"b"}), (lambda policy_id: policy_id == "a", {"a"}), ([], set()), (None, {"a", "b"})],
)
def test_a_policy_that_is_not_trained_acts_and_keeps_its_weights(to_train: Any, trained: set[str]) -> None:
    algorithm = make(policies_to_train=to_train)
    before = {policy_id: weights(algorithm, policy_id) for policy_id in "ab"}
    algorithm.learn(5 * ITERATION)
    result = algorithm.train_iteration()
    assert {
        policy_id for policy_id in "ab" if not are_equal(before[policy_id], weights(algorithm, policy_id))
    } == trained
    assert set(result["learners"]) == trained
    assert result["env_runners"]["agent_episode_returns_mean"] == {"a": 3.0, "b": 6.0}
    (received,) = algorithm.env.call("received", [0])
    for agent in "ab":
        assert {int(step[agent]) for step in received} == {0, 1, 2}
    assert list(flatten(result)) == algorithm.metric_names()


def test_policies_with_other_networks_and_learning_rates_learn_at_once() -> None:
    small = PolicySpec(learning_rate=1e-3, policy_kwargs={"net_arch": [3]}, gamma=0.5)
    large = PolicySpec(stable_baselines3.PPO, learning_rate="lin_1e-2", policy_kwargs={"net_arch": [7, 5]}, n_epochs=3)
    algorithm = make({"a": small, "b": large})
    before = {policy_id: weights(algorithm, policy_id) for policy_id in "ab"}
    learners = algorithm.train_iteration()["learners"]
    assert not any(are_equal(before[policy_id], weights(algorithm, policy_id)) for policy_id in "ab")
    # A network each for actions and value, 3 inputs; then 3 actions and a value.
    assert learners["a"]["num_trainable_parameters"] == 2 * (4 * 3) + (4 * 3) + 4
    assert learners["b"]["num_trainable_parameters"] == 2 * (4 * 7 + 8 * 5) + (6 * 3) + 6
    assert [learners[policy_id]["curr_lr"] for policy_id in "ab"] == [1e-3, 1e-2]
    assert [learners[policy_id]["num_grad_updates_lifetime"] for policy_id in "ab"] == [3, 9]
    assert algorithm.policies["b"].batch_size == 4  # from all policies' hyperparameters
    assert [algorithm.policies[policy_id].gamma for policy_id in "ab"] == [0.5, 0.99]


def test_an_agent_that_dies_early_trains_on_its_own_steps_alone() -> None:
    result = make(script=STAGGERED, n_steps=8, n_epochs=3).train_iteration()
    learners = result["learners"]
    assert result["num_agent_steps_sampled_lifetime"] == {"a": N_ENVS * 2, "b": N_ENVS * 8}
    assert result["env_runners"]["agent_steps"] == {"a": 1.0, "b": 4.0}
    assert learners["a"]["num_module_steps_trained"] == 3 * N_ENVS * 2
    assert learners["b"]["num_module_steps_trained"] == 3 * N_ENVS * 8


@pytest.mark.parametrize("spec", [PolicySpec(), PolicySpec(stable_baselines3.PPO)], ids=["ours", "stock"])
def test_a_policy_whose_agents_are_idle_for_a_whole_rollout_keeps_its_weights(spec: PolicySpec) -> None:
    algorithm = make({"a": spec, "b": spec}, {"a": (1, "terminated"), "b": (5, "terminated")}, n_steps=2)
    algorithm.train_iteration()
    before = algorithm.get_parameters()["a"]
    before = {"policy": weights(algorithm, "a"), "steps": before["policy.optimizer"]["state"][0]["step"].item()}
    idle = algorithm.train_iteration()["learners"]
    assert idle["a"]["num_module_steps_trained"] == 0
    assert idle["a"]["policy_loss"] is None
    assert idle["b"]["num_module_steps_trained"] == 2 * N_ENVS
    assert are_equal(before["policy"], weights(algorithm, "a"))
    assert algorithm.get_parameters()["a"]["policy.optimizer"]["state"][0]["step"].item() == before["steps"]
    again = algorithm.train_iteration()["learners"]
    assert again["a"]["num_module_steps_trained"] == N_ENVS
    assert not are_equal(before["policy"], weights(algorithm, "a"))


# Counting


def test_timesteps_count_env_steps_and_whole_iterations() -> None:
    algorithm = make()
    algorithm.learn(ITERATION + 1)
    assert (algorithm.num_timesteps, algorithm.iteration) == (2 * ITERATION, 2)
    result = algorithm.train_iteration()
    assert result["iteration"] == 3
    assert result["num_env_steps_sampled_lifetime"] == 3 * ITERATION
    assert result["num_agent_steps_sampled_lifetime"] == {"a": 3 * ITERATION, "b": 3 * ITERATION}
    assert result["num_episodes_lifetime"] == 3 * ITERATION / 3
    assert result["env_runners"]["num_env_steps_sampled"] == ITERATION
    assert result["env_runners"]["num_agent_steps_sampled"] == {"a": ITERATION, "b": ITERATION}
    assert result["env_runners"]["num_episodes"] == ITERATION / 3


def test_learning_again_begins_anew_or_goes_on() -> None:
    algorithm, results = make("shared", learning_rate="lin_1.0", script={"a": (4, "truncated")}), Results()
    for reset in (True, False, True):
        algorithm.learn(2 * ITERATION, callback=results, reset_num_timesteps=reset)
    assert [result["iteration"] for result in results.kept] == [1, 2, 3, 4, 1, 2]
    # The second learning makes the whole twice as long: 1/4 of it is left after three iterations, not 1/2.
    rates = [result["learners"]["shared"]["curr_lr"] for result in results.kept]
    assert rates == pytest.approx([0.5, 0, 0.25, 0, 0.5, 0])
    assert [result["num_episodes_lifetime"] for result in results.kept] == [2, 6, 8, 12, 2, 6]
    assert len(algorithm.tracker.episodes) == 6
    (episodes,) = algorithm.env.call("episode", [0])
    assert episodes == 7 + 4  # six and the next one, then three and the next one


def test_schedules_stand_still_in_single_iterations() -> None:
    algorithm = make("shared", learning_rate="lin_1.0")
    rates = [algorithm.train_iteration()["learners"]["shared"]["curr_lr"] for _ in range(2)]
    assert rates == [1.0, 1.0]


# As the contract on metrics lists them; A stands for each agent, which here is also the policy.
METRICS = """
iteration num_env_steps_sampled_lifetime num_agent_steps_sampled_lifetime/A num_episodes_lifetime time_total_s
env_runners/episode_return_{mean,min,max} env_runners/episode_len_{mean,min,max} env_runners/num_episodes
env_runners/agent_episode_returns_mean/A env_runners/module_episode_returns_mean/A env_runners/agent_steps/A
env_runners/num_env_steps_sampled env_runners/num_agent_steps_sampled/A env_runners/episode_duration_sec_mean
env_runners/custom_metrics/new_fields_discovered_{mean,min,max} env_runners/custom_metrics/num_collisions_{mean,min,max}
learners/A/policy_loss learners/A/vf_loss learners/A/vf_loss_unclipped learners/A/total_loss learners/A/entropy
learners/A/mean_kl_loss learners/A/vf_explained_var learners/A/clip_fraction learners/A/gradients_global_norm
learners/A/curr_lr learners/A/num_grad_updates_lifetime learners/A/num_trainable_parameters
learners/A/num_module_steps_trained
timers/env_runner_sampling_timer timers/learner_update_timer
throughput/env_steps_per_s throughput/agent_steps_per_s throughput/learner_samples_per_s
perf/cpu_util_percent perf/ram_util_percent
"""


def expanded(name: str) -> list[str]:
    if "A" in name:
        return [name.replace("A", agent) for agent in ("agent1", "agent2")]
    stem, _, kinds = name.partition("{")
    return [stem + kind for kind in kinds.strip("}").split(",")]


def test_names_of_metrics_are_known_before_the_first_iteration_and_stay() -> None:
    env = make_vec_env("arena", n_envs=2, max_timesteps=4)
    algorithm = MultiAgentAlgorithm(env, "per_agent", n_steps=3, seed=0, device="cpu", **TINY)
    known = algorithm.metric_names()
    assert known == list(flatten(algorithm.train_iteration())) == list(flatten(algorithm.train_iteration()))
    assert {name for line in METRICS.split() for name in expanded(line)} <= set(known)
    json.dumps(algorithm.train_iteration(), allow_nan=False)


# Acting, saving, copying


def test_predict_takes_and_gives_dictionaries_by_agent() -> None:
    algorithm = make()
    one, batch = np.array([1, 1, 0], np.float32), np.array([[2, 1, 0], [2, 1, 1]], np.float32)
    actions = algorithm.predict({"a": one, "b": batch}, deterministic=True)
    assert list(actions) == ["a", "b"]
    assert (actions["a"].shape, actions["b"].shape) == ((), (2,))
    for agent, observation in (("a", one), ("b", batch)):
        expected, _ = algorithm.policies[agent].predict(observation, deterministic=True)
        np.testing.assert_array_equal(actions[agent], expected)
        assert list(algorithm.predict({agent: observation})) == [agent]
    assert len({int(algorithm.predict({"a": one})["a"]) for _ in range(50)}) == 3
    with pytest.raises(ConfigError, match="unknown agent 'x'; the env has a, b"):
        algorithm.predict({"a": one, "x": one})


def test_parameters_move_from_one_algorithm_to_another() -> None:
    source, target = make(seed=1), make(seed=2)
    source.train_iteration()
    target.set_parameters({"b": source.get_parameters()["b"]})
    assert are_equal(weights(source, "b"), weights(target, "b"))
    assert not are_equal(weights(source, "a"), weights(target, "a"))
    states = [algorithm.get_parameters()["b"]["policy.optimizer"]["state"] for algorithm in (source, target)]
    assert th.equal(states[0][0]["exp_avg"], states[1][0]["exp_avg"])
    with pytest.raises(ConfigError, match="unknown policy 'x'; accepted: a, b"):
        target.set_parameters({"x": {}})


def test_saved_policies_have_a_zip_each_that_predicts_the_same(tmp_path: Path) -> None:
    algorithm = make(learning_rate="lin_0.1", clip_range_vf=0.5)
    algorithm.learn(2 * ITERATION)
    paths = algorithm.save_policies(tmp_path / "new" / "folder")
    assert paths == {agent: tmp_path / "new" / "folder" / f"{agent}.zip" for agent in "ab"}
    observations = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32) * 10
    for agent, path in paths.items():
        loaded, policy = stable_baselines3.PPO.load(path, device="cpu"), algorithm.policies[agent].policy
        expected = algorithm.predict({agent: observations}, deterministic=True)[agent]
        np.testing.assert_array_equal(loaded.predict(observations, deterministic=True)[0], expected)
        seen, _ = policy.obs_to_tensor(observations)
        assert th.equal(loaded.policy.predict_values(seen), policy.predict_values(seen))
        assert loaded.n_steps == N_STEPS


# Seeds


def digest() -> str:
    """What a short training with several policies and two episodes of the arena come to, in 64 digits."""
    th.set_num_threads(1)
    script = {agent: (1 + index, "truncated") for index, agent in enumerate(["zoe", "adam", "bill", "carl", "dora"])}
    mapping = {agent: "qpr"[index % 3] for index, agent in enumerate(script)}
    policies = {"q": PolicySpec(), "p": PolicySpec(gamma=0.9), "r": PolicySpec()}
    algorithm = make(policies, script, policy_mapping_fn=mapping, seed=3)
    results = [without_clock(algorithm.train_iteration()) for _ in range(2)]
    values = [value for policy_id in policies for value in weights(algorithm, policy_id).values()]
    bits = [value.numpy().tobytes().hex() for value in values]
    arena, pushes = ArenaEnv(height=1, width=3, max_timesteps=40), {"agent1": 1, "agent2": 3}
    played = [repr([arena.reset(seed), *(arena.step(pushes) for _ in range(40))]) for seed in (7, None)]
    return hashlib.sha256(json.dumps([results, bits, played]).encode()).hexdigest()


def test_same_seed_is_the_same_training_in_this_process_and_in_another() -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", f"import {Path(__file__).stem} as tests; print(tests.digest())"]
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    found = [digest(), digest(), process.communicate()[0].strip()]
    assert process.returncode == 0
    assert len(found[0]) == 64
    assert len(set(found)) == 1


@pytest.mark.parametrize("seed", [0, None])
def test_policies_of_one_run_start_with_different_weights(seed: int | None) -> None:
    algorithm = make(seed=seed, script=dict.fromkeys("abc", (3, "truncated")))
    first = [weights(algorithm, policy_id)[f"{policy_id}/mlp_extractor.policy_net.0.weight"] for policy_id in "abc"]
    assert not any(th.equal(first[i], first[j]) for i in range(3) for j in range(i))


def test_without_a_seed_every_run_is_another() -> None:
    one, other = make("shared", seed=None), make("shared", seed=None)
    assert not are_equal(weights(one, "shared"), weights(other, "shared"))
    one.learn(ITERATION)


def test_log_interval_says_how_often_the_metrics_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    make(verbose=1).learn(4 * ITERATION, log_interval=2)
    printed = [line.split("|")[2].strip() for line in capsys.readouterr().out.splitlines() if "| iteration " in line]
    assert printed == ["2", "4"]
    make(verbose=1).learn(ITERATION, log_interval=None)
    assert "| iteration " not in capsys.readouterr().out
    with pytest.raises(ConfigError, match="log_interval is 0; accepted: an integer of at least 1, or null"):
        make().learn(ITERATION, log_interval=0)


def test_numbers_of_numpy_are_numbers() -> None:
    algorithm = make(seed=np.int64(3), n_steps=np.int32(N_STEPS), learning_rate=np.float32(0.5), n_epochs=np.int64(1))
    algorithm.learn(np.int64(ITERATION))
    assert are_equal(weights(algorithm, "a"), weights(make(seed=3, learning_rate=0.5).learn(ITERATION), "a"))
    assert json.dumps(algorithm.get_state()[0]["specs"]["a"])


# What is refused


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"policies": ["a", "b"]}, "policies", "policies is"),
        ({"policies": {"a": PPO, "b": PPO}}, "policies", "policy 'a' is <class .*PPO'>; accepted: a PolicySpec"),
        ({"policies_to_train": ["x"]}, "policies_to_train", "unknown policy 'x'; accepted: a, b"),
        ({"policies_to_train": "a"}, "policies_to_train", "policies_to_train is 'a'; accepted: a list"),
        ({"n_steps": 0}, "n_steps", "n_steps is 0; accepted: an integer of at least 1"),
        ({"n_steps": 2.5}, "n_steps", r"n_steps is 2\.5"),
        ({"n_steps": 1, "n_envs": 1}, "n_steps", "1 step x 1 env x 1 agent = 1 agent step; at least 2"),
        (
            {"policies": {"p": PolicySpec()}, "policy": "CnnPolicy"},
            "policy",
            "policy='CnnPolicy' is given for policies that have their own",
        ),
        ({"learning_rte": 1}, "learning_rte", "unknown hyperparameter 'learning_rte' of PPO; did you mean"),
        ({"stats_window_size": 0}, "stats_window_size", "stats_window_size is 0; accepted"),
        ({"policy": "CnnPolicy"}, None, "policy 'a': PPO raised: You should use NatureCNN only with images"),
        (
            {"policy_kwargs": {"net_arc": []}},
            "policy_kwargs.net_arc",
            "'net_arc' of ActorCriticPolicy; accepted: net_arch, .*; did you mean net_arch",
        ),
        (
            {"policy_kwargs": {"qqq": 1}},
            "policy_kwargs.qqq",
            "policy 'a': .*'qqq' of .*; accepted: net_arch, ",
        ),
        (
            {"policy": "MultiInputPolicy"},
            None,
            "policy 'a': PPO raised: .*'spaces'; the agents observe Box.*; accepted for it: policy=auto",
        ),
        ({"seed": -1}, "seed", "seed is -1; accepted: an integer from 0 to 4294967295, or null"),
        ({"n_threads": 0}, "n_threads", "n_threads is 0; accepted: an integer of at least 1"),
        ({"n_parallel_updates": 0}, "n_parallel_updates", "n_parallel_updates is 0; accepted: an integer of at least"),
    ],
)
def test_wrong_arguments_are_refused_with_their_key(options: Any, key: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make(**options)
    assert caught.value.key == key


@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy"])
def test_a_policy_for_one_array_is_refused_for_several(policy: str) -> None:
    space = spaces.Dict({"map": spaces.Discrete(2), "mode": spaces.Discrete(2)})
    env = make_vec_env(SampledEnv, observation_space=space, action_space=spaces.Discrete(2))
    message = rf"agents a, b observe several parts \(map, mode\), but {policy} takes one array; .*MultiInputPolicy"
    with pytest.raises(ConfigError, match=message) as caught:
        MultiAgentAlgorithm(env, policy=policy, n_steps=8, **TINY)
    assert caught.value.key == "policy"


@pytest.mark.parametrize("steps", [0, "100", None, float("nan"), float("inf")])
def test_training_for_no_number_of_steps_is_refused(steps: Any) -> None:
    with pytest.raises(ConfigError, match=f"total_timesteps is {steps!r}; accepted: a number of at least 1"):
        make().learn(steps)


def test_rollout_length_may_stand_in_any_policy() -> None:
    algorithm = make({"a": PolicySpec(), "b": PolicySpec(n_steps=5)}, n_steps=None)
    assert algorithm.n_steps == algorithm.policies["a"].n_steps == 5


def test_each_policy_updates_at_the_end_of_its_own_rollouts() -> None:
    """In an iteration of 6 steps a updates after steps 2, 4 and 6, b after 6, c after 4 and not again."""
    specs = {"a": PolicySpec(n_steps=2), "b": PolicySpec(), "c": PolicySpec(n_steps=4)}
    script = dict.fromkeys("abc", (3, "terminated"))
    algorithm = make(specs, n_steps=6, script=script)
    updates = [
        [algorithm.train_iteration()["learners"][policy]["num_module_steps_trained"] for policy in "abc"]
        for _ in range(2)
    ]
    epochs, n_envs = algorithm.policies["a"].n_epochs, algorithm.env.num_envs
    assert updates == [[6 * n_envs * epochs, 6 * n_envs * epochs, 4 * n_envs * epochs]] * 1 + [
        [6 * n_envs * epochs, 6 * n_envs * epochs, 8 * n_envs * epochs]
    ]


# What it is made of, and how it shows itself


@pytest.mark.parametrize("env", ["arena", ScriptedEnv])
def test_an_id_or_a_factory_makes_one_env(env: Any) -> None:
    algorithm = MultiAgentAlgorithm(env, n_steps=4, device="cpu", seed=3, **TINY)
    assert algorithm.env.num_envs == 1
    algorithm.learn(4)
    assert algorithm.num_timesteps == 4


@pytest.mark.parametrize(
    ("make_instance", "message"),
    [
        (ScriptedEnv, r"a single env, ScriptedEnv; .* make_vec_env\(lambda: ..., n_envs=8\).*docs/coming_from/petting"),
        (lambda: gymnasium.make("CartPole-v1").unwrapped, "a single env, CartPoleEnv; accepted: an env id"),
        (lambda: make_vec_env(ScriptedEnv).as_sb3_vec_env(), "FlatVecEnv, .* several envs.*SB3 take it.*sb3.md"),
        (lambda: None, "env is None; accepted: an id or a factory"),
    ],
)
def test_an_env_that_exists_already_is_refused(make_instance: Any, message: str) -> None:
    for take in (MultiAgentAlgorithm, make_vec_env):
        with pytest.raises(ConfigError, match=message):
            take(make_instance())


def test_vec_envs_are_not_made_of_vec_envs() -> None:
    with pytest.raises(ConfigError, match="env is a vec env already, SyncVecEnv"):
        make_vec_env(make_vec_env(ScriptedEnv))


def test_its_representation_fits_a_line() -> None:
    assert repr(make("shared")) == (
        "MultiAgentAlgorithm(scripted_v0 x 2, 2 agents, policies shared (PPO), 0 env steps trained)"
    )
    algorithm = make("per_agent", dict.fromkeys("abcde", (3, "truncated")))
    algorithm.train_iteration()
    assert repr(algorithm).endswith("(scripted_v0 x 2, 5 agents, 5 policies, 12 env steps trained)")


# The end of a training


def with_specs(n_steps: int | None = None, **specs: PolicySpec) -> MultiAgentAlgorithm:
    env = make_vec_env(ScriptedEnv, n_envs=2, script=None)
    mapping = dict(zip(env.agents, specs, strict=False)) if len(specs) > 1 else None
    return MultiAgentAlgorithm(env, specs, mapping, n_steps=n_steps, seed=0, device="cpu")


def test_a_training_ends_with_the_first_update_past_its_budget_not_with_its_iteration() -> None:
    # A rollout has 6 env steps; 100 rollouts are an iteration.
    spec = PolicySpec("a2c", n_steps=3, policy_kwargs=NETWORK)
    whole = with_specs(all=spec).learn(200)
    parts = with_specs(all=spec).learn(100)
    assert (whole.num_timesteps, parts.num_timesteps, parts.iteration) == (204, 102, 1)
    parts.learn(98, reset_num_timesteps=False)
    assert (parts.num_timesteps, parts.iteration) == (204, 2)
    assert are_equal(weights(whole, "all"), weights(parts, "all"))
    assert parts.train_iteration()["env_runners"]["num_env_steps_sampled"] == 600


def test_a_training_ends_when_its_longest_rollouts_are_full() -> None:
    short = PolicySpec("a2c", n_steps=3, policy_kwargs=NETWORK)
    long = PolicySpec(PPO, n_steps=10, batch_size=4, n_epochs=1, policy_kwargs=NETWORK)
    assert with_specs(n_steps=35, a=short, b=long).learn(25).num_timesteps == 2 * 20
