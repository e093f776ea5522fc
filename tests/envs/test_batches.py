"""Batches of other libraries step as their single envs do; those of packages that are not installed are left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from marl_sb3 import make_vec_env
from marl_sb3.core.envs.registry import env_factory, make_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.envs.batches import JaxEnv, jax_envs, vector_envs
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array

E = 3


def drawn_actions(env: MultiAgentVecEnv, rng: np.random.Generator) -> list[Array]:
    """Actions of all agents in all envs."""
    of_groups = []
    for group in env.groups:
        shape, space = (env.num_envs, len(group.agents)), group.action_space
        if isinstance(space, spaces.Discrete):
            of_groups.append(rng.integers(space.n, size=shape))
        else:
            assert isinstance(space, spaces.Box)
            of_groups.append(rng.uniform(-1, 1, (*shape, *space.shape)).astype(space.dtype))
    return of_groups


def plain(step: VecStep) -> dict[str, Any]:
    """What a step says of observations, rewards and ends, as bytes and numbers."""

    def bits(seen: Any) -> dict[str, bytes]:
        return {key: np.asarray(own).tobytes() for key, own in (seen if isinstance(seen, dict) else {"": seen}).items()}

    return {
        "seen": [bits(seen) for seen in step.observations],
        "rewards": step.rewards.tolist(),
        "ends": [step.terminated.tolist(), step.truncated.tolist(), step.episode_done.tolist(), step.to_act.tolist()],
        "final": {place: bits(seen) for place, seen in step.final_observations.items()},
        "masks": [None if masks is None else masks.tolist() for masks in step.action_masks],
    }


def rollout(env: MultiAgentVecEnv, steps: int, draws: int = 0) -> list[dict[str, Any]]:
    rng, found = np.random.default_rng(draws), [plain(env.reset())]
    found += [plain(env.step(drawn_actions(env, rng))) for _ in range(steps)]
    env.close()
    return found


def cart_poles(mode: AutoresetMode) -> Callable[..., VectorEnv[Any, Any, Any]]:
    def make(num_envs: int) -> SyncVectorEnv:
        makers = [partial(gymnasium.make, "CartPole-v1", max_episode_steps=12)] * num_envs
        return SyncVectorEnv(makers, autoreset_mode=mode)

    return make


# --- Gymnasium's vector envs ------------------------------------------------------------------------------------------

BY_ID = [
    ("CartPole-v1", {}, {}),
    ("CartPole-v1", {"vectorization_mode": "async"}, {"max_episode_steps": 12}),
    ("Pendulum-v1", {}, {"max_episode_steps": 7}),
    ("FrozenLake-v1", {}, {}),
]


@pytest.mark.parametrize(("env_id", "mode", "arguments"), BY_ID)
def test_vector_envs_step_as_single_ones_with_the_same_seeds(
    env_id: str, mode: dict[str, str], arguments: dict[str, Any]
) -> None:
    single = make_vec_env(env_id, E, seed=5, vectorizer="sync", **arguments)
    batch = make_vec_env(f"vector/{env_id}", E, seed=5, **mode, **arguments)
    assert type(batch).__name__ == "BatchedVecEnv"
    assert rollout(batch, 40) == rollout(single, 40)


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP])
def test_gymnasiums_own_vector_envs_are_reset_by_a_mask(mode: AutoresetMode) -> None:
    batch = make_vec_env(vector_envs(cart_poles(mode)), E, seed=5)
    single = make_vec_env("CartPole-v1", E, seed=5, vectorizer="sync", max_episode_steps=12)
    assert rollout(batch, 40) == rollout(single, 40)


def test_envs_that_have_begun_anew_by_themselves_show_their_final_observations() -> None:
    batch = make_vec_env(vector_envs(cart_poles(AutoresetMode.SAME_STEP)), E, seed=5)
    single = make_vec_env("CartPole-v1", E, seed=5, vectorizer="sync", max_episode_steps=12)
    steps, reference = rollout(batch, 40), rollout(single, 40)
    first = next(number for number, step in enumerate(reference) if step["final"])
    assert steps[:first] == reference[:first]
    # Their second episodes have seeds of their own; what the first ones were is the same to their last observation.
    for key in ("rewards", "ends", "final"):
        assert steps[first][key] == reference[first][key]
    assert steps[first]["seen"] != reference[first]["seen"]
    assert sum(sum(step["ends"][2]) for step in steps) >= 3 * E  # episodes of at most 12 steps
    with pytest.raises(ConfigError, match=r"reset options .*: a vector env takes the same ones for all envs"):
        batch.reset([{"low": 0.0}, None, None])


class Countdown(VectorEnv[Any, Any, Any]):
    """Each env counts down from 2 plus its number; it tells what may be done next in its infos."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = spaces.Dict({"left": spaces.Box(0, 9, (1,), np.int64)})
        self.single_action_space = spaces.Discrete(2)
        self.left = np.zeros((num_envs, 1), np.int64)

    def _infos(self) -> dict[str, Any]:
        masks = np.ones((self.num_envs, 2), np.bool_)
        masks[:, 1] = self.left[:, 0] % 2 == 0
        return {"action_mask": masks, "left": self.left[:, 0].copy()}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        chosen = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self.left[chosen, 0] = 2 + np.flatnonzero(chosen)
        return {"left": self.left}, self._infos()

    def step(self, actions: Any) -> Any:
        self.left -= 1
        over = self.left[:, 0] == 0
        return {"left": self.left}, -self.left[:, 0].astype(float), over, np.zeros_like(over), self._infos()


