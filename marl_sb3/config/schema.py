"""Every setting of a run, its default and its checks; nothing else knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Annotated, Any, cast, get_type_hints

from marl_sb3.config.ids import require_ids
from marl_sb3.config.values import BOOLEAN, MAPPING, STRING, STRINGS, Accepted, integer, one_of, shown
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, PolicyID


def _are_extensions(listed: Any) -> bool:
    if listed is None:
        return True
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, Mapping) for each in listed):
        return False
    if not all(set(each) == {"until", "n_timesteps"} for each in listed):
        return False
    if not all(integer(1).test(steps) for each in listed for steps in each.values()):
        return False
    return all(one["until"] < next_one["until"] for one, next_one in pairwise(listed))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


_SEED = Accepted(
    "an integer from 0 to 4294967295", lambda seed: seed is None or integer(0, 2**32 - 1).test(seed), reads_floats=True
)
_EXTENSIONS = Accepted(
    "a list of {until: N, n_timesteps: N}, integers of at least 1, until from the lowest to the highest; or null",
    _are_extensions,
)
_POLICIES = Accepted("shared, per_agent or a mapping", lambda value: isinstance(value, (str, Mapping)))
_POLICY_IDS = Accepted("a list of policy ids", _is_list)
_AGENT_IDS = Accepted("a list of agent ids, such as [agent1, agent2]", _is_list)
_POLICY = Accepted("a mapping of settings", lambda value: isinstance(value, Mapping))
_QUOTE = " (in YAML: in quotes)"


_MOST_THREADS = 1024  # PyTorch starts as many at once, and the process dies if the system refuses one


@dataclass(frozen=True)
class CheckpointSettings:
    """When checkpoints are written, and which of them are kept.

    Attributes:
        every: iterations between checkpoints. 0: one at the end.
        keep: how many of the newest checkpoints are kept, besides the best one.
        metric: the metric that decides which checkpoint is the best.
        mode: whether the best has the highest (`max`) or the lowest (`min`) value of it.
    """

    every: Annotated[int, integer(0)] = 10
    keep: Annotated[int, integer(1)] = 3
    metric: Annotated[str, STRING] = "env_runners/episode_return_mean"
    mode: Annotated[str, one_of("max", "min")] = "max"


@dataclass(frozen=True)
class EvaluationSettings:
    """When the policies are evaluated during the training, and how.

    Attributes:
        interval: iterations, or env steps, between evaluations. 0: no evaluations.
        interval_unit: unit of the interval: `iterations`, or `timesteps` (env steps).
        duration: length of an evaluation.
        duration_unit: unit of it: `episodes`, or `timesteps` (env steps, which favours short episodes).
        seed: seed of the episodes of every evaluation. None: it follows from the run's seed.
        deterministic: whether evaluations take the most likely actions (true) or sample them (false).
    """

    interval: Annotated[int, integer(0)] = 0
    interval_unit: Annotated[str, one_of("iterations", "timesteps")] = "iterations"
    duration: Annotated[int, integer(1)] = 10
    duration_unit: Annotated[str, one_of("episodes", "timesteps")] = "episodes"
    seed: Annotated[int | None, _SEED] = None
    deterministic: Annotated[bool, BOOLEAN] = True


@dataclass(frozen=True)
class PolicySettings:
    """What one policy is made of.

    Attributes:
        algo: name of its algorithm.
        policy: SB3 policy class, by name.
        hyperparameters: SB3's arguments, by name; all of them where the configuration is resolved.
    """

    algo: str
    policy: str
    hyperparameters: Mapping[str, Any]


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
        vectorizer: how envs are stepped: `auto`, `batched`, `sync` or `supersuit`; see `make_vec_env`.
        device: `auto`, `cpu` or `cuda`.
        n_threads: threads of one operation of PyTorch or BLAS. Small networks are slower with more than one.
        n_parallel_updates: number of policies that are updated at the same time. None: as many as there are cores.
        update_path: how PPO updates: `auto`, `fused` or `torch`; see `marl_sb3.PPO`.
        on_nan: what a NaN or an infinity does: `stop` ends the run, `rollback` returns to the latest checkpoint, at
            most three times.
        checkpoints: when they are written, and which are kept.
        evaluation: when the policies are evaluated, and how.
        stop: values by metric; the training ends when one metric reaches its value.
        custom_metrics: numbers from the env's infos that become metrics, by name; see `InfoMetric`.
        stats_window_size: number of finished episodes that the metrics of episodes run over.
        env_kwargs: arguments of the env, by name.
        hyperparameters: SB3's arguments, by name, of each policy that sets no other.
        sources: where a setting came from, for messages; not part of the configuration.
        notes: what the user should know of how a file was read; not part of the configuration.
    """

    env: str
    n_timesteps: Annotated[int, integer(1)] = 1_000_000
    extensions: Annotated[Sequence[Mapping[str, int]] | None, _EXTENSIONS] = None
    n_envs: Annotated[int, integer(1)] = 8
    seed: Annotated[int | None, _SEED] = None
    algo: Annotated[str, STRING] = "ppo"
    policy: Annotated[str, STRING] = "MlpPolicy"
    policies: Annotated[str | Mapping[PolicyID, Mapping[str, Any]], _POLICIES] = "shared"
    policy_settings: Annotated[Mapping[PolicyID, Mapping[str, Any]], MAPPING] = field(default_factory=dict)
    policies_to_train: Annotated[Sequence[PolicyID] | None, _POLICY_IDS.or_null()] = None
    init_from: Annotated[Sequence[str] | None, STRINGS.or_null()] = None
    init_layers: Annotated[Sequence[str] | None, STRINGS.or_null()] = None
    vectorizer: Annotated[str, STRING] = "auto"
    device: Annotated[str, STRING] = "auto"
    n_threads: Annotated[int, integer(1, _MOST_THREADS)] = 1
    n_parallel_updates: Annotated[int | None, integer(1).or_null()] = None
    update_path: Annotated[str, STRING] = "auto"
    on_nan: Annotated[str, one_of("stop", "rollback")] = "stop"
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    stop: Annotated[Mapping[str, float], MAPPING] = field(default_factory=dict)
    custom_metrics: Annotated[Mapping[str, Mapping[str, Any]], MAPPING] = field(default_factory=dict)
    stats_window_size: Annotated[int, integer(1)] = 100
    env_kwargs: Annotated[Mapping[str, Any], MAPPING] = field(default_factory=dict)
    hyperparameters: Annotated[Mapping[str, Any], MAPPING] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    notes: Sequence[str] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, accepted in ACCEPTED.items():
            accepted.require(name, value_of(self, name))
        _check_stop(self)
        _check_ids(self)

    def own_settings(self, policy_id: PolicyID) -> dict[str, Any]:
        """What is set for one policy alone, without its agents."""
        listed = {} if isinstance(self.policies, str) else self.policies.get(policy_id, {})
        settings = {**listed, **self.policy_settings.get(policy_id, {})}
        settings.pop("agents", None)
        return settings

    def of_policy(self, policy_id: PolicyID) -> PolicySettings:
        """The settings of one policy: its own, and those of the run where it has the run's algorithm."""
        own = self.own_settings(policy_id)
        algo, policy = own.pop("algo", self.algo), own.pop("policy", self.policy)
        of_run = self.hyperparameters if algo == self.algo else {}
        return PolicySettings(algo, policy, {**of_run, **own})

    def agents_of(self, policy_id: PolicyID) -> Sequence[AgentID] | None:
        """The agents that are listed for a policy; None where none are."""
        listed = {} if isinstance(self.policies, str) else self.policies.get(policy_id, {})
        agents: Sequence[AgentID] | None = {**listed, **self.policy_settings.get(policy_id, {})}.get("agents")
        return agents

    def changed(self, values: Mapping[str, Any], source: str | None = None) -> TrainConfig:
        """The same with other values.

        Args:
            values: by the names of settings, such as `checkpoints.every`.
            source: where they come from, for messages; None: as before.

        Raises:
            ConfigError: a value is not accepted.
        """
        sources = self.sources if source is None else {**self.sources, **dict.fromkeys(values, source)}
        settings = {name: value_of(self, name) for name in ACCEPTED}
        return TrainConfig(self.env, sources=sources, notes=self.notes, **nested({**settings, **values}))

    def where(self, key: str | None) -> str:
        """Where a setting came from, as a prefix of a message: empty if it was nowhere set."""
        return f"{self.sources[key]}: " if key is not None and key in self.sources else ""


