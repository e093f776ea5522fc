"""Callbacks: SB3's run as they are, ours hear more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch as th
from stable_baselines3.common.callbacks import CallbackList, EveryNTimesteps, StopTrainingOnMaxEpisodes
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, make_vec_env
from marl_sb3.core.metrics.episodes import Episode

N_ENVS, N_STEPS = 2, 6
ITERATION = N_ENVS * N_STEPS  # env steps; the episodes of the toy env have 3


def make(**options: Any) -> MultiAgentAlgorithm:
    settings = {"n_steps": N_STEPS, "batch_size": 4, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}, **options}
    return MultiAgentAlgorithm(make_vec_env(ScriptedEnv, n_envs=N_ENVS), seed=0, device="cpu", **settings)


class Heard(MultiAgentCallback):
    """What happened, in order."""

    def __init__(self, stop_after: int = 10**6) -> None:
        super().__init__()
        self.stop_after = stop_after
        self.events: list[str] = []
        self.results: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        self.events.append(f"step {self.num_timesteps}")
        return True

    def on_episode_end(self, episode: Episode) -> None:
        self.events.append(f"episode of env {episode.env_index}")

    def on_iteration_end(self, result: dict[str, Any]) -> bool:
        self.events.append(f"iteration {result['iteration']}")
        self.results.append(result)
        return result["iteration"] < self.stop_after


def test_callbacks_of_sb3_hear_env_steps_and_ours_hear_more(tmp_path: Path) -> None:
    direct, nested, listed, steps = Heard(), Heard(), Heard(), []
    callbacks = [direct, EveryNTimesteps(4, nested), CallbackList([listed])]
    algorithm = make(n_steps=3, tensorboard_log=str(tmp_path))
    algorithm.learn(6, callback=callbacks)
    expected = ["step 2", "step 4", "episode of env 0", "episode of env 1", "step 6", "iteration 1"]
    assert direct.events == listed.events == expected
    assert nested.events == [event for event in expected if event not in ("step 2", "step 6")]
    algorithm.learn(6, callback=lambda locals_, _: steps.append(locals_["dones"].tolist()) or True)
    assert steps == [[False, False], [False, False], [True, True]]
    assert direct.algorithm is algorithm
    assert [*tmp_path.glob("run_1/events.out*")]


class AlwaysTwo(MultiAgentCallback):
    """Makes the policy choose action 2, at a moment of its own."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        setattr(self, moment, self.set_data if moment == "_on_rollout_start" else self.set_weights)

    def set_weights(self) -> bool:
        policy: Any = self.algorithm.policies["shared"].policy
        policy.load_state_dict({**policy.state_dict(), "action_net.bias": th.tensor([0.0, 0.0, 1000.0])})
        return True

    def set_data(self) -> None:
        """As `stable_baselines3.common.utils.polyak_update` does."""
        policy: Any = self.algorithm.policies["shared"].policy
        policy.action_net.bias.data.copy_(th.tensor([0.0, 0.0, 1000.0]))


@pytest.mark.parametrize(("moment", "before"), [("_on_training_start", 0), ("_on_rollout_start", 0), ("_on_step", 1)])
def test_weights_that_a_callback_sets_act_from_the_next_step_on(moment: str, before: int) -> None:
    algorithm = make()
    algorithm.learn(ITERATION, callback=AlwaysTwo(moment))
    received = [step for steps in algorithm.env.call("received", [0, 1]) for step in steps[before:]]
    assert len(received) == ITERATION - before * N_ENVS
    assert {int(action) for step in received for action in step.values()} == {2}


def test_stop_training_on_max_episodes_ends_it_within_the_rollout() -> None:
    algorithm = make(n_steps=8)
    before = algorithm.policies["shared"].policy.action_net.weight.clone()
    algorithm.learn(1000, callback=StopTrainingOnMaxEpisodes(max_episodes=2))
    assert algorithm.num_timesteps == 2 * 3 * N_ENVS
    assert algorithm.iteration == 0
    assert th.equal(before, algorithm.policies["shared"].policy.action_net.weight)
    algorithm.learn(10, reset_num_timesteps=False)
    assert algorithm.num_timesteps == 2 * 3 * N_ENVS + 8 * N_ENVS


def test_a_callback_that_has_enough_ends_the_training_after_all_have_heard() -> None:
    stops, other = Heard(stop_after=2), Heard()
    make().learn(1000, callback=[stops, other])
    assert [result["iteration"] for result in other.results] == [1, 2]
    algorithm = make()
    algorithm.learn(1000, callback=lambda locals_, _: locals_["self"].num_timesteps < 4)
    assert algorithm.num_timesteps == 4


@pytest.mark.filterwarnings("ignore::tqdm.TqdmExperimentalWarning")
def test_progress_bar_counts_env_steps(capsys: pytest.CaptureFixture[str]) -> None:
    make().learn(2 * ITERATION, progress_bar=True)
    assert f"{2 * ITERATION} of {2 * ITERATION} env steps" in capsys.readouterr().out
