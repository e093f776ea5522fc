"""Trajectories: what agents have experienced, shown to a hook that may rewrite it before learners use it.

A trajectory is the part of an agent's episode that lies in a rollout; of a policy with a replay buffer, it is the whole
episode, whose transitions wait for its end. It is made of what the experience has noted of each transition: the env
steps in which it began and ended are counted for each env alone, because a line of a buffer is no env step where agents
wait, or where clients step their envs apart. Nothing of this runs in a training without such a hook.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.core.acting import Acted, Actor
from marl_sb3.core.experience import ExperienceHook, Rewriter
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.training import TrainingCallback, named_errors, with_hook
from marl_sb3.core.vec_env import VecStep, map_arrays
from marl_sb3.errors import HookError
from marl_sb3.extensions.hooks.experience import HeldEpisodes, NotedRollouts
from marl_sb3.types import AgentID, Array, BoolArray, Observations, PolicyID

if TYPE_CHECKING:
    from marl_sb3.core.off_policy import ReplayExperience
    from marl_sb3.core.on_policy import RolloutExperience
    from marl_sb3.core.training import MultiAgentAlgorithm


@dataclass
class Trajectory:
    """T transitions of one agent in one episode, in order, as the learner of its policy gets them.

    A hook may change `observations`, `rewards`, `keep` and, of policies with rollouts, `values`: their lengths stay.
    Actions stay as they were: a learner needs those that were played.
    """

    policy_id: PolicyID  # the policy
    agent: AgentID  # the agent
    env_index: int  # index of the env
    steps: Array  # (T,) the env step in which each transition began, counted for its env from the start of the training
    # the env step after the last one of the last transition: transition `i` lasts from `steps[i]` to before `steps[i +
    # 1]`, the last one to before `end`
    end: int
    observations: Observations  # (T, ...) what the policy saw
    actions: Array  # (T, ...) what it chose, before it was fitted to the env's action space
    # (T,) float32; the agent's rewards until its next turn or its end, after the policy's processing. The value with
    # which a truncated return bootstraps is added afterwards.
    rewards: Array
    # (T,) bool; the learner does not get transitions that are set to False. The transition before them bootstraps
    # from the value of the next observation: it was not the end of the episode, and no return includes what is
    # missing.
    keep: BoolArray
    values: Array | None  # (T,) the values that the policy estimated; None for policies with a replay buffer
    log_probs: Array | None  # (T,) log-probabilities of the actions; None for policies with a replay buffer
    infos: Sequence[Mapping[str, Any]]  # T infos of the agent, from the last env step of each transition
    has_ended: bool  # whether the agent's episode ended with the last transition
    truncated: bool  # whether it was truncated there
    # agent -> what each other agent did in these env steps, until `end`. Its rewards are those of the env, and changes
    # to it have no effect.
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

    def as_it_was(self) -> _Before:
        """Return what a hook may not change."""
        fixed = {name: getattr(self, name) for name in _FIXED}
        return _Before(_shapes(self.observations), {n: None if a is None else np.array(a) for n, a in fixed.items()})

    def require_fitting(self, before: _Before) -> None:
        """Refuse what no learner can use.

        That is: arrays of another length, observations of another shape, rewards and values that are not finite, and
        other actions than those that were played.

        Args:
            before: `as_it_was` before the hook.

        Raises:
            HookError: the message says which.
        """
        (length, *_), *_ = before.shapes.values()
        arrays: dict[str, Any] = {"rewards": self.rewards, "keep": self.keep, "values": self.values}
        if before.fixed["log_probs"] is None and arrays.pop("values") is not None:
            raise HookError("values are there after the hook; accepted: None, as a replay buffer keeps none")
        for name, array in arrays.items():
            found = np.asarray(array)
            if found.shape != (length,):
                raise HookError(f"{name} has shape {found.shape} after the hook; accepted: ({length},)")
            if found.dtype.kind not in "biuf":
                raise HookError(f"{name} is of {found.dtype} after the hook; accepted: numbers")
            if not np.isfinite(found).all():
                raise HookError(f"{name} is not finite after the hook")
        shapes = _shapes(self.observations)
        if shapes != before.shapes:
            found_shapes, accepted = (_short(each) for each in (shapes, before.shapes))
            raise HookError(f"observations has shape {found_shapes} after the hook; accepted: {accepted}")
        for name, played in before.fixed.items():
            if played is not None and not np.array_equal(getattr(self, name), played, equal_nan=name == "log_probs"):
                words = "accepted: those that were played: change observations, rewards, values or keep"
                raise HookError(f"{name} are others after the hook; {words}")


class _Before(NamedTuple):
    """What a hook may not change of a trajectory: shapes of observations by part, "" without parts; and arrays."""

    shapes: Mapping[str, tuple[int, ...]]
    fixed: Mapping[str, Array | None]


_FIXED = ("actions", "log_probs")


def _shapes(observations: Any) -> dict[str, tuple[int, ...]]:
    seen = observations if isinstance(observations, Mapping) else {"": observations}
    return {name: np.shape(array) for name, array in seen.items()}


def _short(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return str(shapes[""] if list(shapes) == [""] else dict(shapes))


# --- Hooks ------------------------------------------------------------------------------------------------------------

_LEFT_IN_SHARDS = ("model", "parent", "training_env", "locals", "globals", "_logger")  # BaseCallback's own attributes


class TrajectoryHooks(ExperienceHook):
    """Shows a trajectory to all callbacks with the hook `on_trajectory`, one after the other; it can be pickled.

    Args:
        callbacks: those with the hook.
    """

    def __init__(self, callbacks: Sequence[TrainingCallback]) -> None:
        self.callbacks = callbacks

    def __call__(self, trajectory: Trajectory) -> None:
        """Call them."""
        for callback in self.callbacks:
            where = f"policy {trajectory.policy_id!r}, agent {trajectory.agent!r}, env {trajectory.env_index}"
            with named_errors(
                callback, "on_trajectory", f"{where}, steps {trajectory.steps[0]} to {trajectory.steps[-1]}"
            ):
                before = trajectory.as_it_was()
                callback.on_trajectory(trajectory)
                trajectory.require_fitting(before)

    def rewriter(self, actors: Sequence[Actor], *, first_env: int, first_step: int) -> TrajectoryRewriter:
        """See `ExperienceHook.rewriter`."""
        return TrajectoryRewriter(self, actors, first_env=first_env, first_step=first_step)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the callbacks without the algorithm and the envs."""
        alone = [copy.copy(callback) for callback in self.callbacks]
        for callback in alone:
            for name in _LEFT_IN_SHARDS:
                vars(callback).pop(name, None)
        return TrajectoryHooks, (alone,)


