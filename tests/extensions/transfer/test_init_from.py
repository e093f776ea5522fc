"""Policies start from the weights of others: all of them, or nothing is changed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import set_random_seed
from toy_envs import SampledEnv

import marl_sb3
from marl_sb3 import PPO, ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.sb3.tensors import optimizer_arrays
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.extensions.transfer.initial_weights import InitFrom, init_from, parse_init_from

PI, VF = "mlp_extractor.policy_net", "mlp_extractor.value_net"


def make(seed: int, policies: Any = "per_agent", width: int = 4, **options: Any) -> MultiAgentAlgorithm:
    """Two agents, `a` and `b`, that see two numbers and choose from three."""
    env = make_vec_env(lambda: SampledEnv(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)), n_envs=2)
    settings = {"batch_size": 8, "n_epochs": 1, "policy_kwargs": {"net_arch": [width]}, **options}
    return MultiAgentAlgorithm(env, policies, n_steps=8, seed=seed, device="cpu", **settings)


def weights_of(algorithm: MultiAgentAlgorithm) -> dict[str, dict[str, th.Tensor]]:
    """Copies, by policy."""
    return {
        policy_id: {name: tensor.clone() for name, tensor in policy.policy.state_dict().items()}
        for policy_id, policy in algorithm.policies.items()
    }


def changed(before: dict[str, dict[str, th.Tensor]], algorithm: MultiAgentAlgorithm) -> set[str]:
    """`policy/layer` of what is not as it was."""
    after = weights_of(algorithm)
    return {
        f"{policy_id}/{name}"
        for policy_id, tensors in before.items()
        for name, tensor in tensors.items()
        if not th.equal(tensor, after[policy_id][name])
    }


def assert_same(one: dict[str, th.Tensor], other: dict[str, th.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(th.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of policies `a` and `b`, with one checkpoint, and their zips."""
    algorithm = make(1)
    CheckpointFolder(tmp_path / "run" / "checkpoints").save(3, *algorithm.get_state(), algorithm.about(), keep=1)
    algorithm.save_policies(tmp_path / "run" / "policies")
    return tmp_path / "run"


def zip_of(path: Path, tensors: dict[str, Any]) -> Path:
    """An SB3 zip with these weights."""
    data = io.BytesIO()
    th.save(tensors, data)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("policy.pth", data.getvalue())
    return path


def start(text: str, algorithm: MultiAgentAlgorithm, **options: Any) -> None:
    init_from(algorithm, [parse_init_from(part) for part in text.split()], **options)


# --- By layers -------------------------------------------------------------------------------------------------------


def test_only_the_layers_that_fit_a_pattern(run_folder: Path) -> None:
    algorithm = make(2)
    before = weights_of(algorithm)
    start(f"b={run_folder}", algorithm, layers=[f"{PI}.*", "action_net.weight"])
    assert changed(before, algorithm) == {f"b/{PI}.0.weight", "b/action_net.weight"}  # biases are zeros in both


def test_layers_may_come_from_a_policy_with_another_head(tmp_path: Path) -> None:
    source = weights_of(make(1))["a"]
    source["action_net.weight"] = th.zeros(99, 4)
    source["another.layer"] = th.zeros(1)
    algorithm = make(2)
    start(f"a={zip_of(tmp_path / 'x.zip', source)}", algorithm, layers=[f"{PI}.*", f"{VF}.*"], trust_pickle=True)
    assert th.equal(algorithm.policies["a"].policy.state_dict()[f"{VF}.0.weight"], source[f"{VF}.0.weight"])


@pytest.mark.parametrize("update_path", ["fused", "torch"])
def test_a_training_goes_on_from_the_new_weights_with_a_new_optimizer(run_folder: Path, update_path: str) -> None:
    """As if the algorithm had been made with these weights, whatever it has learned before."""
    source = weights_of(make(1))
    fresh, used = (make(2, update_path=update_path) for _ in range(2))
    used.train_iteration()
    counters = used.num_timesteps, used.iteration
    for algorithm in (fresh, used):
        start(f"{run_folder}", algorithm)
    assert (used.num_timesteps, used.iteration) == counters
    for algorithm in (fresh, used):
        algorithm.env.seed(3)
        algorithm.forget_episodes()  # new ones begin in both
        set_random_seed(6)
        algorithm.train_iteration()
    for policy_id, tensors in weights_of(fresh).items():
        assert_same(tensors, weights_of(used)[policy_id])
        assert not th.equal(tensors["action_net.weight"], source[policy_id]["action_net.weight"])


