"""How kernels in several threads divide their work: tasks that one of them takes, and waits for all that were taken.

All threads run the same kernel, without the GIL. They go through the same phases, and share an array of counters: how
many tasks are finished, and for each task, in which phase it was taken last. Each task is taken once in each phase, no
matter by whom: a thread that comes late finds nothing left to do, and does not delay the others.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from marl_sb3.compiling import inner_kernel
from marl_sb3.systems import yielding
from marl_sb3.types import Array

get_or_insert_function: Any = cgutils.get_or_insert_function

_FINISHED, _TASKS = 0, 8  # places of the counters; the first one is alone in its cache line
_SPINS = 1000  # reads of a counter, about a microsecond, before a thread that waits offers its core to others
_ORDER = "seq_cst"
_YIELD = "marl_sb3_yield"  # the name by which compiled code finds the system's function, also from the cache


llvm.add_symbol(_YIELD, ctypes.cast(yielding(), ctypes.c_void_p).value or 0)


def counters(tasks: int) -> Array:
    """Return the counters of so many tasks, before the first phase."""
    return np.zeros(_TASKS + tasks, np.int64)


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


@intrinsic
def _add(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to a counter; returns what it was."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], *arguments[:2])
        return builder.atomic_rmw("add", place, arguments[2], _ORDER)

    return types.int64(array, types.int64, types.int64), code


@intrinsic
def _raise(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Raise a counter to a value, if it is lower; returns what it was."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], *arguments[:2])
        return builder.atomic_rmw("max", place, arguments[2], _ORDER)

    return types.int64(array, types.int64, types.int64), code


@intrinsic
def _read(typing_context: Any, array: Any, index: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature.args[0], *arguments), _ORDER, 8)

    return types.int64(array, types.int64), code


@intrinsic
def _give_way(typing_context: Any) -> Any:
    """Let other threads run on this core, if any wait for it."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), _YIELD)
        return builder.call(function, [])

    return types.int32(), code


# Type checkers know numba's functions only as Python would call them.
_add_to: Any = _add
_raise_to: Any = _raise
_value_of: Any = _read
_yield: Any = _give_way


@inner_kernel
def next_task(counters: Array, tasks: int, phase: int, first: int, latest: int) -> int:
    """Finish a task, and take the next one of its phase: what a task has written is seen in the next phase.

    Args:
        tasks: number of tasks of each phase.
        phase: number of the phase, from 1.
        first: the task that this thread takes first, if nobody else has taken it.
        latest: the task of the phase that this thread has taken before; -1: none.

    Returns:
        A task; -1: all of them are finished, after waiting for those of other threads.
    """
    begin = 0
    if latest >= 0:
        _add_to(counters, _FINISHED, 1)
        begin = (latest - first) % tasks + 1
    for i in range(begin, tasks):
        task = (first + i) % tasks
        if _raise_to(counters, _TASKS + task, phase) < phase:
            return task
    spins = 0
    while _value_of(counters, _FINISHED) < phase * tasks:
        spins += 1
        if spins > _SPINS:
            _yield()
    return -1


@inner_kernel
def share(size: int, part: int, parts: int) -> tuple[int, int]:
    """Return where one of so many parts of a size begins and ends."""
    return size * part // parts, size * (part + 1) // parts
