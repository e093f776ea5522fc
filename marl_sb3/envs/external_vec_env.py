"""E envs that clients step, each at its own pace: the slots of their episodes.

A client holds an episode. It reports what its agents see and were paid, and asks for their actions; its env takes an
env step when the next report comes. A step of the vec env gives actions to all clients that have asked, and then waits
for one report at least. The envs whose clients are silent meanwhile take no part in it: `VecStep.stepped` says so.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from typing_extensions import override

from marl_sb3.core.state.state import MAX_SEED, State, StateReader
from marl_sb3.core.vec_env.interface import Options, VecEnvRequest
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.core.vec_env.separate_envs import EnvFactory, SyncVecEnv
from marl_sb3.core.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.core.vec_env.step import ActionMasks, ChosenAction, VecStep
from marl_sb3.envs.external import StepReport
from marl_sb3.errors import ConfigError, EnvError
from marl_sb3.types import AgentID, Array, BoolArray, Observations

_GATHER_S = 0.001  # how long others may still report after the first one, to be answered together
_LONGEST_WAIT_S = 1.0  # then the training may look at its stop conditions and at signals
_MOST_REPORTS = 256  # of an episode that wait to be taken in, if the client chooses the actions itself

Answer = Callable[["Answered"], None]


class EpisodeRefusedError(EnvError):
    """A client's episode or report is refused; the training goes on."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        # `unknown` (there is no such episode, or no longer), `full` (no slot is free), `over` (the training is), or
        # `wrong`
        self.reason = reason


@dataclass(frozen=True)
class Answered:
    """What a client gets for a report."""

    # agent -> action, as the env takes it, for the agents that act next
    actions: Mapping[AgentID, Any] = field(default_factory=dict)
    over: bool = False  # whether the episode is over, because no agent is left or at the horizon of the run
    error: EpisodeRefusedError | None = None  # why the report was refused, and the episode given up; None: it was not


@dataclass
class _Seat:
    """The client of a slot: its episode, and its reports that have not been taken in."""

    episode_id: str | None = None
    reports: deque[tuple[StepReport, Answer]] = field(default_factory=deque)
    asked: Answer | None = None  # is waiting for the actions that follow
    heard: int = 0  # reports of the episode
    heard_s: float = 0.0  # when the client was last heard of
    is_given_up: bool = False  # its episode was, and no step has said so yet

    def leave(self) -> None:
        """Make it free for another episode."""
        self.episode_id, self.asked, self.heard = None, None, 0
        self.reports.clear()


class ExternalSlot(EnvSlot):
    """A slot whose next episode begins when a client brings one."""

    is_asking: bool = False  # whether its agents act in the next step
    actions: Sequence[Array] = ()  # what they were given, until the client reports what came of it
    acts_by: Mapping[AgentID, ChosenAction]  # the actions that the client has chosen, for the next step

    @override
    def reset(self, options: Mapping[str, Any] | None = None) -> Mapping[AgentID, Any]:
        """Leave the slot empty until a client begins an episode."""
        self.to_act, self.in_play, self.shown = [], set(), {}
        self.reset_infos = {agent: {} for agent in self.layout.possible_agents}
        self.is_asking, self.acts_by = False, {}
        return self.shown

    def begin_episode(self) -> None:
        """Begin the episode whose start the env has as its report."""
        super().reset()
        self._log.drop()  # the client alone could repeat the episode
        self.is_asking = True


