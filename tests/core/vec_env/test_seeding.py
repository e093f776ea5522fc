"""Seeds of episodes: a function of (run seed, env index, episode index) and of nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import make_vec_env
from marl_sb3.core.state.state import is_plain
from marl_sb3.core.vec_env.seeding import episode_seed, fresh_seed
from marl_sb3.errors import ConfigError

ONE_STEP = {"a": (1, "truncated")}


def played_seeds(n_envs: int, seed: int | None, steps: int, action: int = 0) -> list[list[int]]:
    """For each env, the seeds of its episodes, which take one step each."""
    vec = make_vec_env(ScriptedEnv, n_envs=n_envs, seed=seed, script=ONE_STEP)
    vec.reset()
    for _ in range(steps):
        vec.step((np.full((n_envs, 1), action),))
    return vec.call("seeds", range(n_envs))


@pytest.mark.parametrize(
    ("triple", "seed"),
    [((0, 0, 0), 2044266242), ((0, 0, 1), 1790637272), ((0, 1, 0), 1976665982), ((1, 0, 0), 1511999270)],
)
def test_seed_of_an_episode_never_changes(triple, seed):
    assert episode_seed(*triple) == seed


@pytest.mark.parametrize(
    ("run_seeds", "n_envs", "n_episodes"),
    [*(([run_seed], 64, 50) for run_seed in (0, 1, 5, 42, 2**31 - 1, 2**32 - 1)), (range(10), 8, 20)],
)
def test_episodes_of_envs_and_of_neighbouring_runs_share_no_seed(run_seeds, n_envs, n_episodes):
    triples = [(run, env, episode) for run in run_seeds for env in range(n_envs) for episode in range(n_episodes)]
    seeds = [episode_seed(*triple) for triple in triples]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 0
    assert 2**30 < max(seeds) < 2**31


def test_every_reset_of_a_vec_env_gets_the_seed_of_its_episode():
    expected = [[episode_seed(7, env, episode) for episode in range(5)] for env in range(3)]
    assert played_seeds(n_envs=3, seed=7, steps=4) == expected


def test_seeds_do_not_depend_on_the_number_of_envs_nor_on_the_actions():
    few, many = played_seeds(n_envs=2, seed=3, steps=6), played_seeds(n_envs=5, seed=3, steps=6, action=2)
    assert many[:2] == few


def test_without_a_seed_the_envs_of_a_vec_env_differ_and_so_do_two_vec_envs():
    first = [seeds[0] for _ in range(2) for seeds in played_seeds(n_envs=3, seed=None, steps=0)]
    assert len(set(first)) == 6


def test_fresh_seeds_differ_and_are_accepted_by_envs():
    seeds = [fresh_seed() for _ in range(20)]
    assert len(set(seeds)) == 20
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize("seed", [-1, 1.5, "1"])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(ConfigError, match=f"seed is {seed!r}; accepted: an integer of at least 0") as caught:
        make_vec_env(ScriptedEnv, seed=seed)
    assert caught.value.key == "seed"


def test_a_numpy_integer_is_a_seed():
    assert played_seeds(1, seed=np.int64(3), steps=1) == played_seeds(1, seed=3, steps=1)
    env = make_vec_env(ScriptedEnv, np.int64(1), np.int64(3))
    env.reset()
    assert is_plain(env.get_state())  # otherwise checkpoints are without it
    env.seed(np.int64(4))
    assert is_plain(env.get_state())


def test_seeds_are_spawned_in_one_place() -> None:
    package = Path(marl_sb3.__file__).parent
    assert [path.name for path in package.rglob("*.py") if "spawn_key" in path.read_text()] == ["seeding.py"]
