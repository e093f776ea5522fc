"""Search spaces: parameters with their ranges, read from a file, a mapping or a grid."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_sb3.core.config.values import plain_numbers
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.extensions.dialects.names import as_integer, canonical_name, canonical_value
from marl_sb3.files.plain_yaml import parse_value, read_yaml
from marl_sb3.runs.files import preset_path
from marl_sb3.runs.schema import ACCEPTED, TrainConfig, value_of

if TYPE_CHECKING:
    import numpy as np
    import optuna

PERTURBATIONS = (0.8, 1.2)  # factors of Jaderberg et al., see `population`
SpaceSource = str | Path | Mapping[str, Any] | None
Grid = Sequence[str] | Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Parameter:
    """A setting that is searched."""

    name: str  # the setting's key, as after `--set`
    kind: str  # `choices`, `uniform`, `log_uniform` or `int`
    bounds: tuple[Any, ...]  # the choices, or the lowest and the highest value
    # whether a value X becomes the linear schedule `lin_X`; None: in a shipped space, if it is one in the preset
    linear: bool | None = None

    def suggest(self, trial: optuna.trial.Trial) -> Any:
        """Let Optuna choose a value; returns it as Optuna stores it."""
        return _SUGGEST[self.kind](trial, self.name, self.bounds)

    def setting(self, stored: Any) -> Any:
        """The value of the setting, as after `--set`, for one that Optuna stores."""
        value = _unlisted(stored)
        return f"lin_{value!r}" if self.linear else value

    def at(self, value: Any) -> Any:
        """The parameter, as Optuna stores it, at which the setting has this value.

        Raises:
            ValueError: there is none; the message says why, after the name of the setting.
        """
        if self.kind == "choices" and not self.linear and _choice(value) in self.bounds:
            return self.bounds[self.bounds.index(_choice(value))]
        start = _start_of_line(value)
        if self.linear and start is None:
            raise ValueError(f"{value}, and no linear schedule")
        if not self.linear and start is not None:
            raise ValueError(f"the linear schedule {value}")
        found = _choice(value if start is None else start)
        if self.kind == "choices":
            if found not in self.bounds:
                raise ValueError(f"{found}, none of {', '.join(map(str, self.bounds))}")
            return self.bounds[self.bounds.index(found)]
        low, high = self.bounds
        if isinstance(found, (str, bool)) or found is None or not low <= found <= high:
            raise ValueError(f"{found}, outside {low} to {high}")
        return found

    @property
    def is_perturbed(self) -> bool:
        """Whether a member of a population changes a copied value; otherwise it draws one: choices have no order."""
        return self.kind != "choices" or all(map(_is_number, self.bounds))

    def perturbed(self, value: Any, rng: np.random.Generator) -> Any:
        """A value near one that was copied, both as Optuna stores them.

        A number in a range is multiplied by 0.8 or 1.2, at random, and stays within the range; where one of them would
        change nothing, it is the other one. An integer moves by at least 1. Of numbers to choose from, it is the next
        smaller or the next larger one.
        """
        if self.kind == "choices":
            ordered = sorted(self.bounds)
            place = ordered.index(value)
            candidates = [ordered[each] for each in (place - 1, place + 1) if 0 <= each < len(ordered)]
        else:
            low, high = self.bounds
            candidates = []
            for factor in PERTURBATIONS:
                moved = value * factor
                if self.kind == "int":
                    moved = round(moved) if round(moved) != value else value + (1 if factor > 1 else -1)
                candidates.append(min(max(moved, low), high))
            candidates = [each for each in candidates if each != value]
        return candidates[int(rng.integers(len(candidates)))] if candidates else value

    def with_value(self, value: Any) -> Parameter:
        """The parameter with a value of the setting added to its choices or its range, if it may be there."""
        try:
            self.at(value)
        except ValueError:
            start = _start_of_line(value)
            added = _choice(value if start is None else start)
            if (start is None) == bool(self.linear) or added is None:
                return self
            numbers = all(isinstance(bound, (int, float)) for bound in (*self.bounds, added))
            if self.kind != "choices":
                low, high = self.bounds
                return replace(self, bounds=(min(added, low), max(added, high))) if numbers else self
            return replace(self, bounds=tuple(sorted((*self.bounds, added)) if numbers else (*self.bounds, added)))
        return self

    def edge_of(self, values: Sequence[Any]) -> str | None:
        """`lower` or `upper` if the values, as Optuna stores them, lie at that end of the range; else None.

        Of a range, these are all but one of the values in its outer tenth; of three or more numbers to choose from, all
        of them. A lower end of 0 or an upper end of 1 is no end, because nothing may lie beyond.
        """
        numbers = list(filter(_is_number, self.bounds))
        if len(numbers) < len(self.bounds) or len(values) < _LEAST_AT_AN_EDGE:
            return None
        low, high = min(numbers), max(numbers)
        if self.kind == "choices":
            lower, upper = (sum(value == end for value in values) for end in (low, high))
            needed = len(values) if len(numbers) > 2 else len(values) + 1
        else:
            scale: Callable[[float], float] = math.log if self.kind == "log_uniform" else float
            places = [(scale(value) - scale(low)) / (scale(high) - scale(low)) for value in values]
            lower, upper = sum(place <= 0.1 for place in places), sum(place >= 0.9 for place in places)
            needed = len(values) - 1
        return "lower" if lower >= needed and low != 0 else "upper" if upper >= needed and high != 1 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _start_of_line(value: Any) -> float | None:
    """The start X of a linear schedule `lin_X`; None for other values."""
    return float(value[4:]) if isinstance(value, str) and _LINE.fullmatch(value) else None


def _choice(value: Any) -> Any:
    """A choice as Optuna stores it; texts that begin like JSON are JSON, too."""
    is_json = isinstance(value, (list, dict)) or (isinstance(value, str) and value[:1] in _JSON)
    return json.dumps(value) if is_json else value


def _unlisted(value: Any) -> Any:
    """Reverse `_choice`: Optuna stores strings and numbers only, so that lists and mappings become JSON."""
    if isinstance(value, str) and value[:1] in _JSON:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value  # a text of a study of former versions
    return value


_JSON = ("[", "{", '"')  # how what is stored as JSON begins

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


_LINE = re.compile(r"lin_\d*\.?\d+(?:e-?\d+)?")
_LEAST_AT_AN_EDGE = 5  # trials
# The networks that SB3 makes if `policy_kwargs.net_arch` is not given, by algorithm; with `CnnPolicy`, there is none
# but SB3's convolutions.
_NETWORKS: Mapping[str, Any] = {
    **{name: [64, 64] for name in ("ppo", "a2c", "trpo", "recurrent_ppo")},
    **{name: [64, 64] for name in ("maskable_ppo", "maskable_a2c", "maskable_trpo", "maskable_recurrent_ppo")},
    **{name: [64, 64] for name in ("dqn", "qrdqn", "maskable_dqn", "maskable_qrdqn", "recurrent_dqn")},
    **{name: [64, 64] for name in ("vdn", "qmix")},
    **{name: [256, 256] for name in ("sac", "recurrent_sac", "tqc", "iql")},
    **{name: [400, 300] for name in ("td3", "ddpg")},
    "crossq": {"pi": [256, 256], "qf": [1024, 1024]},
}
_OF_NETWORKS: Mapping[str, Any] = {"n_quantiles": 200, "lstm_hidden_size": 256, "cell": "lstm"}  # other defaults


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
        return {**self.constants, **{p.name: p.setting(params[p.name]) for p in self.parameters if p.name in params}}

    def params_of(self, config: TrainConfig) -> dict[str, Any] | None:
        """The parameters of a trial with the settings of a configuration, as Optuna stores them; None: it has none.

        Args:
            config: with the defaults of SB3.
        """
        return None if self.missing(config) else {p.name: p.at(setting(config, p.name)) for p in self.parameters}

    def missing(self, config: TrainConfig) -> str:
        """Say why no trial has the settings of a configuration: `gamma is 0.9, outside 0.95 to 0.99`; else empty.

        Args:
            config: with the defaults of SB3.
        """
        for name, value in self.constants.items():
            if (found := setting(config, name)) != value:
                return f"{name} is {found}, and {value} in all trials"
        for parameter in self.parameters:
            try:
                parameter.at(setting(config, parameter.name))
            except ValueError as error:
                return f"{parameter.name} is {error}"
        return ""

    def following(self, config: TrainConfig) -> Space:
        """The space in which a setting stays a linear schedule if it is one in a configuration."""
        decided = [
            replace(p, linear=True) if p.linear is None and _start_of_line(setting(config, p.name)) is not None else p
            for p in self.parameters
        ]
        return replace(self, parameters=tuple(decided))

    def containing(self, config: TrainConfig, longest: int) -> Space:
        """The space with the settings of a configuration added, and without rollouts and minibatches that are too long.

        A rollout has to fit into a trial, and a minibatch into a rollout.

        Args:
            longest: env steps of the longest rollout that fits.
        """
        if "gae_lambda" not in config.hyperparameters:  # it has no rollouts
            return replace(self, parameters=tuple(p.with_value(setting(config, p.name)) for p in self.parameters))
        order = [p.name for p in self.parameters]
        largest, fitting = {"n_steps": longest // config.n_envs}, []
        for parameter in sorted(self.parameters, key=lambda p: p.name == "batch_size"):
            kept = parameter
            if parameter.kind == "choices" and (most := largest.get(parameter.name)) is not None:
                kept = replace(parameter, bounds=tuple(each for each in parameter.bounds if each <= most))
            fitting.append(kept.with_value(setting(config, parameter.name)))
            if parameter.name == "n_steps":
                largest["batch_size"] = config.n_envs * min(fitting[-1].bounds)
        return replace(self, parameters=tuple(sorted(fitting, key=lambda p: order.index(p.name))))

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
            p.name: {p.kind: list(map(_unlisted, p.bounds)), **({} if p.linear is None else {"linear": p.linear})}
            for p in self.parameters
        }
        return {**ranges, **self.constants}


def setting(config: TrainConfig, name: str) -> Any:
    """The value of a setting, as after `--set`; None if it has none.

    Args:
        config: with the defaults of SB3.
    """
    if name in ACCEPTED:
        return value_of(config, name)
    first, _, rest = name.partition(".")
    if first == "env":
        return config.env_kwargs.get(rest)
    of_one = first in config.own_settings
    policy = config.of_policy(first) if of_one else config
    found: Any = {"algo": policy.algo, **policy.hyperparameters}
    for part in (rest if of_one else name).split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is None and name.endswith("policy_kwargs.net_arch"):
        has_own = "features_extractor_class" in (policy.hyperparameters.get("policy_kwargs") or {})
        return [] if policy.policy == "CnnPolicy" and not has_own else _NETWORKS.get(policy.algo)
    return _OF_NETWORKS.get(name.rpartition(".")[2]) if found is None and "policy_kwargs." in name else found


def edge_warnings(space: Space, best: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which parameters of the best trials lie at an end of their range.

    Args:
        best: the parameters of the best trials as Optuna stores them, best first.
    """
    ends = {p: p.edge_of([each[p.name] for each in best if p.name in each]) for p in space.parameters}
    return [
        f"{p.name}: the best {len(best)} trials lie at the {end} end of {min(p.bounds)} to {max(p.bounds)}; a wider "
        "range in a file for --space may hold better values"
        for p, end in ends.items()
        if end is not None
    ]


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
        refuse(where, section, "a mapping of parameters to ranges", "space")
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
                refuse(f"grid, {name}:", each, "a list of values", "grid")
    else:
        values = {}
        for text in grid:
            key, _, written = (part.strip() for part in text.partition("="))
            if not key or not written:
                refuse("--grid", text, "KEY=A,B,C", "grid")
            if key in values:
                raise ConfigError(
                    f"--grid {key} is given twice; accepted: {key}=A,B,C once, with all values", key="grid"
                )
            try:
                values[key] = parse_value(f"[{written}]")
            except ConfigError as error:
                raise ConfigError(f"--grid {key}: {error}", key="grid") from error
    section = {name: {"choices": list(each)} for name, each in values.items()}
    return parse_space(section, "grid" if isinstance(grid, Mapping) else "--grid")


