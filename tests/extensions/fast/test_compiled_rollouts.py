"""Rollouts in one call have the results of those that are taken step by step, to the bit; what is watched is not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch as th
from compiled_toys import Drifting, Masked, Uneven, UnevenCategories
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from whole_rollouts import FAST, facts, facts_of_learning, training

from marl_sb3 import PPO, EnvError, MaskablePPO, MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env
from marl_sb3.callbacks import RewardHistogramCallback
from marl_sb3.core.policies import MlpFeatures
from marl_sb3.extensions.fast.compiled_rollouts import CompiledRunner
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env
from marl_sb3.runs.execution import execute
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import prepare

PROCESSED: dict[str, Any] = {
    **{"normalize_observations": True, "normalize_rewards": True},
    **{"frame_stack": 2, "time_feature": 20, "agent_indicator": True},
}


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, all steps are taken one by one."""
    return lambda: monkeypatch.setattr(CompiledRunner, "_why_not", lambda *_: "the test says so")


CASES: dict[str, dict[str, Any]] = {
    "shared": {},
    "places as coordinates": {"env_kwargs": {"observe": "coordinates", "max_timesteps": 7}},
    "a team that sees a window": {
        "env_kwargs": {"observe": "window", "window": 3, "max_timesteps": 7},
        "team_reward": "mean",
    },
    "a team of policies": {"env": Drifting, "policies": "per_agent", "team_reward": "sum", "clip_rewards": 0.5},
    "layers in common": {"policy_kwargs": {"net_arch": [8], "features_extractor_class": MlpFeatures}},
    "a2c": {"algorithm": "a2c", "batch_size": None, "n_epochs": None},
    "real numbers, per agent": {"env": Drifting, "policies": "per_agent", "seed": 7},
    "a horizon": {"env": Drifting, "env_kwargs": {"episode_horizon": 4}},
    "many short episodes": {"n_envs": 20, "n_steps": 40, "env_kwargs": {"max_timesteps": 1}},
    "different spaces": {"env": Uneven, "policies": "per_agent"},
    "different categories": {
        "env": UnevenCategories,
        "policies": {
            "sides": PolicySpec(PPO, policy_kwargs={"net_arch": [8]}),
            "guide": PolicySpec(PPO, policy_kwargs={"net_arch": [4, 6]}),
        },
        "policy_mapping_fn": {"left": "sides", "guide": "guide", "right": "sides"},
        "policy_kwargs": None,
    },
    "cart pole": {"env": "CartPole-v1", "n_envs": 5},
    "normalised and clipped": {
        "env": Drifting,
        "normalize_observations": True,
        "clip_observations": 1.5,
        "normalize_rewards": True,
        "clip_normalized_rewards": 1.0,
        "seed": 7,
    },
    "everything of it, per agent": {
        "env": Uneven,
        "policies": {
            "sides": PolicySpec(PPO, clip_rewards=0.5, normalize_rewards=True, policy_kwargs={"net_arch": [8]}),
            "guide": PolicySpec(PPO, normalize_observations=True, normalize_epsilon=0.1),
        },
        "policy_mapping_fn": {"left": "sides", "guide": "guide", "right": "sides"},
        "policy_kwargs": None,
        "n_envs": 70,
        "n_steps": 4,
    },
    "rescaled actions": {"env": "Pendulum-v1", "rescale_actions": True, "normalize_observations": True},
    "masks for one of two policies": {
        "env": Masked,
        "policies": {"sides": PolicySpec(PPO), "guide": PolicySpec(MaskablePPO, normalize_observations=True)},
        "policy_mapping_fn": {"left": "sides", "guide": "guide", "right": "sides"},
    },
    "stacked categories": {"frame_stack": 3, "env_kwargs": {"max_timesteps": 7}},
    "stacked numbers, time and agents": {"env": Drifting, **PROCESSED, "frame_stack": 3, "n_envs": 5},
    "everything that is appended to stacked categories": {
        "env": UnevenCategories,
        "policies": {
            "sides": PolicySpec(PPO, frame_stack=2, time_feature=20, agent_indicator=True),
            "guide": PolicySpec(PPO, agent_indicator=True),
        },
        "policy_mapping_fn": {"left": "sides", "guide": "guide", "right": "sides"},
    },
    "masks and frames": {"env": Masked, "algorithm": "maskable_ppo", "policies": "per_agent", "frame_stack": 2},
    "frozen lake": {"env": "FrozenLake-v1", "n_envs": 5, "seed": 7},
    "taxi": {"env": "Taxi-v4", "algorithm": "maskable_ppo", "env_kwargs": {"max_episode_steps": 8}},
    "waterworld": {"env": "waterworld", "policies": "per_agent", "env_kwargs": {"max_cycles": 7, "radius": 0.05}},
}


