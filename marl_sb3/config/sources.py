"""Merge the sources of settings: presets, files, options, `--set` and arguments of functions; the last one wins.

A name that is no field of `TrainConfig` is the name of a hyperparameter, in SB3 or RLlib.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_sb3.config.algorithms import canonical_algorithm, kinds_of
from marl_sb3.config.compat.rllib import LATER, OF_RUN, number_of_envs, translated
from marl_sb3.config.compat.rllib_names import Context
from marl_sb3.config.compat.zoo import KEYS, TRANSLATED, refuse_unsupported, translated_key
from marl_sb3.config.files import Hparams, entry_of, entry_of_preset, name_of, preset_path, require_named
from marl_sb3.config.ids import TEXT_IDS
from marl_sb3.config.names import (
    HYPERPARAMETERS,
    as_integer,
    canonical_hyperparameters,
    canonical_name,
    canonical_settings,
)
from marl_sb3.config.schema import ACCEPTED, BY_POLICY, SECTIONS, Source, TrainConfig, names_in, nested, source_of
from marl_sb3.config.values import Named, require, shown, takes_integers_only
from marl_sb3.errors import ConfigError


class MergedSettings:
    """The settings of a `TrainConfig` while its sources are merged.

    Attributes:
        fields: values by names such as `n_envs` and `checkpoints.every`.
        of_the_zoo: values by keys of rl-baselines3-zoo that are not supported.
        sources: where each setting was given.
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {HYPERPARAMETERS: {}}
        self.of_the_zoo: dict[str, Any] = {}
        self.sources: dict[str, Source] = {}
        self._count = 0

    def add(
        self, given: Mapping[str, Any], where: Callable[[str], str], *, dotted: bool = False, is_yaml: bool = True
    ) -> None:
        """Add the settings of one source; they replace those of earlier sources.

        Args:
            dotted: whether `a.b` is a path, as after `--set`.
            is_yaml: whether integers may be ids, which YAML reads as such: then they become strings.

        Raises:
            ConfigError: a key or a value is malformed, or a setting is given by two names.
        """
        self._count += 1
        try:
            for key, (written, value) in canonical_settings(_flat(given, is_yaml=is_yaml)).items():
                self.sources[key] = Source(where(written), written if dotted else "", self._count)
                if key in BY_POLICY:
                    self.sources.update(_sources_by_policy(written, value, where, self._count))
                for name, own in translated_key(key, value).items() if key in TRANSLATED else [(key, value)]:
                    self.sources[name] = self.sources[key]
                    self._put(name, own, is_path=dotted or key != written)
        except ConfigError as error:
            key = error.key or ""
            raise ConfigError(f"{self.sources.get(key) or where(key)}: {error}", key=error.key) from error

    # --- RLlib's names whose meaning depends on other settings --------------------------------------------------------

    @property
    def has_later(self) -> bool:
        """Whether a source gives one of these names."""
        return any(name.rpartition(".")[2] in LATER for name in self.sources)

    def translate_rllib(self) -> None:
        """Translate the names that need the algorithm or the number of envs, which are known now.

        Raises:
            ConfigError: a name has no counterpart for the algorithm, or a source gives a setting by two names.
        """
        self._translate_envs()
        algo = self.fields.get("algo", TrainConfig.algo)
        of_policies = {name: self.fields[name] for name in BY_POLICY if isinstance(self.fields.get(name), Mapping)}
        self.fields[HYPERPARAMETERS] = self._translated(self.fields[HYPERPARAMETERS], algo, "")
        for name, mapping in of_policies.items():
            self.fields[name] = {
                policy_id: self._translated(own, _algo_of(policy_id, of_policies, algo), f"{policy_id}.")
                if isinstance(own, Mapping)
                else own
                for policy_id, own in mapping.items()
            }

    def _translate_envs(self) -> None:
        hyperparameters = self.fields[HYPERPARAMETERS]
        given = {name: hyperparameters.pop(name) for name in OF_RUN if name in hyperparameters}
        if given:
            with self._place_named():
                n_envs = number_of_envs(given)
            self._put_later("", max(given, key=self._order), {"n_envs": n_envs}, self.fields)

    def _translated(self, settings: Mapping[str, Any], algo: Any, prefix: str) -> dict[str, Any]:
        result = {name: value for name, value in settings.items() if name not in LATER}
        context = Context(*(self.fields.get(name, getattr(TrainConfig, name)) for name in Context._fields))
        for name in LATER & settings.keys():
            with self._place_named(prefix):
                new = translated(name, settings[name], str(algo), kinds_of(algo), context)
            self._put_later(prefix, name, new, result)
        return result

    def _put_later(self, prefix: str, name: str, new: Mapping[str, Any], target: dict[str, Any]) -> None:
        """Put the settings that a name of RLlib means, but not where a later source has given them."""
        given = self._order(f"{prefix}{name}")
        for setting, value in new.items():
            there = self._order(f"{prefix}{setting}") if setting in target else -1
            if there == given:
                source = self.sources[f"{prefix}{name}"]
                words = f"{name} and {setting} are both given, but mean the same; accepted: one of them"
                raise ConfigError(f"{source}: {words}", key=f"{prefix}{name}")
            if there < given:
                target[setting] = value
                self.sources[f"{prefix}{setting}"] = self.sources[f"{prefix}{name}"]

    @contextmanager
    def _place_named(self, prefix: str = "") -> Iterator[None]:
        """Put the place of the setting that an error names before its message."""
        try:
            yield
        except ConfigError as error:
            key = f"{prefix}{error.key}"
            raise ConfigError(f"{source_of(self.sources, key)}: {error}", key=key) from error

    def _order(self, key: str) -> int:
        source = source_of(self.sources, key)
        return 0 if source is None else source.order

    def _put(self, key: str, value: Any, *, is_path: bool) -> None:
        """Set a field or a hyperparameter. Whether the algorithm has it is checked when the policies are made.

        Args:
            is_path: whether dots in the key separate names.
        """
        head, dot, rest = key.partition(".")
        if key in KEYS:
            self.of_the_zoo[key] = value
        elif key in ACCEPTED:
            self.fields[key] = _field_value(key, value) if key in _CONVERTED else value
        elif is_path and (not head or (dot and not rest) or key == "env"):
            raise ConfigError("accepted: a setting, env.NAME or POLICY.NAME", key=key)
        elif not is_path or not dot:
            self.fields[HYPERPARAMETERS][key] = value
        elif head in _BY_NAME:
            self.fields[_BY_NAME[head]] = {**(self.fields.get(_BY_NAME[head]) or {}), rest: value}
        elif head == "policy_kwargs":
            _set_policy_kwarg(self.fields[HYPERPARAMETERS], rest, value)
        else:
            self._put_for_policy(key, value)

    def _put_for_policy(self, key: str, value: Any) -> None:
        """Set `POLICY.NAME` or `POLICY.policy_kwargs.NAME`; the policy's id may contain dots."""
        policy_id, in_network, name = key.partition(".policy_kwargs.")
        if not in_network:
            policy_id, _, name = key.rpartition(".")
        if not policy_id or not name:
            raise ConfigError("accepted: POLICY.NAME", key=key)
        all_settings = dict(self.fields.get("policy_settings", {}))
        settings = all_settings[policy_id] = dict(all_settings.get(policy_id, {}))
        if in_network:
            _set_policy_kwarg(settings, name, value)
        else:
            settings[name] = value
        self.fields["policy_settings"] = all_settings


