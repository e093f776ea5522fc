"""Every setting of a run, with its default and its checks; and where each was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, cast, get_type_hints

from msgspec import Meta

from marl_sb3.core.config.algorithms import AUTO
from marl_sb3.core.config.settings import ProcessingSettings, policy_sections, section_by_setting
from marl_sb3.core.config.values import (
    Count,
    FiniteFloat,
    Named,
    NumberOfEnvs,
    NumberOfWorkers,
    PositiveInt,
    PositiveSeconds,
    Seed,
    Strings,
    accepts,
    refusal,
    require,
    require_ids,
)
from marl_sb3.doors import Dialect
from marl_sb3.errors import ConfigError, refuse, shown
from marl_sb3.extensions.settings import CentralSettings, DataSettings, LearningSettings
from marl_sb3.league.settings import LeagueSettings
from marl_sb3.output import printable
from marl_sb3.types import AgentID, PolicyID

# --- Where a setting was given ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Where a setting was given."""

    label: str  # the place, for messages: `--set gamma`, `h.yml, arena.gamma`
    path: str = ""  # the dotted key with which it was given: `agent1.gamma`. Empty if it was given without one.
    order: int = 0  # number of the source that gave it; settings of later sources win
    may_import: bool = True  # whether the code that it names may be imported: not what a file alone names

    def __str__(self) -> str:
        """Return the label; what a terminal cannot print, or would obey, is escaped: a file may hold anything."""
        return printable(self.label).replace("\n", r"\n")


# First parts of keys of errors -> the setting that has what they name, if no other has.
_ELSEWHERE = {"env": "env_kwargs", "against": "league.opponents"}


def source_of(sources: Mapping[str, Source], key: str | None) -> Source | None:
    """Return where the setting that an error names was given.

    Args:
        sources: setting -> source; settings are named `gamma`, `checkpoints.every`, `pol1.gamma`, `policies.pol1`, ...
        key: key of the error. `pol1.gamma` finds the source of that policy's setting, or else of the setting for all
            policies; `pol1` finds the source of the setting of that policy that was given last, and
            `policy_kwargs.net_arch` that of `policy_kwargs`.
    """
    if not key:
        return None
    within = (name for name in sources if name.startswith(f"{key}."))
    candidates = [key, max(within, key=lambda name: sources[name].order, default=""), f"policies.{key}"]
    parts = key.split(".")  # a policy's id may have several parts
    for name in [".".join(parts[first:]) for first in range(len(parts))]:  # `key`, and the settings for all policies
        whole = name.rpartition(".")[0]
        candidates += [name, whole] if whole.rpartition(".")[2] == "policy_kwargs" else [name]
    candidates += [_ELSEWHERE.get(parts[0], ""), f"{section_by_setting().get(parts[-1])}.{parts[-1]}"]
    return next((sources[name] for name in candidates if name in sources), None)


def place_of_setting(sources: Mapping[str, Source], key: str | None) -> str:
    """Return where the setting of an error was given, as a prefix of its message, or ""; see `source_of`."""
    source = source_of(sources, key)
    return f"{str(source)[:_LONGEST_SOURCE]}: " if source else ""


# --- A run -----------------------------------------------------------------------------------------------------------


