"""Load trainings: with another number of envs, from run folders; checkpoints that do not fit are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from small_trainings import SMALL, arena, assert_same, build

from marl_sb3 import DQN, MultiAgentAlgorithm, make_vec_env
from marl_sb3.core.sb3.tensors import read_optimizers
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint
from marl_sb3.extensions.store.tensor_file import StoredTensors


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
    whole = build("shared, batched", seed=5)
    whole.train_iteration()
    whole.save(tmp_path / "saved")
    again = build("shared, batched", **other)
    with pytest.raises(CheckpointError, match=message):
        again.set_state(read_checkpoint(tmp_path / "saved"))


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
