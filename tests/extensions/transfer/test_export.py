"""`python -m marl_sb3.export`: the files act as the policies, and are there whole or not at all."""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from refusals import refusal
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor
from toy_envs import SampledEnv, batch

import marl_sb3
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.errors import ConfigError, ExportError
from marl_sb3.export import main
from marl_sb3.extensions.transfer import onnx_graph
from marl_sb3.extensions.transfer.export import Exported, export_policies
from marl_sb3.extensions.transfer.onnx_check import largest_difference
from marl_sb3.extensions.transfer.onnx_graph import to_onnx
from marl_sb3.runs.run import Run
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import prepare

pytestmark = pytest.mark.usefixtures("one_onnx_registry")
NUMBERS = spaces.Box(-1, 1, (2, 3))
MOVES = spaces.Box(np.array([-0.1, -2.0], dtype=np.float32), np.array([0.1, 2.0], dtype=np.float32))
TINY_CNN = {"policy_kwargs.features_extractor_kwargs": {"features_dim": 8}}
MIXED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (1, 36, 36), np.uint8),
        "place": spaces.Discrete(4),
        "doors": spaces.MultiDiscrete([3, 2]),
        "mean": spaces.Box(-np.inf, np.inf, (3,), np.float64),  # a name that the graph has for itself
    }
)

SEEN_IN_ENV = "what the agent sees in the env; processed, where the entry `processing` says how"

# Observations, actions, policy, settings.
CASES: dict[str, tuple[spaces.Space, spaces.Space, str, dict[str, Any]]] = {
    "box": (NUMBERS, MOVES, "MlpPolicy", {"learning_rate": "lin_0.1", "clip_range_vf": "lin_0.5"}),
    "discrete": (
        spaces.Discrete(5),
        spaces.Discrete(4),
        "MlpPolicy",
        {"learning_rate": [[0, 0.1], [9, 0.2]], "clip_range": "exp_0.1", "ent_coef": "lin_0.1"},
    ),
    "multi_discrete": (spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([3, 2]), "MlpPolicy", {}),
    "multi_binary": (spaces.MultiBinary(4), spaces.MultiBinary(3), "MlpPolicy", {}),
    "images": (spaces.Box(0, 255, (36, 40, 3), np.uint8), spaces.Discrete(3), "CnnPolicy", TINY_CNN),
    "grid": (spaces.Box(0, 255, (7, 9, 3), np.uint8), spaces.Discrete(3), "auto", {}),
    "dict": (MIXED, MOVES, "MultiInputPolicy", {"policy_kwargs.share_features_extractor": False}),
    "gsde": (NUMBERS, MOVES, "MlpPolicy", {"use_sde": True, "policy_kwargs.squash_output": True}),
}


def run_of(case: str, folder: Path, policies: Any = "shared", **more: Any) -> Run:
    """A run as `restore` returns it: built, with weights that are not those it was built with."""
    observation_space, action_space, policy, settings = CASES[case]
    settings = {"policy": policy, "n_steps": 8, "batch_size": 8, **settings, **more}
    config = load_config("sampled", settings=settings, policies=policies, n_envs=2, seed=1)
    run = prepare(config, folder, lambda: SampledEnv(observation_space, action_space))
    run.checkpoint = "ckpt-000003"
    generator = th.Generator().manual_seed(2)
    with th.no_grad():
        for algorithm in run.algorithm.policies.values():
            for parameter in algorithm.policy.parameters():
                parameter.add_(0.1 * th.randn(parameter.shape, generator=generator))
    return run


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


# --- SB3 -------------------------------------------------------------------------------------------------------------

PREDICT_WITHOUT_US = """
import sys
sys.modules["marl_sb3"] = None
import numpy as np, stable_baselines3, torch as th
th.set_num_threads(1)
for path in sys.argv[1:]:
    with np.load(path + ".observations.npz") as stored:
        observations = stored["only"] if "only" in stored else dict(stored)
    algorithm = stable_baselines3.PPO.load(path, device="cpu")
    likeliest, _ = algorithm.predict(observations, deterministic=True)
    th.manual_seed(5)
    if algorithm.use_sde:
        algorithm.policy.reset_noise()
    drawn, _ = algorithm.predict(observations)
    np.savez(path + ".actions.npz", likeliest=likeliest, drawn=drawn)
"""