def trajectory_hooks(algorithm: MultiAgentAlgorithm, callback: BaseCallback) -> TrajectoryHooks | None:
    """Return what shows trajectories to the callbacks; None if none has the hook. See `WatcherMaker`."""
    callbacks = with_hook(callback, "on_trajectory")
    return TrajectoryHooks(callbacks) if callbacks else None


# --- Rewriting --------------------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """One step of one env, in copies that steps of other envs share."""

    acted: Mapping[PolicyID, Acted]  # what each policy did in it, for all envs
    env_index: int
    rewards: Array  # (E, A)
    ended: BoolArray  # (E, A)
    truncated: BoolArray  # (E, A)
    infos: Mapping[str, Any]


class _EnvSteps:
    """The steps of one env that trajectories may still tell of."""

    def __init__(self, number: int) -> None:
        self.steps: deque[_Step] = deque()  # the latest ones
        self.number = number  # of the next step
        # what all policies have done in the running step; None: it has not begun
        self.acted: Mapping[PolicyID, Acted] | None = None

    def add(self, step: _Step) -> None:
        self.steps.append(step)
        self.number, self.acted = self.number + 1, None

    def known(self, begin: int, end: int) -> Iterator[tuple[int, _Step]]:
        """Yield the steps from `begin` to before `end` with their numbers, as far as they are kept."""
        first = self.number - len(self.steps)
        for number in range(max(begin, first), end):
            yield number, self.steps[number - first]

    def forget(self, needed: int) -> None:
        """Forget the steps before `needed`."""
        while self.steps and self.number - len(self.steps) < needed:
            self.steps.popleft()


