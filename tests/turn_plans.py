"""Random episodes, for `NoisyEnv`: agents join late, wait for their turns, and end in any way at any time."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

AGENTS = ("dora", "adam", "carl", "bill")
KINDS = ("terminated", "truncated", "both")

# Steps until its end, in which way, the step in which it joins, and which of its steps it waits in.
_STAYS = st.tuples(st.integers(1, 5), st.sampled_from(KINDS), st.integers(0, 2), st.sets(st.integers(0, 5), max_size=3))
# How many steps after its end it lives again, for how many steps, and how it ends then.
_AGAIN = st.none() | st.tuples(st.integers(1, 2), st.integers(1, 3), st.sampled_from(KINDS))


def episode_plans(agents: tuple[str, ...]) -> st.SearchStrategy[tuple[Any, Any, Any, Any]]:
    """`(script, joins, skips, again)` as in `ScriptedEnv`."""
    lives = st.tuples(_STAYS, _AGAIN)
    return st.lists(lives, min_size=len(agents), max_size=len(agents)).map(lambda both: _plan(agents, both))


def _plan(agents: tuple[str, ...], lives: list[Any]) -> tuple[Any, Any, Any, Any]:
    stays = [stay for stay, _ in lives]
    again = {}
    for agent, ((steps, _, joins, _), more) in list(zip(agents, lives, strict=True))[1:]:
        if more is not None:
            back = joins + steps + more[0]
            again[agent] = (back, back + more[1], more[2])
    # One is there from the reset, acts in every step and ends last: there is always somebody to act.
    longest = max([joins + steps for steps, _, joins, _ in stays] + [end for _, end, _ in again.values()])
    stays = [(longest, stays[0][1], 0, set()), *stays[1:]]
    script = {agent: (joins + steps, kind) for agent, (steps, kind, joins, _) in zip(agents, stays, strict=True)}
    joins = {agent: joins for agent, (_, _, joins, _) in zip(agents, stays, strict=True)}
    skips = {agent: {joins + n for n in waits} for agent, (_, _, joins, waits) in zip(agents, stays, strict=True)}
    for agent, (back, _, _) in again.items():
        skips[agent].discard(back)  # it lives again as soon as it is to act
    return script, joins, skips, again


@st.composite
def env_plans(draw: Any, max_agents: int = 4, max_episodes: int = 3) -> list[list[Any]]:
    """The `plans` of 1 to 3 `NoisyEnv`s with the same agents."""
    agents = AGENTS[: draw(st.integers(1, max_agents))]
    episodes = st.lists(episode_plans(agents), min_size=1, max_size=max_episodes)
    return draw(st.lists(episodes, min_size=1, max_size=3))
