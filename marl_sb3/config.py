"""The configuration of a run: every default stands here once, and every source of settings is checked against it.

A preset file has the format of rl-baselines3-zoo's: env id -> settings, where what is not a field of `TrainConfig`
is a hyperparameter by SB3's name or RLlib's. Files are read as plain data; nothing in them is evaluated or imported.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from marl_sb3.errors import ConfigError
from marl_sb3.ids import require_ids, with_text_ids
from marl_sb3.setting_names import as_integer, canonical_hyperparameters, canonical_settings
from marl_sb3.types import AgentID, PolicyID
from marl_sb3.zoo_format import ATARI, DEFAULT, KEYS, refuse_unsupported, section_for

_PACKAGE = Path(__file__).parent
_FIELDS_OF_THE_FILE = ("env", "hyperparameters", "sources", "notes")  # not settings by these names


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a run does.

    Attributes:
        env: the id of the env.
        n_timesteps: number of env steps to train for.
        extensions: the ends that were planned before the run was extended, in order: `{until: N, n_timesteps: N}` in
            env steps. Schedules lead to `n_timesteps` until the step `until`; stop conditions apply after the last
            extension. None: the run was not extended.
        n_envs: number of envs that step together.
        seed: seed of the run. None: the run draws one and writes it to `config.yaml`.
        algo: algorithm of each policy that sets no other.
        policy: SB3 policy class, by name, of each policy that sets no other.
        policies: `shared` (one policy for all agents), `per_agent` (one for each agent), or a mapping from policy ids
            to `{agents: [...]}` and the policy's own settings.
        policy_settings: settings of single policies, by policy id; `--set POLICY.NAME=VALUE` writes here.
        policies_to_train: ids of the policies that learn; the others act and keep their weights. None: all learn.
        init_from: sources of the initial weights, each as after `--init-from`. None: random weights.
        init_layers: patterns of the layers that are taken from them, such as `mlp_extractor.policy_net.*`. None: all.
        vectorizer: how envs are stepped: `auto`, `batched`, `serial` or `supersuit`; see `make_vec_env`.
        device: `auto`, `cpu` or `cuda`.
        n_threads: threads of one operation of PyTorch or BLAS. Small networks are slower with more than one.
        n_parallel_updates: number of policies that are updated at the same time. None: as many as there are cores.
        update_path: how PPO updates: `auto`, `fused` or `lean`; see `marl_sb3.PPO`.
        checkpoint_every: iterations between checkpoints. 0: one at the end.
        checkpoint_keep: how many of the newest checkpoints are kept, besides the best one.
        checkpoint_metric: the metric that decides which checkpoint is the best.
        checkpoint_mode: whether the best has the highest (`max`) or the lowest (`min`) value of it.
        on_nan: what a NaN or an infinity does: `stop` ends the run, `rollback` returns to the latest checkpoint, at
            most three times.
        evaluation_interval: iterations, or env steps, between evaluations. 0: no evaluations.
        evaluation_interval_unit: unit of it: `iterations`, or `timesteps` (env steps).
        evaluation_duration: length of an evaluation.
        evaluation_duration_unit: unit of it: `episodes`, or `timesteps` (env steps, which favours short episodes).
        evaluation_seed: seed of the episodes of every evaluation. None: it follows from `seed`.
        evaluation_deterministic: whether evaluations take the most likely actions (true) or sample them (false).
        stop: values by metric; the training ends when one metric reaches its value.
        custom_metrics: numbers from the env's infos that become metrics, by name; see `InfoMetric`.
        stats_window_size: number of finished episodes that the metrics of episodes run over.
        env_kwargs: arguments of the env, by name.
        hyperparameters: SB3's arguments, by name, of each policy that sets no other.
        sources: where a setting came from, for messages; not part of the configuration.
        notes: what the user should know of how a file was read; not part of the configuration.
    """

    env: str
    n_timesteps: int = 1_000_000
    extensions: Sequence[Mapping[str, int]] | None = None
    n_envs: int = 8
    seed: int | None = None
    algo: str = "ppo"
    policy: str = "MlpPolicy"
    policies: str | Mapping[PolicyID, Mapping[str, Any]] = "shared"
    policy_settings: Mapping[PolicyID, Mapping[str, Any]] = field(default_factory=dict)
    policies_to_train: Sequence[PolicyID] | None = None
    init_from: Sequence[str] | None = None
    init_layers: Sequence[str] | None = None
    vectorizer: str = "auto"
    device: str = "auto"
    n_threads: int = 1
    n_parallel_updates: int | None = None
    update_path: str = "auto"
    checkpoint_every: int = 10
    checkpoint_keep: int = 3
    checkpoint_metric: str = "env_runners/episode_return_mean"
    checkpoint_mode: str = "max"
    on_nan: str = "stop"
    evaluation_interval: int = 0
    evaluation_interval_unit: str = "iterations"
    evaluation_duration: int = 10
    evaluation_duration_unit: str = "episodes"
    evaluation_seed: int | None = None
    evaluation_deterministic: bool = True
    stop: Mapping[str, float] = field(default_factory=dict)
    custom_metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stats_window_size: int = 100
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    notes: Sequence[str] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        _check(self)

    def own_settings(self, policy_id: PolicyID) -> dict[str, Any]:
        """What is set for one policy alone, without its agents."""
        listed = {} if isinstance(self.policies, str) else self.policies.get(policy_id, {})
        settings = {**listed, **self.policy_settings.get(policy_id, {})}
        settings.pop("agents", None)
        return settings

    def agents_of(self, policy_id: PolicyID) -> Sequence[AgentID] | None:
        """The agents that are listed for a policy; None where none are."""
        listed = {} if isinstance(self.policies, str) else self.policies.get(policy_id, {})
        agents: Sequence[AgentID] | None = {**listed, **self.policy_settings.get(policy_id, {})}.get("agents")
        return agents

    def where(self, key: str | None) -> str:
        """Where a setting came from, as a prefix of a message: empty if it was nowhere set."""
        return f"{self.sources[key]}: " if key is not None and key in self.sources else ""


