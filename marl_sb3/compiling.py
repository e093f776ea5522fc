"""Compile functions with numba once for each user and algorithm; later processes load the compiled code.

The files are in the user's cache folder (`~/.cache/marl_sb3` on Linux), in a folder named by the content of all
sources: all clones and installations of the same sources share it. `NUMBA_CACHE_DIR` names another folder. Whoever
compiles removes what no process has used for 30 days.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from hashlib import sha256
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import numba
import numpy as np
import scipy
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import event
from numba.core.ccallback import CFunc
from numba.core.runtime.nrt import rtsys
from numba.extending import intrinsic
from numba.misc.appdirs import AppDirs

from marl_sb3 import fingerprints
from marl_sb3.errors import ConfigError
from marl_sb3.fingerprints import UnknownValueError, fingerprint
from marl_sb3.linking import LatePipeline, loaded, saved
from marl_sb3.output import ORDINARY
from marl_sb3.startup import COMPILING_S, is_command
from marl_sb3.systems import cores

_log = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])

# error_model="numpy": a division that may raise cannot be vectorised.
# fastmath without nnan and ninf: NaN and infinity must not be optimised away.
_FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": _FAST, "no_cfunc_wrapper": True}

_NOT_IN_CODE = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS")  # settings of numba that change no code
_UNUSED_S = 30 * 24 * 3600.0  # after so long, compiled code is removed
_FOLDER = re.compile(r"numba-[\w.+]+/\w+-[0-9a-f]{16}")  # below the cache folder
_LONGEST_WAIT_S = 60.0  # for a process that compiles ahead
_ONCE = "compiling %s, once"
_WITHOUT_FOLDER = (
    "compiling %s, in every process, because there is no folder for compiled code; NUMBA_CACHE_DIR names one"
)
_DIGEST_BYTES = 32  # a file begins with the sha256 of the rest
_FILE = re.compile(r".+\.nb[ci](\.\w+)*")  # also one that was not written to its end, and those of earlier versions


@cache
def _content(sources: Path) -> str:
    """Return a hash of all modules of a folder: compiled code contains the kernels of other modules that it calls."""
    modules = sorted(sources.glob("*.py"))
    if not modules:
        raise FileNotFoundError(f"{sources} has no sources")
    modules += [Path(__file__), Path(fingerprints.__file__)]
    return sha256(b"".join(sha256(path.read_bytes()).digest() + path.name.encode() for path in modules)).hexdigest()


def _bases(sources: Path) -> Iterator[Path]:
    """Yield the folders that may hold compiled code, the best first."""
    if numba.config.CACHE_DIR:  # type: ignore[attr-defined]
        yield Path(numba.config.CACHE_DIR)  # type: ignore[attr-defined]
        return
    of_user = Path(AppDirs("marl_sb3", appauthor=False).user_cache_dir)  # type: ignore[no-untyped-call]
    if of_user.is_absolute():  # there may be no home
        yield of_user
    yield sources / "__pycache__"


@cache
def _is_writable(folder: Path) -> bool:
    """Make the folder if it is missing, and try to write into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _cache_folder(sources: Path) -> Path:
    """Return where the compiled code of a folder of sources is; one that can only be read is better than none.

    Raises:
        OSError: there is no such folder.
    """
    # A folder for each numba, which loads only its own files.
    name = f"numba-{numba.__version__}/{sources.name}-{_content(sources)[:16]}"
    candidates = [base / name for base in _bases(sources)]
    usable = [path for path in candidates if _is_writable(path)] or [path for path in candidates if path.is_dir()]
    if not usable:
        raise OSError(f"none of {', '.join(map(str, candidates))} can be made")
    return usable[0]


def remove_unused(base: Path) -> None:
    """Remove the compiled code below a folder that was not used for 30 days, as far as that is possible.

    Only our files in folders with our names are removed; links are not followed.
    """
    oldest_s = time.time() - _UNUSED_S
    base = base.resolve()
    for folder in base.glob("numba-*/*"):
        if folder.resolve() != folder or not _FOLDER.fullmatch(folder.relative_to(base).as_posix()):
            continue
        with suppress(OSError):  # another process removes it, it is not ours to remove, or it holds other files
            files = [file for file in os.scandir(folder) if _FILE.fullmatch(file.name)]
            times_s = [file.stat(follow_symlinks=False).st_mtime for file in files]
            if max([folder.stat().st_mtime, *times_s]) < oldest_s:
                for file in files:
                    os.unlink(file)
                folder.rmdir()
                folder.parent.rmdir()


