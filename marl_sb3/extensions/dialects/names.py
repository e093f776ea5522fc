"""Settings as users give them, in files, options, `--set` and Python: their names and values.

Each becomes that of `TrainConfig` or SB3: RLlib's names become SB3's; numbers such as `1e5` become integers where an
integer is expected; `dict(net_arch=[64, 64], activation_fn=nn.ReLU)`, as in rl-baselines3-zoo's files, becomes a
mapping. Names whose meaning depends on the algorithm or on others keep theirs until `meanings` translates them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from marl_sb3.core.config.algorithms import built_in, canonical_algorithm, takes_integers
from marl_sb3.core.config.settings import section_by_setting
from marl_sb3.core.config.values import Count, Named, integer_in, plain_numbers, refusal, require, takes_integers_only
from marl_sb3.core.metrics.names import require_metric
from marl_sb3.doors import DIALECTS, Dialect
from marl_sb3.errors import ConfigError, did_you_mean, require_known, shown
from marl_sb3.extensions.dialects.table import (
    ALSO_OURS,
    COUNTERPARTS,
    KINDS,
    LATER,
    NAMES,
    NESTED,
    NETWORK,
    NOT_SET,
    PAGE,
    PARTS,
    RENAMED,
    TABLES,
    no_counterpart,
    value_here,
)
from marl_sb3.extensions.dialects.zoo import IN_PYTHON, KEYS, action_noise, is_noise, parse_literal

if TYPE_CHECKING:
    from marl_sb3.core.learners.spec import PolicySpec

_KINDS = DIALECTS["run"].of_runs
_SECTIONS: Mapping[str, list[str]] = {
    section: [name.removeprefix(f"{section}.") for name in _KINDS if name.startswith(f"{section}.")]
    for section in dict.fromkeys(name.partition(".")[0] for name in _KINDS if "." in name)
}
_SECTION_OF = section_by_setting()  # of each setting of a policy that is no hyperparameter
# Other names of settings that are in a section: `checkpoint_every` is `checkpoints.every`.
FLAT_NAMES: Mapping[str, str] = {
    **{
        f"{section.removesuffix('s')}_{own}": f"{section}.{own}"
        for section, names in _SECTIONS.items()
        for own in names
    },
    **{name: f"{section}.{name}" for name, section in _SECTION_OF.items()},
}
_MEANINGS = {**RENAMED, **ALSO_OURS}
_OF_NETWORK = "policy_kwargs."
_TEXTS = ("policy_kwargs", "replay_buffer_kwargs")  # settings that may be the text of a mapping
HYPERPARAMETERS = "hyperparameters"  # the section of SB3's arguments; their names are accepted outside it, too
_SECTIONS_OF_RUN = {*_SECTIONS, HYPERPARAMETERS} - {*_SECTION_OF.values()}  # a policy has none of them
_INTEGERS = {name.rpartition(".")[2] for name, kind in _KINDS.items() if takes_integers_only(kind)}

# --- Names and values ------------------------------------------------------------------------------------------------


def split_name(name: str) -> tuple[str, str]:
    """Split the name of one policy's setting, `POLICY.own`, into `POLICY.` and `own`.

    Names of settings of the run stay whole, and those of arguments of envs and networks, which have no other names.
    """
    policy_id, dot, own = name.rpartition(".")
    outer, outer_dot, last = policy_id.rpartition(".")
    if name.startswith("env.") or last == "policy_kwargs":
        return "", name
    if last in ("model", "model_config") and is_of_rllib(own):  # a part of RLlib's, as if it stood alone
        return f"{outer}{outer_dot}", own
    if last == "replay_buffer_config" or _SECTION_OF.get(own) == last:
        return f"{outer}{outer_dot}", f"{last}.{own}"
    return f"{policy_id}{dot}", own


def is_of_rllib(own: str) -> bool:
    """Whether a name is one of RLlib's."""
    return own in NAMES or own in NESTED


