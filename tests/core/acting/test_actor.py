"""Every row keeps its own noise, memory and masks, whoever acts beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import contrib
import numpy as np
import pytest
import sb3_contrib
from gymnasium import spaces
from toy_envs import SampledEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentVecEnv, PolicySpec, make_vec_env
from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.evaluation import playing

SEEN_ALWAYS = spaces.Box(0.5, 0.5, (3,))  # the noise is all that changes an action
STEPS = 6
ENDS_EARLY = {"a": (3, "terminated"), "b": (STEPS, "truncated")}


def algorithm_of(env: MultiAgentVecEnv, **options: Any) -> MultiAgentAlgorithm:
    settings = {"n_steps": STEPS, "batch_size": 3, "n_epochs": 1, "seed": 0, "device": "cpu", "use_sde": True}
    network = {"net_arch": [4], "log_std_init": 0.0, "squash_output": True}
    return MultiAgentAlgorithm(env, **settings, policy_kwargs=network, **options)


def envs(n_envs: int) -> MultiAgentVecEnv:
    return make_vec_env(
        SampledEnv,
        n_envs=n_envs,
        seed=0,
        observation_space=SEEN_ALWAYS,
        action_space=spaces.Box(-1, 1, (2,)),
        script=ENDS_EARLY,
    )


def actions_by_row(env: Any) -> dict[tuple[int, str], np.ndarray]:
    """(steps, action size) of each (env, agent), in the first episode."""
    received = env.call("received", range(env.num_envs))
    return {
        (index, agent): np.stack([actions[agent] for actions in steps[:STEPS] if agent in actions])
        for index, steps in enumerate(received)
        for agent in ENDS_EARLY
    }


def require_noise_per_row(actions: dict[tuple[int, str], np.ndarray]) -> None:
    for row, taken in actions.items():
        np.testing.assert_allclose(taken, np.tile(taken[0], (len(taken), 1)), atol=1e-6, err_msg=str(row))
    firsts = np.stack([taken[0] for taken in actions.values()])
    assert len(np.unique(firsts.round(4), axis=0)) == len(actions)


@pytest.mark.parametrize("n_envs", [1, 3])  # 1: a batch of one row is left
def test_rows_keep_their_noise_in_a_rollout_when_an_agent_ends(n_envs: int) -> None:
    env = envs(n_envs)
    algorithm_of(env).train_iteration()
    actions = actions_by_row(env)
    assert [len(taken) for taken in actions.values()] == [3, STEPS] * n_envs
    require_noise_per_row(actions)


def test_rows_keep_their_noise_in_an_evaluation_when_an_agent_ends() -> None:
    algorithm, env = algorithm_of(envs(1)), envs(3)
    playing.play(algorithm, env, n_episodes=3, deterministic=False, seed=0)
    require_noise_per_row(actions_by_row(env))


@pytest.mark.parametrize("evaluated", [False, True])
def test_noise_is_drawn_anew_for_every_row_as_often_as_asked(evaluated: bool) -> None:
    env = envs(2)
    algorithm = algorithm_of(envs(2) if evaluated else env, sde_sample_freq=4)
    if evaluated:
        playing.play(algorithm, env, n_episodes=2, deterministic=False, seed=0)
    else:
        algorithm.train_iteration()
    for taken in actions_by_row(env).values():
        np.testing.assert_allclose(taken[:4], np.tile(taken[0], (len(taken[:4]), 1)), atol=1e-6)
        if len(taken) > 4:
            assert np.abs(taken[4] - taken[3]).max() > 1e-3
            np.testing.assert_allclose(taken[5], taken[4], atol=1e-6)


# --- Memory and masks ------------------------------------------------------------------------------------------------

T, ROWS = 30, 4


@dataclass(frozen=True)
class Turns:
    """What the rows see and may do in each step, who acts, and whose episode ends after it; all random."""

    seen: np.ndarray  # (T, rows, 3)
    masks: np.ndarray  # (T, rows, 5)
    acting: np.ndarray  # (T, rows)
    ended: np.ndarray  # (T, rows)


@pytest.fixture(scope="module")
def turns() -> Turns:
    rng = np.random.default_rng(0)
    masks = rng.random((T, ROWS, 5)) < 0.5
    masks[..., [0, 3]] = True
    acting = rng.random((T, ROWS)) < 0.6
    acting[4], acting[7] = False, True
    ended = rng.random((T, ROWS)) < 0.15
    return Turns(rng.uniform(-1, 1, (T, ROWS, 3)).astype(np.float32), masks, acting, ended)


def row_by_row(algorithm: Any, turns: Turns, **masked: bool) -> np.ndarray:
    """(T, rows, 2) actions by SB3's own `predict`, one row after the other, each with its own state."""
    actions = np.zeros((T, ROWS, 2), dtype=algorithm.action_space.dtype)
    for row in range(ROWS):
        state, start = None, True
        for step in np.flatnonzero(turns.acting[:, row] | turns.ended[:, row]):
            if turns.acting[step, row]:
                more = {"action_masks": turns.masks[step, row]} if masked else {}
                actions[step, row], state = algorithm.predict(
                    turns.seen[step, row], state, np.array([start]), deterministic=True, **more
                )
                start = False
            start = start or bool(turns.ended[step, row])
    return actions


