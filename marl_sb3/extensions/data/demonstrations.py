"""Recorded episodes as a policy learns from them: observations and actions in the spaces of the policy."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecTransposeImage

from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.off_policy.replay import Transitions
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.processors import REWARD, RowMemory
from marl_sb3.core.vec_env.observations import joined_observations, map_arrays, pairs, taken, zeros
from marl_sb3.errors import ConfigError, shown
from marl_sb3.types import Array, BoolArray, Observations

if TYPE_CHECKING:
    from marl_sb3.extensions.data.dataset import PolicyData, RecordedEpisode


@dataclass(frozen=True)
class Demonstrations:
    """The N transitions of recorded episodes, one episode after the other."""

    # (N + episodes, ...) what the policy would have observed: at each action of an episode, and at its end
    seen: Observations
    actions: Array  # (N, *action shape) as the algorithm learns from them
    rewards: Array  # (N,) float32; clipped if the policy's settings say so, and not normalised
    masks: BoolArray | None  # (N, n) bool; None: the data has none
    lengths: Array  # (episodes,) the number of transitions of each episode
    terminated: BoolArray  # (episodes,) bool; whether an episode was terminated. Its end is a truncation otherwise.
    agents: Array  # (episodes,) the index of each episode's agent among the agents of the policy

    def __len__(self) -> int:
        return len(self.actions)

    @cached_property
    def places(self) -> Array:
        """(N,) the index of each transition's observation in `seen`; the next one is that after it."""
        return np.arange(len(self)) + self.episodes

    @cached_property
    def episodes(self) -> Array:
        """(N,) the episode of each transition."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def is_last(self) -> BoolArray:
        """(N,) whether a transition is the last one of its episode."""
        last = np.zeros(len(self), dtype=np.bool_)
        last[self.begins[1:] - 1] = True
        return last

    @cached_property
    def begins(self) -> Array:
        """(episodes + 1,) the index of each episode's first transition; the last is N."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def of_episodes(self, episodes: Array) -> Array:
        """Return the indices of the transitions of these episodes, in their order."""
        return np.concatenate([np.arange(self.begins[each], self.begins[each + 1]) for each in episodes])

    def transitions(self, chosen: Array, rows: Array) -> Transitions:
        """Return these transitions for a replay buffer, as if they were of these rows."""
        last, place, masks = self.is_last[chosen], self.places[chosen], None
        if self.masks is not None:  # the mask of the next action; after the last one, nobody asks for it
            masks = last[:, None] | self.masks[np.minimum(chosen + 1, len(self) - 1)]
        return Transitions(
            taken(self.seen, place),
            taken(self.seen, place + 1),
            self.actions[chosen],
            self.rewards[chosen],
            last,
            last & ~self.terminated[self.episodes[chosen]],
            rows,
            masks,
        )

    def checksum(self) -> int:
        """Return a number that tells these data from others."""
        return zlib.crc32(self.actions.tobytes(), zlib.crc32(self.lengths.astype(np.int64).tobytes()))


