"""The same seed gives the same evaluation, whatever the vectorizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import make, plans
from small_trainings import without_clock
from toy_envs import NoisyEnv, ScriptedEnv

from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.evaluation.playing import evaluate_policies, evaluation_seed


def noisy(seed: int | None, deterministic: bool = False, **options: Any) -> dict[str, Any]:
    algorithm = make(NoisyEnv, env_kwargs={"plans": plans(2)})
    env = make_vec_env(NoisyEnv, n_envs=3, plans=plans(3), **options)
    return without_clock(evaluate_policies(algorithm, env, 7, deterministic, seed))


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_seed_gives_the_same_numbers(deterministic: bool) -> None:
    assert noisy(3, deterministic) == noisy(3, deterministic) == noisy(3, deterministic, vectorizer="supersuit")
    assert noisy(3, deterministic) != noisy(4, deterministic)


def test_policies_that_explore_are_seeded_too_and_train_on_as_if_nothing_was() -> None:
    spec = PolicySpec("dqn", buffer_size=100, policy_kwargs={"net_arch": [4]})
    algorithm, env = MultiAgentAlgorithm(make_vec_env("arena", n_envs=2), {"shared": spec}), make_vec_env("arena", 2)
    dqn: Any = algorithm.policies["shared"]
    dqn.exploration_rate = 1.0
    before = dqn.action_space.np_random.bit_generator.state
    one, other, new = (
        without_clock(evaluate_policies(algorithm, env, 2, deterministic=False, seed=seed)) for seed in (3, 3, 4)
    )
    assert one == other != new
    assert dqn.action_space.np_random.bit_generator.state == before


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