# `require_ids` checks the ids in mappings and lists, with better messages.
_Policies = Annotated[str | Mapping[Any, Any], Meta(description="shared, per_agent or a mapping")]
_PolicyIds = Annotated[Sequence[Any], Meta(description="a list of policy ids")]
_Played = Annotated[str | Sequence[Any], Meta(description="a policy id, or a list of these")]
_Mapping = Annotated[
    str | Mapping[Any, Any] | None,
    Meta(
        description="swap, a mapping of agent ids to a policy id or a list of these, MODULE:NAME of a function or an "
        "Assignment, or null"
    ),
]
_AgentIds = Annotated[Sequence[Any], Meta(description="a list of agent ids, such as [agent1, agent2]")]
_Policy = Annotated[Mapping[Any, Any], Meta(description="a mapping of settings")]
_ByPolicy = Annotated[Mapping[Any, Any], Meta(description="a mapping of policy ids to their settings")]
_ByPolicyTrue = Annotated[
    Mapping[Any, Any], Meta(description="a mapping of policy ids to true or false, such as {agent1: false}")
]
_ByMetric = Annotated[Mapping[Any, Any], Meta(description="a mapping of metric names to {key: ..., reduce: ...}")]
_Stop = Annotated[Mapping[Any, Any], Meta(description="a mapping of metric names to numbers")]
Extension = Annotated[Mapping[Literal["until", "n_timesteps", "settings"], Any], Meta(min_length=2)]
_Extensions = Annotated[
    Sequence[Extension] | None,
    Meta(
        description="a list of {until: N, n_timesteps: N}, integers of at least 1, until from the lowest to the "
        "highest, each with settings: {NAME: VALUE} or without; or null"
    ),
]
_Wrappers = Annotated[
    str | Sequence[Any] | Mapping[Any, Any] | None,
    Meta(description="a name of a wrapper, {name: arguments}, a list of these, or null"),
]
_Weights = Annotated[Sequence[float], Meta(min_length=1, description="a list of numbers, such as [1, 0.5]")]
_Callbacks = Annotated[
    Sequence[Any] | None, Meta(description="a list of MODULE:CLASS, or {MODULE:CLASS: {argument: value}}; or null")
]
TRACKERS = ("wandb", "mlflow", "trackio", "tensorboard")
_Tracker = Literal["wandb", "mlflow", "trackio", "tensorboard"]
_Track = Annotated[
    _Tracker | Sequence[_Tracker] | None,
    Meta(description=f"{', '.join(TRACKERS[:-1])} or {TRACKERS[-1]}, a list of these, or null"),
]
_Threads = Annotated[int, Meta(ge=1, le=1024)]  # PyTorch starts all at once, and dies if the system refuses one
_QUOTE = " (in YAML: in quotes)"

SWAP = "swap"  # as `mapping`

# The mappings from policy ids to settings of single policies.
BY_POLICY = ("policies", "policy_settings")


@dataclass(frozen=True)
class CheckpointSettings:
    """When checkpoints are written, and which of them are kept."""

    every: Count = 10  # iterations between checkpoints. 0: one at the end.
    keep: PositiveInt = 3  # how many of the newest checkpoints are kept, besides the best one
    # the metric that decides which checkpoint is the best. If it is a sum of returns and the agents' returns oppose
    # each other, commands take the latest checkpoint instead.
    metric: str = "env_runners/episode_return_mean"
    mode: Literal["max", "min"] = "max"  # whether the best has the highest (`max`) or the lowest (`min`) value of it


@dataclass(frozen=True)
class EvaluationSettings:
    """When the policies are evaluated during the training, and how."""

    interval: Count = 0  # iterations, or env steps, between evaluations. 0: no evaluations.
    # unit of the interval: `iterations`, or `timesteps` (env steps)
    interval_unit: Literal["iterations", "timesteps"] = "iterations"
    duration: PositiveInt = 10  # length of an evaluation
    # unit of it: `episodes`, or `timesteps` (env steps, which favours short episodes)
    duration_unit: Literal["episodes", "timesteps"] = "episodes"
    seed: Seed | None = None  # seed of the episodes of every evaluation. None: it follows from the run's seed.
    # whether evaluations take the most likely actions (true) or sample them (false); or a mapping of policies to these,
    # in which policies that are left out are true
    deterministic: bool | _ByPolicyTrue = True
    # also measure what each policy gains over a random one in its place, where the other agents act at random:
    # `evaluation/against_random/gain_mean`. It plays the `duration` once more for each agent.
    against_random: bool = False
    # `MODULE:NAME` of a function that evaluates instead: it gets the algorithm and the envs, and returns a mapping of
    # numbers, which are logged below `evaluation/`. None: the built-in evaluation.
    function: str | None = None