@pytest.mark.parametrize("algorithm_class", [stable_baselines3.SAC, marl_sb3.DQN], ids=["SAC", "DQN"])
def test_a_policy_with_a_replay_buffer_starts_with_new_optimizers_too(algorithm_class: Any, tmp_path: Path) -> None:
    """SAC has optimizers of its actor and its critics, and none of the whole policy."""
    actions = spaces.Box(-1, 1, (2,)) if algorithm_class is stable_baselines3.SAC else spaces.Discrete(3)
    source, used = (off_policy(algorithm_class, actions, seed) for seed in (1, 2))
    for algorithm in (source, used):
        algorithm.learn(12)
    start(f"{source.save(tmp_path / 'saved')}", used)
    assert_same(weights_of(used)["a"], weights_of(source)["a"])
    assert optimizer_arrays(used.policies["a"]) == {}
    used.learn(4, reset_num_timesteps=False)
    assert {int(array) for name, array in optimizer_arrays(used.policies["a"]).items() if name.endswith("step")} == {4}


def off_policy(algorithm_class: Any, actions: Any, seed: int) -> MultiAgentAlgorithm:
    env = make_vec_env(lambda: SampledEnv(spaces.Box(-1, 1, (2,)), actions), n_envs=1)
    spec = PolicySpec(algorithm_class, learning_starts=4, train_freq=1, batch_size=4, policy_kwargs={"net_arch": [4]})
    return MultiAgentAlgorithm(env, dict.fromkeys("ab", spec), n_steps=4, seed=seed, device="cpu")


# --- Nothing is changed if anything is wrong -------------------------------------------------------------------------

