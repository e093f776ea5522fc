"""Schedules by hand, in trainings that are resumed and extended, on both update paths, in shards and in zips."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3
from small_trainings import arena, assert_same
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, load_policies
from marl_sb3.core.sb3.schedules import Piecewise, Progress, make_schedule
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env

# --- Values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([[0, 1.0], [100, 0.0]], {0: 1.0, 25: 0.75, 50: 0.5, 100: 0.0, 10**9: 0.0}),
        ([[10, 2.0], [20, 4.0], [60, 3.0]], {0: 2.0, 10: 2.0, 15: 3.0, 20: 4.0, 40: 3.5, 60: 3.0, 61: 3.0}),
        ([[0, 1.0], [5, 1.0], [5, 0.2]], {4: 1.0, 5: 0.2, 6: 0.2}),
        ([[3, 0.7]], {0: 0.7, 3: 0.7, 9: 0.7}),
    ],
)
def test_points_are_joined_by_lines_and_constant_outside(points: Any, expected: dict[int, float]) -> None:
    schedule = make_schedule(points)
    assert {step: schedule(Progress(0.5, step)) for step in expected} == pytest.approx(expected)
    assert schedule(1.0) == points[0][1]  # no env steps: the start


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exp_1e-2", {1.0: 1e-2, 0.5: 1e-3, 0.0: 1e-4}),
        ("exp_0.1_0.4", {1.0: 0.1, 0.5: 0.2, 0.0: 0.4}),
        ("lin_.5", {1.0: 0.5, 0.5: 0.25, 0.0: 0.0}),
    ],
)
def test_texts_are_schedules_over_the_training(text: str, expected: dict[float, float]) -> None:
    schedule = make_schedule(text)
    assert {left: schedule(left) for left in expected} == pytest.approx(expected)
    assert (schedule(1.0), schedule(0.0)) == pytest.approx((expected[1.0], expected[0.0]), rel=1e-15)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            [[0, 1], [9, 0.5], [3, 0.1]],
            r"the point \[3, 0.1\]; accepted: points in ascending order .*before it is at 9",
        ),
        ([[-1, 1]], r"the point \[-1, 1\]; accepted: its first number counts env steps: an integer of at least 0"),
        ([[0.5, 1]], "its first number counts env steps"),
        ([[0, 1], [5, -0.1]], "its second number is a number from 0 to 1000000"),
        ([], "accepted: a number from 0 to 1000000, or lin_X"),
        ([[0, 1], 3], "accepted: a number from 0 to 1000000, or lin_X"),
        ("exp_", "accepted: a number from 0"),
        ("exp_0", "accepted: a number from 0"),
    ],
)
def test_what_is_no_schedule_is_refused_in_words(value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        PolicySpec(learning_rate=value)
    assert caught.value.key == "learning_rate"
    assert str(caught.value).startswith("learning_rate is ")


@pytest.mark.parametrize(
    ("algorithm", "name", "value"),
    [
        ("ppo", "clip_range", [[0, 0.0]]),
        ("ppo", "ent_coef", [[0, -1]]),
        ("dqn", "exploration_schedule", [[0, 1.5]]),
        ("ppo", "exploration_schedule", [[0, 1.0]]),
        ("sac", "ent_coef", [[0, 0.1]]),
        ("ppo", "gamma", [[0, 0.9]]),
    ],
)
def test_settings_keep_their_ranges_and_others_take_no_schedules(algorithm: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        PolicySpec(algorithm, **{name: value})


def test_env_steps_of_points_may_be_whole_floats_and_numpy_numbers() -> None:
    points = np.array([[0, 1e-3], [1e6, 1e-4]])
    schedule = PolicySpec(clip_range_vf=points).hyperparameters["clip_range_vf"]
    assert repr(schedule) == "Piecewise([[0, 0.001], [1000000, 0.0001]])"


# --- Trainings -------------------------------------------------------------------------------------------------------

PPO = {"n_steps": 8, "batch_size": 16, "n_epochs": 2, "device": "cpu", "seed": 1}  # 24 env steps in an iteration
POINTS = {
    "learning_rate": [[0, 1e-2], [60, 1e-3]],
    "clip_range": [[24, 0.3], [72, 0.01]],
    "ent_coef": [[0, 0.0], [96, 0.5]],
}
REPLAY = {"train_freq": 4, "batch_size": 8, "learning_starts": 6, "buffer_size": 200, "device": "cpu", "seed": 1}
DQN = {"learning_rate": [[0, 1e-2], [90, 1e-4]], "exploration_schedule": [[10, 1.0], [80, 0.2]], "n_steps": 8}
KINDS: dict[str, dict[str, Any]] = {
    "PPO": {**PPO, **POINTS},
    "PPO by PyTorch": {**PPO, **POINTS, "update_path": "torch", "clip_range_vf": [[0, 0.5], [50, 0.1]]},
    "stock PPO": {**PPO, **POINTS, "policies": {"p": PolicySpec(stable_baselines3.PPO)}},
    "DQN": {**REPLAY, "algorithm": "dqn", **DQN, "n_steps": 1},
    "QRDQN": {**REPLAY, "algorithm": "qrdqn", **DQN, "n_steps": 1, "policy_kwargs": {"n_quantiles": 3}},
}


def make(kind: str, **more: Any) -> MultiAgentAlgorithm:
    settings = {**KINDS[kind], **more}
    n_steps = settings.pop("n_steps") if "train_freq" in settings else None
    return MultiAgentAlgorithm(arena(), **settings, **({} if n_steps is None else {"n_steps": 8}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_is_saved_and_extended_follows_the_same_points(kind: str, tmp_path: Path) -> None:
    whole, first = make(kind).learn(96), make(kind).learn(48)
    first.save(tmp_path / "saved")
    settings = {name: KINDS[kind][name] for name in ("update_path", "device") if name in KINDS[kind]}
    second = MultiAgentAlgorithm.load(tmp_path / "saved", arena(), **settings)
    second.learn(48, reset_num_timesteps=False)
    assert_same(whole, second)
    assert_same(whole, make(kind).learn(48).learn(48, reset_num_timesteps=False))


def test_a_line_to_the_planned_end_stretches() -> None:
    whole = make("PPO", learning_rate="lin_1e-2").learn(96)
    parts = make("PPO", learning_rate="lin_1e-2").learn(48).learn(48, reset_num_timesteps=False)
    with pytest.raises(AssertionError):
        assert_same(whole, parts)


class Follows(MultiAgentCallback):
    """Sets the entropy coefficient by hand after each rollout, and notes the logged learning rate."""

    def __init__(self, ent_coef: Callable[[int], float] | None = None) -> None:
        super().__init__()
        self.ent_coef = ent_coef
        self.logged: list[Any] = []

    def _on_rollout_end(self) -> None:
        if self.ent_coef is not None:
            self.algorithm.policies["shared"].ent_coef = self.ent_coef(self.num_timesteps)

    def on_iteration_end(self, result: Any) -> bool:
        self.logged.append(result["learners"]["shared"]["curr_lr"])
        return True


@pytest.mark.parametrize("path", ["fused", "torch"])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "maskable_ppo"])
def test_an_entropy_schedule_equals_a_coefficient_that_is_set_by_hand(algorithm: str, path: str) -> None:
    if algorithm == "maskable_ppo" and path == "torch":
        pytest.skip("the same code as the fused path's")
    small = {"n_steps": 8, "seed": 1, "device": "cpu", "algorithm": algorithm, "update_path": path}
    masked = {"masked": True} if algorithm == "maskable_ppo" else {}

    def trained(callback: Follows, **more: Any) -> MultiAgentAlgorithm:
        env = marl_sb3.make_vec_env(ScriptedEnv, n_envs=3, seed=1, **masked)
        return MultiAgentAlgorithm(env, **small, **more).learn(72, callback)

    expected = trained(Follows(lambda steps: min(0.5, 0.5 * (steps / 48))), learning_rate="lin_1e-2")
    found = trained(Follows(), learning_rate="lin_1e-2", ent_coef=[[0, 0.0], [48, 0.5]])
    assert_same(expected, found)
    assert found.policies["shared"].ent_coef == 0.5
    with pytest.raises(AssertionError):
        assert_same(found, trained(Follows(), learning_rate="lin_1e-2"))


def test_the_fused_path_follows_all_schedules_as_pytorch_does() -> None:
    fused, torch = make("PPO", update_path="fused").learn(96), make("PPO", update_path="torch").learn(96)
    one, other = (each.policies["shared"].policy.state_dict() for each in (fused, torch))
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=1e-5, err_msg=name)
    far = make("PPO", update_path="torch", ent_coef=0.0).learn(96).policies["shared"].policy.state_dict()
    assert not np.allclose(one["action_net.weight"], far["action_net.weight"], rtol=1e-3, atol=1e-5)


def test_the_learning_rate_and_epsilon_of_the_env_steps_are_logged() -> None:
    seen = Follows()
    make("PPO").learn(72, seen)
    assert seen.logged == pytest.approx([1e-2 - 9e-3 * 24 / 60, 1e-2 - 9e-3 * 48 / 60, 1e-3])
    dqn = make("DQN")
    for _ in range(2):  # without a planned end, points count env steps too
        result = dqn.train_iteration()
    assert result["learners"]["shared"]["exploration_rate"] == pytest.approx(1.0 - 0.8 * 38 / 70)


def test_epsilon_in_shards_is_that_of_the_env_steps() -> None:
    env = make_sharded_vec_env("arena", 4, 2, seed=1, max_timesteps=17)
    algorithm = MultiAgentAlgorithm(env, **{**KINDS["DQN"], "n_steps": 10}).learn(40)
    assert algorithm.policies["shared"].exploration_rate == pytest.approx(1.0 - 0.8 * 30 / 70)
    env.close()


def test_specs_with_schedules_can_be_sent_to_other_processes() -> None:
    spec = PolicySpec("dqn", learning_rate="exp_1e-3", exploration_schedule=[[0, 1.0], [10, 0.0]])
    sent, progress = pickle.loads(pickle.dumps((spec, Progress(0.25, 4))))
    assert (progress, progress.env_steps) == (0.25, 4)
    assert sent.hyperparameters["exploration_schedule"](progress) == pytest.approx(0.6)
    assert sent.hyperparameters["learning_rate"](0.5) == pytest.approx(1e-4)


def test_zips_hold_the_constants_of_the_present(tmp_path: Path) -> None:
    algorithm = make("PPO").learn(48)
    algorithm.save(tmp_path / "saved")
    loaded = MultiAgentAlgorithm.load(tmp_path / "saved", arena(), device="cpu")
    for number, each in enumerate((algorithm, loaded, load_policies(tmp_path / "saved", device="cpu"))):
        bundle = each.bundle() if isinstance(each, MultiAgentAlgorithm) else each
        (path,) = bundle.save_policies(tmp_path / str(number)).values()
        stock = stable_baselines3.PPO.load(path, device="cpu")
        assert (stock.lr_schedule(1.0), stock.clip_range(0.5)) == pytest.approx((1e-2 - 9e-3 * 48 / 60, 0.155))
        assert isinstance(bundle.policies["shared"].lr_schedule.value_schedule, Piecewise)
    assert stable_baselines3.PPO.load(tmp_path / "0" / path.name, device="cpu").ent_coef == 0.25
