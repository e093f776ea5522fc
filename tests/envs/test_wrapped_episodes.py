"""Episodes of wrapped Gymnasium envs are those beneath the wrappers, as SB3's Monitor counts them; several rewards."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from stable_baselines3.common.atari_wrappers import ClipRewardEnv, EpisodicLifeEnv, MaxAndSkipEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, evaluate_policies, make_vec_env, train
from marl_sb3.core.envs.registry import make_env
from marl_sb3.core.metrics.episodes import EpisodeTracker
from marl_sb3.envs.gymnasium_wrappers import named_wrappers, wrapping_factory
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.display.filmed_env import FilmedEnv

ATARI = "stable_baselines3.common.atari_wrappers"
LIVES, STEPS_OF_LIFE = 3, 10


class Game(gymnasium.Env[Any, Any]):
    """A game of three lives of ten steps, which pays what the action says: 0, 3 or 6 points."""

    observation_space = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.ale, self.lost, self.steps = self, 0, 0

    def lives(self) -> int:
        return LIVES - self.lost

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self.lost, self.steps = 0, 0
        return np.zeros((4, 4, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.lost = self.steps // STEPS_OF_LIFE
        return np.zeros((4, 4, 3), np.uint8), 3.0 * int(action), self.lost == LIVES, False, {}


# Wrappers by name, and as classes
STACKS: dict[str, tuple[list[Any], list[Callable[[Any], Any]]]] = {
    "clipped rewards": ([f"{ATARI}.ClipRewardEnv"], [ClipRewardEnv]),
    "lives": ([f"{ATARI}.EpisodicLifeEnv"], [EpisodicLifeEnv]),
    "skipped frames": ([{f"{ATARI}.MaxAndSkipEnv": {"skip": 4}}], [MaxAndSkipEnv]),
    "all of them": (
        [{f"{ATARI}.MaxAndSkipEnv": {"skip": 3}}, f"{ATARI}.EpisodicLifeEnv", f"{ATARI}.ClipRewardEnv"],
        [lambda env: MaxAndSkipEnv(env, 3), EpisodicLifeEnv, ClipRewardEnv],
    ),
    "a limit of steps": (
        [f"{ATARI}.ClipRewardEnv", {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 7}}],
        [ClipRewardEnv, lambda env: TimeLimit(env, 7)],
    ),
}


def episodes_of(env: Any, steps: int, **settings: Any) -> list[tuple[float, int]]:
    """Play with the actions 0, 1, 2, 0, ...; return the return and the length of each episode."""
    vec_env = make_vec_env(env, 2, seed=0, **settings)
    tracker = EpisodeTracker(vec_env, {"agent": "p"}, window=1000)
    try:
        vec_env.reset()
        tracker.begin()
        for number in range(steps):
            tracker.record(vec_env.step([np.full((2, 1), number % 3)]))
    finally:
        vec_env.close()
    assert all(each.agent_returns.keys() == {"agent"} for each in tracker.episodes)
    return [(each.agent_returns["agent"], each.length) for each in tracker.episodes if each.env_index == 1]


def wrapped(env: Any, wrappers: list[Callable[[Any], Any]]) -> Any:
    return reduce(lambda inner, wrapper: wrapper(inner), wrappers, env)


def known(wrappers: list[Callable[[Any], Any]], steps: int) -> list[tuple[float, int]]:
    """What SB3's Monitor says beneath the wrappers."""
    monitor: Any = Monitor(Game())
    found = []
    reset = monitor.reset

    def noted(**arguments: Any) -> Any:  # it does not count an episode that a wrapper above has ended
        if monitor.rewards:
            found.append((sum(monitor.rewards), len(monitor.rewards)))
        return reset(**arguments)

    monitor.reset = noted
    vec_env = DummyVecEnv([lambda: wrapped(monitor, wrappers)])
    vec_env.reset()
    for number in range(steps):
        vec_env.step(np.array([number % 3]))
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", STACKS)
def test_episodes_are_those_beneath_the_wrappers(name: str, workers: int) -> None:
    named, wrappers = STACKS[name]
    found = episodes_of(wrapping_factory(Game, named_wrappers(named)), 200, n_workers=workers)
    assert found == known(wrappers, 200)
    assert len(found) >= 5
    assert max(found) > (14.0, 0)  # more than clipped rewards, or those of a life


