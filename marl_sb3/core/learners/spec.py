"""The specification of a policy: its algorithm, network and hyperparameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import ActionNoise

from marl_sb3.core.config.algorithms import (
    ADDED,
    AUTO,
    AlgorithmInfo,
    Decay,
    add_algorithm,
    algorithm_info,
    built_in,
    canonical_algorithm,
    info_of,
    known_name,
    parameters_of,
    saved_class,
    saved_name,
)
from marl_sb3.core.config.networks import CLASSES, STORED_POLICY_KWARGS
from marl_sb3.core.config.settings import ProcessingSettings, policy_sections, section_by_setting
from marl_sb3.core.config.values import Named, Strings, accepts, alternatives_of, plain_numbers, require
from marl_sb3.core.envs.registry import import_modules
from marl_sb3.core.policies import OF_THE_USER, registered_class, resolve_policy_kwargs
from marl_sb3.core.sb3.schedules import make_schedule
from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.core.state.state import State, StateReader, is_plain
from marl_sb3.doors import DIALECTS, POLICY_SECTIONS
from marl_sb3.errors import CheckpointError, ConfigError, did_you_mean, refuse, shown
from marl_sb3.types import PolicyID

if TYPE_CHECKING:
    from marl_sb3.extensions.exploration import Exploration


FITTING: Any = "marl_sb3.core.extractors.images:fitting_policy"  # chooses for `policy="auto"`


class PolicySpec:
    """The SB3 algorithm that trains one policy, with its hyperparameters.

    Args:
        algorithm: `marl_sb3.PPO` (default), another class of SB3, sb3-contrib or marl_sb3, a subclass, a registered
            algorithm, or a name as on the command line: `"ppo"` or `"PPO"`.
        policy: SB3's policy name; with RecurrentPPO, `MlpPolicy` is its `MlpLstmPolicy`. Or a policy class, or the name
            that `register_network` gave to one. `auto`: the one that fits the observations, see `fitting_policy`.
        exploration: chooses the actions in training, instead of the algorithm; None: the algorithm does.
        hyperparameters: SB3's constructor arguments; `learning_rate="lin_3e-4"` is a schedule. And the settings of
            `ProcessingSettings`, such as `normalize_observations=True`, and of other sections, such as
            `replay_data="recorded"`: by themselves, or in mappings `processing` and `data`.

    Attributes:
        algorithm: the class.
        info: what is known of it.
        policy: the class or the name that was given; for `auto`, the name of `MlpPolicy` until the spaces are known.
        is_auto: whether it was `auto`, and no other than `MlpPolicy` has been chosen.
        hyperparameters: SB3's constructor arguments.
        values: the same, with SB3's defaults for those that are not given.
        processing: what is done to its observations, rewards and actions.
        of_parts: settings of other sections that differ from their defaults, by name; each section is an attribute,
            too, such as `data`.
        has_own_network: whether the policy or its features extractor is a class of the user's.

    Raises:
        ConfigError: an unknown setting, or a value out of range.
    """

    processing: ProcessingSettings

    def __init__(
        self,
        algorithm: type[BaseAlgorithm] | AlgorithmInfo | str = "ppo",
        policy: str | type[Any] = AUTO,
        *,
        exploration: Exploration | None = None,
        **hyperparameters: Any,
    ) -> None:
        if exploration is not None and not isinstance(getattr(exploration, "learner_part", None), type):
            refuse(
                "exploration", exploration, "an object of a subclass of marl_sb3.Exploration in Python, in a PolicySpec"
            )
        self.exploration: Any = exploration
        if isinstance(algorithm, (str, AlgorithmInfo)):
            algorithm = algorithm_info(named_algorithm(algorithm)).algorithm_class
        sections, section_of = policy_sections(), section_by_setting()
        for section in sections.keys() & hyperparameters.keys():
            hyperparameters |= require(section, hyperparameters.pop(section), Named)
        self.info = info_of_class(algorithm)
        self.algorithm: type[BaseAlgorithm] = algorithm
        self.is_auto = isinstance(policy, str) and policy == AUTO
        self.policy = _policy_of(self.info, algorithm, "MlpPolicy" if self.is_auto else policy)
        given = plain_numbers(hyperparameters)  # it still has `lin_3e-4`
        self._given: dict[str, Any] = {}
        self._sections: dict[str, dict[str, Any]] = {section: {} for section in sections}
        for name, value in given.items():
            (self._sections[section_of[name]] if name in section_of else self._given)[name] = value
        self.of_parts: dict[str, Any] = {}
        self._beside: dict[str, Any] = {}  # the given settings of all sections
        for section, settings in self._sections.items():
            made = sections[section].of(settings)
            setattr(self, section, made)
            self._beside |= settings
            if section in POLICY_SECTIONS.names():
                self.of_parts |= made.changed()
        self.hyperparameters = resolve_hyperparameters(algorithm, self._given)
        self.values: Mapping[str, Any] = {**hyperparameter_defaults(algorithm), **self.hyperparameters}
        extractor = (self._given.get("policy_kwargs") or {}).get("features_extractor_class")
        has_own_extractor = extractor is not None and extractor not in CLASSES["features_extractor_class"]
        self.has_own_network = has_own_extractor or self.policy not in trait(algorithm, "policy_aliases")

    @property
    def policy_class(self) -> type[Any]:
        """The class of the policy."""
        if not isinstance(self.policy, str):
            return self.policy
        return registered_class("policy", self.policy) or self.algorithm.policy_aliases[self.policy]

    def with_defaults(self, defaults: Mapping[str, Any], *, override: bool = False) -> PolicySpec:
        """Return this spec with `defaults` for the settings that it does not have; with `override`, for all of them.

        Raises:
            ConfigError: an unknown setting, or a value out of range; also in those that the spec has.
        """
        given = {**self._given, **self._beside}
        section_of = section_by_setting()
        more = {name: value for name, value in defaults.items() if name not in section_of}
        resolve_hyperparameters(self.algorithm, more)
        if defaults.keys() <= given.keys() and not override:
            return self
        settings = {**given, **defaults} if override else {**defaults, **given}
        policy = AUTO if self.is_auto else self.policy
        return PolicySpec(self.algorithm, policy, exploration=self.exploration, **settings)

    def with_policy(self, policy: str, network: Mapping[str, Any]) -> PolicySpec:
        """Return this spec with another policy, and more of `policy_kwargs`."""
        kwargs = {**(self._given.get("policy_kwargs") or {}), **network}
        settings = {**self._given, **self._beside, **({"policy_kwargs": kwargs} if network else {})}
        return PolicySpec(self.algorithm, policy, exploration=self.exploration, **settings)

    def to_plain(self) -> State | None:
        """Return the spec as plain data for `from_plain`; None if it holds the user's own classes or functions."""
        name = saved_name(self.algorithm)
        is_named = name is not None and isinstance(self.policy, str) and self.exploration is None
        if not is_named or not is_plain([self._given, self._sections]):
            return None
        return {
            "algorithm": name,
            "policy": self.policy,
            "hyperparameters": self._given,
            **{section: values for section, values in self._sections.items() if values or section == "processing"},
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
        values = given.values()
        if values.get("policy_kwargs") is not None:
            own_policy = registered_class("policy", plain.string("policy")) is not None
            _check_network(given.fields("policy_kwargs"), own_policy=own_policy)
        own = dict(values)
        for name in values.keys() & section_by_setting().keys():  # which former versions had as hyperparameters
            del own[name]
        resolve_hyperparameters(algorithm, own)  # checked before `cls` is called: a name could be `algorithm`
        for section, settings in policy_sections().items():
            if section in plain:  # checkpoints of some versions have none
                saved, kinds = plain.fields(section), settings.kinds()
                for name, value in saved.values().items():
                    if name not in kinds:
                        raise saved.error(name, value, f"settings of {', '.join(kinds)}")
                    require(name, value, kinds[name])
                    values[name] = value
        return cls(algorithm, plain.string("policy"), **values)

    def __repr__(self) -> str:
        given = {**self.hyperparameters, **self._beside}
        settings = "".join(f", {name}={value!r}" for name, value in given.items())
        exploration = "" if self.exploration is None else f", exploration={type(self.exploration).__name__}"
        return f"PolicySpec({self.algorithm.__name__}, {self.policy!r}{exploration}{settings})"


def _policy_of(info: AlgorithmInfo, algorithm: type[BaseAlgorithm], policy: str | type[Any]) -> str | type[Any]:
    if not isinstance(policy, str) or registered_class("policy", policy) is not None:
        return policy
    aliases = trait(algorithm, "policy_aliases")
    meant = info.policy.replace("Mlp", policy.removesuffix("Policy"), 1)  # CnnPolicy may mean CnnLstmPolicy
    alias = next((name for name in (policy, meant) if name in aliases), None)
    if alias is None:
        accepted = ", ".join([*aliases, OF_THE_USER])
        kind = re.sub("^(Cnn|MultiInput)", "Mlp", policy)
        if others := [shown(name) for name, other in built_in().items() if other.policy == kind]:
            accepted += f"; or algorithm={' or '.join(others)}, which has it (in commands and files, algo)"
        raise ConfigError(f"unknown policy {policy!r} of {algorithm.__name__}; accepted: {accepted}", key="policy")
    return alias


def _check_network(network: StateReader, *, own_policy: bool) -> None:
    """Refuse settings of a network that PyTorch and SB3 would fail on.

    Arguments of classes that this process has registered may be anything.
    """
    values = network.values()
    resolve_policy_kwargs({name: value for name, value in values.items() if name in CLASSES})  # an unknown class
    of_the_user = {name for name in values if own_policy and name not in STORED_POLICY_KWARGS}
    if registered_class("features_extractor_class", values.get("features_extractor_class")) is not None:
        of_the_user.add("features_extractor_kwargs")
    for name in values.keys() - of_the_user:
        if name not in STORED_POLICY_KWARGS or not accepts(STORED_POLICY_KWARGS[name], values[name]):
            words = f"one of {', '.join(STORED_POLICY_KWARGS)}, as SB3 describes them; or pass `policies`"
            raise network.error(name, values[name], words)


_OF_SPEC = ("algorithm", "policy", "exploration")


def policy_specs(
    policies: str | Mapping[PolicyID, PolicySpec],
    policy_ids: Sequence[PolicyID],
    settings: Mapping[str, Any],
    n_envs: int,
    *,
    override: bool = False,
) -> Mapping[PolicyID, PolicySpec]:
    """Return the spec of each policy, with settings that it does not have.

    Args:
        policies: the specs; or a name such as `shared`, for equal ones of all policies.
        settings: by SB3's names or those of a dialect.
        override: whether specs get also those that they have.

    Raises:
        ConfigError: a setting is unknown, or its value is out of range; or it is what each spec has of its own.
    """
    if "algo" in settings:
        words = f"'algo' is a setting of commands and files; accepted here: algorithm={shown(settings['algo'])}"
        raise ConfigError(f"{words}, or a PolicySpec of its class for each policy", key="algo")
    own = {name: settings[name] for name in _OF_SPEC if name in settings}
    if isinstance(policies, str):
        policies = dict.fromkeys(policy_ids, PolicySpec(**own))
        settings = {name: value for name, value in settings.items() if name not in own}
    elif own:
        name = next(iter(own))
        words = f"{name}={shown(own[name])} is given for policies that have their own"
        raise ConfigError(f"{words}; accepted: {name}=... of the PolicySpec of each policy, in `policies`", key=name)
    for policy_id, spec in policies.items():
        if not isinstance(spec, PolicySpec):
            refuse(f"policy {policy_id!r}", spec, "a PolicySpec", "policies")
    made = dict(policies)
    for policy_id, spec in policies.items() if settings else ():
        translated = dict(settings)
        for dialect in DIALECTS:
            translated = dialect.translated(spec, translated, n_envs)
        made[policy_id] = spec.with_defaults(translated, override=override)
    return made


# --- The specs in a checkpoint ----------------------------------------------------------------------------------------


def specs_of_checkpoint(checkpoint: Checkpoint) -> dict[PolicyID, PolicySpec]:
    """Read the specs of the policies.

    Raises:
        CheckpointError: the specs are missing or not valid.
        ConfigError: a policy was made of classes or functions, which the checkpoint does not hold.
    """
    specs = StateReader(checkpoint.state).fields("specs")
    for policy_id in specs.names():
        if specs.value(policy_id) is None:
            words = (
                f"policy {policy_id!r} was made of classes or functions: pass `policies`, which no checkpoint holds, as"
            )
            raise ConfigError(f"{words} in policies={{{policy_id!r}: PolicySpec(...)}}", key="policies")
    try:
        return {policy_id: PolicySpec.from_plain(specs.fields(policy_id)) for policy_id in specs}
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.name}, {specs.where}: {error}") from error


