"""What is noted of transitions in rollouts and replay buffers while there is a hook of trajectories."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_sb3.core.acting import Actor, Observed, PolicyInputs
from marl_sb3.core.experience import NEVER
from marl_sb3.core.off_policy import HeldTransitions, Transitions, joined_transitions
from marl_sb3.core.on_policy import RolloutNotes
from marl_sb3.core.vec_env import map_arrays, pairs
from marl_sb3.types import Array, BoolArray, Observations

if TYPE_CHECKING:
    from marl_sb3.core.off_policy import ReplayExperience
    from marl_sb3.core.on_policy import RolloutExperience
    from marl_sb3.extensions.hooks.trajectories import Trajectory, TrajectoryRewriter

# --- Rollouts ---------------------------------------------------------------------------------------------------------


class NotedRollouts(RolloutNotes):
    """What is noted of each transition in a rollout buffer; (lines, rows) arrays.

    Args:
        experience: records the rollouts.
        rewriter: has seen their steps.
    """

    def __init__(self, experience: RolloutExperience, rewriter: TrajectoryRewriter) -> None:
        self._experience, self._rewriter = experience, rewriter
        shape = experience.buffer.buffer_size, experience.buffer.n_envs
        # Number of the env step in which it began; -1: before there was a hook, or there is no transition.
        self.began: Array = np.full(shape, -1)
        # Number of the env step after its last one, if the agent's episode ended there or was given up; else -1.
        self.end: Array = np.full(shape, -1)
        # Whether the agent's episode ended with it, and whether it was truncated there.
        self.ended, self.truncated = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        # What the agent was paid, where the buffer's reward is more than that; and the part of that reward which it
        # was not paid: a value that its return goes on with.
        self.paid, self.bootstrap = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._carried: Array = np.full(shape[1], -1)  # `began` of the transitions that the experience carries over

    def reset(self) -> None:
        """See `RolloutNotes.reset`."""
        self.began.fill(-1)
        self.end.fill(-1)
        for array in (self.ended, self.truncated, self.paid, self.bootstrap):
            array.fill(0)

    def begin(self, acting: BoolArray) -> None:
        """See `RolloutNotes.begin`."""
        places = self._experience.buffer.open_places(acting)
        self.began[places] = self._rewriter.numbers(self._experience.actor)[places[1]]

    def finish(self, observed: Observed) -> None:
        """See `RolloutNotes.finish`."""
        buffer, actor = self._experience.buffer, self._experience.actor
        places = buffer.open_places(observed.ended)
        rows, truncated = places[1], actor.rows.of_agents(observed.step.truncated)
        self.end[places], self.ended[places] = self._rewriter.numbers(actor)[rows], True
        self.truncated[places] = truncated[rows]
        bootstrapped = actor.processing.take_bootstrapped()
        if bootstrapped is not None:
            places = buffer.open_places(bootstrapped.rows)
            self.paid[places], self.bootstrap[places] = bootstrapped.paid, bootstrapped.added

    def drop(self, dropped: tuple[Any, Any], before: tuple[Any, Any], value: Any) -> None:
        """See `RolloutNotes.drop`."""
        self.end[before] = self.began[dropped]
        self.paid[before], self.bootstrap[before] = self._experience.buffer.rewards[before], value

    def take_open(self, places: tuple[Array, Array]) -> None:
        """See `RolloutNotes.take_open`."""
        self._carried = self.began[places]

    def put_open(self, rows: BoolArray) -> None:
        """See `RolloutNotes.put_open`."""
        self.began[0][rows] = self._carried[rows]

    def held_from(self) -> Array:
        """See `Experience.held_from`."""
        experience, held = self._experience, np.full(len(self._carried), NEVER)
        if experience.is_under_way(experience.steps):
            held = np.where(self.began >= 0, self.began, NEVER).min(axis=0)
        if experience.carried is not None:
            seen = experience.carried.rows & (self._carried >= 0)
            held = np.where(seen, np.minimum(self._carried, held), held)
        return held

    def rewrite(self, ended: BoolArray) -> BoolArray:
        """See `RolloutNotes.rewrite`: the trajectories in the rollout are shown to the hook."""
        buffer, actor, carried = self._experience.buffer, self._experience.actor, self._experience.carried
        next_steps = self._rewriter.numbers(actor)
        if carried is not None:
            next_steps = np.where(carried.rows, self._carried, next_steps)
        stops, buffer.breaks = ended.copy(), np.zeros_like(buffer.acted)
        for row in range(buffer.n_envs):
            known = np.flatnonzero(buffer.acted[:, row])
            starts = np.flatnonzero(buffer.episode_starts[known[1:], row]) + 1
            for places in np.split(known, starts) if len(known) else ():
                last = places[-1], row
                if self.began[places[0], row] < 0:  # its first transitions were recorded before there was a hook
                    continue
                experience = {
                    "observations": map_arrays(partial(_taken, index=(places, row)), buffer.observations),
                    "estimate": None if actor.states else partial(_estimated, actor),  # states are not those of then
                    **{name: _taken(getattr(buffer, name), (places, row)) for name in _AS_THEY_ARE},
                    "rewards": self.paid_in(places, row),
                    "has_ended": bool(self.ended[last]),
                    "truncated": bool(self.truncated[last]),
                }
                end = int(self.end[last] if self.end[last] >= 0 else next_steps[row])
                shown = self._rewriter.shown(actor, row, self.began[places, row], end, experience)
                keep = self._write_back(row, places, shown)
                if places[-1] == known[-1] and not keep[-1]:
                    stops[row] = True
        return stops

    def paid_in(self, places: Array, row: int) -> Array:
        """Return the (T,) rewards of a row without what they are bootstrapped with."""
        rewards = self._experience.buffer.rewards[places, row]
        apart: Array = np.where(self.bootstrap[places, row] != 0, self.paid[places, row], rewards)
        return apart

    def _write_back(self, row: int, places: Array, changed: Trajectory) -> BoolArray:
        """Write what a hook has left into the buffer, and bootstrap it; returns which transitions were kept.

        A transition before a dropped one goes on with the value of the observation that the dropped one began with, as
        in `TurnAwareRollout.break_off`. The one that was truncated goes on with the value of the final observation.
        """
        buffer: Any = self._experience.buffer
        keep, bootstrap = np.asarray(changed.keep, dtype=np.bool_), self.bootstrap[places, row]
        for own, given in pairs(buffer.observations, changed.observations):
            own[places, row] = given
        rewards, values = np.asarray(changed.rewards, np.float32), np.asarray(changed.values, np.float32)
        same = rewards == self.paid_in(places, row)  # to the last bit, if the hook has changed nothing
        rewards = np.where(same, buffer.rewards[places, row], rewards + bootstrap)
        before_dropped = np.flatnonzero(keep[:-1] & ~keep[1:])
        rewards[before_dropped] += np.float32(buffer.gamma) * values[before_dropped + 1]
        buffer.rewards[places, row], buffer.values[places, row] = rewards, values
        buffer.acted[places[~keep], row] = False
        buffer.breaks[places[1:][keep[1:] & ~keep[:-1]], row] = True
        return keep


_AS_THEY_ARE = ("actions", "values", "log_probs")


def _taken(array: Array, index: Any) -> Array:
    """Return a copy of a part of an array."""
    return np.array(array[index])


def _estimated(actor: Actor, observations: Observations) -> Array:
    first = next(iter(observations.values())) if isinstance(observations, dict) else observations
    inputs = PolicyInputs(observations, np.zeros(len(first), dtype=np.bool_), None, ())
    return actor.policy.values(inputs)


# --- Replay buffers ---------------------------------------------------------------------------------------------------


class HeldEpisodes(HeldTransitions):
    """Holds the transitions of episodes back until these end; then the hook sees them, and what it leaves is recorded.

    Args:
        experience: records them.
        rewriter: has seen their steps.
    """

    def __init__(self, experience: ReplayExperience, rewriter: TrajectoryRewriter) -> None:
        self._experience, self._rewriter, rows = experience, rewriter, experience.actor.rows.num_rows
        self._began_in = np.zeros(rows, dtype=np.int64)  # env step of the open transition
        self._held: dict[int, list[tuple[int, Transitions]]] = {}  # row -> its episode so far, with those steps
        self._held_from = np.full(rows, NEVER)  # first of those steps
        self._unseen = ~experience.actor.starts  # rows whose episode began before the hook

    def begin(self, acting: BoolArray) -> None:
        """See `HeldTransitions.begin`."""
        self._began_in[acting] = self._rewriter.numbers(self._experience.actor)[acting]
        first = acting & ~self._unseen & (self._held_from == NEVER)
        self._held_from[first] = self._began_in[first]

    def add(self, transitions: Transitions, truncated: BoolArray) -> None:
        """See `HeldTransitions.add`."""
        for number, row in enumerate(transitions.rows.tolist()):
            one = transitions.at(slice(number, number + 1))
            if self._unseen[row]:
                self._experience.record(one)
                self._unseen[row] = not one.dones[0]
                continue
            self._held.setdefault(row, []).append((int(self._began_in[row]), one))
            if one.dones[0]:
                end = int(self._rewriter.numbers(self._experience.actor)[row])
                self._show(row, end, has_ended=True, truncated=bool(truncated[row]))
                self._held_from[row] = NEVER

    def give_up(self, rows: BoolArray, are_open: BoolArray) -> None:
        """See `HeldTransitions.give_up`: what is held is shown. It is over, and would have been recorded by now."""
        if self._held:
            numbers = np.where(are_open, self._began_in, self._rewriter.numbers(self._experience.actor))
            for row in np.flatnonzero(rows).tolist():
                self._show(row, int(numbers[row]))
        self._held_from[rows], self._unseen[rows] = NEVER, False

    def _show(self, row: int, end: int, has_ended: bool = False, truncated: bool = False) -> None:
        """Show what is held of a row to the hook, until step `end`, and record it.

        Where transitions are missing, nothing is added up over the gap: the one before it counts as truncated.
        """
        if row not in self._held:
            return
        steps, parts = zip(*self._held.pop(row), strict=True)
        episode = joined_transitions(parts)
        experience: dict[str, Any] = {
            "observations": map_arrays(np.array, episode.observations),
            "actions": episode.actions,
            "rewards": np.array(episode.rewards, np.float32),
            "values": None,
            "log_probs": None,
            "has_ended": has_ended,
            "truncated": truncated,
        }
        shown = self._rewriter.shown(self._experience.actor, row, np.array(steps), end, experience)
        for own, given in pairs(episode.next_observations, shown.observations):
            own[:-1] = given[1:]
        episode = episode._replace(observations=shown.observations, rewards=shown.rewards)
        of_row = np.arange(len(self._unseen)) == row
        for number, kept in enumerate(np.asarray(shown.keep, dtype=np.bool_).tolist()):
            if kept:
                self._experience.record(episode.at(slice(number, number + 1)))
            else:
                self._experience.break_returns(of_row)

    def release(self) -> None:
        """See `HeldTransitions.release`."""
        for held in self._held.values():
            for _, transition in held:
                self._experience.record(transition)

    def held_from(self) -> Array:
        """See `Experience.held_from`."""
        return self._held_from
