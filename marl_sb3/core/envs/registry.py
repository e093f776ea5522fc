"""Find envs by id, registered ones and those of the finders at the door; make them with checked arguments."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gymnasium.error import DependencyNotInstalled
from pettingzoo import ParallelEnv
from pettingzoo.env_registry.exceptions import FailedToImport

from marl_sb3.core.envs.faults import RAISED, raise_in_words
from marl_sb3.doors import ENV_FINDERS, ENV_KINDS, counterpart
from marl_sb3.errors import ConfigError, described, refuse, shown

EnvFactory = Callable[..., Any]  # makes a `ParallelEnv`, or an env of a kind at the door `ENV_KINDS`

_imports: list[str] = []  # modules that the user has named after `--import`
REGISTERED: dict[str, EnvFactory] = {}  # id -> factory, by `register_env`


def register_env(name: str, factory: EnvFactory) -> None:
    """Register a factory under an id, for `make_vec_env`, `train` and the commands.

    Args:
        name: any id that is not a built-in one. A later registration replaces an earlier one.
        factory: `factory(**env_kwargs)` returns a new `ParallelEnv`, `AECEnv`, `gymnasium.Env` or `MultiAgentEnv` of
            RLlib. If it has a parameter `env_index`, it gets the index of the env. RLlib's `creator(config)` does, too.

    Raises:
        ConfigError: a built-in env has this name, or the factory cannot be called.
    """
    if any(name in getattr(finder, "reserved", ()) for finder in ENV_FINDERS):
        raise ConfigError(f"the env id {name!r} is built in; choose another name", key="env")
    if not callable(factory):
        raise ConfigError(f"the factory of env {name!r} is {factory!r}, which cannot be called", key="env")
    REGISTERED[name] = factory


def env_factory(env: str | EnvFactory) -> EnvFactory:
    """Return the factory for an env id; section ENV of `python -m marl_sb3.train --help` lists the kinds of ids.

    Args:
        env: a registered or built-in id, a PettingZoo id, a Gymnasium id, an id of an installed package,
            `package.module:factory`, `package:ID` of an env that the package registers when it is imported, a
            factory itself, or a module of PettingZoo's form with a `parallel_env` or an `env`.
    """
    if isinstance(env, ModuleType):
        env = module_id(env)
    if not isinstance(env, str):
        if not callable(env):
            refuse("env", env, f"an id or a factory of {_accepted()}")
        return env
    if env in REGISTERED:
        return REGISTERED[env]
    for finder in ENV_FINDERS:
        if (factory := finder.find(env)) is not None:
            return factory
    raise ConfigError(_unknown(env), key="env")


def module_id(module: ModuleType) -> str:
    """Return the id of the env of a module such as `pettingzoo.butterfly.pistonball_v6`."""
    return f"{module.__name__}:{'parallel_env' if hasattr(module, 'parallel_env') else 'env'}"


def _unknown(name: str) -> str:
    mine = [*(env_id for finder in ENV_FINDERS for env_id in finder.known_ids()), *REGISTERED]
    meant = next(filter(None, (finder.meant(name, mine) for finder in reversed([*ENV_FINDERS]))), "")
    other = f"; did you mean {meant}?" if meant else "."
    known_ids = f"{', '.join(mine)}, PettingZoo and Gymnasium ids"
    own = "package.module:factory, or --import MODULE with a module that registers the env"
    return f"unknown env {shown(name)}{other} Known: {known_ids}; or use {own}"


def takes_argument(factory: EnvFactory, name: str) -> bool:
    """Whether a parameter of the factory has this name."""
    return name in getattr(_signature(factory), "parameters", ())


def make_env(factory: EnvFactory, env_index: int, env_kwargs: Mapping[str, Any]) -> ParallelEnv:
    """Make an env by its factory, and a `ParallelEnv` of it as its kind says.

    Raises:
        ConfigError: the factory does not take these arguments, or returns what is of no kind.
    """
    positional, arguments = _arguments(factory, env_index, env_kwargs)
    try:
        env = factory(*positional, **arguments)
    except (ImportError, FailedToImport, DependencyNotInstalled) as error:
        missing = getattr(error, "name", None) or ""
        raise ConfigError(f"{error}{counterpart(missing, 'module')}", key="env") from error
    except RAISED as error:
        if isinstance(error, TypeError) and "unexpected keyword argument" in described(error):
            instead = "".join(counterpart(name, "make_vec_env", "; ") for name in arguments)
            words = f"the env does not take these arguments: {error}{instead}"
            raise ConfigError(words, key="env") from error
        raise_in_words(error, f"making {_name(factory)}", f"env {env_index}")
        raise
    for kind in reversed(list(ENV_KINDS)):
        if kind.recognises(env):
            return kind.as_parallel(env)
    if isinstance(env, ParallelEnv):
        return env
    returned = f"{_name(factory)} makes an object of {type(env).__module__}.{type(env).__qualname__}"
    way = "; a class of one of these kinds can wrap it" if hasattr(env, "step") else ""
    raise ConfigError(f"{returned}; accepted: {_accepted()}{way}", key="env")


def _arguments(
    factory: EnvFactory, env_index: int, env_kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return what a factory is called with: as a kind of envs calls it, or else by name."""
    arguments, signature = dict(env_kwargs), _signature(factory)
    if signature is None:
        return (), arguments
    for kind in reversed(list(ENV_KINDS)):
        positional = kind.arguments(factory, signature, arguments, env_index)
        if positional is not None:
            return positional, {}
    if "env_index" in signature.parameters:
        arguments.setdefault("env_index", env_index)
    _check_arguments(factory, signature, arguments)
    return (), arguments


