"""A search that is killed, and begun again, finds what it would have found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from forked import ForkServer
from search_kills import WORKERS, real_process, search_under_fire


def test_a_search_under_fire_finds_what_it_finds_in_peace(tmp_path: Path, server: ForkServer) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": str(WORKERS)}

    def forked(arguments: list[str], folder: Path, log: Path) -> Any:
        return server.run(arguments, log, folder=folder, environment=environment)

    mismatches = search_under_fire(forked, tmp_path, kills=2, trials=4, seed=3, longest_s=1.0, env_steps=1600)
    assert mismatches == []


@pytest.mark.proof
def test_a_search_of_real_processes_under_fire_finds_what_it_finds_in_peace(tmp_path: Path) -> None:
    mismatches = search_under_fire(real_process, tmp_path, kills=6, trials=12, seed=3, longest_s=5.0)
    assert mismatches == []