class ExternalVecEnv(SyncVecEnv):
    """A vec env of slots for the episodes of clients. Its methods for clients may be called from any thread.

    A checkpoint holds no running episodes: clients hold them. They begin new ones after a resume.

    Args:
        make_env: makes the `ExternalEnv` of an index.
        num_envs: E, the number of episodes at a time.
        seed: run seed, from which clients get the seeds of their episodes.
    """

    _slot_class = ExternalSlot
    _slots: list[ExternalSlot]  # type: ignore[assignment]
    steps_apart = True

    def __init__(self, make_env: EnvFactory, num_envs: int, seed: int | None = None) -> None:
        super().__init__(make_env, num_envs, seed)
        self._seats = [_Seat() for _ in range(num_envs)]
        self._by_id: dict[str, int] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self._timeout_s: float = self.envs[0].episode_timeout_s

    # --- For clients -------------------------------------------------------------------------------------------------

    def open_episode(self) -> tuple[str, int]:
        """Give a client a slot; its first report begins the episode.

        Returns:
            An id of the episode, and the seed that the client should use for it.

        Raises:
            EpisodeRefusedError: all slots are taken, or the training is over.
        """
        with self._changed:
            if self._is_closed:
                raise EpisodeRefusedError("the training is over", "over")
            for seat, slot in zip(self._seats, self._slots, strict=True):
                if seat.episode_id is None and not seat.is_given_up and not slot.to_act:
                    seat.episode_id, seat.heard_s = secrets.token_hex(8), time.monotonic()
                    self._by_id[seat.episode_id] = slot.row
                    return seat.episode_id, episode_seed(slot.run_seed, slot.index, slot.episode + 1)
        words = f"all {self.num_envs} episodes are taken; accepted: a start when one is over, or a run with more n_envs"
        raise EpisodeRefusedError(words, "full")

    def report(self, episode_id: str, report: StepReport, answer: Answer) -> None:
        """Report a step of an episode.

        Args:
            answer: is called once, from the thread of the training, when the report has been taken in and its agents
                have their actions.

        Raises:
            EpisodeRefusedError: there is no such episode, or too many of its reports wait.
        """
        with self._changed:
            if episode_id not in self._by_id:
                words = f"there is no episode {episode_id[:40]!r}, or no longer: the training was resumed, or it was"
                raise EpisodeRefusedError(f"{words} given up", "unknown")
            seat = self._seats[self._by_id[episode_id]]
            seat.heard_s = time.monotonic()
            if seat.asked is not None or len(seat.reports) >= _MOST_REPORTS:
                why = "an earlier report of the episode waits for its answer; accepted: one report at a time"
                raise EpisodeRefusedError(why, "wrong")
            if report.number not in (None, seat.heard + 1):
                raise EpisodeRefusedError(f"report {report.number} follows report {seat.heard}", "wrong")
            seat.heard += 1
            seat.reports.append((report, answer))
            self._changed.notify()

    def give_up(self, episode_id: str, why: str) -> None:
        """Give up an episode whose client is gone; nothing of its running transitions is learned from."""
        with self._changed:
            if episode_id in self._by_id:
                self._give_up(
                    self._by_id[episode_id], EpisodeRefusedError(f"the episode was given up: {why}", "unknown")
                )
                self._changed.notify()

    @property
    def num_episodes(self) -> int:
        """The number of episodes that clients hold."""
        with self._changed:
            return len(self._by_id)

    @property
    def num_waiting(self) -> int:
        """The number of reports whose clients wait for an answer."""
        with self._changed:
            return sum(len(seat.reports) + (seat.asked is not None) for seat in self._seats)

    @property
    def is_over(self) -> bool:
        """Whether the training is over, so that clients are refused."""
        return self._is_closed

    # --- Steps -------------------------------------------------------------------------------------------------------

    @override
    def _reset(self, options: Sequence[Options] | None) -> VecStep:
        """Give up the running episodes; no agent acts before a client begins one."""
        with self._changed:
            for row, seat in enumerate(self._seats):
                if self._slots[row].to_act:
                    self._give_up(row, EpisodeRefusedError("the training begins new episodes", "unknown"))
                seat.is_given_up = False
        return super()._reset(options)

    @override
    def _step(self, actions: Sequence[Array]) -> VecStep:
        self._stepped = np.zeros(self.num_envs, dtype=np.bool_)
        step = super()._step(actions)
        return replace(
            step,
            to_act=self._turns(),
            stepped=self._stepped,
            given_up=tuple(self._lost),
            chosen={
                (slot.row, self._layout.places[agent].column): chosen
                for slot in self._slots
                if slot.is_asking
                for agent, chosen in slot.acts_by.items()
            },
        )

    @override
    def _step_slots(self, actions: Sequence[Array]) -> tuple[tuple[Observations, ...], list[SlotStep]]:
        """Answer the clients that have asked; then take in a report of each client that sends one."""
        observations = self._blank()
        with self._changed:
            answered = self._hand_out(actions)
            self._wait()
            taken = [seat.reports.popleft() if seat.reports else None for seat in self._seats]
            self._lost = [row for row, seat in enumerate(self._seats) if seat.is_given_up]
            for row in self._lost:
                self._seats[row].is_given_up = False
                self._slots[row].reset()
                taken[row] = None
        steps = [
            self._take_in(slot, entry, slot.row in answered) for slot, entry in zip(self._slots, taken, strict=True)
        ]
        for slot in self._slots:
            if slot.is_asking:
                self._show(slot, observations)
        return observations, steps

    def _hand_out(self, actions: Sequence[Array]) -> set[int]:
        """Answer the clients whose agents have acted; returns their rows."""
        asking = [slot for slot in self._slots if slot.is_asking]
        for slot in asking:
            slot.actions = [of_group[slot.row].copy() for of_group in actions]
            slot.is_asking = False
            seat = self._seats[slot.row]
            if seat.asked is not None:
                places = self._layout.places
                chosen = {agent: slot.actions[places[agent].group][places[agent].group_column] for agent in slot.to_act}
                answer, seat.asked = seat.asked, None
                answer(Answered(chosen))
        return {slot.row for slot in asking}

    def _wait(self) -> None:
        """Wait for a report, and shortly for others; episodes whose clients are silent for too long are given up."""
        seats = self._seats
        heard = min([seat.heard_s for seat in seats if seat.episode_id is not None], default=np.inf)
        left_s = float(np.clip(heard + self._timeout_s - time.monotonic(), 0.0, _LONGEST_WAIT_S))
        if self._changed.wait_for(lambda: any(seat.reports or seat.is_given_up for seat in seats), left_s):
            self._changed.wait_for(lambda: all(seat.reports or seat.episode_id is None for seat in seats), _GATHER_S)
        now = time.monotonic()
        for row, seat in enumerate(self._seats):
            silent = seat.episode_id is not None and not seat.reports and now - seat.heard_s > self._timeout_s
            if silent:
                why = f"no report of its client for {self._timeout_s:g} s"
                self._give_up(row, EpisodeRefusedError(f"the episode was given up: {why}", "unknown"))

    def _take_in(self, slot: ExternalSlot, entry: tuple[StepReport, Answer] | None, acted: bool) -> SlotStep:
        """Take a report into the slot; one that breaks the rules of an env is refused, and its episode given up."""
        nothing = SlotStep({}, {}, {}, {}, {})
        if entry is None:
            return nothing
        report, answer = entry
        try:
            step = self._stepped_by(slot, report, acted) or nothing
        except EnvError as error:
            refused = EpisodeRefusedError(str(error), "wrong")
            with self._changed:
                self._give_up(slot.row, refused)
            answer(Answered(error=refused))
            return nothing
        seat = self._seats[slot.row]
        with self._changed:
            if not slot.to_act:
                self._by_id.pop(str(seat.episode_id), None)
                seat.leave()
        if not slot.to_act or slot.acts_by:
            answer(Answered({agent: chosen.action for agent, chosen in slot.acts_by.items()}, over=not slot.to_act))
        else:
            seat.asked = answer
        return step

    def _stepped_by(self, slot: ExternalSlot, report: StepReport, acted: bool) -> SlotStep | None:
        """Begin the slot's episode, or step it; returns what came of the step."""
        slot.env.report = report
        if not slot.to_act:
            slot.begin_episode()
            slot.acts_by = self._chosen(slot, report)
            return None
        acting, in_play = list(slot.to_act), set(slot.in_play)
        step = slot.step(slot.actions)
        slot.is_asking = bool(slot.to_act)
        slot.acts_by = self._chosen(slot, report)
        self._stepped[slot.row] = True
        step.waited = (in_play | set(acting)) - (set(acting) if acted else set())
        return step

    def _chosen(self, slot: ExternalSlot, report: StepReport) -> dict[AgentID, ChosenAction]:
        """Return the actions that the client has chosen for its agents: for all that act next, or for none."""
        chosen: dict[AgentID, ChosenAction] = {}
        for agent in slot.to_act if report.actions else ():
            space: Any = slot.view.action_space(agent)
            action = report.actions.get(agent, "missing")
            if agent not in report.actions or not space.contains(action):
                raise slot.error(f"the client's action is {action}; accepted: one in {space}", agent)
            taken = space.from_env(action) if hasattr(space, "from_env") else action
            chosen[agent] = ChosenAction(taken, report.log_probs.get(agent))
        return chosen

    def _give_up(self, row: int, error: EpisodeRefusedError) -> None:
        """Free the slot; whoever waits for its answers gets the error. A later step says that it was given up."""
        seat = self._seats[row]
        waiting = [*([] if seat.asked is None else [seat.asked]), *(answer for _, answer in seat.reports)]
        self._by_id.pop(str(seat.episode_id), None)
        seat.leave()
        seat.is_given_up = True
        for answer in waiting:
            answer(Answered(error=error))

    # --- What the next step shows ------------------------------------------------------------------------------------

    @override
    def _shown(self) -> tuple[Observations, ...]:
        return self._blank()  # asked for after a reset alone

    @override
    def _turns(self) -> BoolArray:
        self._known_turns = [slot.to_act for slot in self._slots]
        nobody: Sequence[AgentID] = ()
        return np.array([self._layout.flags(slot.to_act if slot.is_asking else nobody) for slot in self._slots])

    @override
    def _masks_after(
        self, infos: Sequence[Mapping[str, Any]], reset_infos: Mapping[int, Mapping[str, Any]]
    ) -> ActionMasks:
        asking = [slot for slot in self._slots if slot.is_asking]
        known = {slot.row: infos[slot.row] or slot.reset_infos for slot in asking}
        return self._masks.read(asking, known)

    # --- Ends and state ----------------------------------------------------------------------------------------------

    @override
    def _close(self) -> None:
        with self._changed:
            self._is_closed = True
            for row, seat in enumerate(self._seats):
                if seat.episode_id is not None:
                    self._give_up(row, EpisodeRefusedError("the training is over", "over"))
        super()._close()

    @override
    def _get_state(self) -> State:
        first = self._slots[0]
        return {"run_seed": first.run_seed, "episodes": np.array([slot.episode for slot in self._slots])}

    @override
    def _set_state(self, state: StateReader) -> Mapping[int, str]:
        run_seed = state.integer("run_seed", 0, MAX_SEED)
        episodes = state.array("episodes", np.int64, (self.num_envs,), -1)
        for slot, episode in zip(self._slots, episodes.tolist(), strict=True):
            slot.run_seed = run_seed
            slot.continue_at(episode + 1)
        self._latest = self._reset(None)
        return dict.fromkeys(range(self.num_envs), "its client holds its episodes")


def for_clients(request: VecEnvRequest) -> ExternalVecEnv:
    """See `doors.Vectorizer`.

    Raises:
        ConfigError: names the first setting that envs which clients step do not have: all but the defaults.
    """
    accepted: Mapping[str, Any] = {"n_workers": 0, "vectorizer": "auto", "env_state": False}
    for name, default in accepted.items():
        value = getattr(request, name)
        if value != default:
            words = f"{name} is {value!r}; accepted for envs that clients step: {default}"
            raise ConfigError(words, key=name)
    return ExternalVecEnv(request.make_env, request.n_envs, request.seed)
