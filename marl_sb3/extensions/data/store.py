"""Write recorded episodes: in shards, each of which is complete or not there.

A shard is an HDF5 file with some episodes of one policy, in Minari's layout. `main_data.hdf5`, which Minari reads,
links to the episodes in the shards. Every file is written beside its name and renamed, in this order: of each policy
the shard, `main_data.hdf5` and `metadata.json`, and last `recording.json` with the number of episodes that are there of
all policies. A process that is killed leaves the former state, or episodes that `recording.json` does not count.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.core.state.state import State, StateReader
from marl_sb3.errors import ConfigError, shown
from marl_sb3.extensions.data.dataset import (
    AGENT,
    ENV_INDEX,
    EPISODE_ID,
    EPISODE_SEED,
    FOLDER,
    FORMAT,
    INFOS,
    METADATA,
    OWN_FILES,
    RECORDING,
    PolicyData,
    RecordedEpisode,
    Space,
    damage_named,
    leaves_of,
    minari_storage,
    recorded_policies,
)
from marl_sb3.extensions.data.episode_files import MAIN, SHARD
from marl_sb3.files.atomic import replaced_file, replaced_folder, sync_to_disk, write_whole
from marl_sb3.files.paths import file_names, path_is_usable, require_text
from marl_sb3.files.regular import read_regular, require_own
from marl_sb3.types import AgentID, Array, PolicyID
from marl_sb3.wrappers.observations import env_space

_log = logging.getLogger(__name__)

_VERSION = "v110"  # of the HDF5 files; the first one that keeps small groups small
_PER_EPISODE = 4096  # bytes in a file beyond those of the arrays, about
_MAX_PENDING = 2**25  # bytes that wait for the next shard


@dataclass(frozen=True)
class PolicyKind:
    """What the datasets of a recording depend on, of one policy."""

    agents: Sequence[AgentID]
    observation_space: Space
    action_space: Space


@dataclass
class _Dataset:
    folder: Path
    kind: PolicyKind
    episodes: int = 0
    env_steps: int = 0
    pending: list[RecordedEpisode] = field(default_factory=list)


class EpisodeStore:
    """Writes the episodes of one recording.

    Args:
        directory: the folder, new or empty; or a recording of the same policies, if `continues`.
        policies: policy id -> its agents and spaces.
        name: of the env, in the ids of the datasets.
        continues: whether the folder may hold a recording, which goes on.
        shard_episodes: joint episodes of a shard; there are fewer in it if they need more than 32 MB.
        limit_bytes: size of all shards beyond which nothing is written; None: there is no limit.
        may_fail: whether a full or failing disk ends the recording with a warning, instead of an error.

    Raises:
        ConfigError: Minari is not installed, or the folder is not accepted.

    Attributes:
        joint_episodes: number of joint episodes, with those that wait for the next shard.
        is_full: whether nothing is written any more.
    """

    def __init__(
        self,
        directory: Path,
        policies: Mapping[PolicyID, PolicyKind],
        name: str,
        *,
        continues: bool = False,
        shard_episodes: int = 100,
        limit_bytes: int | None = None,
        may_fail: bool = False,
    ) -> None:
        self.directory = directory
        folders = file_names(list(policies), "")
        self._datasets = {each: _Dataset(directory / folders[each] / FOLDER, kind) for each, kind in policies.items()}
        self._shard_episodes, self._limit, self._may_fail = shard_episodes, limit_bytes, may_fail
        self.joint_episodes = self._written = self._pending_bytes = 0
        self.is_full = False
        with path_is_usable("cannot record into", directory, "record"):
            is_empty = require_recordable(directory, continues=continues)
            if is_empty:
                self._make(name)
            else:
                self._read()
        self._size = sum(path.stat().st_size for path in directory.glob(f"*/{FOLDER}/*.hdf5"))

    def _make(self, name: str) -> None:
        storage_class = minari_storage()  # says what is missing
        import minari

        self.directory.mkdir(parents=True, exist_ok=True)
        for policy_id, dataset in self._datasets.items():
            kind, folder = dataset.kind, dataset.folder
            with replaced_folder(folder) as fresh:
                # Lossless: Minari makes JPEGs of images otherwise.
                observed = _nested(kind.observation_space)
                storage = storage_class.new(fresh, observed, env_space(kind.action_space), jpeg_encoding=False)
                dataset_id = "-".join(re.sub(r"\W+", "_", part) for part in (name, folder.parent.name))
                own = {"policy_id": policy_id, "agents": list(kind.agents)}
                storage.update_metadata(
                    {"dataset_id": f"{dataset_id}-v0", "minari_version": str(minari.__version__), "marl_sb3": own}
                )
                (fresh / MAIN).unlink()
                with _hdf5_file(fresh / MAIN):
                    pass
        self._write_counts()

    def _read(self) -> None:
        """Take up a recording; it may be of somebody else, and nothing may be written or removed outside of it.

        Raises:
            ConfigError: it is of other policies, agents or spaces, or damaged.
            OSError: something in it is a link, a pipe or a device; names it.
        """
        folders = [dataset.folder.relative_to(self.directory) for dataset in self._datasets.values()]
        require_own(self.directory, [RECORDING, *(f"{each}/" for path in folders for each in (path.parent, path))])
        for dataset in self._datasets.values():
            require_own(dataset.folder, OWN_FILES)
        with damage_named(self.directory):
            found = recorded_policies(self.directory)
            if found.keys() != self._datasets.keys():
                there, here = ", ".join(found), ", ".join(self._datasets)
                raise _refused(self.directory, f"it is of the policies {there}; this run has {here}")
            for policy_id, dataset in self._datasets.items():
                _require_same(self.directory, dataset, found[policy_id])
            self._restore(json.loads(read_regular(self.directory / RECORDING)))

    # --- Episodes ----------------------------------------------------------------------------------------------------

    def add(self, episodes: Sequence[RecordedEpisode]) -> None:
        """Add the episodes of all agents in one joint episode; it has the id `next_id`. A full store ignores them."""
        if self.is_full:
            return
        for episode in episodes:
            self._datasets[episode.policy_id].pending.append(episode)
            self._pending_bytes += _PER_EPISODE + sum(array.nbytes for array in _arrays(episode))
        self.joint_episodes += 1
        if self.joint_episodes - self._written >= self._shard_episodes or self._pending_bytes >= _MAX_PENDING:
            self.flush()

    @property
    def next_id(self) -> str:
        """The id of the next joint episode."""
        return f"{self.joint_episodes:08d}"

    def flush(self) -> None:
        """Write what waits, unless that would exceed the limit; the store is full then.

        Raises:
            OSError: the disk is full or failing, and the store may not fail. What was written before is still there.
        """
        if self.joint_episodes == self._written:
            return
        if self._limit is not None and self._size + self._pending_bytes > self._limit:
            self.end(f"the recording has reached its limit, with {self._written} episodes")
            return
        former = [(dataset, dataset.episodes, dataset.env_steps) for dataset in self._datasets.values()]
        written = self._written
        try:
            for dataset in self._datasets.values():
                if dataset.pending:
                    self._size += _write(dataset)
            self._written = self.joint_episodes
            self._write_counts()
        except OSError as error:
            self._written = written
            for dataset, episodes, env_steps in former:
                dataset.episodes, dataset.env_steps = episodes, env_steps
            if not self._may_fail:
                raise
            self.end(f"the recording ends with {self._written} episodes, because it cannot be written: {error}")
        self._forget_pending()

    def end(self, why: str) -> None:
        """Write nothing any more, and say why."""
        self.is_full, self.joint_episodes = True, self._written
        self._forget_pending()
        _log.warning("%s; nothing is recorded from now on", why)

    def _forget_pending(self) -> None:
        for dataset in self._datasets.values():
            dataset.pending = []
        self._pending_bytes = 0

    def _write_counts(self) -> None:
        content = {"format": FORMAT, **self.get_state()}
        write_whole(self.directory / RECORDING, json.dumps(content, indent=1) + "\n")

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Return how much is written, for `go_back_to`."""
        return {
            "joint_episodes": self._written,
            "episodes": {dataset.folder.parent.name: dataset.episodes for dataset in self._datasets.values()},
            "env_steps": {dataset.folder.parent.name: dataset.env_steps for dataset in self._datasets.values()},
        }

    def go_back_to(self, state: StateReader) -> None:
        """Forget the episodes that were recorded after a state. Of a store that has fewer, nothing is forgotten.

        Raises:
            CheckpointError: the state is not one of a store.
        """
        if state.integer("joint_episodes", 0) >= self.joint_episodes:
            return
        names = [dataset.folder.parent.name for dataset in self._datasets.values()]
        saved = {part: state.fields(part) for part in ("episodes", "env_steps")}
        wanted = {part: {name: fields.integer(name, 0) for name in names} for part, fields in saved.items()}
        self._restore({"joint_episodes": state.integer("joint_episodes"), **wanted})
        self._write_counts()

    def _restore(self, content: Mapping[str, Any]) -> None:
        """Make the datasets what they were with so many episodes."""
        self.joint_episodes = self._written = int(content["joint_episodes"])
        for dataset in self._datasets.values():
            dataset.episodes = int(content["episodes"][dataset.folder.parent.name])
            dataset.env_steps = int(content["env_steps"][dataset.folder.parent.name])
            dataset.pending = []
            for path in dataset.folder.iterdir():
                shard = SHARD.fullmatch(path.name)
                if shard and int(shard[1]) >= dataset.episodes:
                    path.unlink()
            _link(dataset, None, range(0))
            _write_metadata(dataset)
        self._pending_bytes, self.is_full = 0, False


