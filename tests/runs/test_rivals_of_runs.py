"""Who is there to play against a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from small_runs import start

from marl_sb3 import make_vec_env
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.runs.rivals import rivals_in
from marl_sb3.runs.run import SavedRun


def test_members_and_checkpoints_of_a_run_play_against_it_and_against_one_of_these(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start(str(folder), 2).close()
    member = shutil.copytree(folder / "checkpoints" / "ckpt-000002", folder / "league" / "shared@2")
    listed = [{"policy": "shared", "iteration": 2, "rating": 7.0}]
    (folder / "league" / "members.json").write_text(json.dumps(listed))
    env = make_vec_env("arena", n_envs=1)
    for named in (folder, member, folder / "checkpoints" / "ckpt-000002"):
        run = SavedRun.open(named)
        *policies, drawing = [(rival.name, rival.about, rival.load(env)) for rival in rivals_in(run)]
        assert drawing == ("random", "", "random")
        names = [("league/shared@2", "rating 7"), *((f"checkpoint {which}", "") for which in ("latest", "best", "2"))]
        assert [(name, about) for name, about, _ in policies] == names
        assert all(isinstance(loaded, PolicyBundle) for *_, loaded in policies)