_LARGEST = 2**53  # floats represent all integers up to here exactly; the comparison also excludes NaN and infinity
_ACCEPTED = "{choices: [...]}, {uniform: [a, b]}, {log_uniform: [a, b]}, {int: [a, b]} or a constant"


def _parameter(key: str, spec: Mapping[str, Any], where: str) -> Parameter:
    name = canonical_name(key)
    kinds = [kind for kind in _SUGGEST if kind in spec]
    linear = spec.get("linear")
    if len(kinds) != 1 or set(spec) - {kinds[0], "linear"} or not isinstance(linear, bool | None):
        refuse(f"{where}:", dict(spec), _ACCEPTED, "space")
    kind = kinds[0]
    bounds = spec[kind]
    if not isinstance(bounds, list) or not bounds:
        refuse(f"{where}: {kind}", bounds, "a list that is not empty", "space")
    bounds = [as_integer(bound) if kind == "int" else canonical_value(key, bound) for bound in bounds]
    if kind == "choices":
        return Parameter(name, kind, _choices(bounds, linear, where), linear)
    types, noun = ((int,), "integers") if kind == "int" else ((int, float), "numbers")
    numbers = all(isinstance(b, types) and not isinstance(b, bool) and abs(b) <= _LARGEST for b in bounds)
    least, order = (0, "0 < lowest < highest") if kind == "log_uniform" else (-math.inf, "lowest < highest")
    if not (numbers and len(bounds) == 2 and least < bounds[0] < bounds[1]):
        refuse(f"{where}: {kind}", bounds, f"two {noun}, {order}", "space")
    return Parameter(name, kind, tuple(bounds), linear)


def _choices(values: list[Any], linear: bool | None, where: str) -> tuple[Any, ...]:
    """Check choices, and return them as Optuna stores them, each once."""
    accepted = "numbers" if linear else "numbers, texts, true, false, null, lists of these, mappings of texts to these"
    kept = tuple(dict.fromkeys(map(_choice, values)))
    for value in values:
        stored = _choice(value)
        is_plain = isinstance(stored, str | bool | int | float | None) and _unlisted(stored) == value  # NaN is not
        if not (_is_number(value) if linear else is_plain):
            raise ConfigError(f"{where}: {value!r}; accepted: {accepted}", key="space")
        if isinstance(same := kept[kept.index(stored)], bool) != isinstance(stored, bool):
            words = f"{same!r} and {stored!r} are both given, but count as the same; accepted: one of them"
            raise ConfigError(f"{where}: {words}", key="space")
    return kept