_WORDS = {
    "checkpoint_mode": ("max", "min"),
    "on_nan": ("stop", "rollback"),
    "evaluation_interval_unit": ("iterations", "timesteps"),
    "evaluation_duration_unit": ("episodes", "timesteps"),
}


def _check(config: TrainConfig) -> None:
    for name in ("n_timesteps", "n_envs", "n_threads", "stats_window_size", "checkpoint_keep", "evaluation_duration"):
        _require(name, getattr(config, name), _is_whole(getattr(config, name), 1), "a whole number of at least 1")
    at_once = config.n_parallel_updates
    _require(
        "n_parallel_updates", at_once, at_once is None or _is_whole(at_once, 1), "a whole number of at least 1, or null"
    )
    for name in ("seed", "evaluation_seed"):
        seed = getattr(config, name)
        accepted = seed is None or (_is_whole(seed, 0) and seed < 2**32)
        _require(name, seed, accepted, "a whole number from 0 to 4294967295")
    for name in ("init_from", "init_layers"):
        listed = getattr(config, name)
        is_list = isinstance(listed, (list, tuple)) and all(isinstance(text, str) for text in listed)
        _require(name, listed, listed is None or is_list, "a list of words, or null")
    for name in ("checkpoint_every", "evaluation_interval"):
        _require(name, getattr(config, name), _is_whole(getattr(config, name), 0), "a whole number of at least 0")
    for name, words in _WORDS.items():
        _require(name, getattr(config, name), getattr(config, name) in words, " or ".join(words))
    switch = config.evaluation_deterministic
    _require("evaluation_deterministic", switch, isinstance(switch, bool), "true or false")
    _require("extensions", config.extensions, _are_extensions(config.extensions), _EXTENSIONS)
    for name in ("policy_settings", "stop", "custom_metrics", "env_kwargs", "hyperparameters"):
        _require(name, getattr(config, name), isinstance(getattr(config, name), Mapping), "a mapping")
    for name in ("algo", "policy", "vectorizer", "device", "update_path", "checkpoint_metric"):
        _require(name, getattr(config, name), isinstance(getattr(config, name), str), "a word")
    for metric, value in config.stop.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _require("stop", f"{metric}={value}", number, "METRIC=NUMBER")
    named = [config.policy_settings] if isinstance(config.policies, str) else [config.policies, config.policy_settings]
    _require("policies", config.policies, isinstance(config.policies, (str, Mapping)), "a word or a mapping")
    for policy_id, settings in [item for mapping in named for item in mapping.items()]:
        require_ids("policy", [policy_id], "policies", _QUOTE)
        _require(f"policies.{policy_id}", settings, isinstance(settings, Mapping), "a mapping of settings")
        if "agents" in settings:
            _check_agents(config, policy_id, settings["agents"])
    trained = config.policies_to_train
    _require("policies_to_train", trained, trained is None or _is_list(trained), "a list of policy ids, or null")
    require_ids("policy", trained or (), "policies_to_train", _QUOTE)
    require_ids("custom metric", config.custom_metrics, "custom_metrics", _QUOTE)


