"""How many threads work at a time: one per core, never more."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache

from threadpoolctl import ThreadpoolController


def available_cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@lru_cache(maxsize=2)
def _blas_libraries(with_scipy: bool) -> ThreadpoolController:
    """Those that are loaded; SciPy's own, which the fused kernels call, comes with them."""
    return ThreadpoolController().select(user_api="blas")


def one_blas_thread() -> AbstractContextManager[object]:
    """While it lasts, NumPy's and SciPy's BLAS use one thread: at our sizes more of them wait for each other."""
    limit: AbstractContextManager[object] = _blas_libraries("scipy.linalg.cython_blas" in sys.modules).limit(limits=1)
    return limit


def run_in_threads(jobs: Sequence[Callable[[], None]]) -> None:
    """Run jobs that release the interpreter's lock, one per core at a time; raises what the first of them raised."""
    if len(jobs) < 2 or available_cores() < 2:
        for job in jobs:
            job()
        return
    with ThreadPoolExecutor(min(len(jobs), available_cores())) as pool:
        for running in [pool.submit(job) for job in jobs]:
            running.result()
