"""What names of other libraries mean here, as records that `names.json` has: settings, metrics, methods, arguments.

Every name of RLlib 2.60 without a leading underscore, and those of older versions that its tuned examples have, is in
that file: of its `AlgorithmConfig`s of PPO, APPO, IMPALA, DQN, SAC and CQL. The documentation is generated from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_sb3.core.config.algorithms import Points
from marl_sb3.core.config.values import Count, Fraction, PositiveInt, accepts, require, words
from marl_sb3.errors import ConfigError, did_you_mean, shown

PAGE = "docs/coming_from/rllib.md"  # where users of RLlib read on
TABLES = json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))
NOT_SET = object()  # the value of a setting that stays as it is by default


@dataclass(frozen=True)
class Meaning:
    """What a name of RLlib means; for some algorithms, or for all that have the setting."""

    setting: str = ""  # its name here; empty: it means none
    unset: Sequence[Any] = ()  # values that set nothing, because they say what happens by default
    values: Sequence[tuple[Any, Any]] = ()  # pairs: a value of RLlib, and that here
    otherwise: str = ""  # what is said of other values, which are refused; empty: see `why`
    why: str = ""  # why other values are refused, or what to set instead, as a clause; empty: they are accepted
    kind: str = ""  # of which kind other values are, a name in `KINDS`; empty: the setting's, which is checked later
    convert: str = ""  # what other values become, a name in `_CONVERSIONS`; empty: they stay as they are
    note: str = ""  # how the value changes, in words; empty if it does not
    algorithms: str = "all"  # of which algorithms, in words
    has: Sequence[str] = ()  # hyperparameters that all of them have
    part: str = ""  # what it means together with other names: a number of envs, or a network
    argument: str = ""  # of the network
    default: Any = None  # RLlib's


def _meanings(entry: Any) -> tuple[Meaning, ...]:
    """Return the meanings of an entry: the name of a setting, a record, or a list of records."""
    if isinstance(entry, str):
        return (Meaning(entry),)
    made = []
    for record in entry if isinstance(entry, list) else [entry]:
        algorithms, has = TABLES["algorithms"].get(record.get("of"), ("all", ()))
        made.append(Meaning(algorithms=algorithms, has=has, **{key: record[key] for key in record if key != "of"}))
    return tuple(made)


# Name of RLlib -> what it means, for one kind of algorithms after the other.
NAMES: Mapping[str, tuple[Meaning, ...]] = {
    **{name: _meanings(entry) for names, entry in TABLES["settings"].items() for name in names.split(", ")},
    **{name: (Meaning(unset=values, why=why),) for name, (values, why) in TABLES["always"].items()},
    **{name: (Meaning(why=why),) for why, names in TABLES["no counterpart"].items() for name in names},
}
# Names that are translated when the algorithm and the number of envs are known, and those that mean one setting always.
LATER = frozenset(name for name, means in NAMES.items() if means[0].setting and (means[0].has or means[0].part))
RENAMED = {name: means[0] for name, means in NAMES.items() if means[0].setting and name not in LATER}
# What names mean together with others -> these names; and those that describe a network.
PARTS = {
    part: [name for name, means in NAMES.items() if means[0].part == part]
    for part in {means[0].part for means in NAMES.values()}
}
NETWORK = [*PARTS["network"], *PARTS["attention"], *PARTS["frames"]]
ALSO_OURS = {name: _meanings(entry)[0] for name, entry in TABLES["of marl_sb3"].items()}  # other names that are ours

# Mappings of RLlib whose entries have names of this table -> what stands before these names there.
NESTED: Mapping[str, str] = {"model": "", "model_config": "", "replay_buffer_config": "replay_buffer_config."}

# Of an `algorithm`, one without envs (`bundle`), an `env` of several, a `policy` and an `episode` of RLlib, of a
# `callback` and its `parameter`s, of the arguments of a `search` and of a `study` of Tune, of `algo` in small letters,
# of a `module`, of a `metric` (`config/` is all that begin so), and of the arguments of SB3's `make_vec_env` and
# `load`: name -> what does the same here, and the page to read.
COUNTERPARTS: dict[str, dict[str, str]] = {}
for _page, _tables in TABLES["instead"].items():
    for _of, _sentences in _tables.items():
        for _said, _names in _sentences.items():
            COUNTERPARTS.setdefault(_of, {}).update(dict.fromkeys(_names, f"{_said}; see {_page}" if _page else _said))


def no_counterpart(name: str) -> str | None:
    """Return the message for a name without a counterpart; None if it has one, or is unknown."""
    meaning = NAMES[name][0] if name in NAMES else Meaning(name)
    return None if meaning.setting or meaning.unset else f"RLlib's {name} has no counterpart here; {meaning.why}"


def value_here(name: str, meaning: Meaning, value: Any, key: str, n_envs: int = 0) -> Any:
    """Return what a value of RLlib is here; `NOT_SET`: it sets nothing.

    Raises:
        ConfigError: the name or the value has no counterpart.
    """
    if message := no_counterpart(name):
        raise ConfigError(message, key=key)
    for theirs, ours in [*((each, NOT_SET) for each in meaning.unset), *meaning.values]:
        if shown(theirs) == shown(value):  # 1 is not true, which Python's `==` says
            return ours
    if meaning.convert and (converted := _CONVERSIONS[meaning.convert](value, n_envs, key)) is not _REFUSED:
        return converted
    refused = meaning.otherwise
    if meaning.kind and not accepts(KINDS[meaning.kind], value):
        refused = f"accepted: {words(KINDS[meaning.kind])}"
    elif meaning.why:
        refused = f"accepted: {' or '.join(dict.fromkeys(map(in_yaml, meaning.unset)))}; {meaning.why}"
    if not refused:
        return value
    hint = did_you_mean(value, [each for each, _ in meaning.values if isinstance(each, str)])
    raise ConfigError(f"RLlib's {name} is {shown(value)}; {refused}{hint and f'; {hint}'}", key=key)


def in_yaml(value: Any) -> str:
    """Return a value as files have it."""
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _clipped(value: Any, _: int, key: str) -> Any:
    """RLlib's true keeps the signs of rewards alone; a number clips to -X to X, here too."""
    if value is True:
        accepted = "a number X, which clips to -X to X, or false; the env_wrapper ClipRewardEnv keeps their signs alone"
        raise ConfigError(f"RLlib's clip_rewards is true; accepted: {accepted}", key=key)
    return None if value is False else value


