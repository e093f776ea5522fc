"""Sequences of transitions: which ones a replay buffer draws, with which states, and how much each counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import RandomEnv

import marl_sb3
from marl_sb3.core.off_policy.replay import Transitions
from marl_sb3.extensions.memory.sequences import SequenceBatch, SequenceBuffer, SequenceDictBuffer

NUMBERS = spaces.Box(-1e6, 1e6, (1,))
PARTS = spaces.Dict({"x": NUMBERS, "y": NUMBERS})


class Filled:
    """A buffer of `rows` rows, and what was put into it.

    The transition `number` of a row is from the observation [1000 * row + number] to that and 0.5, or to the next one
    if the episode goes on; it is paid its number, and its recurrent state is the number, too.
    """

    def __init__(self, rows: int, lines: int, space: Any = NUMBERS, **sizes: Any) -> None:
        kind: Any = SequenceBuffer if space is NUMBERS else SequenceDictBuffer
        sizes = {"burn_in": 2, "sequence_length": 3, "gamma": 0.5, **sizes}
        states = {"num_states": 2, "state_shape": (1, 2), "kept_states": [0, 1]}
        self.buffer = kind(lines * rows, space, spaces.Discrete(9), device="cpu", n_envs=rows, **{**states, **sizes})
        self.space = space
        self.ends: list[dict[int, str]] = [{} for _ in range(rows)]  # of each row: number -> how the episode ended
        self.counts = [0] * rows

    def add(self, row: int, end: str = "") -> None:
        number = self.counts[row]
        self.counts[row] += 1
        seen = np.array([[1000.0 * row + number]], np.float32)
        following = seen + (0.5 if end in ("terminated", "truncated") else 1)
        if self.space is PARTS:
            seen, following = ({"x": each, "y": -each} for each in (seen, following))  # type: ignore[assignment]
        ended, truncated = (np.array([end in kinds]) for kinds in (("terminated", "truncated"), ("truncated",)))
        states = np.full((1, 2, 1, 2), number, np.float32) * np.array([1, -1])[None, :, None, None]
        rewards = np.array([number], np.float32)
        self.buffer.add_transitions(
            Transitions(
                seen, following, np.array([number % 9]), rewards, ended, truncated, np.array([row]), None, states
            )
        )
        if end == "broken off":
            self.buffer.break_off(np.arange(len(self.counts)) == row)
        if end:
            self.ends[row][number] = end

    def goes_on(self, row: int, number: int) -> bool:
        return number not in self.ends[row] and number + 1 < self.counts[row]

    def oldest(self, row: int) -> int:
        return max(self.counts[row] - self.buffer.buffer_size, 0)

    def episode_start(self, row: int, number: int) -> int:
        while number > self.oldest(row) and self.goes_on(row, number - 1):
            number -= 1
        return number


PLANS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["", "", "", "", "terminated", "truncated", "broken off"])),
    min_size=1,
    max_size=60,
)
SIZES = st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 12))


@settings(max_examples=80, deadline=None)
@given(plan=PLANS, sizes=SIZES, is_dict=st.booleans())
def test_sequences_are_of_one_row_and_one_episode_with_their_states_and_returns(
    plan: list[tuple[int, str]], sizes: tuple[int, int, int, int], is_dict: bool
) -> None:
    """Rows act in any order, and often in none; all is worked out by loops over single transitions."""
    burn_in, length, n_steps, lines = sizes
    filled = Filled(3, lines, PARTS if is_dict else NUMBERS, burn_in=burn_in, sequence_length=length, n_steps=n_steps)
    for row, end in plan:
        filled.add(row, end)
    np.random.seed(len(plan))  # noqa: NPY002 - SB3's generator
    batch = filled.buffer.sample(20)
    if is_dict:
        np.testing.assert_array_equal(batch.observations["y"], -batch.observations["x"])
        batch = batch._replace(observations=batch.observations["x"], burn_in=batch.burn_in["x"])
    assert filled.buffer.num_drawn == int((batch.weights > 0).sum())
    for place in range(20):
        check(filled, batch, place, burn_in, length, n_steps)


def check(filled: Filled, batch: SequenceBatch, place: int, burn_in: int, length: int, n_steps: int) -> None:
    row, first = divmod(int(batch.observations[0, place, 0]), 1000)
    learned = int((batch.weights[:, place] > 0).sum())
    assert 1 <= learned <= length
    np.testing.assert_allclose(batch.weights[:learned, place], 1 / (20 * learned), rtol=1e-6)
    assert filled.oldest(row) <= first
    assert all(filled.goes_on(row, number) for number in range(first, first + learned - 1))
    burnt = int(batch.burn_in_lengths[place])
    assert burnt == min(burn_in, first - filled.episode_start(row, first))
    seen = [1000 * row + number for number in range(first - burnt, first)]
    assert batch.burn_in[:burnt, place, 0].tolist() == seen
    assert all(
        (state[:, place] == sign * (first - burnt)).all() for state, sign in zip(batch.states, (1, -1), strict=True)
    )
    for step in range(learned):
        number, steps = first + step, 1
        while steps < n_steps and filled.goes_on(row, number + steps - 1):
            steps += 1
        last = number + steps - 1
        assert batch.actions[step, place, 0] == number % 9
        returned = sum(0.5**ahead * (number + ahead) for ahead in range(steps))
        assert batch.returns[step, place] == pytest.approx(returned)
        over = filled.ends[row].get(last)
        assert batch.discounts[step, place] == (0 if over == "terminated" else 0.5**steps)
        ended = over in ("terminated", "truncated")
        following = batch.observations[batch.following[step, place], place, 0]
        assert following == 1000 * row + last + (0.5 if ended else 1)
        # It is unrolled to there from this observation, one after the other.
        assert batch.following[step, place] == step + steps
        assert batch.observations[step, place, 0] == 1000 * row + number


def test_each_transition_counts_the_same_also_at_the_ends_of_episodes() -> None:
    """Episodes of 1, 2 and 7 transitions of one row; 4 of a running one of the other."""
    filled = Filled(2, 20, burn_in=1, sequence_length=4)
    for end in (0, 2, 9):
        for number in range(filled.counts[0], end + 1):
            filled.add(0, "terminated" if number == end else "")
    for _ in range(4):
        filled.add(1)
    np.random.seed(0)  # noqa: NPY002
    batch = filled.buffer.sample(20_000)
    numbers = batch.observations[: len(batch.weights), :, 0].numpy().astype(int)
    counted = np.bincount(numbers.flatten(), batch.weights.numpy().flatten())
    assert np.count_nonzero(counted) == 14
    np.testing.assert_allclose(counted[counted > 0], 1 / 14, rtol=0.06)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("name", ["RecurrentDQN", "RecurrentSAC"])
def test_the_memory_that_states_take_is_known_before(name: str, cell: str) -> None:
    kind = getattr(marl_sb3, name)
    network: dict[str, Any] = {"lstm_hidden_size": 5, "n_lstm_layers": 2, "cell": cell}
    actions = spaces.Discrete(2) if name == "RecurrentDQN" else NUMBERS
    env = RandomEnv(NUMBERS, actions)
    states = kind("MlpPolicy", env, buffer_size=9, policy_kwargs=network, device="cpu").replay_buffer.states
    assert states.nbytes == 9 * kind.bytes_per_transition({"policy_kwargs": network})
    assert kind.bytes_per_transition({}) == {"RecurrentDQN": 2048, "RecurrentSAC": 4096}[name]


def test_states_of_a_gru_are_kept_without_its_cell_state() -> None:
    filled = Filled(1, 5, kept_states=[0])
    for _ in range(3):
        filled.add(0)
    assert filled.buffer.states.shape == (5, 1, 1, 1, 2)
    lines = np.array([2])
    batch = filled.buffer.sequences_at(lines, np.zeros(1, int), np.zeros(1, int), None)
    assert [state.flatten().tolist() for state in batch.states] == [[0, 0], [0, 0]]
    batch = filled.buffer.sequences_at(lines, np.zeros(1, int), np.zeros(1, int), None)
    assert isinstance(batch.observations, th.Tensor)