def test_dictionaries_masks_and_numbers_of_a_vector_env_arrive() -> None:
    env = make_vec_env(vector_envs(Countdown), 2, seed=0)
    assert env.reset().observations[0]["left"].tolist() == [[[2]], [[3]]]
    step = env.step([np.zeros((2, 1), np.int64)])
    assert step.observations[0]["left"].tolist() == [[[1]], [[2]]]
    assert step.action_masks[0].tolist() == [[[True, False]], [[True, True]]]
    assert step.infos.values("agent", "left").tolist() == [1, 2]
    step = env.step([np.zeros((2, 1), np.int64)])  # the first env ends, and begins anew
    assert step.final_observations[0, 0]["left"].tolist() == [0]
    assert (step.observations[0]["left"].tolist(), step.rewards.tolist()) == ([[[2]], [[1]]], [[0], [-1]])
    assert step.terminated.tolist() == [[True], [False]]


class BeginsAnew(Countdown):
    """The same in the mode SAME_STEP; an env that has ended shows the next episode at once, and takes no mask."""

    metadata: ClassVar[Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def step(self, actions: Any) -> Any:
        seen, rewards, over, late, _ = super().step(actions)
        final = np.array(
            [{"left": each.copy()} if ended else None for each, ended in zip(self.left, over, strict=True)]
        )
        self.left[over, 0] = 2 + np.flatnonzero(over)
        return seen, rewards, over, late, {**self._infos(), "final_obs": final}


def test_masks_are_those_of_the_next_episode_and_a_horizon_is_refused_where_it_would_reset_all() -> None:
    env = make_vec_env(vector_envs(BeginsAnew), 2, seed=0)
    env.reset()
    step = [env.step([np.zeros((2, 1), np.int64)]) for _ in range(3)][-1]
    assert step.final_observations[1, 0]["left"].tolist() == [0]
    assert step.observations[0]["left"].tolist() == [[[1]], [[3]]]
    assert step.action_masks[0].tolist() == [[[True, False]], [[True, False]]]
    env = make_vec_env(vector_envs(BeginsAnew), 3, seed=0, episode_horizon=3)
    env.reset()
    for _ in range(2):
        env.step([np.zeros((3, 1), np.int64)])
    with pytest.raises(ConfigError, match="episode_horizon: BeginsAnew cannot begin episodes in some envs, before"):
        env.step([np.zeros((3, 1), np.int64)])  # the second env ends by itself, and the third by the horizon


def test_vector_envs_that_lose_the_action_of_a_first_step_are_refused() -> None:
    words = r"CartPoleVectorEnv has the autoreset mode NextStep: the action .* is lost; accepted: the modes Disabled"
    with pytest.raises(ConfigError, match=words):
        make_vec_env("vector/CartPole-v1", E, vectorization_mode="vector_entry_point")


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")  # of pettingzoo.test itself
def test_one_env_of_a_batch_is_a_parallel_env() -> None:
    from pettingzoo.test.parallel_test import parallel_api_test

    parallel_api_test(make_env(env_factory("vector/CartPole-v1"), 0, {}), num_cycles=50)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"env 'vmas/balance': the package vmas is not installed; install it with: pip install "
    ):
        make_vec_env("vmas/balance")


LIBRARIES = {
    "envpool/CartPole-v1": "envpool",
    "envpool/Pendulum-v1": "envpool",
    "vmas/balance": "vmas",
    "vmas/simple_tag": "vmas",
    "gymnax/CartPole-v1": "gymnax",
    "gymnax/Pendulum-v1": "gymnax",
    "jaxmarl/MPE_simple_spread_v3": "jaxmarl",
    "jaxmarl/MPE_simple_tag_v3": "jaxmarl",
    "jumanji/Snake-v1": "jumanji",
}
EXACT = [env_id for env_id in LIBRARIES if env_id.partition("/")[0] in ("gymnax", "jaxmarl", "jumanji")]


