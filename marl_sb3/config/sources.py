"""Merge the sources of settings: presets, files, options, `--set` and arguments of functions; the last one wins.

A name that is no field of `TrainConfig` is the name of a hyperparameter, in SB3 or RLlib.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from marl_sb3.config.algorithms import canonical_algorithm
from marl_sb3.config.compat.zoo import refuse_unsupported
from marl_sb3.config.files import Hparams, entry_of, entry_of_preset, name_of, preset_path, require_named
from marl_sb3.config.ids import with_text_ids
from marl_sb3.config.merged import MergedSettings
from marl_sb3.config.provenance import source_of
from marl_sb3.config.schema import TrainConfig, nested
from marl_sb3.config.values import shown
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
    require_kinds(hparams, settings)
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
    values.add(with_text_ids({str(key): value for key, value in entry.items()}), lambda key: f"{path}, {section}.{key}")
    planned = values.fields.get("n_timesteps")
    options = {"algo": algo, **overrides}
    values.add({name: value for name, value in options.items() if value is not None}, _option)
    values.add(with_text_ids(settings or {}), label, dotted=True)
    if values.fields.get("n_timesteps") != planned:  # another plan than that of the extended run in the file
        values.fields.pop("extensions", None)
    refuse_unsupported(values.of_the_zoo, values.sources)
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