def _epsilon_greedy(value: Any, _: int, key: str) -> Any:
    """RLlib's class `EpsilonGreedy` of older versions: a constant, then a line from the first epsilon to the last."""
    defaults = {"initial_epsilon": 1.0, "final_epsilon": 0.05, "epsilon_timesteps": 100_000, "warmup_timesteps": 0}
    given = dict(value) if isinstance(value, Mapping) else {}
    is_meant = str(given.pop("type", None)).rpartition(".")[2] == "EpsilonGreedy"
    known = {**defaults, **given}
    counts = all(accepts(Count, known[name]) for name in ("epsilon_timesteps", "warmup_timesteps"))
    if not is_meant or not counts or known.keys() != defaults.keys():
        return _REFUSED
    first, last, env_steps, warmup = known.values()
    points = [[warmup, first], [warmup + env_steps, last]]
    return value_here("epsilon", Meaning(kind="number or points"), points, key)


_REFUSED = object()  # what a conversion returns for a value of which `Meaning.otherwise` says what is wrong
KINDS: Mapping[str, Any] = {
    "count": Count,
    "positive integer": PositiveInt,
    "number or points": Fraction | Points,
    "points or null": Points | None,
}
_CONVERSIONS: Mapping[str, Callable[[Any, int, str], Any]] = {
    "per env": lambda value, n_envs, key: math.ceil(require("train_batch_size", value, PositiveInt, key) / n_envs),
    "epsilon greedy": _epsilon_greedy,
    "learned from": lambda value, *_: f"auto_{value}",
    "in optimizer_kwargs": lambda value, *_: {"eps": value},
    "clipped": _clipped,
}
