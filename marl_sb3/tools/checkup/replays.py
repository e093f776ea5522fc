"""Play the recorded episodes again with one thing changed, and note what depends on it: seed, actions, old rewards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from pettingzoo import AECEnv

from marl_sb3.core.config import counted
from marl_sb3.core.envs import TurnBasedEnv
from marl_sb3.tools.checkup.finding import Difference, PlayedEpisode, Replay, Seen, Step, checksum, difference
from marl_sb3.tools.checkup.player import EnvUnderTest, ProbePlayer, mask_of
from marl_sb3.types import AgentID

_QUESTION_S = 0.3  # how long the replays for one question may take
_REPLAYED = 3  # episodes with other actions, at most
_UNREAD = 3  # agents without effect that are looked for
_OTHER = 1_000_003  # added to the seed of actions for others

_Actions = Callable[[Step], Mapping[AgentID, Any]]  # from a recorded step: the actions to repeat; others are drawn


def replay_episodes(subject: EnvUnderTest) -> None:
    """Ask all questions, if an episode can be repeated at all."""
    if not subject.evidence.replays:
        return
    with subject.player() as player:
        replays = _Replays(subject, player)
        if not subject.evidence.seeds_differ:
            replays.try_seeds()
        replays.try_agents()
        player.records = "everything"
        subject.evidence.other_actions = list(replays.with_other_actions())
        is_masked = any(
            mask_of(step.observations.get(agent), step.infos.get(agent)) is not None
            for _, step in subject.evidence.steps()
            for agent in step.to_act
        )
        if not is_masked:  # else masks might forbid the actions of the second half
            subject.evidence.detours = list(replays.with_other_actions(detour=True))
    if isinstance(player.env, TurnBasedEnv):
        _try_rewards(subject, "cumulative-rewards-kept", _without_paid)
        _try_rewards(subject, "old-rewards-paid", _without_old)


class _Replays:
    """The questions to an env that plays the recorded episodes again."""

    def __init__(self, subject: EnvUnderTest, player: ProbePlayer) -> None:
        self._subject, self._player = subject, player
        self._evidence = subject.evidence
        self._until = 0.0

    def ask(self) -> None:
        """Begin a question."""
        self._until = time.perf_counter() + _QUESTION_S

    @property
    def _is_late(self) -> bool:
        return time.perf_counter() > self._until

    def steps(self, episode: PlayedEpisode, seeds: tuple[int, int], actions: _Actions) -> Iterator[Step]:
        """Play an episode again; yield each recorded step after the new one, until either episode or the time is over.

        The seeds are those of the env, and of the actions that `actions` does not repeat.
        """
        player = self._player
        player.begin(seeds)
        for recorded in episode.steps:
            if recorded.number > 0:
                if not player.goes_on or self._is_late:
                    return
                player.step(actions(recorded))
            if player.episode.stopped is not None:
                self._evidence.report(*player.episode.stopped)
                return
            yield recorded

    def differs(self, recorded: Step) -> Difference | None:
        """Return what the latest step differs in from a recorded one."""
        return difference([recorded.fingerprint()], self._player.fingerprint[-1:])

    def try_seeds(self) -> None:
        """Look for a difference between seeds in more episodes than the first one; report it if there is none."""
        self.ask()
        alike = 1, self._subject.repeated_steps  # were played in two new envs
        whole = steps = 0
        for number, episode in enumerate(self._evidence.episodes):
            seeds = self._subject.seeds(number + 1)[0], self._subject.seeds(number)[1]
            if any(self.differs(step) is not None for step in self.steps(episode, seeds, lambda _: {})):
                return
            whole, steps = whole + 1, steps + self._player.steps_done
            alike = max(alike, (whole, steps))
            if self._is_late:
                break
        played = f"{counted(alike[0], 'episode')}, {counted(alike[1], 'env step')}"
        words = f"two seeds give the same for the same random actions ({played})"
        self._evidence.report("same-for-every-seed", Seen(words))

    def try_agents(self) -> None:
        """Look for agents whose actions change nothing."""
        left_s, without_effect = _QUESTION_S, self._evidence.without_effect
        for agent in self._evidence.agents:
            self.ask()
            steps = self._steps_without_effect(agent)
            if steps:
                without_effect[agent] = steps
            else:
                left_s -= time.perf_counter() - (self._until - _QUESTION_S)  # mostly a few steps
            if left_s < 0 or len(without_effect) == _UNREAD:
                return

    def _steps_without_effect(self, agent: AgentID) -> int | None:
        """Let one agent act in other ways; the number of such steps, or None if they changed something."""
        count = 0

        def others(step: Step) -> dict[AgentID, Any]:
            return {each: action for each, action in step.actions.items() if each != agent}

        for episode in self._evidence.episodes:
            for step in self.steps(episode, (episode.seed, self._subject.job.seed + _OTHER), others):
                if self.differs(step) is not None:
                    return None
                if agent in step.actions:
                    count += checksum(step.actions[agent]) != checksum(self._player.actions.get(agent))
            if self._is_late:
                return count if episode is not self._evidence.episodes[0] else None
        return count

    def with_other_actions(self, *, detour: bool = False) -> Iterator[Replay]:
        """Play episodes with other actions of all agents; as a detour, with other ones in their first half alone."""
        self.ask()
        for episode in islice(self._evidence.episodes, _REPLAYED):
            turn = min(episode.length, self._subject.repeated_steps) // 2 if detour else None
            again = turn or 0  # the last step with other actions, if there are the recorded ones after it

            def actions(step: Step, again: int = again) -> Mapping[AgentID, Any]:
                return step.actions if detour and step.number > again else {}

            seeds = episode.seed, self._subject.seeds(episode.index)[1] + _OTHER
            for _ in islice(self.steps(episode, seeds, actions), 2 * again + 2 if detour else None):
                pass
            if self._is_late or self._player.episode.stopped is not None:
                return
            yield Replay(episode, self._player.episode, turn)


# --- Envs with turns --------------------------------------------------------------------------------------------------


def _try_rewards(subject: EnvUnderTest, check: str, change: Callable[[Any], Callable[[], None]]) -> None:
    """Compare rewards with those of an env in which old rewards are removed, as PettingZoo's AECEnv wants it.

    `change` changes the env, and returns what to do before each step; `check` reports a difference.
    """
    with subject.player("everything") as player:
        replays = _Replays(subject, player)
        if not isinstance(player.env.unwrapped, AECEnv):
            return
        replays.ask()
        remove = change(player.env.unwrapped)

        def recorded(step: Step) -> Mapping[AgentID, Any]:
            remove()
            return step.actions

        for episode in subject.evidence.episodes:
            for step in replays.steps(episode, (episode.seed, subject.job.seed), recorded):
                if (differs := replays.differs(step)) is not None:
                    if differs.what.startswith("reward of "):
                        agent = differs.what.removeprefix("reward of ")
                        both = step, player.episode.steps[-1]
                        paid, due = ({str(who): paid for who, paid in each.rewards.items()}.get(agent) for each in both)
                        what = f"reward {paid}; without rewards that were paid before it is {due}"
                        subject.evidence.report(check, episode.seen(step, what, agent))
                    return


def _without_paid(env: Any) -> Callable[[], None]:
    """Set the cumulative reward of the agent that acts to 0."""
    return lambda: env._cumulative_rewards.update({env.agent_selection: 0})


def _without_old(env: Any) -> Callable[[], None]:
    """Set all rewards to 0 once they have been accumulated."""
    accumulate = env._accumulate_rewards

    def accumulate_once() -> None:
        accumulate()
        env.rewards = dict.fromkeys(env.rewards, 0)

    env._accumulate_rewards = accumulate_once
    return lambda: None