def demonstrations(
    episodes: Sequence[RecordedEpisode],
    rows: PolicyRows,
    processing: Processing,
    algorithm: Any,
    *,
    learn: bool = False,
    normalize: bool = True,
) -> Demonstrations:
    """Process recorded episodes as those that a policy plays itself.

    Args:
        episodes: at least one; see `require_episodes`.
        rows: the rows of the policy, in the spaces of its env.
        processing: of the policy.
        algorithm: the SB3 algorithm of the policy.
        learn: whether its running statistics take in the data first.
        normalize: whether observations are normalised; not for a replay buffer, which normalises what is drawn.
    """
    if processing.team_reward is not None and not normalize:
        words = f"team_reward is {processing.team_reward}, and recorded episodes have the rewards of single agents"
        raise ConfigError(f"policy {rows.policy_id!r}: {words}; accepted: null", key="team_reward")
    agents = np.array([_agent_of(episode, rows, processing) for episode in episodes])
    of_policy = [_actions(episode, rows, processing) for episode in episodes]
    if learn and processing.normalizer is not None:
        _observed(episodes, of_policy, agents, rows, processing, learn=True, normalize=normalize)
    seen = _observed(episodes, of_policy, agents, rows, processing, learn=False, normalize=normalize)
    limit = np.inf if processing.settings.clip_rewards is None else processing.settings.clip_rewards
    rewards = [np.clip(episode.rewards, -limit, limit) for episode in episodes]
    if learn and processing.returns is not None:
        for of_episode in rewards:
            processing.returns.update(np.array([*accumulate(of_episode, lambda sum_, r: sum_ * algorithm.gamma + r)]))
    masks = [episode.action_masks for episode in episodes]
    env = getattr(algorithm, "env", None)
    return Demonstrations(
        env.transpose_observations(seen) if isinstance(env, VecTransposeImage) else seen,
        learned_actions(algorithm, np.concatenate(of_policy)),
        np.concatenate(rewards).astype(np.float32),
        None if any(each is None for each in masks) else np.concatenate([np.asarray(each, bool) for each in masks]),
        np.array([len(episode.actions) for episode in episodes]),
        np.array([bool(episode.terminated) for episode in episodes]),
        agents,
    )


def learned_actions(algorithm: Any, actions: Array) -> Array:
    """Convert (n, *action shape) actions in the action space of a policy to those that its algorithm learns from.

    Algorithms with a replay buffer, and policies that squash their actions, learn actions in [-1, 1].
    """
    policy = algorithm.policy
    if not isinstance(algorithm.action_space, spaces.Box):
        return actions
    scaled = policy.squash_output or not hasattr(policy, "get_distribution")
    return np.asarray(policy.scale_action(actions) if scaled else actions, dtype=np.float32)


def _agent_of(episode: RecordedEpisode, rows: PolicyRows, processing: Processing) -> int:
    if episode.agent in rows.agents:
        return rows.agents.index(episode.agent)
    if processing.settings.agent_indicator:
        words = f"agent_indicator is on, and the data are of agent {episode.agent!r}"
        accepted = f"accepted: data of {', '.join(rows.agents)}"
        raise ConfigError(f"policy {rows.policy_id!r}: {words}; {accepted}", key="agent_indicator")
    return 0


def _actions(episode: RecordedEpisode, rows: PolicyRows, processing: Processing) -> Array:
    """Return the (T, *action shape) actions of an episode in the action space of the policy."""
    counted: Array = rows.zero_based_actions.from_env(np.asarray(episode.actions))
    return counted if processing.rescale is None else processing.rescale.reverse(counted)


# --- Observations -----------------------------------------------------------------------------------------------------


def _observed(
    episodes: Sequence[RecordedEpisode],
    actions: Sequence[Array],
    agents: Array,
    rows: PolicyRows,
    processing: Processing,
    *,
    learn: bool,
    normalize: bool,
) -> Observations:
    """Return the (N + episodes, ...) observations of episodes, as the policy would have seen them."""
    raw: list[Observations] = [rows.zero_based_observations.from_env(each.observations) for each in episodes]
    sizes = np.array([len(of_episode) + 1 for of_episode in actions])
    if not processing.initial(1):  # nothing is remembered from one step to the next
        of_each = np.repeat(agents, sizes)
        return processing.observe(joined_observations(raw), {}, of_each, learn, normalize)[0]
    # All episodes at the same time, step by step, as the rows of a training would see them.
    late = processing.normalizer if not normalize else None
    seen = zeros(processing.observation_space if late is None else late.before, (int(sizes.sum()),))
    begins = np.concatenate([[0], np.cumsum(sizes)])
    longest_first = np.argsort(-sizes, kind="stable")
    lengths = sizes[longest_first] - 1
    memory: RowMemory = processing.initial(len(actions))
    for step in range(int(sizes.max())):
        playing = longest_first[: np.count_nonzero(lengths >= step)]
        memory = {name: array[: len(playing)] for name, array in memory.items()}
        now = joined_observations([map_arrays(lambda array: array[step : step + 1], raw[each]) for each in playing])  # noqa: B023
        observations, memory = processing.observe(now, memory, agents[playing], learn, normalize)
        for own, given in pairs(seen, observations):
            own[begins[playing] + step] = given
        acting = playing[: np.count_nonzero(lengths > step)]
        memory = {name: array[: len(acting)] for name, array in memory.items()}
        if len(acting):
            memory = processing.acted(memory, np.stack([actions[each][step] for each in acting]))
        if REWARD in memory:
            paid = np.array([[episodes[each].rewards[step]] for each in acting], dtype=memory[REWARD].dtype)
            memory = {**memory, REWARD: paid}
    return seen


