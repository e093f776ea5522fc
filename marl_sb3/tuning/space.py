"""What a search may choose from: a file of parameters with their ranges, or a grid."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_sb3.config import parse_value, preset_path, read_yaml
from marl_sb3.config.names import as_integer, canonical_name, read_value
from marl_sb3.errors import ConfigError

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Parameter:
    """A setting that a search chooses.

    Attributes:
        name: its key as after `--set`.
        kind: `choices`, `uniform`, `log_uniform` or `int`.
        bounds: the choices; or the lowest and the highest value.
        linear: the value is where a line down to 0 begins: `lin_X`.
    """

    name: str
    kind: str
    bounds: tuple[Any, ...]
    linear: bool = False

    def suggest(self, trial: optuna.trial.Trial) -> Any:
        """Let Optuna choose; returns the value for `--set`."""
        value = _SUGGEST[self.kind](trial, self.name, self.bounds)
        return self.setting(value)

    def setting(self, value: Any) -> Any:
        """What is set for a value that Optuna knows: lists are kept as text by it."""
        value = _unlisted(value)
        return f"lin_{value!r}" if self.linear else value

    def extremes(self) -> tuple[Any, ...]:
        """The values between which all others lie; all choices."""
        return tuple(self.setting(value) for value in self.bounds)


def _choice(value: Any) -> Any:
    """A choice as Optuna stores it."""
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def _unlisted(value: Any) -> Any:
    """A choice as it was given: Optuna stores words and numbers, so that lists and mappings are kept as JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value  # a word that begins like a list
    return value


# Ends of ranges to try: a minibatch is not to be larger than its rollout, nor a trial shorter than its evaluations.
_LARGEST_MINIBATCH: Mapping[str, Callable[[Any], Any]] = {"batch_size": max, "n_steps": min, "n_envs": min}
_FEWEST_ROLLOUTS: Mapping[str, Callable[[Any], Any]] = {"n_timesteps": min, "n_steps": max, "n_envs": max}


_SUGGEST: Mapping[str, Callable[[Any, str, tuple[Any, ...]], Any]] = {
    "choices": lambda trial, name, bounds: trial.suggest_categorical(name, list(bounds)),
    "uniform": lambda trial, name, bounds: trial.suggest_float(name, *bounds),
    "log_uniform": lambda trial, name, bounds: trial.suggest_float(name, *bounds, log=True),
    "int": lambda trial, name, bounds: trial.suggest_int(name, *bounds),
}


@dataclass(frozen=True)
class Space:
    """All that a search chooses, and what it sets in every trial.

    Attributes:
        parameters: what is chosen.
        constants: what is set in every trial.
    """

    parameters: tuple[Parameter, ...]
    constants: Mapping[str, Any]

    @property
    def names(self) -> set[str]:
        """The keys of all parameters and constants."""
        return {*self.constants, *(parameter.name for parameter in self.parameters)}

    def suggest(self, trial: optuna.trial.Trial) -> dict[str, Any]:
        """The settings of a trial, by their keys as after `--set`."""
        return {**self.constants, **{parameter.name: parameter.suggest(trial) for parameter in self.parameters}}

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that Optuna's parameters of a finished trial stand for."""
        chosen = {p.name: p.setting(params[p.name]) for p in self.parameters if p.name in params}
        return {**self.constants, **chosen}

    def without(self, names: Collection[str]) -> Space:
        """The rest of it, where some parameters are set by other means.

        Raises:
            ConfigError: nothing is left to choose.
        """
        left = tuple(parameter for parameter in self.parameters if parameter.name not in names)
        if not left:
            raise ConfigError(f"nothing to choose: {', '.join(sorted(names))} is set for all trials", key="space")
        return Space(left, {name: value for name, value in self.constants.items() if name not in names})

    def combinations(self) -> int:
        """How many there are.

        Raises:
            ConfigError: a parameter has a range instead of choices.
        """
        ranges = [parameter.name for parameter in self.parameters if parameter.kind != "choices"]
        if ranges:
            raise ConfigError(f"a grid needs choices; {', '.join(ranges)} has a range", key="sampler")
        return math.prod(len(parameter.bounds) for parameter in self.parameters)

    def grid(self) -> Iterator[dict[str, Any]]:
        """Optuna's parameters of every combination, where all are choices."""
        names = [parameter.name for parameter in self.parameters]
        for values in itertools.product(*(parameter.bounds for parameter in self.parameters)):
            yield dict(zip(names, values, strict=True))

    def corners(self) -> Iterator[dict[str, Any]]:
        """Settings that together have every extreme, the largest minibatch of a rollout, and the fewest rollouts."""
        extremes = [parameter.extremes() for parameter in self.parameters]
        for number in range(max(map(len, extremes), default=0)):
            chosen = {p.name: e[min(number, len(e) - 1)] for p, e in zip(self.parameters, extremes, strict=True)}
            yield {**self.constants, **chosen}
        for picks in (_LARGEST_MINIBATCH, _FEWEST_ROLLOUTS):
            yield self._corner(picks)

    def _corner(self, picks: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
        """Settings with certain ends of ranges."""
        chosen = {}
        for parameter in self.parameters:
            pick = picks.get(parameter.name.rpartition(".")[2])
            whole = all(isinstance(bound, int) for bound in parameter.bounds)
            chosen[parameter.name] = parameter.setting(
                pick(parameter.bounds) if pick and whole else parameter.bounds[0]
            )
        return {**self.constants, **chosen}

    def to_plain(self) -> dict[str, Any]:
        """As in a space file."""
        ranges = {
            p.name: {p.kind: list(map(_unlisted, p.bounds)), **({"linear": True} if p.linear else {})}
            for p in self.parameters
        }
        return {**ranges, **self.constants}


def read_space(env: str, algo: str, path: str | Path | None) -> Space:
    """The space of a file: of the env's section, or the section `default`, or the whole file if it has no sections.

    Args:
        env: env id.
        algo: algorithm, whose shipped space is taken where there is no file.
        path: the file, or None.

    Raises:
        ConfigError: with the file, the parameter and what is accepted.
    """
    file = Path(path) if path is not None else preset_path(f"{algo}.space")
    content = read_yaml(file)
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"{file} holds {type(content).__name__}; accepted: parameter -> range", key="space")
    section = content.get(env, content.get("default", content))
    if not isinstance(section, Mapping):
        raise ConfigError(f"{file}, {env}: is {section!r}; accepted: parameter -> range", key="space")
    return parse_space(section, str(file))


