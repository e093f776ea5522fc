"""Read recorded episodes: one Minari dataset per policy, whose episodes are those of single agents.

A recording is a folder: `recording.json`, and for each policy `POLICY/data`, which `minari.MinariDataset` opens. What
Minari has no place for is in the infos of an episode, under the names below. Datasets from elsewhere are read too:
their episodes are those of an agent `agent`, without log-probabilities.
"""

from __future__ import annotations

import heapq
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, overload

import numpy as np
from gymnasium import spaces
from typing_extensions import override

from marl_sb3.core.config.values import id_fault, shown_id
from marl_sb3.core.envs.converted import AGENT as SINGLE_AGENT
from marl_sb3.core.state.state import MAX_COUNT
from marl_sb3.errors import CheckpointError, ConfigError, described, install_words, shown
from marl_sb3.extensions.data.episode_files import MAIN, EpisodeFiles, Group
from marl_sb3.files.paths import as_path, require_file_name
from marl_sb3.files.regular import read_bytes, require_fits, require_own
from marl_sb3.types import AgentID, Array, BoolArray, FloatArray, PolicyID
from marl_sb3.wrappers.observations import choices_of, env_space, flat_space, is_nested, policy_actions

FOLDER = "data"  # of a dataset, in the folder of its policy: `minari.load_dataset` looks there, too
METADATA = "metadata.json"  # of a dataset; Minari's
RECORDING = "recording.json"
FORMAT = 1
OWN_FILES = (METADATA, MAIN, "episodes-*.hdf5")  # of the folder of a dataset; each must be a regular file
_MAX_JSON = 2**25  # bytes
_MOST_SAID = 1000  # characters of what is wrong: it may repeat what a file says
_PER_EPISODE = 1000  # bytes in memory beyond those of its arrays, at least
_DTYPES = ("float16", "float32", "float64", *(f"{u}int{size}" for u in ("", "u") for size in (8, 16, 32, 64)), "bool")

# Infos of an episode with one value.
AGENT, EPISODE_ID, ENV_INDEX, EPISODE_SEED = "agent", "episode_id", "env_index", "episode_seed"
# Fields of an episode that are infos with a value for each action: name there, and dtype; None: that of actions.
INFOS: Mapping[str, tuple[str, Any]] = {
    "log_probs": ("log_prob", np.float32),
    "values": ("value", np.float32),
    "action_masks": ("action_mask", np.bool_),
    "sampled_actions": ("sampled_action", None),
    "steps": ("step", np.int64),
}

Space = spaces.Space[Any]
Recorded = Array | Mapping[str, Array]  # (T, ...), or one such array per key of a `Dict` space


@dataclass(frozen=True)
class RecordedEpisode:
    """The transitions of one agent in one episode; T is the number of its actions."""

    policy_id: PolicyID  # the policy that acted
    agent: AgentID  # the agent that it acted for
    # the same for all agents of one joint episode. An agent that ended and lived again in it has a second episode, with
    # an id of its own.
    episode_id: str
    env_index: int  # index of the env
    seed: int | None  # seed of the env's episode, if it is known
    # (T + 1, ...) what the agent saw at each of its actions, and what it ended on; as the env gave it
    observations: Recorded
    actions: Recorded  # (T, ...) as the env got them
    rewards: Array  # (T,) float64; all it was paid from an action to its next turn or its end
    terminated: bool  # whether it ended in a terminal state
    truncated: bool  # whether it was cut off
    # (T,) log-probability or log-density of each action, if the policy that acted told it
    log_probs: FloatArray | None = None
    values: FloatArray | None = None  # (T,) what this policy expected, if it told it
    action_masks: BoolArray | None = None  # (T, n) True where an action was allowed, if the env gave masks
    # (T, ...) what the policy sampled, which the log-probabilities are of, if that is not `actions`: actions in a Box
    # are brought within its bounds
    sampled_actions: Array | None = None
    # (T,) the env step of each action, counted from 0 in the joint episode; None: 0 to T - 1
    steps: Array | None = None

    def __len__(self) -> int:
        """T."""
        return len(self.rewards)


@dataclass(frozen=True)
class PolicyData:
    """One dataset."""

    policy_id: PolicyID  # the policy that acted
    observation_space: Space  # of the env
    action_space: Space  # of the env
    # all episodes, each of one agent. They are read from the disk whenever they are accessed.
    episodes: Sequence[RecordedEpisode]


