"""Every setting of a run, its default and its checks; nothing else knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from marl_sb3.config.values import shown
from marl_sb3.errors import ConfigError
from marl_sb3.ids import require_ids
from marl_sb3.types import AgentID, PolicyID

NOT_SETTINGS = ("env", "hyperparameters", "sources", "notes")  # fields that files do not have by these names


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
        _require(name, getattr(config, name), _is_whole(getattr(config, name), 1), "an integer of at least 1")
    at_once = config.n_parallel_updates
    _require(
        "n_parallel_updates", at_once, at_once is None or _is_whole(at_once, 1), "an integer of at least 1, or null"
    )
    for name in ("seed", "evaluation_seed"):
        seed = getattr(config, name)
        accepted = seed is None or (_is_whole(seed, 0) and seed < 2**32)
        _require(name, seed, accepted, "an integer from 0 to 4294967295")
    for name in ("init_from", "init_layers"):
        listed = getattr(config, name)
        is_list = isinstance(listed, (list, tuple)) and all(isinstance(text, str) for text in listed)
        _require(name, listed, listed is None or is_list, "a list of strings, or null")
    for name in ("checkpoint_every", "evaluation_interval"):
        _require(name, getattr(config, name), _is_whole(getattr(config, name), 0), "an integer of at least 0")
    for name, words in _WORDS.items():
        _require(name, getattr(config, name), getattr(config, name) in words, " or ".join(words))
    switch = config.evaluation_deterministic
    _require("evaluation_deterministic", switch, isinstance(switch, bool), "true or false")
    _require("extensions", config.extensions, _are_extensions(config.extensions), _EXTENSIONS)
    for name in ("policy_settings", "stop", "custom_metrics", "env_kwargs", "hyperparameters"):
        _require(name, getattr(config, name), isinstance(getattr(config, name), Mapping), "a mapping")
    for name in ("algo", "policy", "vectorizer", "device", "update_path", "checkpoint_metric"):
        _require(name, getattr(config, name), isinstance(getattr(config, name), str), "a string")
    for metric, value in config.stop.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _require("stop", f"{metric}={value}", number, "METRIC=NUMBER")
    named = [config.policy_settings] if isinstance(config.policies, str) else [config.policies, config.policy_settings]
    _require("policies", config.policies, isinstance(config.policies, (str, Mapping)), "shared, per_agent or a mapping")
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
        raise ConfigError(f"{key} is {shown(value)}; accepted: {words}", key=key)


def with_hyperparameters(config: TrainConfig, hyperparameters: Mapping[str, Any]) -> TrainConfig:
    """The same configuration with these hyperparameters for all policies."""
    return replace(config, hyperparameters=dict(hyperparameters))
