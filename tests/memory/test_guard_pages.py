"""The allocator ends a process that reads or writes where nothing is allocated, and leaves others alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("guard_pages.c")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="it is built by gcc, for Linux"
)

PROGRAM = """
import ctypes, os
guard = ctypes.CDLL(os.environ["GUARD_PAGES"])
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def address_of(size):
    guard.guard_on(ctypes.c_size_t(1000))
    try:
        return libc.malloc(size)
    finally:
        guard.guard_off()
"""
FAULTS = {
    "none": ("p = address_of(4000); ctypes.memset(p, 1, 4000); libc.free(p)", 0, ""),
    "past the end": ("p = address_of(4000); ctypes.memset(p + 4000, 1, 1)", -11, ""),
    "reads past the end": ("p = address_of(4000); ctypes.string_at(p + 4000, 1)", -11, ""),
    "after it was freed": ("p = address_of(4000); libc.free(p); ctypes.memset(p, 1, 1)", -11, ""),
    "between end and page": ("p = address_of(4001); ctypes.memset(p + 4001, 1, 1); libc.free(p)", -6, "past the end"),
    "before the beginning": ("p = address_of(4000); ctypes.memset(p - 1, 1, 1); libc.free(p)", -6, "before the begin"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("guard") / "guard_pages.so")
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", str(SOURCE), "-o", path], check=True)
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_the_process(fault: str, library: str) -> None:
    code, expected, words = FAULTS[fault]
    variables = {**os.environ, "GUARD_PAGES": library, "LD_PRELOAD": library}
    line = [sys.executable, "-S", "-c", PROGRAM + code]
    ended = subprocess.run(line, env=variables, capture_output=True, text=True, check=False)
    assert (ended.returncode, words in ended.stderr) == (expected, True), ended.stderr