_QUOTE = " (in YAML: in quotes)"


def _check_agents(config: TrainConfig, policy_id: PolicyID, agents: Any) -> None:
    key = f"{policy_id}.agents"
    if isinstance(config.policies, str):
        words = f"policies is {config.policies!r}; agents can be listed only where policies are"
        raise ConfigError(f"policy {policy_id!r}, agents: {words}", key=key)
    _require(key, agents, _is_list(agents), "a list of agent ids, such as [agent1, agent2]")
    require_ids("agent", agents, key, _QUOTE)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


_EXTENSIONS = (
    "a list of {until: N, n_timesteps: N}, integers of at least 1, until from the lowest to the highest; or null"
)


def _are_extensions(listed: Any) -> bool:
    if listed is None:
        return True
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, Mapping) for each in listed):
        return False
    if not all(set(each) == {"until", "n_timesteps"} for each in listed):
        return False
    if not all(_is_whole(number, 1) for each in listed for number in each.values()):
        return False
    return all(one["until"] < next_one["until"] for one, next_one in pairwise(listed))


def _is_whole(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _require(key: str, value: Any, accepted: bool, words: str) -> None:
    if not accepted:
        raise ConfigError(f"{key} is {_shown(value)}; accepted: {words}", key=key)


def _shown(value: Any) -> str:
    """A value for a message, cut short; it may be anything that a file can hold."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of too many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# --- Text to values --------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Plain data only, and 3e-4 is a number (YAML 1.1 wants 3.0e-4)."""


class _Dumper(yaml.SafeDumper):
    """Quotes the words that `_Loader` would take for numbers."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
    )


# Dates are words here: no setting is one.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}

_MAX_FILE_BYTES = 2**20
_SHOWN = 200  # characters of a wrong value in a message
_MAX_NODES = 100_000  # of a file: its aliases may stand for far more than it is long
# What PyYAML raises for files that are not valid, or too deep.
_YAML_ERRORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, RecursionError, OverflowError)


def _load(text: str) -> Any:
    """The data in a text.

    Raises:
        YAMLError: or another of `_YAML_ERRORS`: it is not valid.
    """
    data = yaml.load(text, _Loader)
    count, level = 0, [data]
    while level:
        count += len(level)
        if count > _MAX_NODES:
            raise yaml.YAMLError(f"it holds more than {_MAX_NODES} values")
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    return data


def parse_value(text: str) -> Any:
    """The value that a piece of YAML stands for: `3e-4`, `[64, 64]`, `true`, `lin_1e-3`.

    Raises:
        ConfigError: it is not valid YAML.
    """
    try:
        return _load(text)
    except _YAML_ERRORS as error:
        raise ConfigError(f"cannot read the value {text!r}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def read_yaml(path: Path) -> Any:
    """The data in a YAML file.

    Raises:
        ConfigError: the file is missing or is not valid YAML.
    """
    try:
        if path.is_dir():
            inside = path / "config.yaml"
            hint = f"; did you mean {inside}?" if inside.is_file() else "; accepted: a file"
            raise ConfigError(f"{path} is a folder{hint}", key="hparams")
        if path.stat().st_size > _MAX_FILE_BYTES or not path.is_file():
            raise ConfigError(f"{path} is not a file of at most {_MAX_FILE_BYTES} bytes", key="hparams")
        return _load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", key="hparams") from error
    except ConfigError:
        raise
    except _YAML_ERRORS as error:
        raise ConfigError(f"{path} is not valid YAML: {_one_line(error)}", key="hparams") from error


Hparams = str | Path | Mapping[str, Any]  # a file of settings by env id, or what it holds

# --- Sources of settings ---------------------------------------------------------------------------------------------


def preset_path(algo: str) -> Path:
    """The shipped presets of an algorithm: in the package when installed, beside it in a checkout."""
    name = f"{algo}.yml"
    installed = _PACKAGE / "hparams" / name
    return installed if installed.exists() else _PACKAGE.parent / "hparams" / name


def load_config(
    env: str | None,
    algo: str | None = None,
    hparams: Hparams | None = None,
    settings: Mapping[str, Any] | None = None,
    trusted_env: str | None = None,
    label: Callable[[str], str] = lambda key: f"--set {key}",
    **overrides: Any,
) -> TrainConfig:
    """The configuration from a preset, single settings and options, the later ones winning.

    Args:
        env: env id; None takes the only one in `hparams`.
        algo: algorithm; None: as in the file, or the default.
        hparams: a file to use instead of the shipped presets, or what such a file holds; it must have an entry for the
            env, or a section `default`.
        settings: by key as after `--set`: a field, a hyperparameter, `env.x`, `policy_kwargs.x` or `<policy>.x`.
            RLlib's names are understood, here and in files.
        trusted_env: an env id that the user has named besides; see below.
        label: where a key of `settings` was given, for messages.
        overrides: fields of `TrainConfig`; None means not given.

    An env that is code of somebody's own, `package.module:factory`, is taken from the user alone, as `env` or
    `trusted_env`: nothing is imported because a file says so.

    Raises:
        ConfigError: with the file or option and the key that is wrong.
    """
    named = [name for name in (env, trusted_env) if name is not None]
    notes: list[str] = []
    if hparams is not None:
        env, section, entry = entry_of(hparams, env, notes)
        path = _name_of(hparams)
        require_named(env, named, path)
    else:
        path = preset_path(algo or TrainConfig.algo)
        env, section, entry = _entry_of_preset(path, env)
    values = _Settings(env)
    values.add(with_text_ids({str(key): value for key, value in entry.items()}), lambda key: f"{path}, {section}.{key}")
    planned = values.fields.get("n_timesteps")
    options = {"algo": algo, **overrides}
    values.add({name: value for name, value in options.items() if value is not None}, _option)
    values.add(with_text_ids(settings or {}), label, dotted=True)
    if values.fields.get("n_timesteps") != planned:  # another plan than that of the extended run in the file
        values.fields.pop("extensions", None)
    refuse_unsupported(values.of_the_zoo, values.sources)
    try:
        return TrainConfig(sources=values.sources, notes=notes, **values.fields)
    except ConfigError as error:
        where = values.sources.get(error.key or "", "")
        raise ConfigError(f"{where}: {error}" if where else str(error), key=error.key) from error


def require_named(env: str, named: Sequence[str], path: str | Path) -> None:
    """Refuse an env of a file that is somebody's own code, unless the user has named it: a file imports nothing.

    Args:
        env: env id, as the file has it.
        named: env ids, as the user has given them.
        path: the file.

    Raises:
        ConfigError: with the option that names it.
    """
    if ":" not in env or env in named:
        return
    if not env.isprintable() or len(env) > _SHOWN:  # a file may hold anything
        raise ConfigError(f"{path} wants to import {_shown(env)}, which is no package.module:factory", key="env")
    other = f", which is not {named[0]}" if named else ""
    raise ConfigError(
        f"{path} wants to import {env}{other}: if you trust this code, add --env {shlex.quote(env)} to the command "
        f"(in Python, env={env!r})",
        key="env",
    )


_OPTION_NAMES = {"n_timesteps": "timesteps"}


def _option(name: str) -> str:
    return f"--{_OPTION_NAMES.get(name, name).replace('_', '-')}"


def _some(names: Iterable[Any]) -> str:
    """The first names of a file, cut short: it may hold anything."""
    listed = [str(name)[:60] for name in names]
    return ", ".join(listed[:20]) + (", ..." if len(listed) > 20 else "")


def _name_of(hparams: Hparams) -> str | Path:
    return "hparams" if isinstance(hparams, Mapping) else Path(hparams)


def entry_of(hparams: Hparams, env: str | None, notes: list[str]) -> tuple[str, str, Mapping[str, Any]]:
    """The env, the section of a file that is its, and what this holds.

    Args:
        hparams: the file, or what such a file holds.
        env: env id; None takes the only one.
        notes: what the user should know of it is added to them.

    Raises:
        ConfigError: the file cannot be read, or has no settings for the env.
    """
    path = _name_of(hparams)
    content = hparams if isinstance(hparams, Mapping) else read_yaml(Path(hparams))
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"{path} holds {type(content).__name__}; accepted: env id -> settings", key="hparams")
    if env is None:
        env = _only_env(path, content)
    if env in content:
        return env, env, _entry(path, env, content[env])
    close = difflib.get_close_matches(env, [str(name) for name in content], n=3)
    section = section_for(env, content)
    if section is None:
        hint = f"did you mean {', '.join(close)}?" if close else f"it has {_some(content)}"
        raise ConfigError(f"{path} has no settings for env {env!r}; {hint}", key="hparams")
    similar = f"; it has some for {', '.join(close)}" if close else ""
    notes.append(f"{path} has no settings for env {env!r}: those of its section {section!r} are used{similar}")
    return env, section, _entry(path, section, content[section])


def _only_env(path: str | Path, content: Mapping[Any, Any]) -> str:
    envs = [name for name in content if name not in (DEFAULT, ATARI)] or list(content)
    if len(envs) != 1:
        raise ConfigError(f"{path} has settings for {_some(content)}: say which env", key="env")
    return str(envs[0])


def _entry_of_preset(path: Path, env: str | None) -> tuple[str, str, Mapping[str, Any]]:
    if env is None:
        raise ConfigError("no env given; accepted: an env id, or --hparams with a file of one env", key="env")
    content = read_yaml(path) if path.exists() else {}
    return env, env, _entry(path, env, content.get(env, {}))


def _entry(path: str | Path, env: str, entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{path}, {env}: is {entry!r}; accepted: a mapping of settings", key="hparams")
    return entry


_FIELDS = frozenset(f.name for f in fields(TrainConfig)).difference(_FIELDS_OF_THE_FILE)
_INTEGER_FIELDS = frozenset(f.name for f in fields(TrainConfig) if f.type in ("int", "int | None"))


class _Settings:
    """Fields of a `TrainConfig` in the making.

    Attributes:
        fields: by name.
        of_the_zoo: keys of rl-baselines3-zoo's that are not fields.
        sources: where each setting came from.
    """

    def __init__(self, env: str) -> None:
        self.fields: dict[str, Any] = {"env": env, "hyperparameters": {}}
        self.of_the_zoo: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def add(self, given: Mapping[str, Any], where: Callable[[str], str], *, dotted: bool = False) -> None:
        """The settings of one source, which win over those before.

        Args:
            given: by the names that the source uses.
            where: a name in that source, for messages.
            dotted: whether `a.b` is a path, as after `--set`.

        Raises:
            ConfigError: a key or a value is malformed, or a setting is given by two names.
        """
        try:
            settings = canonical_settings(given)
            for key, (written, value) in settings.items():
                self.sources[key] = where(written)
                if dotted or key != written:
                    self.set_path(key, value)
                else:
                    self.put(key, value)
        except ConfigError as error:
            key = error.key or ""
            raise ConfigError(f"{self.sources.get(key) or where(key)}: {error}", key=error.key) from error

    def put(self, key: str, value: Any) -> None:
        """A field, or else a hyperparameter: whether the algorithm knows it shows when the policies are made."""
        if key in KEYS:
            self.of_the_zoo[key] = value
        elif key in _FIELDS:
            self.fields[key] = _field_value(key, value)
        else:
            self.fields["hyperparameters"][key] = value

    def set_path(self, key: str, value: Any) -> None:
        """A setting by its dotted key."""
        head, dot, rest = key.partition(".")
        if not head or (dot and not rest) or key == "env":
            raise ConfigError("accepted: a setting, env.NAME or POLICY.NAME", key=key)
        if not rest:
            self.put(head, value)
        elif head == "env":
            self.fields["env_kwargs"] = {**self.fields.get("env_kwargs", {}), rest: value}
        elif head == "policy_kwargs":
            _set_policy_kwarg(self.fields["hyperparameters"], rest, value)
        else:
            self._set_for_policy(key, value)

    def _set_for_policy(self, key: str, value: Any) -> None:
        """`POLICY.NAME` or `POLICY.policy_kwargs.NAME`, where the policy's id may have dots in it, too."""
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


def _field_value(name: str, value: Any) -> Any:
    """The value of a field in the form in which it is checked."""
    if name in _INTEGER_FIELDS:
        return as_integer(value)
    if name in ("policies", "policy_settings") and isinstance(value, Mapping):
        return {policy_id: _own_settings(settings) for policy_id, settings in value.items()}
    return value


def _own_settings(settings: Any) -> Any:
    """One policy's own settings by SB3's names; what is no mapping is refused later."""
    if not isinstance(settings, Mapping):
        return settings
    return canonical_hyperparameters({str(key): value for key, value in settings.items()})


def _set_policy_kwarg(settings: dict[str, Any], name: str, value: Any) -> None:
    settings["policy_kwargs"] = {**(settings.get("policy_kwargs") or {}), name: value}


def with_hyperparameters(config: TrainConfig, hyperparameters: Mapping[str, Any]) -> TrainConfig:
    """The same configuration with these hyperparameters for all policies."""
    return replace(config, hyperparameters=dict(hyperparameters))


def to_yaml(config: TrainConfig) -> str:
    """A file that `load_config` reads back as the same configuration."""
    values: dict[str, Any] = {}
    for item in fields(config):
        if item.name not in _FIELDS_OF_THE_FILE:
            values[item.name] = plain_data(getattr(config, item.name))
    values.update(plain_data(config.hyperparameters))
    return yaml.dump({config.env: values}, Dumper=_Dumper, sort_keys=False)


def plain_data(value: Any) -> Any:
    """Mappings, lists and numbers as YAML knows them.

    Raises:
        ConfigError: a value that a file cannot hold, such as a function.
    """
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if isinstance(value, str):
        return str(value)  # of a subclass, such as NumPy's
    if value is None or isinstance(value, (int, float, bool)):
        return value
    raise ConfigError(f"a setting is {value!r}; config.yaml holds numbers, words, lists and mappings only")
