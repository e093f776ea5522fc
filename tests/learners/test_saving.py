"""A training that is broken off and brought back ends with the weights of one that was not, to the last bit."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from toy_envs import NoisyEnv, SampledEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.learners.sb3.tensors import read_optimizers
from marl_sb3.metrics import flatten
from marl_sb3.runners import local
from marl_sb3.storage import checkpoint_format, process_rng
from marl_sb3.storage.checkpoint_folder import CheckpointFolder
from marl_sb3.storage.checkpoint_format import read_checkpoint
from marl_sb3.storage.parts import SavedPart, TensorFile
from marl_sb3.storage.process_rng import ProcessRandomness
from marl_sb3.storage.state import StateReader
from marl_sb3.storage.tensor_file import StoredTensors
from marl_sb3.training import setup
from marl_sb3.transfer.init_from import InitFrom, init_from

SMALL = {"n_steps": 24, "batch_size": 16, "n_epochs": 2, "device": "cpu"}
PLANS = [
    [({"a": (2 + i, "terminated"), "b": (5, "truncated"), "c": (4, "both")}, {"a": 0, "b": 0, "c": i})]
    for i in range(3)
]


def arena(vectorizer: str = "auto", seed: int | None = None) -> Any:
    return make_vec_env("arena", n_envs=3, seed=seed, vectorizer=vectorizer, max_timesteps=17)


def noisy(seed: int | None = None) -> Any:
    return make_vec_env(NoisyEnv, n_envs=3, seed=seed, plans=PLANS)


def in_turns() -> Any:
    """Rollouts of 24 steps end while agent b waits, in the middle of an episode of 14."""
    script = {"a": (14, "truncated"), "b": (14, "terminated")}
    return make_vec_env(NoisyEnv, n_envs=2, plans=[[(script, {}, {"b": [2, 5, 8, 9, 10, 11, 12]})]] * 2)


def sampled(observation: spaces.Space[Any], action: spaces.Space[Any]) -> Any:
    return lambda: make_vec_env(SampledEnv, n_envs=2, observation_space=observation, action_space=action)


PAIR = {"agent1": "pol1", "agent2": "pol2"}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "shared, batched": (arena, {"learning_rate": "lin_1e-3"}),
    "per agent, batched": (arena, {"policies": "per_agent"}),
    "per agent, sync": (lambda: arena("sync"), {"policies": "per_agent"}),
    "per agent, supersuit": (lambda: arena("supersuit"), {"policies": "per_agent"}),
    "mapped, one frozen": (
        arena,
        {
            "policies": {"pol1": PolicySpec(learning_rate=1e-3), "pol2": PolicySpec(gamma=0.9)},
            "policy_mapping_fn": PAIR,
            "policies_to_train": ["pol2"],
        },
    ),
    "torch": (arena, {"update_path": "torch"}),
    "stock PPO": (arena, {"policies": {"all": PolicySpec(stable_baselines3.PPO)}}),
    "staggered endings": (noisy, {}),
    "in turns": (in_turns, {"policies": "per_agent"}),
    "target_kl and clip_range_vf": (arena, {"target_kl": 0.003, "clip_range_vf": "lin_0.2"}),
}


def build(case: str, **settings: Any) -> MultiAgentAlgorithm:
    make, options = CASES[case]
    return MultiAgentAlgorithm(make(), **{**SMALL, **options, **settings})


def tensors_of(algorithm: MultiAgentAlgorithm) -> list[Any]:
    return list(algorithm.get_state()[1].values())


def assert_same(one: MultiAgentAlgorithm, other: MultiAgentAlgorithm) -> None:
    for a, b in zip(tensors_of(one), tensors_of(other), strict=True):
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

    def skip(self: ProcessRandomness, saved: SavedPart) -> Any:
        brought = {name: saved.state.value(name) for name in saved.state}
        return process_rng.read_random_state(StateReader({**brought, left_out: self.get_state().get(left_out)}))

    monkeypatch.setattr(ProcessRandomness, "read_state", skip)
    again = build("shared, batched")
    again.set_state(read_checkpoint(tmp_path / "saved"))
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
        again.set_state(read_checkpoint(tmp_path / "saved"))


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
    assert [record.message for record in caplog.records] == [
        f"inexact: {tmp_path / 'saved'} is saved in the middle of an iteration, whose steps are not in it"
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
    expected = process_rng.random_state()
    whole.train_iteration()
    again = build("shared, batched", **kwargs)
    again.set_state(read_checkpoint(tmp_path / "saved"))
    assert _equal(process_rng.random_state(), expected)
    again.train_iteration()
    assert_same(again, whole)


# --- What cannot be saved is not trained -----------------------------------------------------------------------------


class HalfPrecision(ActorCriticPolicy):
    """Keeps a tensor of a dtype that NumPy does not have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("extra", th.zeros(2, dtype=th.bfloat16))


