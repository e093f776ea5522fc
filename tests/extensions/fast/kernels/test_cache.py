"""Compiled kernels are loaded from their files, and compiled again where the files are damaged."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from marl_sb3 import compiling
from marl_sb3.compiling import KernelCache, c_function, carray, compiled, note_compiling, pointer
from marl_sb3.extensions.fast.kernels import layers, optimizers
from marl_sb3.extensions.fast.kernels import ppo as kernel


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiled code is kept in this test."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def one_more(number: int) -> int:
    return number + 1


def called() -> Any:
    """Compiled or loaded, as in a new process; how often it was loaded."""
    function: Any = compiled(one_more)
    assert function(1) == 2
    return sum(function.stats.cache_hits.values())


def with_one_bit_changed(content: bytes) -> bytes:
    """In the flags of the machine code, where that is an ELF file: a loader does not notice."""
    place = content.find(b"\x7fELF") + 48
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[:-20],
    "empty": lambda content: b"",
    "another file": lambda content: b"something else",
    "one bit": with_one_bit_changed,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_files_are_compiled_again(
    damage: Callable[[bytes], bytes], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert (called(), called()) == (0, 1)
    (file,) = folder.rglob("*.nbc")
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert (called(), called()) == (0, 1)
    (warning,) = caplog.messages
    assert "one_more" in warning
    assert f"its file {file} cannot be used" in warning


DAYS_S = 24 * 3600


def aged(folder: Path, days: float, *names: str) -> Path:
    """A folder with files that was last used so many days ago."""
    folder.mkdir(parents=True)
    then_s = time.time() - days * DAYS_S
    for name in names:
        (folder / name).touch()
        os.utime(folder / name, (then_s, then_s))
    os.utime(folder, (then_s, then_s))
    return folder


def test_compiling_removes_what_was_not_used_for_a_month(folder: Path, tmp_path: Path) -> None:
    base, sources = folder, "ppo-0123456789abcdef"
    files = "ppo.update-1.py311.nbi", "ppo.update-1.py311.1.nbc", "ppo.update-1.py311.nbi.0123456789abcdef"
    ours = f"numba-{numba.__version__}"
    removed = [aged(base / "numba-0.1.0" / sources, 31, *files), aged(base / ours / sources, 31, *files)]
    kept = [
        aged(base / ours / "td3-0123456789abcdef", 29, *files),
        aged(base / "numba-0.2.0" / sources, 31, "notes.txt"),
        aged(base / ours / "results", 31, *files),
        aged(base / "other" / sources, 31, *files),
        aged(tmp_path / "elsewhere" / sources, 31, *files),
    ]
    (base / "numba-0.3.0").symlink_to(tmp_path / "elsewhere")
    (base / ours / "sac-0123456789abcdef").symlink_to(kept[-1])
    assert called() == 0
    assert not any(path.exists() for path in (*removed, base / "numba-0.1.0"))
    assert all(any(path.iterdir()) for path in kept)
    assert (base / ours / "sac-0123456789abcdef").is_symlink()


def test_loading_counts_as_use(folder: Path) -> None:
    called()
    (used,) = folder.glob("*/*")
    then_s = time.time() - 31 * DAYS_S
    for path in (*used.iterdir(), used):
        os.utime(path, (then_s, then_s))
    assert called() == 1
    compiling.remove_unused(folder)
    assert called() == 1


def test_a_damaged_cache_that_cannot_be_written_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError

    called()
    (file,) = folder.rglob("*.nbc")
    file.write_bytes(b"")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refused)
        assert (called(), called()) == (0, 0)
    assert len(caplog.messages) == 2
    assert [*folder.rglob("*.nbc*")] == [file]


INNER = """
from marl_sb3.compiling import kernel

@kernel
def inner(number):
    return number + {added}
"""
OUTER = """
from changing_inner import inner
from marl_sb3.compiling import kernel

@kernel
def outer(number):
    return 2 * inner(number)

def warm_up():
    outer(1)