# --- Hyperparameters -------------------------------------------------------------------------------------------------

# `MultiAgentAlgorithm` sets these itself: they belong to the run, not to a policy.
_OF_RUN = "policy env seed device verbose tensorboard_log stats_window_size rollout_buffer_class rollout_buffer_kwargs"
_RESERVED = frozenset([*_OF_RUN.split(), "monitor_wrapper", "_init_setup_model"])


def hyperparameter_defaults(algorithm_class: type[BaseAlgorithm]) -> dict[str, Any]:
    """Return the hyperparameters of an algorithm with SB3's defaults."""
    parameters = parameters_of(algorithm_class)
    defaults = {name: p.default for name, p in parameters.items() if name not in _RESERVED and p.default is not p.empty}
    return defaults | {name: None for name, beside in ADDED.items() if beside in defaults}


def resolve_hyperparameters(algorithm_class: type[BaseAlgorithm], values: Mapping[str, Any]) -> dict[str, Any]:
    """Check hyperparameters and convert text to the objects that SB3 takes.

    `lin_3e-4` becomes a schedule from 3e-4 down to 0, see `make_schedule`; `policy_kwargs: {activation_fn: relu}` the
    class.

    Raises:
        ConfigError: an unknown name, or a value out of range.
    """
    defaults, info = hyperparameter_defaults(algorithm_class), info_of(algorithm_class)
    if unknown := [name for name in values if name not in defaults]:
        raise ConfigError(_unknown_name(algorithm_class, unknown[0], defaults), key=unknown[0])
    resolved = dict(values)
    for name, value in values.items():
        # A subclass of the user's own may take arguments that no table has: they are not checked.
        kind = Any if info is None else info.kinds.get(name, Any)
        takes_schedules = Decay in alternatives_of(kind)
        if (takes_schedules and callable(value)) or (name == "action_noise" and isinstance(value, ActionNoise)):
            continue
        if name == "replay_buffer_class" and getattr(value, "__module__", "").startswith("stable_baselines3."):
            resolved[name] = value.__name__
        require(name, resolved[name], kind)
        if takes_schedules and isinstance(value, (str, list, tuple)):
            resolved[name] = make_schedule(value, name, kind)
        elif name == "policy_kwargs" and value is not None:
            resolved[name] = resolve_policy_kwargs(value)
    return resolved