class Storyteller(ActorCriticPolicy):
    """Keeps something else than tensors."""

    def get_extra_state(self) -> str:
        return "once upon a time"

    def set_extra_state(self, state: str) -> None:
        pass


class Unpicklable:
    """A schedule that holds a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, progress: float) -> float:
        return 1e-3 * progress


class Hoarder(th.optim.SGD):
    """Keeps a list for each parameter."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["all"] = ["x"]


class Clever(th.optim.SGD):
    """Has a setting that is a function."""

    def __init__(self, params: Any, lr: float = 0.1, trick: Any = len) -> None:
        super().__init__(params, lr=lr)
        self.param_groups[0]["trick"] = trick


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (PolicySpec(policy=HalfPrecision), r"policy.extra has dtype torch.bfloat16, which a checkpoint cannot hold"),
        (PolicySpec(policy=Storyteller), r"policy._extra_state has str, which a checkpoint cannot hold"),
        (
            PolicySpec(policy_kwargs={"optimizer_class": Hoarder}),
            r"policy.optimizer \(Hoarder\) has state that a",
        ),
        (
            PolicySpec(policy_kwargs={"optimizer_class": Clever}),
            r"policy.optimizer \(Clever\) has settings that",
        ),
    ],
)
def test_what_could_not_be_saved_is_refused_before_any_training(spec: PolicySpec, message: str) -> None:
    with pytest.raises(ConfigError, match=f"policy 'all' could not be saved: {message}"):
        MultiAgentAlgorithm(arena(), {"all": spec}, **SMALL)


def test_more_policies_than_a_checkpoint_holds_are_refused_before_any_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checkpoint_format._MAX_BYTES, "state.json", 1000)
    with pytest.raises(ConfigError, match="2 policies are more than a checkpoint can hold"):
        build("per agent, batched")


class Remembers(MultiAgentCallback):
    """Remembers whatever it is told to."""

    def __init__(self, memory: Any) -> None:
        super().__init__()
        self.memory = memory

    def get_state(self) -> dict[str, Any]:
        return {"memory": self.memory}

    def set_state(self, state: StateReader) -> None:
        self.memory = state.value("memory")


def test_a_callback_that_remembers_what_no_checkpoint_holds_is_refused_before_any_training() -> None:
    algorithm = build("shared, batched")
    with pytest.raises(ConfigError, match=r"Remembers.get_state\(\) does not return plain data: finite numbers"):
        algorithm.learn(72, callback=Remembers({1, 2}))
    assert algorithm.num_timesteps == 0


def test_a_state_that_turns_into_something_else_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    algorithm, callback = build("shared, batched", seed=5), Remembers(1.5)
    algorithm.learn(72, callback=callback)
    callback.memory = float("nan")
    algorithm.save(tmp_path / "saved")
    assert "the checkpoint is without the state of Remembers" in caplog.text
    again, fresh = MultiAgentAlgorithm.load(tmp_path / "saved", arena(), device="cpu"), Remembers(2.5)
    again.learn(72, callback=fresh, reset_num_timesteps=False)
    assert fresh.memory == 2.5
    assert fresh.n_calls == 2 * callback.n_calls


