"""Recordings of trainings and evaluations: what the env gave and got, nothing else, and readable after any end."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
import torch as th
from forked import ForkServer
from gymnasium import spaces
from odd_files import content
from recordings import BOX, TWO, add, open_store
from small_trainings import same_weights
from toy_envs import TwoKinds
from turn_env import Move, TurnEnv, TurnPlan
from waiting import wait_for

import marl_sb3
from marl_sb3 import MultiAgentCallback, estimate_policies
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.make import make_vec_env
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.errors import ConfigError
from marl_sb3.evaluate import main as evaluate
from marl_sb3.extensions.data import store as store_module
from marl_sb3.extensions.data.dataset import RecordedEpisode, joint_episodes, read_policy_data, recorded_policies
from marl_sb3.extensions.data.recorder import Timeline, recorder_of
from marl_sb3.extensions.data.store import EpisodeStore, PolicyKind
from marl_sb3.train import main as train_command

SETTINGS = {"n_steps": 20, "batch_size": 20, "n_epochs": 1, "env.max_timesteps": 15, "policy_kwargs.net_arch": [8]}


def train(folder: Path, timesteps: int = 200, **options: Any) -> marl_sb3.Run:
    settings = {**SETTINGS, "checkpoint_every": 1, **options.pop("settings", {})}
    given = {"n_envs": 3, "seed": 7, "policies": "per_agent", **options}
    return marl_sb3.train("arena", settings=settings, timesteps=timesteps, run_dir=folder, progress_bar=False, **given)


class Fail(MultiAgentCallback):
    """Ends the training as a crash would, within the third of four iterations."""

    def _on_step(self) -> bool:
        if self.num_timesteps >= 150:
            raise RuntimeError("crash")
        return True


def plain(directory: Path) -> list[dict[str, Any]]:
    """All joint episodes without their ids, in a form that can be compared."""
    return [
        {agent: (e.env_index, e.seed, np.asarray(e.observations).tolist(), np.asarray(e.actions).tolist(),
                 e.rewards.tolist(), np.asarray(e.log_probs).tolist()) for agent, e in joint.items()}
        for joint in joint_episodes(directory)
    ]  # fmt: skip


# --- Trainings -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, marl_sb3.Run]:
    folder = tmp_path_factory.mktemp("recorded")
    return folder / "episodes", train(folder / "run", record=folder / "episodes")


def test_recorded_episodes_are_what_the_envs_give_for_these_seeds_and_actions(recorded: Any) -> None:
    directory, run = recorded
    found = list(joint_episodes(directory))
    assert len(found) == run.result["num_episodes_lifetime"] > 8
    for joint in found:
        env = ArenaEnv(max_timesteps=15)
        seen, _ = env.reset(seed=joint["agent1"].seed)
        for step in range(len(joint["agent1"])):
            for agent, episode in joint.items():
                np.testing.assert_array_equal(np.asarray(episode.observations)[step], seen[agent])
            actions = {agent: np.asarray(episode.actions)[step] for agent, episode in joint.items()}
            seen, rewards, terminated, truncated, _ = env.step(actions)
            for agent, episode in joint.items():
                assert episode.rewards[step] == np.float32(rewards[agent])
        for agent, episode in joint.items():
            np.testing.assert_array_equal(np.asarray(episode.observations)[-1], seen[agent])
            assert (episode.terminated, episode.truncated) == (terminated[agent], truncated[agent])
            assert (episode.policy_id, episode.agent) == (agent, agent)


def test_log_probabilities_and_values_are_those_of_the_acting_policy(tmp_path: Path) -> None:
    """With a learning rate of 0 the policy that acted is the one at the end."""
    run = train(tmp_path / "run", 120, record=tmp_path / "episodes", settings={"learning_rate": 0.0})
    for policy_id, data in recorded_policies(tmp_path / "episodes").items():
        policy = run.algorithm.policies[policy_id].policy
        for episode in data.episodes:
            seen, actions = (th.as_tensor(np.asarray(part)) for part in (episode.observations, episode.actions))
            values, log_probs, _ = policy.evaluate_actions(seen[:-1], actions)
            np.testing.assert_allclose(episode.log_probs, log_probs.detach().numpy(), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(episode.values, values.detach().numpy().ravel(), rtol=1e-4, atol=1e-5)


def test_recording_changes_no_bit_of_the_training(recorded: Any, tmp_path: Path) -> None:
    assert same_weights(train(tmp_path / "run").algorithm, recorded[1].algorithm)


def test_minari_reads_the_datasets_by_itself(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = recorded
    dataset = minari.MinariDataset(directory / "agent1" / "data")
    ours = read_policy_data(directory / "agent1")
    assert (len(dataset), dataset.observation_space, dataset.action_space) == (
        len(ours.episodes), ours.observation_space, ours.action_space,
    )  # fmt: skip
    assert dataset.total_steps == sum(map(len, ours.episodes))
    for theirs, own in zip(dataset, ours.episodes, strict=True):
        np.testing.assert_array_equal(theirs.rewards, own.rewards)
        np.testing.assert_array_equal(theirs.observations, own.observations)
        assert theirs.infos["agent"] == b"agent1"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(directory))
    assert minari.load_dataset("agent1").id == "arena-agent1-v0"


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_resumed_run_has_the_episodes_of_an_unbroken_one(recorded: Any, tmp_path: Path, n_workers: int) -> None:
    """But those that were running at the checkpoint; what was recorded after the checkpoint is recorded once."""
    directory, folder = tmp_path / "episodes", tmp_path / "run"
    with pytest.raises(RuntimeError, match="crash"):
        train(folder, record=directory, n_workers=n_workers, callback=[Fail()])
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    before = plain(directory)
    run = marl_sb3.train(resume=folder, record=directory, progress_bar=False)
    assert same_weights(run.algorithm, recorded[1].algorithm)
    found, whole = plain(directory), plain(recorded[0])
    assert all(joint in whole for joint in found)
    assert len(before) < len(found) < len(whole)
    assert len(whole) - len(found) <= 3
    assert len({str(joint) for joint in found}) == len(found)
    ids = [episode.episode_id for episode in recorded_policies(directory)["agent1"].episodes]
    assert ids == [f"{number:08d}" for number in range(len(ids))]


def test_folders_that_hold_something_else_are_refused_before_a_run_is_made(recorded: Any, tmp_path: Path) -> None:
    directory, _ = recorded
    with pytest.raises(ConfigError, match="it holds a recording; accepted: a new or empty folder"):
        train(tmp_path / "run", record=directory)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ConfigError, match="it is not empty"):
        train(tmp_path / "run", record=tmp_path / "other")
    with pytest.raises(ConfigError, match="rolled out in shards"):
        train(tmp_path / "run", record=tmp_path / "new", settings={"n_shards": 3})
    for place in ("run", "run/episodes", "new/../run"):
        with pytest.raises(
            ConfigError, match=r"would fill the folder of --run-dir, .*accepted: a folder outside of it"
        ):
            train(tmp_path / "run", record=tmp_path / place)
    with pytest.raises(
        ConfigError, match=r"record: the path '.*a\\udcff' is not text in the encoding utf-8; accepted: "
    ):
        train(tmp_path / "run", record=tmp_path / "a\udcff")
    assert {path.name for path in tmp_path.iterdir()} == {"other"}
    train(tmp_path / "run", 60)
    with pytest.raises(ConfigError, match="the checkpoint does not belong to it"):
        marl_sb3.train(resume=tmp_path / "run", record=directory, timesteps=60, progress_bar=False)


def test_at_its_limit_the_recording_stops_with_a_line_and_the_training_goes_on(
    recorded: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run = train(tmp_path / "run", record=tmp_path / "episodes", record_limit="60KB")
    lines = [record.getMessage() for record in caplog.records if "recording" in record.getMessage()]
    assert lines == [f"the recording has reached its limit, with {len(plain(tmp_path / 'episodes'))} episodes; "
                     "nothing is recorded from now on"]  # fmt: skip
    assert 0 < len(plain(tmp_path / "episodes")) < run.result["num_episodes_lifetime"]
    assert sum(file.stat().st_size for file in (tmp_path / "episodes").rglob("episodes-*.hdf5")) <= 60_000
    assert same_weights(run.algorithm, recorded[1].algorithm)


@pytest.mark.parametrize("writes", [0, 1, 5, 9])
def test_on_a_full_disk_the_recording_ends_with_a_line_and_the_training_goes_on(
    writes: int, recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two policies, each shard and each list of episodes is synced to the disk: 4 files."""
    left = [writes]

    def sync(path: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(store_module, "sync_to_disk", sync)
    run = train(tmp_path / "run", record=tmp_path / "episodes")
    lines = [record.getMessage() for record in caplog.records if "recording" in record.getMessage()]
    assert len(lines) == 1
    assert "because it cannot be written: [Errno 28] No space left" in lines[0]
    assert same_weights(run.algorithm, recorded[1].algorithm)
    monkeypatch.undo()
    kept = plain(tmp_path / "episodes")
    assert kept == plain(recorded[0])[: len(kept)]
    assert lines[0].startswith(f"the recording ends with {len(kept)} episodes")
    assert (len(kept) > 0) == (writes >= 4)
    marl_sb3.train(resume=tmp_path / "run", record=tmp_path / "episodes", timesteps=200, progress_bar=False)
    assert len(plain(tmp_path / "episodes")) > len(kept)  # there is room again


@pytest.mark.parametrize("size", ["0", "much", "2XB", "-1"])
def test_sizes_that_are_none_are_refused(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_command(["arena", "--record", str(tmp_path / "new"), f"--record-limit={size}"]) == 2
    assert "accepted: a size, such as 500MB or 2GB" in capsys.readouterr().err


# --- Evaluations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", ["--stochastic", "--deterministic"])
def test_an_evaluation_records_the_counted_episodes(recorded: Any, tmp_path: Path, capsys: Any, actions: str) -> None:
    run = str(recorded[1].folder)
    command = [run, "--episodes", "5", "--n-envs", "2", actions, "--json"]
    assert evaluate(command) == 0
    without = capsys.readouterr().out
    assert evaluate([*command, "--record", str(tmp_path / "episodes")]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["agent_episode_returns"] == json.loads(without)["agent_episode_returns"]
    found = list(joint_episodes(tmp_path / "episodes"))
    assert sorted(joint["agent1"].env_index for joint in found) == [0, 0, 1, 1, 1]
    total = sum(float(episode.rewards.sum()) for joint in found for episode in joint.values())
    assert total / 5 == pytest.approx(json.loads(printed)["episode_return"]["mean"], abs=1e-4)
    assert {joint["agent2"].log_probs is None for joint in found} == {actions == "--deterministic"}


# --- Turns, lives and spaces -----------------------------------------------------------------------------------------


def joints_of(env: MultiAgentVecEnv, folder: Path) -> list[Mapping[str, RecordedEpisode]]:
    """What is recorded of the first episode of one env, with actions of zeros; each group has a policy."""
    policy_of = {agent: str(number) for number, group in enumerate(env.groups) for agent in group.agents}
    recorder, store = recorder_of(env, policy_of, folder, "env")
    step = env.reset()
    recorder.begin_episodes(step)
    for _ in range(30):
        actions = [np.zeros((1, len(g.agents), *g.action_space.shape), g.action_space.dtype) for g in env.groups]
        recorder.before_step(step, {}, actions)
        step = env.step(actions)
        recorder.after_step(step)
        if step.episode_done.any():
            break
    store.flush()
    return list(joint_episodes(folder))


def test_rewards_between_turns_belong_to_the_action_before_and_agents_may_live_again(tmp_path: Path) -> None:
    """Dora is paid 2 while adam moves; she ends, lives again, and moves once more."""
    moves = [
        Move("dora", {"dora": 1}),
        Move("adam", {"dora": 2, "adam": 5}),
        Move("dora", {"dora": 4}, {"dora": "terminated"}),
        Move("adam", {"adam": 6}, joins=["dora"]),
        Move("dora", {"dora": 8}),
    ]
    env = make_vec_env(lambda: TurnEnv([[TurnPlan(moves)]]), 1, 0)
    found = [{agent: e.rewards.tolist() for agent, e in joint.items()} for joint in joints_of(env, tmp_path / "turns")]
    assert found == [{"dora": [3, 4], "adam": [5, 6]}, {"dora": [8]}]


def test_agents_with_other_spaces_are_recorded_beside_each_other(tmp_path: Path) -> None:
    (joint,) = joints_of(make_vec_env(TwoKinds, 1, 0), tmp_path / "kinds")
    assert {agent: each.observations.shape for agent, each in joint.items()} == {"a": (3, 3), "b": (4, 2), "c": (2, 3)}
    assert joint["b"].observations[:, 1].tolist() == [0, 1, 2, 3]


class Mixed(gymnasium.Env[Any, Any]):
    """A `Dict` with an image, and a `Box` of actions that samples leave."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (36, 36, 3), np.uint8), "vector": spaces.Box(-1, 1, (2,), np.float32)}
    )
    action_space = spaces.Box(-0.1, 0.1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.steps += 1
        return self._seen(), 0.5, self.steps == 4, False, {}

    def _seen(self) -> Any:
        image = np.full((36, 36, 3), self.steps, np.uint8)
        image[0, 0, 0] = 255  # JPEG would change it
        return {"image": image, "vector": np.array([0.5, 0.25 * self.steps], np.float32)}


def test_images_in_a_dict_are_kept_as_they_are_and_samples_beside_the_actions(tmp_path: Path) -> None:
    marl_sb3.train(
        Mixed, timesteps=16, n_envs=1, seed=0, run_dir=tmp_path / "run", record=tmp_path / "mixed", progress_bar=False,
        settings={"policy": "MultiInputPolicy", "n_steps": 16, "batch_size": 16, "n_epochs": 1},
    )  # fmt: skip
    (data,) = recorded_policies(tmp_path / "mixed").values()
    assert (data.observation_space, data.action_space, len(data.episodes)) == (
        Mixed.observation_space, Mixed.action_space, 4,
    )  # fmt: skip
    episode = data.episodes[2]
    assert isinstance(episode.observations, dict)
    assert episode.observations["image"][:, 1, 1, 1].tolist() == [0, 1, 2, 3, 4]
    assert (episode.observations["image"][:, 0, 0, 0] == 255).all()
    assert episode.observations["vector"][:, 1].tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert episode.sampled_actions is not None
    np.testing.assert_array_equal(np.clip(episode.sampled_actions, -0.1, 0.1), np.asarray(episode.actions))


class Nested(Mixed):
    """A Dict and a Tuple in a Dict, and MultiBinary actions."""

    observation_space = spaces.Dict(
        {"b": spaces.Dict({"x": spaces.Box(-9, 9, (2,)), "y": spaces.Discrete(4)}),
         "a": spaces.Tuple([spaces.Box(-9, 9, (1,)), spaces.MultiBinary(2)]), "c": spaces.Box(-9, 9, (1,))}
    )  # fmt: skip
    action_space = spaces.MultiBinary(2)

    def _seen(self) -> Any:
        step, flags = np.array([self.steps], np.float32), np.array([1, self.steps % 2], np.int8)
        return {"b": {"x": np.repeat(step, 2), "y": self.steps % 4}, "a": (-step, flags), "c": 2 * step}


def test_nested_observations_and_flags_are_recorded_read_by_minari_and_learned_from(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "policy": "MultiInputPolicy"}
    options: dict[str, Any] = {"n_envs": 1, "seed": 0, "timesteps": 16, "progress_bar": False}
    run = marl_sb3.train(Nested, run_dir="run", record="nested", settings=settings, **options)
    (data,) = recorded_policies("nested").values()
    (group,) = run.algorithm.env.groups
    assert (data.observation_space, data.action_space) == (group.observation_space, Nested.action_space)
    steps = np.arange(5)
    for theirs, own in zip(minari.MinariDataset("nested/shared/data"), data.episodes, strict=True):
        assert isinstance(own.observations, dict)
        seen = {name: array.tolist() for name, array in own.observations.items()}
        assert seen == {"b/x": [[n, n] for n in steps], "b/y": [n % 4 for n in steps], "a/0": [[-n] for n in steps],
                        "a/1": [[1, n % 2] for n in steps], "c": [[2 * n] for n in steps]}  # fmt: skip
        np.testing.assert_array_equal(theirs.observations["b"]["y"], own.observations["b/y"])
        np.testing.assert_array_equal(theirs.observations["a"]["1"], own.observations["a/1"])
        np.testing.assert_array_equal(theirs.actions, own.actions)
    cloned = marl_sb3.imitate(
        "nested", Nested, epochs=2, seed=1, progress_bar=False, run_dir="cloned", settings=settings
    )
    assert np.isfinite(cloned.results[-1]["learners"]["shared"]["imitation_loss"])
    beside = {**settings, "imitation_data": "nested"}
    learned = marl_sb3.train(Nested, run_dir="beside", settings=beside, **options)
    assert np.isfinite(learned.results[-1]["learners"]["shared"]["imitation_loss"])
    found = estimate_policies(run.bundle(), "nested").estimates["agent"]
    assert 0 < found["PDIS"].mean < 20


@pytest.mark.parametrize("names", [{"": TWO}, {"a": TWO, "a/b": TWO}, {"a/": TWO}, {"./b": TWO}])
def test_names_that_no_file_can_hold_are_refused_before_anything_is_made(names: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which cannot be names in an HDF5 file"):
        EpisodeStore(tmp_path / "new", {"all": PolicyKind(("a",), spaces.Dict(names), TWO)}, "env")
    assert not list(tmp_path.rglob("*.hdf5"))


def test_a_resumed_recording_removes_and_writes_nothing_behind_a_link(
    recorded: Any, outside: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recorded[1].folder, "run")
    shutil.copytree(recorded[0], "episodes")
    Path("episodes/agent1").rename(outside.parent / "theirs")
    Path("episodes/agent1").symlink_to(outside.parent / "theirs")
    before = content(outside.parent / "theirs")
    assert train_command(["--resume", "run", "--record", "episodes", "--timesteps", "60", "--quiet"]) == 2
    expected = "cannot record into episodes: it is a link; accepted: a folder that is no link (episodes/agent1)"
    assert expected in capsys.readouterr().err
    assert content(outside.parent / "theirs") == before


def test_a_timeline_keeps_what_is_needed_and_grows() -> None:
    timeline = Timeline()
    needed = 0
    for number in range(2000):
        if timeline.length == timeline.room:
            needed = min(timeline.length, 200 if number < 1000 else 700)
            timeline.make_room(needed)
        timeline.put("numbers", np.array([number, -number]))
        timeline.length += 1
    last = timeline.of_env("numbers", timeline.length - 600, 1)
    assert last is not None
    assert last.tolist() == list(range(-1400, -2000, -1))


# --- The end of a process --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replacements", range(6))
def test_a_store_that_dies_between_any_two_files_stays_readable_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacements: int
) -> None:
    """7 files are replaced for a shard of two policies; the counts are the last."""
    store, left = open_store(tmp_path), [replacements]
    for _ in range(5):
        add(store)

    def replace(source: Any, target: Any) -> None:
        if not left[0]:
            raise RuntimeError("killed")
        left[0] -= 1
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("marl_sb3.files.atomic.os.replace", replace)
        for _ in range(4):
            add(store)
        with pytest.raises(RuntimeError, match="killed"):
            add(store)
    assert len(list(joint_episodes(tmp_path))) == 5
    assert [len(list(read_policy_data(tmp_path / name).episodes)) in (5, 10) for name in ("a", "b")] == [True, True]
    again = open_store(tmp_path, continues=True)
    for _ in range(7):
        add(again)
    again.flush()
    assert [joint["b"].episode_id for joint in joint_episodes(tmp_path)] == [f"{n:08d}" for n in range(12)]
    assert len(minari.MinariDataset(tmp_path / "a" / "data")) == 12


KILLED = """
from pathlib import Path
from recordings import add, open_store
store = open_store(Path("killed"))
while True:
    add(store)
    print(store.joint_episodes, flush=True)
"""


def test_what_was_finished_is_there_after_a_kill(in_tmp: Path, server: ForkServer) -> None:
    Path("adds.py").write_text(KILLED)
    Path("output").touch()
    process = server.run(["adds.py"], "output")
    wait_for(lambda: Path("output").read_text().count("\n") >= 42)
    process.kill()
    process.wait()
    said = Path("output").read_text().count("\n")
    found = list(joint_episodes(in_tmp / "killed"))
    assert len(found) >= said // 5 * 5
    assert len(found) % 5 == 0


def test_a_recording_of_other_policies_agents_or_spaces_does_not_go_on(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    add(store)
    store.flush()
    for kinds, words in (
        ({"a": PolicyKind(["a"], BOX, TWO)}, "it is of the policies a, b; this run has a"),
        ({x: PolicyKind([x, "c"], BOX, TWO) for x in "ab"}, "the agents of policy 'a' are"),
        ({x: PolicyKind([x], TWO, TWO) for x in "ab"}, "the observation space of policy 'a'"),
        ({x: PolicyKind([x], BOX, BOX) for x in "ab"}, "the action space of policy 'a'"),
    ):
        with pytest.raises(ConfigError, match=words):
            EpisodeStore(tmp_path, kinds, "test", continues=True)
    assert store_module.require_recordable(tmp_path, continues=True) is False