class TrajectoryRewriter(Rewriter):
    """Shows trajectories to a hook; an `ActingWatcher`, because trajectories tell what the other agents did.

    Args:
        hook: gets each trajectory, and refuses what it does not accept of the changes.
        actors: of all policies.
        first_env: index of the first env among those of all shards.
        first_step: number of the next step of each env.

    Attributes:
        hook: gets each trajectory; it may be replaced.
    """

    def __init__(
        self, hook: TrajectoryHooks, actors: Sequence[Actor], *, first_env: int = 0, first_step: int = 0
    ) -> None:
        self.hook, self._first_env = hook, first_env
        self._places_of: dict[AgentID, list[tuple[PolicyRows, int, int]]] = {}
        for rows in (actor.rows for actor in actors):
            for index, (agent, column) in enumerate(zip(rows.agents, rows.agent_columns, strict=True)):
                self._places_of.setdefault(agent, []).append((rows, index, column))
        self._envs = [_EnvSteps(first_step) for _ in range(actors[0].rows.num_envs)]

    # --- Steps -------------------------------------------------------------------------------------------------------

    def numbers(self, actor: Actor) -> Array:
        """Return the (rows,) numbers of the next steps of the rows' envs."""
        return np.array([env.number for env in self._envs]).repeat(len(actor.rows.agents))

    def begin_episodes(self, step: VecStep) -> None:
        """See `ActingWatcher.begin_episodes`."""
        self.restart_envs(range(len(self._envs)))

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """See `ActingWatcher.restart_envs`."""
        for index in env_indices:
            self._envs[index].acted = None

    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        """See `ActingWatcher.before_step`. An env that does not step now has its actions for when it does."""
        copied = {
            policy_id: each._replace(
                seen=map_arrays(np.array, each.seen), decision=each.decision._replace(**_copies(each.decision))
            )
            for policy_id, each in acted.items()
        }
        for index, env in enumerate(self._envs):
            if env.acted is None or step.to_act[index].any():
                env.acted = copied

    def after_step(self, step: VecStep) -> None:
        """See `ActingWatcher.after_step`."""
        ends = step.terminated | step.truncated
        copies = step.rewards.copy(), ends, step.truncated.copy()
        for index in np.flatnonzero(step.stepped).tolist():
            env, infos = self._envs[index], copy.deepcopy(dict(step.infos[index]))
            env.add(_Step(env.acted or {}, index, *copies, infos))

    def forget(self, needed: Array) -> None:
        """See `Rewriter.forget`."""
        for env, number in zip(self._envs, needed.tolist(), strict=True):
            env.forget(number)

    def of_rollouts(self, experience: RolloutExperience) -> NotedRollouts:
        """See `Rewriter.of_rollouts`."""
        return NotedRollouts(experience, self)

    def of_replay(self, experience: ReplayExperience) -> HeldEpisodes:
        """See `Rewriter.of_replay`."""
        return HeldEpisodes(experience, self)

    # --- Trajectories ------------------------------------------------------------------------------------------------

    def shown(self, actor: Actor, row: int, steps: Array, end: int, experience: Mapping[str, Any]) -> Trajectory:
        """Show the trajectory of a row to the hook, and return what it has left.

        Args:
            actor: acts for the row.
            row: of the policy.
            steps: (T,) numbers of the steps in which the transitions began.
            end: number of the step after the last one of the trajectory.
            experience: its arrays, and how it ended, by the names in `Trajectory`.
        """
        env_index, index = divmod(row, len(actor.rows.agents))
        agent = actor.rows.agents[index]
        trajectory = Trajectory(
            actor.rows.policy_id,
            agent,
            self._first_env + env_index,
            steps,
            end,
            keep=np.ones(len(steps), dtype=np.bool_),
            infos=self._infos(agent, env_index, [*steps.tolist(), end]),
            others=_Others([other for other in self._places_of if other != agent], env_index, int(steps[0]), end, self),
            **experience,
        )
        self.hook(trajectory)
        return trajectory

    def _infos(self, agent: AgentID, env_index: int, bounds: Sequence[int]) -> list[Mapping[str, Any]]:
        """Return the last info of an agent from each of these numbers to before the next one."""
        known = [self._envs[env_index].known(*each) for each in pairwise(bounds)]
        found = [[step.infos[agent] for _, step in steps if agent in step.infos] for steps in known]
        return [infos[-1] if infos else {} for infos in found]

    def of_other(self, agent: AgentID, env_index: int, begin: int, end: int) -> Trajectory | None:
        """Return what an agent did in an env from step `begin` to before `end`; None if it did not act."""
        env, turns = self._envs[env_index], list[tuple[int, Acted]]()
        for place in self._places_of[agent]:  # of each policy that may play it
            rows, index, column = place
            row, own = env_index * len(rows.agents) + index, rows.policy_id
            known = [(number, step.acted[own]) for number, step in env.known(begin, end) if own in step.acted]
            turns = [(number, acted) for number, acted in known if acted.acting[row]]
            if turns:
                break
        if not turns:
            return None
        numbers = [number for number, _ in turns]
        last_end = next((n + 1 for n, step in env.known(numbers[-1], end) if step.ended[env_index, column]), end)
        bounds = [*numbers, last_end]
        paid = [sum(float(s.rewards[env_index, column]) for _, s in env.known(*each)) for each in pairwise(bounds)]
        last = [step for _, step in env.known(numbers[-1], last_end)]
        decisions = [acted.decision for _, acted in turns]
        chosen = [d.actions if d.learned is None else d.learned for d in decisions]
        return Trajectory(
            rows.policy_id,
            agent,
            self._first_env + env_index,
            np.array(numbers),
            last_end,
            _stacked([map_arrays(lambda array: array[row], acted.seen) for _, acted in turns]),
            np.stack([actions[row] for actions in chosen]),
            np.array(paid, np.float32),
            np.ones(len(turns), dtype=np.bool_),
            _of_row([decision.values for decision in decisions], row),
            _of_row([decision.log_probs for decision in decisions], row),
            self._infos(agent, env_index, bounds),
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