def read_policy_data(path: str | Path) -> PolicyData:
    """Open one dataset.

    Args:
        path: `RECORDING/POLICY`, the folder `data` in it, or the folder of any Minari dataset that names its spaces.

    Raises:
        ConfigError: Minari is not installed, there is no dataset, it is damaged, leads out of its folder, or does not
            name its spaces. A damaged episode raises it when it is accessed.
    """
    named = as_path("path", path)
    is_above = os.path.lexists(named / FOLDER) and not os.path.lexists(named / METADATA)
    folder = named / FOLDER if is_above else named
    with damage_named(named):
        require_own(named, [f"{FOLDER}/"] if is_above else [])
    if not os.path.lexists(folder / METADATA):
        raise ConfigError(f"{folder} is no dataset: it has no {METADATA}; accepted: a Minari dataset", key="data")
    minari_storage()
    with damage_named(folder):
        require_own(folder, OWN_FILES)
        metadata = _json(folder / METADATA)
        if metadata.get("data_format", "hdf5") != "hdf5":
            raise ValueError(f"{METADATA} says data_format {shown(metadata['data_format'])}; accepted: 'hdf5'")
        policy_id = metadata.get("marl_sb3", {}).get("policy_id", folder.parent.name)
        if fault := id_fault(policy_id):
            raise ValueError(f"{METADATA} has the policy_id {shown_id(policy_id)}, which {fault}")
        form = _Form(
            _space(metadata, "observation_space"),
            policy_actions(_space(metadata, "action_space")),
            total_steps=_count(metadata, "total_steps", MAX_COUNT),
            jpeg=bool(metadata.get("jpeg_encoding", True)),
            of_agents="marl_sb3" in metadata,
            policy_id=str(policy_id),
        )
        episodes = range(_count(metadata, "total_episodes", form.total_steps))
        stored = _Episodes(folder, form, episodes)
    seen = form.observation_space
    return PolicyData(form.policy_id, flat_space(seen) if is_nested(seen) else seen, form.action_space, stored)


def _json(path: Path) -> Any:
    return json.loads(read_bytes(path, _MAX_JSON).decode())


def _count(metadata: Mapping[str, Any], name: str, most: int) -> int:
    """Return a number of the metadata. Each episode has an action, so that there are no more of them than env steps."""
    found = metadata.get(name)
    if type(found) is not int or not 0 <= found <= most:
        raise ValueError(f"{METADATA} has {name} {found!r:.40}; accepted: an integer from 0 to {most}")
    return found


def _space(metadata: Mapping[str, Any], name: str) -> Space:
    """Return a space of the metadata."""
    from minari.serialization import deserialize_space

    found = metadata.get(name)
    if not isinstance(found, str):
        # Minari would otherwise make the env that the file names, which imports code by that name.
        raise ValueError(f"{METADATA} does not describe the {name}")
    space: Space = deserialize_space(json.loads(found, object_hook=_sound))
    return space


def _sound(part: dict[str, Any]) -> dict[str, Any]:
    """Refuse descriptions of spaces that make large arrays of few letters: by their dtype, or by their shape."""
    if part.get("dtype", "int64") not in _DTYPES:
        raise ValueError(f"a space of dtype {part['dtype']!r:.40}; accepted: {', '.join(_DTYPES)}")
    for name in ("low", "high") if "shape" in part else ():
        found, wanted = np.array(part[name], dtype=np.float64).shape, tuple(part["shape"])
        if found != wanted:
            raise ValueError(f"a space of shape {wanted} with {name} of shape {found}")
    return part


def read_data(path: str | Path, key: str = "data") -> list[PolicyData]:
    """Read one Minari dataset, or those of all policies of a recording, into memory.

    Args:
        key: the setting or option that names them, for messages.

    Raises:
        ConfigError: there are none, a file is damaged, or they need more than a quarter of the free memory.
    """
    folder = as_path(key, path)
    try:
        is_recording = os.path.lexists(folder / RECORDING)
        stored = [*recorded_policies(folder).values()] if is_recording else [read_policy_data(folder)]
        with damage_named(folder):  # by what they say, before all of their episodes are read
            require_fits(folder, sum(data.episodes.nbytes for data in stored if isinstance(data.episodes, _Episodes)))
        return [replace(data, episodes=[*data.episodes]) for data in stored]
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}", key=key) from error


def joint_episodes(directory: str | Path) -> Iterator[Mapping[AgentID, RecordedEpisode]]:
    """Yield what all agents did in each joint episode of a recording: agent -> its episode.

    Args:
        directory: the folder of a recording.

    Raises:
        ConfigError: it is no recording, or a dataset of it is damaged.
    """
    return joint_episodes_of(recorded_policies(directory).values())