NO_TENSOR = "layer 'value_net.bias': the source's is no plain tensor; accepted: (1,) float32"
# What is wrong with one layer of the source (None: it is left out), and the message.
FAULTS: dict[str, tuple[str, Any, str]] = {
    "shape": (
        f"{PI}.0.weight",
        th.zeros(5, 2),
        f"policy 'b', layer '{PI}.0.weight': the source's is (5, 2) float32; accepted: (4, 2) float32",
    ),
    "dtype": (
        "value_net.bias",
        th.zeros(1, dtype=th.float64),
        "policy 'b', layer 'value_net.bias': the source's is (1,) float64; accepted: (1,) float32",
    ),
    "nan": (
        "value_net.bias",
        th.tensor([float("nan")]),
        "policy 'b', layer 'value_net.bias': the source's is not finite",
    ),
    "no tensor": ("value_net.bias", [1.0], NO_TENSOR),
    "no numbers": ("value_net.bias", th.zeros(1, device="meta"), NO_TENSOR),
    "sparse": ("value_net.bias", th.zeros(1).to_sparse(), NO_TENSOR),
    "missing": ("value_net.bias", None, "policy 'b': the source has no layer 'value_net.bias'"),
    "too many": ("log_std", th.zeros(1), "policy 'b' has no layer 'log_std', which the source has"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_source_that_does_not_fit_is_refused_and_nothing_is_changed(tmp_path: Path, fault: str) -> None:
    name, tensor, message = FAULTS[fault]
    source: dict[str, Any] = {**weights_of(make(1))["b"], name: tensor}
    path = zip_of(tmp_path / "b.zip", {name: tensor for name, tensor in source.items() if tensor is not None})
    algorithm = make(2)
    algorithm.train_iteration()
    before = weights_of(algorithm)
    with pytest.raises(ConfigError) as caught:
        start(f"b={path}", algorithm, trust_pickle=True)
    assert message in str(caught.value)
    assert changed(before, algorithm) == set()
    assert all(policy.policy.optimizer.state for policy in algorithm.policies.values())


# --- From files ------------------------------------------------------------------------------------------------------


def test_a_run_gives_each_policy_its_own(run_folder: Path) -> None:
    algorithm = make(2)
    start(f"{run_folder}", algorithm)
    source = weights_of(make(1))
    for policy_id, tensors in weights_of(algorithm).items():
        assert_same(tensors, source[policy_id])


@pytest.mark.parametrize(("activation", "n_warnings"), [("tanh", 0), ("relu", 1)])
def test_another_activation_function_is_told(
    activation: str, n_warnings: int, run_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same weights compute something else then; `tanh` is the default that the source has."""
    start(f"b={run_folder}", make(2, policy_kwargs={"net_arch": [4], "activation_fn": activation}))
    assert [record.getMessage() for record in caplog.records] == n_warnings * [
        f"policy b has policy_kwargs.activation_fn ReLU, and {run_folder} was trained with Tanh: with the same weights "
        "it acts differently"
    ]


def test_one_policy_starts_from_another_of_a_run(run_folder: Path) -> None:
    algorithm = make(2)
    before = weights_of(algorithm)
    start(f"b={run_folder}:a", algorithm)
    assert_same(weights_of(algorithm)["b"], weights_of(make(1))["a"])
    assert_same(weights_of(algorithm)["a"], before["a"])


def test_all_policies_start_from_one_policy_of_a_checkpoint(run_folder: Path) -> None:
    algorithm = make(2, {"x": PolicySpec(PPO)})
    start(f"{run_folder / 'checkpoints' / 'ckpt-000003'}:b", algorithm)
    assert_same(weights_of(algorithm)["x"], weights_of(make(1))["b"])


def test_a_zip_starts_all_policies_or_one(run_folder: Path) -> None:
    source, algorithm = weights_of(make(1))["a"], make(2)
    before = weights_of(algorithm)
    start(f"a={run_folder / 'policies' / 'a.zip'}", algorithm, trust_pickle=True)
    assert_same(weights_of(algorithm)["a"], source)
    assert_same(weights_of(algorithm)["b"], before["b"])
    start(f"{run_folder / 'policies' / 'a.zip'}", algorithm, trust_pickle=True)
    assert_same(weights_of(algorithm)["b"], source)


def test_policies_can_change_places(run_folder: Path) -> None:
    algorithm, before = make(1), weights_of(make(1))
    start(f"a={run_folder}:b b={run_folder}:a", algorithm)
    after = weights_of(algorithm)
    assert_same(after["a"], before["b"])
    assert_same(after["b"], before["a"])


def test_a_policy_that_the_run_lacks_is_named_with_those_it_has(run_folder: Path) -> None:
    algorithm = make(2, {"x": PolicySpec(PPO)})
    with pytest.raises(ConfigError, match=f"^{run_folder}: the source has no policy 'x'; it has a, b$"):
        start(f"{run_folder}", algorithm)


WRONG = [
    ("b={run}", {"layers": ["action_nt.*"]}, "policy 'b' has no layer 'action_nt.*'; it has"),
    ("c={run}", {}, "unknown policy 'c'; accepted: a, b"),
    ("a={run}:c", {}, "the source has no policy 'c'; it has a, b"),
    ("{run} a={run}", {}, "policy 'a' would start from two sources"),
    ("{run}x", {}, "runx; accepted: [POLICY=]PATH[:SOURCE_POLICY]"),
    ("a={run}/policies/a.zip", {}, "is an SB3 zip, which holds pickles"),
    ("a={run}/policies/a.zip:b", {"trust_pickle": True}, "a.zip holds one policy; accepted: no :SOURCE_POLICY"),
    ("a={run}/checkpoints/ckpt-000003/state.json", {"trust_pickle": True}, "is not a valid SB3 zip: "),
    ("a={run} b={run}/policies", {}, "holds no valid checkpoint"),
    ("a={run} b={run}:c", {}, "the source has no policy 'c'"),
]


@pytest.mark.parametrize(("text", "options", "message"), WRONG)
def test_a_wrong_source_is_refused_and_nothing_is_changed(
    run_folder: Path, text: str, options: dict[str, Any], message: str
) -> None:
    algorithm = make(2)
    before = weights_of(algorithm)
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        start(text.format(run=run_folder), algorithm, **options)
    assert message in str(caught.value)
    assert changed(before, algorithm) == set()


def test_a_network_of_another_size_is_refused(run_folder: Path) -> None:
    algorithm = make(2, width=5)
    with pytest.raises(
        ConfigError, match=r"policy 'a', layer .*: the source's is \(4, 2\) float32; accepted: \(5, 2\)"
    ):
        start(f"{run_folder}", algorithm)


def test_a_zip_much_larger_than_the_policy_is_refused_before_it_is_read(tmp_path: Path) -> None:
    make(1, width=5000).save_policies(tmp_path)  # 4 x 13 kB + 1 MiB are accepted
    make(1, "shared", width=200_000).save_policies(tmp_path)
    with pytest.raises(ConfigError, match=r"layer .* the source's is \(5000, 2\)"):
        start(f"a={tmp_path}/a.zip", make(2), trust_pickle=True)
    with pytest.raises(ConfigError, match=r"policy\.pth has \d+ bytes; accepted: up to 1049"):
        start(f"{tmp_path}/shared.zip", make(2), trust_pickle=True)


# --- Its text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("runs/arena/1", InitFrom(Path("runs/arena/1"))),
        ("old.zip", InitFrom(Path("old.zip"))),
        ("pol1=old.zip", InitFrom(Path("old.zip"), "pol1")),
        ("pol1=runs/arena/1:polX", InitFrom(Path("runs/arena/1"), "pol1", "polX")),
        ("team/1=run:team/2", InitFrom(Path("run"), "team/1", "team/2")),
        ("runs/arena/1:polX", InitFrom(Path("runs/arena/1"), None, "polX")),
        ("C:\\runs\\1", InitFrom(Path("C:\\runs\\1"))),
        ("pol1=C:\\runs\\1:polX", InitFrom(Path("C:\\runs\\1"), "pol1", "polX")),
        ("pol1=a=b", InitFrom(Path("a=b"), "pol1")),
    ],
)
def test_text_forms(text: str, parsed: InitFrom) -> None:
    assert parse_init_from(text) == parsed


@pytest.mark.parametrize("text", ["", "=run", "pol1=", "run:", "pol1=:x", ":x"])
def test_text_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--init-from is '.*'; accepted: \[POLICY=\]PATH"):
        parse_init_from(text)
