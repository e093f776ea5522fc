"""Follow the steps of all envs, and cut the finished episodes of all agents out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.core.acting.actor import Acted
from marl_sb3.core.mapping import PolicyMapping, PolicyRows, rows_of_policy
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.observations import map_arrays, put, taken
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.extensions.data.dataset import Recorded, RecordedEpisode
from marl_sb3.extensions.data.store import EpisodeStore, PolicyKind
from marl_sb3.types import AgentID, Array, Observations, PolicyID

_FIRST_STEPS = 256  # for which there is room at first
MAX_BYTES = 2**30  # of the steps of running episodes


class Timeline:
    """The latest steps of all envs as arrays, (steps, E, ...) each; the oldest are dropped when nobody needs them."""

    def __init__(self) -> None:
        self._arrays: dict[str, Observations] = {}
        self.room = _FIRST_STEPS  # for so many steps
        self.length = 0  # number of the present step

    def put(self, name: str, values: Observations) -> None:
        """Copy the values of the present step, (E, ...)."""
        there = self._arrays.get(name)
        if there is None:
            there = map_arrays(lambda each: np.zeros((self.room, *each.shape), each.dtype), values)
            self._arrays[name] = there
        put(values, there, self.length)

    def of_env(self, name: str, first: int, env_index: int) -> Any:
        """Return the values of one env from a step on, (steps, ...), as a view; None if there are none."""
        there = self._arrays.get(name)
        return None if there is None else taken(there, (slice(first, self.length), env_index))

    def make_room(self, needed: int) -> int:
        """Drop steps: the last `needed` ones stay. There is room for as many again; returns the size of all arrays."""
        kept = slice(self.length - needed, self.length)
        self.room, self.length, nbytes = max(self.room, 2 * needed), needed, 0

        def moved(array: Array) -> Array:
            nonlocal nbytes
            fresh = array if self.room == len(array) else np.empty((self.room, *array.shape[1:]), array.dtype)
            fresh[:needed] = array[kept]
            nbytes += fresh.nbytes
            return fresh

        self._arrays = {name: map_arrays(moved, values) for name, values in self._arrays.items()}
        return nbytes


class EpisodeRecorder:
    """An `ActingWatcher` that records every episode it has watched from beginning to end.

    Args:
        env: the envs.
        policies: the rows of each policy.
        store: gets the episodes.
        quotas: number of episodes of each env that are recorded; None: all.
        varies: whether several policies may play an agent, one in each episode.
    """

    def __init__(
        self,
        env: MultiAgentVecEnv,
        policies: Sequence[PolicyRows],
        store: EpisodeStore,
        quotas: Sequence[int] | None = None,
        *,
        varies: bool = False,
    ) -> None:
        self._env, self._store, self._varies = env, store, varies
        self._policies = {rows.policy_id: rows for rows in policies}
        self._seats = [(rows, number) for rows in policies for number in range(len(rows.agents))]
        self._left = None if quotas is None else list(quotas)
        self._timeline = Timeline()
        self._latest: VecStep | None = None
        self._begins = np.full(env.num_envs, -1)  # step of the timeline; -1: the running episode is not recorded
        self._renewed: set[int] = set()  # envs that have begun new episodes since the latest step
        self._seeds: list[int | None] = [None] * env.num_envs
        # place -> (steps since the episode began, seen)
        self._finals: dict[tuple[int, int], list[tuple[int, Any]]] = {}
        self._stopped = False

    # --- Steps -------------------------------------------------------------------------------------------------------

    def begin_episodes(self, step: VecStep) -> None:
        """See `ActingWatcher.begin_episodes`."""
        self._latest = step
        self._begin(range(self._env.num_envs))

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """See `ActingWatcher.restart_envs`."""
        self._renewed.update(env_indices)

    def _begin(self, env_indices: Sequence[int]) -> None:
        self._begins[list(env_indices)] = self._timeline.length
        for env_index, seed in zip(env_indices, self._env.episode_seeds(env_indices), strict=True):
            self._seeds[env_index] = seed
        if self._finals:
            begun = set(env_indices)
            self._finals = {place: seen for place, seen in self._finals.items() if place[0] not in begun}

    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        """See `ActingWatcher.before_step`."""
        if self._stopped:
            return
        if step is not self._latest:  # the first step of a resumed run, or the envs were set to another state
            self._begins[:] = -1
            self._finals = {}
            if self._renewed:
                self._begin(sorted(self._renewed))
        self._renewed.clear()
        timeline = self._timeline
        if timeline.length == timeline.room:
            self._make_room()
        for number, (seen, masks, done) in enumerate(zip(step.observations, step.action_masks, actions, strict=True)):
            timeline.put(f"seen{number}", seen)
            timeline.put(f"actions{number}", done)
            if masks is not None:
                timeline.put(f"masks{number}", masks)
        for policy_id, of_policy in acted.items():
            self._put_decision(policy_id, of_policy)

    def _put_decision(self, policy_id: PolicyID, acted: Acted) -> None:
        space, decision, rows = self._policies[policy_id].group.action_space, acted.decision, (self._env.num_envs, -1)
        if decision.log_probs is not None:
            self._timeline.put(f"log_probs/{policy_id}", decision.log_probs.reshape(rows))
            if decision.values is not None:
                self._timeline.put(f"values/{policy_id}", decision.values.reshape(rows))
            if isinstance(space, spaces.Box) and decision.learned is not None:
                self._timeline.put(f"sampled/{policy_id}", decision.learned.reshape(*rows, *space.shape))
        if self._varies:
            self._timeline.put(f"plays/{policy_id}", acted.acting.reshape(rows))

    def after_step(self, step: VecStep) -> None:
        """See `ActingWatcher.after_step`."""
        self._latest = step
        if self._stopped:
            return
        timeline, ended = self._timeline, step.terminated | step.truncated
        for name in ("rewards", "acted", "terminated", "truncated"):
            timeline.put(name, getattr(step, name))
        timeline.length += 1
        for env_index, column in np.argwhere(ended).tolist():
            begin, place = int(self._begins[env_index]), (env_index, column)
            if begin >= 0 and place in step.final_observations:
                seen = map_arrays(np.copy, step.final_observations[place])
                self._finals.setdefault(place, []).append((timeline.length - begin - 1, seen))
        if step.episode_done.any():
            self._end_episodes(np.flatnonzero(step.episode_done).tolist())

    def _end_episodes(self, env_indices: Sequence[int]) -> None:
        """Give the store the episodes of all agents, one of each: agents that ended and lived again have several."""
        for env_index in env_indices:
            if self._begins[env_index] < 0 or (self._left is not None and self._left[env_index] <= 0):
                continue
            if self._left is not None:
                self._left[env_index] -= 1
            for lives in zip_longest(*(self._lives(*seat, env_index) for seat in self._seats)):
                present = [life for life in lives if life is not None]
                self._store.add([replace(life, episode_id=self._store.next_id) for life in present])
        if self._store.is_full:
            self._stop()
        self._begin(env_indices)

    def _make_room(self) -> None:
        """Drop what belongs to no running episode."""
        timeline, running = self._timeline, self._begins >= 0
        first = int(self._begins[running].min()) if running.any() else timeline.length
        dropped = min(first, timeline.length)
        nbytes = timeline.make_room(timeline.length - dropped)
        self._begins[running] -= dropped
        if nbytes > MAX_BYTES:
            self._store.end(
                f"the episodes are too long: the running ones need more than {MAX_BYTES >> 20} MB of memory"
            )
            self._stop()

    def _stop(self) -> None:
        self._stopped, self._timeline = True, Timeline()

    # --- Episodes ----------------------------------------------------------------------------------------------------

    def _lives(self, rows: PolicyRows, number: int, env_index: int) -> Iterator[RecordedEpisode]:
        """Yield the episode of each life of an agent of a policy, by its number, without its id."""
        first, column = int(self._begins[env_index]), rows.agent_columns[number]

        def of_env(name: str) -> Any:
            return self._timeline.of_env(name, first, env_index)

        acted, plays = of_env("acted")[:, column], of_env(f"plays/{rows.policy_id}")
        if plays is not None:
            acted = acted & plays[:, number]
        terminated, truncated = of_env("terminated")[:, column], of_env("truncated")[:, column]
        begin = 0
        for end in np.flatnonzero(terminated | truncated).tolist():
            chosen = np.flatnonzero(acted[begin : end + 1]) + begin
            begin = end + 1
            if len(chosen):
                yield self._life(rows, number, env_index, of_env, chosen, end)

    def _life(
        self, rows: PolicyRows, number: int, env_index: int, of_env: Callable[[str], Any], chosen: Array, end: int
    ) -> RecordedEpisode:
        """Return the episode of the actions at the steps `chosen`, which ended at the step `end`."""
        group, policy_id = rows.group_index, rows.policy_id
        column, of_group = rows.agent_columns[number], rows.group_columns[number]
        whole = len(chosen) == chosen[-1] + 1 - chosen[0]  # slices are copied faster
        places: Any = slice(int(chosen[0]), int(chosen[-1]) + 1) if whole else chosen

        def at_actions(name: str, column: int) -> Any:
            values = of_env(name)
            return None if values is None else map_arrays(lambda each: each[:, column][places].copy(), values)

        final = next((seen for step, seen in self._finals.get((env_index, column), ()) if step == end), None)
        rewards = of_env("rewards")[chosen[0] : end + 1, column]
        actions = at_actions(f"actions{group}", of_group)
        sampled = at_actions(f"sampled/{policy_id}", number)
        if sampled is not None and np.array_equal(sampled, actions):
            sampled = None
        return RecordedEpisode(
            policy_id,
            rows.agents[number],
            episode_id="",
            env_index=env_index,
            seed=self._seeds[env_index],
            observations=_with_last(at_actions(f"seen{group}", of_group), final),
            actions=actions,
            rewards=np.add.reduceat(rewards.astype(np.float64), chosen - chosen[0]),
            terminated=bool(of_env("terminated")[end, column]),
            truncated=bool(of_env("truncated")[end, column]),
            log_probs=at_actions(f"log_probs/{policy_id}", number),
            values=at_actions(f"values/{policy_id}", number),
            action_masks=at_actions(f"masks{group}", of_group),
            sampled_actions=sampled,
            steps=None if whole and chosen[0] == 0 else chosen,
        )


def _with_last(seen: Recorded, final: Observations | None) -> Recorded:
    """Append the observation that an agent ended on; what it saw last where the env returned none."""
    if isinstance(seen, Mapping):
        return {key: _with_last(array, None if final is None else final[key]) for key, array in seen.items()}  # type: ignore[misc]
    last = seen[-1] if final is None else np.asarray(final, seen.dtype)
    return np.concatenate([seen, last[None]])


def recorder_of(
    env: MultiAgentVecEnv,
    policy_of: Mapping[AgentID, PolicyID],
    directory: Path,
    name: str,
    candidates: Mapping[AgentID, Sequence[PolicyID]] | None = None,
    **options: Any,
) -> tuple[EpisodeRecorder, EpisodeStore]:
    """Make or open a recording, and what records into it.

    Args:
        env: the envs.
        policy_of: agent -> policy id.
        directory: see `EpisodeStore`.
        name: of the env, in the ids of the datasets.
        candidates: agent -> all policies that may play it, where this varies by episode.
        options: `quotas` of the recorder; the others are those of the store.

    Raises:
        ConfigError: see `EpisodeStore`.
    """
    mapping = PolicyMapping(candidates or {agent: (policy_id,) for agent, policy_id in policy_of.items()})
    policy_ids = dict.fromkeys(policy_id for own in mapping.candidates.values() for policy_id in own)
    rows = [rows_of_policy(env, policy_id, mapping.seats_of(policy_id)) for policy_id in policy_ids]
    kinds = {
        each.policy_id: PolicyKind(each.agents, each.group.observation_space, each.group.action_space) for each in rows
    }
    quotas = options.pop("quotas", None)
    store = EpisodeStore(directory, kinds, name, **options)
    return EpisodeRecorder(env, rows, store, quotas, varies=bool(mapping.varied)), store