def load_blas() -> None:
    """Load SciPy's table of BLAS functions, in which numba finds those that kernels call.

    It is one module. The package around it, `scipy.linalg`, takes longer than loading all kernels of a training.
    """
    name = "scipy.linalg.cython_blas"
    found = PathFinder.find_spec(name, [os.path.join(folder, "linalg") for folder in scipy.__path__])
    if found is None or found.loader is None:
        import_module(name)
    elif name not in sys.modules:
        module = module_from_spec(found)
        found.loader.exec_module(module)
        sys.modules[name] = module


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ConfigError("NUMBA_DISABLE_JIT is set, but kernels have to be compiled; accepted: without this variable")


class _CompilingTime(event.Listener):
    """Counts the seconds in which numba compiles, or loads what was compiled; a function may compile others."""

    def __init__(self) -> None:
        self._depth, self._began_s = 0, 0.0

    def on_start(self, event: Any) -> None:
        if self._depth == 0:
            self._began_s = time.perf_counter()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            COMPILING_S[0] += time.perf_counter() - self._began_s


event.register("numba:compiler_lock", _CompilingTime())  # type: ignore[no-untyped-call]


def is_ours(function: Callable[..., Any]) -> bool:
    """Return whether a function is one of this package, whose code changes with its sources only."""
    return Path(function.__code__.co_filename).is_relative_to(Path(__file__).parent)


class KernelCache:
    """The compiled code of one function, in a file for each list of argument types; numba asks for it and saves it.

    A file appears as a whole, and is used only if it is as it was written, so that processes may compile the same
    function at once. Code that cannot be saved is used all the same.

    Args:
        function: calls kernels of modules in its own folder only, besides the others, if it is one of this package.
        others: functions of other modules that it calls.
        variables: what it takes from around it, in words.
        what: it computes, and how long compiling takes, such as "rollouts: about 8 s of one core", for a line in the
            log when it is compiled; None: without one.

    Raises:
        OSError: there is no folder for the files.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        others: Sequence[Callable[..., Any]] = (),
        variables: str = "",
        what: str | None = None,
    ) -> None:
        self._functions, self._variables, self._what = (function, *others), variables, what
        self._foreign = [each for each in self._functions if not is_ours(each)]
        source = Path(function.__code__.co_filename)
        self.cache_path = str(_cache_folder(source.parent))  # read by numba's statistics
        # With the line: functions of a module may have the same name.
        self._name = f"{source.stem}.{function.__name__}-{function.__code__.co_firstlineno}"

    @cached_property
    def _uses(self) -> str | None:
        """What identifies the values that the code depends on, as a part of the file's name; None: nothing does."""
        if len(self._functions) == 1 and not (self._variables or self._foreign):
            return ""  # the name of the folder says it
        codes = [each.__code__ for each in self._functions if is_ours(each)]
        contents = [f"{code.co_qualname} {_content(Path(code.co_filename).parent)}" for code in codes]
        try:
            contents += map(fingerprint, self._foreign)
        except UnknownValueError as error:
            _log.warning("compiling %s, in every process, because %s", self._what or self._name, error, extra=ORDINARY)
            return None
        return f".{sha256(' '.join([*contents, self._variables]).encode()).hexdigest()[:16]}"

    def _path(self, types: Any, target_context: Any) -> Path | None:
        if self._uses is None:
            return None
        # What numba was told by variables and by a file, such as `NUMBA_OPT`: code depends on some of it.
        settings = sorted(
            item for item in numba.config._env_reloader.old_environ.items() if item[0] not in _NOT_IN_CODE
        )
        compiled_for = f"{types} {target_context.codegen().magic_tuple()} {settings}"
        key = sha256(compiled_for.encode()).hexdigest()[:16]
        return Path(self.cache_path, f"{self._name}{self._uses}.{sys.implementation.cache_tag}.{key}.nbc")

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the function compiled for these types, or None."""
        if not self._foreign:
            rtsys.initialize(target_context)
        else:  # it may call packages that extend numba: they are loaded with all that numba can compile, in 0.1 s
            target_context.refresh()
        path = self._path(sig, target_context)
        if path is None:
            return None
        with suppress(OSError):
            os.utime(path.parent)  # it is in use
        try:
            content = path.read_bytes()
            if sha256(content[_DIGEST_BYTES:]).digest() != content[:_DIGEST_BYTES]:
                raise ValueError("the content is not what was written")
            return loaded(target_context, content[_DIGEST_BYTES:])
        except FileNotFoundError:
            if self._what is not None:
                _log.warning(_ONCE, self._what, extra=ORDINARY)
            return None
        except Exception as error:  # unpickling with other versions of other packages may raise anything
            _log.warning("compiling %s again: its file %s cannot be used (%r)", self._name, path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the compiled function, for later processes."""
        path = self._path(sig, data.target_context)
        if path is None:
            return
        fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        compiled = saved(data)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(sha256(compiled).digest() + compiled)
            fresh.replace(path)
            remove_unused(path.parent.parent.parent)
        except OSError as error:  # a full disk, a folder that can only be read
            _log.info("the compiled code of %s is not saved: %s", self._name, error)
            with suppress(OSError):
                fresh.unlink()


