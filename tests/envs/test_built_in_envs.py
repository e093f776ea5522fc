"""What the arena and Waterworld have in common: PettingZoo's contract, seeds, arguments, ends, errors, render modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.waterworld import WaterworldEnv
from marl_sb3.errors import ConfigError, EnvError

Make = Callable[..., Any]
# Where chance matters in almost every step.
CROWDED: dict[str, tuple[Make, dict[str, Any]]] = {
    "arena": (ArenaEnv, {"height": 1, "width": 3, "max_timesteps": 40}),
    "waterworld": (
        WaterworldEnv,
        {"n_evaders": 20, "n_poisons": 20, "n_sensors": 4, "max_cycles": 40, "obstacle_coord": None},
    ),
}
each_env = pytest.mark.parametrize("name", CROWDED)


def crowded(name: str, **more: Any) -> Any:
    make, settings = CROWDED[name]
    return make(**{**settings, **more})


def drawn(env: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Actions for all agents; in the arena, to the left or to the right."""
    if isinstance(env, ArenaEnv):
        return {agent: int(rng.choice([1, 3])) for agent in env.possible_agents}
    return {agent: rng.uniform(-1, 1, 2).astype(np.float32) for agent in env.possible_agents}


def played(env: Any, seed: int | None) -> list[Any]:
    """An episode with the same actions every time, as lists."""
    rng = np.random.default_rng(0)
    steps: list[Any] = [env.reset(seed=seed)]
    while env.agents:
        steps.append(env.step(drawn(env, rng)))
    return [[{agent: seen.tolist() for agent, seen in observations.items()}, *rest] for observations, *rest in steps]


@pytest.mark.filterwarnings("ignore:The old environment creation API has been deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (ArenaEnv, {}),
        (ArenaEnv, {"height": 1, "width": 2, "max_timesteps": 3}),
        (ArenaEnv, {"height": 2, "width": 3, "observe": "coordinates"}),
        (ArenaEnv, {"height": 2, "width": 3, "observe": "window", "window": 3}),
        (WaterworldEnv, {"n_evaders": 2, "n_poisons": 2, "n_sensors": 4, "max_cycles": 5}),
    ],
)
def test_passes_pettingzoos_api_tests(make: Make, settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import pettingzoo.test

    pettingzoo.test.parallel_api_test(make(**settings), num_cycles=250)
    pettingzoo.test.parallel_seed_test(lambda: make(**settings), num_cycles=50)
    assert "Passed Parallel API test" in capsys.readouterr().out


# Seeds


@each_env
def test_a_seed_determines_the_episode_of_a_new_env_and_of_a_used_one(name: str) -> None:
    used = crowded(name)
    first, other, again = (played(used, seed) for seed in (7, 8, 7))
    assert first == again == played(crowded(name), 7)
    assert first != other
    assert played(used, None) not in (first, other)


@each_env
def test_episodes_without_a_seed_go_on_from_the_first_seed(name: str) -> None:
    ones, others = ([played(env, seed) for seed in (7, None, None)] for env in (crowded(name), crowded(name)))
    assert ones == others
    first, second, third = ones
    assert first != second != third != first


@each_env
def test_without_any_seed_each_env_has_its_own_entropy(name: str) -> None:
    limit = {"arena": {"max_timesteps": 300}, "waterworld": {}}[name]
    assert played(crowded(name, **limit), None) != played(crowded(name, **limit), None)


@each_env
def test_episodes_do_not_touch_numpys_global_generator(name: str) -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002  # The global generator is the point.
    played(crowded(name), 7)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]  # noqa: NPY002


# Arguments and errors

SIZES = [(name, value) for name in ("height", "width", "max_timesteps") for value in (0, -3, True, 2.0, "5", None)]
CENTRES = "a list of [x, y] with numbers from 0 to 1, or null"


