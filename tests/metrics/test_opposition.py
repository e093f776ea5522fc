"""Whether agents' returns oppose each other: worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from marl_sb3.errors import CheckpointError
from marl_sb3.metrics.opposition import Opposition
from marl_sb3.storage.state import StateReader

UP_AND_DOWN = [1.0, 3.0, 2.0, 5.0, 4.0, 6.0, 8.0, 7.0, 10.0, 9.0]


def after(returns: Mapping[str, Sequence[float | None]]) -> Opposition:
    opposition = Opposition(list(returns))
    for row in zip(*returns.values(), strict=True):
        opposition.add(dict(zip(returns, row, strict=True)))
    return opposition


def test_agents_that_gain_together_do_not_oppose_each_other() -> None:
    assert after({"a": UP_AND_DOWN, "b": [2 * value + 1 for value in UP_AND_DOWN]}).words() is None


def test_what_the_predators_gain_the_prey_loses() -> None:
    # The sum, 3c - c, is highest where the prey is worst. Of each predator the others, c + c - c, rise with it.
    caught = UP_AND_DOWN
    returns = {**{f"predator{i}": caught for i in range(3)}, "prey": [-c for c in caught]}
    expected = "that of prey falls when the others' rise (correlation -1.00 over 10 iterations)"
    assert after(returns).words() == f"the agents' returns oppose each other: {expected}"


def test_a_loss_that_is_slight_beside_the_gain_is_no_opposition() -> None:
    # As in the arena: agent1 gains 40 while agent2 loses 1, and the sum tells how good both are.
    assert after({"a": UP_AND_DOWN, "b": [-0.05 * value for value in UP_AND_DOWN]}).words() is None
    assert after({"a": UP_AND_DOWN, "b": [-0.2 * value for value in UP_AND_DOWN]}).words() is not None


def test_a_constant_sum_is_told_after_three_iterations() -> None:
    scores = [0.5, 0.7, 0.4]
    returns = {"white": scores, "black": [1.0 - score for score in scores]}
    assert after(returns).words() == "the agents' returns oppose each other: their sum is always about 1"
    assert after({agent: its[:2] for agent, its in returns.items()}).words() is None


def test_returns_that_do_not_change_do_not_oppose_each_other() -> None:
    assert after({"a": [1.0] * 20, "b": [-1.0] * 20}).words() is None


def test_one_agent_opposes_nobody() -> None:
    assert after({"agent": UP_AND_DOWN}).words() is None


def test_nine_iterations_are_too_few_for_a_correlation() -> None:
    returns = {"a": UP_AND_DOWN, "b": [-3 * value for value in UP_AND_DOWN]}
    assert after({agent: its[:9] for agent, its in returns.items()}).words() is None
    assert after(returns).words() is not None


def test_a_correlation_that_chance_explains_is_none() -> None:
    # r = -0.6: of two agents over 10 iterations the limit is tanh(-2.576 / sqrt(7)) = -0.75; over 30, -0.5.
    a = np.array([1.0, -1.0, 0.0, 0.0, 0.0] * 2)
    b = -0.6 * a + 0.8 * np.array([0.0, 0.0, 1.0, -1.0, 0.0] * 2)
    assert np.corrcoef(a, b)[0, 1] == pytest.approx(-0.6)
    assert after({"a": a, "b": b}).words() is None
    assert "(correlation -0.60 over 30 iterations)" in str(after({"a": np.tile(a, 3), "b": np.tile(b, 3)}).words())


def test_a_thousand_unrelated_agents_do_not_oppose_each_other() -> None:
    rng, opposition = np.random.default_rng(0), Opposition([f"a{i}" for i in range(1000)])
    for row in rng.normal(size=(25, 1000)):
        opposition.add(dict(zip(opposition._agents, row.tolist(), strict=True)))
    assert opposition.words() is None


def test_iterations_without_an_agent_do_not_count_for_it() -> None:
    late = [None, None, *[-3 * value for value in UP_AND_DOWN]]
    returns = {"a": [50.0, -70.0, *UP_AND_DOWN], "late": late}
    assert "(correlation -1.00 over 10 iterations)" in str(after(returns).words())


def test_the_state_continues_exactly() -> None:
    returns = {"a": UP_AND_DOWN * 2, "b": [-3 * value for value in UP_AND_DOWN * 2]}
    whole, first = after(returns), after({agent: its[:7] for agent, its in returns.items()})
    again = Opposition(list(returns))
    again.read_state(StateReader(first.get_state()))()
    for a, b in list(zip(*returns.values(), strict=True))[7:]:
        again.add({"a": a, "b": b})
    assert again.words() == whole.words() is not None
    np.testing.assert_array_equal(again.get_state()["moments"], whole.get_state()["moments"])
    with pytest.raises(CheckpointError, match=r"counts is an array of int64 \(3\)"):
        Opposition(["a", "b", "c"]).read_state(StateReader(first.get_state()))
