"""Merge the sources of settings: presets, files, options, `--set` and arguments of functions; the last one wins.

A name that is no field of `TrainConfig` is the name of a hyperparameter, in SB3 or RLlib.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from marl_sb3.config.files import Hparams, entry_of, entry_of_preset, name_of, preset_path, require_named
from marl_sb3.config.ids import with_text_ids
from marl_sb3.config.names import (
    HYPERPARAMETERS,
    as_integer,
    canonical_algorithm,
    canonical_hyperparameters,
    canonical_name,
    canonical_settings,
)
from marl_sb3.config.provenance import Source, source_of
from marl_sb3.config.schema import ACCEPTED, BY_POLICY, SECTIONS, TrainConfig, names_in, nested
from marl_sb3.config.values import Named, require, shown, takes_integers_only
from marl_sb3.config.zoo_format import KEYS, refuse_unsupported, translated
from marl_sb3.errors import ConfigError


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
    _require_kinds(hparams, settings)
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
    values = _Settings()
    values.add(with_text_ids({str(key): value for key, value in entry.items()}), lambda key: f"{path}, {section}.{key}")
    planned = values.fields.get("n_timesteps")
    options = {"algo": algo, **overrides}
    values.add({name: value for name, value in options.items() if value is not None}, _option)
    values.add(with_text_ids(settings or {}), label, dotted=True)
    if values.fields.get("n_timesteps") != planned:  # another plan than that of the extended run in the file
        values.fields.pop("extensions", None)
    refuse_unsupported(values.of_the_zoo, values.sources)
    try:
        return TrainConfig(env, sources=values.sources, notes=notes, **nested(values.fields))
    except ConfigError as error:
        source = source_of(values.sources, error.key)
        raise ConfigError(f"{source}: {error}" if source else str(error), key=error.key) from error


def _require_kinds(hparams: Any, settings: Any) -> None:
    """Refuse arguments of wrong types, which only callers in Python can pass."""
    if not isinstance(hparams, (str, Path, Mapping, type(None))):
        accepted = "the path of a settings file, or a mapping from env ids to their settings"
        raise ConfigError(f"hparams is {shown(hparams)}; accepted: {accepted}", key="hparams")
    if not isinstance(settings, (Mapping, type(None))):
        accepted = "a mapping of settings to values, such as {'learning_rate': 1e-4}"
        raise ConfigError(f"settings is {shown(settings)}; accepted: {accepted}", key="settings")
    for key in settings or ():
        if not isinstance(key, str):
            raise ConfigError(f"settings has the key {shown(key)}; accepted: strings", key="settings")


_OPTION_NAMES = {"n_timesteps": "timesteps"}


def _option(key: str) -> str:
    name = key.partition(".")[0]
    return f"--{_OPTION_NAMES.get(name, name).replace('_', '-')}"


class _Settings:
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

    def add(self, given: Mapping[str, Any], where: Callable[[str], str], *, dotted: bool = False) -> None:
        """Add the settings of one source; they replace those of earlier sources.

        Args:
            dotted: whether `a.b` is a path, as after `--set`.

        Raises:
            ConfigError: a key or a value is malformed, or a setting is given by two names.
        """
        try:
            for key, (written, value) in canonical_settings(_unnested(given)).items():
                self.sources[key] = Source(where(written), written if dotted else "")
                if key in BY_POLICY:
                    self.sources.update(_sources_by_policy(written, value, where))
                for name, own in translated(key, value).items():
                    self.sources[name] = self.sources[key]
                    self.set_or_put(name, own, dotted=dotted or key != written)
        except ConfigError as error:
            key = error.key or ""
            raise ConfigError(f"{self.sources.get(key) or where(key)}: {error}", key=error.key) from error

    def set_or_put(self, key: str, value: Any, *, dotted: bool) -> None:
        """Set a value by its name, or by its path if the source uses paths."""
        if key not in ACCEPTED and dotted:
            self.set_path(key, value)
        else:
            self.put(key, value)

    def put(self, key: str, value: Any) -> None:
        """Set a field or a hyperparameter. Whether the algorithm has it is checked when the policies are made."""
        if key in KEYS:
            self.of_the_zoo[key] = value
        elif key in ACCEPTED:
            self.fields[key] = _field_value(key, value)
        else:
            self.fields[HYPERPARAMETERS][key] = value

    def set_path(self, key: str, value: Any) -> None:
        """Set a value by its dotted key."""
        head, dot, rest = key.partition(".")
        if not head or (dot and not rest) or key == "env":
            raise ConfigError("accepted: a setting, env.NAME or POLICY.NAME", key=key)
        if not rest:
            self.put(head, value)
        elif head == "env":
            self.fields["env_kwargs"] = {**self.fields.get("env_kwargs", {}), rest: value}
        elif head == "policy_kwargs":
            _set_policy_kwarg(self.fields[HYPERPARAMETERS], rest, value)
        else:
            self._set_for_policy(key, value)

    def _set_for_policy(self, key: str, value: Any) -> None:
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


def _sources_by_policy(field: str, policies: Any, where: Callable[[str], str]) -> dict[str, Source]:
    """Return where a field gives the settings of single policies, by `policies.POLICY` and `POLICY.NAME`."""
    sources: dict[str, Source] = {}
    for policy_id, settings in policies.items() if isinstance(policies, Mapping) else ():
        sources[f"policies.{policy_id}"] = Source(where(f"{field}.{policy_id}"))
        for name in map(str, settings) if isinstance(settings, Mapping) else ():
            sources[f"{policy_id}.{canonical_name(name)}"] = Source(where(f"{field}.{policy_id}.{name}"))
    return sources


def _unnested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings of sections to dotted names: `checkpoints: {every: 5}` to `checkpoints.every: 5`."""
    settings: dict[str, Any] = {}
    for name, value in given.items():
        own = _of_section(name, value) if name in SECTIONS or name == HYPERPARAMETERS else {name: value}
        for key, part in own.items():
            if key in settings:
                raise ConfigError(f"{key} is given twice; accepted: once", key=key)
            settings[key] = part
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
    """Convert the value of a field to the form that is checked."""
    if takes_integers_only(ACCEPTED[name]):
        return as_integer(value)
    if name in BY_POLICY and isinstance(value, Mapping):
        return {policy_id: _own_settings(settings) for policy_id, settings in value.items()}
    return value


def _own_settings(settings: Any) -> Any:
    """Return one policy's settings by SB3's names. Values that are not mappings are refused later."""
    if not isinstance(settings, Mapping):
        return settings
    return canonical_hyperparameters({str(key): value for key, value in settings.items()})


def _set_policy_kwarg(settings: dict[str, Any], name: str, value: Any) -> None:
    settings["policy_kwargs"] = {**(settings.get("policy_kwargs") or {}), name: value}
