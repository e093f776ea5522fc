"""Settings as users give them, in files, options, `--set` and Python: their names and values.

Each becomes that of `TrainConfig` or SB3: RLlib's names become SB3's; numbers such as `1e5` become integers where an
integer is expected; `dict(net_arch=[64, 64], activation_fn=nn.ReLU)`, as in rl-baselines3-zoo's files, becomes a
mapping. For `MultiAgentAlgorithm`, the two dialects at the door do it, see `marl_sb3.doors.Dialect`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from marl_sb3.core.config import (
    Named,
    built_in,
    canonical_algorithm,
    integer_in,
    plain_numbers,
    refusal,
    require,
    takes_integers,
    takes_integers_only,
)
from marl_sb3.doors import SETTINGS
from marl_sb3.errors import ConfigError, require_known, shown
from marl_sb3.extensions.dialects.rllib import (
    SECTION_OF,
    explanation,
    is_of_rllib,
    meanings,
    no_counterpart,
    split_name,
    unnested,
)
from marl_sb3.extensions.dialects.rllib_names import METHODS, NO_COUNTERPART, PAGE, RENAMED, VALUES
from marl_sb3.extensions.dialects.zoo import IN_PYTHON, KEYS, OF_LOAD, OF_SB3, action_noise, is_noise, parse_literal

if TYPE_CHECKING:
    from marl_sb3.core.learners import PolicySpec
    from marl_sb3.doors import Dialect

_KINDS = SETTINGS["run"]
_SECTIONS: Mapping[str, list[str]] = {
    section: [name.removeprefix(f"{section}.") for name in _KINDS if name.startswith(f"{section}.")]
    for section in dict.fromkeys(name.partition(".")[0] for name in _KINDS if "." in name)
}

# --- Names and values ------------------------------------------------------------------------------------------------

# Other names of settings, RLlib's above all.
ALIASES: Mapping[str, str] = {
    **{name: renamed.setting for name, renamed in RENAMED.items()},
    "net_arch": "policy_kwargs.net_arch",
}
# Other names of settings that are in a section: `checkpoint_every` is `checkpoints.every`.
FLAT_NAMES: Mapping[str, str] = {
    **{
        f"{section.removesuffix('s')}_{own}": f"{section}.{own}"
        for section, names in _SECTIONS.items()
        for own in names
    },
    **{name: f"{section}.{name}" for name, section in SECTION_OF.items()},
}
OF_NETWORK = "policy_kwargs."
_TEXTS = ("policy_kwargs", "replay_buffer_kwargs")  # settings that may be the text of a mapping
HYPERPARAMETERS = "hyperparameters"  # the section of SB3's arguments; their names are accepted outside it, too
_SECTIONS_OF_RUN = {*_SECTIONS, HYPERPARAMETERS} - {*SECTION_OF.values()}  # a policy has none of them
_INTEGERS = {name.rpartition(".")[2] for name, kind in _KINDS.items() if takes_integers_only(kind)}


def canonical_name(name: str) -> str:
    """Return the name of a setting in `TrainConfig` or SB3. The id of a policy before it is kept."""
    policy, own = split_name(name.removeprefix(f"{HYPERPARAMETERS}."))
    if policy:
        return f"{policy}{_without_section(ALIASES.get(own, own))}"
    return FLAT_NAMES.get(own) or ALIASES.get(own, own)


def _without_section(name: str) -> str:
    """Return a setting that a policy may have by itself without the section that it has in a run."""
    section, _, own = name.partition(".")
    return own if SECTION_OF.get(own) == section else name


def canonical_value(name: str, value: Any) -> Any:
    """Convert the value of a setting from the form in which users write it to the form that is checked.

    Args:
        name: what the user calls the setting; it may begin with a policy's id.
        value: anything; a value without another form is returned unchanged.

    Raises:
        ConfigError: the value of RLlib's name has no counterpart, or `policy_kwargs` or `replay_buffer_kwargs` is a
            text that is not a literal.
    """
    value = plain_numbers(value)
    if name.startswith("env."):
        return value
    own = split_name(name)[1]
    if own in VALUES:
        try:
            value = plain_numbers(VALUES[own](value, 0))
        except ConfigError as error:
            raise ConfigError(str(error), key=name) from error
    whole, _, own = canonical_name(name).rpartition(".")
    if own == "algo":
        return canonical_algorithm(value)
    if own in _INTEGERS or takes_integers(own):
        return as_integer(value)
    if own in _TEXTS and isinstance(value, str):
        value = parse_literal(own, value)
    if own == "policy_kwargs" and isinstance(value, Mapping):
        return {entry: _class_name(entry, part) for entry, part in value.items()}
    return _class_name(own, value) if whole.endswith("policy_kwargs") else value


def as_integer(value: Any) -> Any:
    """Convert 1e5 and `100k` to 100000. All other values but floats without a fraction are returned unchanged."""
    if isinstance(value, str) and value[-1:] in ("k", "K", "m", "M"):
        number = integer_in(value)
        return value if number is None else number
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _class_name(entry: str, value: Any) -> Any:
    """Convert `nn.ReLU` to `relu`. All other values are returned unchanged and checked later."""
    return IN_PYTHON[entry].get(value, value) if entry in IN_PYTHON and isinstance(value, str) else value


def canonical_settings(given: Mapping[str, Any], of_algorithm: Collection[str] = ()) -> dict[str, tuple[str, Any]]:
    """Return the settings of one source by canonical name: the name that the source uses, and the value.

    Names of RLlib whose meaning depends on the algorithm or on other settings keep their names; see `rllib.meanings`.

    Args:
        given: may have sections: `checkpoints: {every: 5}` is `checkpoints.every: 5`.
        of_algorithm: arguments of the algorithm's class, which mean what the class says.

    Raises:
        ConfigError: two names of one setting are given, a section has an unknown name, or a name of RLlib has no
            counterpart.
    """
    flat: dict[str, Any] = {}
    for name, value in given.items():
        is_section = (name in _SECTIONS or name == HYPERPARAMETERS) and name not in of_algorithm
        for key, part in _of_section(name, value) if is_section else [(name, value)]:
            if key in flat:
                raise ConfigError(f"{key} is given twice; accepted: once", key=key)
            flat[key] = part
    found: dict[str, tuple[str, Any]] = {}
    for key, whole in flat.items():
        meant = unnested(key, whole) if key not in of_algorithm else [(key, key, whole)]
        for written, name, value in action_noise(key, flat) if is_noise(key) else meant:
            canonical = canonical_name(name)
            if canonical in found:
                raise given_twice(canonical, found[canonical][0], written)
            found[canonical] = (written, canonical_value(name, value))
    for name, (written, _) in found.items():
        whole, _, part = name.rpartition(".")
        mapping = found.get(whole, ("", None))[1]
        if whole.rpartition(".")[2] == "policy_kwargs" and isinstance(mapping, Mapping) and part in mapping:
            raise given_twice(name, f"{whole}: {{{part}: ...}}", written)
    return found


def given_twice(name: str, one: str, other: str) -> ConfigError:
    """Return the error for a setting that is given by two names."""
    words = "are both given, but are two names of"
    return ConfigError(f"{one} and {other} {words} {name}; accepted: one of them", key=name)


def _of_section(section: str, settings: Any) -> Iterator[tuple[str, Any]]:
    for name, value in require(section, settings, Named).items():
        if section == HYPERPARAMETERS:
            is_dotted = "." in str(name) and not str(name).startswith(OF_NETWORK)
            if name in _KINDS or name in KEYS or is_dotted:
                raise ConfigError(f"{shown(name)} in {section} is no hyperparameter", key=f"{section}.{name}")
        else:
            words = f"{shown(name)} in {section} is unknown"
            require_known(name, _SECTIONS[section], words, f"{section}.{name}")
        yield f"{section}.{name}", value


# --- The settings of one policy --------------------------------------------------------------------------------------


def canonical_hyperparameters(given: Mapping[str, Any], of_algorithm: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings of one policy: hyperparameters by SB3's names, and those of its processing.

    `policy_kwargs.NAME` becomes an entry of `policy_kwargs`; what is in a mapping `processing` or `data` stands beside
    the rest.
    The arguments and errors are those of `canonical_settings`.
    """
    result: dict[str, Any] = {}
    found = canonical_settings(given, {*of_algorithm, *_SECTIONS_OF_RUN})
    for name in sorted(found, key=lambda name: name.startswith(OF_NETWORK)):
        put(result, path_of(_without_section(name)), found[name][1])
    return result


