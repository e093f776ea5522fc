"""Load trainings and spaces: what fits goes on, and what a stranger may have written is refused in words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from small_trainings import SMALL, arena, assert_same, build

from marl_sb3 import DQN, MultiAgentAlgorithm, make_vec_env
from marl_sb3.core.sb3.tensors import read_optimizers
from marl_sb3.core.state.checkpoint import space_to_plain
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint, write_checkpoint
from marl_sb3.extensions.store.load import space_from_plain
from marl_sb3.extensions.store.tensor_file import StoredTensors
from marl_sb3.wrappers.observations import policy_actions


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


def test_an_iteration_stays_as_long_with_another_number_of_envs(tmp_path: Path) -> None:
    made = MultiAgentAlgorithm(make_vec_env("CartPole-v1", 2), algorithm=DQN, learning_starts=100, buffer_size=1000)
    made.save(tmp_path / "saved")  # by default, an iteration has 1,000 env steps of all envs together
    again = MultiAgentAlgorithm.load(tmp_path / "saved", make_vec_env("CartPole-v1", 3))
    assert (again.n_steps, again.env.num_envs) == (500, 3)


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
        (tmp_path / "run", "latest", 2),
        (tmp_path / "run", "best", 1),
        (tmp_path / "run" / "checkpoints", "1", 1),
        (str(tmp_path / "run" / "checkpoints" / "ckpt-000001"), "latest", 1),
        (tmp_path, "latest", 2),  # as commands take the newest run of a folder
    ):
        assert MultiAgentAlgorithm.load(path, arena(), device="cpu", checkpoint=which).iteration == iteration


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


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"policies": "per_agent"}, "the policy of agent|agent1"),
        ({"n_steps": 12}, "n_steps: 12 given, the checkpoint has 24"),
        ({"policy_kwargs": {"net_arch": [7]}}, "policy-000: .* is not in the policy as it is built"),
        ({"policy_kwargs": {"net_arch": [64, 7]}}, r"policy-000: policy.* is float32 \(.*64.*\); accepted: float32"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(other: dict[str, Any], message: str, tmp_path: Path) -> None:
    build("shared, batched").save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=message):
        build("shared, batched", **other).set_state(read_checkpoint(tmp_path / "saved"))


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
    own, saved = narrow.policies["shared"], checkpoint.state["policies"]["shared"]["optimizers"]
    with pytest.raises(CheckpointError, match=r"optimizer-000: policy.optimizer/0/.*; accepted: float32 \("):
        read_optimizers(own, checkpoint.tensors["optimizer-000"], StateReader(saved))


# --- Spaces ----------------------------------------------------------------------------------------------------------

MIXED = np.array([-np.inf, -1.5, 0.0], np.float32)
SPACES = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    spaces.Box(MIXED, np.array([0.0, np.inf, np.inf], np.float32)),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(np.array([0, 5]), np.array([7, 6]), dtype=np.int16),
    spaces.Box(-1, 1, ()),
    spaces.Box(0, 1, (2,), np.bool_),
    spaces.Box(-1, 1, (0,)),
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, 0]]),
    spaces.MultiBinary(5),
    spaces.MultiBinary([2, 3]),
    spaces.Dict([("z", spaces.Discrete(3)), ("a", spaces.Box(0, 1, (2,)))]),
    policy_actions(
        spaces.Dict(z=spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(0, 1, (2,))]), a=spaces.Discrete(2))
    ),
]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The spaces' descriptions, through the files of a checkpoint."""
    folder: Path = tmp_path_factory.mktemp("spaces") / "saved"
    write_checkpoint(folder, {"all": [space_to_plain(space) for space in SPACES]}, {}, {})
    return list(read_checkpoint(folder).state["all"])