@pytest.mark.parametrize("case", CASES)
def test_the_results_are_those_of_single_steps(case: str, one_by_one: Callable[[], None]) -> None:
    settings = CASES[case]
    steps = 7 * settings.get("n_envs", 3) * settings.get("n_steps", 16)
    at_once = training(**settings).learn(steps)
    one_by_one()
    assert facts(at_once) == facts(training(**settings).learn(steps))


def test_steps_may_be_taken_either_way_within_a_run(one_by_one: Callable[[], None]) -> None:
    class Watches(BaseCallback):
        def _on_step(self) -> bool:
            return self.n_calls < 1000

    def trained() -> MultiAgentAlgorithm:
        algorithm = training(Drifting, **PROCESSED)
        for callback in (None, Watches(), None):
            algorithm.learn(96, callback, reset_num_timesteps=False)
        return algorithm

    mixed = trained()
    one_by_one()
    assert facts(mixed) == facts(trained())


def test_a_run_that_is_resumed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = training(Drifting, **PROCESSED).learn(480)
    part = training(Drifting, **PROCESSED).learn(240)
    part.save(tmp_path / "saved")
    resumed = MultiAgentAlgorithm.load(tmp_path / "saved", env=make_vec_env(Drifting, 3, seed=1))
    resumed.learn(240, reset_num_timesteps=False)
    assert facts(resumed) == facts(whole)


def test_a_policy_that_the_kernels_cover_no_more_acts_by_itself() -> None:
    algorithm = training(Drifting).learn(96)
    seen: list[int] = []
    actor = algorithm.policies["shared"].policy.mlp_extractor.policy_net
    actor.register_forward_hook(lambda *_: seen.append(1))
    algorithm.learn(48, reset_num_timesteps=False)
    assert len(seen) >= 16


class Harder(MultiAgentCallback):
    """Changes the length of coming episodes."""

    def on_iteration_end(self, result: Any) -> bool:
        self.algorithm.env.configure([0, 2], max_timesteps=5 + 2 * self.algorithm.iteration)
        return True


def test_settings_that_change_count_from_the_next_episode_on(one_by_one: Callable[[], None]) -> None:
    changed = training(env_kwargs={"max_timesteps": 10}).learn(480, Harder())
    one_by_one()
    assert facts(changed) == facts(training(env_kwargs={"max_timesteps": 10}).learn(480, Harder()))
    assert {episode.length for episode in changed.tracker.episodes} >= {7, 9, 10, 11}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("rollouts: ")]  # not that kernels are compiled


class Keeps(MultiAgentCallback):
    """Keeps what a callback sees of each step."""

    def _on_training_start(self) -> None:
        self.seen: list[Any] = []

    def _on_step(self) -> bool:
        of_step = self.locals
        arrays = [getattr(of_step["step"], name).tolist() for name in ("rewards", "terminated", "truncated", "acted")]
        self.seen.append([*arrays, of_step["dones"].tolist(), repr([of_step["infos"][index] for index in range(4)])])
        return True


@pytest.mark.parametrize(
    ("env", "settings"), [(Drifting, {**PROCESSED, "algorithm": "ppo"}), (Masked, {"algorithm": "maskable_ppo"})]
)
def test_shards_come_to_the_results_of_single_steps(
    env: Any, settings: dict[str, Any], one_by_one: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    def trained() -> list[Any]:
        th.manual_seed(0)
        made = make_sharded_vec_env(env, 4, 2, seed=1)
        algorithm = MultiAgentAlgorithm(made, "per_agent", seed=4, **FAST, **settings)
        algorithm.learn(192, keeps := Keeps())
        return [*facts_of_learning(algorithm), keeps.seen]

    caplog.set_level(logging.INFO, logger="marl_sb3.extensions.fast.compiled_rollouts")
    at_once = trained()
    assert said(caplog) == ["rollouts: one compiled call each"]
    one_by_one()
    assert at_once == trained()


# Who watches


class Counts(BaseCallback):
    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.calls = self.n_calls, self.num_timesteps


class SeesSteps(BaseCallback):
    def _on_step(self) -> bool:
        assert self.locals["step"].rewards.shape == (3, 2)
        return True


class SeesNone(SeesSteps):
    sees_steps = False


@pytest.mark.parametrize(
    ("callback", "settings", "words"),
    [
        (None, {}, "one compiled call each"),
        (Counts(), {}, "one compiled call each"),
        (SeesSteps(), {}, "single steps (a callback watches each step); faster with sees_steps = False in "),
        (SeesNone(), {}, "one compiled call each"),
        (CallbackList([SeesNone(), SeesSteps()]), {}, "single steps (a callback watches each step); faster with "),
        (None, {"update_path": "torch"}, "single steps (policy shared: PyTorch chooses its actions)"),
        (None, {"frame_stack": 2, "time_feature": 9}, "one compiled call each"),
        (None, {"previous_action": True}, "single steps (policy shared: previous_action is set); faster with "),
        (None, {"algorithm": "recurrent_ppo"}, "single steps (policy shared: it has memory, or an explorer)"),
    ],
)
def test_it_is_said_how_steps_are_taken(
    callback: BaseCallback | None, settings: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="marl_sb3.extensions.fast.compiled_rollouts")
    training(Drifting, **settings).learn(96, callback)
    (message,) = said(caplog)
    assert message.startswith(f"rollouts: {words}")


def test_commands_take_all_steps_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="marl_sb3.extensions.fast.compiled_rollouts")
    settings = {**FAST, "n_envs": 3, "n_timesteps": 96}
    execute(prepare(load_config("arena", None, {"arena": settings}, seed=1), tmp_path / "run"))
    assert said(caplog) == ["rollouts: one compiled call each"]


