"""Find envs by id: those of the package, of registries, of modules and of installed packages; name users' factories."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pettingzoo
from pettingzoo.env_registry.exceptions import PettingZooRegistryError
from typing_extensions import override

from marl_sb3.core.config.values import EXTERNAL
from marl_sb3.core.envs.faults import raise_in_words
from marl_sb3.core.envs.registry import (
    REGISTERED,
    EnvFactory,
    env_factory,
    import_from_here,
    imported_modules,
    module_id,
)
from marl_sb3.doors import EnvFinder, imported
from marl_sb3.errors import ConfigError, did_you_mean

GROUP = "marl_sb3.envs"

_OWN: Mapping[str, str] = {
    "arena": "marl_sb3.envs.arena:ArenaEnv",
    "waterworld": "marl_sb3.envs.waterworld:WaterworldEnv",
    EXTERNAL: "marl_sb3.envs.external:ExternalEnv",
}

# By id: of a factory of such envs, `make_batched(num_envs, **env_kwargs)`, whose batch does what they do, and
# `why_not_batched(env_kwargs)`, which says why there is none with these arguments, or None. They may be places.
TWINS: dict[str, Callable[[Any], Mapping[str, Callable[..., Any]]] | str] = {
    **dict.fromkeys(("CartPole-v0", "CartPole-v1"), "marl_sb3.envs.compiled.gymnasium_envs:CART_POLE"),
    "Acrobot-v1": "marl_sb3.envs.compiled.gymnasium_envs:ACROBOT",
    "MountainCar-v0": "marl_sb3.envs.compiled.gymnasium_envs:MOUNTAIN_CAR",
    "MountainCarContinuous-v0": "marl_sb3.envs.compiled.gymnasium_envs:MOUNTAIN_CAR_CONTINUOUS",
    "Pendulum-v1": "marl_sb3.envs.compiled.gymnasium_envs:PENDULUM",
    **dict.fromkeys(("FrozenLake-v1", "FrozenLake8x8-v1"), "marl_sb3.envs.compiled.gymnasium_envs:FROZEN_LAKE"),
    **dict.fromkeys(("Taxi-v3", "Taxi-v4"), "marl_sb3.envs.compiled.gymnasium_envs:TAXI"),
    "mpe2/simple_reference-v3": "marl_sb3.envs.compiled.mpe:SIMPLE_REFERENCE",
    "mpe2/simple_speaker_listener-v4": "marl_sb3.envs.compiled.mpe:SIMPLE_SPEAKER_LISTENER",
    "mpe2/simple_tag-v3": "marl_sb3.envs.compiled.mpe:SIMPLE_TAG",
    "mpe2/simple_spread-v3": "marl_sb3.envs.compiled.mpe:SIMPLE_SPREAD",
}

# Packages whose envs are modules, and where these are: `mpe2/simple_spread-v3` is `mpe2.simple_spread_v3:parallel_env`.
_MODULES: Mapping[str, str] = {"mpe2": "mpe2", "magent2": "magent2.environments"}
_ID = re.compile(rf"({'|'.join(_MODULES)})/(\w+?)[-_](v[0-9]+)", re.ASCII)

# How ids of envs begin that a package registers when it is imported.
_REGISTERING: Mapping[str, str] = {
    "ALE/": "ale_py",
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
    **dict.fromkeys(("Fetch", "Hand", "AntMaze", "PointMaze", "FrankaKitchen", "AdroitHand"), "gymnasium_robotics"),
    **dict.fromkeys(("highway-", "intersection-", "merge-", "parking-", "racetrack-", "roundabout-"), "highway_env"),
}

_SHOWN = 200  # characters; an env id from a file may be very long


class BuiltIn(EnvFinder):
    """Envs that come with the package."""

    reserved = tuple(_OWN)

    @override
    def find(self, env_id: str) -> EnvFactory | None:
        factory: EnvFactory | None = imported(_OWN[env_id]) if env_id in _OWN else None
        return factory

    @override
    def known_ids(self) -> Iterable[str]:
        return [env_id for env_id in _OWN if env_id != EXTERNAL]  # which a command names in another way


class Installed(EnvFinder):
    """Envs of PettingZoo and Gymnasium, of modules, `package.module:factory`, and of installed packages."""

    @override
    def find(self, env_id: str) -> EnvFactory | None:
        """Return the factory of an id, as `EnvFinder` says; an id with a colon is always that of a module."""
        if ":" not in env_id and (factory := _in_registries(env_id)) is not None:
            return factory
        if (known := _known_id(env_id)) != env_id:
            return _in_registries(known) or _of_module(known)
        return _imported_factory(env_id) if ":" in env_id else _of_module(env_id) or _of_entry_point(env_id)

    @override
    def known_ids(self) -> Iterable[str]:
        """Return the ids of entry points."""
        return (point.name for point in entry_points(group=GROUP))

    @override
    def meant(self, name: str, mine: Sequence[str]) -> str:
        """Say which env is meant: in a Python file of the working directory, in another package, or of an id."""
        if len(name) > _SHOWN:  # no file has such a name
            return ""
        here = Path(f"{name.replace('.', '/')}.py")
        module = _module_of(name) or (name.replace("/", ".") if here.is_file() else None)
        if module is not None:
            return f"{module}:NAME, where NAME is the env's class or a function that returns one"
        if name.endswith("Policy"):
            return f"a policy of SB3: the envs come first, MultiAgentAlgorithm(env, policy={name!r})"
        found = re.fullmatch(r"(?:\w+[./])?(simple(?:_\w+)?)[-_](v[0-9]+)", name, re.ASCII)
        if found is not None:
            return f"mpe2/{found[1]}-{found[2]} of the package mpe2"
        package = next((package for begins, package in _REGISTERING.items() if name.startswith(begins)), None)
        if package is not None:
            needs = "" if importlib.util.find_spec(package) else f" of the package {package}, which has to be installed"
            return f"{package}:{name}{needs}"
        known = [*mine, *pettingzoo.parallel_registry, *pettingzoo.aec_registry, *gymnasium.registry]
        return ", ".join(dict.fromkeys(versions_of(name) or difflib.get_close_matches(name, known, n=3)))


BUILT_IN, INSTALLED = BuiltIn(), Installed()


def versions_of(name: str) -> list[str]:
    """Return the ids of PettingZoo's games of a name alone: `classic/connect_four-v3` of connect_four."""
    known = [*pettingzoo.parallel_registry, *pettingzoo.aec_registry]
    return [each for each in known if re.fullmatch(rf"\w+/{re.escape(name)}[-_]v[0-9]+", each)]


