"""Exploration by an object: SoftQ's distribution, what objects see, exact resumes, workers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_trainings import assert_same
from toy_envs import NoisyEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, Exploration, MultiAgentAlgorithm, PolicySpec, SoftQ, make_schedule, make_vec_env
from marl_sb3.core.sb3.schedules import Progress
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env
from marl_sb3.runs.building import policy_spec
from marl_sb3.runs.settings import load_config

# --- SoftQ -----------------------------------------------------------------------------------------------------------


def shares(exploration: Exploration, values: list[float], masks: list[bool] | None = None, steps: int = 0) -> Any:
    """How often each action is chosen among 70,000 rows with the same values."""
    exploration.rng = np.random.default_rng(3)
    rows = 70_000
    allowed = None if masks is None else np.tile(masks, (rows, 1))
    actions = exploration.choose(np.tile(np.float32(values), (rows, 1)), allowed, Progress(0.5, steps))
    return np.bincount(actions, minlength=len(values)) / rows


def test_soft_q_draws_from_the_softmax_of_values_over_temperature() -> None:
    tolerance = 0.006  # three standard deviations of a share are at most 0.0057
    values = list(np.log([1, 2, 4]))
    assert shares(SoftQ(), values) == pytest.approx([1 / 7, 2 / 7, 4 / 7], abs=tolerance)
    assert shares(SoftQ(0.5), values) == pytest.approx([1 / 21, 4 / 21, 16 / 21], abs=tolerance)
    assert shares(SoftQ(1.0), values, [True, True, False]) == pytest.approx([1 / 3, 2 / 3, 0], abs=tolerance)
    falling = SoftQ([[0, 1.0], [100, 0.5]])
    assert shares(falling, values, steps=100) == pytest.approx([1 / 21, 4 / 21, 16 / 21], abs=tolerance)
    assert shares(SoftQ(1e-6), values).tolist() == [0, 0, 1]
    for wrong in (0, -1, [[0, 0.0]], "hot"):
        with pytest.raises(ConfigError, match=r"temperature is .*; accepted: "):
            SoftQ(wrong)


# --- In trainings ----------------------------------------------------------------------------------------------------


class Least(Exploration):
    """Chooses the least output, or any action with a probability that falls; counts, and keeps what it saw."""

    def __init__(self, epsilon: Any = 0.0) -> None:
        self.epsilon, self.calls, self.seen = make_schedule(epsilon), 0, []

    def choose(self, outputs: Any, masks: Any, progress: Progress) -> Any:
        self.calls += 1
        self.seen.append((outputs, masks, progress.env_steps))
        least = np.where(True if masks is None else masks, outputs, np.inf).argmin(axis=1)
        anything = self.rng.integers(0, outputs.shape[1], len(outputs))
        return np.where(self.rng.random(len(outputs)) < self.epsilon(progress), anything, least)

    def get_state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def set_state(self, state: StateReader) -> None:
        self.calls = state.integer("calls")


REPLAY = {"train_freq": 2, "batch_size": 4, "learning_starts": 6, "buffer_size": 60, "gradient_steps": 1}
ROLLOUTS = {"n_steps": 6, "batch_size": 4, "n_epochs": 2}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "DQN": ("dqn", REPLAY),
    "QRDQN": ("qrdqn", {**REPLAY, "policy_kwargs": {"n_quantiles": 3}}),
    "MaskableDQN": ("maskable_dqn", REPLAY),
    "PPO": ("ppo", ROLLOUTS),
    "A2C": ("a2c", {"n_steps": 6}),
    "MaskablePPO": ("maskable_ppo", ROLLOUTS),
    "MaskableA2C": ("maskable_a2c", {"n_steps": 6}),
}


def make(kind: str, exploration: Any = None, seed: int = 5, **env_settings: Any) -> MultiAgentAlgorithm:
    algorithm, settings = KINDS[kind]
    masked = {"masked": True} if kind.startswith("Maskable") else {}
    env = env_settings.pop("env", None) or make_vec_env(ScriptedEnv, n_envs=2, seed=1, **{**masked, **env_settings})
    exploration = Least([[0, 1.0], [40, 0.1]]) if exploration is None else exploration
    spec = PolicySpec(algorithm, exploration=exploration, **settings)
    return MultiAgentAlgorithm(env, {"p": spec}, n_steps=6, seed=seed, device="cpu")


def in_turns(kind: str) -> Any:
    """Episodes of 7 steps, in which agent b waits now and then, that can be saved in the middle."""
    plans = [[({"a": (7, "truncated"), "b": (7, "terminated")}, {}, {"b": [1, 3, 4, 6]})]] * 2
    return make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=plans, masked=kind.startswith("Maskable"))


def explored_by(algorithm: MultiAgentAlgorithm) -> Any:
    return algorithm.parts.learners["p"].parts[0].exploration


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_training_goes_on_with_the_same_draws(kind: str, tmp_path: Path) -> None:
    whole = make(kind, env=in_turns(kind)).learn(48)
    first = make(kind, env=in_turns(kind)).learn(24)
    first.save(tmp_path / "saved")
    second = make(kind, seed=6, env=in_turns(kind))
    assert explored_by(second).rng.bit_generator.state != explored_by(first).rng.bit_generator.state
    specs = dict(second._setup.specs)
    loaded = MultiAgentAlgorithm.load(tmp_path / "saved", second.env, policies=specs, device="cpu")
    assert explored_by(loaded).calls == explored_by(first).calls > 0
    loaded.learn(24, reset_num_timesteps=False)
    assert_same(whole, loaded)
    assert explored_by(whole).calls == explored_by(loaded).calls
    assert explored_by(whole).rng.bit_generator.state == explored_by(loaded).rng.bit_generator.state


@pytest.mark.parametrize("kind", KINDS)
def test_the_object_sees_the_outputs_and_its_actions_are_taken_and_learned(kind: str) -> None:
    algorithm = make(kind, Least(), masked=True)
    algorithm.policies["p"].lr_schedule = lambda _: 0.0  # the networks stay
    algorithm.learn(24)
    seen, policy = explored_by(algorithm).seen, algorithm.policies["p"]
    outputs, masks, _ = seen[-1]
    assert (outputs.shape, masks.shape) == ((4, 3), (4, 3))
    # Taken: in each env, the last actions that it received are the least allowed outputs.
    least = np.where(masks, outputs, np.inf).argmin(axis=1)
    received = [actions[-1] for actions in algorithm.env.call("received", [0, 1])]
    assert [actions[agent] for actions in received for agent in ("a", "b")] == least.tolist()
    # The observations of the last step: agent, episode, step.
    observations = {"a": np.float32([[1, 4, 2]]), "b": np.float32([[2, 4, 2]])}
    if "DQN" in kind:
        assert [steps for *_, steps in seen] == list(range(4, 24, 2))  # after learning_starts: 6 agent steps
        values = algorithm.q_values(observations)
        np.testing.assert_allclose(outputs[:2], np.concatenate([values["a"], values["b"]]), rtol=1e-5)
        return
    buffer = policy.rollout_buffer
    log_probs = outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))
    assert buffer.actions[-1].reshape(-1).tolist() == least.tolist()
    np.testing.assert_allclose(buffer.log_probs[-1], log_probs[np.arange(4), least], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["DQN", "PPO"])
def test_no_forbidden_action_is_taken_where_there_are_masks(kind: str) -> None:
    algorithm = make(kind, SoftQ(1.0), masked=True)
    algorithm.learn(24)
    for received in algorithm.env.call("received", [0, 1]):
        # Episodes of three steps; the first action is forbidden in even steps, the second one in odd ones.
        assert all(action != step % 3 % 2 for step, actions in enumerate(received) for action in actions.values())
        assert len(received) == 12


def test_each_policy_has_a_copy_and_seeds_of_its_own() -> None:
    given = SoftQ()
    env = make_vec_env("arena", n_envs=2, seed=1)
    algorithm = MultiAgentAlgorithm(env, "per_agent", algorithm="dqn", exploration=given, seed=1, buffer_size=99)
    one, other = (learner.parts[0].exploration for learner in algorithm.parts.learners.values())
    assert one is not given is not other
    assert one.rng.random() != other.rng.random()
    again = MultiAgentAlgorithm(env, "per_agent", algorithm="dqn", exploration=given, seed=1, buffer_size=99)
    assert again.parts.learners["agent1"].parts[0].exploration.rng.random() != one.rng.random()  # the second draw


def test_envs_in_workers_give_the_same_training() -> None:
    def trained(**more: Any) -> MultiAgentAlgorithm:
        env = make_vec_env("arena", n_envs=2, seed=1, vectorizer="sync", **more)
        spec = PolicySpec("dqn", exploration=SoftQ("lin_2"), **REPLAY)
        return MultiAgentAlgorithm(env, {"p": spec}, n_steps=6, seed=2, device="cpu").learn(24)

    here, there = trained(), trained(n_workers=2)
    assert_same(here, there)
    there.env.close()


def test_a_checkpoint_without_an_object_has_no_such_state(tmp_path: Path) -> None:
    env = make_vec_env(ScriptedEnv, n_envs=2, seed=1)
    plain = MultiAgentAlgorithm(env, {"p": PolicySpec("dqn", **REPLAY)}, n_steps=6, seed=5, device="cpu")
    assert "exploration" not in plain.get_state()[0]["policies"]["p"]
    explored = make("DQN", SoftQ())
    explored.save(tmp_path / "saved")
    with pytest.raises(ConfigError, match="policy 'p' was made of classes or functions: pass `policies`"):
        MultiAgentAlgorithm.load(tmp_path / "saved", env)
    with pytest.raises(CheckpointError, match="'exploration', which is unexpected"):
        MultiAgentAlgorithm.load(tmp_path / "saved", env, policies={"p": PolicySpec("dqn", **REPLAY)}, device="cpu")


# --- Refusals --------------------------------------------------------------------------------------------------------


class Wrong(Exploration):
    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def choose(self, outputs: Any, masks: Any, progress: Progress) -> Any:
        return self.returned


@pytest.mark.parametrize("returned", [[0, 1], [0, 1, 2, 3], [-1, 0, 0, 0], [0.0, 1.0, 0.0, 0.0], None])
def test_actions_that_are_none_are_refused(returned: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"Wrong.choose\(\) returned .*; accepted: an array of 4 integers from 0 to 2"
    ):
        make("PPO", Wrong(returned)).learn(12)


@pytest.mark.parametrize(
    ("algorithm", "env", "words"),
    [
        ("sac", "Pendulum-v1", "exploration is SoftQ with SAC and actions Box"),
        ("ppo", "Pendulum-v1", "exploration is SoftQ with PPO and actions Box"),
        ("recurrent_ppo", "CartPole-v1", "exploration is SoftQ with RecurrentPPO and actions Discrete"),
    ],
)
def test_outputs_that_are_not_of_single_actions_are_refused(algorithm: str, env: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{words}.*; accepted: DQN, QRDQN, or an algorithm with rollouts") as caught:
        MultiAgentAlgorithm(env, {"p": PolicySpec(algorithm, exploration=SoftQ())}, device="cpu")
    assert caught.value.key == "exploration"


def test_shards_refuse_an_object() -> None:
    env = make_sharded_vec_env("arena", 4, 2, seed=1)
    with pytest.raises(ConfigError, match="policy 'p': exploration is SoftQ in shards or on Ray; accepted: "):
        MultiAgentAlgorithm(env, {"p": PolicySpec("dqn", exploration=SoftQ(), **REPLAY)}, device="cpu")


@pytest.mark.parametrize("value", [SoftQ, "SoftQ", 1.0])
def test_only_objects_are_accepted_and_never_from_files(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"exploration is .*; accepted: an object of a subclass of marl_sb3.Explor"):
        PolicySpec(exploration=value)
    with pytest.raises(ConfigError, match="exploration is 'SoftQ'; accepted: an object"):
        policy_spec(load_config("arena", settings={"exploration": "SoftQ"}), "shared")


def test_a_state_that_a_checkpoint_cannot_hold_is_refused() -> None:
    class Odd(SoftQ):
        def get_state(self) -> Any:
            return {"odd": object()}

    with pytest.raises(ConfigError, match=r"Odd.get_state\(\) does not return plain data"):
        make("DQN", Odd())


def test_the_public_names_are_there() -> None:
    assert repr(PolicySpec(exploration=SoftQ())) == "PolicySpec(PPO, 'MlpPolicy', exploration=SoftQ)"
    assert marl_sb3.make_schedule("lin_2")(0.5) == 1.0
