"""Show trajectories to a hook, and write back what it leaves, before learners use them.

A trajectory is the part of an agent's episode that lies in a rollout; of a policy with a replay buffer, it is the whole
episode, whose transitions wait for its end. The rewriter sees every step of the envs, and notes in which one each
transition began and ended: these are counted for each env alone, because a line of a buffer is no env step where agents
wait, or where clients step their envs apart. Nothing of this runs in a training without such a hook.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from typing_extensions import override

from marl_sb3.core.acting.actor import Acted, ActingWatcher, Actor
from marl_sb3.core.acting.policy import Decision, PolicyInputs
from marl_sb3.core.experience import Experience, ExperienceHook
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.off_policy.replay import ReplayExperience, Transitions, joined_transitions
from marl_sb3.core.training.callback import TrainingCallback, named_errors, with_hook
from marl_sb3.core.vec_env.observations import joined_observations, map_arrays, pairs
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.extensions.hooks.trajectories import Trajectory
from marl_sb3.types import AgentID, Array, BoolArray, Observations, PolicyID

if TYPE_CHECKING:
    from marl_sb3.core.on_policy.rollout import RolloutExperience
    from marl_sb3.core.training.algorithm import MultiAgentAlgorithm

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

    @override
    def rewriter(self, actors: Sequence[Actor], *, first_env: int, first_step: int) -> TrajectoryRewriter:
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


# --- Steps and transitions --------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """One step of one env, in copies that steps of other envs share."""

    acted: Mapping[PolicyID, Acted]  # what each policy did in it, for all envs
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

    def known(self, begin: int, end: int) -> Iterator[tuple[int, _Step]]:
        """Yield the steps from `begin` to before `end` with their numbers, as far as they are kept."""
        first = self.number - len(self.steps)
        for number in range(max(begin, first), end):
            yield number, self.steps[number - first]

    def forget(self, needed: int) -> None:
        """Forget the steps before `needed`."""
        while self.steps and self.number - len(self.steps) < needed:
            self.steps.popleft()


@dataclass(slots=True)
class _Turn:
    """One transition of a row, from its action on."""

    began: int  # number of the env step in which it began
    end: int = -1  # number of the env step after its last one, if the episode ended there or was given up; else -1
    ended: bool = False  # whether the agent's episode ended with it
    truncated: bool = False  # whether it was truncated there
    # What the agent was paid, where the buffer's reward is more than that; and the part of that reward which it was not
    # paid: a value that its return goes on with.
    paid: float = 0.0
    bootstrap: float = 0.0


class _Noted:
    """What is noted of the transitions of a policy that a hook has yet to see, by row."""

    def __init__(self, experience: Experience) -> None:
        rows = experience.actor.rows.num_rows
        self.experience: Any = experience
        self.turns: list[list[_Turn]] = [[] for _ in range(rows)]
        # Transitions that are over and wait for the end of their episode, before they go into a replay buffer.
        self.held: dict[int, list[Transitions]] = {}  # in the order in which rows were first held
        self.holds = isinstance(experience, ReplayExperience)
        # Rows whose episode began before the hook; such an episode goes into the replay buffer as it is.
        self.unseen: BoolArray = ~experience.actor.starts & self.holds

    def clear(self, row: int) -> None:
        """Forget the transitions of a row."""
        self.turns[row] = []
        self.held.pop(row, None)


class TrajectoryRewriter(ActingWatcher):
    """Shows trajectories to a hook; an `ActingWatcher`, because trajectories tell what the other agents did.

    Args:
        hook: gets each trajectory, and refuses what it does not accept of the changes.
        actors: those of all policies.
        first_env: index of the first env among those of all shards.
        first_step: number of the next step of each env.

    Attributes:
        hook: gets each trajectory; it may be replaced.
    """

    def __init__(
        self, hook: TrajectoryHooks, actors: Sequence[Actor], *, first_env: int = 0, first_step: int = 0
    ) -> None:
        self.hook: Any = hook
        self._first_env = first_env
        self._places_of: dict[AgentID, list[tuple[PolicyRows, int]]] = {}
        for rows in (actor.rows for actor in actors):
            for index, agent in enumerate(rows.agents):
                self._places_of.setdefault(agent, []).append((rows, index))
        self._envs = [_EnvSteps(first_step) for _ in range(actors[0].rows.num_envs)]
        self._noted: dict[PolicyID, _Noted] = {}

    def add(self, experience: Experience) -> None:
        """Note what is experienced from now on; of running episodes, the hook does not see what was recorded before."""
        experience.actor.processing.take_bootstrapped()  # that of a step before
        self._noted[experience.actor.rows.policy_id] = _Noted(experience)

    def release(self, experience: Experience) -> None:
        """Record all that is held as it is: there is no hook any more."""
        noted = self._noted.pop(experience.actor.rows.policy_id)
        for transition in (each for held in noted.held.values() for each in held):
            noted.experience.record(transition)

    # --- Steps -------------------------------------------------------------------------------------------------------

    @override
    def begin_episodes(self, step: VecStep) -> None:
        self.restart_envs(range(len(self._envs)))

    @override
    def restart_envs(self, env_indices: Sequence[int]) -> None:
        for index in env_indices:
            self._envs[index].acted = None

    @override
    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        """Keep what the policies do. An env that does not step now has its actions for when it does."""
        copied: dict[PolicyID, Acted] = {}
        for policy_id, each in acted.items():
            given = {name: array for name, array in each.decision._asdict().items() if array is not None}
            chosen: Any = {name: np.array(array) for name, array in given.items() if name != "states"}
            copied[policy_id] = each._replace(seen=map_arrays(np.array, each.seen), decision=Decision(**chosen))
        for env, acting in zip(self._envs, step.to_act.tolist(), strict=True):
            if env.acted is None or any(acting):
                env.acted = copied
        for policy_id, noted in self._noted.items():
            self._note_bootstrapped(noted)
            agents = len(noted.experience.actor.rows.agents)
            for row in np.flatnonzero(acted[policy_id].acting & ~noted.unseen).tolist():
                noted.turns[row].append(_Turn(self._envs[row // agents].number))

    @override
    def after_step(self, step: VecStep) -> None:
        ends = step.terminated | step.truncated
        copies = step.rewards.copy(), ends, step.truncated.copy()
        for index in np.flatnonzero(step.stepped).tolist():
            env, infos = self._envs[index], copy.deepcopy(dict(step.infos[index]))
            env.steps.append(_Step(env.acted or {}, *copies, infos))
            env.number, env.acted = env.number + 1, None
        for noted in self._noted.values() if ends.any() else ():
            rows = noted.experience.actor.rows
            ended, truncated = rows.of_agents(ends), rows.of_agents(step.truncated)
            noted.unseen &= ~ended
            for row in np.flatnonzero(ended).tolist():
                if noted.turns[row] and noted.turns[row][-1].end < 0:
                    turn, number = noted.turns[row][-1], self._envs[row // len(rows.agents)].number
                    turn.end, turn.ended, turn.truncated = number, True, bool(truncated[row])

    def _note_bootstrapped(self, noted: _Noted) -> None:
        """Note with what the rewards of the latest step were bootstrapped where agents were truncated."""
        taken = noted.experience.actor.processing.take_bootstrapped()
        if taken is not None:
            for row, paid, added in zip(np.flatnonzero(taken.rows).tolist(), taken.paid, taken.added, strict=True):
                if noted.turns[row]:
                    noted.turns[row][-1].paid, noted.turns[row][-1].bootstrap = paid, added

    def _first_steps(self) -> Array:
        """Return the (E,) numbers of the first env steps that the hook has yet to see; the next ones without any."""
        first = np.array([env.number for env in self._envs])
        for noted in self._noted.values():
            experience, agents = noted.experience, len(noted.experience.actor.rows.agents)
            if noted.holds or experience.carried is not None or experience.is_under_way(experience.steps):
                for row, turns in enumerate(noted.turns):
                    if turns:
                        first[row // agents] = min(first[row // agents], turns[0].began)
        return first

    def forget(self) -> None:
        """Forget the env steps of which nothing will be shown any more."""
        for env, number in zip(self._envs, self._first_steps().tolist(), strict=True):
            env.forget(number)

    def holds_steps(self) -> bool:
        """Whether there are env steps that the hook has yet to see."""
        return bool((self._first_steps() < [env.number for env in self._envs]).any())

    # --- Rollouts ----------------------------------------------------------------------------------------------------

    def begin_rollout(self, experience: Experience, carried: BoolArray | None) -> None:
        """Note that a rollout begins, with the open transitions of some rows, (rows,) bool; None: without any."""
        noted = self._noted[experience.actor.rows.policy_id]
        noted.turns = [
            turns[-1:] if carried is not None and carried[row] else [] for row, turns in enumerate(noted.turns)
        ]

    def give_up(self, experience: Experience, rows: BoolArray) -> None:
        """Drop the open transitions of rows, (rows,) bool, before their experience does so.

        What is held for a replay buffer is shown: it would be recorded by now.
        """
        noted = self._noted[experience.actor.rows.policy_id]
        for row in np.flatnonzero(rows).tolist():
            turns, number = noted.turns[row], self._envs[row // len(experience.actor.rows.agents)].number
            lost = turns.pop() if turns and turns[-1].end < 0 and len(turns) > len(noted.held.get(row, ())) else None
            end = number if lost is None else lost.began
            if noted.held.get(row):
                self._show_held(noted, row, end)
            elif lost is not None and turns and turns[-1].end < 0:  # its return goes on with the value of the lost one
                before, buffer = turns[-1], noted.experience.buffer
                *_, line, line_of_lost = np.flatnonzero(buffer.acted[: buffer.pos, row])
                before.end, before.paid = end, buffer.rewards[line, row]
                before.bootstrap = buffer.gamma * buffer.values[line_of_lost, row]
            if noted.holds:
                noted.clear(row)
                noted.unseen[row] = False

    def rewrite(self, experience: RolloutExperience, ended: BoolArray) -> BoolArray:
        """Show a complete rollout to the hook, before returns are computed.

        Args:
            ended: (rows,) bool; where the last transition ended the agent's episode.

        Returns:
            (rows,) bool; the rows whose return does not go on after the rollout: where the last transition ended an
            episode, or was dropped.
        """
        buffer, actor, carried = experience.buffer, experience.actor, experience.carried
        noted = self._noted[actor.rows.policy_id]
        self._note_bootstrapped(noted)
        stops, buffer.breaks = ended.copy(), np.zeros_like(buffer.acted)
        for row, turns in enumerate(noted.turns):
            noted.turns[row] = kept = turns[-1:] if carried is not None and carried.rows[row] else []
            own = turns[: len(turns) - len(kept)]
            next_step = kept[0].began if kept else self._envs[row // len(actor.rows.agents)].number
            lines = np.flatnonzero(buffer.acted[:, row])
            unknown = len(lines) - len(own)  # they were recorded before there was a hook
            starts = np.flatnonzero(buffer.episode_starts[lines[1:], row]) + 1
            for numbers in np.split(np.arange(len(lines)), starts) if len(lines) else ():
                if numbers[0] >= unknown:
                    its = own[numbers[0] - unknown : numbers[-1] - unknown + 1]
                    keep = self._rewrite(experience, row, lines[numbers], its, next_step)
                    if numbers[-1] == len(lines) - 1 and not keep[-1]:
                        stops[row] = True
        return stops

    def _rewrite(
        self, experience: RolloutExperience, row: int, lines: Array, turns: Sequence[_Turn], next_step: int
    ) -> BoolArray:
        """Show one trajectory, and write what the hook has left into the buffer; returns which transitions were kept.

        A transition before a dropped one goes on with the value of the observation that the dropped one began with, as
        in `TurnAwareRollout.break_off`. The one that was truncated goes on with the value of the final observation.
        """
        buffer, actor, places = experience.buffer, experience.actor, (lines, row)
        bootstrap = np.array([turn.bootstrap for turn in turns], np.float32)
        paid = np.where(bootstrap != 0, np.array([turn.paid for turn in turns], np.float32), buffer.rewards[places])
        changed = self.shown(
            actor,
            row,
            turns,
            turns[-1].end if turns[-1].end >= 0 else next_step,
            observations=map_arrays(lambda array: np.array(array[places]), buffer.observations),
            actions=np.array(buffer.actions[places]),
            rewards=paid.copy(),
            values=np.array(buffer.values[places]),
            log_probs=np.array(buffer.log_probs[places]),
            estimate=None if actor.states else partial(_estimated, actor),  # states are not those of then
        )
        keep = np.asarray(changed.keep, dtype=np.bool_)
        for own, given in pairs(buffer.observations, changed.observations):
            own[places] = given
        rewards, values = np.asarray(changed.rewards, np.float32), np.asarray(changed.values, np.float32)
        same = rewards == paid  # to the last bit, if the hook has changed nothing
        rewards = np.where(same, buffer.rewards[places], rewards + bootstrap)
        before_dropped = np.flatnonzero(keep[:-1] & ~keep[1:])
        rewards[before_dropped] += np.float32(buffer.gamma) * values[before_dropped + 1]
        buffer.rewards[places], buffer.values[places] = rewards, values
        buffer.acted[lines[~keep], row] = False
        assert buffer.breaks is not None
        buffer.breaks[lines[1:][keep[1:] & ~keep[:-1]], row] = True
        return keep

    # --- Replay buffers ----------------------------------------------------------------------------------------------

    def hold(self, experience: ReplayExperience, transitions: Transitions) -> None:
        """Hold the transitions of episodes back until these end; what the hook leaves then is recorded."""
        noted = self._noted[experience.actor.rows.policy_id]
        for number, row in enumerate(transitions.rows.tolist()):
            one = transitions.at(slice(number, number + 1))
            if not noted.turns[row]:  # its episode began before there was a hook
                experience.record(one)
                continue
            noted.held.setdefault(row, []).append(one)
            if one.dones[0]:
                self._show_held(noted, row, noted.turns[row][-1].end)
                noted.clear(row)

    def _show_held(self, noted: _Noted, row: int, end: int) -> None:
        """Show what is held of a row to the hook, until step `end`, and record it.

        Where transitions are missing, nothing is added up over the gap: the one before it counts as truncated.
        """
        experience, held = noted.experience, noted.held[row]
        episode = joined_transitions(held)
        shown = self.shown(
            experience.actor,
            row,
            noted.turns[row][: len(held)],
            end,
            observations=map_arrays(np.array, episode.observations),
            actions=episode.actions,
            rewards=np.array(episode.rewards, np.float32),
            values=None,
            log_probs=None,
        )
        for own, given in pairs(episode.next_observations, shown.observations):
            own[:-1] = given[1:]
        episode = episode._replace(observations=shown.observations, rewards=shown.rewards)
        of_row = np.arange(len(noted.turns)) == row
        for number, kept in enumerate(np.asarray(shown.keep, dtype=np.bool_).tolist()):
            if kept:
                experience.record(episode.at(slice(number, number + 1)))
            else:
                experience.break_returns(of_row)

    # --- Trajectories ------------------------------------------------------------------------------------------------

    def shown(self, actor: Actor, row: int, turns: Sequence[_Turn], end: int, **arrays: Any) -> Trajectory:
        """Show the trajectory of a row to the hook, and return what it has left.

        Args:
            actor: acts for the row.
            row: one of the policy's.
            turns: T transitions.
            end: number of the step after the last one of the trajectory.
            arrays: those of the trajectory by their names.
        """
        ends = {"has_ended": turns[-1].ended, "truncated": turns[-1].truncated}
        trajectory = self._made(actor.rows, row, [turn.began for turn in turns], end, **ends, **arrays)
        others = [other for other in self._places_of if other != trajectory.agent]
        trajectory.others = _Others(others, row // len(actor.rows.agents), turns[0].began, end, self)
        self.hook(trajectory)
        return trajectory

    def _made(self, rows: PolicyRows, row: int, steps: Sequence[int], end: int, **told: Any) -> Trajectory:
        """Make the trajectory of a row, with the last info of its agent from each of these steps to before the next."""
        env_index, index = divmod(row, len(rows.agents))
        agent, keep = rows.agents[index], np.ones(len(steps), dtype=np.bool_)
        known = [self._envs[env_index].known(*each) for each in pairwise([*steps, end])]
        found = [[step.infos[agent] for _, step in each if agent in step.infos] for each in known]
        infos = [each[-1] if each else {} for each in found]
        env_index += self._first_env
        return Trajectory(rows.policy_id, agent, env_index, np.array(steps), end, keep=keep, infos=infos, **told)

    def of_other(self, agent: AgentID, env_index: int, begin: int, end: int) -> Trajectory | None:
        """Return what an agent did in an env from step `begin` to before `end`; None if it did not act."""
        env, turns = self._envs[env_index], list[tuple[int, Acted]]()
        for rows, index in self._places_of[agent]:  # of each policy that may play it
            row, own = env_index * len(rows.agents) + index, rows.policy_id
            known = [(number, step.acted[own]) for number, step in env.known(begin, end) if own in step.acted]
            turns = [(number, acted) for number, acted in known if acted.acting[row]]
            if turns:
                break
        if not turns:
            return None
        column, numbers = rows.agent_columns[index], [number for number, _ in turns]
        decisions = [acted.decision for _, acted in turns]
        seen = [map_arrays(lambda array: array[row : row + 1], acted.seen) for _, acted in turns]
        last_end = next((n + 1 for n, step in env.known(numbers[-1], end) if step.ended[env_index, column]), end)
        spans = [env.known(*each) for each in pairwise([*numbers, last_end])]
        paid = [sum(float(step.rewards[env_index, column]) for _, step in span) for span in spans]
        last = [step for _, step in env.known(numbers[-1], last_end)]
        return self._made(
            rows,
            row,
            numbers,
            last_end,
            observations=joined_observations(seen),
            actions=np.stack([(each.actions if each.learned is None else each.learned)[row] for each in decisions]),
            rewards=np.array(paid, np.float32),
            values=_of_row([decision.values for decision in decisions], row),
            log_probs=_of_row([decision.log_probs for decision in decisions], row),
            has_ended=any(step.ended[env_index, column] for step in last),
            truncated=any(step.truncated[env_index, column] for step in last),
        )


class _Others(Mapping[AgentID, Trajectory]):
    """What the other agents of an env did in some steps; each is looked up when it is asked for."""

    def __init__(self, agents: Sequence[AgentID], env_index: int, begin: int, end: int, traces: Any) -> None:
        self._agents = agents
        self._of_agent = cache(partial(traces.of_other, env_index=env_index, begin=begin, end=end))

    def __getitem__(self, agent: AgentID) -> Trajectory:
        found: Trajectory | None = self._of_agent(agent) if agent in self._agents else None
        if found is None:
            raise KeyError(agent)
        return found

    def __iter__(self) -> Iterator[AgentID]:
        return (agent for agent in self._agents if agent in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _of_row(arrays: Sequence[Any], row: int) -> Array | None:
    return None if any(array is None for array in arrays) else np.array([array[row] for array in arrays], np.float32)


def _estimated(actor: Actor, observations: Observations) -> Array:
    first = next(iter(observations.values())) if isinstance(observations, dict) else observations
    inputs = PolicyInputs(observations, np.zeros(len(first), dtype=np.bool_), None, ())
    return actor.policy.values(inputs)
