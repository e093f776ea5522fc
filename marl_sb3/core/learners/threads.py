"""How many threads a training uses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache

import torch as th
from threadpoolctl import ThreadpoolController


def available_cores() -> int:
    """Return the number of cores that this process may use: its CPU affinity, at most `OMP_NUM_THREADS` if set."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(limit))) if limit.isdecimal() else cores


def parallel_updates(n_threads: int) -> int:
    """Return how many updates of `n_threads` threads each fit on this process's cores."""
    return max(1, available_cores() // n_threads)


@lru_cache(maxsize=2)
def _blas_libraries(with_scipy: bool) -> ThreadpoolController:
    """Return the BLAS libraries that are loaded; `with_scipy` includes SciPy's, which the fused kernels call."""
    return ThreadpoolController().select(user_api="blas")


def load_blas() -> None:
    """Load SciPy's BLAS, which the fused kernels call: `blas_threads` limits only libraries that are loaded already."""
    import scipy.linalg.cython_blas  # noqa: F401 - only fused updates need it


def blas_threads(count: int) -> AbstractContextManager[object]:
    """Limit NumPy's and SciPy's BLAS to `count` threads inside the context: small products are fastest with one."""
    libraries = _blas_libraries("scipy.linalg.cython_blas" in sys.modules)
    limit: AbstractContextManager[object] = libraries.limit(limits=count)
    return limit


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Limit PyTorch and BLAS to `count` threads inside the context; afterwards they have the threads they had before.

    PyTorch's threads wait for each other after every operation. Where other processes use the cores, two of them take
    up to thirty times as long as one.
    """
    before = th.get_num_threads()
    th.set_num_threads(count)
    try:
        with blas_threads(count):
            yield
    finally:
        th.set_num_threads(before)


def run_in_threads(jobs: Sequence[Callable[[], None]], at_once: int) -> None:
    """Run jobs that release the GIL in threads, `at_once` at a time; raises the first exception of a job."""
    if len(jobs) < 2 or at_once < 2:
        for job in jobs:
            job()
        return
    with ThreadPoolExecutor(min(len(jobs), at_once)) as pool:
        for running in [pool.submit(job) for job in jobs]:
            running.result()
