"""Start a command quickly: no garbage collections while modules are imported, and no compiler."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_frozen = False  # `gc.get_freeze_count` says it, too, but counts for as long as a collection takes


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable garbage collections within the context, and exempt all objects that exist on exit from later ones.

    It is meant for imports and building a run. PyTorch, SB3 and numba create hundreds of thousands of objects that live
    until the process ends, and scanning them takes about a quarter of the CPU time of a start. `gc.freeze` also keeps
    them out of the collections during the training and at exit. Only the first context freezes, so that objects of
    earlier commands in the same process can be collected.
    """
    global _frozen  # noqa: PLW0603 - of the process, as what is frozen
    if _frozen or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
        _frozen = True
    finally:
        gc.enable()


def start_without_dynamo() -> None:
    """Keep PyTorch from importing its compiler when an optimizer is made: this saves over a second of every start.

    PyTorch wraps some methods of optimizers to hide them from its compiler, and the wrappers import the compiler when
    they are first called. They skip the import on a method that has the attribute set here.
    """
    import torch as th

    if "torch._dynamo" in sys.modules:
        return
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        method = getattr(th.optim.Optimizer, name)
        inner = getattr(method, "__wrapped__", None)
        if inner is not None:
            inner.__dict__["__dynamo_disable"] = inner
