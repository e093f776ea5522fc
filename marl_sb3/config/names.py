"""Convert names and values of settings to SB3's: the same way for files, `--set` and Python.

RLlib's names become SB3's; numbers such as `1e5` become integers where an integer is expected; the string
`dict(net_arch=[64, 64], activation_fn=nn.ReLU)`, as in rl-baselines3-zoo's files, becomes a mapping.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from marl_sb3.config.algorithms import canonical_algorithm, takes_integers
from marl_sb3.config.compat.rllib import LATER, is_taken_apart, translated, unnested
from marl_sb3.config.compat.rllib_names import RENAMED, Context
from marl_sb3.config.compat.zoo import names_noise, parse_literal, with_action_noise
from marl_sb3.config.networks import IN_PYTHON
from marl_sb3.config.schema import PROCESSING, SECTIONS, names_in
from marl_sb3.config.values import integer_in, plain_numbers, takes_integers_only
from marl_sb3.errors import ConfigError

# Other names of settings, RLlib's above all.
ALIASES: Mapping[str, str] = {
    **{name: renamed.setting for name, renamed in RENAMED.items()},
    "net_arch": "policy_kwargs.net_arch",
}

# Other names of settings that are in a section: `checkpoint_every` is `checkpoints.every`.
FLAT_NAMES: Mapping[str, str] = {
    **{f"{section.removesuffix('s')}_{own}": f"{section}.{own}" for section in SECTIONS for own in names_in(section)},
    **{name: f"processing.{name}" for name in PROCESSING},
}
_OF_PROCESSING = "processing."
_INTEGERS = frozenset(name for name, kind in PROCESSING.items() if takes_integers_only(kind))
HYPERPARAMETERS = "hyperparameters"  # the section of SB3's arguments; their names are accepted outside it, too


def canonical_name(name: str) -> str:
    """Return the name of a setting in `TrainConfig` or SB3. The id of a policy before it is kept."""
    name = name.removeprefix(f"{HYPERPARAMETERS}.")
    if name in FLAT_NAMES or name in ALIASES:
        return FLAT_NAMES.get(name) or ALIASES[name]
    policy_id, own = _of_policy(name)
    if own in PROCESSING and policy_id.endswith(".processing") and _is_policy(policy_id):
        return f"{policy_id.removesuffix('.processing')}.{own}"
    return (
        f"{policy_id}.{ALIASES[own].removeprefix(_OF_PROCESSING)}" if own in ALIASES and _is_policy(policy_id) else name
    )


def _of_policy(name: str) -> tuple[str, str]:
    """Split the name of one policy's setting into the policy's id and the name of the setting."""
    policy_id, _, own = name.rpartition(".")
    whole, _, last = policy_id.rpartition(".")
    return (whole, f"{last}.{own}") if f"{last}.{own}" in ALIASES else (policy_id, own)


def _is_policy(prefix: str) -> bool:
    """Whether the part of a key before its last dot is a policy's id, and not `env` or `policy_kwargs`."""
    return prefix.partition(".")[0] != "env" and prefix.rpartition(".")[2] != "policy_kwargs"


def canonical_settings(given: Mapping[str, Any], of_algorithm: Collection[str] = ()) -> dict[str, tuple[str, Any]]:
    """Return the settings of one source by canonical name: the name that the source uses, and the value.

    Names of RLlib whose meaning depends on the algorithm or on other settings keep their names; see `translated`.

    Args:
        of_algorithm: arguments of the algorithm's class, which mean what the class says.

    Raises:
        ConfigError: two names of one setting are given, or a name of RLlib has no counterpart.
    """
    found: dict[str, tuple[str, Any]] = {}
    entries = with_action_noise(given) if names_noise(given.keys()) else zip(given, given, given.values(), strict=True)
    for source, key, whole in entries:
        is_whole = key in of_algorithm or key != source or not is_taken_apart(key)
        for written, name, value in [(source, key, whole)] if is_whole else unnested(key, whole):
            canonical = canonical_name(name)
            if canonical in found:
                raise _given_twice(canonical, found[canonical][0], written)
            found[canonical] = (written, canonical_value(name, value))
    for name, (written, _) in found.items():
        whole, _, part = name.rpartition(".")
        mapping = found.get(whole, ("", None))[1]
        if whole.rpartition(".")[2] == "policy_kwargs" and isinstance(mapping, Mapping) and part in mapping:
            raise _given_twice(name, f"{whole}: {{{part}: ...}}", written)
    return found


