"""A search that is killed, and begun again, finds what it would have found."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import ForkServer
from search_kills import run_really, search_under_fire


def test_a_search_under_fire_finds_what_it_finds_in_peace(tmp_path: Path, server: ForkServer) -> None:
    assert search_under_fire(server.run, tmp_path, kills=1, trials=3, seed=3, longest_s=1.0, env_steps=1600) == []


@pytest.mark.proof
def test_a_search_of_real_processes_under_fire_finds_what_it_finds_in_peace(tmp_path: Path) -> None:
    assert search_under_fire(run_really, tmp_path, kills=6, trials=12, seed=3, longest_s=5.0) == []
