"""The process around the training: how many threads work at a time, and what is not loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache

import torch as th
from threadpoolctl import ThreadpoolController


def available_cores() -> int:
    """The cores that this process may use: those of its affinity, at most `OMP_NUM_THREADS` where that is set."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(limit))) if limit.isdecimal() else cores


def parallel_updates(n_threads: int) -> int:
    """How many updates of `n_threads` threads each keep this process's cores busy, and no more than busy."""
    return max(1, available_cores() // n_threads)


@lru_cache(maxsize=2)
def _blas_libraries(with_scipy: bool) -> ThreadpoolController:
    """Those that are loaded; SciPy's own, which the fused kernels call, comes with them."""
    return ThreadpoolController().select(user_api="blas")


def blas_threads(count: int) -> AbstractContextManager[object]:
    """While it lasts, NumPy's and SciPy's BLAS use so many threads: small products are fastest with one."""
    libraries = _blas_libraries("scipy.linalg.cython_blas" in sys.modules)
    limit: AbstractContextManager[object] = libraries.limit(limits=count)
    return limit


def run_in_threads(jobs: Sequence[Callable[[], None]], at_once: int) -> None:
    """Run jobs that release the interpreter's lock, so many at a time; raises what the first of them raised."""
    if len(jobs) < 2 or at_once < 2:
        for job in jobs:
            job()
        return
    with ThreadPoolExecutor(min(len(jobs), at_once)) as pool:
        for running in [pool.submit(job) for job in jobs]:
            running.result()


def start_without_dynamo() -> None:
    """Keep PyTorch from importing its compiler when an optimizer is made: over a second of every start.

    Some methods of optimizers are wrapped to hide them from the compiler, and import it when they are first called.
    Where nothing has loaded it so far, there is nothing to hide from; the wrappers look for this attribute.
    """
    if "torch._dynamo" in sys.modules:
        return
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        method = getattr(th.optim.Optimizer, name)
        inner = getattr(method, "__wrapped__", None)
        if inner is not None:
            inner.__dict__["__dynamo_disable"] = inner
