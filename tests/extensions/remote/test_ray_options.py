"""The options of Ray, and what is said where Ray cannot be used. Ray itself is not needed."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from refusals import refusal

from marl_sb3.errors import ConfigError
from marl_sb3.extensions.remote.processes.ray import Connection
from marl_sb3.extensions.remote.ray import RaySettings, read_runtime_env
from marl_sb3.train import main as train
from marl_sb3.tune import main as tune

SHORT = ["--timesteps", "40", "--n-envs", "2", "--quiet", "--set", "n_steps=10", "--set", "batch_size=20"]
OF_COMMAND = {train: SHORT, tune: ["--trials", "1", "--timesteps", "2000", "--quiet"]}


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        *((each, "--ray", r"Ray is not installed.*pip install -c constraints.txt '.\[ray\]'") for each in OF_COMMAND),
        (train, "--ray arena", "--ray is 'arena'; accepted: local, auto, or HOST:PORT"),
        (train, "--ray ray://host:10001", "accepted: local, auto, or HOST:PORT"),
        *((train, f"{each}--runners 3", "runners is 3, more than the 2 shards") for each in ("", "--ray ")),
        (train, "--ray --runners 0", "ray: runners is 0; accepted: an integer of at least 1"),
        (train, "--runners 0", "runners is 0; accepted: an integer of at least 1"),
        *(
            (train, f"{each} --workers 2", "--workers: n_workers is 2, but envs in shards have no workers")
            for each in ("--runners 2", "--ray")
        ),
        (train, "--runner-cpus 2", "--runner-cpus is only for Ray; accepted: with --ray"),
        (train, "--ray --ray-runtime-env none.yml", "none.yml"),
        (train, "--ray --set n_shards=5", "n_shards is 5, which does not divide n_envs 2; accepted: 1, 2"),
    ],
)
def test_wrong_options_end_with_code_2(
    command: Any, arguments: str, message: str, no_ray: None, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(message, refusal(command, ["arena", *OF_COMMAND[command], *arguments.split()], capsys))
    assert list(in_tmp.iterdir()) == []


def test_a_run_in_shards_is_resumed(in_tmp: Path, no_ray: None, capsys: pytest.CaptureFixture[str]) -> None:
    for name, more in (("run", ["--set", "n_shards=2"]), ("other", [])):
        assert train(["arena", *SHORT, *more, "--run-dir", name]) == 0
    assert "n_shards: 2" in Path("run/config.yaml").read_text()
    assert train(["--resume", "run", "--timesteps", "20", "--quiet"]) == 0
    assert len(Path("run/result.jsonl").read_text().splitlines()) == 3
    capsys.readouterr()
    for name, words in (("run", "Ray is not installed"), ("other", "begun without shards")):
        assert words in refusal(train, ["--resume", name, "--timesteps", "20", "--ray"], capsys)


def test_runtime_env_is_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "env.json").write_text('{"pip": ["my-env==1.0"]}')
    assert read_runtime_env(tmp_path / "env.json") == {"pip": ["my-env==1.0"]}
    (tmp_path / "list.yml").write_text("[pip]")
    with pytest.raises(ConfigError, match="is no mapping"):
        read_runtime_env(tmp_path / "list.yml")


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="num_cpus is -1; accepted: "):
        RaySettings(num_cpus=-1)


Connect = Callable[..., tuple["FakeRay", Connection]]


class FakeRay(ModuleType):
    """Takes part of Ray's place: it replaces the handler of SIGTERM, as Ray does, and writes logs."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__("ray")
        self.error = error
        self.is_initialized = lambda: False
        self.shutdowns = 0
        self._private = SimpleNamespace(worker=SimpleNamespace())

    def init(self, _temp_dir: str, **_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.folder = Path(_temp_dir)
        (self.folder / "log").write_text("started")
        if self.error is not None:
            raise self.error

    def shutdown(self) -> None:
        self.shutdowns += 1


@pytest.fixture
def connect(no_ray: None, monkeypatch: pytest.MonkeyPatch) -> Connect:
    def connected(address: str, error: BaseException | None = None) -> tuple[FakeRay, Connection]:
        ray = FakeRay(error)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray, Connection(RaySettings(address), 1)

    return connected


def test_nobody_answers(connect: Connect) -> None:
    """Ray itself would try for two minutes, and then end the process."""
    with pytest.raises(ConfigError, match=r"there is no cluster at '127\.0\.0\.1:9'"):
        connect("127.0.0.1:9")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken", "wants its token; .*RAY_AUTH_MODE=token"),
        ("Traceback\nRuntimeError: timed out", "no Ray cluster answers at '127.0.0.1:9': RuntimeError: timed out; acc"),
        ("", "it does not answer as Ray does"),
    ],
)
def test_what_answers_is_no_cluster_for_this_process(
    said: str, message: str, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: socket.socket())
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr=said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ConfigError, match=message):
        connect("127.0.0.1:9")


def test_a_ray_of_ones_own_leaves_nothing(connect: Connect, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ray, connection = connect("local")
    assert signal.getsignal(signal.SIGTERM) is before
    assert ray.folder.is_dir()
    ray._private.worker.print_to_stdstream({"lines": ["a worker died"]}, ignore_prefix=False)
    assert capsys.readouterr().out == ""
    connection.close()
    assert (ray.shutdowns, ray.folder.exists()) == (1, False)


@pytest.mark.parametrize("error", [ValueError("no such\nfolder"), SystemExit("no such")])
def test_what_ray_refuses_is_said_in_words(error: BaseException, connect: Connect) -> None:
    with pytest.raises(ConfigError, match=r"ray: cannot connect to 'local': no such$"):
        connect("local", error)
    assert not sys.modules["ray"].folder.exists()