def compiled(function: _Function, **options: Any) -> _Function:
    """Compile a function when it is first called with arguments of some types.

    Args:
        function: a function in the subset of Python that numba compiles.
        options: passed to `numba.njit`.
    """
    made: Any = njit(pipeline_class=LatePipeline, **options)(function)
    if "inline" not in options:  # called with 0 and with 1, it is one function all the same
        compile_for, unliteral = made.get_call_template, types.unliteral
        made.get_call_template = lambda args, kws: compile_for(
            [unliteral(each) for each in args],  # type: ignore[no-untyped-call]
            {name: unliteral(each) for name, each in kws.items()},  # type: ignore[no-untyped-call]
        )
    try:
        if not options.get("no_cpython_wrapper"):  # what is not called from Python is a part of what is
            made._cache = KernelCache(function)
    except OSError:
        _log.debug("no folder for the compiled code of %s: it is compiled in every process", function)
    return made  # type: ignore[no-any-return]


@cache
def note_compiling(function: Any, what: str) -> None:
    """Log, once, that a kernel has to be compiled; nothing is logged if an earlier process compiled it.

    Args:
        what: see `KernelCache`.
    """
    if function.stats.cache_path is None:
        _log.warning(_WITHOUT_FOLDER, what, extra=ORDINARY)
    elif not _has_file(function):
        _log.warning(_ONCE, what, extra=ORDINARY)


def _has_file(function: Any) -> bool:
    module, name = function.py_func.__module__.rpartition(".")[2], function.py_func.__name__
    return any(Path(function.stats.cache_path).glob(f"{module}.{name}-*.nbc"))


_ahead: dict[Any, subprocess.Popen[bytes]] = {}  # by the kernel that the process compiles


def compile_ahead(function: Any) -> None:
    """Let another process compile a kernel that a command needs soon, while this one compiles others.

    It calls `warm_up` of the kernel's module. Nothing is started if the kernel was compiled before, cannot be saved, or
    if there is one core.
    """
    if not is_command() or cores() < 2 or function in _ahead or not function.stats.cache_path or _has_file(function):
        return
    line = f"import sys; sys.path[:] = {sys.path!r}; from {function.py_func.__module__} import warm_up; warm_up()"
    nothing = subprocess.DEVNULL
    with suppress(OSError):  # there may be no more processes
        _ahead[function] = subprocess.Popen([sys.executable, "-c", line], stdin=nothing, stdout=nothing, stderr=nothing)
        atexit.register(_ahead[function].kill)


def await_compiled(function: Any) -> None:
    """Wait for the process that compiles a kernel ahead, if there is one; if it fails, this one compiles the kernel."""
    if function in _ahead:
        began_s = time.perf_counter()
        with suppress(subprocess.TimeoutExpired):
            _ahead[function].wait(_LONGEST_WAIT_S)
        _ahead[function].kill()
        COMPILING_S[0] += time.perf_counter() - began_s


_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True}  # a quarter of the compile time

# Compiled on the first call, for the types of its arguments; later processes load the compiled code.
kernel: Callable[[_Function], _Function] = partial[Any](compiled, **_OPTIONS)
# That only kernels call, without an entry point for Python.
inner_kernel: Callable[[_Function], _Function] = partial[Any](compiled, **_INNER)
# A part of the one that calls it: LLVM optimises what it calls once less.
inlined: Callable[[_Function], _Function] = partial[Any](compiled, **_INNER, inline="always")
# Without fastmath: its operations stay in the order in which they are written.
precise_kernel: Callable[[_Function], _Function] = partial[Any](compiled, **{**_INNER, "fastmath": {"contract"}})
# Rounds after each operation: multiplications and sums are not fused.
strict_kernel: Callable[[_Function], _Function] = partial[Any](compiled, **{**_INNER, "fastmath": False})
# The same, with an entry point for Python.
strict_entry: Callable[[_Function], _Function] = partial[Any](compiled, **{**_OPTIONS, "fastmath": False})


