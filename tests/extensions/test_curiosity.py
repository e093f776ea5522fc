"""Curiosity: who is paid for what, how much, what learns from it, exact resumes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small_trainings import assert_goes_on_exactly, assert_same, bits
from toy_envs import NoisyEnv, SampledEnv, ScriptedEnv

from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, evaluate_policies, make_vec_env
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.curiosity import Curiosity
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env

EVENLY = {"exploration_initial_eps": 0.3, "exploration_final_eps": 0.3}  # however long a training is
REPLAY = {"train_freq": 2, "batch_size": 4, "learning_starts": 6, "buffer_size": 60, "gradient_steps": 1, **EVENLY}
ROLLOUTS = {"n_steps": 6, "batch_size": 4, "n_epochs": 2}
KINDS: dict[str, dict[str, Any]] = {
    "ppo": ROLLOUTS,
    "trpo": {"n_steps": 6, "batch_size": 6},
    "recurrent_ppo": {**ROLLOUTS, "policy_kwargs": {"lstm_hidden_size": 4}},
    "dqn": REPLAY,
    "recurrent_dqn": {**REPLAY, "burn_in": 1, "sequence_length": 2},
    "vdn": REPLAY,
}
# Agent a is truncated after five steps, b terminated after three, in which it waits once.
SCRIPT = {"script": {"a": (5, "truncated"), "b": (3, "terminated")}, "skips": {"b": [1]}}


def make(kind: str = "ppo", env: Any = None, **settings: Any) -> MultiAgentAlgorithm:
    env = make_vec_env(ScriptedEnv, n_envs=2, seed=1, **SCRIPT) if env is None else env
    spec = PolicySpec(kind, **{**KINDS[kind], "curiosity": "rnd", **settings})
    return MultiAgentAlgorithm(env, {"p": spec}, n_steps=6, seed=5, device="cpu")


def curiosity_of(algorithm: MultiAgentAlgorithm) -> Curiosity:
    return algorithm.parts.learners["p"].parts[0]  # type: ignore[return-value]


# --- Who is paid, and for what ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_each_transition_is_paid_once_for_the_observation_that_it_led_to(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Any]] = []

    def paid(self: Curiosity, observations: Any, rows: Any) -> Any:
        seen.append(observations.tolist())
        return np.full(len(observations), 100, np.float32)

    monkeypatch.setattr(Curiosity, "paid", paid)
    # PPO's rewards have the values of final observations, too, which gamma takes out.
    algorithm = make(kind, make_vec_env(ScriptedEnv, n_envs=1, seed=1, **SCRIPT), gamma=0.0, learning_rate=0.0)
    result = algorithm.train_iteration()
    of_policy: Any = algorithm.policies["p"]
    buffer = of_policy.rollout_buffer if kind == "ppo" else of_policy.replay_buffer
    rewards = (buffer.rewards * buffer.acted if kind == "ppo" else buffer.rewards).reshape(-1)
    # a is paid 1 in each of its six steps; b 2, and 4 for its first action, after which it waits.
    assert sorted(rewards[rewards > 0].tolist()) == [*[101] * 6, 102, 104]
    # Agents see [their number, the episode, the step].
    steps = [[[1, 1, 1]], [[1, 1, 2], [2, 1, 2]], [[1, 1, 3], [2, 1, 3]], [[1, 1, 4]], [[1, 1, 5]], [[1, 2, 1]]]
    assert seen[:6] == steps
    assert result["env_runners"]["episode_return_mean"] == 5 * 1 + 3 * 2  # what the env pays


def test_what_is_paid_is_the_error_over_the_deviation_of_its_discounted_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    curiosity = curiosity_of(make(curiosity_scale=3.0))
    errors = iter([[1.0, 3.0, 5.0, 7.0], [2.0, 2.0]])
    monkeypatch.setattr(curiosity, "_errors", lambda parts: th.tensor(next(errors))[:, None].requires_grad_())
    monkeypatch.setattr(curiosity, "_learn", lambda parts: None)
    curiosity._of_sums.count = 0.0
    observations = np.zeros((4, 3), np.float32)
    assert curiosity.paid(observations, np.ones(4, bool)).tolist() == [0] * 4  # nothing is known yet
    assert curiosity._of_sums.var == pytest.approx(5)  # of 1, 3, 5, 7
    curiosity._has_learned = True
    paid = curiosity.paid(observations[:2], np.array([True, False, True, False]))
    sums = [1, 3, 5, 7, 2 + 0.99 * 1, 2 + 0.99 * 5]
    assert curiosity._sums.tolist() == pytest.approx([sums[4], 3, sums[5], 7])
    assert paid.tolist() == pytest.approx([3 * 2 / np.std(sums)] * 2)


def test_what_was_seen_often_is_paid_less_than_what_was_not() -> None:
    curiosity = curiosity_of(make(curiosity_learning_rate=1e-3))
    known = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    for _ in range(300):
        curiosity._learn({"": known})
    with th.no_grad():
        old, new = (curiosity._errors({"": each}).mean(1).numpy() for each in (known, known + np.float32(4)))
    assert new.min() > 10 * np.median(old)


def test_the_metrics_say_what_was_paid_and_evaluations_have_none_of_it() -> None:
    algorithm = make(env=make_vec_env(ScriptedEnv, n_envs=16, seed=1, **SCRIPT))
    algorithm.train_iteration()
    result = algorithm.train_iteration()
    metrics = result["learners"]["p"]
    assert metrics["curiosity_reward_mean"] > 0
    assert metrics["curiosity_loss"] > 0
    assert result["env_runners"]["episode_return_mean"] == 11
    assert evaluate_policies(algorithm, algorithm.env, n_episodes=2, seed=0)["episode_return_mean"] == 11


PARTS = spaces.Dict({"where": spaces.Box(-5, 5, (2,), np.float32), "what": spaces.Discrete(3)})
IMAGES = spaces.Box(0, 255, (36, 36, 1), np.uint8)
OBSERVED = (("Mlp", spaces.Discrete(4)), ("Mlp", spaces.MultiDiscrete([2, 3])), ("Cnn", IMAGES), ("MultiInput", PARTS))


@pytest.mark.parametrize(("policy", "space"), OBSERVED)
@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_agents_may_observe_anything_that_their_policy_takes(kind: str, space: Any, policy: str) -> None:
    script = {"a": (5, "truncated"), "b": (3, "terminated")}
    env = make_vec_env(SampledEnv, n_envs=2, observation_space=space, action_space=spaces.Discrete(3), script=script)
    more = {"normalize_observations": True, "normalize_keys": ["where"]} if policy == "MultiInput" else {}
    spec = PolicySpec(kind, f"{policy}Policy", **KINDS[kind], curiosity="rnd", **more)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, n_steps=6, seed=5, device="cpu").learn(96)
    assert curiosity_of(algorithm).get_state()["has_learned"]


# --- State -----------------------------------------------------------------------------------------------------------


PLANS = [[({"a": (7, "truncated"), "b": (5, "terminated")}, {})]] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_training_is_the_same_as_one_that_was_not_interrupted(kind: str, tmp_path: Path) -> None:
    def begun() -> MultiAgentAlgorithm:
        return make(kind, make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=PLANS))

    whole, resumed = assert_goes_on_exactly(begun, tmp_path, 120, 120)
    assert curiosity_of(resumed).get_state()["has_learned"]
    assert bits(curiosity_of(whole).get_state()) == bits(curiosity_of(resumed).get_state())


def test_a_checkpoint_goes_on_with_more_envs(tmp_path: Path) -> None:
    make("dqn").learn(120).save(tmp_path / "saved")
    resumed = MultiAgentAlgorithm.load(tmp_path / "saved", make_vec_env(ScriptedEnv, n_envs=4, seed=1, **SCRIPT))
    assert curiosity_of(resumed.learn(40, reset_num_timesteps=False)).get_state()["has_learned"]


def test_a_checkpoint_without_curiosity_is_refused_in_words(tmp_path: Path) -> None:
    make(curiosity=None).save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="curiosity"):
        MultiAgentAlgorithm.load(tmp_path / "saved", make().env, policies={"p": make()._setup.specs["p"]}, device="cpu")


def test_the_draws_of_the_policy_are_those_without_curiosity() -> None:
    paid_nothing = make(curiosity_scale=0.0).learn(48)
    assert_same(paid_nothing, make(curiosity=None).learn(48))


# --- Refused ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"curiosity_scale is 2\.0, but curiosity is not set"):
        PolicySpec("ppo", curiosity_scale=2.0)
    with pytest.raises(ConfigError, match="curiosity is 'icm'; accepted: "):
        PolicySpec("ppo", curiosity="icm")
    with pytest.raises(ConfigError, match="curiosity_scale is -1; accepted: "):
        make(curiosity_scale=-1)
    with pytest.raises(ConfigError, match="policy 'p': curiosity is rnd in shards or on Ray; accepted: null"):
        make("dqn", make_sharded_vec_env("arena", 4, 2, seed=1))