def parse_space(section: Mapping[str, Any], where: str) -> Space:
    """A space from plain data.

    Raises:
        ConfigError: with the parameter and what is accepted.
    """
    parameters: list[Parameter] = []
    constants: dict[str, Any] = {}
    for given, spec in section.items():
        name = canonical_name(str(given))
        if name in constants or any(parameter.name == name for parameter in parameters):
            raise ConfigError(f"{where}: {name} is there twice (as {given})", key="space")
        if isinstance(spec, Mapping):
            parameters.append(_parameter(name, spec, f"{where}, {given}"))
        else:
            constants[name] = read_value(name, spec)
    if not parameters:
        lists = [name for name, value in constants.items() if isinstance(value, list)]
        hint = f"; to choose from a list: {lists[0]}: {{choices: {constants[lists[0]]!r}}}" if lists else ""
        raise ConfigError(f"{where}: nothing to choose: all of it is constant{hint}", key="space")
    return Space(tuple(parameters), constants)


def parse_grid(texts: Sequence[str]) -> Space:
    """A space from `--grid key=a,b,c`.

    Raises:
        ConfigError: it has another form.
    """
    section: dict[str, Any] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not key or not equals or not values:
            raise ConfigError(f"--grid is {text!r}; accepted: KEY=A,B,C", key="grid")
        parsed = parse_value(f"[{values}]")
        section[key.strip()] = {"choices": parsed}
    return parse_space(section, "--grid")


_ACCEPTED = "{choices: [...]}, {uniform: [a, b]}, {log_uniform: [a, b]}, {int: [a, b]} or a constant"


def _parameter(name: str, spec: Mapping[str, Any], where: str) -> Parameter:
    kinds = [kind for kind in _SUGGEST if kind in spec]
    linear = spec.get("linear", False)
    if len(kinds) != 1 or set(spec) - {kinds[0], "linear"} or not isinstance(linear, bool):
        raise ConfigError(f"{where}: is {dict(spec)!r}; accepted: {_ACCEPTED}", key="space")
    kind = kinds[0]
    bounds = spec[kind]
    if not isinstance(bounds, list) or not bounds:
        raise ConfigError(f"{where}: {kind} is {bounds!r}; accepted: a list that is not empty", key="space")
    bounds = [as_integer(bound) if kind == "int" else read_value(name, bound) for bound in bounds]
    if kind == "choices":
        return Parameter(name, kind, tuple(dict.fromkeys(map(_choice, bounds))), linear)
    _check_range(kind, bounds, where)
    return Parameter(name, kind, tuple(bounds), linear)


_LARGEST = 2**53  # integers up to it are floats without rounding; NaN and infinity are not below it


def _check_range(kind: str, bounds: list[Any], where: str) -> None:
    whole = kind == "int"
    numbers = all(
        isinstance(b, int if whole else (int, float)) and not isinstance(b, bool) and abs(b) <= _LARGEST for b in bounds
    )
    ordered = numbers and len(bounds) == 2 and bounds[0] < bounds[1] and (kind != "log_uniform" or bounds[0] > 0)
    if not ordered:
        low = "0 < lowest < highest" if kind == "log_uniform" else "lowest < highest"
        words = f"two {'integers' if whole else 'numbers'}, {low}"
        raise ConfigError(f"{where}: {kind} is {bounds!r}; accepted: {words}", key="space")
