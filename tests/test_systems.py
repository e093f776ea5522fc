"""What other systems lack: it is asked for in one place, and the commands do without it. Simulated, on Linux."""

from __future__ import annotations

import ast
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from documentation import ROOT
from without_posix import LACKING

from marl_sb3 import systems
from marl_sb3.errors import ConfigError
from marl_sb3.files.atomic import sync_to_disk
from marl_sb3.files.regular import open_regular, require_regular

PACKAGE = ROOT / "marl_sb3"
# Who else may take these names: what only systems that fork get to, keys of POSIX terminals, a look at an attribute.
ALLOWED = {
    "extensions/remote": None,
    "systems.py": None,
    "tools/viewing/stages.py": {"import termios", "import tty", "os.tcgetpgrp", "os.getpgrp"},
    "stacks.py": {"faulthandler.register", "faulthandler.unregister"},
    "tools/examining/api.py": {"os.pread"},
    "core/learners/learner.py": {"os.sched_getaffinity"},
}
# There, but otherwise: a file in use is not replaced, SIGTERM ends at once, nothing is forked.
OTHERWISE = {
    "os": ("name", "rename", "replace", "renames", "fsync", "kill", "chmod", "symlink", "link", "startfile"),
    "sys": ("platform", "getwindowsversion"),
}
OF_POPEN = {"start_new_session", "process_group", "pass_fds", "preexec_fn", "creationflags"}
WORDS = {"read_text", "write_text", "open", "Popen", "multiprocessing"} | {
    name for table in (LACKING, OTHERWISE) for names in table.values() for name in names
}  # in a file that is worth parsing
NAMES = {f"{module}.{name}" for table in (LACKING, OTHERWISE) for module, names in table.items() for name in names}


def uses(source: str) -> Iterator[str]:
    """Each use of such a name, and each text file whose encoding would be that of the system."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (f"import {each.name}" for each in names if each.name in LACKING["modules"])
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{each.name}" for each in names if f"{module}.{each.name}" in NAMES)
                yield from [f"import {module}"] if module in (*LACKING["modules"], "multiprocessing") else []
            case ast.Attribute(value=ast.Name(id=module), attr=name) if f"{module}.{name}" in NAMES:
                yield f"{module}.{name}"
            case ast.Call(args=[ast.Name(id=module), ast.Constant(value=str(name)), *_]) if f"{module}.{name}" in NAMES:
                yield f"{module}.{name}"  # getattr, hasattr
            case ast.Call(keywords=keywords) if OF_POPEN & {each.arg for each in keywords}:
                yield from sorted(OF_POPEN & {str(each.arg) for each in keywords})
            case ast.Call() if is_text_without_encoding(node):
                yield f"{ast.unparse(node)} without encoding"
            case _:
                pass


def is_text_without_encoding(call: ast.Call) -> bool:
    given = {each.arg: each.value for each in call.keywords}
    match call.func:
        case ast.Attribute(attr="read_text" | "write_text"):
            return "encoding" not in given
        case ast.Name(id="open"):
            mode = given.get("mode", call.args[1] if len(call.args) > 1 else ast.Constant("r"))
            return "encoding" not in given and isinstance(mode, ast.Constant) and "b" not in mode.value
    return False


def allowed(path: str) -> set[str] | None:
    return next((names for where, names in ALLOWED.items() if path.startswith(where)), set())


def test_what_others_lack_is_asked_for_in_one_place() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        source = path.read_text(encoding="utf-8")
        if (known := allowed(name)) is not None and not WORDS.isdisjoint(re.findall(r"\w+", source)):
            found += [f"{name}: {use}" for use in uses(source) if use not in known]
    assert found == []


@pytest.mark.parametrize(
    ("source", "use"),
    [
        ("import fcntl", "import fcntl"),
        ("from os import fork", "os.fork"),
        ("from multiprocessing import Process", "import multiprocessing"),
        ("os.killpg(1, 9)", "os.killpg"),
        ("hasattr(signal, 'SIGHUP')", "signal.SIGHUP"),
        ("if sys.platform == 'win32': pass", "sys.platform"),
        ("subprocess.Popen([], start_new_session=True)", "start_new_session"),
        ("path.read_text()", "path.read_text() without encoding"),
        ("open(path, 'a')", "open(path, 'a') without encoding"),
    ],
)
def test_a_use_is_found(source: str, use: str) -> None:
    assert list(uses(source)) == [use]
    assert list(uses("path.read_text(encoding='utf-8'); open(path, 'rb'); os.open(path, os.O_RDONLY)")) == []


COMMANDS = """
import without_posix
without_posix.remove()
import marl_sb3.benchmark, marl_sb3.compare, marl_sb3.imitate, marl_sb3.match, marl_sb3.plot, marl_sb3.report
import marl_sb3.serve, marl_sb3.tools.serving.api, marl_sb3.tools.serving.ui, marl_sb3.watch
from marl_sb3 import doctor, evaluate, export, train, tune
from marl_sb3.doctor import main as doctor
from marl_sb3.evaluate import main as evaluate
from marl_sb3.export import main as export
from marl_sb3.train import main as train
from marl_sb3.tune import main as tune

