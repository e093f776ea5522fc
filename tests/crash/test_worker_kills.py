"""Trainings whose workers are killed and stopped leave what undisturbed ones leave."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from worker_kills import CASES, campaign


@pytest.mark.parametrize(
    ("kills", "timesteps", "cases"),
    [(5, 1600, ["sync"]), pytest.param(200, 8000, list(CASES), marks=pytest.mark.proof)],
)
def test_a_training_under_fire_is_the_undisturbed_one(
    kills: int, timesteps: int, cases: list[str], tmp_path: Path
) -> None:
    options = Namespace(kills=kills, timesteps=timesteps, seed=0)
    total = campaign(options, tmp_path, {case: CASES[case] for case in cases})
    assert total.mismatches == []
    assert total.counts["kills"] + total.counts["stops"] == kills
    # The last one may come when the training has ended.
    assert kills >= total.counts["restarts"] >= kills - total.counts["runs"]
