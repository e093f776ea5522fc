"""Search spaces: parameters with their ranges, read from a file, a mapping or a grid."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_sb3.config import parse_value, preset_path, read_yaml
from marl_sb3.config.settings import as_integer, canonical_name, canonical_value
from marl_sb3.config.values import plain_numbers
from marl_sb3.errors import ConfigError

if TYPE_CHECKING:
    import optuna

SpaceSource = str | Path | Mapping[str, Any] | None
Grid = Sequence[str] | Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Parameter:
    """A setting that is searched.

    Attributes:
        name: the setting's key, as after `--set`.
        kind: `choices`, `uniform`, `log_uniform` or `int`.
        bounds: the choices, or the lowest and the highest value.
        linear: whether a value X becomes the linear schedule `lin_X`.
    """

    name: str
    kind: str
    bounds: tuple[Any, ...]
    linear: bool = False

    def suggest(self, trial: optuna.trial.Trial) -> Any:
        """Let Optuna choose a value; returns it as Optuna stores it."""
        return _SUGGEST[self.kind](trial, self.name, self.bounds)


def _choice(value: Any) -> Any:
    """A choice as Optuna stores it."""
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def _unlisted(value: Any) -> Any:
    """Reverse `_choice`: Optuna stores strings and numbers only, so that lists and mappings become JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value  # a string that starts like a list
    return value


# The ends of ranges that give the largest minibatch in the smallest rollout, and the fewest rollouts in a trial.
_EXTREMES: Sequence[Mapping[str, Callable[[Any], Any]]] = (
    {"batch_size": max, "n_steps": min, "n_envs": min},
    {"n_timesteps": min, "n_steps": max, "n_envs": max},
)
_SUGGEST: Mapping[str, Callable[[Any, str, tuple[Any, ...]], Any]] = {
    "choices": lambda trial, name, bounds: trial.suggest_categorical(name, list(bounds)),
    "uniform": lambda trial, name, bounds: trial.suggest_float(name, *bounds),
    "log_uniform": lambda trial, name, bounds: trial.suggest_float(name, *bounds, log=True),
    "int": lambda trial, name, bounds: trial.suggest_int(name, *bounds),
}