def choose(actor: Any, seen: np.ndarray, acting: np.ndarray, masks: np.ndarray | None = None) -> np.ndarray:
    masks = masks if actor.policy.takes_masks else None
    return actor.decide(PolicyInputs(seen, actor.starts, masks, actor.states), acting).actions


def play(actor: Any, turns: Turns, steps: range) -> np.ndarray:
    """(steps, rows, 2) actions by one actor; rows that wait see what no space holds."""
    actions = []
    for step in steps:
        acting = turns.acting[step]
        seen = np.where(acting[:, None], turns.seen[step], np.nan)
        actions.append(choose(actor, seen, acting, turns.masks[step]))
        actor.starts = actor.starts | turns.ended[step]
    return np.stack(actions)


@pytest.mark.parametrize(("policy", "masked"), [("recurrent", {}), ("masked", {"masked": True})])
def test_an_actor_equals_a_loop_over_rows_that_each_keep_their_own_state(
    policy: str, masked: Any, turns: Turns
) -> None:
    algorithm = contrib.bundle().policies[policy]
    actor = contrib.bundle().make_actor(contrib.rows_of(algorithm.action_space, policy), deterministic=True)
    assert actor.policy.takes_masks == bool(masked)
    found, expected = play(actor, turns, range(T)), row_by_row(algorithm, turns, **masked)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (found[~turns.acting] == 0).all()
    assert len(np.unique(found.round(2).reshape(-1, 2), axis=0)) > 3  # the loop has something to tell


def test_an_envs_restart_starts_its_rows_anew(turns: Turns) -> None:
    bundle = contrib.bundle()
    rows = contrib.rows_of(contrib.FORCES, "recurrent")
    restarted, fresh = (bundle.make_actor(rows, deterministic=True) for _ in range(2))
    everyone = np.ones(ROWS, dtype=bool)
    for step in range(3):
        choose(restarted, turns.seen[step], everyone)
    restarted.restart_envs([1])
    went_on, anew = (choose(actor, turns.seen[9], everyone) for actor in (restarted, fresh))
    np.testing.assert_allclose(went_on[2:], anew[2:], atol=1e-6)
    assert (np.abs(went_on[:2] - anew[:2]) > 1e-3).any(axis=1).all()
    restarted.begin_episodes()
    np.testing.assert_allclose(choose(restarted, turns.seen[9], everyone), anew, atol=1e-6)


def test_the_memory_of_an_actor_goes_on_from_its_state(turns: Turns) -> None:
    bundle = contrib.bundle()
    rows = contrib.rows_of(contrib.FORCES, "recurrent")
    whole, again = (bundle.make_actor(rows, deterministic=True) for _ in range(2))
    play(whole, turns, range(10))
    state = whole.get_state()
    again.read_state(StateReader(state))()
    np.testing.assert_array_equal(play(whole, turns, range(10, T)), play(again, turns, range(10, T)))
    with pytest.raises(CheckpointError, match=r"states/0 is .*; accepted: an array of float32"):
        again.read_state(StateReader({**state, "states": [np.zeros(3)] * 2}))


def test_no_illegal_move_reaches_an_env_from_a_policy_that_takes_masks() -> None:
    env = make_vec_env("classic/tictactoe-v3", n_envs=3, seed=0)
    algorithm = MultiAgentAlgorithm(env, {"masked": PolicySpec(sb3_contrib.MaskablePPO)}, seed=0, device="cpu")
    episodes = playing.play(algorithm, env, n_episodes=30, deterministic=False, seed=1).episodes
    # An illegal move ends the game at once; a game of legal moves takes five at least.
    assert min(episode.length for episode in episodes) >= 5
    assert {episode.agent_returns["player_1"] for episode in episodes} == {-1.0, 0.0, 1.0}


def test_a_rollout_begins_in_evaluation_mode_though_only_an_inner_layer_is_in_training_mode() -> None:
    algorithm = algorithm_of(envs(1), policies="shared")
    policy = algorithm.policies["shared"].policy
    policy.set_training_mode(False)
    policy.mlp_extractor.policy_net[1].train()
    algorithm.parts.learners["shared"].actor.begin_rollout()
    assert not any(module.training for module in policy.modules())
