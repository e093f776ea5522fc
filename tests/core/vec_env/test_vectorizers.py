"""What every vectorizer promises, on the env that all of them can step. One at the door joins these tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trainings import without_clock
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv, VecEnvRequest
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.core.vec_env.separate_envs import SyncVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.doors import STEPPED_ELSEWHERE, VECTORIZERS
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.errors import CheckpointError, ConfigError, VecEnvOrderError
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint, write_checkpoint

AGENTS = ("agent1", "agent2")
REFERENCE = "sync"  # a plain loop over the envs
ALL = [
    *(name for name in VECTORIZERS.names() if name not in ("auto", *STEPPED_ELSEWHERE)),
    "workers",
    "batched-workers",
]
OTHERS = [name for name in ALL if name != REFERENCE]


def plain(step: VecStep, num_envs: int) -> dict[str, Any]:
    """Everything in a step, as lists and dictionaries."""
    return {
        "observations": step.observations[0].tolist(),
        "observation dtype": step.observations[0].dtype,
        "rewards": step.rewards.tolist(),
        "reward dtype": step.rewards.dtype,
        "flags": [
            getattr(step, name).tolist()
            for name in ("terminated", "truncated", "acted", "to_act", "in_play", "stepped", "episode_done")
        ],
        "env state": None if step.env_state is None else step.env_state.tolist(),
        "final env states": {index: state.tolist() for index, state in step.final_env_states.items()},
        "final": {place: obs.tolist() for place, obs in step.final_observations.items()},
        "infos": [step.infos[index] for index in range(num_envs)],
        "values": [np.nan_to_num(step.infos.values(agent, "collision"), nan=-1).tolist() for agent in AGENTS],
        "reset infos": dict(step.reset_infos),
    }


@pytest.mark.parametrize("vectorizer", ALL)
def test_arrays_have_their_shapes_and_types(vectorizer: str) -> None:
    env = make_vec_env("arena", n_envs=3, seed=0, vectorizer=vectorizer)
    for take in (env.reset, lambda: env.step([np.zeros((3, 2), dtype=np.int64)])):
        step = take()
        assert step.observations[0].shape == (3, 2, *env.groups[0].observation_space.shape)
        assert step.observations[0].dtype == env.groups[0].observation_space.dtype
        assert (step.rewards.shape, step.rewards.dtype) == ((3, 2), np.float32)
        flags = [step.terminated, step.truncated, step.acted, step.to_act, step.in_play]
        assert [(flag.shape, flag.dtype) for flag in flags] == [((3, 2), bool)] * 5
        assert [(of_envs.shape, of_envs.dtype) for of_envs in (step.stepped, step.episode_done)] == [((3,), bool)] * 2
        assert step.action_masks == (None,)
        assert env.latest is step
    env.close()
    env.close()


# Height, width and what agents observe: each takes a second to compile.
ARENAS = [(1, 4, "cells"), (4, 2, "coordinates"), (3, 3, "window")]


@pytest.mark.parametrize("vectorizer", OTHERS)
@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(ARENAS), st.integers(1, 7), st.integers(1, 5), st.integers(0, 2**31))
def test_whole_rollouts_are_those_of_the_reference(
    vectorizer: str, arena: tuple[int, int, str], limit: int, num_envs: int, seed: int
) -> None:
    height, width, observe = arena
    sizes = {"height": height, "width": width, "max_timesteps": limit}
    arguments: dict[str, Any] = {**sizes, "observe": observe, "env_state": True}
    tested, reference = (
        make_vec_env("arena", n_envs=num_envs, seed=seed, vectorizer=name, **arguments)
        for name in (vectorizer, REFERENCE)
    )
    rng = np.random.default_rng(seed)
    for _ in range(2):  # the second reset goes on to the next episodes
        assert plain(tested.reset(), num_envs) == plain(reference.reset(), num_envs)
        for _ in range(2 * limit + 3):
            actions = rng.integers(0, 4, (num_envs, 2))
            assert plain(tested.step([actions]), num_envs) == plain(reference.step([actions]), num_envs)


@pytest.mark.parametrize("vectorizer", ALL)
def test_a_reset_is_a_step_in_which_nobody_acted(vectorizer: str) -> None:
    env = make_vec_env("arena", n_envs=2, seed=0, vectorizer=vectorizer)
    env.reset()
    env.step([np.zeros((2, 2), dtype=np.int64)])
    step = env.reset()
    nothing = (step.rewards, step.terminated, step.truncated, step.acted, step.episode_done)
    assert not any(array.any() for array in nothing)
    assert step.to_act.all()
    assert step.reset_infos == {index: {"agent1": {}, "agent2": {}} for index in range(2)}
    assert (dict(step.final_observations), step.infos[1]) == ({}, {})


@pytest.mark.parametrize("vectorizer", ALL)
def test_a_copy_of_a_step_does_not_change(vectorizer: str) -> None:
    env = make_vec_env("arena", n_envs=2, seed=0, vectorizer=vectorizer, max_timesteps=2)
    env.reset()
    steps = [env.step([np.full((2, 2), k)]) for k in range(2)]
    kept = steps[1].copy()
    expected = plain(kept, 2)
    assert expected["final"]
    assert plain(steps[1], 2) == expected
    env.step([np.full((2, 2), 3)])
    assert plain(kept, 2) == expected
    kept.rewards[:] = 1  # a copy is one's own
    with pytest.raises(ValueError, match="read-only"):
        steps[1].final_observations[0, 0][:] = 1


@pytest.mark.parametrize("vectorizer", ALL)
def test_the_state_of_the_envs_is_shown_if_it_is_asked_for(vectorizer: str) -> None:
    vec = make_vec_env("arena", n_envs=3, seed=0, vectorizer=vectorizer, env_state=True, max_timesteps=2)
    env = ArenaEnv(max_timesteps=2)
    env.reset(seed=episode_seed(0, 1, 0))
    np.testing.assert_array_equal(vec.reset().env_state[1], env.state())
    for action, over in ((1, False), (2, True)):
        step = vec.step([np.full((3, 2), action)])
        env.step(dict.fromkeys(AGENTS, action))
        assert over == (list(step.final_env_states) == [0, 1, 2])
        if over:
            np.testing.assert_array_equal(step.final_env_states[1], env.state())
            env.reset(seed=episode_seed(0, 1, 1))
        np.testing.assert_array_equal(step.env_state[1], env.state())
        with pytest.raises(ValueError, match="read-only"):
            step.env_state[:] = 0
    saved = vec.get_state()
    vec.set_state(StateReader(saved))
    np.testing.assert_array_equal(vec.latest.env_state[1], env.state())
    vec.close()
    without = make_vec_env("arena", n_envs=3, seed=0, vectorizer=vectorizer)
    assert without.reset().env_state is None
    without.close()


@pytest.mark.parametrize("n_workers", [0, 2])
def test_an_env_without_a_state_is_refused_if_its_state_is_asked_for(n_workers: int) -> None:
    env = make_vec_env(ScriptedEnv, n_envs=2, env_state=True, n_workers=n_workers)
    with pytest.raises(ConfigError, match=r"env_state: .*accepted: an env with a method state\(\)"):
        env.reset()
    env.close()


@pytest.mark.parametrize("vectorizer", ALL)
def test_send_and_recv_are_a_step(vectorizer: str) -> None:
    one, other = (make_vec_env("arena", n_envs=2, seed=0, vectorizer=vectorizer) for _ in range(2))
    for env in (one, other):
        env.reset()
    actions = [np.array([[0, 1], [2, 3]])]
    one.send(actions)
    assert plain(one.recv(), 2) == plain(other.step(actions), 2)


@pytest.mark.parametrize("vectorizer", ALL)
def test_calls_in_a_wrong_order_are_refused(vectorizer: str) -> None:
    env = make_vec_env("arena", n_envs=2, vectorizer=vectorizer)
    actions = [np.zeros((2, 2), dtype=np.int64)]
    for early in (lambda: env.send(actions), lambda: env.step(actions), lambda: env.latest, env.get_state):
        with pytest.raises(VecEnvOrderError, match=r"call reset\(\) first"):
            early()
    env.reset()
    state = StateReader(env.get_state())
    with pytest.raises(VecEnvOrderError, match=r"recv\(\) without send\(\)"):
        env.recv()
    env.send(actions)
    with pytest.raises(VecEnvOrderError, match=r"send\(\) twice without recv\(\)"):
        env.send(actions)
    between: list[tuple[str, Callable[[], Any]]] = [
        ("reset", env.reset), ("seed", lambda: env.seed(1)), ("call", lambda: env.call("height", [0])),
        ("configure", lambda: env.configure([0], max_timesteps=3)),
        ("get_state", env.get_state), ("set_state", lambda: env.set_state(state)),
    ]  # fmt: skip
    for name, call in between:
        with pytest.raises(VecEnvOrderError, match=rf"^{name}\(.*\) between send\(\) and recv\(\); call recv"):
            call()
    assert env.recv().acted.all()
    env.send(actions)
    env.close()


@pytest.mark.parametrize("vectorizer", ALL)
def test_attributes_are_read_by_name_and_options_are_counted(vectorizer: str) -> None:
    env = make_vec_env("arena", n_envs=2, vectorizer=vectorizer, height=3)
    assert env.call("height", [1, 0]) == [3, 3]
    assert env.call("get_wrapper_attr", [1], "max_timesteps") == [100]
    with pytest.raises(AttributeError, match="no_such_name"):
        env.call("no_such_name", [0])
    with pytest.raises(ConfigError, match="reset options for 1 envs; accepted: one for each of 2"):
        env.reset([{}])


@pytest.mark.parametrize("vectorizer", ALL)
def test_reset_options_are_refused_by_the_arena(vectorizer: str) -> None:
    env = make_vec_env("arena", n_envs=2, vectorizer=vectorizer)
    env.reset([{}, None])
    with pytest.raises(ConfigError, match=r"^reset options: level; the env takes none$"):
        env.reset([{}, {"level": 3}])


def lengths(env: MultiAgentVecEnv, steps: int) -> list[list[int]]:
    """For each env, the steps in which an episode ended."""
    ends: list[list[int]] = [[] for _ in range(env.num_envs)]
    for number in range(1, steps + 1):
        for index in np.flatnonzero(env.step([np.full((env.num_envs, 2), number % 4)]).episode_done):
            ends[index].append(number)
    return ends


@pytest.mark.parametrize("vectorizer", ALL)
def test_settings_hold_from_the_next_episode_on(vectorizer: str) -> None:
    env, reference = (
        make_vec_env("arena", n_envs=3, seed=1, vectorizer=name, max_timesteps=4) for name in (vectorizer, REFERENCE)
    )
    for each in (env, reference):
        each.reset()
        each.configure([1, 2], max_timesteps=9)
        each.configure([2], max_timesteps=2)
        assert each.call("max_timesteps", range(3)) == [4, 4, 4]
    for number in range(25):
        actions = [np.full((3, 2), number % 4)]
        assert plain(env.step(actions), 3) == plain(reference.step(actions), 3)
    assert env.call("max_timesteps", range(3)) == [4, 9, 2]
    env.configure([0, 1, 2], max_timesteps=1)
    env.seed(7)
    env.reset()
    assert lengths(env, 3) == [[1, 2, 3]] * 3


@pytest.mark.parametrize("vectorizer", ALL)
@pytest.mark.parametrize(("before", "first", "then"), [(1, 7, 3), (6, 7, 3), (14, 7, 3), (10, None, None)])
def test_envs_that_are_brought_back_go_on_with_their_settings(
    vectorizer: str, before: int, first: int | None, then: int | None, tmp_path: Path
) -> None:
    one, other = (make_vec_env("arena", n_envs=3, seed=seed, vectorizer=vectorizer, max_timesteps=4) for seed in (1, 2))
    one.reset()
    if first:
        one.configure([0, 2], max_timesteps=first)
    lengths(one, before)
    if then:
        one.configure([1, 2], max_timesteps=then)
    write_checkpoint(tmp_path / "c", one.get_state(), {}, {})
    assert other.set_state(StateReader(read_checkpoint(tmp_path / "c").state)) == {}
    assert plain(other.latest, 3)["observations"] == plain(one.latest, 3)["observations"]
    assert other.latest.to_act.all()
    assert not other.latest.acted.any()
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = [rng.integers(0, 4, (3, 2))]
        assert plain(one.step(actions), 3) == plain(other.step(actions), 3)
    in_force = one.call("max_timesteps", range(3))
    assert in_force == other.call("max_timesteps", range(3)) == ([first, then, then] if first else [4, 4, 4])


@pytest.mark.parametrize("vectorizer", ALL)
@pytest.mark.parametrize(
    ("env_index", "settings", "message"),
    [
        (0, {"height": 3}, "^configure of .*Arena.*: .*; it takes: max_timesteps$"),
        (0, {"max_timesteps": object()}, "^configure: max_timesteps is <object .*>; accepted: numbers, strings"),
        (2, {"max_timesteps": 3}, "^configure: env index 2; accepted: 0 to 1$"),
    ],
)
def test_wrong_settings_are_refused_at_once(
    vectorizer: str, env_index: int, settings: dict[str, Any], message: str
) -> None:
    env = make_vec_env("arena", n_envs=2, vectorizer=vectorizer)
    with pytest.raises(ConfigError, match=message):
        env.configure([env_index], **settings)


@pytest.mark.parametrize("vectorizer", ALL)
@pytest.mark.parametrize("value", [0, True, 2.5, 10**12])
def test_wrong_values_of_settings_are_refused_at_the_reset(vectorizer: str, value: Any) -> None:
    env = make_vec_env("arena", n_envs=2, vectorizer=vectorizer)
    env.configure([1], max_timesteps=value)
    with pytest.raises(ConfigError, match=f"max_timesteps must be an integer from 1 to 10000000; received {value}"):
        env.reset()
    other = make_vec_env("arena", n_envs=2, vectorizer=vectorizer)
    other.reset()
    state = other.get_state()
    state["settings"][1]["in_force"] = {"max_timesteps": value}
    with pytest.raises(CheckpointError, match=r"^settings of env 1: max_timesteps must be an integer from 1"):
        other.set_state(StateReader(state))


@cache
def trained(vectorizer: str, policies: str) -> tuple[dict[str, dict[str, th.Tensor]], dict[str, Any]]:
    """Weights by policy, and the latest result but for its clocks."""
    env = make_vec_env("arena", n_envs=3, vectorizer=vectorizer, max_timesteps=9)
    algorithm = MultiAgentAlgorithm(env, policies, n_steps=20, batch_size=30, n_epochs=2, seed=4, device="cpu")
    result = [algorithm.train_iteration() for _ in range(3)][-1]
    weights = {policy_id: policy.policy.state_dict() for policy_id, policy in algorithm.policies.items()}
    return weights, without_clock(result, "fault_tolerance")


@pytest.mark.parametrize("vectorizer", OTHERS)
@pytest.mark.parametrize("policies", ["shared", "per_agent"])
def test_a_training_is_that_of_the_reference(policies: str, vectorizer: str) -> None:
    weights, result = trained(vectorizer, policies)
    expected_weights, expected_result = trained(REFERENCE, policies)
    assert result == expected_result
    for policy_id, expected in expected_weights.items():
        assert all(th.equal(weights[policy_id][name], value) for name, value in expected.items())


@pytest.mark.parametrize("vectorizer", ALL)
def test_seeding_again_repeats_the_episodes(vectorizer: str) -> None:
    env = make_vec_env("arena", n_envs=2, vectorizer=vectorizer, max_timesteps=5)
    rollouts = []
    for _ in range(2):
        env.seed(9)
        env.reset()
        rollouts.append([env.step([np.full((2, 2), k % 4)]).observations[0].tolist() for k in range(12)])
    assert rollouts[0] == rollouts[1]


@pytest.mark.parametrize("n_workers", [0, 1])
def test_arguments_of_the_env_may_stand_in_a_mapping_as_in_sb3(n_workers: int) -> None:
    env = make_vec_env("arena", n_workers=n_workers, env_kwargs={"max_timesteps": 3}, height=4)
    plain = make_vec_env("arena", max_timesteps=3, height=4)
    assert env.groups[0].observation_space == plain.groups[0].observation_space
    env.close()


def test_an_argument_of_the_env_is_given_once() -> None:
    with pytest.raises(ConfigError, match="height is given by itself and in env_kwargs; accepted: once"):
        make_vec_env("arena", height=4, env_kwargs={"height": 4})


def test_an_env_may_have_an_argument_of_that_name() -> None:
    def factory(env_kwargs: Any) -> Any:
        assert env_kwargs == {"height": 4}
        return ArenaEnv()

    make_vec_env(factory, env_kwargs={"height": 4})


# --- A vectorizer of one's own ----------------------------------------------------------------------------------------


class MyVecEnv(SyncVecEnv):
    """A user's."""


