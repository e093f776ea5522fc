"""Compiled envs do what the envs of Gymnasium do in whose place they are; where they would not, these are used."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import acrobot, cartpole, pendulum, utils
from gymnasium.wrappers import TimeLimit
from mpe2._mpe_utils import core
from mpe2.simple_spread import simple_spread
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper
from small_runs import broken, start

import marl_sb3
from marl_sb3 import make_vec_env, register_env
from marl_sb3.core.envs.registry import REGISTERED, env_factory, make_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env.batched_vec_env import BatchedVecEnv
from marl_sb3.core.vec_env.separate_envs import SyncVecEnv
from marl_sb3.doors import imported
from marl_sb3.envs.arena import ArenaEnv, rules
from marl_sb3.envs.compiled.originals import KNOWN
from marl_sb3.envs.compiled.random import generator_of, words_of
from marl_sb3.envs.compiled.twins import require_same
from marl_sb3.envs.finding import TWINS as COMPILED
from marl_sb3.envs.waterworld import WaterworldEnv
from marl_sb3.errors import CheckpointError
from marl_sb3.evaluate import main as evaluate
from marl_sb3.extensions.data.dataset import read_policy_data

STEPS = 500  # of 4 envs each
STEPS_OF_PARTICLES = 150  # two episodes and more; the originals take a millisecond for a step
TAXI = "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"
TWINS: dict[str, tuple[str, dict[str, Any]]] = {
    "cart pole": ("CartPole-v1", {}),
    "cart pole v0": ("CartPole-v0", {"max_episode_steps": 12}),
    "acrobot": ("Acrobot-v1", {}),
    "pendulum": ("Pendulum-v1", {}),
    "pendulum on the moon": ("Pendulum-v1", {"g": 1.62, "max_episode_steps": 7}),
    "mountain car": ("MountainCar-v0", {}),
    "mountain car that must be fast": ("MountainCar-v0", {"goal_velocity": 0.01}),
    "continuous mountain car": ("MountainCarContinuous-v0", {}),
    "continuous mountain car that must be fast": ("MountainCarContinuous-v0", {"goal_velocity": 0.02}),
    "lake": ("FrozenLake-v1", {}),
    "large lake": ("FrozenLake8x8-v1", {}),
    "large lake by name": ("FrozenLake-v1", {"map_name": "8x8", "max_episode_steps": 20}),
    "lake that is not slippery": ("FrozenLake-v1", {"is_slippery": False, "reward_schedule": (5, -3, -0.25)}),
    "own lake": ("FrozenLake-v1", {"desc": ["SFSFF", "FHFFG"], "success_rate": 0.7}),
    "taxi": (TAXI, {}),
    "taxi without end": (TAXI, {"max_episode_steps": -1}),
    "cart pole, other rewards": ("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": -1}),
    "spread": ("mpe2/simple_spread-v3", {}),
    "five agents spread": ("mpe2/simple_spread-v3", {"N": 5, "local_ratio": 0.2, "max_cycles": 60}),
    "reference": ("mpe2/simple_reference-v3", {"local_ratio": 0.3}),
    "speaker and listener": ("mpe2/simple_speaker_listener-v4", {}),
    "tag": ("mpe2/simple_tag-v3", {}),
    "larger tag until all are caught": (
        "mpe2/simple_tag-v3",
        {"num_good": 2, "num_adversaries": 4, "num_obstacles": 1, "max_cycles": 70, "terminate_on_success": True},
    ),
    "tag without obstacles": ("mpe2/simple_tag-v3", {"num_obstacles": 0, "num_adversaries": 1}),
}


# Other numbers in the code of one of the others: the proof has them, too.
ALIKE = ("large lake by name", "five agents spread", "mountain car that must be fast")


@pytest.mark.parametrize("name", [name for name in TWINS if name not in ALIKE])
def test_twins_do_what_the_originals_do(name: str) -> None:
    env_id, env_kwargs = TWINS[name]
    steps = STEPS_OF_PARTICLES if env_id.startswith("mpe2/") else STEPS
    require_same(env_id, steps, seed=1, n_envs=4, **env_kwargs)
    batch: Any = make_vec_env(env_id, 2, vectorizer="batched", env_kwargs=env_kwargs).batch  # type: ignore[attr-defined]
    seen = []
    for each in (pickle.loads(pickle.dumps(batch)), deepcopy(batch), batch):
        each.reset([0, 1], [3, 4])
        seen.append(each.observations())
    np.testing.assert_equal(seen[:2], [seen[2]] * 2)


@pytest.mark.proof
@pytest.mark.parametrize("name", TWINS)
def test_twins_do_what_the_originals_do_for_long(name: str) -> None:
    env_id, env_kwargs = TWINS[name]
    require_same(env_id, 25_000, seed=2, n_envs=4, **env_kwargs)


BEGUN = {**{name: TWINS[name] for name in TWINS if name not in ALIKE}, "arena": ("arena", {"max_timesteps": 70})}
SEEDS = (*range(60), 2**63 - 1, 2**63)


@pytest.mark.parametrize("name", BEGUN)
def test_episodes_begin_in_compiled_code_as_in_the_original(name: str) -> None:
    env_id, env_kwargs = BEGUN[name]
    batch: Any = make_vec_env(env_id, 1, env_kwargs=env_kwargs).batch
    original: Any = make_env(env_factory(env_id), 0, env_kwargs)
    raw = getattr(original, "env", original).unwrapped
    for seed in SEEDS:
        batch.states["timestep"] = 7
        batch.reset([0], [seed])
        expected, _ = original.reset(seed=seed)
        if name != "tag without obstacles":  # the twin has a place for one, and nothing is drawn later
            assert batch.rngs[0].tolist() == words_of(raw._rng if env_id == "arena" else raw.np_random).tolist()
        of_groups = batch.observations() if len(batch.groups) > 1 else (batch.observations(),)
        for group, seen in zip(batch.groups, of_groups, strict=True):
            for place, agent in enumerate(group.agents):
                np.testing.assert_array_equal(seen[0, place], expected[agent])
        assert batch.states.timestep == 0


@pytest.mark.parametrize("env_kwargs", [{}, {"n_obstacles": 3, "obstacle_coord": None}])
def test_ponds_begin_as_numpy_draws_them(env_kwargs: dict[str, Any]) -> None:
    batch: Any = make_vec_env("waterworld", 1, env_kwargs=env_kwargs).batch
    own, states = batch.template.parameters, batch.states
    for seed in SEEDS:
        states["timesteps"] = 7
        batch.reset([0], [seed])
        rng = np.random.default_rng(seed)
        places, directions = rng.random((2, 2, own.n_objects))
        velocities = (2 * directions - 1) * states["max_speeds"][0]
        velocities[:, : own.n_pursuers] *= 0
        obstacles = np.transpose(own.obstacle_coord) if own.obstacle_coord else rng.random((2, own.n_obstacles))
        found = [states[name][0].tobytes() for name in ("positions", "velocities", "obstacles")]
        assert found == [places.tobytes(), velocities.tobytes(), np.ascontiguousarray(obstacles).tobytes()]
        assert not any(states[name].any() for name in ("pushes", "touching", "counters", "poisoned", "timesteps"))
        assert batch.rngs[0].tolist() == words_of(rng).tolist()


def _generator_that_draws(word: int) -> np.random.Generator:
    """Return a generator of which the next word is this one: that of 128 bits for which PCG64 returns it."""
    multiplier, step, high = (0x2360ED051FC65DA4 << 64) + 0x4385DF649FCCF645, 1, 12345  # of a turn of 0
    after = (high << 64) + (high ^ word)
    state = (after - step) * pow(multiplier, -1, 1 << 128) % (1 << 128)
    return generator_of(np.array([state >> 64, state % (1 << 64), 0, step], np.uint64))


def test_an_angle_whose_sine_is_rounded_twice_in_float64_begins_an_episode_as_in_numpy() -> None:
    rng = _generator_that_draws(round((0.1 + 0.00044363295) / 0.2 * 2**53) << 11)
    batch: Any = make_vec_env("Acrobot-v1").batch
    batch.begin_with(0, rng)
    place = rng.uniform(low=-0.1, high=0.1, size=4).astype(np.float32)
    assert place[0] == np.float32(0.00044363295)
    assert batch.states.place.tolist() == [place.tolist()]
    shown = [np.cos(place[0]), np.sin(place[0]), np.cos(place[1]), np.sin(place[1]), place[2], place[3]]
    assert batch.states.shown.tolist() == [shown]
    assert batch.rngs[0].tolist() == words_of(rng).tolist()


PLACES = {  # random ones from all over the state space, where random actions would hardly lead
    "Acrobot-v1": ([-3.2, -3.2, -13.0, -29.0], [3.2, 3.2, 13.0, 29.0]),
    "CartPole-v1": ([-2.5, -3.0, -0.25, -3.0], [2.5, 3.0, 0.25, 3.0]),
    "MountainCar-v0": ([-1.3, -0.08], [0.7, 0.08]),
    "MountainCarContinuous-v0": ([-1.3, -0.08], [0.7, 0.08]),
    "Pendulum-v1": ([-30.0, -9.0], [30.0, 9.0]),
}


@pytest.mark.parametrize("env_id", PLACES)
def test_single_steps_from_anywhere_are_those_of_the_originals(env_id: str) -> None:
    rng, number = np.random.default_rng(0), 3000
    original: Any = gymnasium.make(env_id).unwrapped
    twin: Any = imported(COMPILED[env_id])
    batch: Any = twin(partial(gymnasium.make, env_id))["make_batched"](number)
    batch.reset(range(number), range(number))
    low, high = np.array(PLACES[env_id])
    box = isinstance(original.action_space, gymnasium.spaces.Box)
    drawn = rng.normal(0, 2, (number, 1)) if box else rng.integers(original.action_space.n, size=number)
    actions = drawn.astype(original.action_space.dtype)
    expected = []
    for index in range(number):
        place = rng.uniform(low, high)
        original.reset(seed=index)
        if "Continuous" in env_id:  # episodes begin in float64 and at rest, and go on in float32
            place = place.astype(np.float32) if index % 2 else place * [1, 0]
        original.state = place
        for name, value_in in twin.state.items():
            batch.states[name][index] = value_in(original)
        observation, reward, terminated, *_ = original.step(actions[index])
        expected.append((observation, reward, terminated))
    step = batch.step(actions[:, None])
    observations, rewards, terminated = zip(*expected, strict=True)
    np.testing.assert_array_equal(batch.observations()[:, 0], np.array(observations))
    np.testing.assert_array_equal(step.rewards[:, 0], rewards)
    np.testing.assert_array_equal(step.terminated[:, 0], terminated)
    assert len(set(terminated)) == 2 or env_id == "Pendulum-v1"


def test_masks_of_the_taxi_are_those_of_the_original_everywhere() -> None:
    original: Any = gymnasium.make(TAXI).unwrapped
    batch: Any = imported(COMPILED[TAXI])(partial(gymnasium.make, TAXI))["make_batched"](500)
    batch.states.place = range(500)
    expected = [original.action_mask(place).astype(np.bool_).tolist() for place in range(500)]
    assert batch.action_masks()[:, 0].tolist() == expected


def test_what_a_twin_does_not_cover_is_stepped_one_by_one() -> None:
    for kind, why_not, settings in (
        (BatchedVecEnv, None, {}),
        (SyncVecEnv, None, {"vectorizer": "sync"}),
        (SyncVecEnv, "render_mode is 'rgb_array'", {"render_mode": "rgb_array"}),
    ):
        made = make_vec_env("CartPole-v1", 2, **settings)  # type: ignore[arg-type]
        assert (type(made), made.why_not_batched) == (kind, why_not)
    with pytest.raises(marl_sb3.errors.ConfigError, match="render_mode is 'rgb_array'; use the sync vectorizer"):
        make_vec_env("CartPole-v1", 2, vectorizer="batched", render_mode="rgb_array")


def test_an_env_that_the_user_registers_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    register_env("CartPole-v1", lambda: gymnasium.make("CartPole-v1"))
    assert isinstance(make_vec_env("CartPole-v1"), SyncVecEnv)
    REGISTERED.clear()
    monkeypatch.setitem(gymnasium.registry, "CartPole-v1", replace(gymnasium.spec("Acrobot-v1"), id="CartPole-v1"))
    assert isinstance(make_vec_env("CartPole-v1"), SyncVecEnv)


def _paid_late(step: Any) -> Any:
    def paid_late(self: Any, action: Any) -> Any:
        self.count = getattr(self, "count", 0) + 1
        observation, reward, *ends = step(self, action)
        return (observation, reward + 100.0 * (self.count > 60), *ends)

    return paid_late


def _registered(entry_point: Any) -> Any:
    return replace(gymnasium.spec("CartPole-v1"), entry_point=entry_point, max_episode_steps=None)


def _long_pole(**arguments: Any) -> Any:
    env = cartpole.CartPoleEnv(**arguments)
    env.length = 0.6
    return env


def _own_method(**arguments: Any) -> Any:
    env: Any = cartpole.CartPoleEnv(**arguments)
    env.step = partial(_paid_late(cartpole.CartPoleEnv.step), env)
    return env


def _own_limit(**arguments: Any) -> Any:
    env: Any = TimeLimit(cartpole.CartPoleEnv(**arguments), 9)
    env.step = partial(_paid_late(TimeLimit.step), env)
    return env


class _HeavyCart(cartpole.CartPoleEnv):
    pass


SPREAD = "mpe2/simple_spread-v3"
# What replaces a part of an original: the env, what is said of it, and the owner, the name and the value of the part.
REPLACED: dict[str, tuple[str, str, Any, str, Any]] = {
    "step": ("CartPole-v1", "CartPoleEnv.step", cartpole.CartPoleEnv, "step", _paid_late(cartpole.CartPoleEnv.step)),
    "one more method": ("CartPole-v1", "action_masks", cartpole.CartPoleEnv, "action_masks", lambda _: np.ones(2)),
    "class": ("CartPole-v1", "CartPoleEnv", cartpole, "CartPoleEnv", _HeavyCart),
    "subclass": ("CartPole-v1", "_HeavyCart", gymnasium.registry, "CartPole-v1", _registered(_HeavyCart)),
    "attribute": ("CartPole-v1", "CartPoleEnv.length", gymnasium.registry, "CartPole-v1", _registered(_long_pole)),
    "method of an env": (
        "CartPole-v1",
        "CartPoleEnv.step",
        gymnasium.registry,
        "CartPole-v1",
        _registered(_own_method),
    ),
    "method of a wrapper": ("CartPole-v1", "of a wrapper", gymnasium.registry, "CartPole-v1", _registered(_own_limit)),
    "base": ("CartPole-v1", "Env.reset", gymnasium.Env, "reset", lambda self, **_: None),
    "wrapper": ("CartPole-v1", "TimeLimit.step", TimeLimit, "step", _paid_late(TimeLimit.step)),
    "function of a module": ("CartPole-v1", "utils", utils, "maybe_parse_reset_bounds", lambda *_: (-1, 1)),
    "module": ("CartPole-v1", "cartpole.utils", cartpole, "utils", acrobot),
    "imported function": ("Acrobot-v1", "acrobot.cos", acrobot, "cos", np.sin),
    "constant of a class": ("Acrobot-v1", "AcrobotEnv.LINK_MASS_1", acrobot.AcrobotEnv, "LINK_MASS_1", 1.5),
    "constant of a module": ("Pendulum-v1", "pendulum.DEFAULT_X", pendulum, "DEFAULT_X", 3.0),
    "a built-in name": ("Pendulum-v1", "pendulum.float", pendulum, "float", np.float32),
    "rewards of particles": (SPREAD, "Scenario.reward", simple_spread.Scenario, "reward", lambda *_: 1.0),
    "world of particles": (SPREAD, "World.integrate_state", core.World, "integrate_state", lambda *_: None),
    "layer of particles": (SPREAD, "AssertOutOfBoundsWrapper", AssertOutOfBoundsWrapper, "step", lambda *_: None),
    "rewards of the arena": ("arena", "ArenaEnv.step", ArenaEnv, "step", lambda *_: None),
    "rules of the arena": ("marl_sb3/arena-v0", "rules.step", rules, "step", lambda *_: None),
    "pond": ("waterworld", "WaterworldEnv.step", WaterworldEnv, "step", lambda *_: None),
    "version": ("CartPole-v1", "has no compiled one", KNOWN, "gymnasium.envs.classic_control.cartpole", ("0",)),
}


@pytest.mark.parametrize("name", REPLACED)
def test_an_original_of_which_a_part_is_replaced_is_stepped_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env_id, said, owner, part, value = REPLACED[name]
    if isinstance(owner, dict):
        monkeypatch.setitem(owner, part, value)
    else:
        monkeypatch.setattr(owner, part, value, raising=False)
    assert isinstance(made := make_vec_env(env_id), SyncVecEnv)
    assert said in str(made.why_not_batched)
    monkeypatch.undo()
    assert isinstance(make_vec_env(env_id), BatchedVecEnv)


def test_maps_that_are_drawn_at_random_have_no_twin() -> None:
    assert isinstance(make_vec_env("FrozenLake-v1", desc=None, map_name=None), SyncVecEnv)


def test_episodes_begin_with_options() -> None:
    sync, batched = (make_vec_env("CartPole-v1", 2, 3, name) for name in ("sync", "batched"))
    options = [{"low": -0.2, "high": 0.2}, {}]
    steps = [env.reset(options=options) for env in (sync, batched)]
    np.testing.assert_array_equal(steps[0].observations[0], steps[1].observations[0])
    actions = [np.zeros((2, 1), np.int64)]
    np.testing.assert_array_equal(sync.step(actions).observations[0], batched.step(actions).observations[0])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", TAXI])
def test_a_state_goes_on_within_episodes_also_in_workers(env_id: str) -> None:
    rng = np.random.default_rng(0)
    first = make_vec_env(env_id, 4, 5)
    actions = [[rng.integers(2, size=(4, 1))] for _ in range(40)]
    first.reset()
    for each in actions[:20]:
        first.step(each)
    state = StateReader(first.get_state())
    others = make_vec_env(env_id, 4, 6), make_vec_env(env_id, 4, 6, n_workers=2)
    try:
        assert [other.set_state(state) for other in others] == [{}, {}]
        for each in actions[20:]:
            expected = first.step(each)
            for other in others:
                step = other.step(each)
                np.testing.assert_array_equal(step.observations[0], expected.observations[0])
                np.testing.assert_array_equal(step.rewards, expected.rewards)
                assert [step.infos[index] for index in range(4)] == [expected.infos[index] for index in range(4)]
                masks, known = step.action_masks[0], expected.action_masks[0]
                assert (masks is known) or np.array_equal(masks, known)
    finally:
        others[1].close()


def test_a_place_outside_of_the_map_is_refused() -> None:
    env = make_vec_env("FrozenLake-v1")
    env.reset()
    state: Any = env.get_state()
    state["own"]["place"] = np.array([16])
    with pytest.raises(CheckpointError, match="accepted: numbers from 0 to 15"):
        env.set_state(StateReader(state))


def test_attributes_of_the_originals_are_not_set_in_vain() -> None:
    env = make_vec_env("CartPole-v1")
    with pytest.raises(AttributeError, match="no attribute 'gravity' that can be set; use vectorizer='sync'"):
        env.call("set_wrapper_attr", [0], "gravity", 1.6)


def test_runs_of_twins_are_recorded_evaluated_and_filmed(in_tmp: Path) -> None:
    run = start("run", iterations=4, env="CartPole-v1", record="episodes")
    assert isinstance(run.algorithm.env, BatchedVecEnv)
    by_policy = read_policy_data("episodes/shared")
    assert sum(len(episode.rewards) for episode in by_policy.episodes) > 50
    assert evaluate(["run", "--episodes", "2", "--video", "film.gif"]) == 0
    assert (in_tmp / "film.gif").stat().st_size > 1000


KINDS: dict[str, dict[str, Any]] = {
    "sync": {"vectorizer": "sync"},
    "batched": {},
    "sync workers": {"vectorizer": "sync", "n_workers": 2},
    "batched workers": {"n_workers": 2},
}


@pytest.mark.parametrize(
    ("saved", "restored"),
    [("sync", "batched"), ("batched", "sync"), ("sync", "batched workers"), ("batched", "sync workers")],
)
def test_states_of_originals_and_twins_lead_to_new_episodes_of_the_others(saved: str, restored: str) -> None:
    first, other = (make_vec_env("CartPole-v1", 2, 4, **KINDS[name]) for name in (saved, restored))
    try:
        first.reset()
        for _ in range(12):
            first.step([np.ones((2, 1), np.int64)])
        reasons = other.set_state(StateReader(first.get_state()))
        assert sorted(reasons) == [0, 1]
        assert all("stepped one by one" in why or "stepped in a batch" in why for why in reasons.values())
        first.reset()  # the episodes that would come next
        np.testing.assert_array_equal(other.latest.observations[0], first.latest.observations[0])
        assert other.episode_seeds([0, 1]) == first.episode_seeds([0, 1])
    finally:
        first.close()
        other.close()


def test_a_run_that_stepped_envs_one_by_one_goes_on_with_new_episodes(in_tmp: Path) -> None:
    broken("run", env="CartPole-v1", vectorizer="sync")
    config = in_tmp / "run" / "config.yaml"
    config.write_text(config.read_text().replace("vectorizer: sync", "vectorizer: auto"))
    run = marl_sb3.train(resume="run")
    assert run.algorithm.iteration == 8
