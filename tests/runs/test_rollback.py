"""NaNs and infinities: they end a run, or take it back to its latest checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from small_runs import rows, start
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentCallback
from marl_sb3.errors import NumericError
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder


class Poisonous(ScriptedEnv):
    """Pays a NaN, once or always, from some step on."""

    doses = 0

    def _reward(self, agent: str) -> float:
        if type(self).doses and self.env_index == 0 and self.episode >= 5:
            type(self).doses -= 1
            return float("nan")
        return super()._reward(agent)


def poisoned(doses: int, **settings: Any) -> marl_sb3.Run:
    Poisonous.doses = doses
    settings = {"n_steps": 10, "batch_size": 10, "checkpoint_every": 1, **settings}
    return marl_sb3.train(Poisonous, n_envs=2, timesteps=120, seed=1, settings=settings, run_dir="run")


def test_a_nan_ends_the_run_and_is_named(in_tmp: Path) -> None:
    with pytest.raises(NumericError, match=r"env 0, episode 4, step 1, agent 'a': reward is nan"):
        poisoned(1)
    assert CheckpointFolder(in_tmp / "run" / "checkpoints").names() == ["ckpt-000001"]
    assert len(rows("run")) == 1


def test_a_rollback_goes_back_to_the_latest_checkpoint(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="marl_sb3"):
        run = poisoned(1, on_nan="rollback")
    assert [row["iteration"] for row in rows("run")] == [1, 2, 3, 4, 5, 6]
    assert run.algorithm.num_timesteps == 120
    assert "rollback 1 of 3, to ckpt-000001, with other random numbers" in caplog.text


def test_a_rollback_is_tried_three_times(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="marl_sb3"), pytest.raises(NumericError, match="reward is nan"):
        poisoned(99, on_nan="rollback")
    assert caplog.text.count("with other random numbers") == 3


def test_weights_that_are_not_finite_never_reach_a_checkpoint(in_tmp: Path) -> None:
    class Poison(MultiAgentCallback):
        def on_iteration_end(self, result: dict[str, Any]) -> bool:
            if result["iteration"] == 3:
                import torch as th

                with th.no_grad():
                    next(self.algorithm.policies["shared"].policy.parameters())[0] = float("inf")
            return True

    with pytest.raises(NumericError):
        start("run", callback=[Poison()], settings={"checkpoint_every": 1})
    assert CheckpointFolder(in_tmp / "run" / "checkpoints").names() == ["ckpt-000001", "ckpt-000002"]