def require_recordable(directory: Path, *, continues: bool) -> bool:
    """Check, before anything else is done, that a recording can be made in a folder, or be continued there.

    Returns:
        Whether nothing is recorded there yet.

    Raises:
        ConfigError: Minari is not installed, the folder's name is no text, or it holds something else.
    """
    minari_storage()
    require_text("record", directory.absolute(), "record")
    with path_is_usable("cannot record into", directory, "record"):
        if not directory.exists() or not any(directory.iterdir()):
            return True
    if not os.path.lexists(directory / RECORDING):
        raise ConfigError(f"cannot record into {directory}: it is not empty; accepted: a new or empty folder", "record")
    if not continues:
        words = "it holds a recording; accepted: a new or empty folder; a recording goes on with the run that made it"
        raise ConfigError(f"cannot record into {directory}: {words} (--resume RUN --record {directory})", key="record")
    return False


def _require_same(directory: Path, dataset: _Dataset, there: PolicyData) -> None:
    own = json.loads(read_regular(dataset.folder / METADATA))["marl_sb3"]
    for what, found, wanted in (
        ("the agents", own["agents"], list(dataset.kind.agents)),
        ("the observation space", there.observation_space, dataset.kind.observation_space),
        ("the action space", there.action_space, dataset.kind.action_space),
    ):
        if found != wanted:
            raise _refused(
                directory, f"{what} of policy {there.policy_id!r} are {shown(found, 1000)}; in this run: {wanted}"
            )


