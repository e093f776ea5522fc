"""The start of a command: quickly, without garbage collections and compiler; not without the packages that it needs.

And its end by Ctrl-C, from its first moment on: without a traceback, with exit code 130, in time.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType

from marl_sb3.errors import ConfigError, install_words

COMPILING_S = [0.0]  # so long this process has waited for a compiler: no measure of its speed counts that
# Python's own options, then one of the package's modules for commands, or the script of `marl-sb3`; each ends in a NUL.
_COMMAND = re.compile(
    r"(-[^-cmWX\0]*[WX]\0?[^\0]+\0|--check-hash-based-pycs\0[^\0]*\0|-[^cmWX\0]+\0)*"
    r"(-[^-cmWX\0]*m\0?marl_sb3(\.\w+)?|([^-\0][^\0]*)?(?<![^\0/\\])marl-sb3(\.exe|-script\.py)?)\0"
)
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
        inner = getattr(getattr(th.optim.Optimizer, name), "__wrapped__", None)
        if inner is not None:
            inner.__dict__["__dynamo_disable"] = inner


# Extra -> the packages that some feature cannot do without.
_OF_EXTRAS = {
    "completions": ("shtab",),
    "hub": ("huggingface_hub",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "plot": ("matplotlib",),
    "report": ("plotly",),
    "serve": ("prometheus_client", "starlette", "uvicorn", "websockets"),
}


def require_extra(what: str, extra: str) -> None:
    """Refuse to go on without the packages of an extra.

    Args:
        what: what needs them, for the message.

    Raises:
        ConfigError: one of them is not installed; the message says how to install it.
    """
    missing = [name for name in _OF_EXTRAS[extra] if find_spec(name) is None]
    if missing:
        words = f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        raise ConfigError(f"{words}; {install_words(extra)}")


# --- Its end ----------------------------------------------------------------------------------------------------------


def is_command() -> bool:
    """Whether this process was started as a command, `python -m marl_sb3.train` or `marl-sb3`, and is nothing else."""
    return _COMMAND.match("".join(f"{argument}\0" for argument in sys.orig_argv[1:])) is not None


def end_while_it_starts() -> None:
    """Make Ctrl-C end a command that is still being imported; `run_command` takes over then."""
    if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def end_within(seconds: float) -> None:
    """End a command that was interrupted after so many seconds, if it still runs, whatever its threads do."""
    if is_command():
        last = threading.Timer(seconds, _end)
        last.daemon = True
        last.start()


def handle_interrupts(handler: Callable[[int, FrameType | None], object]) -> None:
    """Handle Ctrl-C in a command that has begun."""
    if is_command() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def ignore_interrupts() -> None:
    """Let a command that was interrupted end in peace: Ctrl-C does nothing any more, if that is all that runs here."""
    if is_command():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # After an interrupt within the text of an `exec`, such as that of a dataclass, Python would end by SIGINT instead
    # of with an exit code, until it has run another text.
    eval("None")