def canonical_name(name: str) -> str:
    """Return the name of a setting in `TrainConfig` or SB3. The id of a policy before it is kept."""
    policy, own = split_name(name.removeprefix(f"{HYPERPARAMETERS}."))
    renamed = _MEANINGS[own].setting if own in _MEANINGS else own
    return f"{policy}{_without_section(renamed)}" if policy else FLAT_NAMES.get(own, renamed)


def _without_section(name: str) -> str:
    """Return a setting that a policy may have by itself without the section that it has in a run."""
    section, _, own = name.partition(".")
    return own if _SECTION_OF.get(own) == section else name


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
    if own in _MEANINGS:
        value = plain_numbers(value_here(own, _MEANINGS[own], value, name))
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


# --- The settings of one source, and of one policy -------------------------------------------------------------------


def canonical_settings(given: Mapping[str, Any], of_algorithm: Collection[str] = ()) -> dict[str, tuple[str, Any]]:
    """Return the settings of one source by canonical name: the name that the source uses, and the value.

    Names of RLlib whose meaning depends on the algorithm or on other settings keep their names; see `meanings`.

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
    found = {name: given for name, given in found.items() if given[1] is not NOT_SET}
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
        key = f"{section}.{name}"
        if section != HYPERPARAMETERS:
            require_known(name, _SECTIONS[section], f"{shown(name)} in {section} is unknown", key)
        elif name in _KINDS or name in KEYS or ("." in str(name) and not str(name).startswith(_OF_NETWORK)):
            raise ConfigError(f"{shown(name)} in {section} is no hyperparameter", key=key)
        yield key, value


def unnested(name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the settings that a name means, most often itself: the key that the user wrote, the name, the value.

    `model: {fcnet_hiddens: [64]}` becomes `fcnet_hiddens`, `replay_buffer_config: {capacity: 9}` the name
    `replay_buffer_config.capacity`. Values that are always so here yield nothing.

    Raises:
        ConfigError: the name has no counterpart, or not with this value.
    """
    prefix, own = split_name(name)
    if isinstance(value, Mapping) and [*value] == ["grid_search"]:
        accepted = f"--grid {name}=A,B of the command tune, or marl_sb3.tune(grid={{{name!r}: [A, B]}})"
        raise ConfigError(f"{name} is {shown(value)}, a search of Ray Tune; accepted: {accepted}; see {PAGE}", key=name)
    entries = [(name, name, own, value)]
    if own in NESTED:
        parts = require(own, value, Named, key=name).items()
        entries = [
            (f"{name}.{each}", f"{prefix}{NESTED[own]}{each}", f"{NESTED[own]}{each}", part) for each, part in parts
        ]
    for written, whole, theirs, part in entries:
        if own in NESTED and not is_of_rllib(theirs) and theirs != "grayscale":
            raise ConfigError(_unknown_entry(theirs.removeprefix(NESTED[own]), own), key=name)
        if theirs in NAMES and not NAMES[theirs][0].setting:
            value_here(theirs, NAMES[theirs][0], part, name)  # what is always so needs no setting
        else:
            yield written, whole, part


def _unknown_entry(name: str, mapping: str) -> str:
    known = [each.removeprefix(NESTED[mapping]) for each in (*RENAMED, *NETWORK, *TABLES["always"])]
    return f"{name!r} in {mapping} is unknown; {did_you_mean(name, known) or 'accepted: the names of RLlib'}"


def no_policy(name: str, settings: Mapping[str, Any]) -> str | None:
    """Say what is wrong with settings of a part of RLlib's configuration, such as `model`; None: it is none."""
    return _unknown_entry(next(iter(settings)), name) if name in NESTED else no_counterpart(name)


