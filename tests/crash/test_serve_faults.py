"""A short attack on a server; the long one is `serve_faults.py --requests 100000`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import serve_faults
from serve_faults import KINDS, Attack

import marl_sb3
from marl_sb3.tools.serving.api import policy_server
from marl_sb3.tools.serving.guard import Limits


def test_nothing_that_is_sent_stops_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_faults, "TIMEOUT_S", 0.2)
    settings = {"n_steps": 8, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}}
    run = marl_sb3.train("arena", timesteps=16, n_envs=2, seed=1, settings=settings, run_dir=tmp_path / "run")
    limits = Limits(body_bytes=serve_faults.BODY_BYTES, seconds=0.2)
    with policy_server(run.files.path, reload_s=0, limits=limits) as server:
        attack = Attack(server.address, seed=1)
        asyncio.run(attack.run(600))
    assert attack.tally.failures == []
    assert attack.tally.requests == 600
    assert {kind for kind, _ in attack.tally.answers} == {kind.__name__ for kind in KINDS}
    statuses = {status for _, status in attack.tally.answers}
    assert statuses >= {200, 400, 403, 404, 405, 413}
