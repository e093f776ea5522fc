"""A training that is broken off and brought back ends with the weights of one that was not, to the last bit."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from run_records import leaves
from small_trainings import CASES, SMALL, Remembers, arena, assert_same, bits, build, tensors_of, without_clock
from toy_envs import RandomEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.core.state.randomness import ProcessRandomness
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.extensions.fast.speed import of_rollouts
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint


class Results(MultiAgentCallback):
    """Keeps every result, and saves at an iteration."""

    def __init__(self, save_at: int = 0, folder: Path | None = None) -> None:
        super().__init__()
        self.results: list[dict[str, Any]] = []
        self.save_at, self.folder = save_at, folder

    def on_iteration_logged(self, result: dict[str, Any]) -> None:
        self.results.append(without_clock(result))
        if result["iteration"] == self.save_at and self.folder is not None:
            self.algorithm.save(self.folder)


def scramble() -> None:
    """What another process would have drawn by now."""
    random.seed(99)
    np.random.seed(98)  # noqa: NPY002
    th.manual_seed(97)


def test_equal_trainings_save_equal_states() -> None:
    """Whatever others draw from the spaces of the env; a network for images draws a sample, too."""
    image, states = spaces.Box(0, 255, (36, 36, 1), np.uint8), []
    for _ in range(2):
        env = marl_sb3.make_vec_env(partial(RandomEnv, image, spaces.Discrete(2)), n_envs=2, seed=1)
        spec = PolicySpec(marl_sb3.PPO, "CnnPolicy", n_epochs=1, batch_size=8)
        algorithm = MultiAgentAlgorithm(env, {"shared": spec}, n_steps=4, seed=3)
        env.groups[0].observation_space.sample()
        algorithm.train_iteration()
        states.append({path: leaf for path, leaf in leaves(algorithm.get_state()[0]) if not path.endswith("_s")})
    assert states[0] == states[1]


@pytest.mark.parametrize("case", CASES)
def test_a_training_that_was_broken_off_ends_as_one_that_was_not(case: str, tmp_path: Path) -> None:
    steps = 6 * SMALL["n_steps"] * 3
    whole, kept = build(case, seed=5), Results(3, tmp_path / "saved")
    whole.learn(steps, callback=kept)
    scramble()
    again, rest = build(case), Results()
    assert again.set_state(read_checkpoint(tmp_path / "saved")) == {}
    again.learn(steps - again.num_timesteps, callback=rest, reset_num_timesteps=False)
    assert rest.results == kept.results[3:]
    assert_same(again, whole)


@pytest.mark.parametrize("left_out", ["nothing", "numpy", "torch"])
def test_a_generator_that_is_not_brought_back_is_found(left_out: str, tmp_path: Path, monkeypatch: Any) -> None:
    """The negative control of the test above."""
    whole = build("shared, batched", seed=5)
    whole.train_iteration()
    whole.save(tmp_path / "saved")
    whole.train_iteration()
    scramble()

    read_state = ProcessRandomness.read_state

    def skip(self: ProcessRandomness, saved: StateReader) -> Any:
        brought = {name: saved.value(name) for name in saved}
        if left_out in brought:
            brought[left_out] = self.get_state()[left_out]
        return read_state(self, StateReader(brought))

    monkeypatch.setattr(ProcessRandomness, "read_state", skip)
    again = build("shared, batched")
    again.set_state(read_checkpoint(tmp_path / "saved"))
    again.train_iteration()
    if left_out == "nothing":
        assert_same(again, whole)
    else:
        with pytest.raises(AssertionError):
            assert_same(again, whole)


@pytest.mark.parametrize("case", ["per agent, batched", "staggered endings", "shared, batched"])
def test_load_makes_the_algorithm_anew(case: str, tmp_path: Path) -> None:
    whole = build(case, seed=5)
    for _ in range(2):
        whole.train_iteration()
    whole.save(tmp_path / "saved")
    again = MultiAgentAlgorithm.load(tmp_path / "saved", CASES[case][0](), device="cpu")
    assert again.policy_of == whole.policy_of
    assert (again.num_timesteps, again.iteration) == (whole.num_timesteps, 2)
    expected = [flatten(whole.train_iteration())]
    whole_tensors = tensors_of(whole)
    again = MultiAgentAlgorithm.load(tmp_path / "saved", CASES[case][0](), device="cpu")
    result = flatten(again.train_iteration())
    assert result["env_runners/episode_return_mean"] == expected[0]["env_runners/episode_return_mean"]
    for a, b in zip(whole_tensors, tensors_of(again), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_policies_made_of_classes_have_to_be_given_again(tmp_path: Path) -> None:
    specs = {"all": PolicySpec(learning_rate=lambda progress: 1e-3 * progress)}
    whole = MultiAgentAlgorithm(arena(), specs, seed=1, **SMALL)
    whole.train_iteration()
    whole.save(tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"policy 'all' was made of classes or functions: pass `policies`"):
        MultiAgentAlgorithm.load(tmp_path / "saved", arena())
    assert_same(MultiAgentAlgorithm.load(tmp_path / "saved", arena(), policies=specs, device="cpu"), whole)


def test_callbacks_remember(tmp_path: Path) -> None:
    class Counting(MultiAgentCallback):
        def __init__(self) -> None:
            super().__init__()
            self.sum = 0.0

        def on_iteration_end(self, result: dict[str, Any]) -> bool:
            self.sum += result["num_env_steps_sampled_lifetime"]
            return True

        def get_state(self) -> dict[str, Any]:
            return {"sum": self.sum}

        def set_state(self, state: Any) -> None:
            self.sum = state.number("sum")

    first = [Counting(), Counting()]
    build("shared, batched", seed=5).learn(4 * 72, callback=[*first, Results(2, tmp_path / "saved")])
    again, later = build("shared, batched"), [Counting(), Counting()]
    again.set_state(read_checkpoint(tmp_path / "saved"))
    again.learn(2 * 72, callback=[*later, Results()], reset_num_timesteps=False)
    assert [callback.sum for callback in later] == [callback.sum for callback in first]
    assert [callback.n_calls for callback in later] == [callback.n_calls for callback in first]


def test_callbacks_remember_what_was_loaded_and_saved_again_before_they_were_there(tmp_path: Path) -> None:
    algorithm = build("shared, batched", seed=5)
    algorithm.learn(72, callback=Remembers(1.5))
    algorithm.save(tmp_path / "first")
    MultiAgentAlgorithm.load(tmp_path / "first", arena(), device="cpu").save(tmp_path / "second")
    again, fresh = MultiAgentAlgorithm.load(tmp_path / "second", arena(), device="cpu"), Remembers(2.5)
    again.learn(72, callback=fresh, reset_num_timesteps=False)
    assert fresh.memory == 1.5


def test_a_training_of_so_many_steps_as_a_float_says_goes_on(tmp_path: Path) -> None:
    algorithm = build("shared, batched", seed=5)
    algorithm.learn(7.2e1)  # type: ignore[arg-type]
    algorithm.save(tmp_path / "saved")
    again = MultiAgentAlgorithm.load(tmp_path / "saved", arena(), device="cpu")
    assert again.num_timesteps == 72


def test_a_folder_that_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    with pytest.raises(ConfigError, match="exists and is not a checkpoint"):
        build("shared, batched").save(tmp_path / "mine")
    assert (tmp_path / "mine" / "precious").read_text() == "x"


@pytest.mark.parametrize("name", ["empty", "model.zip", "model"])
def test_a_folder_appears_where_sb3s_users_expect_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    algorithm = build("shared, batched")
    folder = algorithm.save(tmp_path / name)
    assert folder == tmp_path / name.removesuffix(".zip")
    assert_same(MultiAgentAlgorithm.load(tmp_path / name, arena(), device="cpu"), algorithm)


def test_a_checkpoint_from_the_middle_of_an_iteration_is_said_to_be_inexact(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = build("shared, batched")
    saves = lambda locals_, _: locals_["self"].num_timesteps != 6 or bool(locals_["self"].save(tmp_path / "saved"))  # noqa: E731
    algorithm.learn(72, callback=saves)
    assert caplog.messages == [
        of_rollouts("a callback watches each step"),
        f"inexact: {tmp_path / 'saved'} is saved in the middle of an iteration, whose steps are not in it",
    ]


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    algorithm = build("shared, batched", seed=5)
    with th.no_grad():
        next(algorithm.policies["shared"].policy.parameters())[0] = float("nan")
    with pytest.raises(marl_sb3.errors.NumericError, match=r"policy-000: policy.mlp_extractor.* is not finite"):
        algorithm.save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (th.optim.SGD, {}),
        (th.optim.SGD, {"momentum": 0.9}),
        (th.optim.RMSprop, {}),
        (th.optim.AdamW, {}),
        (th.optim.Adafactor, {}),
    ],
)
def test_other_optimizers_go_on_too(optimizer: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    kwargs = {"policy_kwargs": {"optimizer_class": optimizer, "optimizer_kwargs": settings}}
    whole = build("shared, batched", seed=5, **kwargs)
    for _ in range(2):
        whole.train_iteration()
    whole.save(tmp_path / "saved")
    expected = ProcessRandomness().get_state()
    whole.train_iteration()
    again = build("shared, batched", **kwargs)
    again.set_state(read_checkpoint(tmp_path / "saved"))
    assert bits(ProcessRandomness().get_state()) == bits(expected)
    again.train_iteration()
    assert_same(again, whole)


@pytest.mark.parametrize("times", [1, 2])
def test_a_checkpoint_that_vanishes_while_it_is_loaded_is_followed_by_the_next(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = build("shared, batched")
    folders = [algorithm.save(tmp_path / "checkpoints" / f"ckpt-{number:06}") for number in (1, 2)]
    set_state, vanishing = MultiAgentAlgorithm.set_state, folders[: -1 - times : -1]

    def removing(loaded: MultiAgentAlgorithm, checkpoint: Checkpoint) -> dict[int, str]:
        if vanishing:
            shutil.rmtree(vanishing.pop(0))
        return set_state(loaded, checkpoint)

    monkeypatch.setattr(MultiAgentAlgorithm, "set_state", removing)
    if times == 1:
        assert_same(MultiAgentAlgorithm.load(tmp_path, arena(), device="cpu"), algorithm)
    else:
        with pytest.raises(CheckpointError, match=f"{tmp_path} is a folder that holds no valid checkpoint"):
            MultiAgentAlgorithm.load(tmp_path, arena(), device="cpu")