@pytest.mark.parametrize("number", range(len(SPACES)), ids=[str(space)[:40] for space in SPACES])
def test_a_space_comes_back_through_a_checkpoint_as_it_was(number: int, read: list[Any]) -> None:
    plain, expected = read[number], SPACES[number]
    space = space_from_plain(StateReader(plain))
    assert space == expected
    assert (type(space), space.dtype, space.shape) == (type(expected), expected.dtype, expected.shape)
    if isinstance(space, spaces.Dict):
        assert list(space.spaces) == ["z", "a"]
    if isinstance(space, spaces.Box) and isinstance(expected, spaces.Box):
        assert space.is_bounded("below") == expected.is_bounded("below")
    # keys that another version writes are not read, and each of ours is needed
    assert space_from_plain(StateReader({**plain, "sort_keys": True, "dtypes": None})) == expected
    for key in plain:
        with pytest.raises(CheckpointError, match=f"state/{key} is missing"):
            space_from_plain(StateReader({name: value for name, value in plain.items() if name != key}))


def test_a_dict_is_read_with_a_gymnasium_whose_dict_cannot_be_told_to_keep_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = spaces.Dict.__init__

    def of_gymnasium_1_2(self: spaces.Dict, of: Any = None, seed: Any = None, **parts: spaces.Space[Any]) -> None:
        assert "sort_keys" not in parts, "Dict space element is not an instance of Space"
        made(self, of, seed, **parts)

    monkeypatch.setattr(spaces.Dict, "__init__", of_gymnasium_1_2)
    plain = {"kind": "Dict", "spaces": {"z": space_to_plain(spaces.Discrete(3)), "a": space_to_plain(SPACES[0])}}
    space = space_from_plain(StateReader(plain))
    assert list(space.spaces) == ["z", "a"]  # type: ignore[attr-defined]
    assert space == spaces.Dict({"a": SPACES[0], "z": spaces.Discrete(3)})


class Own(spaces.Discrete):
    """A space of somebody's own."""


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Tuple([spaces.Discrete(2)]),
        Own(2),
        spaces.Dict({"a": spaces.Text(3)}),
        spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}),
    ],
    ids=str,
)
def test_other_spaces_have_no_description(space: spaces.Space[Any]) -> None:
    assert space_to_plain(space) is None


def nested(depth: int) -> dict[str, Any]:
    return {"kind": "Tuple", "spaces": {"0": nested(depth - 1)} if depth else {}}


BOX = {"kind": "Box", "dtype": "float32", "shape": [2], "low": -1.0, "high": "inf"}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "state/kind is missing"),
        ({"kind": "Tuple"}, "state/kind is 'Tuple'; accepted: Box, Discrete, MultiDiscrete, MultiBinary, Dict"),
        ({**BOX, "dtype": "object"}, "state/dtype is 'object'; accepted: float16"),
        ({**BOX, "shape": [-1]}, "state/shape/0 is -1; accepted: an integer from 0"),
        ({**BOX, "shape": [1] * 33}, "accepted: at most 32 dimensions"),
        ({**BOX, "low": "nan"}, "state/low is 'nan'; accepted: a number of float32"),
        ({**BOX, "low": 1e300}, "accepted: a number of float32"),
        ({**BOX, "low": 10**400}, "accepted: a number of float32"),
        ({**BOX, "dtype": "uint8"}, "state/low is -1.0; accepted: a number of uint8"),
        ({**BOX, "dtype": "uint8", "low": -1}, "state/low is -1; accepted: a number of uint8"),
        ({**BOX, "high": -2.0}, "state has a low bound above the high one"),
        ({**BOX, "low": {"finite": np.zeros(3, np.float32)}}, "state/low/finite is an array of float32"),
        ({"kind": "Discrete", "n": 0, "start": 0}, "state/n is 0; accepted: an integer from 1"),
        (
            {"kind": "MultiDiscrete", "dtype": "int64", "shape": [1], "nvec": np.array([0]), "start": np.array([0])},
            "has numbers of choices below 1",
        ),
        ({"kind": "MultiBinary", "n": [-1]}, "state/n/0 is -1"),
        ({"kind": "Dict", "spaces": {"a": {"kind": "Dict", "spaces": {}}}}, "state/spaces/a/kind is 'Dict'"),
        ({"kind": "Joined", "of": {"kind": "Discrete", "n": 2, "start": 0}}, "has parts in which no policy acts"),
        ({"kind": "Joined", "of": nested(33)}, "/kind is 'Tuple'; accepted: Box, Discrete"),
    ],
)
def test_a_description_of_a_stranger_is_refused_in_words(plain: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        space_from_plain(StateReader(plain))
    assert message in str(raised.value)
