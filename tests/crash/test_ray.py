"""On a real Ray cluster, whose nodes are processes of this machine. Needs the extra `ray`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
import psutil
import ray_kill_harness as harness
from kills import command
from waiting import wait_for

import marl_sb3
from marl_sb3 import MultiAgentCallback, Trajectory
from marl_sb3.errors import ConfigError, RunnersLostError
from marl_sb3.extensions.remote.ray import RaySettings
from marl_sb3.extensions.remote.sharded import shard_runners
from marl_sb3.tools.tuning.finals import candidates
from marl_sb3.train import main

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore")]


class TeamReward(MultiAgentCallback):
    """Each agent gets what the other one is paid in the rollout, with its last transition."""

    def on_trajectory(self, trajectory: Trajectory) -> None:
        trajectory.rewards[-1] += sum(other.rewards.sum() for other in trajectory.others.values())


def trained(address: str | None, runners: int = 1, callback: MultiAgentCallback | None = None) -> str:
    algorithm = harness.algorithm_on(address, runners)
    algorithm.learn(3 * harness.STEPS * harness.ENVS, callback)
    algorithm.env.close()
    return harness.digest(algorithm)


def test_the_number_of_runners_changes_nothing() -> None:
    expected = trained(None)
    with harness.cluster_of(harness.NODES) as cluster:
        assert [trained(cluster.address, runners) for runners in (1, 2, 4)] == [expected] * 3


def test_trajectories_that_a_hook_rewrites_are_the_same_on_every_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # nodes import the hook from this file
    expected = trained(None, callback=TeamReward())
    assert expected != trained(None)
    with harness.cluster_of(harness.NODES) as cluster:
        assert [trained(cluster.address, runners, TeamReward()) for runners in (1, 2)] == [expected] * 2


def test_kills_change_nothing() -> None:
    assert command(harness.campaign, [], kills=4, nodes=1, runners=3) == 0


def test_runners_that_cannot_start_are_refused(tmp_path: Path) -> None:
    """They get no CPUs, or the node has another version of a package."""
    other = tmp_path / "stable_baselines3-0.0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Name: stable_baselines3\nVersion: 0.0.1\n")
    plan = harness.algorithm_on(None).parts.runner._plan
    with harness.cluster_of(0) as cluster:
        cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})
        for num_cpus, message in ((3.0, "0 of 1 runners have started within 5 s"), (1.0, "stable-baselines3 0.0.1")):
            start_timeout_s = 5.0 if num_cpus > 1 else 60.0
            settings = RaySettings(cluster.address, 1, num_cpus=num_cpus, start_timeout_s=start_timeout_s)
            with pytest.raises(ConfigError, match=message):
                shard_runners(settings, harness.SHARDS).start(plan)
            _, alive = psutil.wait_procs(harness.processes(), timeout=20)  # Ray kills them soon, not at once
            assert alive == []


class RemovesNodes(MultiAgentCallback):
    """Removes all nodes but the head after an iteration."""

    def __init__(self, cluster: Any, iteration: int) -> None:
        super().__init__()
        self.cluster, self.iteration = cluster, iteration

    def on_iteration_end(self, result: Any) -> bool:
        if self.algorithm.iteration == self.iteration:
            for node in list(self.cluster.worker_nodes):
                self.cluster.remove_node(node, False)
        return True


def test_a_run_that_has_lost_all_nodes_is_resumed_exactly(in_tmp: Path) -> None:
    settings = {"n_steps": 50, "batch_size": 50, "n_shards": 4, "device": "cpu", "policy_kwargs.net_arch": [8]}
    options: Any = {"n_envs": 4, "timesteps": 1600, "seed": 3, "settings": settings}
    whole = marl_sb3.train("arena", run_dir="whole", **options)
    with harness.cluster_of(2) as cluster:
        ray, callback = RaySettings(cluster.address, 2, start_timeout_s=15.0), RemovesNodes(cluster, 3)
        with pytest.raises(RunnersLostError, match="no runner is left, and none has started within 15 s"):
            marl_sb3.train("arena", run_dir="lost", ray=ray, callback=callback, **options)
    assert [path.name for path in Path("lost/checkpoints").glob("ckpt-*")] == ["ckpt-000003"]
    resumed = marl_sb3.train(resume="lost")
    assert harness.digest(resumed.algorithm) == harness.digest(whole.algorithm)
    assert len(resumed.results) == len(whole.results)


OF_OWN_ENV = """
import logging, os
from marl_sb3.envs.arena import ArenaEnv

class Own(ArenaEnv):
    def __init__(self, **settings):
        super().__init__(**settings)
        with open(os.environ["SEEN"], "a") as file:
            print(os.environ.get("GREETING"), __file__, file=file)
        logging.getLogger("own").warning("greeting: %s", os.environ.get("GREETING"))