def canonical_value(name: str, value: Any) -> Any:
    """Convert the value of a setting from the form in which users write it to the form that is checked.

    Args:
        name: what the user calls the setting; it may begin with a policy's id.
        value: anything; a value without another form is returned unchanged.

    Raises:
        ConfigError: the value of RLlib's name has no counterpart, or `policy_kwargs` or `replay_buffer_kwargs` is a
            text that is not a literal.
    """
    if name.startswith("env."):
        return plain_numbers(value)
    own = name if name in RENAMED else _of_policy(name)[1]
    try:
        value = plain_numbers(RENAMED[own].value(value) if own in RENAMED else value)
    except ConfigError as error:
        raise ConfigError(str(error), key=name) from error
    canonical = canonical_name(name)
    own = canonical.rpartition(".")[2]
    if own == "algo":
        return canonical_algorithm(value)
    if own in _INTEGERS or takes_integers(own):
        return as_integer(value)
    if own in ("policy_kwargs", "replay_buffer_kwargs") and isinstance(value, str):
        value = parse_literal(own, value)
    if own == "policy_kwargs" and isinstance(value, Mapping):
        return {entry: _class_name(entry, part) for entry, part in value.items()}
    return _class_name(own, value) if canonical.endswith(f"policy_kwargs.{own}") else value


def _given_twice(name: str, one: str, other: str) -> ConfigError:
    return ConfigError(
        f"{one} and {other} are both given, but are two names of {name}; accepted: one of them", key=name
    )


def canonical_hyperparameters(given: Mapping[str, Any], of_algorithm: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings of one policy: hyperparameters by SB3's names, and those of its processing.

    `policy_kwargs.NAME` becomes an entry of `policy_kwargs`; what is in a mapping `processing` stands beside the rest.
    The arguments and errors are those of `canonical_settings`.
    """
    found = canonical_settings(_beside(given), of_algorithm)
    settings = {name.removeprefix(_OF_PROCESSING): value for name, (_, value) in found.items()}
    result = {name: value for name, value in settings.items() if not name.startswith("policy_kwargs.")}
    for name, value in settings.items():
        if name not in result:
            part = name.removeprefix("policy_kwargs.")
            result["policy_kwargs"] = {**(result.get("policy_kwargs") or {}), part: value}
    return result


def _beside(given: Mapping[str, Any]) -> dict[str, Any]:
    """Put the settings in a mapping `processing` beside the others."""
    section = given.get("processing")
    if not isinstance(section, Mapping):
        return dict(given)
    named = {f"{_OF_PROCESSING}{name}": value for name, value in section.items()}
    return {**{name: value for name, value in given.items() if name != "processing"}, **named}


def translated_hyperparameters(
    settings: Mapping[str, Any], algorithm: str, kinds: Mapping[str, Any], context: Context
) -> dict[str, Any]:
    """Translate those names of RLlib that `canonical_hyperparameters` keeps.

    Args:
        settings: what it returned.
        algorithm: name of the algorithm, for messages.
        kinds: its table of hyperparameters.
        context: what is known of the run.

    Raises:
        ConfigError: two names of one setting are given, or a name has no counterpart for the algorithm.
    """
    result = {name: value for name, value in settings.items() if name not in LATER}
    for name in settings.keys() & LATER:
        for setting, value in translated(name, settings[name], algorithm, kinds, context).items():
            if setting in result:
                raise _given_twice(setting, name, setting)
            result[setting] = value
    return result


def as_integer(value: Any) -> Any:
    """Convert 1e5 and `100k` to 100000. All other values but floats without a fraction are returned unchanged."""
    if isinstance(value, str) and value[-1:] in ("k", "K", "m", "M"):
        number = integer_in(value)
        return value if number is None else number
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _class_name(entry: str, value: Any) -> Any:
    """Convert `nn.ReLU` to `relu`. All other values are returned unchanged and checked later."""
    return IN_PYTHON[entry].get(value, value) if entry in IN_PYTHON and isinstance(value, str) else value