@pytest.mark.parametrize("reason", ["too large for a checkpoint", "something other than plain data"])
def test_episodes_that_no_checkpoint_holds_are_left_out(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = build("shared, batched", seed=5)
    algorithm.train_iteration()
    with monkeypatch.context() as patch:
        if "large" in reason:
            patch.setattr(local, "fits_into_state", lambda _: False)
        else:
            patch.setattr(algorithm.env, "get_state", lambda: {"numbers": {1, 2}})
        for _ in range(2):
            algorithm.save(tmp_path / "saved")
    assert caplog.text.count(reason) == 1
    caplog.clear()
    again = MultiAgentAlgorithm.load(tmp_path / "saved", arena(), device="cpu")
    assert_same(again, algorithm)
    assert [record.message for record in caplog.records if reason in record.message] == [
        record.message for record in caplog.records
    ]
    assert "inexact: new episodes begin in all envs" in caplog.text
    again.train_iteration()


def test_weights_of_another_shape_are_refused_before_any_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = build("shared, batched", policy_kwargs={"net_arch": [96]})
    wide.train_iteration()
    wide.save(tmp_path / "saved")
    checkpoint = read_checkpoint(tmp_path / "saved")
    load = StoredTensors.load

    def only_arrays(self: StoredTensors, names: Any = None) -> Any:
        assert self._path.name.startswith("arrays"), f"{self._path.name} was read"
        return load(self, names)

    monkeypatch.setattr(StoredTensors, "load", only_arrays)
    narrow = build("shared, batched", policy_kwargs={"net_arch": [8]})
    with pytest.raises(CheckpointError, match=r"\(96, .*accepted: float32 \(8, .*as the policy is built"):
        narrow.set_weights(checkpoint)
    with pytest.raises(ConfigError, match=r"the source's is \(96, .* float32; accepted: \(8, .* float32"):
        init_from(narrow, [InitFrom(tmp_path / "saved")])
    own, saved = narrow.policies["shared"], checkpoint.state["policies"]["shared"]["optimizers"]
    with pytest.raises(CheckpointError, match=r"optimizer-000: policy.optimizer/0/.* is not float32 of shape"):
        read_optimizers(own, TensorFile("optimizer-000", checkpoint.tensors["optimizer-000"]), saved)


def test_a_description_of_networks_beyond_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = build("shared, batched")
    algorithm.save(tmp_path / "saved")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000, total=2**40))
    with pytest.raises(CheckpointError, match=r"describes networks that need .* bytes; 1,000 are free"):
        MultiAgentAlgorithm.load(tmp_path / "saved", arena())


def test_a_long_rollout_has_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = build("shared, batched")
    algorithm.save(tmp_path / "saved")
    monkeypatch.setattr(setup, "_LONGEST_ROLLOUT", 10)
    with pytest.raises(CheckpointError, match=r"n_steps is 24; accepted: at most 10; .* pass n_steps=24"):
        MultiAgentAlgorithm.load(tmp_path / "saved", arena())
    assert MultiAgentAlgorithm.load(tmp_path / "saved", arena(), n_steps=24, device="cpu").n_steps == 24


# --- Other numbers of envs, and other folders ------------------------------------------------------------------------


def test_another_number_of_envs_goes_on_inexactly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = build("per agent, batched", seed=5)
    for _ in range(2):
        whole.train_iteration()
    whole.save(tmp_path / "saved")
    again = MultiAgentAlgorithm.load(
        tmp_path / "saved", make_vec_env("arena", n_envs=5, max_timesteps=17), device="cpu", seed=7
    )
    assert [record.message for record in caplog.records] == [
        "inexact: new episodes begin in all envs: the checkpoint has 3 envs, the run 5"
    ]
    assert_same(again, whole)
    assert (again.num_timesteps, again.iteration) == (whole.num_timesteps, 2)
    assert [e.agent_returns for e in again.tracker.episodes] == [e.agent_returns for e in whole.tracker.episodes]
    result = again.train_iteration()
    assert result["num_env_steps_sampled_lifetime"] == whole.num_timesteps + 5 * SMALL["n_steps"]
    assert result["iteration"] == 3


def test_a_run_folder_is_as_good_as_one_of_its_checkpoints(tmp_path: Path) -> None:
    whole = build("shared, batched", seed=5)
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    for iteration, value in ((1, 3.0), (2, 2.0)):
        whole.train_iteration()
        score = {"score": {"metric": "m", "value": value, "higher_is_better": True}}
        folder.save(iteration, *whole.get_state(), {**whole.about(), **score}, keep=2)
    for name, changed_s in (("run", 2), ("older", 1)):
        config = tmp_path / name / "config.yaml"
        config.parent.mkdir(exist_ok=True)
        config.touch()
        os.utime(config, (changed_s, changed_s))
    for path, which, iteration in (
        (tmp_path / "run", {}, 2),
        (tmp_path / "run", {"checkpoint": "best"}, 1),
        (tmp_path / "run" / "checkpoints", {"checkpoint": "1"}, 1),
        (str(tmp_path / "run" / "checkpoints" / "ckpt-000001"), {}, 1),
        (tmp_path, {}, 2),  # as commands take the newest run of a folder
    ):
        assert MultiAgentAlgorithm.load(path, arena(), device="cpu", **which).iteration == iteration


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none", "none is not there; accepted: a checkpoint, or a run folder that has one"),
        ("pol.zip", "pol.zip is a file: an SB3 zip is opened by SB3's load, or by --init-from; accepted"),
        ("run", "run is a run folder without a checkpoint; accepted"),
        ("", "run is a run folder without a checkpoint; accepted"),
        ("empty", "empty is a folder that holds no valid checkpoint; accepted"),
    ],
)
def test_what_is_no_checkpoint_is_called_by_its_name(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pol.zip").write_bytes(b"PK")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=message):
        MultiAgentAlgorithm.load(tmp_path / path, arena())
