"""Envs of installed packages: those of the entry point group `marl_sb3.envs`, and of packages that register no ids."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from marl_sb3.envs.faults import raise_in_words
from marl_sb3.errors import ConfigError

GROUP = "marl_sb3.envs"

# Packages whose envs are modules, and where these are: `mpe2/simple_spread-v3` is `mpe2.simple_spread_v3:parallel_env`.
_MODULES: Mapping[str, str] = {"mpe2": "mpe2", "magent2": "magent2.environments"}
_ID = re.compile(rf"({'|'.join(_MODULES)})/(\w+?)[-_](v[0-9]+)", re.ASCII)


def installed_factory(env_id: str) -> Callable[..., Any] | None:
    """The factory of an env of an installed package; None if no package has this id.

    Raises:
        ConfigError: the package is not installed or cannot be imported, or several packages have the id.
        EnvRaisedError: the package raised an exception when it was imported.
    """
    return _of_module(env_id) or _of_entry_point(env_id)


def installed_ids() -> list[str]:
    """The ids in the entry point group."""
    return [point.name for point in entry_points(group=GROUP)]


def hint(env_id: str) -> str | None:
    """The id of an env of a package that registers no ids, for a name that users may try."""
    found = re.fullmatch(r"(?:\w+[./])?(simple(?:_\w+)?)[-_](v[0-9]+)", env_id, re.ASCII)
    return f"mpe2/{found[1]}-{found[2]}" if found else None


# --- Packages that register no ids -----------------------------------------------------------------------------------


def _of_module(env_id: str) -> Callable[..., Any] | None:
    found = _ID.fullmatch(env_id)
    if found is None:
        return None
    package, name, version = found.groups()
    if importlib.util.find_spec(package) is None:
        words = f"the package {package} is not installed: pip install {package}"
        raise ConfigError(f"env {env_id!r}: {words}", key="env")
    module = f"{_MODULES[package]}.{name}_{version}"
    try:
        factory: Callable[..., Any] = importlib.import_module(module).parallel_env
    except ImportError as error:
        raise ConfigError(f"env {env_id!r}: {_why_not(package, module, error)}", key="env") from error
    return factory


def _why_not(package: str, module: str, error: ImportError) -> str:
    if error.name != module:
        return f"cannot import {module!r}: {error}"
    names = [info.name for info in pkgutil.iter_modules(importlib.import_module(_MODULES[package]).__path__)]
    ids = [f"{package}/{name.replace('_v', '-v')}" for name in names if re.search(r"_v[0-9]+$", name)]
    close = difflib.get_close_matches(module.rpartition(".")[2], names, n=1, cutoff=0.5)
    known = [known for known in ids if close and known.endswith(close[0].replace("_v", "-v"))] or ids
    return f"{package} has no such env; did you mean {', '.join(known)}?"


# --- Entry points ----------------------------------------------------------------------------------------------------


def _of_entry_point(env_id: str) -> Callable[..., Any] | None:
    points = list(entry_points(group=GROUP, name=env_id))
    if len({point.value for point in points}) > 1:
        listed = ", ".join(_origin(point) for point in points)
        raise ConfigError(f"several installed packages bring an env {env_id!r}: {listed}", key="env")
    return _loaded(points[0], env_id) if points else None


def _origin(point: EntryPoint) -> str:
    return f"{point.value} of {point.dist.name}" if point.dist is not None else point.value


def _loaded(point: EntryPoint, env_id: str) -> Callable[..., Any]:
    where = f"env {env_id!r}, entry point {_origin(point)}"
    try:
        factory = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}: cannot import it: {error}", key="env") from error
    except Exception as error:
        raise_in_words(error, "importing it", where)
        raise
    if not callable(factory):
        raise ConfigError(
            f"{where}: it is {factory!r:.200}; accepted: a class or a function that makes an env", key="env"
        )
    return factory  # type: ignore[no-any-return]
