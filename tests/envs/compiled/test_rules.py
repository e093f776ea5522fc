"""What compiled rules accept and refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compiled_toys import RULES, Drifting, Uneven, UnevenCategories, begin
from gymnasium import spaces

from marl_sb3 import make_vec_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.compiled.batch import CompiledBatch
from marl_sb3.envs.compiled.twins import require_same
from marl_sb3.envs.waterworld import WaterworldEnv
from marl_sb3.errors import ConfigError, EnvError

COIN, LINE = spaces.Discrete(2), spaces.Box(0, 1, (2,), np.float32)


def within() -> Any:
    scale = 2.0

    def observe(state: Any, observations: Any) -> None:
        observations[0, 0] = scale

    return observe


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"observation_space": spaces.Dict({})}, "the space is Dict.*; accepted: a Box, Discrete or MultiDiscrete"),
        ({"observation_space": spaces.Box(0, 1, (2,), np.float64)}, "are float64; accepted: float32 in a Box"),
        ({"action_space": spaces.MultiDiscrete([2, 3], dtype=np.int32)}, "are int32; accepted: .*int64"),
        ({"action_space": {"b": COIN, "a": COIN}}, "spaces of b, a; accepted: one for each of a, b, in this order"),
        ({"action_space": {"a": COIN, "b": LINE}}, "agents have Discrete.* and Box.*; accepted: a Box for each"),
        ({"observe": within()}, "within.<locals>.observe uses variables of a function around it; accepted: a function"),
        ({"observe": None}, "accepted: `step` and `observe`, or `run`"),
        ({"run": within()}, "accepted: `step` and `observe`, or `run`"),
        ({"run": begin, "step": None, "observe": None, "start": begin}, "`start` is given; accepted: beside `step`"),
        ({"begin": None}, "nothing begins episodes; accepted: `begin`, `start` or `run`"),
        ({"allow": within()}, "`allow` is given; accepted: beside `step` and `observe`"),
        ({"counts": True}, "`counts` is given; .*with the fields `timestep` and `limit`"),
    ],
)
def test_rules_that_cannot_be_compiled_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"compiled rules: .*{words}"):
        replace(RULES, **changed)


@pytest.mark.parametrize("env", [Uneven, UnevenCategories])
def test_agents_with_different_spaces_do_what_they_do_in_plain_python(env: type[Uneven]) -> None:
    require_same(env, 300)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_state_of_agents_with_different_spaces_goes_on_within_episodes(n_workers: int) -> None:
    rng = np.random.default_rng(0)
    first, other = make_vec_env(Uneven, 4, 5), make_vec_env(Uneven, 4, 6, n_workers=n_workers)
    actions = [[rng.integers(2, size=(4, 2)), rng.integers(2, size=(4, 1, 2))] for _ in range(20)]
    first.reset()
    for each in actions[:9]:
        first.step(each)
    assert not first.latest.episode_done.all()
    try:
        assert other.set_state(StateReader(first.get_state())) == {}
        for each in actions[9:]:
            steps = first.step(each), other.step(each)
            assert [[seen.tolist() for seen in step.observations] for step in steps[:1]] == [
                [seen.tolist() for seen in step.observations] for step in steps[1:]
            ]
            assert steps[0].rewards.tolist() == steps[1].rewards.tolist()
    finally:
        other.close()


def test_an_action_out_of_range_names_the_agent_that_has_such_actions() -> None:
    env = make_vec_env(Uneven, 2)
    env.reset()
    with pytest.raises(EnvError, match=r"env 1, step 0: right must act with an integer in 0\.\.1; received 2"):
        env.step([np.array([[0, 0], [0, 2]]), np.zeros((2, 1, 2), np.int64)])
    with pytest.raises(EnvError, match=r"env 0, step 0: guide must act in MultiDiscrete\(\[2 3\]\); received \[0, 3\]"):
        env.step([np.zeros((2, 2), np.int64), np.array([[[0, 3]], [[0, 0]]])])


@pytest.mark.parametrize("env", [ArenaEnv, WaterworldEnv, Drifting])
def test_what_is_brought_back_is_observed_after_a_step_that_nobody_has_looked_at(env: Any) -> None:
    batch: CompiledBatch = env.make_batched(1)
    batch.reset([0], [0])
    before, seen = batch.get_state(), batch.observations().tolist()
    for _ in range(5):
        batch.step(np.zeros_like(batch.actions))
    batch.set_state(StateReader(before))
    assert batch.observations().tolist() == seen
    batch.step(np.zeros_like(batch.actions))
    batch.reset([0], [0])
    assert batch.observations().tolist() == seen