def joint_episodes_of(recorded: Iterable[PolicyData]) -> Iterator[Mapping[AgentID, RecordedEpisode]]:
    """Yield what all agents did in each joint episode, from the datasets of a recording."""
    by_id = attrgetter("episode_id")
    for _, episodes in groupby(heapq.merge(*(data.episodes for data in recorded), key=by_id), by_id):
        yield {episode.agent: episode for episode in episodes}


def recorded_policies(directory: str | Path) -> dict[PolicyID, PolicyData]:
    """Return the datasets of a recording, by policy, each with its episodes that are recorded of all agents.

    Raises:
        ConfigError: see `joint_episodes`.
    """
    folder = as_path("directory", directory)
    if not os.path.lexists(folder / RECORDING):
        raise ConfigError(f"{folder} is no recording: it has no {RECORDING}; accepted: what --record wrote", key="data")
    with damage_named(folder):
        content = _json(folder / RECORDING)
        if content["format"] != FORMAT:
            raise ValueError(f"{RECORDING} has the format {shown(content['format'])}; accepted: {FORMAT}")
        counts = {str(name): int(count) for name, count in content["episodes"].items()}
        for name in counts:
            require_file_name(f"{folder / RECORDING}: a folder", name, "data")
        require_own(folder, [f"{name}/" for name in counts])
    found = {}
    for data, count in [(read_policy_data(folder / name), count) for name, count in counts.items()]:
        if len(data.episodes) < count:
            words = f"policy {data.policy_id!r} has {len(data.episodes)} episodes; {RECORDING} says {count}"
            raise ConfigError(f"{folder} is damaged: {words}", key="data")
        found[data.policy_id] = replace(data, episodes=data.episodes[:count])
    return found


# --- Minari ----------------------------------------------------------------------------------------------------------


def minari_storage() -> Any:
    """Return Minari's class `MinariStorage`.

    Raises:
        ConfigError: Minari, or h5py, is not installed.
    """
    try:
        import h5py  # noqa: F401 - Minari imports it only when it opens a file
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        words = f"recorded episodes need the package {error.name}, which cannot be imported; {install_words('data')}"
        raise ConfigError(words, key="data") from error
    return MinariStorage


@contextmanager
def damage_named(folder: Path) -> Iterator[None]:
    """Turn errors of damaged files into `ConfigError`s that name the folder."""
    try:
        yield
    except ConfigError:
        raise
    except ImportError as error:
        raise ConfigError(f"{folder} cannot be read: {error}", key="data") from error
    except Exception as error:  # HDF5 and decoders of pictures raise anything
        said = str(error) if type(error) in (ValueError, CheckpointError) else described(error)
        if isinstance(error, OSError) and error.strerror and error.filename:
            said = f"{Path(os.fsdecode(error.filename)).name}: {error.strerror}"
        words = f"{folder} is damaged, or no dataset of recorded episodes: {said[:_MOST_SAID]}"
        words = words if "; accepted: " in words else f"{words}; accepted: a Minari dataset"
        raise ConfigError(words, key="data") from error


# --- Episodes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """What a dataset says of its episodes."""

    observation_space: Space  # as it is stored: nested, perhaps
    action_space: Space  # of the env
    total_steps: int  # of all episodes; there are no more
    jpeg: bool  # whether pictures are JPEG files
    of_agents: bool  # whether the infos are those that `store` writes
    policy_id: PolicyID  # the policy that acted


class _Episodes(Sequence[RecordedEpisode]):
    """The episodes of a dataset, which stay on the disk."""

    def __init__(self, folder: Path, form: _Form, indices: range) -> None:
        self._folder, self._form, self._indices = folder, form, indices

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def nbytes(self) -> int:
        """About the size of all of them in memory, by what the dataset says."""
        form = self._form
        seen = sum(map(_size, leaves_of(form.observation_space).values()))
        infos = 40 + _mask_size(form.action_space) if form.of_agents else 8
        of_step = seen + 2 * _size(form.action_space) + infos
        return form.total_steps * of_step + len(self) * (seen + _PER_EPISODE)

    @overload
    def __getitem__(self, index: int) -> RecordedEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RecordedEpisode]: ...
    @override
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return _Episodes(self._folder, self._form, self._indices[index])
        return next(self._read([self._indices[index]]))

    @override
    def __iter__(self) -> Iterator[RecordedEpisode]:
        return self._read(self._indices)

    def _read(self, indices: Sequence[int]) -> Iterator[RecordedEpisode]:
        if not indices:
            return
        with damage_named(self._folder):
            files = EpisodeFiles(self._folder)
        left = self._form.total_steps
        with closing(files):
            for index in indices:
                with damage_named(self._folder):
                    read = _read_episode(files.episode(index), self._form, index, left)
                left -= len(read)
                yield read


