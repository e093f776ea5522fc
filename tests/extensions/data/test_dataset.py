"""Datasets of recorded episodes: written by Minari itself, read by marl_sb3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from recordings import BOX, TWO

from marl_sb3.errors import ConfigError
from marl_sb3.extensions.data.dataset import joint_episodes, read_policy_data, recorded_policies


def buffer(length: int, fill: float = 0.0, **infos: Any) -> EpisodeBuffer:
    """An episode of so many actions that ends in a terminal state."""
    ends = np.arange(length) == length - 1
    return EpisodeBuffer(
        observations=np.full((length + 1, 3), fill, np.float32),  # type: ignore[arg-type]
        actions=np.arange(length) % 2,  # type: ignore[arg-type]
        rewards=np.arange(length, dtype=np.float64),  # type: ignore[arg-type]
        terminations=ends,  # type: ignore[arg-type]
        truncations=np.zeros(length, bool),  # type: ignore[arg-type]
        infos=infos or None,
    )


def of_agent(length: int, episode_id: str, agent: str = "a", **infos: Any) -> EpisodeBuffer:
    facts = {"agent": [agent], "episode_id": [episode_id], "env_index": [3], "episode_seed": [11]}
    return buffer(length, **facts, **infos)


def write(folder: Path, *episodes: EpisodeBuffer, policy_id: str | None = None, action_space: Any = TWO) -> Path:
    """Write a dataset in the way of anybody who uses Minari."""
    folder.mkdir(parents=True)
    storage = MinariStorage.new(folder, BOX, action_space, jpeg_encoding=False)
    storage.update_metadata({"dataset_id": "test-v0", "minari_version": "0.5.4"})
    if policy_id is not None:
        storage.update_metadata({"marl_sb3": {"policy_id": policy_id}})
    storage.update_episodes(episodes)
    return folder


def record(folder: Path, counts: dict[str, int]) -> Path:
    (folder / "recording.json").write_text(json.dumps({"format": 1, "episodes": counts}))
    return folder


def test_an_episode_is_read_as_it_was_written(tmp_path: Path) -> None:
    masks = np.array([[True, False], [True, True]])
    written = of_agent(2, "00000007", log_prob=np.log([0.5, 0.25]), value=[1.0, 2.0], action_mask=masks)
    data = read_policy_data(write(tmp_path / "shared" / "data", written, policy_id="shared"))
    assert (data.policy_id, data.observation_space, data.action_space) == ("shared", BOX, TWO)
    (read,) = data.episodes
    assert (read.agent, read.episode_id, read.env_index, read.seed, len(read)) == ("a", "00000007", 3, 11, 2)
    assert (read.terminated, read.truncated) == (True, False)
    assert np.asarray(read.observations).shape == (3, 3)
    assert np.asarray(read.actions).tolist() == [0, 1]
    assert read.rewards.tolist() == [0, 1]
    np.testing.assert_array_equal(read.log_probs, np.log([0.5, 0.25]).astype(np.float32))
    np.testing.assert_array_equal(read.values, [1, 2])
    np.testing.assert_array_equal(read.action_masks, masks)
    assert read_policy_data(tmp_path / "shared").episodes[-1].episode_id == "00000007"


def test_datasets_from_elsewhere_have_one_agent(tmp_path: Path) -> None:
    """Infos of the same names mean something else there."""
    data = read_policy_data(write(tmp_path / "theirs", buffer(2, agent=["x"]), buffer(3)))
    assert [(episode.agent, episode.episode_id, len(episode)) for episode in data.episodes] == [
        ("agent", "00000000", 2),
        ("agent", "00000001", 3),
    ]
    assert data.episodes[1].log_probs is None


def test_joint_episodes_join_the_policies_by_episode(tmp_path: Path) -> None:
    """Agents b and c have no action in some episodes; what is not recorded of all is left out."""
    write(tmp_path / "one" / "data", *(of_agent(1, f"0000000{n}") for n in (0, 2, 3)), policy_id="1")
    second = [of_agent(3, "00000000", "b"), of_agent(3, "00000000", "c"), of_agent(4, "00000001", "b")]
    write(tmp_path / "two" / "data", *second, policy_id="2")
    record(tmp_path, {"one": 2, "two": 3})
    found = [{agent: len(episode) for agent, episode in joint.items()} for joint in joint_episodes(tmp_path)]
    assert found == [{"a": 1, "b": 3, "c": 3}, {"b": 4}, {"a": 1}]
    assert {name: len(data.episodes) for name, data in recorded_policies(tmp_path).items()} == {"1": 2, "2": 3}


def test_a_dataset_that_names_no_spaces_is_refused_and_its_env_is_not_made(tmp_path: Path) -> None:
    folder = write(tmp_path / "theirs", buffer(2))
    metadata = json.loads((folder / "metadata.json").read_text())
    del metadata["action_space"]
    metadata["env_spec"] = json.dumps({"id": "Evil-v0", "entry_point": "antigravity:fly"})
    (folder / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(ConfigError, match="does not describe the action_space"):
        read_policy_data(folder)


@pytest.mark.parametrize("wrong", [0.5, np.nan, -1e30])
def test_actions_that_are_no_integers_are_not_rounded(tmp_path: Path, wrong: float) -> None:
    folder = write(tmp_path / "halves", buffer(2))
    data = read_policy_data(folder)
    assert np.asarray(next(iter(data.episodes)).actions).dtype.kind == "i"
    with h5py.File(folder / "main_data.hdf5", "r+") as file:
        actions = file["episode_0"]["actions"][()].astype(np.float64)
        del file["episode_0"]["actions"]
        file["episode_0"]["actions"] = actions + wrong
    with pytest.raises(ConfigError, match="episode_0/actions has values of float64 that are not those of Discrete"):
        list(read_policy_data(folder).episodes)


def test_damaged_files_are_refused_in_words(tmp_path: Path) -> None:
    folder = write(tmp_path / "cut", buffer(2), buffer(2))
    data = read_policy_data(folder)
    file = folder / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ConfigError, match="cut is damaged"):
        list(data.episodes)
    (folder / "metadata.json").write_text("{")
    with pytest.raises(ConfigError, match="cut is damaged"):
        read_policy_data(folder)
    with pytest.raises(ConfigError, match=r"is no dataset: it has no metadata\.json"):
        read_policy_data(tmp_path)
    with pytest.raises(ConfigError, match=r"is no recording: it has no recording\.json"):
        list(joint_episodes(tmp_path))


@pytest.mark.parametrize("counts", [{"../other": 1}, {"one": 5}])
def test_a_recording_that_says_something_else_than_its_folders_is_refused(tmp_path: Path, counts: Any) -> None:
    write(tmp_path / "other" / "data", buffer(1))
    write(tmp_path / "one" / "data", buffer(1))
    with pytest.raises(ConfigError, match=r"damaged|recording\.json: a folder is '\.\./other'; accepted: a printable"):
        list(joint_episodes(record(tmp_path, counts)))


def test_values_that_do_not_fit_the_space_are_refused(tmp_path: Path) -> None:
    wide = buffer(2)
    data = read_policy_data(write(tmp_path / "wide", wide, action_space=spaces.MultiDiscrete([2, 2])))
    with pytest.raises(ConfigError, match=r"actions has values of shape \(2,\); accepted: \(2, 2\)$"):
        data.episodes[0]
    short = read_policy_data(write(tmp_path / "short", of_agent(2, "0", log_prob=[0.5]), policy_id="x"))
    with pytest.raises(ConfigError, match=r"infos/log_prob has values of shape \(1,\); accepted: \(2,\)$"):
        short.episodes[0]


def test_minari_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "theirs", buffer(2))
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"need the package h5py, .*\[data\]"):
        read_policy_data(folder)