# --- Are they of this policy? -----------------------------------------------------------------------------------------


def require_episodes(data: Sequence[PolicyData], rows: PolicyRows, path: Any) -> list[RecordedEpisode]:
    """Return the episodes of a policy's agents, or of all agents if there is one policy's agent and none has its name.

    Args:
        data: the datasets.
        path: of the data, for messages.

    Raises:
        ConfigError: there are none, their spaces differ from those of the policy, or a value is not in its space.
    """
    present = {episode.agent for dataset in data for episode in dataset.episodes if len(episode.actions)}
    alone = rows.num_agents == 1 and len(present) == 1
    wanted = set(rows.agents) if present & set(rows.agents) or not alone else present
    found: list[RecordedEpisode] = []
    for dataset in data:
        own = [episode for episode in dataset.episodes if episode.agent in wanted and len(episode.actions)]
        for what, theirs, ours in (
            ("observations", dataset.observation_space, rows.group.observation_space),
            ("actions", dataset.action_space, rows.group.action_space),
        ):
            if own and _form(theirs) != _form(ours):
                words = f"{path} has {what} of {shown(theirs, 1000)}; those of its agents are of {ours}"
                raise ConfigError(f"policy {rows.policy_id!r}: {words}; accepted: data of the same env", key="data")
        found += own
    if not found:
        others = f" of {', '.join(rows.agents)}, but of {', '.join(sorted(map(str, present))[:8])}" if present else "s"
        words = f"{path} has no episode{others}"
        raise ConfigError(f"policy {rows.policy_id!r}: {words}; accepted: data with episodes of its agents", key="data")
    for episode in found:
        _require_values(episode, rows, path)
    return found


def _form(space: spaces.Space[Any]) -> Any:
    """Return what two spaces have to have in common; bounds of a Box may differ, its values are looked at."""
    if isinstance(space, spaces.Dict):
        return {key: _form(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Box):
        return "Box", space.shape, np.dtype(space.dtype).kind
    return space


def _require_values(episode: RecordedEpisode, rows: PolicyRows, path: Any) -> None:
    """Refuse values that a network could not take."""
    where = f"policy {rows.policy_id!r}: {path}, episode {episode.episode_id} of {episode.agent}"
    seen = episode.observations
    arrays = seen if isinstance(seen, Mapping) else {"observations": seen}
    space, actions = rows.group.action_space, np.asarray(episode.actions)
    for name, array in {**arrays, "rewards": episode.rewards, "actions": actions}.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ConfigError(f"{where}: {name} are not finite; accepted: numbers", key="data")
    if not _are_in(space, actions):
        raise ConfigError(f"{where}: an action is not in {space}; accepted: data of the same env", key="data")


_ROUNDING = 1e-5  # of bounds: data may have been stored with other precision


def _are_in(space: spaces.Space[Any], actions: Array) -> bool:
    if not isinstance(space, spaces.Box):
        return all(space.contains(action) for action in np.unique(actions, axis=0).astype(space.dtype))
    low, high = (bound.astype(np.float64) for bound in (space.low, space.high))
    margins = (_ROUNDING * np.maximum(1.0, np.abs(bound)) for bound in (low, high))
    return bool(((actions >= low - next(margins)) & (actions <= high + next(margins))).all())