def _unknown_name(algorithm_class: type[BaseAlgorithm], name: str, defaults: Mapping[str, Any]) -> str:
    if name in _RESERVED:
        return f"{name!r} is set by marl_sb3 for all policies; it is not a hyperparameter"
    for dialect in DIALECTS:
        if explained := dialect.explain(name):
            return explained
    of_runs = [setting for dialect in DIALECTS for setting in getattr(dialect, "of_runs", ())]
    if name in of_runs:
        return f"{name!r} is a setting of the whole run, which policies share; accepted: {name} without a policy"
    close = did_you_mean(name, [*defaults, *section_by_setting(), *of_runs], 3)
    hint = close or f"accepted: {', '.join(defaults)}"
    names = [named for dialect in DIALECTS if (named := dialect.names_of(name))]
    given_as = f" ({', '.join(names)})" if names else ""
    return f"unknown hyperparameter {shown(name)}{given_as} of {algorithm_class.__name__}; {hint}"


# --- Algorithms of the user's own ------------------------------------------------------------------------------------


def register_algorithm(info: AlgorithmInfo) -> AlgorithmInfo:
    """Make an algorithm of your own known by its name, for `--algo`, configurations, checkpoints and `PolicySpec`.

    It must be registered in each process that loads a run or a checkpoint with the name: a file only holds the name,
    and nothing is imported by it. A later registration replaces an earlier one.

    Args:
        info: what marl_sb3 has to know of it.

    Returns:
        `info`.

    Raises:
        ConfigError: the name is that of a built-in algorithm, or a field of `info` has another type.
    """
    _check(info)
    taken = canonical_algorithm(info.name)
    if taken in built_in():
        raise ConfigError(f"the algorithm {taken!r} is built in; choose another name than {info.name!r}", key="algo")
    add_algorithm(info)
    return info