def path_of(setting: str) -> tuple[str, ...]:
    """Return where a setting of a policy belongs: `policy_kwargs.net_arch` is an entry of `policy_kwargs`."""
    entry = setting.removeprefix(OF_NETWORK)
    return (setting,) if entry == setting else ("policy_kwargs", entry)


def put(settings: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set an entry of nested mappings; they are copied, because they may be the user's."""
    for name in path[:-1]:
        inner = settings.get(name) or {}
        if not isinstance(inner, Mapping):
            raise refusal(name, inner, Named)
        settings[name] = dict(inner)
        settings = settings[name]
    settings[path[-1]] = value


# --- At the door of the core -----------------------------------------------------------------------------------------


class RLlibNames:
    """RLlib's names, and the other names that settings of policies have in files; see `marl_sb3.doors.Dialect`."""

    def translated(self, spec: PolicySpec, given: Mapping[str, Any], n_envs: int) -> dict[str, Any]:
        """See `Dialect.translated`; what some of RLlib's names mean depends on the algorithm or on `n_envs`."""
        settings = canonical_hyperparameters(given, spec.values)
        given_as: dict[str, str] = {}
        for names, meant in list(meanings(settings, spec.policy, spec.algorithm.__name__, spec.info.kinds, n_envs)):
            for name in names:
                del settings[name]
            for setting, value in meant.items():
                if setting in settings:
                    raise given_twice(setting, names[0], given_as.get(setting, setting))
                put(settings, path_of(setting), value)
                given_as[setting] = names[0]
        return settings

    def explain(self, name: str) -> str | None:
        """See `Dialect.explain`."""
        if name in NO_COUNTERPART:
            return no_counterpart(name)
        canonical = canonical_name(name)
        if canonical == name and not is_of_rllib(name):
            return None
        means = "is a name of RLlib" if canonical == name else f"means {canonical}"
        return f"{name!r} {means}; its names are for files, --set and MultiAgentAlgorithm; accepted here: SB3's"

    def names_of(self, setting: str) -> str | None:
        """See `Dialect.names_of`."""
        return explanation(setting)

    def method(self, name: str, of: str) -> str | None:
        """See `Dialect.method`; refers to the page for users of RLlib."""
        if of == "algo":
            name = re.sub(r"^contrib/|[-_]|(trainer|config)$", "", name.lower())
            known = canonical_algorithm(name)
            meant = f"set algo={known}" if known in built_in() else METHODS[of].get(name)
            return meant and f"it is one of RLlib's; {meant}; see {PAGE}"
        instead = METHODS.get(of, {}).get(name)
        return instead and f"{instead}; see {PAGE}"


class ZooNames:
    """The keys of rl-baselines3-zoo for noise, and its texts of `dict(...)`; see `marl_sb3.doors.Dialect`."""

    def translated(self, spec: PolicySpec, given: Mapping[str, Any], n_envs: int) -> dict[str, Any]:
        """See `Dialect.translated`."""
        settings: dict[str, Any] = {}
        written: dict[str, str] = {}
        for key, value in given.items():
            for _, name, own in action_noise(key, given) if is_noise(key) else [(key, key, value)]:
                if name in settings:
                    raise given_twice(name, written[name], key)
                settings[name] = parse_literal(name, own) if name in _TEXTS and isinstance(own, str) else own
                written[name] = key
        return settings

    def explain(self, name: str) -> str | None:
        """See `Dialect.explain`; SB3's `load` has arguments that are no settings."""
        if name in OF_LOAD:
            return f"{name!r} is an argument of SB3's load: {OF_LOAD[name]}"
        if not is_noise(name):
            return None
        words = "is a key of rl-baselines3-zoo, for files, --set and MultiAgentAlgorithm"
        return f"{name!r} {words}; accepted here: action_noise={{'normal': 0.1}}"

    def names_of(self, setting: str) -> str | None:
        """See `Dialect.names_of`; its names of SB3's arguments are SB3's."""
        return None

    def method(self, name: str, of: str) -> str | None:
        """See `Dialect.method`; they are SB3's, and PettingZoo's."""
        return OF_SB3.get(of, {}).get(name)


RLLIB: Dialect = RLlibNames()
ZOO: Dialect = ZooNames()
