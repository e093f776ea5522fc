"""Recorded episodes for tests: made of arrays, and written as Minari datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.extensions.data.dataset import RecordedEpisode
from marl_sb3.extensions.data.store import EpisodeStore, PolicyKind

BOX, TWO = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)


def episode(
    observations: Any, actions: Any, rewards: Any = None, *, agent: str = "agent", ends: str = "terminated", **more: Any
) -> RecordedEpisode:
    """An episode of one agent; rewards are 0, 1, 2, ... if they are not given."""
    length = len(actions)
    return RecordedEpisode(
        policy_id="shared",
        agent=agent,
        episode_id="00000000",
        env_index=0,
        seed=None,
        observations=observations,
        actions=np.asarray(actions),
        rewards=np.asarray(np.arange(length) if rewards is None else rewards, dtype=np.float64),
        terminated=ends == "terminated",
        truncated=ends == "truncated",
        **more,
    )


def open_store(directory: Path, **options: Any) -> EpisodeStore:
    """A store of the policies a and b, with 5 episodes in each of its shards."""
    kinds = {agent: PolicyKind([agent], BOX, TWO) for agent in ("a", "b")}
    return EpisodeStore(directory, kinds, "test", shard_episodes=5, **options)


def add(store: EpisodeStore) -> None:
    """Add an episode of both, of two steps."""
    one = episode(np.zeros((3, 3), np.float32), [0, 1])
    store.add([replace(one, episode_id=store.next_id, policy_id=agent, agent=agent) for agent in ("a", "b")])


def write_dataset(
    folder: Path, observed: spaces.Space[Any], acted: spaces.Space[Any], episodes: Sequence[RecordedEpisode]
) -> Path:
    """Write a Minari dataset of a Gymnasium env, whose only agent is called `agent`."""
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    folder.mkdir(parents=True)
    storage = MinariStorage.new(folder, observed, acted)
    storage.update_episodes(
        EpisodeBuffer(
            id=number,
            observations=[*each.observations],
            actions=[*each.actions],
            rewards=each.rewards.tolist(),
            terminations=[False] * (len(each.actions) - 1) + [each.terminated],
            truncations=[False] * (len(each.actions) - 1) + [each.truncated],
        )
        for number, each in enumerate(episodes)
    )
    return folder


def copying(space: spaces.Space[Any], number: int = 24, length: int = 12, seed: int = 0) -> list[RecordedEpisode]:
    """Episodes of an agent that does what its observation says: its first number is the action, or its sign."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        seen = random.uniform(-1, 1, (length + 1, 3)).astype(np.float32)
        acts = 0.5 * seen[:-1, :1] if isinstance(space, spaces.Box) else (seen[:-1, 0] > 0).astype(np.int64)
        found.append(episode(seen, acts, ends="truncated"))
    return found
