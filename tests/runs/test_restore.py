"""The policies of a run as they were at one of its checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_runs import rows, start

from marl_sb3 import load_run
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder


def test_the_best_and_the_newest_are_kept_and_can_be_asked_for(in_tmp: Path) -> None:
    settings = {"checkpoint_every": 1, "checkpoint_keep": 2}
    start("run", iterations=8, settings=settings)
    returns = [row["env_runners/episode_return_mean"] for row in rows("run")]
    best = f"ckpt-{max(range(1, 9), key=lambda i: (returns[i - 1], i)):06d}"
    names = CheckpointFolder(in_tmp / "run" / "checkpoints").names()
    assert names == sorted({best, "ckpt-000007", "ckpt-000008"})
    assert load_run("run").checkpoint == best
    assert load_run("run", "latest").checkpoint == "ckpt-000008"
    assert load_run("run", "7").checkpoint == "ckpt-000007"
    with pytest.raises(CheckpointError, match="has no checkpoint '99'; accepted: best, latest, or one of"):
        load_run("run", "99")


def test_the_lowest_is_the_best_where_that_is_said(in_tmp: Path) -> None:
    settings = {"checkpoint_every": 1, "checkpoint_keep": 1, "checkpoint_mode": "min"}
    start("run", iterations=6, settings=settings)
    returns = [row["env_runners/episode_return_mean"] for row in rows("run")]
    assert load_run("run").checkpoint == f"ckpt-{min(range(1, 7), key=lambda i: (returns[i - 1], -i)):06d}"


def test_restored_policies_act_as_those_of_the_run(in_tmp: Path) -> None:
    run = start("run", iterations=2, policies="per_agent")
    again = load_run("run", "latest")
    observations = {agent: np.array([3, 40]) for agent in ("agent1", "agent2")}
    observations = {agent: run.algorithm.env.groups[0].observation_space.sample() for agent in observations}
    assert run.algorithm.predict(observations, True) == again.algorithm.predict(observations, True)
