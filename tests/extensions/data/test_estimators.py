"""Estimators on an MDP that is enumerated: every trajectory with its probability, and values by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from marl_sb3.extensions.data.estimators import Decisions, effective_sample_size, estimate, joint_weights

# Two states, two actions, two decisions: action 1 leads to state 1, action 0 to state 0, with probability 3/4.
BEHAVIOUR = np.array([[0.5, 0.5], [0.25, 0.75]])  # [state, action]
TARGET = np.array([[0.1, 0.9], [0.6, 0.4]])
REWARDS = np.array([[1.0, 2.0], [0.0, 5.0]])
GAMMA = 0.5


def trajectories() -> Iterator[tuple[float, tuple[int, ...], tuple[int, ...]]]:
    """(probability under the behaviour, states, actions) of all of them, from state 0."""
    for first, second, after in product(range(2), repeat=3):
        moved = 0.75 if after == first else 0.25
        yield BEHAVIOUR[0, first] * moved * BEHAVIOUR[after, second], (0, after), (first, second)


def true_value(policy: np.ndarray) -> float:
    """By backward induction."""
    last = (policy * REWARDS).sum(axis=1)
    moves = np.array([[0.75, 0.25], [0.25, 0.75]])  # [action, next state]
    return float(sum(policy[0, a] * (REWARDS[0, a] + GAMMA * moves[a] @ last) for a in range(2)))


def decisions(
    states: tuple[int, ...], actions: tuple[int, ...], target: np.ndarray = TARGET, behaviour: np.ndarray = BEHAVIOUR
) -> Decisions:
    pairs = list(zip(states, actions, strict=True))
    ratios = np.log([target[pair] / behaviour[pair] for pair in pairs])
    return Decisions(
        np.array([REWARDS[pair] for pair in pairs]), *joint_weights({"a": ratios}, {"a": np.arange(2)})["a"]
    )


@pytest.mark.parametrize("name", ["IS", "PDIS"])
def test_the_expectation_over_all_trajectories_is_the_value_of_the_policy(name: str) -> None:
    expected = sum(p * estimate([[decisions(s, a)]], GAMMA)[name].mean for p, s, a in trajectories())
    assert expected == pytest.approx(true_value(TARGET), abs=1e-12)
    assert abs(true_value(TARGET) - true_value(BEHAVIOUR)) > 0.05


def test_without_ratios_the_expectation_is_another() -> None:
    """The negative control: the weights matter."""
    plain = sum(p * (REWARDS[s[0], a[0]] + GAMMA * REWARDS[s[1], a[1]]) for p, s, a in trajectories())
    assert plain == pytest.approx(true_value(BEHAVIOUR))


def test_numbers_by_hand() -> None:
    """Ratios 2, 1/2 and rewards 1, 4; ratios 1/2, 1/2 and rewards 2, 8; gamma 1/2.

    IS: (1 * 3 + 1/4 * 6) / 2 = 2.25. PDIS: (2 * 1 + 1 * 2 + 1/2 * 2 + 1/4 * 4) / 2 = 3. WIS: 4.5 / 1.25 = 3.6.
    WPDIS: (2 * 1 + 1/2 * 2) / 2.5 + (1 * 2 + 1/4 * 4) / 1.25 = 1.2 + 2.4 = 3.6.
    """
    episodes = []
    for ratios, rewards in (([2, 0.5], [1, 4]), ([0.5, 0.5], [2, 8])):
        after, whole = joint_weights({"a": np.log(ratios)}, {"a": np.arange(2)})["a"]
        episodes.append([Decisions(np.array(rewards), after, whole)])
    found = {name: each.mean for name, each in estimate(episodes, 0.5).items()}
    assert found == pytest.approx({"IS": 2.25, "PDIS": 3.0, "WIS": 3.6, "WPDIS": 3.6})


def test_joint_weights_are_products_over_agents_up_to_the_next_decision() -> None:
    """A acts at steps 0 and 2, b at 1 and 3, c, which is not replaced, at 0: ratios of a 2 and 3, of b 5 and 7."""
    ratios = {"a": np.log([2.0, 3.0]), "b": np.log([5.0, 7.0]), "c": None}
    steps = {"a": np.array([0, 2]), "b": np.array([1, 3]), "c": np.array([0])}
    found = joint_weights(ratios, steps)
    for agent, after in (("a", [10, 210]), ("b", [30, 210]), ("c", [210])):
        np.testing.assert_allclose(np.exp(found[agent][0]), after)
        assert np.exp(found[agent][1]) == pytest.approx(210)


def test_two_agents_that_both_change_are_estimated_without_bias() -> None:
    """Each is paid by both actions: the expectation over all joint actions, in one step."""
    paid = np.array([[1.0, -2.0], [4.0, 0.5]])
    expected, true = 0.0, 0.0
    for one, two in product(range(2), repeat=2):
        ratios = {"a": np.log([TARGET[0, one] / BEHAVIOUR[0, one]]), "b": np.log([TARGET[1, two] / BEHAVIOUR[1, two]])}
        weights = joint_weights(ratios, {"a": np.arange(1), "b": np.arange(1)})
        both = [Decisions(np.array([paid[one, two]]), *weights[agent]) for agent in "ab"]
        expected += BEHAVIOUR[0, one] * BEHAVIOUR[1, two] * estimate([both])["PDIS"].mean
        true += TARGET[0, one] * TARGET[1, two] * 2 * paid[one, two]
    assert expected == pytest.approx(true)


def test_effective_sample_size() -> None:
    assert effective_sample_size([3.0] * 8) == pytest.approx(8)
    assert effective_sample_size([1000.0, 0.0, 0.0]) == pytest.approx(1)
    assert effective_sample_size(list(np.log([1, 2]))) == pytest.approx(9 / 5)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    random, held = np.random.default_rng(3), 0
    probabilities, states, actions = zip(*trajectories(), strict=True)
    every = [decisions(s, a) for s, a in zip(states, actions, strict=True)]
    for _ in range(100):
        drawn = random.choice(len(every), p=probabilities, size=60)
        interval = estimate([[every[i]] for i in drawn], GAMMA)["PDIS"].ci95
        assert interval is not None
        held += interval[0] <= true_value(TARGET) <= interval[1]
    assert 86 <= held <= 99