small = "--set", "n_steps=10", "--set", "n_envs=2", "--quiet"
assert train(["arena", *small, "--timesteps", "20", "--run-dir", "run"]) == 0
assert train(["--resume", "run", "--timesteps", "40", "--quiet"]) == 0
assert evaluate(["run", "--episodes", "1", "--checkpoint", "latest"]) == 0
assert export(["run", "--format", "sb3", "--checkpoint", "latest", "--out", "zips"]) == 0
assert doctor(["arena", "--episodes", "1"]) == 0
assert train(["arena", *small, "--workers", "2"]) == 2
assert tune(["arena", "--trials", "2", "--workers", "2", "--study", "study"]) == 2
"""


def test_the_commands_do_without_posix(in_tmp: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [sys.executable, "-c", COMMANDS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    refused = [line for line in done.stderr.splitlines() if "cannot fork processes" in line]
    assert [line.partition(",")[0] for line in refused] == [
        "error: --workers: n_workers is 2",
        "error: --workers is 2",
    ]


# --- Windows ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The package takes this system for Windows."""
    monkeypatch.setattr(systems, "IS_WINDOWS", True)
    return monkeypatch


def test_a_file_in_use_is_replaced_when_it_is_free(windows: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusals = iter([PermissionError(13, "in use"), PermissionError(13, "in use"), None])

    def busy(source: Path, target: Path) -> None:
        if (error := next(refusals)) is not None:
            raise error
        target.write_bytes(source.read_bytes())

    windows.setattr(systems.os, "replace", busy)
    (tmp_path / "new").write_bytes(b"new")
    systems.replace(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == b"new"


def test_a_file_that_stays_in_use_is_an_error(windows: pytest.MonkeyPatch) -> None:
    def busy(source: Path, target: Path) -> None:
        raise PermissionError(13, "in use")

    windows.setattr(systems.os, "replace", busy)
    windows.setattr(systems, "_IN_USE_S", 0.05)
    with pytest.raises(PermissionError, match="in use"):
        systems.replace("new", "old")


def test_windows_syncs_files_that_it_may_write_and_no_folders(windows: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[int] = []
    really_open = os.open
    (tmp_path / "file").touch()
    windows.setattr(systems.os, "open", lambda path, flags: opened.append(flags) or really_open(path, flags))
    sync_to_disk(tmp_path / "file")
    sync_to_disk(tmp_path)
    assert opened == [os.O_RDWR]


def test_macos_syncs_down_to_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import fcntl

    calls: list[int] = []
    monkeypatch.setattr(systems, "IS_MACOS", True)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command: calls.append(command))
    monkeypatch.setattr(systems.os, "fsync", lambda descriptor: calls.append(-1))
    sync_to_disk(tmp_path)
    assert calls == [getattr(fcntl, "F_FULLFSYNC", 51)]


def test_links_are_refused_where_opening_follows_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("marl_sb3.files.regular.OPEN_FOLLOWS_LINKS", True)
    monkeypatch.setattr("marl_sb3.files.regular.NO_LINKS_NO_WAITING", 0)
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="it is a link; accepted: a regular file"):
        open_regular(tmp_path / "link")
    with open(tmp_path / "file", "rb", opener=open_regular) as file:
        assert file.read() == b"mine"


def test_a_junction_is_a_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    junction = SimpleNamespace(st_mode=stat.S_IFDIR | 0o755, st_reparse_tag=0xA0000003)
    monkeypatch.setattr(systems.os, "lstat", lambda path: junction)
    with pytest.raises(OSError, match="it is a link"):
        require_regular(tmp_path)


def test_a_process_is_asked_to_end_by_a_signal_that_it_can_handle(windows: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    windows.setattr(signal, "CTRL_BREAK_EVENT", 1, raising=False)
    windows.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    process: Any = SimpleNamespace(send_signal=sent.append, terminate=lambda: sent.append("at once"))
    systems.ask_to_end(process)
    assert (sent, systems.apart()) == ([1], {"creationflags": 0x200})


def test_a_port_of_a_server_is_not_shared(windows: pytest.MonkeyPatch) -> None:
    """On Windows, SO_REUSEADDR would let another program listen on the same port."""
    windows.setattr(socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    options: list[int] = []
    listening: Any = SimpleNamespace(setsockopt=lambda level, option, value: options.append(option))
    systems.take_port_alone(listening)
    assert options == [-5]


def test_forks_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    systems.require_fork("n_workers", 2, "0")
    monkeypatch.setattr(systems, "CAN_FORK", False)
    with pytest.raises(ConfigError, match=r"n_workers is 2, but this system cannot fork processes; .*accepted here: 0"):
        systems.require_fork("n_workers", 2, "0")
