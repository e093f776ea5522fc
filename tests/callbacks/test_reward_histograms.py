"""Histograms of the rewards of one episode, read back from the event file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.callbacks import RewardHistogramCallback

TINY = {"batch_size": 2, "n_epochs": 1, "policy_kwargs": {"net_arch": [2]}}


class Paid(ScriptedEnv):
    """Agent a is truncated after 2 steps, b after 3. Step s of episode k pays a 10 * k + s and b twice that."""

    def __init__(self, env_index: int) -> None:
        super().__init__({"a": (2, "truncated"), "b": (3, "truncated")}, env_index=env_index)

    def _reward(self, agent: str) -> float:
        return (10.0 * self.episode + self.step_count) * (1 if agent == "a" else 2) + 1000 * self.env_index


def algorithm_with(folder: Path, n_steps: int, policies: str = "shared") -> MultiAgentAlgorithm:
    env = make_vec_env(Paid, n_envs=2)
    return MultiAgentAlgorithm(
        env, policies, n_steps=n_steps, seed=0, device="cpu", tensorboard_log=str(folder), **TINY
    )


def histograms(
    folder: Path, algorithm: MultiAgentAlgorithm, agent: str | None = None
) -> list[tuple[int, float, float]]:
    """Env step, number and sum of the rewards, of each histogram of an agent, or of all together."""
    algorithm.logger.close()
    events: Any = EventAccumulator(algorithm.logger.get_dir(), size_guidance={"histograms": 0})
    events.Reload()
    tag = f"env_runners/episode_rewards{'' if agent is None else f'/{agent}'}"
    if tag not in events.Tags()["histograms"]:
        return []
    return [(e.step, e.histogram_value.num, e.histogram_value.sum) for e in events.Histograms(tag)]


SHOWN: dict[str, tuple[int, int, Any, list[tuple[int, float, float]]]] = {
    # Episode 1 pays a 11 + 12 and b 2 * (11 + 12 + 13); episode 2 pays 21 + 22 and 2 * (21 + 22 + 23).
    "one episode of one env": (3, 12, "a", [(6, 2, 23), (12, 2, 43)]),
    "one episode of the other agent": (3, 12, "b", [(6, 3, 72), (12, 3, 132)]),
    # Steps 1-3 are episode 1, 4-6 episode 2, 7-9 episode 3: two iterations of four steps.
    "only the latest episode of an iteration, and none twice": (4, 16, "b", [(8, 3, 72), (16, 3, 132)]),
    "none of an iteration without a finished episode": (1, 14, "a", [(6, 2, 23), (12, 2, 43)]),
}


@pytest.mark.parametrize("policies", ["shared", "per_agent"])
@pytest.mark.parametrize("name", SHOWN)
def test_histograms_have_the_rewards_of_episodes(tmp_path: Path, name: str, policies: str) -> None:
    n_steps, steps, agent, expected = SHOWN[name]
    algorithm = algorithm_with(tmp_path, n_steps, policies)
    algorithm.learn(steps, callback=RewardHistogramCallback())
    assert histograms(tmp_path, algorithm, agent) == expected


def test_of_more_agents_there_is_one_histogram(tmp_path: Path) -> None:
    algorithm = algorithm_with(tmp_path, n_steps=3)
    algorithm.learn(6, callback=RewardHistogramCallback(most_agents=1))
    assert histograms(tmp_path, algorithm, "a") == []
    assert histograms(tmp_path, algorithm) == [(6, 5, 95)]


def test_an_episode_that_began_before_the_training_is_left_out(tmp_path: Path) -> None:
    algorithm = algorithm_with(tmp_path, n_steps=2)
    algorithm.learn(4)
    algorithm.learn(8, callback=RewardHistogramCallback(), reset_num_timesteps=False)
    # Steps 3 to 6: the end of episode 1, which was begun before, and all of episode 2.
    assert histograms(tmp_path, algorithm, "b") == [(12, 3, 132)]


def test_histograms_stay_out_of_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = make_vec_env(Paid, n_envs=2)
    algorithm = MultiAgentAlgorithm(env, n_steps=3, seed=0, device="cpu", verbose=1, **TINY)
    algorithm.learn(6, callback=RewardHistogramCallback())
    printed = capsys.readouterr().out
    assert "episode_return_mean" in printed
    assert "episode_rewards" not in printed
