"""A rollout that is broken off: what it recorded is given up, and the next rollout begins where the envs are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN
from toy_envs import ScriptedEnv

from marl_sb3 import PPO, MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv

EPISODE = {"a": (3, "terminated"), "b": (3, "terminated")}
SPECS = {
    "a": PolicySpec(PPO, batch_size=2, n_epochs=1, policy_kwargs={"net_arch": [4]}),
    "b": PolicySpec(DQN, train_freq=5, buffer_size=100, learning_starts=100, policy_kwargs={"net_arch": [4]}),
}


def envs() -> MultiAgentVecEnv:
    return make_vec_env(ScriptedEnv, script=EPISODE)


class Breaks(MultiAgentCallback):
    """Breaks the training off in one step: asks for it, or raises an interrupt."""

    def __init__(self, step: int, raises: bool) -> None:
        super().__init__()
        self.step, self.raises = step, raises

    def _on_step(self) -> bool:
        if self.raises and self.num_timesteps == self.step:
            raise KeyboardInterrupt
        return self.num_timesteps != self.step


def goes_on(algorithm: MultiAgentAlgorithm, folder: Path) -> MultiAgentAlgorithm:
    return algorithm


def saved_and_loaded(algorithm: MultiAgentAlgorithm, folder: Path) -> MultiAgentAlgorithm:
    algorithm.save(folder / "saved")
    return MultiAgentAlgorithm.load(folder / "saved", envs(), device="cpu")


WITHIN = ([2, 0, 1, 2, 0], [0, 1, 0, 0, 1], [0, 2, 0, 1, 2])
AT_AN_END = ([0, 1, 2, 0, 1], [1, 0, 0, 1, 0], [0, 1, 0, 1, 2, 0])


@pytest.mark.parametrize(
    ("step", "raises", "again", "expected"),
    [
        (2, False, goes_on, WITHIN),
        (2, True, saved_and_loaded, WITHIN),
        (3, False, saved_and_loaded, AT_AN_END),
        (3, True, goes_on, AT_AN_END),
    ],
)
def test_the_next_rollout_begins_where_the_envs_are(
    step: int, raises: bool, again: Callable[..., Any], expected: Any, tmp_path: Path
) -> None:
    rollout, starts, replay = expected
    algorithm = MultiAgentAlgorithm(envs(), SPECS, n_steps=5, seed=0, device="cpu")
    try:
        algorithm.learn(100, callback=Breaks(step, raises))
    except KeyboardInterrupt:
        assert raises
    algorithm = again(algorithm, tmp_path)
    algorithm.train_iteration()
    ppo: Any = algorithm.policies["a"].rollout_buffer
    assert ppo.observations[:, 0, 2].tolist() == rollout
    assert ppo.episode_starts[:, 0].tolist() == starts
    assert ppo.rewards[:, 0].tolist() == [1] * 5
    dqn: Any = algorithm.policies["b"].replay_buffer
    assert dqn.observations[: dqn.pos, 0, 2].tolist()[: len(replay)] == replay


def test_new_episodes_begin_after_a_failed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = MultiAgentAlgorithm(envs(), SPECS, n_steps=5, seed=0, device="cpu")
    algorithm.train_iteration()
    step = ScriptedEnv.step

    def interrupted(self: ScriptedEnv, actions: Any) -> Any:
        step(self, actions)
        raise KeyboardInterrupt

    monkeypatch.setattr(ScriptedEnv, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        algorithm.train_iteration()
    monkeypatch.undo()
    algorithm.train_iteration()
    ppo: Any = algorithm.policies["a"].rollout_buffer
    assert (ppo.observations[:, 0, 2].tolist(), ppo.episode_starts[:, 0].tolist()) == ([0, 1, 2, 0, 1], [1, 0, 0, 1, 0])
