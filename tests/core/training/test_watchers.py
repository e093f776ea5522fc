"""What every watcher of trainings keeps, and a hook of experience; a new watcher joins by a line in the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_trainings import same_weights
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, RunningEpisode, Trajectory, make_vec_env
from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.core.state.state import State, StateReader, is_plain
from marl_sb3.core.training.callback import TrainingWatcher
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.doors import WATCHERS, WatcherMaker
from marl_sb3.errors import ConfigError

SCRIPT = {"a": (3, "terminated"), "b": (2, "truncated")}
TINY: Mapping[str, Any] = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "device": "cpu", "seed": 1}


class Counts(TrainingWatcher):
    """The smallest watcher that uses each of the methods: it notes what it is told, and counts env steps."""

    def __init__(self, algorithm: MultiAgentAlgorithm, callback: BaseCallback) -> None:
        self.told: list[Any] = []
        self.env_steps, self.restored = 0, -1

    def begin_episodes(self, step: VecStep) -> None:
        self.told.append("reset")

    def before_step(self, step: VecStep, acted: Mapping[str, Any], actions: Sequence[Any]) -> None:
        self.told.append(("before", sorted(acted), [len(each) for each in actions]))

    def after_step(self, step: VecStep) -> None:
        self.told.append("after")
        self.env_steps += int(step.stepped.sum())

    def finished(self, finished: Sequence[Episode], step: VecStep) -> None:
        self.told.append(("ended", len(finished)))

    def log(self, logger: Logger, iteration: int) -> None:
        self.told.append(("iteration", iteration))

    def get_state(self) -> State:
        return {"env_steps": self.env_steps}

    def restore(self, state: StateReader) -> None:
        self.restored = state.integer("env_steps")


class HasHooks(MultiAgentCallback):
    """Callbacks that the watcher of hooks of episodes is made for."""

    def on_episode_step(self, episode: RunningEpisode) -> None:
        episode.user_data["length"] = episode.length


# Name at the door -> the watcher, and callbacks that it watches a training for.
WATCHERS_TESTED: Mapping[str, tuple[WatcherMaker, Callable[[], list[BaseCallback]]]] = {
    "episodes": (WATCHERS["episodes"], lambda: [HasHooks()]),
    "toy": (Counts, lambda: []),
}


@pytest.fixture(params=WATCHERS_TESTED)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    shipped = request.param in WATCHERS
    WATCHERS.add(request.param, WATCHERS_TESTED[request.param][0])
    yield request.param
    if not shipped:
        WATCHERS.remove(request.param)


@pytest.fixture
def toy() -> Iterator[None]:
    WATCHERS.add("toy", Counts)
    yield
    WATCHERS.remove("toy")


def made(n_envs: int = 2) -> MultiAgentAlgorithm:
    env = make_vec_env(lambda: ScriptedEnv(SCRIPT, {"a": [1, 2, 4], "b": [8, 16]}), n_envs, seed=3)
    return MultiAgentAlgorithm(env, "per_agent", **TINY)


def watcher_of(trained: MultiAgentAlgorithm) -> Any:
    """The only one."""
    (watcher,) = trained.parts.runner.watchers or []
    return watcher


# --- All watchers -----------------------------------------------------------------------------------------------------


def test_a_watcher_changes_nothing_that_is_learned(name: str) -> None:
    watched = made().learn(32, WATCHERS_TESTED[name][1]())
    alone = made().learn(32)
    assert watcher_of(watched) is not None
    assert same_weights(watched, alone)


def test_a_watcher_watches_one_training(name: str) -> None:
    trained = made().learn(16, WATCHERS_TESTED[name][1]())
    first = watcher_of(trained)
    trained.learn(16, WATCHERS_TESTED[name][1](), reset_num_timesteps=False)
    assert watcher_of(trained) is not first


def test_the_state_of_a_watcher_comes_back_with_a_checkpoint(name: str, tmp_path: Path) -> None:
    trained = made().learn(16, WATCHERS_TESTED[name][1]())
    state = watcher_of(trained).get_state()
    assert is_plain(state)
    trained.save(tmp_path / "saved")
    loaded = MultiAgentAlgorithm.load(tmp_path / "saved", made().env, device="cpu")
    loaded.learn(16, [*WATCHERS_TESTED[name][1](), stops := Stops()], reset_num_timesteps=False)
    assert stops.states[name] == {"n_calls": 0, "own": state}


class Stops(MultiAgentCallback):
    """Keeps the states that a checkpoint would have when a training has begun, and ends it with its first step."""

    def __init__(self) -> None:
        super().__init__()
        self.states: State = {}

    def _on_training_start(self) -> None:
        self.states = self.algorithm.parts.callbacks.get_state()

    def _on_step(self) -> bool:
        return False


# --- One of the user's ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy")
def test_a_watcher_sees_every_step_and_what_ends_in_it(tmp_path: Path) -> None:
    trained = made().learn(32)
    watcher = watcher_of(trained)
    assert watcher.told[0] == "reset"
    step = [("before", ["a", "b"], [2]), "after"]
    steps = [*step, ("ended", 0), *step, ("ended", 0), *step, ("ended", 2)] * 6
    assert [each for each in watcher.told[1:] if each[0] != "iteration"] == steps[: 16 * 3]
    assert [each for each in watcher.told if each[0] == "iteration"] == [("iteration", 1), ("iteration", 2)]
    assert watcher.env_steps == trained.num_timesteps == 32
    trained.save(tmp_path / "saved")
    loaded = MultiAgentAlgorithm.load(tmp_path / "saved", made().env, device="cpu")
    loaded.learn(16, reset_num_timesteps=False)
    assert watcher_of(loaded).restored == 32


def test_nobody_watches_a_training_without_a_use_for_it() -> None:
    trained = made().learn(16, CallbackList([]))
    assert trained.parts.runner.watchers == []


# --- What changes experience ------------------------------------------------------------------------------------------


class Halves(MultiAgentCallback):
    """Halves all rewards."""

    def on_trajectory(self, trajectory: Trajectory) -> None:
        trajectory.rewards /= 2


@pytest.fixture
def halving() -> Iterator[None]:
    hooks = WATCHERS["trajectories"]
    WATCHERS.add("toy", lambda algorithm, _: hooks(algorithm, Halves()))
    yield
    WATCHERS.remove("toy")


@pytest.mark.usefixtures("halving")
def test_experience_is_changed_by_what_stands_in_the_door() -> None:
    with pytest.raises(ConfigError, match="trajectories and toy would change the same experience; accepted: one of"):
        made().learn(32, Halves())
    changed = made().learn(32)
    WATCHERS.add("toy", lambda algorithm, callback: None)
    same, other = made().learn(32, Halves()), made().learn(32)
    assert same_weights(changed, same)
    assert not same_weights(changed, other)
