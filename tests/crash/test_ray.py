"""On a real Ray cluster, whose nodes are processes of this machine. Needs the extra `ray`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
import psutil
import ray_kill_harness as harness

import marl_sb3
from marl_sb3.config.ray import RaySettings
from marl_sb3.errors import ConfigError
from marl_sb3.runners.ray.runners import ray_runners

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore")]


def trained(address: str | None, runners: int = 1, iterations: int = 3) -> str:
    algorithm = harness.algorithm_on(address, runners)
    for _ in range(iterations):
        algorithm.train_iteration()
    algorithm.env.close()
    return harness.digest(algorithm)


def test_the_number_of_runners_changes_nothing() -> None:
    expected = trained(None)
    with harness.cluster_of(harness.NODES) as cluster:
        assert [trained(cluster.address, runners) for runners in (1, 2, 4)] == [expected] * 3


def test_kills_change_nothing() -> None:
    assert harness.main(["--kills", "4", "--nodes", "1"]) == 0


def test_runners_that_never_get_their_cpus_are_refused() -> None:
    with harness.cluster_of(1) as cluster:
        algorithm = harness.algorithm_on(None)
        runners = ray_runners(RaySettings(cluster.address, 2, num_cpus=3.0, start_timeout_s=5.0), harness.SHARDS)
        with pytest.raises(ConfigError, match="0 of 2 runners have started within 5 s"):
            runners.start(algorithm.parts.runner._plan)
        assert harness.runner_processes() == []


def test_nothing_is_left_of_a_ray_of_ones_own(tmp_path: Path) -> None:
    """Also after Ctrl-C."""
    command = [sys.executable, "-m", "marl_sb3.train", "arena", "--ray", "--runners", "1", "--run-dir", "run"]
    run = subprocess.Popen([*command, "--n-envs", "4"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (tmp_path / "run" / "result.jsonl").exists():
        assert run.poll() is None
        time.sleep(0.2)
    started = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(2)
    assert run.wait(60) == 130
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []


def test_an_address_where_nobody_answers_takes_seconds(tmp_path: Path) -> None:
    started_s = time.monotonic()
    command = [sys.executable, "-m", "marl_sb3.train", "arena", "--ray", "127.0.0.1:9", "--run-dir", "run"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "nobody answers at '127.0.0.1:9'" in ended.stderr
    assert time.monotonic() - started_s < 30
    assert not (tmp_path / "run").exists()


def values(study: Any) -> dict[int, float]:
    """Of the trials, by the index that retries have in common."""
    return {trial.user_attrs["index"]: trial.value for trial in study.trials if trial.value is not None}


def test_a_search_on_ray_finds_what_a_local_one_finds(in_tmp: Path) -> None:
    """A worker of the cluster is killed meanwhile."""
    options: dict[str, Any] = {
        "trials": 3,
        "timesteps": 2000,
        "sampler": "random",
        "pruner": "none",
        "evaluations": 2,
        "evaluation_episodes": 2,
        "settings": {"n_steps": 50},
    }
    local = marl_sb3.tune("arena", study="local", **options)
    with harness.cluster_of(3) as cluster:
        killer = threading.Thread(target=kill_a_trial)
        killer.start()
        remote = marl_sb3.tune("arena", study="remote", workers=2, ray=RaySettings(cluster.address), **options)
        killer.join()
    assert values(remote) == values(local)
    assert any(trial.user_attrs.get("error") == "its process ended" for trial in remote.trials)
    for trial in remote.completed():
        assert (remote.folder_of(trial) / "checkpoints").is_dir()


def kill_a_trial() -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                if each.cmdline()[:1] and each.cmdline()[0].startswith("ray::train_remotely"):
                    each.kill()
                    return
        time.sleep(0.05)


def test_envs_of_all_runners_share_a_counter(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "shared_counter.py"), "--target", "60"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(re.findall(r"(\d+) episodes begun in all runners", ended.stdout)[0]) >= 60


def test_the_benchmark_of_runners_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "ray_runners.py"), "--runners", "2", "--shards", "2"]
    ended = subprocess.run([*command, "--n-steps", "8"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert 0 < json.loads(ended.stdout.splitlines()[-1])["efficiency"] <= 1.05
