"""A search that is killed, and begun again, finds what it would have found."""

from __future__ import annotations

from pathlib import Path

from search_kills import search_under_fire


def test_a_search_under_fire_finds_what_it_finds_in_peace(tmp_path: Path) -> None:
    outcome = search_under_fire(tmp_path, kills=1, trials=4, seed=3, longest_s=5.0, env_steps=1600)
    assert outcome.mismatches == []
