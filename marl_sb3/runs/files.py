"""Read and write settings files, by env id as in rl-baselines3-zoo's files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from marl_sb3.errors import SHOWN, ConfigError, did_you_mean, refuse, shown
from marl_sb3.extensions.dialects.zoo import ATARI, DEFAULT, section_for
from marl_sb3.files.plain_yaml import plain_data, read_yaml, yaml_text
from marl_sb3.runs.schema import ACCEPTED, TrainConfig, value_of


def to_yaml(config: TrainConfig) -> str:
    """Return the text of a file from which `load_config` reads the same configuration."""
    values: dict[str, Any] = {}
    for name in ACCEPTED:
        section, _, own = name.rpartition(".")
        (values.setdefault(section, {}) if section else values)[own] = plain_data(value_of(config, name))
    return yaml_text({config.env: values})


# --- Settings by env id ----------------------------------------------------------------------------------------------


_PACKAGE = Path(__file__).parent.parent

Hparams = str | Path | Mapping[str, Any]  # a file of settings by env id, or what it holds


def preset_path(algo: str) -> Path:
    """Return the file of an algorithm's presets: in the package if it is installed, next to it in a checkout."""
    name = f"{algo}.yml"
    installed = _PACKAGE / "hparams" / name
    return installed if installed.exists() else _PACKAGE.parent / "hparams" / name


OF_TRUST = "train and imitate also take --trust-file (trust_file=True), for all that a file names"


def require_named(env: str, named: Sequence[str], path: str | Path) -> None:
    """Refuse an env `package.module:factory` of a file unless the user has named it: a file must not import code."""
    if ":" not in env or env in named:
        return
    if not env.isprintable() or len(env) > SHOWN:  # a file may hold anything
        raise ConfigError(f"{path} wants to import {shown(env)}, which is no package.module:factory", key="env")
    other = f", which is not {named[0]}" if named else ""
    raise ConfigError(
        f"{path} wants to import {env}{other}: if you trust this code, add --env {shlex.quote(env)} to the command "
        f"(in Python, env={env!r}); {OF_TRUST}",
        key="env",
    )


def _some(names: Iterable[Any]) -> str:
    """List the first names in a file, each shortened: the file may hold anything."""
    listed = [str(name)[:60] for name in names]
    return ", ".join(listed[:20]) + (", ..." if len(listed) > 20 else "")


def name_of(hparams: Hparams) -> str | Path:
    """Return the name of the settings in messages: the path of their file, or `hparams`."""
    return "hparams" if isinstance(hparams, Mapping) else Path(hparams)


def entry_of(hparams: Hparams, env: str | None, notes: list[str]) -> tuple[str, str, Mapping[str, Any]]:
    """Return the env id, the name of its section in a file, and the settings in that section.

    Args:
        env: env id; None: the only one in the file.
        notes: gets a note if the env has no section of its own.
    """
    path = name_of(hparams)
    content = hparams if isinstance(hparams, Mapping) else read_yaml(Path(hparams))
    if not isinstance(content, Mapping) or not content:
        found = f"holds {shown(content)}" if content else "is empty"
        raise ConfigError(f"{path} {found}; accepted: a mapping of env ids to their settings", key="hparams")
    if env is None:
        envs = [name for name in content if name not in (DEFAULT, ATARI)] or list(content)
        if len(envs) != 1:
            raise ConfigError(f"{path} has settings for {_some(content)}: say which env", key="env")
        env = str(envs[0])
    if env in content:
        return env, env, _entry(path, env, content[env])
    close = did_you_mean(env, map(str, content), 3)
    section = section_for(env, content)
    if section is None:
        hint = close or f"it has {_some(content)}"
        raise ConfigError(f"{path} has no settings for env {env!r}; {hint}", key="hparams")
    similar = f"; {close}" if close else ""
    notes.append(f"{path} has no settings for env {env!r}: those of its section {section!r} are used{similar}")
    return env, section, _entry(path, section, content[section])


@cache
def presets(path: Path) -> Mapping[str, Any]:
    """Return the content of a file of the package, which is parsed once: a search needs it for every trial."""
    content: Mapping[str, Any] = read_yaml(path) if path.exists() else {}
    return content


def _entry(path: str | Path, env: str, entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        refuse(f"{path}, {env}:", entry, "a mapping of settings", "hparams")
    return entry