def _refused(directory: Path, why: str) -> ConfigError:
    words = f"cannot go on with the recording in {directory}: {why}"
    return ConfigError(f"{words}; accepted: a recording of the same policies and spaces, or a new folder", key="record")


def _nested(space: Space) -> Space:
    """Return the space of observations as Minari has to know it: the part `a/b` of a Dict is `b` in its part `a`.

    Raises:
        ConfigError: the names cannot be those of groups in an HDF5 file.
    """
    if not isinstance(space, spaces.Dict):
        return space
    leaves: dict[str, Space] = {}
    groups: dict[str, dict[str, Space]] = {}
    for name, part in space.spaces.items():
        first, slash, rest = name.partition("/")
        (groups.setdefault(first, {}) if slash else leaves)[rest if slash else first] = part
    for name in [*leaves, *groups]:
        if name in ("", ".") or (name in leaves and name in groups):
            words = f"observations have the parts {', '.join(map(repr, space.spaces))}"
            accepted = "names that are not empty, none of which is the beginning of another"
            raise ConfigError(f"{words}, which cannot be names in an HDF5 file; accepted: {accepted}", key="record")
    return spaces.Dict({**leaves, **{name: _nested(spaces.Dict(parts)) for name, parts in groups.items()}})


# --- Files -----------------------------------------------------------------------------------------------------------


@contextmanager
def _hdf5_file(path: Path, source: Path | None = None) -> Iterator[Any]:
    """Yield an HDF5 file in memory, which is written at the end: on a full disk, HDF5 itself crashes.

    Args:
        source: the file whose content it has at first; None: it is empty.
    """
    import h5py

    name, mode = (path, "w") if source is None else (source, "r+")
    with h5py.File(name, mode, driver="core", backing_store=False, libver=(_VERSION, "latest")) as file:
        yield file
        file.flush()
        image = file.id.get_file_image()
    path.write_bytes(image)


