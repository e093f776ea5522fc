"""Register algorithms of the user's own, and find those that the user names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from marl_sb3.core.config import (
    AlgorithmInfo,
    Strings,
    add_algorithm,
    algorithm_info,
    built_in,
    canonical_algorithm,
    info_of,
    known_name,
    require,
    shown,
)
from marl_sb3.core.envs import import_modules
from marl_sb3.errors import ConfigError


def register_algorithm(info: AlgorithmInfo) -> AlgorithmInfo:
    """Make an algorithm of your own known by its name, for `--algo`, configurations, checkpoints and `PolicySpec`.

    It must be registered in each process that loads a run or a checkpoint with the name: a file only holds the name,
    and nothing is imported by it. A later registration replaces an earlier one.

    Args:
        info: what marl_sb3 has to know of it.

    Returns:
        `info`.

    Raises:
        ConfigError: the name is that of a built-in algorithm, or a field of `info` has another type.
    """
    _check(info)
    taken = canonical_algorithm(info.name)
    if taken in built_in():
        raise ConfigError(f"the algorithm {taken!r} is built in; choose another name than {info.name!r}", key="algo")
    add_algorithm(info)
    return info


def _check(info: AlgorithmInfo) -> None:
    if not isinstance(info, AlgorithmInfo):
        raise ConfigError(f"the algorithm is {shown(info)}; accepted: an AlgorithmInfo", key="algo")
    if not isinstance(info.name, str) or not info.name.replace("-", "_").isidentifier():
        raise ConfigError(f"the algorithm's name is {shown(info.name)}; accepted: a name such as my_algo", key="algo")
    for field in ("algorithm", "learner"):
        value = getattr(info, field)
        is_place = isinstance(value, str) and value.count(":") == 1
        if not (inspect.isclass(value) or is_place or (field == "learner" and value is None)):
            accepted = "a class, or the place of one as module:class"
            raise ConfigError(f"algorithm {info.name}: {field} is {shown(value)}; accepted: {accepted}", key="algo")
    for field in ("hyperparameters", "metrics"):
        if not isinstance(getattr(info, field), Mapping):
            words = f"{field} is {shown(getattr(info, field))}; accepted: a mapping by name"
            raise ConfigError(f"algorithm {info.name}: {words}", key="algo")
    require(f"algorithm {info.name}: aliases", list(info.aliases), Strings, "algo")


def named_algorithm(algo: Any) -> Any:
    """Return the name of an algorithm that the user names on a command line or in Python; never one of a file.

    Args:
        algo: a name; `module:NAME` of an `AlgorithmInfo`, whose module is imported; an `AlgorithmInfo`, which is
            registered; or anything else, which is returned as it is.

    Raises:
        ConfigError: the module cannot be imported, or has no such `AlgorithmInfo`.
    """
    if isinstance(algo, AlgorithmInfo):
        return known_name(algo) or register_algorithm(algo).name
    if not isinstance(algo, str) or ":" not in algo:
        return canonical_algorithm(algo)
    import_modules([algo.partition(":")[0]], f"algo {shown(algo)}", "package.module:NAME of an AlgorithmInfo")
    _check(algorithm_info(algo))
    return algo


def info_of_class(algorithm: Any) -> AlgorithmInfo:
    """Return the algorithm of a class, or of its first base class with one.

    Raises:
        ConfigError: it is no class, or it is neither registered nor derived from a class of an algorithm.
    """
    info = info_of(algorithm) if isinstance(algorithm, type) else None
    if info is None:
        names = ", ".join(each.class_name for each in built_in().values())
        raise ConfigError(
            f"algorithm is {algorithm!r}; accepted: {names} and subclasses, and classes of marl_sb3.register_algorithm",
            key="algo",
        )
    return info
