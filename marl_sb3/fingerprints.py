"""Identify a function by all that its machine code depends on: its code, its globals and closure, and what it calls.

numba takes the values of globals when it compiles. So the same source has other machine code where a constant differs,
even one that another module defines.
"""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Set
from enum import Enum
from functools import partial
from hashlib import sha256
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic as Intrinsic
from numba.core.types import Type
from numba.core.typing.templates import builtin_registry

# What these packages and Python itself define is known by its name: their versions are a part of the fingerprint.
_VERSIONED = ("numpy", "numba", "scipy", "llvmlite")
_OF_PYTHON = sysconfig.get_path("stdlib")

_Seen: TypeAlias = dict[int, tuple[int, Any]]


class UnknownValueError(ValueError):
    """A function uses a value that cannot be told from another one of its type."""


def fingerprint(function: Callable[..., Any]) -> str:
    """Return 64 hexadecimal digits, the same in all processes with the same code and values of globals.

    Args:
        function: plain, or compiled by numba.

    Raises:
        UnknownValueError: it uses an object of a type that numba would not know either, or one that holds such an
            object.
    """
    versions = [f"{name} {sys.modules[name].__version__}" for name in _VERSIONED if name in sys.modules]
    digest = sha256(" ".join([sys.version, *versions]).encode())
    for part in _parts(function, {}):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _parts(value: Any, seen: _Seen) -> Iterator[str]:
    """Yield what tells a value from others.

    Args:
        value: a global, a constant, or a part of one.
        seen: places of the objects that were described before, by their identities, and these objects, which are
            kept, so that no other one gets their identity: functions call each other.
    """
    yield type(value).__qualname__
    if value is None or value is ... or isinstance(value, bool | int | float | complex | str | bytes | np.dtype | Type):
        yield repr(value)
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        yield f"{array.dtype!r} {array.shape} {array.tobytes().hex()}"
    elif id(value) in seen:
        yield str(seen[id(value)][0])
    else:
        seen[id(value)] = len(seen), value
        yield from _parts_of_object(value, seen)


def _parts_of_object(value: Any, seen: _Seen) -> Iterator[str]:
    each = partial(_parts, seen=seen)
    if isinstance(value, Set | Mapping | tuple | list):
        items = value.items() if isinstance(value, Mapping) else value
        for item in sorted(items, key=repr) if isinstance(value, Set) else items:
            yield from each(item)
    elif isinstance(value, Dispatcher):
        yield from each(sorted(value.targetoptions.items()))  # a set of them is sorted, too
        yield from each(value.py_func)
    elif isinstance(value, Intrinsic):
        yield from each(value._defn)
    elif _is_named(value):
        yield f"{getattr(value, '__module__', '')} {getattr(value, '__qualname__', None) or value.__name__}"
    elif isinstance(value, Enum):
        yield value.name
        yield from each(value.value)
    elif isinstance(value, type):
        yield from _parts_of_class(value, seen)
    elif isinstance(value, FunctionType) and not _is_implemented_elsewhere(value):
        yield from _parts_of_function(value, seen)
    elif isinstance(value, CodeType):
        yield from _parts_of_code(value, seen)
    else:
        raise UnknownValueError(f"{value!r} is a {type(value).__qualname__}")


def _is_implemented_elsewhere(function: FunctionType) -> bool:
    """Whether numba compiles other code for a function, that of an `overload`, which nothing here would find."""
    return any(function is each for each, _ in builtin_registry.globals)


def _is_named(value: Any) -> bool:
    """Whether a value is known by its name: a module, or what Python and NumPy define."""
    if isinstance(value, ModuleType | BuiltinFunctionType | np.ufunc):
        return True
    is_definition = isinstance(value, type | FunctionType) or type(value).__module__.partition(".")[0] in _VERSIONED
    return is_definition and _is_versioned(str(getattr(value, "__module__", "")))


def _is_versioned(module: str) -> bool:
    """Whether a module is one of those packages or of Python: a user's own `test` or `code` only has such a name."""
    root = module.partition(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None)
    is_beside = file is not None and ("site-packages" in file or not file.startswith(_OF_PYTHON))
    is_of_python = root in sys.stdlib_module_names and not is_beside
    return root in _VERSIONED or is_of_python


def _parts_of_class(value: type, seen: _Seen) -> Iterator[str]:
    yield f"{value.__module__} {value.__qualname__}"
    for name, part in sorted(vars(value).items()):
        if not name.startswith("__") and isinstance(part, int | float | str | tuple | FunctionType | Enum):
            yield name
            yield from _parts(part, seen)


def _parts_of_function(function: FunctionType, seen: _Seen) -> Iterator[str]:
    yield f"{function.__module__} {function.__qualname__}"
    for part in (function.__code__, function.__defaults__, function.__kwdefaults__):
        yield from _parts(part, seen)
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError as error:
            raise UnknownValueError(f"{function!r} uses a variable around it that has no value yet") from error
        yield from _parts(content, seen)
    names = frozenset(name for code in _codes(function.__code__) for name in code.co_names)
    loaded = {
        each.argval
        for code in _codes(function.__code__)
        for each in dis.get_instructions(code)
        if "GLOBAL" in each.opname
    }
    for name in sorted(loaded & function.__globals__.keys()):
        yield name
        yield from _parts_of_global(function.__globals__[name], names, seen)


def _parts_of_global(value: Any, names: frozenset[str], seen: _Seen) -> Iterator[str]:
    """Yield the parts of a global; of a module, those of its attributes that the code names."""
    yield from _parts(value, seen)
    if isinstance(value, ModuleType) and not _is_versioned(value.__name__):
        for name in sorted(names & vars(value).keys()):
            yield name
            yield from _parts_of_global(getattr(value, name), names - {name}, seen)


def _parts_of_code(code: CodeType, seen: _Seen) -> Iterator[str]:
    # Not where it stands: a function that moves within its file stays the same.
    variables = code.co_varnames, code.co_freevars, code.co_argcount
    yield f"{code.co_code.hex()} {code.co_names} {variables} {code.co_flags}"
    for constant in code.co_consts:
        yield from _parts(constant, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield some code and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