def _check(info: AlgorithmInfo) -> None:
    if not isinstance(info, AlgorithmInfo):
        refuse("the algorithm", info, "an AlgorithmInfo", "algo")
    if not isinstance(info.name, str) or not info.name.replace("-", "_").isidentifier():
        refuse("the algorithm's name", info.name, "a name such as my_algo", "algo")
    for field in ("algorithm", "learner"):
        value = getattr(info, field)
        is_place = isinstance(value, str) and value.count(":") == 1
        if not (inspect.isclass(value) or is_place or (field == "learner" and value is None)):
            refuse(f"algorithm {info.name}: {field}", value, "a class, or the place of one as module:class", "algo")
    for field in ("hyperparameters", "metrics"):
        if not isinstance(getattr(info, field), Mapping):
            refuse(f"algorithm {info.name}: {field}", getattr(info, field), "a mapping by name", "algo")
    require(f"algorithm {info.name}: aliases", list(info.aliases), Strings, "algo")


def named_algorithm(algo: Any) -> Any:
    """Return the name of an algorithm that the user names on a command line or in Python; never one of a file.

    Args:
        algo: a name; `module:NAME` of an `AlgorithmInfo`, whose module is imported; an `AlgorithmInfo`, which is
            registered; or anything else, which is returned as it is.

    Raises:
        ConfigError: the module cannot be imported, or has no such `AlgorithmInfo`.
    """
    if isinstance(algo, AlgorithmInfo):
        return known_name(algo) or register_algorithm(algo).name
    if not isinstance(algo, str) or ":" not in algo:
        return canonical_algorithm(algo)
    import_modules([algo.partition(":")[0]], f"algo {shown(algo)}", "package.module:NAME of an AlgorithmInfo")
    _check(algorithm_info(algo))
    return algo


def info_of_class(algorithm: Any) -> AlgorithmInfo:
    """Return the algorithm of a class, or of its first base class with one.

    Raises:
        ConfigError: it is no class, or it is neither registered nor derived from a class of an algorithm.
    """
    info = info_of(algorithm) if isinstance(algorithm, type) else None
    if info is None:
        names = ", ".join(each.class_name for each in built_in().values())
        refuse("algorithm", algorithm, f"{names} and subclasses, and classes of marl_sb3.register_algorithm", "algo")
    return info