@pytest.mark.parametrize("env_id", LIBRARIES)
def test_the_same_seed_gives_the_same_episodes_and_another_one_others(env_id: str) -> None:
    pytest.importorskip(LIBRARIES[env_id])
    one, again, other = (rollout(make_vec_env(env_id, E, seed=seed), 210) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    ends = np.array([step["ends"][:2] for step in one[1:]])  # (steps, 2, E, A)
    assert ends.any()
    assert not ends.all(axis=1).any(), "terminated and truncated at once"


@pytest.mark.parametrize("env_id", EXACT)
def test_an_episode_follows_from_its_seed_alone_and_goes_on_from_a_state(env_id: str) -> None:
    pytest.importorskip(LIBRARIES[env_id])
    several, alone = make_vec_env(env_id, E, seed=4), make_vec_env(env_id, 1, seed=4)
    assert plain(several.reset())["seen"][0].keys() == plain(alone.reset())["seen"][0].keys()
    for group in range(len(several.groups)):
        whole, own = several.latest.observations[group], alone.latest.observations[group]
        for key in whole if isinstance(whole, dict) else [...]:
            np.testing.assert_array_equal(whole[key][:1], own[key])
    rng = np.random.default_rng(0)
    for _ in range(5):
        several.step(drawn_actions(several, rng))
    kept = several.get_state()
    expected = [plain(several.step(drawn_actions(several, np.random.default_rng(k)))) for k in range(30)]
    fresh = make_vec_env(env_id, E, seed=9)
    assert fresh.set_state(StateReader(kept, num_envs=E)) == {}
    assert [plain(fresh.step(drawn_actions(fresh, np.random.default_rng(k)))) for k in range(30)] == expected


def test_keys_of_jax_may_be_part_of_a_state() -> None:
    jax = pytest.importorskip("jax")

    class Dice(JaxEnv):
        """Shows a throw of a die, whose key is the state; an episode ends with a six."""

        name = "dice"
        spaces: ClassVar[Any] = {"agent": (spaces.Discrete(6), spaces.Discrete(2))}

        def reset(self, key: Any) -> Any:
            key = jax.random.key(jax.random.randint(key, (), 0, 1000))
            return {"agent": jax.random.randint(key, (), 0, 6)}, key

        def step(self, key: Any, state: Any, actions: Any) -> Any:
            state = jax.random.fold_in(state, actions["agent"])
            throw = jax.random.randint(state, (), 0, 6)
            of_agent = [{"agent": each} for each in (throw * 1.0, throw == 5, throw > 6)]
            return {"agent": throw}, state, *of_agent

    env, other = (make_vec_env(jax_envs(Dice), E, seed=seed) for seed in (0, 1))
    env.reset()
    other.set_state(StateReader(env.get_state(), num_envs=E))
    one, again = ([plain(each.step([np.full((E, 1), k % 2)])) for k in range(10)] for each in (env, other))
    assert one == again


def test_jaxmarl_pays_in_simple_spread_what_the_distances_say() -> None:
    pytest.importorskip("jaxmarl")
    env = make_vec_env("jaxmarl/MPE_simple_spread_v3", 2, seed=0)
    env.reset()
    rng = np.random.default_rng(0)
    for _ in range(10):
        step = env.step(drawn_actions(env, rng))
        for index in range(2):
            seen = step.observations[0][index]  # velocity, place, landmarks and others as seen from the agent
            places, landmarks = seen[:, 2:4], seen[0, 4:10].reshape(3, 2) + seen[0, 2:4]
            far = np.linalg.norm(places[:, None] - landmarks[None], axis=2).min(axis=0).sum()
            met = [sum(np.linalg.norm(places[a] - places[b]) < 0.3 for b in range(3) if b != a) for a in range(3)]
            # Half of what all are paid for the distances, half of what each is fined for collisions.
            np.testing.assert_allclose(step.rewards[index], [0.5 * -far - 0.5 * each for each in met], atol=1e-4)


@pytest.mark.parametrize(
    ("env_id", "arguments", "words"),
    [
        ("vector/CartPole-v7", {}, "env vector/CartPole-v7: Gymnasium says: "),
        ("vector/CartPole-v1", {"vectorization_mode": "threads"}, "env vector/CartPole-v1: Gymnasium says: "),
        ("vector/CartPole-v1", {"height": 3}, "height"),
        ("envpool/CartPole-v1", {"batch_size": 2}, "batch_size is given as env argument; accepted: n_envs and seed of"),
        ("vmas/nowhere", {}, "VMAS has no such scenario; accepted: .*balance"),
        ("gymnax/CartPole-v9", {}, "there is no such env; accepted: CartPole-v1"),
        ("gymnax/CartPole-v1", {"height": 3}, "it has no height; accepted: max_steps_in_episode"),
    ],
)
def test_what_a_library_does_not_have_is_refused(env_id: str, arguments: dict[str, Any], words: str) -> None:
    pytest.importorskip(env_id.partition("/")[0].replace("vector", "gymnasium"))
    with pytest.raises(ConfigError, match=words):
        make_vec_env(env_id, 2, **arguments)