class Seen(MultiAgentCallback):
    """Notes the lengths of episodes that hooks are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.ends: list[tuple[float, int]] = []

    def on_episode_step(self, episode: Any) -> None:
        self.steps.append(episode.length)

    def on_episode_end(self, episode: Any) -> None:
        self.ends.append((episode.agent_returns["agent"], episode.length))


def test_metrics_hooks_and_evaluation_see_whole_games() -> None:
    env = make_vec_env(wrapping_factory(Game, named_wrappers(STACKS["all of them"][0])), 1, seed=0)
    seen = Seen()
    algo = MultiAgentAlgorithm(env, n_steps=40, batch_size=40, seed=0).learn(80, callback=seen)
    metrics = algo.train_iteration()["env_runners"]
    lengths, returns = [length for _, length in seen.ends], [paid for paid, _ in seen.ends]
    assert set(lengths) == {30}  # of a game, with the frames that a wrapper skips after each life
    assert max(returns) > 10.0  # a game of clipped rewards is paid 1 for each of 8 actions
    assert len(seen.ends) == 80 // 8
    assert seen.steps[:9] == [3, 6, 9, 12, 18, 21, 27, 30, 3]
    assert metrics["episode_len_mean"] == 30
    assert evaluate_policies(algo, env, n_episodes=3)["episode_len_min"] == 30


@pytest.mark.parametrize("counting", [Monitor, RecordEpisodeStatistics])
def test_a_monitor_beneath_wrappers_says_what_an_episode_is(counting: Callable[[Any], Any]) -> None:
    wrappers = STACKS["all of them"][1]
    assert episodes_of(lambda: wrapped(counting(Game()), wrappers), 200) == known(wrappers, 200)
    clipped = episodes_of(lambda: ClipRewardEnv(Game()), 60)  # without one, they are those of the outermost wrapper
    assert clipped == [(20.0, 30), (20.0, 30)]


class TwoGoals(Game):
    """Pays for two goals at once."""

    def step(self, action: Any) -> Any:
        observation, reward, *ends = super().step(action)
        return observation, np.array([reward, 1.0]), *ends


def test_several_rewards_become_one() -> None:
    weighed = {"mo_gymnasium.wrappers.LinearReward": {"weight": [0.5, -1.0]}}
    found = episodes_of(wrapping_factory(TwoGoals, named_wrappers([f"{ATARI}.ClipRewardEnv", weighed])), 35)
    assert found == [(0.5 * 90.0 - 30.0, 30)]
    (found,) = episodes_of(wrapping_factory(TwoGoals, named_wrappers("mo_gymnasium.wrappers.LinearReward")), 35)
    assert found == (120.0, 30)


class TwoGoalsForTwo(ScriptedEnv):
    """Pays 1 and 10 to one agent, 2 and 20 to the other, in each of three steps."""

    def _reward(self, agent: str) -> Any:
        return super()._reward(agent) * np.array([1.0, 10.0])


@pytest.mark.parametrize(("env", "second"), [(TwoGoals, 30.0), (TwoGoalsForTwo, 90.0)])
def test_each_of_several_rewards_is_a_metric(tmp_path: Path, env: Any, second: float) -> None:
    settings = {"reward_weights": [0.5, -1.0], "n_steps": 32, "batch_size": 32, "n_envs": 1}
    run = train(env, timesteps=64, run_dir=tmp_path / "run", seed=0, settings=settings, progress_bar=False)
    assert run.result is not None
    metrics = run.result["env_runners"]
    first, of_second = (metrics["custom_metrics"][f"reward_{i}_mean"] for i in range(2))
    assert of_second == second
    assert metrics["episode_return_mean"] == 0.5 * first - second
    assert first > 0


def test_as_many_weights_are_accepted_as_the_env_pays_rewards() -> None:
    env = make_vec_env(wrapping_factory(TwoGoals, named_wrappers(None, [1.0, 2.0, 3.0])), 1, seed=0)
    env.reset()
    with pytest.raises(
        ConfigError, match=r"reward_weights is \[1.0, 2.0, 3.0\]; accepted: 2 numbers, for the env pays"
    ):
        env.step([np.zeros((1, 1), np.int64)])


def test_captions_of_videos_show_what_the_env_pays() -> None:
    drawn = type("Drawn", (Game,), {"render": lambda _: np.zeros((8, 8, 3), np.uint8)})
    made = wrapping_factory(drawn, named_wrappers(f"{ATARI}.ClipRewardEnv"))
    film: Any = FilmedEnv(make_env(made, 0, {}), lambda frame: None, 1)
    film.reset(seed=0)
    for _ in range(3):
        film.step({"agent": 2})
    assert film._scene.returns == {"agent": 18.0}
