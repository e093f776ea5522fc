"""What all tests share: one torch thread each, and short trainings."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest
import torch
from compiling_once import compile_once, shared_symbols
from forked import Client, ForkServer, forked_subprocess
from odd_files import content

from marl_sb3 import compiling
from marl_sb3.signals import ENDING
from marl_sb3.systems import CAN_FORK

PACKAGE = Path(compiling.__file__).parent

compile_once()  # without a folder of compiled code, three processes would compile most of it three times
gc.disable()  # until all tests are imported: what is made meanwhile lives as long as they do


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each process of pytest-xdist imports another part of the files first, and loads what the others have compiled.

    In a fresh clone, pytest compiles each file of tests when it is first imported, with its assertions rewritten.
    """
    given: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if given is None:
        return
    named = [session.config.invocation_params.dir / each.partition("::")[0] for each in session.config.args]
    files = sorted({file for path in named for file in ([path] if path.is_file() else path.rglob("test_*.py"))})
    first, before = len(files) * int(given["workerid"].removeprefix("gw")) // given["workercount"], list(sys.path)
    for file in files[first : first + len(files) // given["workercount"]]:
        sys.path.insert(0, str(file.parent))
        with suppress(Exception, pytest.skip.Exception):  # it is imported, and reported, once more
            importlib.import_module(file.stem)
    sys.path[:] = before


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that export to ONNX come first, all in one process: what they import takes seconds in each."""
    items.sort(key=lambda item: "one_onnx_registry" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    """The garbage collector looks no more at modules and tests, and less often: a tenth of the time of all tests."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What needs workers is skipped where they are refused."""
    report = yield
    if not CAN_FORK and call.excinfo is not None and "cannot fork processes" in str(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, "Skipped: this system cannot fork processes")
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Compiled code of all tests must not be taken for one another: a failure of the session, as tests are."""
    if hasattr(session.config, "workerinput"):
        return
    sources = {file.parent for file in PACKAGE.rglob("*.py")}
    base = next(compiling._bases(PACKAGE)) / f"numba-{numba.__version__}"
    folders = [base / f"{source.name}-{compiling._content(source)[:16]}" for source in sources]
    if shared := {symbol for folder in folders for symbol in shared_symbols(folder)}:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.get_terminal_writer().line(f"\nsymbols of compiled code that files share: {sorted(shared)}")


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Bit-exact comparisons need a fixed number, and tests run side by side."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _nothing_is_kept_for_a_crash_of_the_system() -> Iterator[None]:
    """No test ends the system, only processes: what they wrote is there without waiting for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _seeds_are_set_without_looking_around() -> Iterator[None]:
    """PyTorch writes down the calling functions with every seed, for each kind of device that it has not found."""
    with pytest.MonkeyPatch.context() as patch:
        for devices in (torch.cuda, torch.mtia, torch.xpu):
            patch.setattr(devices, "traceback", SimpleNamespace(format_stack=list), raising=False)
        yield


@pytest.fixture(autouse=True)
def _registered_envs_are_forgotten() -> Iterator[None]:
    """What a test registers, none of the next ones finds, whatever their order."""
    from marl_sb3.core.envs.registry import REGISTERED

    before = dict(REGISTERED)
    yield
    REGISTERED.clear()
    REGISTERED.update(before)


def no_signals_are_ignored() -> None:
    """As they are where tests run in the background or under `nohup`; processes that tests start inherit it."""
    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def _signals_are_not_ignored() -> None:
    no_signals_are_ignored()


@pytest.fixture(scope="session")
def one_onnx_registry() -> Iterator[None]:
    """PyTorch's tables of operators are made once for all exports, which takes most of the time of a small one."""
    from torch._export import utils
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_materialize_cpp_cia_ops", functools.cache(utils._materialize_cpp_cia_ops))
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield


SHARED = pytest.StashKey[ForkServer]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """The processes of pytest-xdist share a fork server, since one takes seconds of the processor to start."""
    stash = node.config.stash
    if not CAN_FORK:
        return
    if SHARED not in stash:
        no_signals_are_ignored()
        stash[SHARED] = ForkServer()
    node.workerinput["fork_server"] = stash[SHARED].address


def pytest_unconfigure(config: pytest.Config) -> None:
    """The tests have ended, and with them what they have started."""
    if SHARED in config.stash:
        config.stash[SHARED].__exit__()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, _signals_are_not_ignored: None) -> Iterator[Client]:
    """Starts commands as processes without waiting for their imports."""
    if not CAN_FORK:
        pytest.skip("this system cannot fork processes")
    from marl_sb3.extensions.remote.processes.fork_server import close_all

    shared = getattr(request.config, "workerinput", {}).get("fork_server")
    with ForkServer() if shared is None else Client.of(shared) as started:
        yield started
        close_all()


@pytest.fixture(autouse=True, scope="session")
def _fork_servers_are_forked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers of envs, shards and searches start in milliseconds: their fork servers are forked, too."""
    from marl_sb3.extensions.remote.processes import fork_server

    def popen(*arguments: Any, **options: Any) -> Any:
        return forked_subprocess(request.getfixturevalue("server")).Popen(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen}))
        yield


@pytest.fixture
def real_fork_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fork servers are started as users start them."""
    from marl_sb3.extensions.remote.processes import fork_server

    fork_server.close_all()
    monkeypatch.setattr(fork_server, "subprocess", subprocess)
    yield
    fork_server.close_all()


@pytest.fixture
def quick_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search looks often for what its workers have done."""
    from marl_sb3.tools.tuning import workers

    monkeypatch.setattr(workers, "POLL_S", 0.05)


@pytest.fixture
def forked_seeds(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> ForkServer:
    """The trainings of `--seeds` are forked from the server, too."""
    from marl_sb3.runs import jobs

    monkeypatch.setattr(jobs, "subprocess", forked_subprocess(server))
    monkeypatch.setattr(jobs, "POLL_S", 0.02)
    return server


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in a folder of its own: `runs/` appears there, and modules of it are forgotten afterwards."""
    from marl_sb3.core.envs import registry

    monkeypatch.setattr(registry, "_imports", [])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a file of `benchmarks/` as a script would."""
    monkeypatch.syspath_prepend(str(PACKAGE.parent / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def outside(in_tmp: Path) -> Iterator[Path]:
    """A folder that has to stay as it is."""
    folder = in_tmp / "outside"
    for file in ("file", "folder/ckpt-000001/manifest.json", "folder/ckpt-000002/manifest.json", "folder/empty.yaml"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("{}\n")
    before = content(folder)
    yield folder
    assert content(folder) == before


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 4 iterations with a checkpoint after each of them, of which the latest three are kept; only to read."""
    import marl_sb3

    folder = tmp_path_factory.mktemp("run") / "arena"
    settings = {"n_steps": 20, "batch_size": 40, "n_epochs": 2, "checkpoint_every": 1, "env.max_timesteps": 9}
    marl_sb3.train("arena", timesteps=240, n_envs=3, seed=1, settings=settings, run_dir=folder)
    return folder