@pytest.mark.parametrize(
    ("make", "name", "value", "accepted"),
    [
        *((ArenaEnv, name, value, "an integer >= 1") for name, value in SIZES),
        *((ArenaEnv, "observe", value, "cells, coordinates or window") for value in ("rows", None, ["cells"])),
        *((ArenaEnv, "window", value, "an odd integer from 3 to 21") for value in (1, 4, 23, 7.0, True, None)),
        *((ArenaEnv, "render_mode", value, "one of human, rgb_array, ansi or None") for value in ("rgb", "", 3)),
        (WaterworldEnv, "render_mode", "ansi", "one of human, rgb_array or None"),
        (WaterworldEnv, "n_pursuers", 0, "an integer from 1 to 1000"),
        (WaterworldEnv, "n_pursuers", 2.0, "an integer from 1 to 1000"),
        (WaterworldEnv, "n_evaders", True, "an integer from 0 to 1000"),
        (WaterworldEnv, "max_cycles", "500", "an integer from 1 to 1000000000"),
        (WaterworldEnv, "radius", 0, "a number from 0.0001 to 0.1"),
        (WaterworldEnv, "local_ratio", 1.5, "a number from 0 to 1"),
        (WaterworldEnv, "food_reward", float("nan"), "a number from -1e+06 to 1e+06"),
        (WaterworldEnv, "speed_features", 1, "a boolean"),
        (
            WaterworldEnv, "obstacle_coord", [[0.5, 0.5], [0.1, 0.1]],
            "as many centres as n_obstacles (1), or null for random ones",
        ),
        *((WaterworldEnv, "obstacle_coord", value, CENTRES) for value in ([0.5, 0.5], [[0.5, 1.5]], "half")),
    ],
)  # fmt: skip
def test_an_argument_that_is_not_accepted_is_named(make: Make, name: str, value: Any, accepted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**{"observe": "window", name: value} if name == "window" else {name: value})
    assert str(caught.value) == f"{name} must be {accepted}; received {value!r}"
    assert caught.value.key == f"env.{name}"


@pytest.mark.parametrize(
    ("name", "action", "received"),
    [
        *(("arena", value, repr(value)) for value in (-1, 4, 1.0, "1", None, np.array([1]), np.float32(1))),
        ("waterworld", [1.5, 0.0], "[1.5, 0.0]"),
        ("waterworld", [np.nan, 0.0], "[nan, 0.0]"),
        ("waterworld", [0.0], "[0.0]"),
        ("waterworld", 3, "3"),
        ("waterworld", "left", "'left'"),
        ("waterworld", None, "None"),
    ],
)
def test_an_action_that_is_not_accepted_names_step_and_agent_and_moves_nobody(
    name: str, action: Any, received: str
) -> None:
    env = crowded(name)
    env.reset(seed=0)
    good = drawn(env, np.random.default_rng(0))
    env.step(good)
    before = env.state().tolist() if name == "arena" else env.batch.states.positions.tolist()
    first, last = env.possible_agents
    accepted = {"arena": "an integer in 0..3", "waterworld": "two numbers in -1..1"}[name]
    with pytest.raises(EnvError) as caught:
        env.step({**good, last: action})
    assert str(caught.value) == f"{name}, step 1: {last} must act with {accepted}; received {received}"
    with pytest.raises(EnvError, match=rf"step 1: {first} must act with .*; received no action"):
        env.step({last: good[last]})
    with pytest.raises(EnvError, match=f"no such agent: agent3; agents: {first}, {last}"):
        env.step({**good, "agent3": good[last]})
    assert before == (env.state().tolist() if name == "arena" else env.batch.states.positions.tolist())


@each_env
def test_all_agents_are_truncated_at_the_limit_and_leave(name: str) -> None:
    env = crowded(name, **{{"arena": "max_timesteps", "waterworld": "max_cycles"}[name]: 3})
    actions = drawn(env, np.random.default_rng(0))
    with pytest.raises(EnvError, match=r"step\(\) before the first reset\(\); call reset\(\) first"):
        env.step(actions)
    env.reset(seed=0)
    assert env.agents == env.possible_agents
    running, ended = dict.fromkeys(env.agents, False), dict.fromkeys(env.agents, True)
    assert [env.step(actions)[2:4] for _ in range(3)] == [(running, running), (running, running), (running, ended)]
    assert env.agents == []
    assert len(env.possible_agents) == 2
    for late in (actions, {}):
        with pytest.raises(EnvError, match=r"step\(\) after the end of the episode; call reset\(\) first"):
            env.step(late)


# Pictures; what is in them is in the tests of each env


@each_env
def test_render_without_a_mode_warns_and_draws_nothing(name: str) -> None:
    env = crowded(name)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="without a render_mode"):
        assert env.render() is None


@each_env
def test_human_mode_shows_reset_and_every_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame = pytest.importorskip("pygame")
    shown, pictures = (crowded(name, render_mode=mode) for mode in ("human", "rgb_array"))
    actions, seen = drawn(shown, np.random.default_rng(0)), []
    for take in (lambda env: env.reset(seed=0), lambda env: env.step(actions)):
        take(shown)
        take(pictures)
        seen.append(pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1))
        np.testing.assert_array_equal(seen[-1], pictures.render())
    assert (seen[0] != seen[1]).any()
    assert shown.render() is None
    assert pygame.display.get_caption()[0] == name
    shown.close()
    assert pygame.display.get_surface() is None
