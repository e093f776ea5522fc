"""The settings of a run while its sources are merged, and RLlib's names that are translated when all are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from marl_sb3.config.algorithms import kinds_of
from marl_sb3.config.compat.rllib import LATER, OF_RUN, number_of_envs, translated
from marl_sb3.config.compat.rllib_names import Context
from marl_sb3.config.compat.zoo import KEYS, translated_key
from marl_sb3.config.names import (
    HYPERPARAMETERS,
    as_integer,
    canonical_hyperparameters,
    canonical_name,
    canonical_settings,
)
from marl_sb3.config.provenance import Source, source_of
from marl_sb3.config.schema import ACCEPTED, BY_POLICY, SECTIONS, TrainConfig, names_in
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

    def add(self, given: Mapping[str, Any], where: Callable[[str], str], *, dotted: bool = False) -> None:
        """Add the settings of one source; they replace those of earlier sources.

        Args:
            dotted: whether `a.b` is a path, as after `--set`.

        Raises:
            ConfigError: a key or a value is malformed, or a setting is given by two names.
        """
        self._count += 1
        try:
            for key, (written, value) in canonical_settings(_unnested(given)).items():
                self.sources[key] = Source(where(written), written if dotted else "", self._count)
                if key in BY_POLICY:
                    self.sources.update(_sources_by_policy(written, value, where, self._count))
                for name, own in translated_key(key, value).items():
                    self.sources[name] = self.sources[key]
                    self.set_or_put(name, own, dotted=dotted or key != written)
        except ConfigError as error:
            key = error.key or ""
            raise ConfigError(f"{self.sources.get(key) or where(key)}: {error}", key=error.key) from error

    # --- RLlib's names whose meaning depends on other settings --------------------------------------------------------

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
        elif head == "stop":
            self.fields["stop"] = {**(self.fields.get("stop") or {}), rest: value}
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