def _settings_of(section: type) -> Iterator[tuple[str, Accepted]]:
    """The names of all settings of a section, with what is accepted; `checkpoints.every` is in one within it."""
    for name, hint in get_type_hints(section, include_extras=True).items():
        if is_dataclass(hint):
            yield from ((f"{name}.{own}", accepted) for own, accepted in _settings_of(cast("type", hint)))
        yield from ((name, mark) for mark in getattr(hint, "__metadata__", ()))


SECTIONS: Mapping[str, type] = {"checkpoints": CheckpointSettings, "evaluation": EvaluationSettings}

# What is accepted, by the names of all settings: `n_envs`, `checkpoints.every`.
ACCEPTED: Mapping[str, Accepted] = dict(_settings_of(TrainConfig))


def names_in(section: str) -> list[str]:
    """The names of a section's settings, without its own."""
    return [name.removeprefix(f"{section}.") for name in ACCEPTED if name.startswith(f"{section}.")]


def value_of(config: TrainConfig, name: str) -> Any:
    """The value of a setting by its name, such as `checkpoints.every`."""
    return attrgetter(name)(config)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `TrainConfig` from settings by their names; a section has the defaults of what is not there."""
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    fields: dict[str, Any] = {}
    for name, value in values.items():
        section, _, own = name.partition(".")
        (sections[section] if own else fields)[own or name] = value
    return {**fields, **{section: SECTIONS[section](**own) for section, own in sections.items()}}


def _check_stop(config: TrainConfig) -> None:
    for metric, value in config.stop.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ConfigError(f"stop is {shown(f'{metric}={value}')}; accepted: METRIC=NUMBER", key="stop")


def _check_ids(config: TrainConfig) -> None:
    named = [config.policy_settings] if isinstance(config.policies, str) else [config.policies, config.policy_settings]
    for policy_id, settings in [item for mapping in named for item in mapping.items()]:
        require_ids("policy", [policy_id], "policies", _QUOTE)
        _POLICY.require(f"policies.{policy_id}", settings)
        if "agents" in settings:
            _check_agents(config, policy_id, settings["agents"])
    require_ids("policy", config.policies_to_train or (), "policies_to_train", _QUOTE)
    require_ids("custom metric", config.custom_metrics, "custom_metrics", _QUOTE)


def _check_agents(config: TrainConfig, policy_id: PolicyID, agents: Any) -> None:
    key = f"{policy_id}.agents"
    if isinstance(config.policies, str):
        words = f"policies is {config.policies!r}; agents can be listed only where policies are"
        raise ConfigError(f"policy {policy_id!r}, agents: {words}", key=key)
    _AGENT_IDS.require(key, agents)
    require_ids("agent", agents, key, _QUOTE)


def with_hyperparameters(config: TrainConfig, hyperparameters: Mapping[str, Any]) -> TrainConfig:
    """The same configuration with these hyperparameters for all policies."""
    return replace(config, hyperparameters=dict(hyperparameters))