def test_stock_sb3_opens_the_zips_without_marl_sb3_and_predicts_the_same(tmp_path: Path) -> None:
    runs = {case: run_of(case, tmp_path / case) for case in CASES if case != "grid"}  # its network is marl_sb3's own
    paths = {case: export_policies(run.bundle(), "sb3", tmp_path / case / "out")[0].path for case, run in runs.items()}
    for case, path in paths.items():
        observations = batch(CASES[case][0], 9)
        arrays = observations if isinstance(observations, dict) else {"only": observations}
        np.savez(f"{path}.observations.npz", **arrays)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PREDICT_WITHOUT_US, *map(str, paths.values())],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for case, path in paths.items():
        algorithm = runs[case].algorithm.policies["shared"]
        with np.load(f"{path}.actions.npz") as received:
            expected, _ = algorithm.predict(batch(CASES[case][0], 9), deterministic=True)
            np.testing.assert_array_equal(received["likeliest"], expected, case)
            th.manual_seed(5)
            if algorithm.use_sde:
                algorithm.policy.reset_noise()
            np.testing.assert_array_equal(received["drawn"], algorithm.predict(batch(CASES[case][0], 9))[0], case)


# --- ONNX ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def onnx_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Run, Exported]]:
    """A run and its file, of a case of `CASES`, exported when it is first asked for."""

    @cache
    def exported(case: str) -> tuple[Run, Exported]:
        folder = tmp_path_factory.mktemp(case)
        run = run_of(case, folder / "mine")
        return run, export_policies(run.bundle(), "onnx", folder / "out", {"env": "sampled", "run": "mine"})[0]

    return exported


@pytest.mark.parametrize("case", CASES)
def test_onnx_acts_as_the_policy_on_observations_as_the_env_gives_them(case: str, onnx_of: Any) -> None:
    run, exported = onnx_of(case)
    assert exported.difference is not None
    assert exported.difference <= 1e-5
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    for rows in (1, 7):
        observations = batch(CASES[case][0], rows)
        named = observations if isinstance(observations, dict) else {"": observations}
        inputs = {f"observation.{key}".removesuffix("."): array for key, array in named.items()}
        actions, values, *_ = session.run(["actions", "values"], inputs)
        expected, _ = run.algorithm.policies["shared"].predict(observations, deterministic=True)
        assert actions.dtype == expected.dtype
        np.testing.assert_allclose(actions, expected, atol=1e-5)
        assert values.shape == (rows,)


def test_onnx_file_says_what_it_is_of_and_nothing_of_the_machine(onnx_of: Any) -> None:
    _, exported = onnx_of("discrete")
    content = exported.path.read_bytes()
    said = {item.key: item.value for item in onnx.load_from_string(content).metadata_props}
    outputs = json.loads(said.pop("outputs"))
    assert [(name, own["dtype"], own["shape"]) for name, own in outputs.items()] == [
        ("actions", "int64", ["batch"]), ("values", "float32", ["batch"]), ("logits", "float32", ["batch", 4]),
    ]  # fmt: skip
    assert said == {
        "policy": "shared",
        "agents": json.dumps(["a", "b"]),
        "observation_space": "Discrete(5)",
        "action_space": "Discrete(4)",
        "inputs": json.dumps({"observation": {"dtype": "int64", "shape": ["batch"], "meaning": SEEN_IN_ENV}}),
        "env": "sampled",
        "run": "mine",
        "checkpoint": "ckpt-000003",
    }
    for folder in (Path(marl_sb3.__file__).parent, Path(th.__file__).parent, exported.path.parent.parent):
        assert str(folder).encode() not in content


