"""Checks of the agents' lives: who acts, who ends, when, and with which flag."""

from __future__ import annotations

from collections.abc import Iterator

from marl_sb3.tools.examining.finding import ADVICE, FAULT, WARNING, Evidence, Seen, check, shown, truth

_LONG = 2_000  # env steps after which an end is missed; fewer are told among the facts
_CHANCE = 1e-3  # probability of a coincidence that is believed
_ALIKE = 3  # episodes of the same length, ended by termination, that look like a time limit


@check("unknown-agent", FAULT, "an agent is live that possible_agents does not list",
       why="It has no policy and no place in the arrays, so training stops there.",
       remedy="List every agent that may ever appear in `possible_agents`.")  # fmt: skip
def _unknown(evidence: Evidence) -> Iterator[Seen]:
    for episode, step in evidence.steps():
        for agent in step.agents:
            if agent not in evidence.agents:
                yield episode.seen(step, "is live but not in possible_agents", shown(agent))


@check("live-after-end", WARNING, "an agent stays in `agents` after it has ended",
       why="In marl_sb3 it does not act any more; other libraries let it act on, or never reset the env.",
       remedy="Remove an agent from `agents` in the step in which it ends.")  # fmt: skip
def _live_after_end(evidence: Evidence) -> Iterator[Seen]:
    """Find agents that stay in `agents` after they have ended; the first of each episode."""
    for episode in evidence.episodes:
        for step in episode.steps:
            late = [agent for agent in step.agents if agent in evidence.agents and agent not in step.to_act]
            if late:
                what = f"is in `agents`, though it ended in step {episode.ends()[late[0]][0]}"
                yield episode.seen(step, what, late[0])
                break


@check("ends-without-flag", FAULT, "an episode is over, but an agent has no flag that says so",
       why="It is unknown whether the agent's return bootstraps at the end, so training stops there.",
       remedy="Set `terminated` or `truncated` for each agent in the step in which it leaves `agents` for good.",
       )  # fmt: skip
def _silent_ends(evidence: Evidence) -> Iterator[Seen]:
    for episode in evidence.over():
        *_, (step, playing) = episode.in_play()
        for agent in sorted(playing.difference(step.ends()), key=str):
            what = "the episode is over, but the agent is neither terminated nor truncated"
            yield episode.seen(step, what, agent)


@check("reward-not-counted", WARNING, "an agent gets a reward before it has acted or after it has ended",
       why="The reward belongs to no action, so nothing is learned from it. After the end, no return counts it either.",
       remedy="Give rewards only between an agent's first action and its end; add later ones to its last step.",
       once_per_agent=True)  # fmt: skip
def _unearned(evidence: Evidence) -> Iterator[Seen]:
    for episode in evidence.episodes:
        for step, playing in episode.in_play():
            for agent, reward in step.rewards.items():
                if agent not in playing and truth(reward != 0):
                    what = "a reward for an agent that has not acted yet, or has ended"
                    yield episode.seen(step, what, agent, shown(reward))


@check("never-acts", WARNING, "an agent never acts",
       why="Its policy gets no data. If it is the only agent of its policy, that policy is never trained.",
       remedy="Remove it from `possible_agents`, or look for the reason; --episodes plays more episodes.")  # fmt: skip
def _never_acts(evidence: Evidence) -> Iterator[Seen]:
    acted = {agent for _, step in evidence.steps() for agent in step.acting}
    if over := evidence.over():
        words = f"the agent acts in none of {len(over)} episodes"
        yield from (Seen(words, str(agent)) for agent in evidence.agents if agent not in acted)


@check("never-ends", WARNING, "an episode does not end",
       why="Without an end there are no episode returns to report, compare or stop by.",
       remedy="Truncate episodes after some number of steps. If episodes are that long, play more with --steps.",
       )  # fmt: skip
def _never_ends(evidence: Evidence) -> Iterator[Seen]:
    if evidence.longest >= _LONG:
        yield Seen(f"an episode has not ended after {evidence.longest:,} env steps with random actions", None, 0)


@check("time-limit-terminates", WARNING, "episodes always end in the same step, as terminated",
       why="This looks like a time limit. After `terminated` no more reward is expected, so values near the limit are"
           " learned too low.",
       remedy="Report a time limit as `truncated`. If the task itself ends in that step, leave it.")  # fmt: skip
def _disguised_time_limit(evidence: Evidence) -> Iterator[Seen]:
    """Find episodes that always end in the same step, later than the first, with all agents terminated."""
    over = evidence.over()
    lengths = {episode.length for episode in over}
    if len(over) < _ALIKE or len(lengths) != 1 or lengths == {1}:
        return
    ends = [list(episode.ends().values()) for episode in over]
    if all(ends) and {end for of_episode in ends for end in of_episode} == {(over[0].length, True, False)}:
        yield Seen(f"all {len(over)} episodes end in step {over[0].length} with `terminated`, none with `truncated`")


@check("truncated-and-terminated", WARNING, "an agent is never truncated without being terminated",
       why="After `terminated` no more reward is expected, so values near the time limit are learned too low.",
       remedy="Report a time limit as `truncated` alone, and an end of the task as `terminated` alone.")  # fmt: skip
def _both_flags(evidence: Evidence) -> Iterator[Seen]:
    """Find agents of which each truncation is a termination, too, more often than by chance."""
    for agent in evidence.agents:
        ends = [each for episode in evidence.episodes if (each := episode.ends().get(agent)) is not None]
        both = [each for each in ends if all(each[1:])]
        steps = sum(each[0] for each in ends)
        chance = (len(ends) - len(both) + 1) / (steps + 2)  # of a termination, in a step without a time limit
        at_once = len(both) >= _ALIKE and not any(truncated and not terminated for _, terminated, truncated in ends)
        if at_once and chance ** len(both) < _CHANCE:
            yield Seen(f"all {len(both)} truncations come with `terminated`", str(agent))


@check("ends-early", ADVICE, "agents end before others",
       why="marl_sb3 trains no step of an agent after its end; SuperSuit and stock SB3 train on padding.",
       remedy="Nothing; when you compare the returns of agents, keep their numbers of steps in mind.")  # fmt: skip
def _ends_early(evidence: Evidence) -> Iterator[Seen]:
    """Find agents that end before others do; the first of each episode."""
    for episode in evidence.over():
        for agent, (number, *_) in episode.ends().items():
            if number < episode.length:
                what = f"ends, the episode goes on to step {episode.length}"
                yield episode.seen(episode.steps[number], what, agent)
                break