# --- Memory by its address --------------------------------------------------------------------------------------------


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """Turn an integer into a pointer, for `carray`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), code


# Type checkers know numba's functions only as Python would call them.
pointer: Any = _pointer
carray: Any = numba.carray  # type: ignore[attr-defined]


def record(*names: str, floats: Sequence[str] = ()) -> np.dtype[Any]:
    """Return the type of records with int64 fields, then float64 ones; kernels read them as attributes."""
    return np.dtype([*((name, np.int64) for name in names), *((name, np.float64) for name in floats)])


@intrinsic
def _call_at(typing_context: Any, function: Any, argument: Any) -> Any:
    """Call a C function from its address with an address: nothing is compiled again for another function."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        takes_address = ir.FunctionType(ir.VoidType(), [ir.IntType(64)]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], takes_address), [arguments[1]])
        return context.get_dummy_value()

    return types.none(function, argument), code


call_at: Any = _call_at


@cache
def c_function(
    function: Callable[[int], None], others: tuple[Any, ...] = (), variables: str = "", what: str | None = None
) -> Any:
    """Compile a C function `void(address)`, once for each user as kernels are; its `address` is where it is called.

    Args:
        function: see `KernelCache`, as for `others` and `variables`.
        what: see `KernelCache`, if compiling it takes seconds.
    """
    options = {"nogil": True, "error_model": "numpy"}
    made: Any = CFunc(function, ((types.int64,), types.void), {}, options, pipeline_class=LatePipeline)
    try:
        made._cache = KernelCache(function, others, variables, what)
    except OSError:
        if what is not None:
            _log.warning(_WITHOUT_FOLDER, what, extra=ORDINARY)
    made.compile()
    return made


# --- Envs that compiled code steps -----------------------------------------------------------------------------------

# A C function `void(address of a record)` steps and observes envs. The record says what is done, to which envs, and has
# the addresses of the arrays of the batch, (E, ...) each: records of states, words of generators, actions, rewards,
# ends, infos, observations, allowed actions, and seeds of the episodes that are begun. Envs are observed after a step
# and at the beginning of an episode, too.
ENVS = record(
    *("what", "first", "end", "states_at", "rngs_at", "actions_at", "rewards_at", "terminated_at", "truncated_at"),
    *("infos_at", "observations_at", "allowed_at", "seeds_at"),
)
STEP, OBSERVE, BEGIN = range(3)  # what is done
RNG_WORDS = 4  # of the generator of an env

# --- Seeds -----------------------------------------------------------------------------------------------------------

_u64 = np.uint64
_LOW_32, _16 = _u64(0xFFFFFFFF), _u64(16)
# Of NumPy's `SeedSequence`, after O'Neill 2015, https://www.pcg-random.org/posts/developing-a-seed_seq-alternative.html
_INIT_A, _MULT_A, _INIT_B, _MULT_B = _u64(0x43B0D7E5), _u64(0x931E8875), _u64(0x8B51F9DD), _u64(0x58F38DED)
_MIX_LEFT, _MIX_RIGHT = _u64(0xCA01F9DD), _u64(0x4973F715)


@strict_kernel
def _hashed(value: Any, before: Any, after: Any) -> Any:
    value = ((value ^ before) * after) & _LOW_32
    return value ^ (value >> _16)


@strict_kernel
def seed_words(entropy: Any, words: Any) -> None:
    """Compute what `numpy.random.SeedSequence(entropy).generate_state(n)` returns.

    Args:
        entropy: (4 or more,) uint64; numbers below 2**32, zeros where there are less than 4.
        words: (n,) uint64; filled with numbers below 2**32.
    """
    pool, constant = np.empty(4, np.uint64), _INIT_A
    for i in range(4):
        after = (constant * _MULT_A) & _LOW_32
        pool[i], constant = _hashed(entropy[i], constant, after), after
    for i in range(4 * entropy.shape[0]):  # all of the pool into all of it, then the rest of the entropy
        source, target = i // 4, i % 4
        if source == target:
            continue
        after = (constant * _MULT_A) & _LOW_32
        value = _hashed(pool[source] if source < 4 else entropy[source], constant, after)
        mixed = (_MIX_LEFT * pool[target] - _MIX_RIGHT * value) & _LOW_32
        pool[target], constant = mixed ^ (mixed >> _16), after
    constant = _INIT_B
    for i in range(words.shape[0]):
        after = (constant * _MULT_B) & _LOW_32
        words[i], constant = _hashed(pool[i % 4], constant, after), after