"""


@pytest.mark.parametrize("field", ["py_modules", "working_dir"])
def test_runners_get_their_runtime_env(
    field: str, in_tmp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And what they log is logged here."""
    package = tmp_path / "source" / f"of_{field}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(OF_OWN_ENV)
    where = str(package.parent) if field == "working_dir" else [str(package)]
    Path("runtime.json").write_text(json.dumps({field: where, "env_vars": {"GREETING": "hello"}}))
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    short = ["--n-envs", "2", "--timesteps", "40", "--set", "n_steps=20", "--set", "batch_size=20", "--quiet"]
    assert main([f"of_{field}:Own", *short, "--ray", "--runners", "1", "--ray-runtime-env", "runtime.json"]) == 0
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert seen[0] == ["None", str(package / "__init__.py")]  # the probe in this process
    assert [greeting for greeting, _ in seen[1:]] == ["hello", "hello"]
    assert all("runtime_resources" in file for _, file in seen[1:])
    assert [record.getMessage() for record in caplog.records].count("greeting: hello") == 2


def of_terminal(run: subprocess.Popen[str], number: int) -> None:
    os.killpg(run.pid, number)


def of_one(run: subprocess.Popen[str], number: int) -> None:
    run.send_signal(number)


@pytest.mark.parametrize(
    ("command", "number", "send"),
    [
        ("train", signal.SIGINT, of_terminal),
        ("train", signal.SIGHUP, of_terminal),
        ("train", signal.SIGTERM, of_one),
        ("tune", signal.SIGINT, of_terminal),
    ],
    ids=["ctrl-c", "terminal closed", "terminated", "search"],
)
def test_nothing_is_left_of_a_ray_of_ones_own(command: str, number: int, send: Any, tmp_path: Path) -> None:
    """And the interrupted training, or that of each trial, is saved."""
    options = {
        "train": ["--runners", "1", "--run-dir", "run"],
        "tune": ["--workers", "1", "--timesteps", "1000000", "--study", "run", "--no-confirm"],
    }[command]
    line = [sys.executable, "-m", f"marl_sb3.{command}", "arena", "--ray", "--set", "n_envs=4", *options]
    pipe, temporary = subprocess.PIPE, Path(tempfile.mkdtemp(prefix="r"))  # short: it has Ray's sockets
    environment = {**os.environ, "TMPDIR": str(temporary)}
    run = subprocess.Popen(
        line, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    wait_for(lambda: any([*tmp_path.glob("run/result.jsonl"), *temporary.glob("marl_sb3-*/run/result.jsonl")]))
    started = psutil.Process(run.pid).children(recursive=True)
    send(run, number)
    output = run.communicate(timeout=60)
    assert run.returncode == 130, output
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []
    assert [*temporary.glob("ray-*"), *temporary.glob("marl_sb3-*")] == []
    shutil.rmtree(temporary)  # a cache of PyTorch
    assert len(list(tmp_path.glob("**/checkpoints/ckpt-*"))) == 1


def test_an_address_where_nobody_answers_takes_seconds(tmp_path: Path) -> None:
    started_s = time.monotonic()
    command = [sys.executable, "-m", "marl_sb3.train", "arena", "--ray", "127.0.0.1:9", "--run-dir", "run"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "there is no cluster at '127.0.0.1:9'" in ended.stderr
    assert time.monotonic() - started_s < 30
    assert not (tmp_path / "run").exists()


def values(study: Any) -> dict[int, float]:
    """Of the trials, by the index that retries have in common."""
    return {trial.user_attrs["index"]: trial.value for trial in study.trials if trial.value is not None}


def kill_a_trial(cluster: Any) -> bool:
    found = harness.processes("ray::train_remo")
    for each in found[:1]:
        each.kill()
    return bool(found)


def remove_a_node(cluster: Any) -> bool:
    """Remove a node on which a trial is trained; the driver's own node is not one of those."""
    from ray._private.worker import global_worker

    parents = {each.ppid() for each in harness.processes("ray::train_remo")}
    for node in list(cluster.worker_nodes):
        raylet = node.all_processes["raylet"][0].process.pid
        if raylet in parents and node.raylet_socket_name != global_worker.node.raylet_socket_name:
            cluster.remove_node(node, False)
            return True
    return False


@pytest.mark.parametrize("disturb", [kill_a_trial, remove_a_node])
def test_a_search_on_ray_finds_what_a_local_one_finds(disturb: Callable[[Any], bool], in_tmp: Path) -> None:
    """A process or a node of the cluster is killed meanwhile."""
    options: dict[str, Any] = {
        "trials": 3,
        "hparams": {"arena": {"n_timesteps": 20_000, "n_steps": 50}},
        "sampler": "random",
        "pruner": "none",
        "evaluations": 2,
        "evaluation_episodes": 2,
        "confirm_seeds": 2,
        "confirm_best": 1,
    }
    local = marl_sb3.tune("arena", study="local", **options)
    with harness.cluster_of(3) as cluster:
        killer = threading.Thread(target=wait_for, args=[lambda: disturb(cluster)])
        killer.start()
        remote = marl_sb3.tune("arena", study="remote", workers=2, ray=RaySettings(cluster.address), **options)
        killer.join()
    assert values(remote) == values(local)
    # A trial that was tried again has another number.
    assert [each.values for each in candidates(remote)] == [each.values for each in candidates(local)]
    assert any(trial.user_attrs.get("error") == "its process ended" for trial in remote.trials)
    for trial in remote.completed():
        assert (remote.folder_of(trial) / "checkpoints").is_dir()


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