@dataclass(frozen=True)
class PolicySettings:
    """The settings of one policy."""

    algo: str  # name of its algorithm
    policy: str  # SB3 policy class, by name
    # SB3's arguments, by name, all of them in a resolved configuration; and those settings of all sections
    # that are not as by default
    hyperparameters: Mapping[str, Any]


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run."""

    env: str  # the id of the env
    n_timesteps: PositiveInt = 1_000_000  # number of env steps to train for
    # the phases of the run before the last one, in order: `{until: N, n_timesteps: N}` in env steps, and `settings:
    # {NAME: VALUE}` where some had other values than after the last one. Schedules lead to `n_timesteps` until the step
    # `until`; stop conditions apply after the last extension. None: the run was not extended, nor changed.
    extensions: _Extensions = None
    n_envs: NumberOfEnvs = 8  # number of envs that step together
    seed: Seed | None = None  # seed of the run. None: the run draws one and writes it to `config.yaml`.
    algo: str = "ppo"  # algorithm of each policy that sets no other
    policy: str = AUTO  # SB3 policy class, by name, of each policy that sets no other; `auto` fits the observations
    # `shared` (one policy for all agents), `per_agent` (one for each agent), or a mapping from policy ids to `{agents:
    # [...]}` and the policy's own settings. `teams: {blue: [a, b], red: [c]}` is the same without own settings.
    policies: _Policies = "shared"
    # settings of single policies, by policy id; `--set POLICY.NAME=VALUE` writes here
    policy_settings: _ByPolicy = field(default_factory=dict)
    # ids of the policies that learn; the others act and keep their weights. None: all learn.
    policies_to_train: _PolicyIds | None = None
    # which policy plays an agent, where `policies` does not say it or it changes by episode: `swap` (agents with the
    # same spaces swap policies), a mapping from agents to a policy or to a list from which each episode draws, or
    # `MODULE:NAME` of a function of the agent and the episode, or of an `Assignment`. None: as in `policies`.
    mapping: _Mapping = None
    # sources of the initial weights, each as after `--init-from`. None: random weights.
    init_from: Strings | None = None
    # patterns of the layers that are taken from them, such as `mlp_extractor.policy_net.*`. None: all.
    init_layers: Strings | None = None
    # wrappers of a Gymnasium env, the innermost first: names, or `{name: arguments}`, as in files of rl-baselines3-zoo;
    # the names are those of a table. None: no wrappers.
    env_wrapper: _Wrappers = None
    # weights of the numbers where an env pays several in a step; metrics have each of them. None: it pays one number.
    reward_weights: _Weights | None = None
    # env steps after which all agents of an env are truncated, if its episode is not over before. None: the env alone
    # ends its episodes.
    episode_horizon: PositiveInt | None = None
    env_state: bool = False  # whether steps have the envs' `state()`, which central critics then see
    # number of shards, each a fixed share of the envs with random streams of its own, which runners can roll out, in
    # processes of this machine or on Ray. 0: no shards; with `--runners` or `--ray`, the greatest divisor of `n_envs`
    # up to 64.
    n_shards: Count = 0
    # number of processes that step the envs; it changes no result. 0: the process of the training steps them. `auto`:
    # one for each core.
    n_workers: NumberOfWorkers = 0
    worker_timeout_s: PositiveSeconds = 300.0  # seconds that a call of an env may take before its worker is replaced
    # how often in a row a worker is replaced that does not complete a step; then the run ends
    max_worker_restarts: Count = 5
    vectorizer: str = "auto"  # how envs are stepped: `auto`, `batched`, `sync` or `supersuit`, as in `make_vec_env`
    # device of the networks: `cpu`, `cuda`, `cuda:N`, or `auto`: a GPU, if there is one, for convolutions and layers of
    # 512 units or more
    device: str = "auto"
    # threads of one operation of PyTorch or BLAS. Small networks are slower with more than one.
    n_threads: _Threads = 1
    # threads of updates on the fused path: of several policies at a time, or of one. None: as many as there are cores.
    n_parallel_updates: PositiveInt | None = None
    update_path: str = "auto"  # how marl_sb3's own algorithms update: `auto`, `fused` or `torch`; see `marl_sb3.PPO`
    # what a NaN or an infinity does: `stop` ends the run, `rollback` returns to the latest checkpoint, at most three
    # times
    on_nan: Literal["stop", "rollback"] = "stop"
    # what is done to the observations, rewards and actions of each policy that does not set it itself
    processing: ProcessingSettings = field(default_factory=ProcessingSettings)
    # recorded episodes that each policy learns from that does not set it itself
    data: DataSettings = field(default_factory=DataSettings)
    # critics of policies that see the whole env
    central: CentralSettings = field(default_factory=CentralSettings)
    # what they are paid beside the rewards of the env
    learning: LearningSettings = field(default_factory=LearningSettings)
    # when they are written, and which are kept
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    # when the policies are evaluated, and how
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    # opponents of the policies: earlier ones, and others
    league: LeagueSettings = field(default_factory=LeagueSettings)
    stop: _Stop = field(default_factory=dict)  # values by metric; the training ends when one metric reaches its value
    # numbers from the env's infos that become metrics, by name; see `InfoMetric`
    custom_metrics: _ByMetric = field(default_factory=dict)
    # your own callbacks, as `MODULE:CLASS` or `{MODULE:CLASS: arguments}`, in the order in which they are called. A
    # run that is resumed has those of its command line alone. None: no callbacks.
    callbacks: _Callbacks = None
    # tasks of the envs in the course of the training: `{setting: env.NAME or task, stages: [...], advance_at: {METRIC:
    # VALUE}}`; see `CurriculumCallback`. None: no curriculum.
    curriculum: Named | None = None
    stats_window_size: PositiveInt = 100  # number of finished episodes that the metrics of episodes run over
    # maximum number of agents, or policies, whose single metrics and histograms TensorBoard gets; with more it gets
    # quantiles, and one histogram. The other logs have all.
    tensorboard_agents: Count = 50
    # trackers that get metrics, settings, checkpoints and videos: `wandb`, `mlflow`, `trackio`, each with the extra of
    # its name, or `tensorboard`, whose files every run writes. None: no trackers.
    track: _Track = None
    # project, or experiment, of the run in these trackers. None: the one in the tracker's own environment variable, or
    # else `marl_sb3`.
    track_project: str | None = None
    env_kwargs: Named = field(default_factory=dict)  # arguments of the env, by name
    hyperparameters: Named = field(default_factory=dict)  # SB3's arguments, by name, of each policy that sets no other
    # the settings that are given for single policies, without their agents, by policy id; they follow from the others
    own_settings: dict[PolicyID, dict[str, Any]] = field(init=False, compare=False, repr=False, default_factory=dict)
    # the agents that are listed for policies, by policy id; they follow from the others
    agents: dict[PolicyID, Sequence[AgentID]] = field(init=False, compare=False, repr=False, default_factory=dict)
    # where a setting came from, for messages; not part of the configuration
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)
    # what the user should know of how a file was read; not part of the configuration
    notes: Sequence[str] = field(default=(), compare=False, repr=False)
    # whether rollouts whose length no source gives are shortened, as in an env without a preset; not part of the
    # configuration
    picks_rollouts: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, kind in ACCEPTED.items():
            require(name, attrgetter(name)(self), kind)
        for name in BY_POLICY:
            by_policy = getattr(self, name)
            for policy_id, settings in () if isinstance(by_policy, str) else by_policy.items():
                require_ids("policy", [policy_id], name, _QUOTE)
                require(f"policies.{policy_id}", settings, _Policy)
                self.own_settings.setdefault(policy_id, {}).update(settings)
                if "agents" in settings:
                    agents = self.own_settings[policy_id].pop("agents")
                    self.agents[policy_id] = _checked_agents(policy_id, agents, self.policies)
        _check_extensions(self.extensions or ())
        for metric, value in self.stop.items():
            if not accepts(FiniteFloat, value):
                refuse("stop", f"{metric}={value}", "METRIC=NUMBER")
        _check_mapping(self.mapping)
        require_ids("policy", self.policies_to_train or (), "policies_to_train", _QUOTE)
        require_ids("custom metric", self.custom_metrics, "custom_metrics", _QUOTE)

    @property
    def named_policies(self) -> str:
        """`policies` in a line: `shared`, `per_agent`, or the ids of the policies; and `mapping`, if any."""
        policies = self.policies if isinstance(self.policies, str) else ", ".join(self.policies)
        return policies if self.mapping is None else f"{policies} (mapping {self.mapping})"

    def code(self) -> dict[str, list[str]]:
        """Return the places of the user's code, `MODULE:NAME` each, by the settings that name any."""
        mapping = self.mapping if isinstance(self.mapping, str) and self.mapping != SWAP else None
        named = {
            "callbacks": list(map(name_of_callback, self.callbacks or ())),
            "evaluation.function": list(filter(None, [self.evaluation.function])),
            "mapping": list(filter(None, [mapping])),
            "league.opponents": [name for name in self.league.opponents or () if ":" in name],
        }
        return {key: places for key, places in named.items() if places}

    def of_policy(self, policy_id: PolicyID) -> PolicySettings:
        """Return the settings of one policy: its own, and the run's; hyperparameters if it has the run's algorithm."""
        own = dict(self.own_settings.get(policy_id, {}))
        algo, policy = own.pop("algo", self.algo), own.pop("policy", self.policy)
        of_run = self.hyperparameters if algo == self.algo else {}
        of_sections: dict[str, Any] = {}
        for section in policy_sections():
            if hasattr(self, section):  # a user's own sections are given to policies alone
                of_sections |= getattr(self, section).changed()
        return PolicySettings(algo, policy, {**of_run, **of_sections, **own})

    def changed(self, values: Mapping[str, Any], source: str | None = None) -> TrainConfig:
        """Return a copy with other values.

        Args:
            values: setting -> value; settings are named as in `checkpoints.every`.
            source: where the values come from, for messages; None: as before.
        """
        given = {} if source is None else dict.fromkeys(values, Source(source))
        settings = {name: value_of(self, name) for name in ACCEPTED}
        return replace(self, sources={**self.sources, **given}, **nested({**settings, **values}))

    def where(self, key: str | None) -> str:
        """Return where the setting of an error was given, as a prefix of its message, or ""; see `source_of`."""
        return place_of_setting(self.sources, key)


