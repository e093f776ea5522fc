"""Make machine code once for each kernel that Python calls, with all that it calls in it.

numba optimises each function and makes its machine code when it is compiled, and does both again inside each function
that calls it, so that what is called through ten others is optimised ten times. Here a function stays what LLVM is
given until an address is asked for, as of kernels that Python calls; then it is linked with all that it calls,
optimised and turned into machine code.
"""

from __future__ import annotations

import itertools
import pickle
import re
import secrets
import uuid
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any

from llvmlite import binding  # type: ignore[import-untyped]
from numba.core.bytecode import FunctionIdentity
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult
from numba.core.serialize import dumps

from marl_sb3.systems import after_fork

# --- Symbols ----------------------------------------------------------------------------------------------------------
# The linker keeps the first of two functions with one name. numba names a function by its module, its name, its types
# and a number that it counts up in each process, so that two processes would name two functions of one source (with
# other constants, or other records) alike, and whoever loads the files of both would run one of them for both.

_NUMBERED = re.compile(r"B\d+v\d+")  # in the names of what is compiled from Python; all others are numba's runtime
_compiler: list[str] = []  # one name: of this process, as one that compiles
_compilers: dict[str, str] = {}  # symbols that this process has loaded or saved -> the process that compiled them


def _number_functions() -> None:
    """Let numba count the functions of this process from a number that no other process has."""
    # As many digits in each process: nothing that is compiled depends on how long its names are.
    FunctionIdentity._unique_ids = itertools.count(10**17 + secrets.randbelow(9 * 10**17))
    _compiler[:] = [uuid.uuid4().hex]


_number_functions()
after_fork(_number_functions)


def saved(function: Any) -> bytes:
    """Return a function that numba compiled as bytes, for `loaded`."""
    reduced, library = dumps(function._reduce()), function.library  # type: ignore[no-untyped-call]
    named = _defined(library._get_module_for_linking())
    own = {name: _compilers.setdefault(name, _compiler[0]) for name in named if _NUMBERED.search(name)}
    return pickle.dumps((_defined(library._final_module), own)) + reduced  # type: ignore[no-any-return]


def loaded(target_context: Any, content: bytes) -> Any:
    """Return a compiled function. Its LLVM code is parsed only when a function that calls it is compiled.

    That code takes more than half of the time of loading, and a process that compiles nothing does without it.

    Raises:
        ValueError: another process compiled something else with a name in it, and this process has loaded that.
    """
    parts = BytesIO(content)
    defined, own = pickle.load(parts)
    if shared := [symbol for symbol, compiler in own.items() if _compilers.get(symbol, compiler) != compiler]:
        raise ValueError(f"other functions are called {', '.join(sorted(shared))}, too")
    _compilers.update(own)
    (name, kind, (machine_code, llvm_code)), *rest = pickle.load(parts)
    target_context.codegen()._engine._defined_symbols.update(defined)
    of_nothing = binding.parse_assembly("").as_bitcode()
    function: Any = CompileResult._rebuild(target_context, (name, kind, (machine_code, of_nothing)), *rest)  # type: ignore[no-untyped-call]
    function.library._get_module_for_linking = cache(lambda: binding.parse_bitcode(llvm_code))
    return function


# --- Late machine code ------------------------------------------------------------------------------------------------


def _defined(module: Any) -> set[str]:
    """Return the names that others may link to."""
    symbols = [*module.functions, *module.global_variables]
    return {each.name for each in symbols if not each.is_declaration and each.linkage != binding.Linkage.private}


class LateLibrary(JITCodeLibrary):
    """A function and all that it calls; machine code is made when its address is first asked for."""

    _own: Any = None  # what LLVM was given for this function alone, once that is complete; None if it was loaded
    _has_code = False

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)  # type: ignore[no-untyped-call]
        self._environments: dict[str, Any] = {}

    def finalize(self) -> None:
        """Take this function as complete; it is neither linked nor optimised yet."""
        self._raise_if_finalized()  # type: ignore[no-untyped-call]
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._own = self._final_module
        self._finalized = True

    @property
    def codegen(self) -> Any:
        """What sets an environment, from which a function takes constants of Python, in the machine code."""
        return self._codegen if self._own is None else self

    def set_env(self, name: str, env: Any) -> None:
        """Keep the environment of this function, until it is part of machine code."""
        self._environments[name] = env
        self._set_environments()

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function of this library; 0 if it has none with this name."""
        self._ensure_finalized()  # type: ignore[no-untyped-call]
        if self._own is not None and not self._has_code and name in _defined(self._own):
            self._make_code()
        return super().get_pointer_to_function(name)  # type: ignore[no-any-return, no-untyped-call]

    def _get_compiled_object(self) -> Any:
        """Return the machine code, for a file."""
        if not self._has_code:
            self._make_code()
        return super()._get_compiled_object()  # type: ignore[no-untyped-call]

    def _make_code(self) -> None:
        own = _defined(self._own)
        self._final_module = self._linked()
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in own:
                # Unknown to the linker, for which two with one name are the first: LLVM may change its arguments.
                function.linkage = "private"
        self._optimize_final_module()  # type: ignore[no-untyped-call]
        self._final_module.verify()
        engine: Any = self._codegen._engine
        known = set(engine._defined_symbols)
        self._finalize_final_module()  # type: ignore[no-untyped-call]
        engine._defined_symbols = known | _defined(self._final_module)
        self._has_code = True
        for library in self._called({self}):
            if isinstance(library, LateLibrary):
                library._set_environments()
        self._set_environments()

    def _set_environments(self) -> None:
        codegen: Any = self._codegen
        for name, env in self._environments.items():
            if codegen._engine.is_symbol_defined(name):
                codegen.set_env(name, env)

    def _linked(self) -> Any:
        """Return this function in one module with all that it calls."""
        module, loaded = self._own.clone(), []
        for library in self._called({self}):
            if getattr(library, "_own", None) is not None:
                module.link_in(library._own, preserve=True)
            else:
                loaded.append(library)
        for library in loaded:  # at the end: of them, LLVM takes only what is called by what is there
            module.link_in(library._get_module_for_linking(), preserve=True)
        return module

    def _called(self, seen: set[Any]) -> Iterator[Any]:
        """Yield the libraries that this one needs, each once."""
        for library in self._linking_libraries:
            if library not in seen:
                seen.add(library)
                yield library
                if isinstance(library, LateLibrary):
                    yield from library._called(seen)

    def _get_module_for_linking(self) -> Any:
        """Return what LLVM was given for this function and all that it calls, to be linked into others."""
        if self._own is not None and self._shared_module is None:
            self._ensure_finalized()  # type: ignore[no-untyped-call]
            self._shared_module = self._linked()
            for function in self._shared_module.functions:
                if not function.is_declaration and function.linkage == binding.Linkage.external:
                    function.linkage = "linkonce_odr"
        return super()._get_module_for_linking()  # type: ignore[no-untyped-call]


class LatePipeline(Compiler):
    """Compiles a function, and what it needs of numba's own, into late libraries."""

    def compile_extra(self, func: Any) -> Any:
        """Compile a function of Python."""
        codegen = self.state.targetctx.codegen()
        before, codegen._library_class = codegen._library_class, LateLibrary
        try:
            return super().compile_extra(func)  # type: ignore[no-untyped-call]
        finally:
            codegen._library_class = before