@dataclass(frozen=True)
class Space:
    """Parameters to search, and constants that are set in every trial."""

    parameters: tuple[Parameter, ...]
    constants: Mapping[str, Any]

    @property
    def names(self) -> set[str]:
        """The keys of all parameters and constants."""
        return {*self.constants, *(parameter.name for parameter in self.parameters)}

    def suggest(self, trial: optuna.trial.Trial) -> dict[str, Any]:
        """Let Optuna choose the settings of a trial; returns them by key, as after `--set`."""
        return self.settings({parameter.name: parameter.suggest(trial) for parameter in self.parameters})

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The settings for the parameters of a trial as Optuna stores them: lists are JSON."""
        chosen = dict(self.constants)
        for parameter in self.parameters:
            if parameter.name in params:
                value = _unlisted(params[parameter.name])
                chosen[parameter.name] = f"lin_{value!r}" if parameter.linear else value
        return chosen

    def without(self, names: Collection[str]) -> Space:
        """The space without some keys, which are set by other means.

        Raises:
            ConfigError: no parameter is left.
        """
        searched = tuple(parameter for parameter in self.parameters if parameter.name not in names)
        if not searched:
            raise ConfigError(f"nothing to choose: {', '.join(sorted(names))} is set for all trials", key="space")
        return Space(searched, {name: value for name, value in self.constants.items() if name not in names})

    def combinations(self) -> int:
        """The number of points in the grid.

        Raises:
            ConfigError: a parameter has a range instead of choices.
        """
        ranges = [parameter.name for parameter in self.parameters if parameter.kind != "choices"]
        if ranges:
            raise ConfigError(f"a grid needs choices; {', '.join(ranges)} has a range", key="sampler")
        return math.prod(len(parameter.bounds) for parameter in self.parameters)

    def grid(self) -> Iterator[dict[str, Any]]:
        """The parameters of each point in the grid, as Optuna stores them; all must be choices."""
        names = [parameter.name for parameter in self.parameters]
        for values in itertools.product(*(parameter.bounds for parameter in self.parameters)):
            yield dict(zip(names, values, strict=True))

    def corners(self) -> Iterator[dict[str, Any]]:
        """Settings at the ends of all ranges, with the largest minibatch, and with the fewest rollouts in a trial."""
        for number in range(max((len(parameter.bounds) for parameter in self.parameters), default=0)):
            yield self.settings({p.name: p.bounds[min(number, len(p.bounds) - 1)] for p in self.parameters})
        for end_of in _EXTREMES:
            chosen = {parameter.name: parameter.bounds[0] for parameter in self.parameters}
            for name, bounds in ((parameter.name, parameter.bounds) for parameter in self.parameters):
                end = end_of.get(name.rpartition(".")[2])
                if end is not None and all(isinstance(bound, int) for bound in bounds):
                    chosen[name] = end(bounds)
            yield self.settings(chosen)

    def to_plain(self) -> dict[str, Any]:
        """The space as plain data, in the form of a space file."""
        ranges = {
            p.name: {p.kind: list(map(_unlisted, p.bounds)), **({"linear": True} if p.linear else {})}
            for p in self.parameters
        }
        return {**ranges, **self.constants}


def read_space(env: str, algo: str, path: str | Path | None) -> Space:
    """Read the section of the env in a space file; else its section `default`; else the whole file.

    Args:
        path: the file; None: the space shipped for the algorithm.
    """
    file = Path(path) if path is not None else preset_path(f"{algo}.space")
    content = read_yaml(file)
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"{file} holds {type(content).__name__}; accepted: parameter -> range", key="space")
    return parse_space(content.get(env, content.get("default", content)), str(file))


def parse_space(section: Any, where: str) -> Space:
    """Parse a space from plain data.

    Args:
        section: a mapping with a range or a constant for each key; RLlib's names are accepted.
    """
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where} is {section!r}; accepted: a mapping of parameters to ranges", key="space")
    section = plain_numbers(section)
    parameters: list[Parameter] = []
    constants: dict[str, Any] = {}
    for key, spec in section.items():
        name = canonical_name(str(key))
        if name in constants or any(parameter.name == name for parameter in parameters):
            raise ConfigError(f"{where}: {name} is set twice, here as {key}", key="space")
        if isinstance(spec, Mapping):
            parameters.append(_parameter(str(key), spec, f"{where}, {key}"))
        else:
            constants[name] = canonical_value(str(key), spec)
    if not parameters:
        lists = [name for name, value in constants.items() if isinstance(value, list)]
        hint = f"; to choose from a list: {lists[0]}: {{choices: {constants[lists[0]]!r}}}" if lists else ""
        raise ConfigError(f"{where}: nothing to choose: all of it is constant{hint}", key="space")
    return Space(tuple(parameters), constants)


def parse_grid(grid: Grid) -> Space:
    """Parse a space from the values of each parameter, or from texts of the form `key=a,b,c`, as after `--grid`."""
    if isinstance(grid, Mapping):
        values: dict[str, Any] = plain_numbers(grid)
        for name, each in values.items():
            if not isinstance(each, Sequence) or isinstance(each, str):
                raise ConfigError(f"grid, {name}: is {each!r}; accepted: a list of values", key="grid")
    else:
        values = {}
        for text in grid:
            key, _, written = text.partition("=")
            if not key or not written:
                raise ConfigError(f"--grid is {text!r}; accepted: KEY=A,B,C", key="grid")
            values[key.strip()] = parse_value(f"[{written}]")
    section = {name: {"choices": list(each)} for name, each in values.items()}
    return parse_space(section, "grid" if isinstance(grid, Mapping) else "--grid")


_ACCEPTED = "{choices: [...]}, {uniform: [a, b]}, {log_uniform: [a, b]}, {int: [a, b]} or a constant"


def _parameter(key: str, spec: Mapping[str, Any], where: str) -> Parameter:
    name = canonical_name(key)
    kinds = [kind for kind in _SUGGEST if kind in spec]
    linear = spec.get("linear", False)
    if len(kinds) != 1 or set(spec) - {kinds[0], "linear"} or not isinstance(linear, bool):
        raise ConfigError(f"{where}: is {dict(spec)!r}; accepted: {_ACCEPTED}", key="space")
    kind = kinds[0]
    bounds = spec[kind]
    if not isinstance(bounds, list) or not bounds:
        raise ConfigError(f"{where}: {kind} is {bounds!r}; accepted: a list that is not empty", key="space")
    bounds = [as_integer(bound) if kind == "int" else canonical_value(key, bound) for bound in bounds]
    if kind == "choices":
        return Parameter(name, kind, tuple(dict.fromkeys(map(_choice, bounds))), linear)
    _check_range(kind, bounds, where)
    return Parameter(name, kind, tuple(bounds), linear)


_LARGEST = 2**53  # floats represent all integers up to here exactly; the comparison also excludes NaN and infinity


def _check_range(kind: str, bounds: list[Any], where: str) -> None:
    types, noun = ((int,), "integers") if kind == "int" else ((int, float), "numbers")
    numbers = all(isinstance(b, types) and not isinstance(b, bool) and abs(b) <= _LARGEST for b in bounds)
    least, order = (0, "0 < lowest < highest") if kind == "log_uniform" else (-math.inf, "lowest < highest")
    if not (numbers and len(bounds) == 2 and least < bounds[0] < bounds[1]):
        raise ConfigError(f"{where}: {kind} is {bounds!r}; accepted: two {noun}, {order}", key="space")