_LONGEST_SOURCE = 1000  # characters: a key in a file may have any length
_NOT_SETTINGS = ("env", "own_settings", "agents", "sources", "notes", "picks_rollouts")


def _settings_of(section: type) -> Iterator[tuple[str, Any]]:
    """Yield the names and kinds of all settings of a section, including those of inner sections."""
    for name, kind in get_type_hints(section, include_extras=True).items():
        if is_dataclass(kind):
            yield from ((f"{name}.{own}", own_kind) for own, own_kind in _settings_of(cast("type", kind)))
        elif name not in _NOT_SETTINGS:
            yield name, kind


SECTIONS = {name: cast("type", kind) for name, kind in get_type_hints(TrainConfig).items() if is_dataclass(kind)}

# Setting -> kind; settings are named `n_envs`, `checkpoints.every`, ...
ACCEPTED: Mapping[str, Any] = dict(_settings_of(TrainConfig))


class Offered(NamedTuple):
    """The option of commands that gives a setting."""

    shown: str  # the option as in the help text, `--n-envs E`
    default: str | None = None  # in that text; None: the default of the setting
    words: str | None = None  # that text without the default; None: what stands beside the setting
    choices: Sequence[str] | None = None  # the values that the option takes; None: those of the setting


# Setting -> its option. A run that goes on takes those of `FREE` and `n_timesteps`.
OFFERED: Mapping[str, Offered] = {
    "n_timesteps": Offered("--timesteps N", f"as in the preset, else {TrainConfig.n_timesteps}"),
    "n_envs": Offered("--n-envs E", f"as in the preset, else {TrainConfig.n_envs}"),
    "seed": Offered("--seed S", "random, written to config.yaml"),
    "policies": Offered(
        "--policies",
        "as in the preset, else shared",
        "one policy for all agents, or one for each",
        ("shared", "per_agent"),
    ),
    "init_from": Offered(
        "--init-from SOURCE",
        "random weights",
        "start from the weights of [POLICY=]PATH[:SOURCE_POLICY], where PATH is a run folder (the checkpoint that "
        "evaluate takes), a checkpoint or an SB3 zip; may be repeated; --set init_layers=[...] takes only some layers",
    ),
    "n_workers": Offered("--workers N"),
    "vectorizer": Offered("--vectorizer NAME"),
    "device": Offered("--device NAME"),
    "on_nan": Offered("--on-nan WHAT"),
    "checkpoints.every": Offered("--checkpoint-every K"),
    "track": Offered(
        "--track TRACKER",
        "none; with --resume, those of the run",
        f"send metrics, settings, checkpoints and videos to {', '.join(TRACKERS[:-1])} or {TRACKERS[-1]}, each an "
        "extra; may be repeated",
        TRACKERS,
    ),
}


