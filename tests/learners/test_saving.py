"""A training that is broken off and brought back ends with the weights of one that was not, to the last bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from toy_envs import NoisyEnv, SampledEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.learners import random_state, saving
from marl_sb3.metrics import flatten
from marl_sb3.state import Fields

SMALL = {"n_steps": 24, "batch_size": 16, "n_epochs": 2, "device": "cpu"}
PLANS = [
    [({"a": (2 + i, "terminated"), "b": (5, "truncated"), "c": (4, "both")}, {"a": 0, "b": 0, "c": i})]
    for i in range(3)
]


def arena(vectorizer: str = "auto", seed: int | None = None) -> Any:
    return make_vec_env("arena", n_envs=3, seed=seed, vectorizer=vectorizer, max_timesteps=17)


def noisy(seed: int | None = None) -> Any:
    return make_vec_env(NoisyEnv, n_envs=3, seed=seed, plans=PLANS)


def sampled(observation: spaces.Space[Any], action: spaces.Space[Any]) -> Any:
    return lambda: make_vec_env(SampledEnv, n_envs=2, observation_space=observation, action_space=action)


PAIR = {"agent1": "pol1", "agent2": "pol2"}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "shared, batched": (arena, {"learning_rate": "lin_1e-3"}),
    "per agent, batched": (arena, {"policies": "per_agent"}),
    "per agent, serial": (lambda: arena("serial"), {"policies": "per_agent"}),
    "per agent, supersuit": (lambda: arena("supersuit"), {"policies": "per_agent"}),
    "mapped, one frozen": (
        arena,
        {
            "policies": {"pol1": PolicySpec(learning_rate=1e-3), "pol2": PolicySpec(gamma=0.9)},
            "policy_mapping_fn": PAIR,
            "policies_to_train": ["pol2"],
        },
    ),
    "lean": (arena, {"update_path": "lean"}),
    "stock PPO": (arena, {"policies": {"all": PolicySpec(stable_baselines3.PPO)}}),
    "staggered endings": (noisy, {}),
    "target_kl and clip_range_vf": (arena, {"target_kl": 0.003, "clip_range_vf": "lin_0.2"}),
}


def build(case: str, **settings: Any) -> MultiAgentAlgorithm:
    make, options = CASES[case]
    return MultiAgentAlgorithm(make(), **{**SMALL, **options, **settings})


def assert_same(one: MultiAgentAlgorithm, other: MultiAgentAlgorithm) -> None:
    for a, b in zip(saving.tensors_of(one).values(), saving.tensors_of(other).values(), strict=True):
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


class Results(MultiAgentCallback):
    """Keeps every result, and saves at an iteration."""

    def __init__(self, save_at: int = 0, folder: Path | None = None) -> None:
        super().__init__()
        self.results: list[dict[str, Any]] = []
        self.save_at, self.folder = save_at, folder

    def on_iteration_logged(self, result: dict[str, Any]) -> None:
        clocks = ("time", "throughput", "perf", "env_runners/episode_duration")
        self.results.append({k: v for k, v in flatten(result).items() if not k.startswith(clocks)})
        if result["iteration"] == self.save_at and self.folder is not None:
            self.algorithm.save(self.folder)


def scramble() -> None:
    """What another process would have drawn by now."""
    random.seed(99)
    np.random.seed(98)  # noqa: NPY002
    th.manual_seed(97)


@pytest.mark.parametrize("case", CASES)
def test_a_training_that_was_broken_off_ends_as_one_that_was_not(case: str, tmp_path: Path) -> None:
    steps = 6 * SMALL["n_steps"] * 3
    whole, kept = build(case, seed=5), Results(3, tmp_path / "saved")
    whole.learn(steps, callback=kept)
    scramble()
    again, rest = build(case), Results()
    assert again.set_state(marl_sb3.checkpoint.read_checkpoint(tmp_path / "saved")) == {}
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

    def skip(state: Fields) -> None:
        brought = {name: state.value(name) for name in state}
        random_state.set_random_state(Fields({**brought, left_out: random_state.random_state().get(left_out)}))

    monkeypatch.setattr(saving, "set_random_state", skip)
    again = build("shared, batched")
    again.set_state(marl_sb3.checkpoint.read_checkpoint(tmp_path / "saved"))
    again.train_iteration()
    if left_out == "nothing":
        assert_same(again, whole)
    else:
        with pytest.raises(AssertionError):
            assert_same(again, whole)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_equal(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other))


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
    whole_tensors = saving.tensors_of(whole)
    again = MultiAgentAlgorithm.load(tmp_path / "saved", CASES[case][0](), device="cpu")
    result = flatten(again.train_iteration())
    assert result["env_runners/episode_return_mean"] == expected[0]["env_runners/episode_return_mean"]
    for a, b in zip(whole_tensors.values(), saving.tensors_of(again).values(), strict=True):
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
    again.set_state(marl_sb3.checkpoint.read_checkpoint(tmp_path / "saved"))
    again.learn(2 * 72, callback=[*later, Results()], reset_num_timesteps=False)
    assert [callback.sum for callback in later] == [callback.sum for callback in first]
    assert [callback.n_calls for callback in later] == [callback.n_calls for callback in first]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"policies": "per_agent"}, "state/policy_of/agent1 is 'shared'; accepted: 'agent1'|agent1"),
        ({"n_steps": 12}, "state/n_steps is 24; accepted: 12"),
        ({"policy_kwargs": {"net_arch": [7]}}, "policy-000: .* is not in the policy as it is built"),
        ({"policy_kwargs": {"net_arch": [64, 7]}}, r"policy-000: policy.* is float32 \(.*64.*\); accepted: float32"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(other: dict[str, Any], message: str, tmp_path: Path) -> None:
    whole = build("shared, batched", seed=5)
    whole.train_iteration()
    whole.save(tmp_path / "saved")
    again = build("shared, batched", **other)
    with pytest.raises(CheckpointError, match=message):
        again.set_state(marl_sb3.checkpoint.read_checkpoint(tmp_path / "saved"))


def test_a_folder_that_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    with pytest.raises(ConfigError, match="exists and is not a checkpoint"):
        build("shared, batched").save(tmp_path / "mine")
    assert (tmp_path / "mine" / "precious").read_text() == "x"


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    algorithm = build("shared, batched", seed=5)
    with th.no_grad():
        next(algorithm.policies["shared"].policy.parameters())[0] = float("nan")
    with pytest.raises(marl_sb3.errors.NumericError, match=r"policy-000: policy.mlp_extractor.* is not finite"):
        algorithm.save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [(th.optim.SGD, {}), (th.optim.SGD, {"momentum": 0.9}), (th.optim.RMSprop, {}), (th.optim.AdamW, {})],
)
def test_other_optimizers_go_on_too(optimizer: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    kwargs = {"policy_kwargs": {"optimizer_class": optimizer, "optimizer_kwargs": settings}}
    whole = build("shared, batched", seed=5, **kwargs)
    for _ in range(2):
        whole.train_iteration()
    whole.save(tmp_path / "saved")
    expected = random_state.random_state()
    whole.train_iteration()
    again = build("shared, batched", **kwargs)
    again.set_state(marl_sb3.checkpoint.read_checkpoint(tmp_path / "saved"))
    assert _equal(random_state.random_state(), expected)
    again.train_iteration()
    assert_same(again, whole)