def mine(request: VecEnvRequest) -> MyVecEnv:
    return MyVecEnv(request.make_env, request.n_envs, request.seed)


def test_a_vectorizer_of_ones_own_trains_under_its_name(in_tmp: Path) -> None:
    VECTORIZERS.add("mine", mine)
    try:
        settings = {"n_steps": 4, "batch_size": 8}
        run = marl_sb3.train("arena", timesteps=16, n_envs=2, seed=0, vectorizer="mine", settings=settings)
        assert isinstance(run.algorithm.env, MyVecEnv)
        with pytest.raises(ConfigError, match="vectorizer is 'mine', which has no workers; accepted with n_workers"):
            make_vec_env("arena", vectorizer="mine", n_workers=1)
        with pytest.raises(ConfigError, match=r"unknown vectorizer 'ours'; accepted: auto, .*, mine$"):
            make_vec_env("arena", vectorizer="ours")
    finally:
        VECTORIZERS.remove("mine")


def test_envs_may_be_stepped_elsewhere_in_a_way_of_ones_own() -> None:
    asked: list[VecEnvRequest] = []

    def elsewhere(request: VecEnvRequest) -> MultiAgentVecEnv:
        asked.append(request)
        return mine(request)

    workers = VECTORIZERS["n_workers"]
    VECTORIZERS.add("n_workers", elsewhere)
    try:
        env = make_vec_env("arena", n_envs=2, seed=3, n_workers=2, worker_timeout_s=7, env_state=True, height=4)
    finally:
        VECTORIZERS.add("n_workers", workers)
    assert env.reset().env_state is not None
    (request,) = asked
    assert (request.n_envs, request.seed, request.env_kwargs, request.vectorizer) == (2, 3, {"height": 4}, "auto")
    assert (request.n_workers, request.worker_timeout_s, request.env_state) == (2, 7, True)