def canonical_hyperparameters(given: Mapping[str, Any], of_algorithm: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings of one policy: hyperparameters by SB3's names, and those of its processing.

    `policy_kwargs.NAME` becomes an entry of `policy_kwargs`; what is in a mapping `processing` or `data` stands beside
    the rest.
    The arguments and errors are those of `canonical_settings`.
    """
    result: dict[str, Any] = {}
    found = canonical_settings(given, {*of_algorithm, *_SECTIONS_OF_RUN})
    for name in sorted(found, key=lambda name: name.startswith(_OF_NETWORK)):
        put(result, path_of(_without_section(name)), found[name][1])
    return result


def path_of(setting: str) -> tuple[str, ...]:
    """Return where a setting of a policy belongs: `policy_kwargs.net_arch` is an entry of `policy_kwargs`."""
    entry = setting.removeprefix(_OF_NETWORK)
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


# --- Names whose meaning depends on the algorithm, or on others ------------------------------------------------------


# Names, and the settings that they mean together, with their values.
Meanings: TypeAlias = "Iterator[tuple[Sequence[str], Mapping[str, Any]]]"


def run_meanings(settings: Mapping[str, Any]) -> Meanings:
    """Yield what names mean together that belong to the run: the number of envs of all runners of RLlib.

    Raises:
        ConfigError: a value is wrong, or is given by two names; its key is the name. So for `meanings`.
    """
    product, of_run = 1, []
    for names in (PARTS["runners"], PARTS["envs of a runner"]):
        given = [name for name in names if name in settings]
        if len(given) > 1:
            words = f"{' and '.join(given)} are both given, but mean the same; accepted: one of them"
            raise ConfigError(words, key=given[0])
        for name in given:
            product *= max(1, require(name, settings[name], KINDS[NAMES[name][0].kind]))
        of_run += given
    if of_run:
        yield of_run, {"n_envs": product}


def meanings(
    settings: Mapping[str, Any], policy: Any, algorithm: str, kinds: Mapping[str, Any], n_envs: int
) -> Meanings:
    """Yield what names mean in the settings of one policy that depend on its algorithm, or on each other.

    Args:
        settings: all settings of the policy.
        policy: name or class of the policy.
        algorithm: its name, for messages.
        kinds: its table of hyperparameters.
        n_envs: number of envs of the run.

    Raises:
        ConfigError: a name has no counterpart for this algorithm, or not with this value.
    """
    if network := [name for name in NETWORK if name in settings]:
        yield network, _network(settings, policy, algorithm, has_values="gae_lambda" in kinds)
    for name in settings:
        if name not in LATER or name in NETWORK:
            continue
        known = NAMES[name]
        if known[0].part:
            raise ConfigError(f"RLlib's {name} belongs to the run, not to a policy; set n_envs", key=name)
        applying = [each for each in known if kinds.keys() >= {*each.has}]
        if not applying:
            others = "; ".join(f"{each.setting} of algorithms {each.algorithms}" for each in known)
            raise ConfigError(f"RLlib's {name} has no counterpart for {algorithm}; it means {others}", key=name)
        value = value_here(name, applying[0], settings[name], name, n_envs)
        yield [name], {} if value is NOT_SET else {applying[0].setting: value}


def _network(settings: Mapping[str, Any], policy: Any, algorithm: str, *, has_values: bool) -> dict[str, Any]:
    """Return what names mean together that describe a network, as `policy_kwargs.NAME` and `frame_stack`.

    The layers in `policy_kwargs` become those of the features extractor. `has_values`: whether the algorithm has a
    value function beside its actor.
    """
    switches = {name: require(name, settings[name], bool) for name in PARTS["network"] if name in settings}
    name = next((name for name, value in switches.items() if value), None)
    if name is None:
        return {}
    given = settings.get("policy_kwargs")
    network = given if isinstance(given, Mapping) else {}
    fault, is_shared = "", name == "vf_share_layers"
    if is_shared and not has_values:
        fault = f"RLlib's {name} has no counterpart for {algorithm}, which has no value function of states"
    elif is_shared and isinstance(policy, str) and policy.startswith(("Cnn", "MultiInput")):
        fault = f"{name} is true with {policy}, whose features extractor is shared already; accepted: false"
    elif "features_extractor_class" in network:
        fault = f"{name} and policy_kwargs.features_extractor_class are both given; accepted: one of them"
    elif isinstance(widths := network.get("net_arch"), Mapping):
        fault = f"{name} takes the layers of fcnet_hiddens, which are {shown(widths)}; accepted: one list"
    if fault:
        raise ConfigError(fault, key=name)
    layers = {each: network[each] for each in ("net_arch", "activation_fn") if network.get(each) is not None}
    extractor, arguments, has_layers = "mlp", layers, "net_arch" in layers
    if not is_shared:
        own = {NAMES[each][0].argument: settings.get(each, NAMES[each][0].default) for each in PARTS["attention"]}
        extractor, arguments = "attention", {**own, "positions": "sinusoidal", **(layers if has_layers else {})}
    found = {f"{_OF_NETWORK}features_extractor_class": extractor, f"{_OF_NETWORK}features_extractor_kwargs": arguments}
    found |= {f"{_OF_NETWORK}net_arch": []} if is_shared or has_layers else {}
    return found if is_shared else {**found, "frame_stack": _frames(settings)}


def _frames(settings: Mapping[str, Any]) -> int:
    """Return the number of frames that are the present observation and those that RLlib's transformer remembers."""
    given = {name: settings.get(name, NAMES[name][0].default) for name in PARTS["frames"]}
    acting, learning = (require(name, value, Count) for name, value in given.items())
    if acting != learning or acting == 0:
        named = " and ".join(f"{name} {value}" for name, value in given.items())
        words = "accepted: the same number, of at least 1: policies act and learn with the same frames"
        key = next(name for name in given if name in settings)
        raise ConfigError(f"RLlib's {named} (by default 50); {words}", key=key)
    return int(acting) + 1


# --- Metrics ---------------------------------------------------------------------------------------------------------


# What begins the name of a metric of one policy, in RLlib's new and former API stack.
_OF_POLICY = re.compile(r"^(?:info/learner|learners)/(?!__all_modules__)[^/]+/(?:learner_stats/)?")


def metric_here(name: str) -> str:
    """Say what another library's name of a metric is here; "" if it is unknown."""
    own = _OF_POLICY.sub("learners/POLICY/", name)
    known = COUNTERPARTS["metric"].items()
    said = (said for each, said in known if own == each or (each[-1] == "/" and f"{own}/".startswith(each)))
    return next(said, f"it is {own} here; see {PAGE}" if name.startswith("info/learner/") else "")


def require_logged(name: str, known: Collection[str], key: str = "stop") -> None:
    """Refuse an unknown metric, as `require_metric` does; says what another library's name of one is here."""
    if name not in known and (meant := metric_here(str(name))):
        raise ConfigError(f"unknown metric {name!r}; {meant}", key=key)
    require_metric(name, known, key)


# --- At the door of the core -----------------------------------------------------------------------------------------


class OtherNames(Dialect):
    """The names of RLlib, SB3, rl-baselines3-zoo and PettingZoo; see `marl_sb3.doors.Dialect`."""

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
        """See `Dialect.explain`; SB3's `load` has arguments that are no settings."""
        if name in COUNTERPARTS["load"]:
            return f"{name!r} is an argument of SB3's load: {COUNTERPARTS['load'][name]}"
        if is_noise(name):
            words = "is a key of rl-baselines3-zoo, for files, --set and MultiAgentAlgorithm"
            return f"{name!r} {words}; accepted here: action_noise={{'normal': 0.1}}"
        canonical = canonical_name(name)
        if message := no_counterpart(name):
            return message
        if canonical == name and not is_of_rllib(name):
            return None
        means = "is a name of RLlib" if canonical == name else f"means {canonical}"
        return f"{name!r} {means}; its names are for files, --set and MultiAgentAlgorithm; accepted here: SB3's"

    def names_of(self, setting: str) -> str | None:
        """See `Dialect.names_of`."""
        names = [name for name, means in RENAMED.items() if means.setting == setting]
        return f"RLlib's {' and '.join(names)}" if names else None

    def method(self, name: str, of: str) -> str | None:
        """See `Dialect.method`."""
        if of != "algo":
            return COUNTERPARTS.get(of, {}).get(name)
        name = re.sub(r"^contrib/|[-_]|(trainer|config)$", "", name.lower())
        known = canonical_algorithm(name)
        meant = f"set algo={known}; see {PAGE}" if known in built_in() else COUNTERPARTS[of].get(name)
        return meant and f"it is one of RLlib's; {meant}"


OTHER_NAMES = OtherNames()