def test_exporting_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("discrete", tmp_path)
    algorithm = run.algorithm.policies["shared"]
    run.algorithm.train_iteration()
    monkeypatch.setattr(th.distributions.Distribution, "_validate_args", False)
    before = th.random.get_rng_state(), {n: t.clone() for n, t in algorithm.policy.state_dict().items()}
    space_before = algorithm.observation_space.np_random.bit_generator.state
    export_policies(run.bundle(), "onnx", tmp_path / "out")
    assert th.equal(th.random.get_rng_state(), before[0])
    assert all(th.equal(tensor, before[1][name]) for name, tensor in algorithm.policy.state_dict().items())
    assert algorithm.observation_space.np_random.bit_generator.state == space_before
    assert all(parameter.requires_grad for parameter in algorithm.policy.parameters())
    assert th.distributions.Distribution._validate_args is False
    run.algorithm.train_iteration()


# --- The check finds faults ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def box_run(onnx_of: Any) -> Run:
    run: Run = onnx_of("box")[0]
    return run


@pytest.fixture(scope="module")
def box_model(onnx_of: Any) -> bytes:
    model: bytes = onnx_of("box")[1].path.read_bytes()
    return model


@pytest.fixture
def restored_weights(box_run: Run) -> Iterator[dict[str, th.nn.Parameter]]:
    policy = box_run.algorithm.policies["shared"].policy
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    yield dict(policy.named_parameters())
    policy.load_state_dict(before)


def test_a_change_of_any_layer_after_the_export_is_found(
    box_run: Run, box_model: bytes, restored_weights: dict[str, th.nn.Parameter]
) -> None:
    algorithm = box_run.algorithm.policies["shared"]
    assert len(restored_weights) == 13
    for parameter in restored_weights.values():
        assert largest_difference(box_model, algorithm, NUMBERS) < 1e-5
        before = parameter.detach().clone()
        with th.no_grad():
            parameter.view(-1)[0] += 0.02
        with pytest.raises(ExportError, match=r"the ONNX graph does not act as the policy: \w+ differ by"):
            largest_difference(box_model, algorithm, NUMBERS)
        with th.no_grad():
            parameter.copy_(before)


@pytest.mark.parametrize("name", ["values", "mean", "log_std"])
def test_an_output_that_the_graph_computes_wrongly_is_found(name: str, box_run: Run, box_model: bytes) -> None:
    model = onnx.load_from_string(box_model)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["right" if each == name else each for each in names]
    half = onnx.helper.make_tensor("half", onnx.TensorProto.FLOAT, (), [0.5])
    model.graph.initializer.append(half)
    model.graph.node.append(onnx.helper.make_node("Add", ["right", "half"], [name]))
    with pytest.raises(ExportError, match=f"{name} differ by 0.5"):
        largest_difference(model.SerializeToString(), box_run.algorithm.policies["shared"], NUMBERS)


def test_outputs_are_those_of_the_distribution(box_run: Run, box_model: bytes) -> None:
    algorithm = box_run.algorithm.policies["shared"]
    session = onnxruntime.InferenceSession(box_model, providers=["CPUExecutionProvider"])
    mean, log_std = session.run(["mean", "log_std"], {"observation": batch(CASES["box"][0], 3)})
    np.testing.assert_array_equal(log_std, np.tile(algorithm.policy.log_std.detach(), (3, 1)))
    assert (np.abs(mean) > MOVES.high).any()  # which the actions never are


def test_weights_that_are_nan_are_found(
    box_run: Run, box_model: bytes, restored_weights: dict[str, th.nn.Parameter]
) -> None:
    with th.no_grad():
        restored_weights["value_net.bias"].fill_(float("nan"))
    with pytest.raises(ExportError, match="values differ by nan"):
        largest_difference(box_model, box_run.algorithm.policies["shared"], NUMBERS)