def _accepted() -> str:
    """The envs that a factory may make, in words."""
    *first, last = dict.fromkeys(["a pettingzoo.ParallelEnv", *(kind.what for kind in ENV_KINDS)])
    return f"{', '.join(first)} or {last}"


def why_not_batched(factory: EnvFactory, env_kwargs: Mapping[str, Any]) -> str | None:
    """Say why there is no batched env; None: the factory's `make_batched(num_envs, **env_kwargs)` makes it.

    An inherited `make_batched` does not count: it would make the batched version of the base class.
    """
    own: Mapping[str, Any] = getattr(factory, "__dict__", {})
    if "make_batched" not in own:
        return "the env has no batched version (`make_batched`)"
    return own.get("why_not_batched", lambda _: None)(env_kwargs)  # type: ignore[no-any-return]


def import_modules(
    names: Iterable[str], where: str | None = None, accepted: str = "a module, such as my_module or package.module"
) -> None:
    """Import modules that a user names, which may register envs, networks and algorithms.

    Args:
        where: the option or argument that names them, for messages; None: `--import`.
        accepted: what it accepts, for messages.

    Raises:
        ConfigError: one cannot be imported.
        EnvRaisedError: one has raised another exception.
    """
    for name in names:
        import_from_here(name, where or f"--import {shown(name)}", accepted)
        if name not in _imports:
            _imports.append(name)


def imported_modules() -> list[str]:
    """The modules that `import_modules` has imported: other processes of the same command need them, too."""
    return list(_imports)


def import_from_here(module_name: str, where: str, accepted: str, key: str = "env") -> Any:
    """Import a module from the Python path or the working directory; a file must not be what names it.

    Args:
        where: what names it, for messages.
        accepted: the form of such names, for messages.
        key: the name of the setting, for errors.

    Raises:
        ConfigError: it cannot be imported.
    """
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{where}: {shown(module_name)} names no module; accepted: {accepted}", key=key)
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        why = f"{error}{counterpart(error.name or '', 'module')}"
        raise ConfigError(f"{where}: cannot import {module_name!r}: {why}", key=key) from error
    except RAISED as error:
        raise_in_words(error, f"importing {module_name!r}", where)
        raise


def _signature(factory: EnvFactory) -> inspect.Signature | None:
    try:
        return inspect.signature(factory)
    except (TypeError, ValueError):
        return None  # some builtins have no signature; then the call itself fails


def _check_arguments(factory: EnvFactory, signature: inspect.Signature, arguments: Mapping[str, Any]) -> None:
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    accepted = ", ".join(signature.parameters) or "none"
    for name in arguments:
        if name not in signature.parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
            words = f"unknown env argument {name!r}; the env takes: {accepted}{counterpart(name, 'make_vec_env', '; ')}"
            raise ConfigError(words, key=f"env.{name}")
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"env {_name(factory)}: {error}; it takes: {accepted}", key="env") from error


def _name(factory: EnvFactory) -> str:
    """Name what a user has named: an id, or a class or a function by its module."""
    module, name = (getattr(factory, each, None) for each in ("__module__", "__qualname__"))
    known = [env_id for env_id, registered in REGISTERED.items() if registered is factory]
    found = vars(factory).get("found_as") if inspect.isfunction(factory) else None
    return [*known, found or (repr(factory) if name is None else f"{module}:{name}")][0]