class RunSettings(Dialect):
    """Makes the settings of runs known to messages about settings of policies."""

    of_runs = ACCEPTED


RUN_SETTINGS = RunSettings()


def names_in(section: str) -> list[str]:
    """Return the names of a section's settings, without the section's name."""
    return [name.removeprefix(f"{section}.") for name in ACCEPTED if name.startswith(f"{section}.")]


# Settings that change nothing of what is learned.
FREE = frozenset(
    [f"{section}.{name}" for section in ("checkpoints", "evaluation") for name in names_in(section)]
    + ["on_nan", "track", "n_workers", "worker_timeout_s", "max_worker_restarts", "n_parallel_updates"]
)


def value_of(config: TrainConfig, name: str) -> Any:
    """Return the value of a setting, such as `checkpoints.every`."""
    return attrgetter(name)(config)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Make the fields of a `TrainConfig` from setting -> value; a section has defaults for missing settings."""
    made: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in values.items():
        section, dot, own = name.partition(".")
        (sections[section] if dot else made)[own or name] = value
    return made | {section: SECTIONS[section](**given) for section, given in sections.items()}


def name_of_callback(entry: Any) -> str:
    """Return the name in an entry of `callbacks`: `MODULE:CLASS`, or `{MODULE:CLASS: arguments}`."""
    return str(next(iter(entry), "") if isinstance(entry, Mapping) else entry)


def _checked_agents(policy_id: PolicyID, agents: Any, policies: Any) -> Sequence[AgentID]:
    """Return the agents that are listed for a policy.

    Args:
        policies: of the run.

    Raises:
        ConfigError: the run has no list of policies, or these are no ids of agents.
    """
    key = f"{policy_id}.agents"
    if isinstance(policies, str):
        words = f"policies is {shown(policies)}; agents can be listed only where policies are"
        raise ConfigError(f"policy {policy_id!r}, agents: {words}", key=key)
    require_ids("agent", require(key, agents, _AgentIds), key, _QUOTE)
    return cast("Sequence[AgentID]", agents)


def _check_extensions(phases: Sequence[Extension]) -> None:
    ends = [accepts(PositiveInt, each.get(name)) for each in phases for name in ("until", "n_timesteps")]
    if (
        not all(ends)
        or not all(accepts(Named, each.get("settings", {})) for each in phases)
        or any(one["until"] >= following["until"] for one, following in pairwise(phases))
    ):
        raise refusal("extensions", phases, _Extensions)


def _check_mapping(mapping: Any) -> None:
    by_agent = mapping if isinstance(mapping, Mapping) else {}
    require_ids("agent", by_agent, "mapping", _QUOTE)
    for agent, played in by_agent.items():
        ids = require(f"mapping.{agent}", played, _Played, "mapping")
        require_ids("policy", [ids] if isinstance(ids, str) else ids, "mapping", _QUOTE)
