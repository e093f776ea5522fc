"""Settings of a run as users give them, in files, options and `--set`: merging all sources, whatever names they use.

A name that is no field of `TrainConfig` is the name of a hyperparameter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from marl_sb3.core.config.algorithms import canonical_algorithm, kinds_of
from marl_sb3.errors import ConfigError, refuse, shown
from marl_sb3.extensions.dialects.names import (
    HYPERPARAMETERS,
    Meanings,
    canonical_hyperparameters,
    canonical_name,
    canonical_settings,
    meanings,
    path_of,
    put,
    run_meanings,
)
from marl_sb3.extensions.dialects.table import LATER
from marl_sb3.extensions.dialects.zoo import KEYS, refuse_unsupported, translated_key
from marl_sb3.runs.files import OF_TRUST, Hparams, entry_of, name_of, preset_path, presets, require_named
from marl_sb3.runs.schema import (
    ACCEPTED,
    BY_POLICY,
    OFFERED,
    Source,
    TrainConfig,
    name_of_callback,
    nested,
    place_of_setting,
    source_of,
)

# --- Merging all sources; the last one wins --------------------------------------------------------------------------


class MergedSettings:
    """The settings of a `TrainConfig` while its sources are merged."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {HYPERPARAMETERS: {}}  # values by names such as `n_envs` and `checkpoints.every`
        self.of_the_zoo: dict[str, Any] = {}  # values by keys of rl-baselines3-zoo that are not supported
        self.sources: dict[str, Source] = {}  # where each setting was given
        self._count = 0

    def add(
        self,
        given: Mapping[str, Any],
        where: Callable[[str], str],
        *,
        dotted: bool = False,
        is_yaml: bool = True,
        may_import: bool = True,
    ) -> None:
        """Add the settings of one source; they replace those of earlier sources.

        Args:
            dotted: whether `a.b` is a path, as after `--set`.
            is_yaml: whether integers may be ids, which YAML reads as such: then they become strings.
            may_import: see `Source`.

        Raises:
            ConfigError: a key or a value is malformed, or a setting is given by two names.
        """
        self._count += 1
        try:
            found = canonical_settings(given)
            if "teams" in found:
                found["policies"] = _policies_of_teams(found)
            for key, (written, value) in found.items():
                whole = _TEXT_IDS[key](value) if is_yaml and key in _TEXT_IDS else value
                self.sources[key] = Source(where(written), written if dotted else "", self._count, may_import)
                if key in BY_POLICY and isinstance(whole, Mapping):
                    whole = self._of_policies(written, whole, where)
                for name, own in translated_key(key, whole).items():
                    self.sources[name] = self.sources[key]
                    path = _path(name, is_dotted=dotted or key != written)
                    put(self.of_the_zoo if name in KEYS else self.fields, path, own)
        except ConfigError as error:
            key = error.key or ""
            raise ConfigError(f"{self.sources.get(key) or where(key)}: {error}", key=error.key) from error

    def _of_policies(self, field: str, policies: Mapping[Any, Any], where: Callable[[str], str]) -> dict[Any, Any]:
        """Convert the settings of single policies, and note where they are given: `policies.POLICY`, `POLICY.NAME`."""
        converted = dict(policies)
        for policy_id, settings in policies.items():
            self.sources[f"policies.{policy_id}"] = Source(where(f"{field}.{policy_id}"), order=self._count)
            if isinstance(settings, Mapping):  # anything else is refused later
                for name in map(str, settings):
                    place = where(f"{field}.{policy_id}.{name}")
                    self.sources[f"{policy_id}.{canonical_name(name)}"] = Source(place, order=self._count)
                converted[policy_id] = canonical_hyperparameters({str(name): own for name, own in settings.items()})
        return converted

    def translate(self) -> None:
        """Translate names that need the algorithm or the number of envs, which are known now.

        Raises:
            ConfigError: a name has no counterpart for the algorithm, or a source gives a setting by two names.
        """
        if LATER.isdisjoint(name.rpartition(".")[2] for name in self.sources):
            return
        self._replace("", self.fields[HYPERPARAMETERS], run_meanings)
        n_envs = self.fields.get("n_envs", TrainConfig.n_envs)
        for policy, algo, settings in self._by_policy():
            kind = settings.get("policy", self.fields.get("policy"))
            self._replace(policy, settings, meanings, kind, str(algo), kinds_of(algo), n_envs)

    def _by_policy(self) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Yield the settings of the run, and of each policy: `POLICY.`, its algorithm, its settings."""
        algo = self.fields.get("algo", TrainConfig.algo)
        yield "", algo, self.fields[HYPERPARAMETERS]
        by_policy = [self.fields[name] for name in BY_POLICY if isinstance(self.fields.get(name), Mapping)]
        single = [(key, own) for each in by_policy for key, own in each.items() if isinstance(own, dict)]
        algos = {policy_id: own["algo"] for policy_id, own in single if "algo" in own}
        for policy_id, own in single:
            yield f"{policy_id}.", algos.get(policy_id, algo), own

    def _replace(self, policy: str, settings: dict[str, Any], means: Callable[..., Meanings], *known: Any) -> None:
        """Put what names mean in their place, from the latest source that has one, unless a later one has it itself."""
        try:
            found = list(means(settings, *known))
        except ConfigError as error:
            key = f"{policy}{error.key}"
            raise ConfigError(f"{self._source(key)}: {error}", key=key) from error
        given_as: dict[str, str] = {}  # what means a setting -> by which name it was given
        for names, meant in found:
            by_order = sorted(names, key=lambda name: self._source(f"{policy}{name}").order)
            latest, source = by_order[-1], self._source(f"{policy}{by_order[-1]}")
            for name in names:
                del settings[name]
            for name, value in meant.items():
                setting = name if policy else canonical_name(name)
                target, order = self.fields if setting in ACCEPTED else settings, self._source(policy + setting).order
                if setting in target and order == source.order:
                    other = given_as.get(setting, setting)
                    which = "" if other == setting else f", {setting}"
                    words = f"{latest} and {other} are both given, but mean the same{which}; accepted: one of them"
                    raise ConfigError(f"{source}: {words}", key=f"{policy}{latest}")
                if setting not in target or order < source.order:
                    put(target, (setting,) if setting in ACCEPTED else path_of(setting), value)
                    self.sources[policy + setting] = source
                    given_as[setting] = latest

    def _source(self, key: str) -> Source:
        return source_of(self.sources, key) or Source(key)


def _policies_of_teams(given: dict[str, tuple[str, Any]]) -> tuple[str, Any]:
    """Take `teams` out of settings; return the `policies` that are meant, which say no more than who plays them."""
    written, teams = given.pop("teams")
    if "policies" in given:
        raise ConfigError("teams and policies are both given, but mean the same; accepted: one of them", key="teams")
    if not isinstance(teams, Mapping) or not all(isinstance(agents, (list, tuple)) for agents in teams.values()):
        refuse("teams", teams, "a mapping of teams to lists of agents, such as {blue: [a, b], red: [c]}")
    return written, {team: {"agents": agents} for team, agents in teams.items()}


_BY_NAME = {"env": "env_kwargs", "stop": "stop"}  # fields whose entries may be set by `HEAD.NAME`


def _path(key: str, *, is_dotted: bool) -> tuple[str, ...]:
    """Return where a setting belongs in the fields; whether an algorithm has it is checked when the policies are made.

    Args:
        key: its canonical name.
        is_dotted: whether dots in it separate names.
    """
    head, dot, rest = key.partition(".")
    if key in ACCEPTED or key in KEYS:
        return (key,)
    if is_dotted and (not head or (dot and not rest) or key == "env"):
        raise ConfigError("accepted: a setting, env.NAME or POLICY.NAME", key=key)
    if not is_dotted or not dot:
        return HYPERPARAMETERS, key
    if head in _BY_NAME:
        return _BY_NAME[head], rest
    if head == "policy_kwargs":
        return HYPERPARAMETERS, head, rest
    policy_id, in_network, name = key.partition(".policy_kwargs.")  # the policy's id may contain dots
    if not in_network:
        policy_id, _, name = key.rpartition(".")
    if not policy_id or not name:
        raise ConfigError("accepted: POLICY.NAME", key=key)
    return ("policy_settings", policy_id, *(["policy_kwargs"] if in_network else []), name)


def load_config(
    env: str | None,
    algo: str | None = None,
    hparams: Hparams | None = None,
    settings: Mapping[str, Any] | None = None,
    trusted_env: str | None = None,
    label: Callable[[str], str] = lambda key: f"--set {key}",
    *,
    trust_file: bool = False,
    **overrides: Any,
) -> TrainConfig:
    """Return the configuration from a preset or file, options, and single settings; the last one wins.

    Args:
        env: env id; None: the only one in `hparams`.
        algo: algorithm; None: as in the file, or the default.
        hparams: a file instead of the presets of the package, or the content of such a file; it must have an entry for
            the env, or a section `default`.
        settings: values by key, as after `--set`: a field, a hyperparameter, `env.x`, `policy_kwargs.x` or
            `<policy>.x`. RLlib's names are accepted, here and in files.
        trusted_env: another env id that the user has named; see below.
        label: the place of a key of `settings`, for messages.
        trust_file: accept all code that `hparams` names; its algorithms have to be imported before.
        overrides: fields of `TrainConfig`; None means not given. A callback in `callbacks` has the arguments that the
            file gives to one of its name.

    An env that is code, `package.module:factory`, is accepted only if the user names it as `env` or `trusted_env`: a
    file alone must not import code. Other code is refused by `require_trusted`.
    """
    algo = None if algo is None else canonical_algorithm(algo)
    named = [name for name in (env, trusted_env) if name is not None]
    notes: list[str] = []
    if hparams is not None:
        env, section, entry = entry_of(hparams, env, notes)
        path = name_of(hparams)
        if not trust_file:
            require_named(env, named, path)
    elif env is not None:
        path = preset_path(algo or TrainConfig.algo)
        section, entry = env, deepcopy(presets(path).get(env, {}))
    else:
        raise ConfigError("no env given; accepted: an env id, or --hparams with a file of one env", key="env")
    values = MergedSettings()
    own = {str(key): value for key, value in entry.items()}
    values.add(own, lambda key: f"{path}, {section}.{key}", may_import=hparams is None or trust_file)
    if named_callbacks := overrides.get("callbacks"):
        overrides["callbacks"] = with_arguments(named_callbacks, own.get("callbacks"))
    planned = values.fields.get("n_timesteps")
    options = {"algo": algo, **overrides}
    values.add({name: value for name, value in options.items() if value is not None}, _option, is_yaml=False)
    values.add(settings or {}, label, dotted=True)
    if values.fields.get("stop", ...) is None:  # as `--stop none`
        values.fields["stop"] = {}
    if values.fields.get("n_timesteps") != planned:  # another plan than that of the extended run in the file
        phases = values.fields.pop("extensions", None)
        if isinstance(phases, (list, tuple)) and any(
            isinstance(each, Mapping) and "settings" in each for each in phases
        ):
            words = f"extensions, with their settings, are left out: they belong to n_timesteps={planned}"
            notes.append(f"{path}, {section}: {words}")
    refuse_unsupported(values.of_the_zoo, values.sources)
    values.translate()
    try:
        fields = {**nested(values.fields), "picks_rollouts": hparams is None and not entry}
        return TrainConfig(env, sources=values.sources, notes=notes, **fields)
    except ConfigError as error:
        source = source_of(values.sources, error.key)
        raise ConfigError(f"{source}: {error}" if source else str(error), key=error.key) from error


def with_arguments(named: Iterable[Any], entries: Any) -> list[Any]:
    """Return the callbacks that the user names, each as the entries of a file have it; of one name, in their order."""
    had: dict[str, list[Any]] = {}
    for each in entries if isinstance(entries, (list, tuple)) else ():
        had.setdefault(name_of_callback(each), []).append(each)
    return [had[name].pop(0) if isinstance(name, str) and had.get(name) else name for name in named]


def require_trusted(
    code: Mapping[str, Sequence[str]], sources: Mapping[str, Source], named: Collection[str] | None = None
) -> None:
    """Refuse code that only a file names, before it is imported: callbacks, functions, opponents of a league.

    Args:
        code: of the configuration, see `TrainConfig.code`.
        sources: of the configuration.
        named: the settings that the user has given; None: those that no file has.

    Raises:
        ConfigError: a file names code.
    """
    for key, names in code.items():
        source = sources.get(key)
        if source is not None and not (source.may_import if named is None else key in named):
            words = f"wants to import {', '.join(map(shown, names))}: if you trust this code, give --set {key}=..."
            raise ConfigError(f"{place_of_setting(sources, key)}{words} yourself; {OF_TRUST}", key=key)


def require_kinds(hparams: Any, settings: Any) -> None:
    """Refuse arguments of wrong types, which only callers in Python can pass.

    Raises:
        ConfigError: `hparams` is no path and no mapping, or `settings` no mapping with strings as keys.
    """
    if not isinstance(hparams, str | Path | Mapping | None):
        refuse("hparams", hparams, "the path of a settings file, or a mapping from env ids to their settings")
    if not isinstance(settings, Mapping | None):
        refuse("settings", settings, "a mapping of settings to values, such as {'learning_rate': 1e-4}")
    for key in settings or ():
        if not isinstance(key, str):
            raise ConfigError(f"settings has the key {shown(key)}; accepted: strings", key="settings")


def _option(key: str) -> str:
    if key in OFFERED:
        return OFFERED[key].shown.partition(" ")[0]
    name = key.partition(".")[0]
    return {"callbacks": "--callback", "league": "--against"}.get(name, f"--{name.replace('_', '-')}")


# --- Ids in YAML -----------------------------------------------------------------------------------------------------


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _texts(values: Any) -> Any:
    return [_text(value) for value in values] if isinstance(values, (list, tuple)) else values


def _by_text(field: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a converter for a mapping of ids to mappings: it converts the ids, and one field of the inner mappings."""

    def converted(outer: Any) -> Any:
        if not isinstance(outer, Mapping):
            return outer
        texts: dict[Any, Any] = {}
        for each, inner in outer.items():
            if _text(each) is not each and _text(each) in outer:
                raise ConfigError(f"{each!r} and {_text(each)!r} are the same id; accepted: each id once")
            has_field = isinstance(inner, Mapping) and field in inner
            texts[_text(each)] = {**inner, field: read(inner[field])} if has_field else inner
        return texts

    return converted


def _by_agent(mapping: Any) -> Any:
    ids = _by_text("", _texts)(mapping)
    return {agent: _texts(_text(own)) for agent, own in ids.items()} if isinstance(ids, Mapping) else ids


# Fields with ids -> a converter of integer ids to strings: YAML reads the id `1` as an integer. It raises a
# `ConfigError` if the same id is there as an integer and as a string.
_TEXT_IDS: Mapping[str, Callable[[Any], Any]] = {
    "policies": _by_text("agents", _texts),
    "policy_settings": _by_text("agents", _texts),
    "policies_to_train": _texts,
    "mapping": _by_agent,
    "custom_metrics": _by_text("agent", _text),
}
