"""Whether agents' returns oppose each other: worked by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from marl_sb3.core.metrics.opposition import Opposition
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError

OPPOSE = "the agents' returns oppose each other: "
UP_AND_DOWN = [1.0, 3.0, 2.0, 5.0, 4.0, 6.0, 8.0, 7.0, 10.0, 9.0] * 10  # 50 pairs, in all of which it changes


def after(returns: Mapping[str, Sequence[float | None]], policy_of: Mapping[str, str] | None = None) -> Opposition:
    opposition = Opposition(list(returns), policy_of)
    for row in zip(*returns.values(), strict=True):
        opposition.add(dict(zip(returns, row, strict=True)))
    return opposition


def times(factor: float, values: Sequence[float] = UP_AND_DOWN) -> list[float]:
    return [factor * value for value in values]


def test_agents_that_gain_together_do_not_oppose_each_other() -> None:
    found = after({"a": UP_AND_DOWN, "b": [2 * value + 1 for value in UP_AND_DOWN]})
    assert (found.words(), found.doubt()) == (None, None)


def test_what_the_predators_gain_the_prey_loses() -> None:
    # The sum, 3c - c, is highest where the prey is worst. Of each predator the others, c + c - c, rise with it.
    returns = {**{f"predator{i}": UP_AND_DOWN for i in range(3)}, "prey": times(-1.0)}
    expected = "that of prey is higher where the others' are lower, in 100 % of 50 pairs of episodes"
    assert after(returns).words() == OPPOSE + expected


def test_teams_oppose_each_other_where_no_single_agent_does() -> None:
    # What goes well for one team goes badly for the other. But the agents of a team have luck of their own, too, and of
    # one agent, the others are nine friends and ten foes.
    rng = np.random.default_rng(1)
    luck, own = rng.normal(size=2000), rng.normal(0.0, 1.5, size=(20, 2000))
    returns = {f"{team}{i}": (side * luck + own[i + 5 + 5 * side]).tolist()
               for team, side in (("red", 1), ("blue", -1)) for i in range(10)}  # fmt: skip
    assert after(returns).words() is None
    found = after(returns, {agent: agent[:-1] for agent in returns}).words()
    assert str(found).startswith(f"{OPPOSE}that of red is higher where the others' are lower, in ")


def test_a_loss_that_is_slight_beside_the_gain_is_no_opposition() -> None:
    # As in the arena: agent1 gains 40 while agent2 loses 1, and the sum tells how good both are.
    assert after({"a": UP_AND_DOWN, "b": times(-0.05)}).words() is None
    assert after({"a": UP_AND_DOWN, "b": times(-0.2)}).words() is not None


def test_a_constant_sum_is_told_after_five_pairs_of_episodes() -> None:
    white = [0.5, 0.7, 0.4, 0.5, 0.0, 1.0, 0.3, 0.3, 0.1, 0.2, 0.9, 0.8]  # those of the fourth pair do not differ
    returns = {"white": white, "black": [1.0 - score for score in white]}
    assert after(returns).words() == f"{OPPOSE}their sum is always about 1"
    few = after({agent: its[:10] for agent, its in returns.items()})
    assert few.words() is None
    assert str(few.doubt()).startswith("too few episodes with different returns have ended to tell whether ")


def test_returns_that_do_not_change_do_not_oppose_each_other() -> None:
    assert after({"a": [1.0] * 20, "b": [-1.0] * 20}).words() is None


def test_one_agent_opposes_nobody() -> None:
    found = after({"agent": UP_AND_DOWN})
    assert (found.words(), found.doubt()) == (None, None)


def test_what_is_learned_between_the_episodes_of_a_training_does_not_count() -> None:
    # One agent becomes better and the other worse, for reasons of their own; in an episode, neither tells of the other.
    rng = np.random.default_rng(2)
    rises = np.linspace(0.0, 20.0, 600)
    found = after({"a": (rises + rng.normal(size=600)).tolist(), "b": (-rises + rng.normal(size=600)).tolist()})
    assert (found.words(), found.doubt()) == (None, None)


@pytest.mark.parametrize(
    ("apart", "together", "words", "doubt"),
    [
        # Wilson's lower bound at 1 - 0.0005 / 2, z = 3.48: 0.752 of 37 pairs; 0.699 of 200 with 81 %, 0.764 of 1000.
        (37, 0, True, False),
        (36, 0, False, True),
        (162, 38, False, True),
        (810, 190, True, False),
        (700, 300, False, False),  # they compete, as agents that look for the same things do
        (15, 5, False, True),  # too few
    ],
)
def test_only_what_is_clear_is_said(apart: int, together: int, words: bool, doubt: bool) -> None:
    a = [0.0, 1.0] * (apart + together)
    b = [0.0, -1.5] * apart + [0.0, 1.5] * together
    found = after({"a": a, "b": b})
    assert (found.words() is not None, found.doubt() is not None) == (words, doubt)


def test_a_thousand_unrelated_agents_do_not_oppose_each_other() -> None:
    rng, opposition = np.random.default_rng(0), Opposition([f"a{i}" for i in range(1000)])
    for row in rng.normal(size=(100, 1000)):
        opposition.add(dict(zip(opposition._agents, row.tolist(), strict=True)))
    assert opposition.words() is None


def test_episodes_without_an_agent_do_not_count_for_it() -> None:
    returns = {"a": [50.0, -70.0, *UP_AND_DOWN], "late": [None, None, *times(-3.0)]}
    assert "in 100 % of 50 pairs of episodes" in str(after(returns).words())


def test_the_state_continues_exactly() -> None:
    returns = {"a": UP_AND_DOWN, "b": times(-3.0)}
    whole, first = after(returns), after({agent: its[:7] for agent, its in returns.items()})
    again = Opposition(list(returns))
    again.read_state(StateReader(first.get_state()))()
    for a, b in list(zip(*returns.values(), strict=True))[7:]:
        again.add({"a": a, "b": b})
    assert again.words() == whole.words() is not None
    np.testing.assert_array_equal(again.get_state()["squares"], whole.get_state()["squares"])
    assert math.isnan(again._before[0])
    with pytest.raises(CheckpointError, match=r"before.* is an array of float64 \(2\)"):
        Opposition(["a", "b", "c"]).read_state(StateReader(first.get_state()))
