"""The specification of a policy: its algorithm, network and hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.config.algorithms import AlgorithmInfo, algorithm_info, saved_class, saved_name
from marl_sb3.config.compat.rllib_names import Context
from marl_sb3.config.networks import CLASSES, STORED_POLICY_KWARGS
from marl_sb3.config.schema import PROCESSING, ProcessingSettings, processing_settings, split_processing
from marl_sb3.config.settings import canonical_hyperparameters, translated_hyperparameters
from marl_sb3.config.values import Named, accepts, plain_numbers, require
from marl_sb3.errors import ConfigError
from marl_sb3.learners.registry import info_of_class, named_algorithm
from marl_sb3.policies.hyperparameters import hyperparameter_defaults, resolve_hyperparameters
from marl_sb3.policies.networks import OF_THE_USER, is_registered, registered_policy, resolve_policy_kwargs
from marl_sb3.storage.state import State, StateReader, is_plain
from marl_sb3.types import PolicyID


class PolicySpec:
    """The SB3 algorithm that trains one policy, with its hyperparameters.

    Args:
        algorithm: `marl_sb3.PPO` (default), another class of SB3, sb3-contrib or marl_sb3, a subclass, a registered
            algorithm, or a name as on the command line: `"ppo"` or `"PPO"`.
        policy: SB3's policy name, `MlpPolicy` by default; with RecurrentPPO, it is its `MlpLstmPolicy`. Or a policy
            class, or the name that `register_network` gave to one.
        hyperparameters: SB3's constructor arguments; `learning_rate="lin_3e-4"` is a schedule. And the settings of
            `ProcessingSettings`, such as `normalize_observations=True`: by themselves, or in a mapping `processing`.

    Attributes:
        algorithm: the class.
        info: what is known of it.
        policy: as given.
        hyperparameters: SB3's constructor arguments.
        processing: what is done to its observations, rewards and actions.

    Raises:
        ConfigError: an unknown setting, or a value out of range.
    """

    def __init__(
        self,
        algorithm: type[BaseAlgorithm] | AlgorithmInfo | str = "ppo",
        policy: str | type[Any] = "MlpPolicy",
        **hyperparameters: Any,
    ) -> None:
        if isinstance(algorithm, (str, AlgorithmInfo)):
            algorithm = algorithm_info(named_algorithm(algorithm)).algorithm_class
        if "processing" in hyperparameters:
            hyperparameters |= require("processing", hyperparameters.pop("processing"), Named)
        self.info = info_of_class(algorithm)
        self.algorithm: type[BaseAlgorithm] = algorithm
        self.policy = _policy_of(self.info, algorithm, policy)
        self._processing, self._given = split_processing(plain_numbers(hyperparameters))
        self.processing: ProcessingSettings = processing_settings(self._processing)
        self.hyperparameters = resolve_hyperparameters(algorithm, self._given)  # `_given` still has `lin_3e-4`

    @property
    def policy_class(self) -> type[Any]:
        """The class of the policy."""
        if not isinstance(self.policy, str):
            return self.policy
        return registered_policy(self.policy) or self.algorithm.policy_aliases[self.policy]

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """Its hyperparameters, with SB3's defaults for those that are not given."""
        return {**hyperparameter_defaults(self.algorithm), **self.hyperparameters}

    @property
    def has_own_network(self) -> bool:
        """Whether the policy or its features extractor is a class of the user's, of which nothing is known."""
        extractor = (self._given.get("policy_kwargs") or {}).get("features_extractor_class")
        known = extractor is None or extractor in CLASSES["features_extractor_class"]
        return not known or self.policy not in self.algorithm.policy_aliases

    def with_defaults(self, defaults: Mapping[str, Any]) -> PolicySpec:
        """Return this spec with `defaults` for the settings that it does not have.

        Raises:
            ConfigError: an unknown setting, or a value out of range; also in those that the spec has.
        """
        own = {**self._given, **self._processing}
        resolve_hyperparameters(self.algorithm, split_processing(defaults)[1])
        return self if defaults.keys() <= own.keys() else PolicySpec(self.algorithm, self.policy, **{**defaults, **own})

    def to_plain(self) -> State | None:
        """Return the spec as plain data for `from_plain`; None if it holds the user's own classes or functions."""
        name = saved_name(self.algorithm)
        if name is None or not isinstance(self.policy, str) or not is_plain([self._given, self._processing]):
            return None
        return {
            "algorithm": name,
            "policy": self.policy,
            "hyperparameters": self._given,
            "processing": self._processing,
        }

    @classmethod
    def from_plain(cls, plain: StateReader) -> PolicySpec:
        """Make a spec from what `to_plain` returned.

        Args:
            plain: the description, which is untrusted.

        Raises:
            CheckpointError: the data is not a valid spec.
            ConfigError: an unknown hyperparameter, or a value out of range.
        """
        given, algorithm = plain.fields("hyperparameters"), saved_class(plain.string("algorithm"))
        values = {name: given.value(name) for name in given.names()}
        if values.get("policy_kwargs") is not None:
            own_policy = registered_policy(plain.string("policy")) is not None
            _check_network(given.fields("policy_kwargs"), own_policy=own_policy)
        resolve_hyperparameters(algorithm, values)  # checked before `cls` is called: a name could be `algorithm`
        return cls(algorithm, plain.string("policy"), **values, **_read_processing(plain))

    def __repr__(self) -> str:
        given = {**self.hyperparameters, **self._processing}
        settings = "".join(f", {name}={value!r}" for name, value in given.items())
        return f"PolicySpec({self.algorithm.__name__}, {self.policy!r}{settings})"


