"""Translate RLlib's settings: nested mappings, names with one meaning, and names whose meaning depends on others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from marl_sb3.core.config import Count, Named, PositiveInt, require, section_by_setting
from marl_sb3.core.metrics import require_metric
from marl_sb3.errors import ConfigError, did_you_mean, shown
from marl_sb3.extensions.dialects.rllib_names import (
    ALWAYS,
    ATTENTION,
    DEPENDENT,
    ENVS_PER_RUNNER,
    MEMORY,
    METRICS,
    NESTED,
    NETWORK,
    NO_COUNTERPART,
    NOT_SET,
    PAGE,
    RENAMED,
    RUNNERS,
)

SECTION_OF = section_by_setting()  # of each setting of a policy that is no hyperparameter

# Names that are translated when the algorithm and the number of envs are known.
LATER = frozenset({*RUNNERS, *ENVS_PER_RUNNER, *DEPENDENT, *NETWORK})


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
    if last == "replay_buffer_config" or SECTION_OF.get(own) == last:
        return f"{outer}{outer_dot}", f"{last}.{own}"
    return f"{policy_id}{dot}", own


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
    if own not in NESTED:
        if not _is_always_so(own, name, value):
            yield name, name, value
        return
    for inner, part in require(own, value, Named, key=name).items():
        theirs = f"{NESTED[own]}{inner}"
        if not is_of_rllib(theirs) and theirs != "grayscale":
            raise ConfigError(_unknown_entry(str(inner), own), key=name)
        if not _is_always_so(theirs, name, part):
            yield f"{name}.{inner}", f"{prefix}{theirs}", part


def _unknown_entry(name: str, mapping: str) -> str:
    known = [each.removeprefix(NESTED[mapping]) for each in (*RENAMED, *NETWORK, *ALWAYS)]
    return f"{name!r} in {mapping} is unknown; {did_you_mean(name, known) or 'accepted: the names of RLlib'}"


def no_policy(name: str, settings: Mapping[str, Any]) -> str | None:
    """Say what is wrong with settings of a part of RLlib's configuration, such as `model`; None: it is none."""
    if name in NESTED:
        return _unknown_entry(next(iter(settings)), name)
    return no_counterpart(name) if name in NO_COUNTERPART else None


def is_of_rllib(own: str) -> bool:
    """Whether a name is in one of the tables."""
    return any(own in table for table in (RENAMED, LATER, ALWAYS, NO_COUNTERPART, NESTED))


def _is_always_so(own: str, key: str, value: Any) -> bool:
    """Whether a setting of RLlib says what is always so here; refuse those that have no counterpart."""
    if own in NO_COUNTERPART:
        raise ConfigError(no_counterpart(own), key=key)
    if own not in ALWAYS:
        return False
    values, why = ALWAYS[own]
    if not any(type(value) is type(each) and value == each for each in values):
        in_yaml = ("null" if each is None else str(each).lower() if isinstance(each, bool) else each for each in values)
        accepted = " or ".join(dict.fromkeys(map(str, in_yaml)))
        raise ConfigError(f"RLlib's {own} is {shown(value)}; accepted: {accepted}; {why}", key=key)
    return True


def no_counterpart(own: str) -> str:
    """The message for a name without a counterpart."""
    return f"RLlib's {own} has no counterpart here; {NO_COUNTERPART[own]}"


def require_logged(name: str, known: Collection[str], key: str = "stop") -> None:
    """Refuse an unknown metric, as `require_metric` does; says what another library's name of one is here."""
    if name not in known and (meant := metric_here(str(name))):
        raise ConfigError(f"unknown metric {name!r}; {meant}", key=key)
    require_metric(name, known, key)


def metric_here(name: str) -> str:
    """Say what another library's name of a metric is here; "" if it is unknown."""
    own = _OF_POLICY.sub("learners/POLICY/", name)
    said = (said for each, said in METRICS.items() if own == each or (each[-1] == "/" and f"{own}/".startswith(each)))
    return next(said, f"it is {own} here; see {PAGE}" if name.startswith("info/learner/") else "")


# What begins the name of a metric of one policy, in RLlib's new and former API stack.
_OF_POLICY = re.compile(r"^(?:info/learner|learners)/(?!__all_modules__)[^/]+/(?:learner_stats/)?")


# Names, and the settings that they mean together, with their values.
Meanings: TypeAlias = "Iterator[tuple[Sequence[str], Mapping[str, Any]]]"