def _read_episode(group: Group, form: _Form, index: int, most: int) -> RecordedEpisode:
    """Read an episode of at most so many actions."""
    length = group.length("rewards")
    if not 0 < length <= most:
        raise ValueError(f"{group.where} has {length} actions; {METADATA} leaves 1 to {most} of total_steps")
    infos = group.group("infos") if form.of_agents and group.link_type("infos") is not None else None

    def info(name: str, shape: Sequence[int] | None = None) -> Any:
        return None if infos is None or infos.link_type(name) is None else infos.array(name, shape)

    def text(name: str, otherwise: str) -> str:
        return otherwise if infos is None or infos.link_type(name) is None else infos.text(name)

    space: Any = form.action_space
    seed, arrays = info(EPISODE_SEED), dict[str, Any]()
    shapes = {"action_masks": (length, _mask_size(space)), "sampled_actions": _shape(space, length)}
    for field, (name, dtype) in INFOS.items():
        found = info(name, shapes.get(field, (length,)))
        if found is not None:
            where = f"{group.where}/infos/{name}"
            arrays[field] = _cast(found, space, where) if dtype is None else found.astype(dtype)
    ends = {name: group.array(name, (length,))[-1] for name in ("terminations", "truncations")}
    acted = _values(group, "actions", env_space(form.action_space), length, jpeg=form.jpeg)  # of parts: a dict
    return RecordedEpisode(
        policy_id=form.policy_id,
        agent=text(AGENT, SINGLE_AGENT),
        episode_id=text(EPISODE_ID, f"{index:08d}"),
        env_index=int(info(ENV_INDEX) or 0),
        seed=None if seed is None else int(seed),
        observations=_values(group, "observations", form.observation_space, length + 1, jpeg=form.jpeg),
        actions=space.join_parts([*acted.values()], (length,)) if isinstance(acted, dict) else acted,
        rewards=group.array("rewards", (length,)).astype(np.float64, copy=False),
        terminated=bool(ends["terminations"]),
        truncated=bool(ends["truncations"]),
        **arrays,
    )


def _values(group: Group, path: str, space: Space, length: int, *, jpeg: bool) -> Recorded:
    """Read the values of a space, with the names that policies know its parts by."""
    from minari.dataset.minari_storage import is_image_space

    parts = leaves_of(space, path)
    read = []
    for where, part in parts.items():
        find = group.images if jpeg and is_image_space(part) else group.array
        read.append(_cast(find(where, _shape(part, length)), part, f"{group.where}/{where}"))
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return read[0]
    return dict(zip(flat_space(space).spaces, read, strict=True))


def leaves_of(space: Space, path: str = "") -> dict[str, Space]:
    """The parts of a space that have no parts by their paths in an episode, as Minari stores them."""
    if isinstance(space, spaces.Tuple):
        inner = {f"_index_{number}": part for number, part in enumerate(space.spaces)}
    elif isinstance(space, spaces.Dict):
        inner = dict(space.spaces)
    else:
        return {path: space}
    return {where: leaf for name, part in inner.items() for where, leaf in leaves_of(part, f"{path}/{name}").items()}


def _shape(space: Space, length: int) -> tuple[int, ...]:
    if space.shape is None or space.dtype is None or np.dtype(space.dtype).kind not in "biuf":
        raise ValueError(f"a space {space}; accepted: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these")
    return (length, *space.shape)


def _size(space: Space) -> int:
    return math.prod(_shape(space, 1)) * np.dtype(space.dtype).itemsize


def _mask_size(space: Space) -> int:
    """How many entries a mask of actions has; a few letters may describe a space of billions."""
    return 2 * math.prod(space.shape) if isinstance(space, spaces.MultiBinary) else sum(choices_of(space) or ())


def _cast(found: Array, space: Space, where: str) -> Array:
    """Return values with the dtype of a space, which must not change them."""
    with np.errstate(invalid="ignore"):
        cast = found.astype(space.dtype, copy=False)
    if cast.dtype.kind in "biu" and cast.dtype != found.dtype and not np.array_equal(cast, found):
        raise ValueError(f"{where} has values of {found.dtype} that are not those of {space}")
    return cast