_BY_NAME = {"env": "env_kwargs", "stop": "stop"}  # fields whose entries may be set by `HEAD.NAME`
_CONVERTED = frozenset([*BY_POLICY, *(name for name, kind in ACCEPTED.items() if takes_integers_only(kind))])


def _algo_of(policy_id: Any, by_policy: Mapping[str, Mapping[Any, Any]], algo: Any) -> Any:
    """The algorithm of a policy: its own, or the run's."""
    own = [mapping[policy_id] for mapping in by_policy.values() if isinstance(mapping.get(policy_id), Mapping)]
    return next((settings["algo"] for settings in reversed(own) if "algo" in settings), algo)


def _sources_by_policy(field: str, policies: Any, where: Callable[[str], str], order: int) -> dict[str, Source]:
    """Return where a field gives the settings of single policies, by `policies.POLICY` and `POLICY.NAME`."""
    sources: dict[str, Source] = {}
    for policy_id, settings in policies.items() if isinstance(policies, Mapping) else ():
        sources[f"policies.{policy_id}"] = Source(where(f"{field}.{policy_id}"), order=order)
        for name in map(str, settings) if isinstance(settings, Mapping) else ():
            place = where(f"{field}.{policy_id}.{name}")
            sources[f"{policy_id}.{canonical_name(name)}"] = Source(place, order=order)
    return sources


