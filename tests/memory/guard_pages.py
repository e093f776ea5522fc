"""A plugin of pytest: arrays end at pages that cannot be touched while tests run, see `guard_pages.c`.

    GUARD_PAGES=./guard_pages.so LD_PRELOAD=./guard_pages.so PYTHONPATH=tests/memory pytest -p guard_pages ...

Guarded is what NumPy, PyTorch and numba's runtime allocate. Garbage is collected often, so that a use of memory after
it was freed is found.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator

import pytest

_LIBRARIES = ("_multiarray_umath", "libc10.so", "_nrt_python", "_helperlib", "libtorch_cpu")
_COLLECT_EVERY = 50  # allocations of Python
_guard = ctypes.CDLL(os.environ["GUARD_PAGES"])
_guard.guard_made.restype = ctypes.c_long


@pytest.fixture(scope="session", autouse=True)
def _ranges() -> None:
    import torch  # noqa: F401

    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            addresses, rights, *_ = line.split()
            if "x" in rights and any(name in line for name in _LIBRARIES):
                begin, end = (ctypes.c_size_t(int(address, 16)) for address in addresses.split("-"))
                _guard.guard_range(begin, end)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_EVERY)
    _guard.guard_on(ctypes.c_size_t(1))
    try:
        return (yield)
    finally:
        _guard.guard_off()
        gc.set_threshold(*before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"guarded allocations: {_guard.guard_made():,}")
