"""Start a command quickly: no garbage collections while modules are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Import modules and build a run inside without garbage collections, and keep what is there out of later ones.

    PyTorch, SB3 and numba create hundreds of thousands of objects that live until the process ends. To look through
    them again and again takes about a quarter of the CPU time of a start. `gc.freeze` also spares the collections of
    the training and the one at exit. Only the first block freezes: what a program that runs several commands leaves
    behind can be collected.
    """
    if gc.get_freeze_count() or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