# --- Registries ------------------------------------------------------------------------------------------------------


def _in_registries(env_id: str) -> EnvFactory | None:
    """Return the factory of an env that PettingZoo's registry has, or Gymnasium's; None if there is none."""
    for kind in ("parallel", "aec"):
        with suppress(PettingZooRegistryError):
            return _of_spec(kind, pettingzoo.spec(kind, env_id))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "out of date" warnings: the user chose this version
            spec = gymnasium.spec(env_id)
    except gymnasium.error.Error:
        return None
    factory: EnvFactory = _maker(env_id, gymnasium.make, spec)
    vars(factory).update(imported(TWINS[spec.id])(factory) if spec.id in TWINS else {})
    return factory


def _maker(env_id: str, make: Callable[..., Any], *of: Any) -> Any:
    def factory(**kwargs: Any) -> Any:
        return make(*of, **kwargs)

    factory.__qualname__ = env_id
    vars(factory)["found_as"] = env_id  # for messages
    return factory


def _of_spec(kind: str, spec: Any) -> EnvFactory:
    """Return a factory with the signature and the `make_batched` of PettingZoo's entry point."""
    factory, entry_point = _maker(spec.id, pettingzoo.make, kind, spec), spec.entry_point
    try:
        entry_point = imported(entry_point)
        factory.__signature__ = inspect.signature(entry_point)
        own = ("make_batched", "why_not_batched") if "make_batched" in vars(entry_point) else ()
        vars(factory).update({name: getattr(entry_point, name) for name in own if hasattr(entry_point, name)})
    except (ImportError, ValueError):
        pass  # making the env reports it
    return factory  # type: ignore[no-any-return]


# --- Modules ---------------------------------------------------------------------------------------------------------


def _known_id(path: str) -> str:
    """Return the short id of `pettingzoo.sisl.pursuit_v5:parallel_env` and the like, or else the path itself."""
    short = re.sub(r"(?:pettingzoo\.)?(\w+)\.(\w+)_(v[0-9]+):(?:parallel_)?env", r"\1/\2-\3", path, flags=re.ASCII)
    is_known = short in pettingzoo.aec_registry or _ID.fullmatch(short) is not None
    return short if is_known else path


def _imported_factory(path: str) -> EnvFactory:
    module_name, _, attribute = path.partition(":")
    if (file := _module_of(module_name)) is not None:
        raise ConfigError(f"env {path!r}: {module_name!r} is a file; did you mean {file}:{attribute}?", key="env")
    module = import_from_here(module_name, f"env {path!r}", "package.module:factory")
    # As in `gymnasium.make("module:Env-v0")`: importing the module may have registered an env of this id.
    try:
        factory = getattr(module, attribute, None) or _in_registries(attribute)
        if factory is None:  # the package may be for Gymnasium 0, which called these entry points by itself
            for point in entry_points(group="gymnasium.envs"):
                if point.module.partition(".")[0] == module.__name__:
                    point.load()()
            factory = _in_registries(attribute)
    except ImportError as error:  # of a package that imports its modules when they are looked up
        raise ConfigError(f"env {path!r}: cannot import {attribute!r}: {error}", key="env") from error
    if isinstance(factory, ModuleType) and {"parallel_env", "env"}.intersection(dir(factory)):
        return env_factory(module_id(factory))
    if factory is None:
        callables = [name for name, value in vars(module).items() if callable(value)]
        close = did_you_mean(attribute, callables, 3)
        accepted = "; accepted: package.module:factory or package:ENV_ID"
        other = f"; {close}" if close else accepted
        found = f"module {module.__name__!r} has no {attribute!r}, and has registered no env of this id"
        raise ConfigError(f"env {path!r}: {found}{other}", key="env")
    if not callable(factory):
        found = f"{attribute!r} cannot be called"
        raise ConfigError(f"env {path!r}: {found}; accepted: package.module:factory", key="env")
    return factory


