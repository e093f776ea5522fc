"""Play the recorded episodes again with one thing changed, and note what depends on it: seed, actions, old rewards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from pettingzoo import AECEnv

from marl_sb3.core.config.values import counted
from marl_sb3.envs.turn_based import TurnBasedEnv
from marl_sb3.tools.examining.finding import Replay, Seen, Step, checksum
from marl_sb3.tools.examining.player import EnvUnderTest, ProbePlayer, mask_of
from marl_sb3.types import AgentID

_QUESTION_S = 0.3  # how long the replays for one question may take
_REPLAYED = 3  # episodes with other actions, at most
_UNREAD = 3  # agents without effect that are looked for
_OTHER = 1_000_003  # added to the seed of actions for others


def replay_episodes(subject: EnvUnderTest) -> None:
    """Ask all questions, if an episode can be repeated at all."""
    evidence = subject.evidence
    if not evidence.replays:
        return
    with subject.player() as player:
        if not evidence.seeds_differ:
            _try_seeds(subject, player)
        _try_agents(subject, player)
        player.records = "everything"
        evidence.other_actions = list(_with_other_actions(subject, player))
        is_masked = any(
            mask_of(step.observations.get(agent), step.infos.get(agent)) is not None
            for _, step in evidence.steps()
            for agent in step.to_act
        )
        if not is_masked:  # else masks might forbid the actions of the second half
            evidence.detours = list(_with_other_actions(subject, player, detour=True))
    if isinstance(player.env, TurnBasedEnv):
        _try_rewards(
            subject,
            "cumulative-rewards-kept",
            lambda env: lambda: env._cumulative_rewards.update({env.agent_selection: 0}),  # of the agent that acts
        )
        _try_rewards(subject, "old-rewards-paid", _without_old)


def _try_seeds(subject: EnvUnderTest, player: ProbePlayer) -> None:
    """Look for a difference between seeds in more episodes than the first one; report it if there is none."""
    until = time.perf_counter() + _QUESTION_S
    alike = 1, subject.repeated_steps  # were played in two new envs
    whole = steps = 0
    for number, episode in enumerate(subject.evidence.episodes):
        seeds = subject.seeds(number + 1)[0], subject.seeds(number)[1]
        if any(player.differs(step) is not None for step in player.replay(episode, seeds, lambda _: {}, until)):
            return
        whole, steps = whole + 1, steps + player.steps_done
        alike = max(alike, (whole, steps))
        if time.perf_counter() > until:
            break
    played = f"{counted(alike[0], 'episode')}, {counted(alike[1], 'env step')}"
    words = f"two seeds give the same for the same random actions ({played})"
    subject.evidence.report("same-for-every-seed", Seen(words))


def _try_agents(subject: EnvUnderTest, player: ProbePlayer) -> None:
    """Look for agents whose actions change nothing."""
    left_s, without_effect = _QUESTION_S, subject.evidence.without_effect
    for agent in subject.evidence.agents:
        start = time.perf_counter()
        steps = _steps_without_effect(subject, player, agent, start + _QUESTION_S)
        if steps:
            without_effect[agent] = steps
        else:
            left_s -= time.perf_counter() - start  # mostly a few steps
        if left_s < 0 or len(without_effect) == _UNREAD:
            return


def _steps_without_effect(subject: EnvUnderTest, player: ProbePlayer, agent: AgentID, until: float) -> int | None:
    """Let one agent act in other ways; the number of such steps, or None if they changed something."""
    episodes, count = subject.evidence.episodes, 0

    def others(step: Step) -> dict[AgentID, Any]:
        return {each: action for each, action in step.actions.items() if each != agent}

    for episode in episodes:
        for step in player.replay(episode, (episode.seed, subject.job.seed + _OTHER), others, until):
            if player.differs(step) is not None:
                return None
            if agent in step.actions:
                count += checksum(step.actions[agent]) != checksum(player.actions.get(agent))
        if time.perf_counter() > until:
            return count if episode is not episodes[0] else None
    return count


def _with_other_actions(subject: EnvUnderTest, player: ProbePlayer, *, detour: bool = False) -> Iterator[Replay]:
    """Play episodes with other actions of all agents; as a detour, with other ones in their first half alone."""
    until = time.perf_counter() + _QUESTION_S
    for episode in islice(subject.evidence.episodes, _REPLAYED):
        turn = min(episode.length, subject.repeated_steps) // 2 if detour else None
        again = turn or 0  # the last step with other actions, if there are the recorded ones after it

        def actions(step: Step, again: int = again) -> Mapping[AgentID, Any]:
            return step.actions if detour and step.number > again else {}

        seeds = episode.seed, subject.seeds(episode.index)[1] + _OTHER
        for _ in islice(player.replay(episode, seeds, actions, until), 2 * again + 2 if detour else None):
            pass
        if time.perf_counter() > until or player.episode.stopped is not None:
            return
        yield Replay(episode, player.episode, turn)


# --- Envs with turns --------------------------------------------------------------------------------------------------


def _try_rewards(subject: EnvUnderTest, check: str, change: Callable[[Any], Callable[[], None]]) -> None:
    """Compare rewards with those of an env in which old rewards are removed, as PettingZoo's AECEnv wants it.

    `change` changes the env, and returns what to do before each step; `check` reports a difference.
    """
    with subject.player("everything") as player:
        if not isinstance(player.env.unwrapped, AECEnv):
            return
        until = time.perf_counter() + _QUESTION_S
        remove = change(player.env.unwrapped)

        def recorded(step: Step) -> Mapping[AgentID, Any]:
            remove()
            return step.actions

        for episode in subject.evidence.episodes:
            for step in player.replay(episode, (episode.seed, subject.job.seed), recorded, until):
                if (differs := player.differs(step)) is not None:
                    if differs.what.startswith("reward of "):
                        agent = differs.what.removeprefix("reward of ")
                        both = step, player.episode.steps[-1]
                        paid, due = ({str(who): paid for who, paid in each.rewards.items()}.get(agent) for each in both)
                        what = f"reward {paid}; without earlier rewards it is {due}"
                        subject.evidence.report(check, episode.seen(step, what, agent))
                    return


def _without_old(env: Any) -> Callable[[], None]:
    """Set all rewards to 0 once they have been accumulated."""
    accumulate = env._accumulate_rewards

    def accumulate_once() -> None:
        accumulate()
        env.rewards = dict.fromkeys(env.rewards, 0)

    env._accumulate_rewards = accumulate_once
    return lambda: None