def test_clipping_to_other_bounds_is_found(box_run: Run, box_model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = box_run.algorithm.policies["shared"]
    monkeypatch.setattr(algorithm.policy, "action_space", spaces.Box(MOVES.low, MOVES.high * 1.1))
    with pytest.raises(ExportError, match="actions differ"):
        largest_difference(box_model, algorithm, NUMBERS)


def test_a_graph_that_does_something_else_gets_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("images", tmp_path / "run")
    monkeypatch.setattr(th.Tensor, "permute", lambda self, *axes: self.transpose(1, 3))  # width and height swapped
    with pytest.raises(ExportError, match=r"policy 'shared': the ONNX graph does not act as the policy: \w+ differ"):
        export_policies(run.bundle(), "onnx", tmp_path / "out")
    assert files_in(tmp_path / "out") == []


def test_another_action_is_no_fault_where_two_are_equally_likely_and_one_where_not(tmp_path: Path) -> None:
    space = CASES["discrete"][0]
    algorithm = run_of("discrete", tmp_path).algorithm.policies["shared"]
    head = algorithm.policy.action_net
    with th.no_grad():
        head.weight[1] = head.weight[0]
        head.bias[1] = head.bias[0] = 9.0  # the likeliest two
        head.bias[1] += 2e-5
    model = to_onnx(algorithm, space, {})  # which takes the second
    with th.no_grad():
        head.bias[1] -= 4e-5  # SB3 takes the first
    assert largest_difference(model, algorithm, space) < 1e-4
    with th.no_grad():
        head.bias[1] -= 1e-3
    with pytest.raises(ExportError, match=r"(actions|logits) differ"):
        largest_difference(model, algorithm, space)


def test_a_damaged_file_is_refused(box_run: Run, box_model: bytes) -> None:
    with pytest.raises(ExportError, match="onnxruntime cannot load the ONNX graph"):
        largest_difference(box_model[: len(box_model) // 2], box_run.algorithm.policies["shared"], NUMBERS)


# --- What cannot be exported -----------------------------------------------------------------------------------------


class Undecided(FlattenExtractor):
    """Its way depends on the numbers."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations if observations.sum() > 0 else -observations)


class Averaging(BaseFeaturesExtractor):
    """Has batch norm, dropout, and a value in its graph that is called as an output is."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 3)
        self.norm, self.dropout = th.nn.BatchNorm1d(3), th.nn.Dropout(0.5)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        mean = observations.mean(dim=1)
        return self.dropout(self.norm(mean))


def test_a_network_that_has_no_graph_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_of("box", tmp_path / "run")
    algorithm = run.algorithm.policies["shared"]
    algorithm.policy_kwargs = {"features_extractor_class": Undecided}
    with pytest.raises(ExportError, match=r"PyTorch cannot turn the policy's network into an ONNX graph: [^\n]+$"):
        to_onnx(algorithm, NUMBERS, {})
    assert capfd.readouterr() == ("", "")


def test_a_network_of_ones_own_is_exported_as_it_predicts(tmp_path: Path) -> None:
    run = run_of("box", tmp_path / "run")
    own = run.algorithm.policies["shared"]
    own.policy_kwargs = {"features_extractor_class": Averaging}
    own._setup_model()
    with th.no_grad():
        own.policy.features_extractor.norm.running_mean += 0.5
    assert largest_difference(to_onnx(own, NUMBERS, {}), own, NUMBERS) < 1e-5


def test_another_kind_of_policy_is_refused(tmp_path: Path) -> None:
    algorithm = run_of("box", tmp_path).algorithm.policies["shared"]
    algorithm.policy.action_dist = object()
    with pytest.raises(ConfigError, match="ActorCriticPolicy with object has no ONNX form; accepted: SB3's"):
        to_onnx(algorithm, NUMBERS, {})


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"package onnxscript.*pip install .*'\.\[onnx\]'"):
        export_policies(run_of("box", tmp_path / "run").bundle(), "onnx", tmp_path / "out")
    assert files_in(tmp_path / "out") == []


def test_policies_whose_ids_make_one_name_get_a_file_each(tmp_path: Path) -> None:
    run = run_of("discrete", tmp_path / "run", {"t/1": {"agents": ["a"]}, "t_1": {"agents": ["b"]}})
    exported = export_policies(run.bundle(), "sb3", tmp_path / "out")
    assert [file.policy_id for file in exported] == ["t/1", "t_1"]
    assert sorted(file.path.name for file in exported) == files_in(tmp_path / "out")
    assert len(files_in(tmp_path / "out")) == 2


# --- The command -----------------------------------------------------------------------------------------------------


OWN_ENV = "toy_envs:ScriptedEnv"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with two policies and a checkpoint after each of its three iterations."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = {"n_steps": 4, "batch_size": 4, "n_epochs": 1, "checkpoint_every": 1}
    marl_sb3.train(OWN_ENV, policies="per_agent", timesteps=24, n_envs=2, seed=1, settings=settings, run_dir=folder)
    return folder


@pytest.fixture
def run_folder(in_tmp: Path, trained: Path) -> Path:
    """A copy of it, as `run` in the working directory."""
    shutil.copytree(trained, "run")
    return Path("run")


def export(line: str) -> int:
    return main([*line.split(), "--env", OWN_ENV])


def test_the_command_writes_a_file_for_each_policy_and_a_line_for_each_file(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("run --checkpoint 2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d+ kB", "N kB", line) for line in lines] == [
        "run/export/sb3/a.zip: policy a of ckpt-000002, N kB",
        "run/export/sb3/b.zip: policy b of ckpt-000002, N kB",
    ]
    assert export("run --format onnx --checkpoint latest --out there") == 0
    lines = capsys.readouterr().out.splitlines()
    pattern = r"there/a\.onnx: policy a of ckpt-000003, \d+ kB; largest difference from PyTorch \de[-+]\d+"
    assert re.fullmatch(pattern, lines[0])
    assert len(lines) == 2
    assert files_in(Path("there")) == ["a.onnx", "b.onnx"]
    assert files_in(run_folder / "export") == ["a.zip", "b.zip", "sb3"]


def test_the_weights_are_those_of_the_checkpoint(run_folder: Path) -> None:
    for which in ("1", "latest"):
        assert export(f"run --checkpoint {which} --out {which}") == 0
    for policy_id in ("a", "b"):
        at_the_end = stable_baselines3.PPO.load(run_folder / "policies" / f"{policy_id}.zip", device="cpu")
        same = []
        for which in ("1", "latest"):
            exported = stable_baselines3.PPO.load(Path(which) / f"{policy_id}.zip", device="cpu").policy.state_dict()
            same.append(all(th.equal(t, exported[n]) for n, t in at_the_end.policy.state_dict().items()))
        assert same == [False, True]


WRONG = [
    ("", "the following arguments are required: RUN"),
    ("runn", "runn is not a run folder"),
    ("run --format tflite", "argument --format: invalid choice: 'tflite'"),
    (f"run --env {OWN_ENV} --checkpoint 99", "no checkpoint '99'; accepted: best, latest, or one of 1, 2, 3"),
    (f"run --env {OWN_ENV} --out run/config.yaml", "--out: run/config.yaml is not a folder"),
    (f"run --env {OWN_ENV} --out run/config.yaml/x", "--out: cannot write to run/config.yaml/x: Not a directory"),
    (f"run --env {OWN_ENV} --out run/policies", "run/policies/a.zip exists already; --force replaces it"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_a_wrong_command_line_is_refused_in_words(
    run_folder: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    before = {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}
    said = refusal(main, line.split(), capsys)
    assert message in said
    assert len(said.splitlines()) == 1
    assert {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()} == before


def test_an_env_of_ones_own_is_neither_named_nor_imported(run_folder: Path) -> None:
    config = run_folder / "config.yaml"
    config.write_text(config.read_text().replace(OWN_ENV, "nobody.has.this:Env"))
    assert main(["run"]) == 0
    assert files_in(run_folder / "export") == ["a.zip", "b.zip", "sb3"]


def test_force_replaces(run_folder: Path) -> None:
    Path("out").mkdir()
    Path("out/b.zip").write_text("mine")
    assert export("run --out out --force") == 0
    assert files_in(Path("out")) == ["a.zip", "b.zip"]
    assert Path("out/b.zip").read_bytes() != b"mine"


def test_a_full_disk_is_named(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_space(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PolicyBundle, "save_policies", no_space)
    assert export("run --out out") == 1
    assert "No space left on device: 'out'" in capsys.readouterr().err
    assert files_in(Path("out")) == []


def test_a_failed_export_leaves_the_former_files(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()
    Path("out/a.onnx").write_text("former")

    def fail(*arguments: Any) -> bytes:
        raise ExportError("no luck")

    monkeypatch.setattr(onnx_graph, "to_onnx", fail)
    assert export("run --format onnx --out out --force") == 1
    assert capsys.readouterr().err == "error: policy 'a': no luck\n"
    assert files_in(Path("out")) == ["a.onnx"]
    assert Path("out/a.onnx").read_text() == "former"