class Histograms(RewardHistogramCallback):
    """Keeps what it logs."""

    logged: ClassVar[list[tuple[str, list[float]]]] = []

    def _record(self, name: str, rewards: Any) -> None:
        self.logged.append((name, rewards.tolist()))


def test_histograms_are_those_of_single_steps(one_by_one: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def logged() -> tuple[list[Any], Any]:
        monkeypatch.setattr(Histograms, "logged", [])
        # In the middle of episodes, a callback sees an episode from its first step on, and only then.
        algorithm = training(Drifting, n_steps=4).learn(48)
        algorithm.learn(192, callback := Histograms(), reset_num_timesteps=False)
        state = callback.get_state()
        return Histograms.logged, {name: None if array is None else array.tolist() for name, array in state.items()}

    at_once = logged()
    assert at_once[0]
    one_by_one()
    assert at_once == logged()


def test_callbacks_count_the_steps_that_they_do_not_see() -> None:
    callback = Counts()
    training().learn(96, callback)
    assert callback.calls == (32, 96)


@pytest.mark.parametrize("ends", ["returns False", "raises"])
def test_a_callback_that_is_called_once_for_many_steps_ends_the_training(
    ends: str, one_by_one: Callable[[], None]
) -> None:
    class Ends(BaseCallback):
        sees_steps = False

        def _on_step(self) -> bool:
            if ends == "raises" and self.n_calls >= 32:
                raise KeyboardInterrupt
            return self.n_calls < 32

    def stopped() -> MultiAgentAlgorithm:
        algorithm = training(Drifting, **PROCESSED)
        with suppress(KeyboardInterrupt):
            algorithm.learn(480, Ends())
        assert (algorithm.num_timesteps, algorithm.iteration) == (96, 1)
        return algorithm.learn(96, reset_num_timesteps=False)

    at_once = stopped()
    one_by_one()
    assert facts(at_once) == facts(stopped())


# Faults


@pytest.mark.parametrize(
    ("env", "fault", "expected"),
    [
        (Drifting, {"poisoned": 5}, "env 0, episode 0, step 5, agent 'a': "),
        (Drifting, {"blind": 5}, "env 0, episode 0, step 5, agent 'a': "),
        (Masked, {"blocked": 3}, "env 0, episode 0, step 3, agent 'left': action_mask forbids every action"),
    ],
    ids=["reward", "observation", "mask"],
)
def test_faults_are_told_in_the_same_words(
    env: Any, fault: dict[str, int], expected: str, one_by_one: Callable[[], None]
) -> None:
    def words() -> str:
        with pytest.raises(EnvError) as caught:
            training(env, policies="per_agent" if env is Masked else "shared", env_kwargs=fault).learn(96)
        return str(caught.value)

    at_once = words()
    one_by_one()
    assert at_once == words()
    assert at_once.startswith(expected)


def test_agents_that_do_not_end_together_are_refused() -> None:
    with pytest.raises(EnvError, match="env 0: some of its agents have ended; compiled rules end all of them at once"):
        training(Drifting, env_kwargs={"partial": 1}).learn(96)


def test_new_episodes_begin_after_a_fault() -> None:
    algorithm = training(Drifting, env_kwargs={"poisoned": 5})
    with pytest.raises(EnvError):
        algorithm.learn(96)
    algorithm.env.batch.states["poisoned"] = 0  # type: ignore[attr-defined]
    algorithm.learn(96, reset_num_timesteps=False)
    assert np.isfinite([sum(e.agent_returns.values()) for e in algorithm.tracker.episodes]).all()