def _flat(given: Mapping[str, Any], *, is_yaml: bool) -> Mapping[str, Any]:
    """Convert settings of sections to dotted names: `checkpoints: {every: 5}` to `checkpoints.every: 5`."""
    settings: dict[str, Any] = {}
    for name, value in given.items():
        own = _of_section(name, value) if name in SECTIONS or name == HYPERPARAMETERS else {name: value}
        for key, part in own.items():
            if key in settings:
                raise ConfigError(f"{key} is given twice; accepted: once", key=key)
            settings[key] = TEXT_IDS[key](part) if is_yaml and key in TEXT_IDS else part
    return settings


def _of_section(section: str, settings: Any) -> dict[str, Any]:
    require(section, settings, Named)
    for name in map(str, settings):
        if section == HYPERPARAMETERS:
            is_dotted = "." in name and not name.startswith("policy_kwargs.")
            fault = "is no hyperparameter" if name in ACCEPTED or name in KEYS or is_dotted else ""
        else:
            fault = "" if name in names_in(section) else f"is unknown; accepted: {', '.join(names_in(section))}"
        if fault:
            raise ConfigError(f"{shown(name)} in {section} {fault}", key=f"{section}.{name}")
    return {f"{section}.{name}": value for name, value in settings.items()}


def _field_value(name: str, value: Any) -> Any:
    """Convert an integer, or settings by policy; values that are not mappings are refused later."""
    if name not in BY_POLICY:
        return as_integer(value)
    if not isinstance(value, Mapping):
        return value
    return {
        policy_id: canonical_hyperparameters({str(key): own for key, own in settings.items()})
        if isinstance(settings, Mapping)
        else settings
        for policy_id, settings in value.items()
    }


def _set_policy_kwarg(settings: dict[str, Any], name: str, value: Any) -> None:
    settings["policy_kwargs"] = {**(settings.get("policy_kwargs") or {}), name: value}


def load_config(
    env: str | None,
    algo: str | None = None,
    hparams: Hparams | None = None,
    settings: Mapping[str, Any] | None = None,
    trusted_env: str | None = None,
    label: Callable[[str], str] = lambda key: f"--set {key}",
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
        overrides: fields of `TrainConfig`; None means not given.

    An env that is code, `package.module:factory`, is accepted only if the user names it as `env` or `trusted_env`: a
    file alone must not import code.
    """
    algo = None if algo is None else canonical_algorithm(algo)
    named = [name for name in (env, trusted_env) if name is not None]
    notes: list[str] = []
    if hparams is not None:
        env, section, entry = entry_of(hparams, env, notes)
        path = name_of(hparams)
        require_named(env, named, path)
    else:
        path = preset_path(algo or TrainConfig.algo)
        env, section, entry = entry_of_preset(path, env)
    values = MergedSettings()
    values.add({str(key): value for key, value in entry.items()}, lambda key: f"{path}, {section}.{key}")
    planned = values.fields.get("n_timesteps")
    options = {"algo": algo, **overrides}
    values.add({name: value for name, value in options.items() if value is not None}, _option, is_yaml=False)
    values.add(settings or {}, label, dotted=True)
    if values.fields.get("n_timesteps") != planned:  # another plan than that of the extended run in the file
        values.fields.pop("extensions", None)
    refuse_unsupported(values.of_the_zoo, values.sources)
    if values.has_later:
        values.translate_rllib()
    try:
        about: dict[str, Any] = {
            "sources": values.sources,
            "notes": notes,
            "picks_rollouts": hparams is None and not entry,
        }
        return TrainConfig(env, **about, **nested(values.fields))
    except ConfigError as error:
        source = source_of(values.sources, error.key)
        raise ConfigError(f"{source}: {error}" if source else str(error), key=error.key) from error


def require_kinds(hparams: Any, settings: Any) -> None:
    """Refuse arguments of wrong types, which only callers in Python can pass.

    Raises:
        ConfigError: `hparams` is no path and no mapping, or `settings` no mapping with strings as keys.
    """
    if not isinstance(hparams, (str, Path, Mapping, type(None))):
        accepted = "the path of a settings file, or a mapping from env ids to their settings"
        raise ConfigError(f"hparams is {shown(hparams)}; accepted: {accepted}", key="hparams")
    if not isinstance(settings, (Mapping, type(None))):
        accepted = "a mapping of settings to values, such as {'learning_rate': 1e-4}"
        raise ConfigError(f"settings is {shown(settings)}; accepted: {accepted}", key="settings")
    for key in settings or ():
        if not isinstance(key, str):
            raise ConfigError(f"settings has the key {shown(key)}; accepted: strings", key="settings")


_OPTION_NAMES = {"n_timesteps": "timesteps", "n_workers": "workers"}


def _option(key: str) -> str:
    name = key.partition(".")[0]
    return f"--{_OPTION_NAMES.get(name, name).replace('_', '-')}"