def _policy_of(info: AlgorithmInfo, algorithm: type[BaseAlgorithm], policy: str | type[Any]) -> str | type[Any]:
    if not isinstance(policy, str) or registered_policy(policy) is not None:
        return policy
    aliases = getattr(algorithm, "policy_aliases", {})
    meant = info.policy.replace("Mlp", policy.removesuffix("Policy"), 1)  # CnnPolicy may mean CnnLstmPolicy
    found = next((name for name in (policy, meant) if name in aliases), None)
    if found is None:
        accepted = ", ".join([*aliases, OF_THE_USER])
        raise ConfigError(f"unknown policy {policy!r} of {algorithm.__name__}; accepted: {accepted}", key="policy")
    return found


def _read_processing(plain: StateReader) -> dict[str, Any]:
    """The settings of processing; none in checkpoints of versions that had none."""
    if "processing" not in plain:
        return {}
    given = plain.fields("processing")
    values = {name: given.value(name) for name in given.names()}
    for name, value in values.items():
        if name not in PROCESSING:
            raise given.error(name, value, f"settings of {', '.join(PROCESSING)}")
    processing_settings(values)
    return values


def _check_network(network: StateReader, *, own_policy: bool) -> None:
    """Refuse settings of a network that PyTorch and SB3 would fail on.

    Arguments of classes that this process has registered may be anything.
    """
    values = {name: network.value(name) for name in network.names()}
    resolve_policy_kwargs({name: value for name, value in values.items() if name in CLASSES})  # an unknown class
    own = {name for name in values if own_policy and name not in STORED_POLICY_KWARGS}
    if is_registered("features_extractor_class", values.get("features_extractor_class")):
        own.add("features_extractor_kwargs")
    for name in values.keys() - own:
        if name not in STORED_POLICY_KWARGS or not accepts(STORED_POLICY_KWARGS[name], values[name]):
            words = f"one of {', '.join(STORED_POLICY_KWARGS)}, as SB3 describes them; or pass `policies`"
            raise network.error(name, values[name], words)


def policy_specs(
    policies: str | Mapping[PolicyID, PolicySpec],
    policy_ids: Sequence[PolicyID],
    defaults: Mapping[str, Any],
    n_envs: int,
) -> dict[PolicyID, PolicySpec]:
    """Return the spec of each policy, with the defaults filled in.

    Args:
        defaults: settings of every policy that does not set its own, by SB3's names or RLlib's.
    """
    if isinstance(policies, str):
        spec = PolicySpec(**{name: defaults[name] for name in ("algorithm", "policy") if name in defaults})
        policies = dict.fromkeys(policy_ids, spec)
        defaults = {name: value for name, value in defaults.items() if name not in ("algorithm", "policy")}
    for policy_id, spec in policies.items():
        if not isinstance(spec, PolicySpec):
            raise ConfigError(f"policy {policy_id!r} is {spec!r}; accepted: a PolicySpec", key="policies")
    if not defaults:
        return dict(policies)
    return {policy_id: spec.with_defaults(_translated(spec, defaults, n_envs)) for policy_id, spec in policies.items()}


def _translated(spec: PolicySpec, given: Mapping[str, Any], n_envs: int) -> dict[str, Any]:
    """Return settings that may have RLlib's names by their names here, which may depend on the algorithm."""
    settings = canonical_hyperparameters(given, hyperparameter_defaults(spec.algorithm))
    return translated_hyperparameters(settings, spec.algorithm.__name__, spec.info.kinds, Context(n_envs))