def run_meanings(settings: Mapping[str, Any]) -> Meanings:
    """Yield what names mean together that belong to the run: the number of envs of all runners of RLlib.

    Raises:
        ConfigError: a value is wrong, or is given by two names; its key is the name. So for `meanings`.
    """
    of_run = [name for name in (*RUNNERS, *ENVS_PER_RUNNER) if name in settings]
    product = 1
    for names, kind in ((RUNNERS, Count), (ENVS_PER_RUNNER, PositiveInt)):
        given = [name for name in names if name in settings]
        if len(given) > 1:
            words = f"{' and '.join(given)} are both given, but mean the same; accepted: one of them"
            raise ConfigError(words, key=given[0])
        for name in given:
            product *= max(1, require(name, settings[name], kind))
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
    if network := sorted((name for name in NETWORK if name in settings), key=lambda name: name != "use_attention"):
        given = {name: settings[name] for name in network}
        has_values = "gae_lambda" in kinds
        yield network, network_settings(given, policy, settings.get("policy_kwargs"), algorithm, has_values)
    for name in settings:
        if name in RUNNERS or name in ENVS_PER_RUNNER:
            raise ConfigError(f"RLlib's {name} belongs to the run, not to a policy; set n_envs", key=name)
        if name not in DEPENDENT:
            continue
        applying = [meaning for meaning in DEPENDENT[name] if meaning.applies(kinds)]
        if not applying:
            others = "; ".join(f"{each.setting} of algorithms {each.algorithms}" for each in DEPENDENT[name])
            raise ConfigError(f"RLlib's {name} has no counterpart for {algorithm}; it means {others}", key=name)
        try:
            value = applying[0].value(settings[name], n_envs)
        except ConfigError as error:
            raise ConfigError(str(error), key=name) from error
        yield [name], {} if value is NOT_SET else {applying[0].setting: value}


def network_settings(
    given: Mapping[str, Any], policy: Any, policy_kwargs: Any, algorithm: str, has_values: bool
) -> dict[str, Any]:
    """Translate the names of `NETWORK` together.

    Args:
        given: names with their values.
        policy: name or class of the policy that they are given for.
        policy_kwargs: those of the same policy, whose layers become those of the features extractor.
        algorithm: its name, for messages.
        has_values: whether the algorithm has a value function beside its actor.

    Returns:
        Entries of `policy_kwargs`, as `policy_kwargs.NAME`, and `frame_stack`.

    Raises:
        ConfigError: there is no such network; its key is the name.
    """
    switches = {
        name: require(name, given[name], bool) for name in ("use_attention", "vf_share_layers") if name in given
    }
    name = next((name for name, value in switches.items() if value), None)
    if name is None:
        return {}
    network = dict(policy_kwargs) if isinstance(policy_kwargs, Mapping) else {}
    if name == "vf_share_layers" and not has_values:
        words = f"RLlib's vf_share_layers has no counterpart for {algorithm}, which has no value function of states"
        raise ConfigError(words, key=name)
    if name == "vf_share_layers" and isinstance(policy, str) and policy.startswith(("Cnn", "MultiInput")):
        words = f"vf_share_layers is true with {policy}, whose features extractor is shared already; accepted: false"
        raise ConfigError(words, key=name)
    if "features_extractor_class" in network:
        words = f"{name} and policy_kwargs.features_extractor_class are both given; accepted: one of them"
        raise ConfigError(words, key=name)
    if isinstance(network.get("net_arch"), Mapping):
        words = f"{name} takes the layers of fcnet_hiddens, which are {shown(network['net_arch'])}; accepted: one list"
        raise ConfigError(words, key=name)
    layers = {each: network[each] for each in ("net_arch", "activation_fn") if network.get(each) is not None}
    has_layers = "net_arch" in layers
    moved: dict[str, Any] = {"policy_kwargs.net_arch": []}
    if name == "vf_share_layers":
        return _extractor("mlp", layers) | moved
    arguments = {argument: given.get(own, default) for own, (argument, default) in ATTENTION.items()}
    extractor = _extractor("attention", {**arguments, "positions": "sinusoidal", **(layers if has_layers else {})})
    return {**extractor, **(moved if has_layers else {}), "frame_stack": _frames(given)}


def _extractor(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    entries = {"features_extractor_class": name, "features_extractor_kwargs": dict(arguments)}
    return {f"policy_kwargs.{entry}": value for entry, value in entries.items()}


def _frames(given: Mapping[str, Any]) -> int:
    """Return the number of frames that are the present observation and those that RLlib's transformer remembers."""
    acting, learning = (require(name, given.get(name, default), Count) for name, default in MEMORY.items())
    if acting != learning or acting == 0:
        named = " and ".join(f"{name} {given.get(name, default)}" for name, default in MEMORY.items())
        words = "accepted: the same number, of at least 1: policies act and learn with the same frames"
        raise ConfigError(
            f"RLlib's {named} (by default 50); {words}", key=next(name for name in MEMORY if name in given)
        )
    return int(acting) + 1


def explanation(setting: str) -> str | None:
    """Say which names of RLlib mean a setting that an algorithm does not have; None if none does."""
    names = [name for name, own in RENAMED.items() if own.setting == setting]
    return f"RLlib's {' and '.join(names)}" if names else None