def _write(dataset: _Dataset) -> int:
    """Write the waiting episodes of a policy; returns the size of the new file."""
    first = dataset.episodes
    shard = dataset.folder / f"episodes-{first:08d}.hdf5"
    with replaced_file(shard) as fresh:
        with _hdf5_file(fresh) as file:
            for number, episode in enumerate(dataset.pending, first):
                _write_episode(file, number, episode, dataset.kind.action_space)
        sync_to_disk(fresh)
    dataset.episodes += len(dataset.pending)
    dataset.env_steps += sum(map(len, dataset.pending))
    _link(dataset, shard.name, range(first, dataset.episodes))
    _write_metadata(dataset)
    return shard.stat().st_size


def _link(dataset: _Dataset, shard: str | None, numbers: range) -> None:
    """Make the main file of a dataset list its episodes: those in `numbers` are new, those beyond them are removed."""
    import h5py

    main = dataset.folder / MAIN
    with replaced_file(main) as fresh:
        with _hdf5_file(fresh, main) as file:
            number = numbers.start if shard else dataset.episodes
            while (name := f"episode_{number}") in file.keys() or number in numbers:  # noqa: SIM118 - links, also broken
                if name in file.keys():  # noqa: SIM118
                    del file[name]
                if number in numbers:
                    file[name] = h5py.ExternalLink(shard, name)
                number += 1
        sync_to_disk(fresh)


def _write_metadata(dataset: _Dataset) -> None:
    path = dataset.folder / METADATA
    metadata = json.loads(read_regular(path))
    size = sum(each.lstat().st_size for each in dataset.folder.iterdir()) / 1e6
    counts = {"total_episodes": dataset.episodes, "total_steps": dataset.env_steps, "dataset_size": round(size, 1)}
    write_whole(path, json.dumps({**metadata, **counts}))


def _write_episode(file: Any, number: int, episode: RecordedEpisode, acted_in: Any) -> None:
    """Write an episode in Minari's layout, by HDF5's own functions: those of h5py take twice as long."""
    import h5py

    length = len(episode)
    group = h5py.h5g.create(file.id, f"episode_{number}".encode())
    facts = {"id": number, "total_steps": length}
    for name, fact in (facts if episode.seed is None else {**facts, "seed": episode.seed}).items():
        space = h5py.h5s.create(h5py.h5s.SCALAR)
        value = np.asarray(fact)
        h5py.h5a.create(group, name.encode(), h5py.h5t.py_create(value.dtype), space).write(value)
    ended = np.arange(length) == length - 1
    ends = {"terminations": ended & episode.terminated, "truncations": ended & episode.truncated}
    actions: Any = episode.actions
    if hasattr(acted_in, "split_parts"):  # Minari has actions of several parts as the env has them
        paths = [path.removeprefix("/") for path in leaves_of(acted_in.of_env)]
        actions = dict(zip(paths, acted_in.split_parts(actions), strict=True))
    parts = {"observations": episode.observations, "actions": actions, "rewards": episode.rewards, **ends}
    for name, values in {**parts, "infos": dict(_infos(episode))}.items():
        if isinstance(values, Mapping):
            inner = h5py.h5g.create(group, name.encode())
            for key, array in values.items():
                _write_array(inner, key, array)
        else:
            _write_array(group, name, values)


def _infos(episode: RecordedEpisode) -> Iterator[tuple[str, Array]]:
    """Yield what Minari has no place for."""
    yield AGENT, np.asarray(episode.agent.encode())
    yield EPISODE_ID, np.asarray(episode.episode_id.encode())
    yield ENV_INDEX, np.asarray(episode.env_index)
    if episode.seed is not None:
        yield EPISODE_SEED, np.asarray(episode.seed)
    for field_name, (name, _) in INFOS.items():
        if getattr(episode, field_name) is not None:
            yield name, getattr(episode, field_name)


def _arrays(episode: RecordedEpisode) -> Iterator[Array]:
    for values in (episode.observations, episode.actions, episode.rewards, dict(_infos(episode))):
        yield from values.values() if isinstance(values, Mapping) else [values]


def _write_array(group: Any, name: str, array: Array) -> None:
    import h5py

    array = np.ascontiguousarray(array)
    space = h5py.h5s.create_simple(array.shape) if array.ndim else h5py.h5s.create(h5py.h5s.SCALAR)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_char_encoding(h5py.h5t.CSET_UTF8)
    links.set_create_intermediate_group(True)  # of parts of nested observations, `a/b`
    h5py.h5d.create(group, name.encode(), h5py.h5t.py_create(array.dtype, logical=True), space, lcpl=links).write(
        h5py.h5s.ALL, h5py.h5s.ALL, array
    )
