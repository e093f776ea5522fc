"""What all tests share: one torch thread each, and short trainings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Bit-exact comparisons need a fixed number, and tests run side by side."""
    torch.set_num_threads(1)


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in a folder of its own: `runs/` appears there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
