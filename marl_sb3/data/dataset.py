"""Read recorded episodes: one Minari dataset per policy, whose episodes are those of single agents.

A recording is a folder: `recording.json`, and for each policy `POLICY/data`, which `minari.MinariDataset` opens. What
Minari has no place for is in the infos of an episode, under the names below. Datasets from elsewhere are read too:
their episodes are those of an agent `agent`, without log-probabilities.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from gymnasium import spaces
from typing_extensions import override

from marl_sb3.envs.gymnasium_envs import AGENT as SINGLE_AGENT
from marl_sb3.errors import ConfigError, as_path, described, install_words
from marl_sb3.types import AgentID, Array, BoolArray, FloatArray, PolicyID
from marl_sb3.wrappers.observations import choices_of

FOLDER = "data"  # of a dataset, in the folder of its policy: `minari.load_dataset` looks there, too
METADATA = "metadata.json"  # of a dataset; Minari's
RECORDING = "recording.json"
FORMAT = 1

# Infos of an episode. Those in lower rows have a value for each action, the others one for the episode.
AGENT, EPISODE_ID, ENV_INDEX, EPISODE_SEED = "agent", "episode_id", "env_index", "episode_seed"
LOG_PROB, VALUE, ACTION_MASK, SAMPLED_ACTION, STEP = "log_prob", "value", "action_mask", "sampled_action", "step"

Space = spaces.Space[Any]
Recorded = Array | Mapping[str, Array]  # (T, ...), or one such array per key of a `Dict` space


@dataclass(frozen=True)
class RecordedEpisode:
    """The transitions of one agent in one episode; T is the number of its actions.

    Attributes:
        policy_id: the policy that acted.
        agent: the agent that it acted for.
        episode_id: the same for all agents of one joint episode. An agent that ended and lived again in it has a
            second episode, with an id of its own.
        env_index: index of the env.
        seed: seed of the env's episode, if it is known.
        observations: (T + 1, ...) what the agent saw at each of its actions, and what it ended on; as the env gave it.
        actions: (T, ...) as the env got them.
        rewards: (T,) float64; all it was paid from an action to its next turn or its end.
        terminated: whether it ended in a terminal state.
        truncated: whether it was cut off.
        log_probs: (T,) log-probability or log-density of each action, if the policy that acted told it.
        values: (T,) what this policy expected, if it told it.
        action_masks: (T, n) True where an action was allowed, if the env gave masks.
        sampled_actions: (T, ...) what the policy sampled, which the log-probabilities are of, if that is not `actions`:
            actions in a Box are brought within its bounds.
        steps: (T,) the env step of each action, counted from 0 in the joint episode; None: 0 to T - 1.
    """

    policy_id: PolicyID
    agent: AgentID
    episode_id: str
    env_index: int
    seed: int | None
    observations: Recorded
    actions: Recorded
    rewards: Array
    terminated: bool
    truncated: bool
    log_probs: FloatArray | None = None
    values: FloatArray | None = None
    action_masks: BoolArray | None = None
    sampled_actions: Array | None = None
    steps: Array | None = None

    def __len__(self) -> int:
        """T."""
        return len(self.rewards)


@dataclass(frozen=True)
class PolicyData:
    """One dataset.

    Attributes:
        policy_id: the policy that acted.
        observation_space: of the env.
        action_space: of the env.
        episodes: all episodes, each of one agent. They are read from the disk whenever they are accessed.
    """

    policy_id: PolicyID
    observation_space: Space
    action_space: Space
    episodes: Sequence[RecordedEpisode]


def read_policy_data(path: str | Path) -> PolicyData:
    """Open one dataset.

    Args:
        path: `RECORDING/POLICY`, the folder `data` in it, or the folder of any Minari dataset that names its spaces.

    Raises:
        ConfigError: Minari is not installed, there is no dataset, it is damaged, or it does not name its spaces. A
            damaged episode raises it when it is accessed.
    """
    folder = as_path("path", path)
    folder = folder / FOLDER if (folder / FOLDER / METADATA).is_file() else folder
    if not (folder / METADATA).is_file():
        raise ConfigError(f"{folder} is no dataset: it has no {METADATA}; accepted: a Minari dataset", key="data")
    storage_class = minari_storage()
    with damage_named(folder):
        metadata = json.loads((folder / METADATA).read_text(encoding="utf-8"))
        for name in ("observation_space", "action_space"):
            # Minari would otherwise make the env that the file names, which imports code by that name.
            if not isinstance(metadata.get(name), str):
                raise ValueError(f"{METADATA} does not describe the {name}")
        storage = storage_class.read(folder)
        own = metadata.get("marl_sb3", {})
        policy_id, agents = str(own.get("policy_id", folder.parent.name)), bool(own)
        stored = _StoredEpisodes(storage, policy_id, range(int(metadata["total_episodes"])), folder, agents)
    return PolicyData(policy_id, storage.observation_space, storage.action_space, stored)


def joint_episodes(directory: str | Path) -> Iterator[Mapping[AgentID, RecordedEpisode]]:
    """Yield what all agents did in each joint episode of a recording: agent -> its episode.

    Args:
        directory: the folder of a recording.

    Raises:
        ConfigError: it is no recording, or a dataset of it is damaged.
    """
    datasets = [_PolicyStream(data, count) for data, count in _datasets(directory)]
    while any(stream.episode_id for stream in datasets):
        earliest = min(stream.episode_id for stream in datasets if stream.episode_id)
        yield {episode.agent: episode for stream in datasets for episode in stream.take(earliest)}


def recorded_policies(directory: str | Path) -> dict[PolicyID, PolicyData]:
    """Return the datasets of a recording, by policy.

    Raises:
        ConfigError: see `joint_episodes`.
    """
    return {data.policy_id: _first(data, count) for data, count in _datasets(directory)}


def _datasets(directory: str | Path) -> list[tuple[PolicyData, int]]:
    """The datasets of a recording, each with the number of its episodes that are recorded of all agents."""
    folder = as_path("directory", directory)
    if not (folder / RECORDING).is_file():
        raise ConfigError(f"{folder} is no recording: it has no {RECORDING}; accepted: what --record wrote", key="data")
    with damage_named(folder):
        counts = recording_counts(json.loads((folder / RECORDING).read_text(encoding="utf-8")))
    found = [(read_policy_data(folder / name), count) for name, count in counts.items()]
    for data, count in found:
        if len(data.episodes) < count:
            words = f"policy {data.policy_id!r} has {len(data.episodes)} episodes; {RECORDING} says {count}"
            raise ConfigError(f"{folder} is damaged: {words}", key="data")
    return found


def recording_counts(content: Any) -> dict[str, int]:
    """Return folder -> number of episodes from what a `recording.json` holds.

    Raises:
        ValueError: it is of another format, or a folder lies elsewhere.
    """
    if content["format"] != FORMAT:
        raise ValueError(f"{RECORDING} has the format {content['format']!r}; accepted: {FORMAT}")
    counts = {str(name): int(count) for name, count in content["episodes"].items()}
    elsewhere = [name for name in counts if Path(name).name != name or name == ".."]
    if elsewhere:
        raise ValueError(f"{RECORDING} names the folder {elsewhere[0]!r}; accepted: names without a path")
    return counts


def _first(data: PolicyData, count: int) -> PolicyData:
    return PolicyData(data.policy_id, data.observation_space, data.action_space, data.episodes[:count])


class _PolicyStream:
    """The episodes of one policy in their order, as far as they are recorded of all agents.

    Attributes:
        episode_id: of the next episode; empty at the end.
    """

    def __init__(self, data: PolicyData, count: int) -> None:
        self._episodes = iter(data.episodes[:count])
        self._go_on()

    def take(self, episode_id: str) -> Iterator[RecordedEpisode]:
        """Yield the next episodes as long as they have this id."""
        while self.episode_id == episode_id and self._next is not None:
            yield self._next
            self._go_on()

    def _go_on(self) -> None:
        self._next = next(self._episodes, None)
        self.episode_id = "" if self._next is None else self._next.episode_id


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
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
        words = f"{folder} is damaged, or no dataset of recorded episodes: {described(error)}"
        raise ConfigError(f"{words}; accepted: a Minari dataset", key="data") from error
    except ImportError as error:
        raise ConfigError(f"{folder} cannot be read: {error}", key="data") from error


class _StoredEpisodes(Sequence[RecordedEpisode]):
    """The episodes of a dataset, which stay on the disk."""

    def __init__(self, storage: Any, policy_id: PolicyID, indices: range, folder: Path, of_agents: bool) -> None:
        self._storage = storage
        self._policy_id = policy_id
        self._indices = indices
        self._folder = folder
        self._of_agents = of_agents

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> RecordedEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RecordedEpisode]: ...
    @override
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            chosen = self._indices[index]
            return _StoredEpisodes(self._storage, self._policy_id, chosen, self._folder, self._of_agents)
        return next(self._read([self._indices[index]]))

    @override
    def __iter__(self) -> Iterator[RecordedEpisode]:
        return self._read(self._indices)

    def _read(self, indices: Sequence[int]) -> Iterator[RecordedEpisode]:
        if not indices:
            return
        with damage_named(self._folder):
            stored = iter(self._storage.get_episodes(indices))
        for index in indices:
            with damage_named(self._folder):
                episode = next(stored, None)
                if episode is None:
                    raise ValueError(f"episode {index} is missing")
                read = self._as_recorded(episode, index)
            yield read

    def _as_recorded(self, episode: Mapping[str, Any], index: int) -> RecordedEpisode:
        infos = (episode["infos"] or {}) if self._of_agents else {}
        facts = {
            name: np.ravel(infos[name])[0] for name in (AGENT, EPISODE_ID, ENV_INDEX, EPISODE_SEED) if name in infos
        }
        rewards = np.asarray(episode["rewards"], dtype=np.float64)
        length, seed = len(rewards), facts.get(EPISODE_SEED)
        read = RecordedEpisode(
            policy_id=self._policy_id,
            agent=_text(facts.get(AGENT, SINGLE_AGENT)),
            episode_id=_text(facts.get(EPISODE_ID, f"{index:08d}")),
            env_index=int(facts.get(ENV_INDEX, 0)),
            seed=None if seed is None else int(seed),
            observations=_fitting(episode["observations"], self._storage.observation_space, length + 1, index),
            actions=_fitting(episode["actions"], self._storage.action_space, length, index),
            rewards=rewards,
            terminated=bool(np.any(episode["terminations"][-1:])),
            truncated=bool(np.any(episode["truncations"][-1:])),
            log_probs=_per_action(infos, LOG_PROB, length, index),
            values=_per_action(infos, VALUE, length, index),
            sampled_actions=_sampled(infos, self._storage.action_space, length, index),
            steps=_per_action(infos, STEP, length, index, np.int64),
            action_masks=_masks(infos, self._storage.action_space, length, index),
        )
        if length == 0:
            raise ValueError(f"episode {index} has no actions")
        return read


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _per_action(infos: Mapping[str, Any], name: str, length: int, index: int, dtype: Any = np.float32) -> Any:
    if name not in infos:
        return None
    found = np.asarray(infos[name], dtype=dtype)
    if found.shape != (length,):
        raise ValueError(f"episode {index}: {name} of shape {found.shape}; accepted: ({length},)")
    return found


def _sampled(infos: Mapping[str, Any], space: Space, length: int, index: int) -> Array | None:
    return _part(infos[SAMPLED_ACTION], space, length, index) if SAMPLED_ACTION in infos else None


def _masks(infos: Mapping[str, Any], space: Space, length: int, index: int) -> BoolArray | None:
    if ACTION_MASK not in infos:
        return None
    found, wanted = np.asarray(infos[ACTION_MASK], dtype=np.bool_), (length, sum(choices_of(space) or ()))
    if found.shape != wanted:
        raise ValueError(f"episode {index}: masks of shape {found.shape}; accepted: {wanted}")
    return found


def _fitting(values: Any, space: Space, length: int, index: int) -> Recorded:
    """Check that there are `length` values of the shape of a space; returns them with its dtype."""
    if isinstance(space, spaces.Dict):
        return {name: _part(values[name], part, length, index) for name, part in space.spaces.items()}
    return _part(values, space, length, index)


def _part(values: Any, space: Space, length: int, index: int) -> Array:
    if space.shape is None or space.dtype is None:
        raise ValueError(f"a space {space}; accepted: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these")
    found, wanted = np.asarray(values), (length, *space.shape)
    if found.shape != wanted or found.dtype.kind not in "biuf":
        raise ValueError(f"episode {index}: values of shape {found.shape}, {found.dtype}; accepted: {wanted}")
    with np.errstate(invalid="ignore"):
        cast = found.astype(space.dtype, copy=False)
    if cast.dtype.kind in "biu" and cast.dtype != found.dtype and not np.array_equal(cast, found):
        raise ValueError(f"episode {index}: values of {found.dtype} that are not those of {space}")
    return cast
