"""Trajectories: what agents have experienced, shown to a hook that may rewrite it before learners use it.

A trajectory is the part of an agent's episode that lies in a rollout; of a policy with a replay buffer, it is the whole
episode, whose transitions wait for its end. Nothing of this runs in a training without such a hook.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.acting.actor import Acted, Actor
from marl_sb3.acting.policy import PolicyInputs
from marl_sb3.errors import HookError
from marl_sb3.types import AgentID, Array, BoolArray, Observations, PolicyID
from marl_sb3.vec_env.observations import map_arrays, pairs
from marl_sb3.vec_env.step import VecStep


@dataclass
class Trajectory:
    """T transitions of one agent in one episode, in order, as the learner of its policy gets them.

    A hook may change `observations`, `rewards`, `keep` and, of policies with rollouts, `values`: their lengths stay.

    Attributes:
        policy_id: the policy.
        agent: the agent.
        env_index: index of the env.
        steps: (T,) the env step in which each transition began. They are counted alike for all agents of an env.
        observations: (T, ...) what the policy saw.
        actions: (T, ...) what it chose, before it was fitted to the env's action space.
        rewards: (T,) float32; what the agent was paid until its next turn or its end, after the policy's processing.
        keep: (T,) bool; the learner does not get transitions that are set to False.
        values: (T,) the values that the policy estimated; None for policies with a replay buffer.
        log_probs: (T,) log-probabilities of the actions; None for policies with a replay buffer.
        infos: T infos of the agent, from the last env step of each transition.
        has_ended: whether the agent's episode ended with the last transition.
        truncated: whether it was truncated there.
        others: agent -> what each other agent did in these env steps. Its rewards are those of the env, and changes to
            it have no effect.
    """

    policy_id: PolicyID
    agent: AgentID
    env_index: int
    steps: Array
    observations: Observations
    actions: Array
    rewards: Array
    keep: BoolArray
    values: Array | None
    log_probs: Array | None
    infos: Sequence[Mapping[str, Any]]
    has_ended: bool
    truncated: bool
    others: Mapping[AgentID, Trajectory] = field(default_factory=dict, repr=False)
    estimate: Callable[[Observations], Array] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.steps)

    def values_of(self, observations: Observations) -> Array:
        """Return the (n,) values that the policy estimates now for (n, ...) observations, such as changed ones.

        Raises:
            HookError: the policy has a replay buffer or a recurrent state, or is that of another agent.
        """
        if self.estimate is None:
            raise HookError(f"policy {self.policy_id!r} estimates no values here")
        return self.estimate(observations)

    def seen_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the observations, by the names of their parts; "" without parts."""
        seen = self.observations if isinstance(self.observations, Mapping) else {"": self.observations}
        return {name: np.shape(array) for name, array in seen.items()}

    def require_fitting(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse arrays of another length, observations of another shape, and rewards and values that are not finite.

        Args:
            shapes: the `seen_shapes` before the hook.

        Raises:
            HookError: the message says which.
        """
        (length, *_), *_ = shapes.values()
        arrays: dict[str, Any] = {"rewards": self.rewards, "keep": self.keep, "values": self.values}
        for name, array in arrays.items():
            if array is None and name == "values":
                continue
            found = np.asarray(array)
            if found.shape != (length,):
                raise HookError(f"{name} has shape {found.shape} after the hook; accepted: ({length},)")
            if found.dtype.kind not in "biuf":
                raise HookError(f"{name} is of {found.dtype} after the hook; accepted: numbers")
            if not np.isfinite(found).all():
                raise HookError(f"{name} is not finite after the hook")
        if self.seen_shapes() != shapes:
            found_shapes, accepted = (_short(each) for each in (self.seen_shapes(), shapes))
            raise HookError(f"observations has shape {found_shapes} after the hook; accepted: {accepted}")


def _short(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return str(shapes[""] if list(shapes) == [""] else dict(shapes))


TrajectoryHook = Callable[[Trajectory], object]


class _Step(NamedTuple):
    """One step of all envs: copies of what each policy did, and of what came of it."""

    acted: Mapping[PolicyID, Acted]
    rewards: Array  # (E, A)
    ended: BoolArray  # (E, A)
    truncated: BoolArray  # (E, A)
    infos: Sequence[Mapping[str, Any]]


class TrajectoryRewriter:
    """Shows trajectories to a hook; an `ActingWatcher`, because trajectories tell what the other agents did.

    Args:
        hook: gets each trajectory.
        actors: of all policies.
        keeps_episodes: whether steps are kept until the episodes end, as policies with replay buffers need it.
        first_env: index of the first env among those of all shards.

    Attributes:
        hook: gets each trajectory; it may be replaced.
        number: of the next step, counted from 0.
    """

    def __init__(
        self, hook: TrajectoryHook, actors: Sequence[Actor], *, keeps_episodes: bool, first_env: int = 0
    ) -> None:
        self.hook, self._first_env = hook, first_env
        self._place_of = {
            agent: (actor.rows, index, column)
            for actor in actors
            for index, (agent, column) in enumerate(zip(actor.rows.agents, actor.rows.agent_columns, strict=True))
        }
        self._keeps_episodes = keeps_episodes
        self._steps: deque[_Step] = deque()
        self._acted: Mapping[PolicyID, Acted] = {}
        self._begun_at = np.zeros(actors[0].rows.num_envs, dtype=np.int64)  # step in which each env's episode began
        self.number = 0

    # --- Steps -------------------------------------------------------------------------------------------------------

    def begin_episodes(self, step: VecStep) -> None:
        """See `ActingWatcher.begin_episodes`."""
        self.restart_envs(range(len(self._begun_at)))

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """See `ActingWatcher.restart_envs`."""
        self._begun_at[list(env_indices)] = self.number

    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        """See `ActingWatcher.before_step`."""
        self._acted = {
            policy_id: each._replace(
                seen=map_arrays(np.array, each.seen), decision=each.decision._replace(**_copies(each.decision))
            )
            for policy_id, each in acted.items()
        }

    def after_step(self, step: VecStep) -> None:
        """See `ActingWatcher.after_step`."""
        infos = [deepcopy(dict(step.infos[index])) for index in range(len(step.acted))]
        ends = step.terminated | step.truncated
        self._steps.append(_Step(self._acted, step.rewards.copy(), ends, step.truncated.copy(), infos))
        self.number += 1
        self._begun_at[step.episode_done] = self.number

    def forget(self) -> None:
        """Forget the steps that no trajectory needs any more, at the end of a rollout."""
        needed = int(self._begun_at.min()) if self._keeps_episodes else self.number
        while self._steps and self._first < needed:
            self._steps.popleft()

    @property
    def _first(self) -> int:
        """Number of the first step that is kept."""
        return self.number - len(self._steps)

    def _known(self, begin: int, end: int) -> Iterator[tuple[int, _Step]]:
        """Yield the steps from `begin` to before `end` with their numbers, as far as they are kept."""
        for number in range(max(begin, self._first), end):
            yield number, self._steps[number - self._first]

    # --- Trajectories ------------------------------------------------------------------------------------------------

    def rewrite(self, trajectory: Trajectory) -> None:
        """Show a trajectory to the hook, and check what it has left.

        Raises:
            HookError: the hook has changed lengths, or has written numbers that are not finite.
        """
        shapes = trajectory.seen_shapes()
        self.hook(trajectory)
        trajectory.require_fitting(shapes)

    def own(
        self, actor: Actor, row: int, steps: Array, end: int, experience: Mapping[str, Any], *, has_ended: bool
    ) -> Trajectory:
        """Return the trajectory of a row, for the hook to change.

        Args:
            actor: acts for the row.
            row: of the policy.
            steps: (T,) numbers of the steps in which the transitions began.
            end: number of the step after the last one of the trajectory.
            experience: its arrays, of the names in `Trajectory`.
            has_ended: whether the agent's episode ended.
        """
        env_index, index = divmod(row, len(actor.rows.agents))
        agent, column = actor.rows.agents[index], actor.rows.agent_columns[index]
        ranges = list(pairwise([*steps.tolist(), end]))
        last = [step for _, step in self._known(*ranges[-1])]
        return Trajectory(
            actor.rows.policy_id,
            agent,
            self._first_env + env_index,
            steps,
            keep=np.ones(len(steps), dtype=np.bool_),
            infos=[self._info(agent, env_index, *each) for each in ranges],
            has_ended=has_ended,
            truncated=has_ended and any(step.truncated[env_index, column] for step in last),
            others=_Others([other for other in self._place_of if other != agent], env_index, int(steps[0]), end, self),
            **experience,
        )

    def _info(self, agent: AgentID, env_index: int, begin: int, end: int) -> Mapping[str, Any]:
        """Return the last info of an agent in these steps."""
        found = [step.infos[env_index][agent] for _, step in self._known(begin, end) if agent in step.infos[env_index]]
        return found[-1] if found else {}

    def of_other(self, agent: AgentID, env_index: int, begin: int, end: int) -> Trajectory | None:
        """Return what an agent did in an env from step `begin` to before `end`; None if it did not act."""
        rows, index, column = self._place_of[agent]
        row = env_index * len(rows.agents) + index
        turns = [(n, step.acted[rows.policy_id]) for n, step in self._known(begin, end)]
        turns = [(number, acted) for number, acted in turns if acted.acting[row]]
        if not turns:
            return None
        numbers = [number for number, _ in turns]
        ranges = list(pairwise([*numbers, end]))
        paid = [sum(float(step.rewards[env_index, column]) for _, step in self._known(*each)) for each in ranges]
        last = [step for _, step in self._known(*ranges[-1])]
        decisions = [acted.decision for _, acted in turns]
        chosen = [d.actions if d.learned is None else d.learned for d in decisions]
        return Trajectory(
            rows.policy_id,
            agent,
            self._first_env + env_index,
            np.array(numbers),
            _stacked([map_arrays(lambda array: array[row], acted.seen) for _, acted in turns]),
            np.stack([actions[row] for actions in chosen]),
            np.array(paid, np.float32),
            np.ones(len(turns), dtype=np.bool_),
            _of_row([decision.values for decision in decisions], row),
            _of_row([decision.log_probs for decision in decisions], row),
            [self._info(agent, env_index, *each) for each in ranges],
            has_ended=any(step.ended[env_index, column] for step in last),
            truncated=any(step.truncated[env_index, column] for step in last),
        )


class _Others(Mapping[AgentID, Trajectory]):
    """What the other agents of an env did in some steps; each is looked up when it is asked for."""

    def __init__(self, agents: Sequence[AgentID], env_index: int, begin: int, end: int, traces: Any) -> None:
        of_agent = partial(traces.of_other, env_index=env_index, begin=begin, end=end)
        self._found: dict[AgentID, Trajectory | None] = {}
        self._agents, self._of_agent = agents, of_agent

    def __getitem__(self, agent: AgentID) -> Trajectory:
        if agent not in self._found:
            self._found[agent] = self._of_agent(agent) if agent in self._agents else None
        found = self._found[agent]
        if found is None:
            raise KeyError(agent)
        return found

    def __iter__(self) -> Iterator[AgentID]:
        return (agent for agent in self._agents if agent in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _copies(decision: Any) -> dict[str, Any]:
    names = ("actions", "learned", "values", "log_probs")
    return {name: None if getattr(decision, name) is None else np.array(getattr(decision, name)) for name in names}


def _of_row(arrays: Sequence[Any], row: int) -> Array | None:
    return None if any(array is None for array in arrays) else np.array([array[row] for array in arrays], np.float32)


def _stacked(observations: Sequence[Any]) -> Observations:
    if isinstance(observations[0], Mapping):
        return {key: np.stack([each[key] for each in observations]) for key in observations[0]}
    return np.stack(observations)


# --- Rollouts ---------------------------------------------------------------------------------------------------------


def rewrite_rollout(rewriter: TrajectoryRewriter, actor: Actor, buffer: Any, ended: BoolArray) -> BoolArray:
    """Show the trajectories in a complete rollout to the hook, before returns are computed.

    Args:
        rewriter: has seen its steps.
        actor: acts for the rows.
        buffer: the rollout, a `TurnAwareRollout`.
        ended: (rows,) bool; where the last transition ended the agent's episode.

    Returns:
        The same after transitions were dropped.
    """
    ended, began = ended.copy(), rewriter.number - buffer.buffer_size
    for row in range(buffer.n_envs):
        acted = np.flatnonzero(buffer.acted[:, row])
        if not len(acted):
            continue
        starts = [0, *(np.flatnonzero(buffer.episode_starts[acted[1:], row]) + 1).tolist()]
        parts = [acted[begin:end] for begin, end in pairwise([*starts, len(acted)])]
        for number, places in enumerate(parts):
            is_last = number == len(parts) - 1
            until = buffer.buffer_size if is_last else int(parts[number + 1][0])
            experience = {
                "observations": map_arrays(partial(_taken, index=(places, row)), buffer.observations),
                "estimate": None if actor.states else partial(_estimated, actor),  # states are not those of then
                **{name: _taken(getattr(buffer, name), (places, row)) for name in _OF_BUFFER},
            }
            has_ended = bool(ended[row]) if is_last else True
            shown = rewriter.own(actor, row, began + places, began + until, experience, has_ended=has_ended)
            rewriter.rewrite(shown)
            _write_back(buffer, row, places, shown)
        kept = buffer.acted[parts[-1], row]
        if len(parts) > 1 and not kept.any():  # the transition before them ended an episode
            ended[row] = True
    return ended


_OF_BUFFER = ("actions", "rewards", "values", "log_probs")


def _taken(array: Array, index: Any) -> Array:
    """Return a copy of a part of an array."""
    return np.array(array[index])


def _estimated(actor: Actor, observations: Observations) -> Array:
    first = next(iter(observations.values())) if isinstance(observations, dict) else observations
    inputs = PolicyInputs(observations, np.zeros(len(first), dtype=np.bool_), None, ())
    return actor.policy.values(inputs)


def _write_back(buffer: Any, row: int, places: Array, changed: Trajectory) -> None:
    for own, given in pairs(buffer.observations, changed.observations):
        own[places, row] = given
    buffer.rewards[places, row], buffer.values[places, row] = changed.rewards, changed.values
    keep = np.asarray(changed.keep, dtype=np.bool_)
    buffer.acted[places[~keep], row] = False
    if keep.any() and buffer.episode_starts[places[0], row]:  # the episode starts with the first one that is kept
        buffer.episode_starts[places[np.flatnonzero(keep)[0]], row] = 1.0
