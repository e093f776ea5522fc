"""Trainings whose workers are killed and stopped leave what undisturbed ones leave."""

from __future__ import annotations

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
    total = campaign(kills, timesteps, seed=0, folder=tmp_path, cases={case: CASES[case] for case in cases})
    assert total.mismatches == []
    assert total.kills + total.stops == kills
    assert kills >= total.restarts >= kills - total.runs  # the last one may come when the training has ended