"""


def copied_sources(folder: Path, added: int = 1) -> None:
    """A clone: the same modules in another folder."""
    folder.mkdir(parents=True)
    (folder / "changing_inner.py").write_text(INNER.format(added=added))
    (folder / "changing_outer.py").write_text(OUTER)


def of_copy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernel as a new process imports it from this folder."""
    for module in ("changing_inner", "changing_outer"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        return importlib.import_module("changing_outer").outer


@pytest.fixture
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, where numba was told of no other."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "marl_sb3"


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME is Linux's")
def test_a_second_clone_does_not_compile_again_and_one_with_another_kernel_in_another_file_does(
    user_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for clone, added in (("one", 1), ("two", 1), ("changed", 10)):
        copied_sources(tmp_path / clone / "kernels", added)
        outer = of_copy(tmp_path / clone / "kernels", monkeypatch)
        results.append((outer(1), sum(outer.stats.cache_hits.values())))
        assert Path(outer.stats.cache_path).is_relative_to(user_cache)
        assert not list((tmp_path / clone).rglob("*.nb?"))
    assert results == [(4, 0), (4, 1), (22, 0)]


def test_a_kernel_that_was_loaded_is_linked_into_one_that_is_compiled(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_sources(tmp_path / "clone", added=10)
    for hits in (0, 1):
        outer = of_copy(tmp_path / "clone", monkeypatch)
        inner: Any = sys.modules["changing_inner"].inner
        assert (outer(1), sum(outer.stats.cache_hits.values()), sum(inner.stats.cache_hits.values())) == (22, 0, hits)
        for file in folder.rglob("changing_outer*.nbc"):
            file.unlink()


STARTS = """
import sys, numpy
from marl_sb3.compiling import load_blas
from marl_sb3.envs.compiled.random import random, words_of
load_blas()
print(random(words_of(numpy.random.default_rng(7))), sum(random.stats.cache_hits.values()))
print(*[name for name in ("numba.np.npyimpl", "scipy.linalg") if name in sys.modules])
from scipy.linalg import cython_blas, inv
print(inv([[2.0]]), "sgemm" in cython_blas.__pyx_capi__)
"""


def test_a_process_that_compiles_nothing_loads_neither_scipys_linear_algebra_nor_what_numba_compiles_with(
    folder: Path,
) -> None:
    line, drawn = [sys.executable, "-c", STARTS], np.random.default_rng(7).random()
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = [subprocess.run(line, env=variables, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert printed[0] == f"{drawn} 0\nnumba.np.npyimpl\n[[0.5]] True\n"
    assert printed[1] == f"{drawn} 1\n\n[[0.5]] True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME is Linux's")
def test_without_a_writable_cache_folder_the_sources_have_it(
    user_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file: no folder can be made below it, not even by root")
    copied_sources(tmp_path / "clone")
    for hits in (0, 1):
        outer = of_copy(tmp_path / "clone", monkeypatch)
        assert (outer(1), sum(outer.stats.cache_hits.values())) == (4, hits)
    assert Path(outer.stats.cache_path).is_relative_to(tmp_path / "clone" / "__pycache__")


@pytest.mark.parametrize("when", ["from the start", "later"])
def test_code_that_cannot_be_saved_is_used(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copied_sources(tmp_path / "clone")
    if when == "from the start":
        (tmp_path / "cache").write_text("a file")
    outer = of_copy(tmp_path / "clone", monkeypatch)
    if when == "later":
        folder = Path(outer.stats.cache_path)
        folder.rmdir()
        folder.write_text("a file")
    else:
        note_compiling(outer, "a kernel")
        assert "in every process, because there is no folder for compiled code" in caplog.text
    assert outer(1) == 4


def test_a_command_loads_what_another_process_has_compiled_ahead(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_sources(tmp_path / "clone")
    outer = of_copy(tmp_path / "clone", monkeypatch)
    monkeypatch.syspath_prepend(tmp_path / "clone")
    monkeypatch.setattr(compiling, "is_command", lambda: True)
    monkeypatch.setattr(compiling, "cores", lambda: 2)
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(folder))
        started = [compiling.compile_ahead(outer) or compiling._ahead.pop(outer) for _ in range(4)]  # commands at once
    compiling._ahead[outer] = started[0]
    compiling.await_compiled(outer)
    assert [process.wait() for process in started] == [0, 0, 0, 0]
    assert (outer(1), sum(outer.stats.cache_hits.values())) == (4, 1)


def nothing(address: int) -> None:
    pass


def test_what_takes_long_to_compile_is_told_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        c_function.__wrapped__(nothing, what="the rules: about 1 s")
    assert caplog.messages == ["compiling the rules: about 1 s, once"]


SPEED = 1.0


def paid(number: float) -> float:
    return number + SPEED


def user_call() -> Any:
    """Compiled from a function that is none of this package, or loaded."""

    def run(address: int) -> None:
        out = carray(pointer(address), (1,), np.float64)
        out[0] = own(out[0])

    own, out = numba.njit(paid), np.ones(1)
    made = c_function.__wrapped__(run, (paid,), what="the rules")
    made.ctypes(out.ctypes.data)
    return out[0]


def test_a_constant_that_a_users_function_reads_is_a_part_of_what_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert (user_call(), user_call()) == (2.0, 2.0)
    monkeypatch.setitem(globals(), "SPEED", 5.0)
    assert (user_call(), user_call()) == (6.0, 6.0)
    assert len(caplog.messages) == 2  # compiled twice, loaded twice
    monkeypatch.setitem(globals(), "SPEED", object())
    with pytest.raises(numba.TypingError):
        user_call()
    assert "compiling the rules, in every process, because <object object" in caplog.messages[-1]


def test_settings_of_numba_have_code_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_setting(value: str | None) -> Any:
        with monkeypatch.context() as patch:
            patch.setenv("NUMBA_CACHE_DIR", str(folder))
            if value is not None:
                patch.setenv("NUMBA_OPT", value)
            numba.config.reload_config()
            hits = called()
        numba.config.reload_config()
        return hits

    assert [with_setting(value) for value in (None, "1", "2", None, "1")] == [0, 0, 0, 1, 1]


def test_a_process_in_which_numba_compiles_nothing_says_why_it_ends() -> None:
    line = [sys.executable, "-m", "marl_sb3.train", "arena"]
    variables = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(line, env=variables, capture_output=True, text=True, check=False)
    words = "error: NUMBA_DISABLE_JIT is set, but kernels have to be compiled; accepted: without this variable"
    assert (ended.returncode, ended.stderr.strip()) == (2, words)


def test_processes_that_compile_for_different_types_at_the_same_time_keep_their_files_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # no process sees the files of another
        patch.setattr(KernelCache, "load_overload", lambda *_: None)
        for number in (1, 1.5, 1):
            assert compiled(one_more)(number) == number + 1
    assert len(list(folder.rglob("*.nbc"))) == 2
    again: Any = compiled(one_more)
    assert (again(1.5), again(1)) == (2.5, 2)
    assert sum(again.stats.cache_hits.values()) == 2


def test_all_kernels_that_python_calls_have_this_cache() -> None:
    modules = (optimizers, kernel, layers)
    kernels = [value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)]
    assert len(kernels) > 10
    called = [each for each in kernels if "no_cpython_wrapper" not in each.targetoptions]
    assert all(type(each._cache) is KernelCache for each in called)
    assert kernel.train in called