def attribute_from_here(name: str, where: str, accepted: str, key: str) -> Any:
    """Import what a user names as `MODULE:NAME`; see `import_from_here`, also for the arguments and errors.

    Returns:
        What the module has of this name; None if it has nothing.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"{where}: accepted: {accepted}", key=key)
    return getattr(import_from_here(module_name, where, accepted, key), attribute, None)


def _module_of(file: str) -> str | None:
    """The module of a Python file that is named as on Linux or on Windows, `./my_env.py`; None for another name."""
    parts = [part for part in re.split(r"[/\\]", file.removesuffix(".py")) if part not in ("", ".")]
    return ".".join(parts) if file.endswith(".py") and all(part.isidentifier() for part in parts) else None


# --- Packages that register no ids -----------------------------------------------------------------------------------


def _of_module(env_id: str) -> EnvFactory | None:
    found = _ID.fullmatch(env_id)
    if found is None:
        return None
    package, name, version = found.groups()
    if importlib.util.find_spec(package) is None:
        words = f"the package {package} is not installed: pip install {package}"
        raise ConfigError(f"env {env_id!r}: {words}", key="env")
    module = f"{_MODULES[package]}.{name}_{version}"
    try:
        factory: EnvFactory = importlib.import_module(module).parallel_env
    except ImportError as error:
        raise ConfigError(f"env {env_id!r}: {_why_not(package, module, error)}", key="env") from error
    twin = f"{package}/{name}-{version}"
    if twin not in TWINS:
        return factory
    with_twin: EnvFactory = functools.update_wrapper(functools.partial(factory), factory)  # that of the package stays
    vars(with_twin).update(imported(TWINS[twin])(factory))
    return with_twin


def _why_not(package: str, module: str, error: ImportError) -> str:
    if error.name != module:
        return f"cannot import {module!r}: {error}"
    names = [info.name for info in pkgutil.iter_modules(importlib.import_module(_MODULES[package]).__path__)]
    ids = [f"{package}/{name.replace('_v', '-v')}" for name in names if re.search(r"_v[0-9]+$", name)]
    close = difflib.get_close_matches(module.rpartition(".")[2], names, n=1, cutoff=0.5)
    known = [known for known in ids if close and known.endswith(close[0].replace("_v", "-v"))] or ids
    return f"{package} has no such env; did you mean {', '.join(known)}?"


# --- Entry points ----------------------------------------------------------------------------------------------------


def _of_entry_point(env_id: str) -> EnvFactory | None:
    points = {point.value: point for point in entry_points(group=GROUP, name=env_id)}
    origins = [f"{name} of {point.dist.name}" if point.dist else name for name, point in points.items()]
    if len(points) > 1:
        raise ConfigError(f"several installed packages have an env {env_id!r}: {', '.join(origins)}", key="env")
    if not points:
        return None
    where = f"env {env_id!r}, entry point {origins[0]}"
    try:
        factory: EnvFactory = next(iter(points.values())).load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}: cannot import it: {error}", key="env") from error
    except Exception as error:
        raise_in_words(error, "importing it", where)
        raise
    if not callable(factory):
        raise ConfigError(
            f"{where}: it is {factory!r:.200}; accepted: a class or a function that makes an env", key="env"
        )
    return factory


# --- Ids of factories ------------------------------------------------------------------------------------------------


def named_factory(env: str | EnvFactory | None) -> tuple[str | None, EnvFactory | None]:
    """The id of an env that a user gives, and the factory if it is given as one."""
    if isinstance(env, ModuleType):
        return _known_id(module_id(env)), None
    return (env, None) if env is None or isinstance(env, str) else (factory_id(env), env)


def factory_id(factory: EnvFactory) -> str:
    """The id of a factory, as on a command line: `module:name`. A script is a module by the name of its file."""
    module = getattr(factory, "__module__", "factory")
    name = _script_module() if module == "__main__" else module
    return f"{name}:{getattr(factory, '__qualname__', type(factory).__name__)}"


def _script_module() -> str:
    """Return the name by which other processes import the running script; `__main__` if it has none."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:  # python -m package.module
        return main.__spec__.name
    file = getattr(main, "__file__", None)
    name = "" if file is None else Path(file).stem
    return name if name.isidentifier() and Path(file or "").suffix == ".py" else "__main__"


def importable_id(env: str, factory: EnvFactory | None = None) -> str | None:
    """An id that another process can import; None if only this process has the env."""
    # What is registered here, a module of `--import` registers there, too.
    if factory is None and (env not in REGISTERED or imported_modules()):
        return env
    factory = factory or REGISTERED[env]
    path = factory_id(factory)
    module_name, _, attribute = path.partition(":")
    there = module_name != "__main__" and getattr(sys.modules.get(module_name), attribute, None) is factory
    return path if there else None
