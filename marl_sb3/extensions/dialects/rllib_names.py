"""What RLlib's names of settings mean here: those of its `AlgorithmConfig`s of PPO, APPO, IMPALA, DQN and SAC.

Every name of RLlib 2.60 without a leading underscore, and those of older versions that its tuned examples have, is in
one of three tables: it means a setting, or it is always so here, or it has no counterpart; the latter two are in the
file of data beside this one. The documentation is generated from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from marl_sb3.core.config import Count, Fraction, Points, PositiveInt, accepts, require, shown, words
from marl_sb3.errors import ConfigError

# --- Values ----------------------------------------------------------------------------------------------------------


def batch_per_env(value: Any, n_envs: int) -> dict[str, Any]:
    """The steps of each env that make a batch."""
    require("train_batch_size", value, PositiveInt)
    return {"n_steps": math.ceil(value / n_envs)}


def same(setting: str, unset: str | None = None) -> Callable[[Any, int], dict[str, Any]]:
    """Return a conversion to one setting with the same value, or to none where that is `unset`: RLlib chooses it."""
    return lambda value, _: {} if value is not None and value == unset else {setting: value}


def updates_of_sac(value: Any, n_envs: int) -> dict[str, Any]:
    """RLlib counts env steps, SB3's SAC gradient steps: only "always" is the same."""
    if value in (0, 1) and not isinstance(value, bool):
        return {"target_update_interval": 1}
    raise ConfigError(
        f"RLlib's target_network_update_freq is {shown(value)}; accepted with SAC: 0; SB3's target_update_interval "
        "counts gradient steps instead of env steps"
    )


def epsilon_schedule(value: Any, n_envs: int) -> dict[str, Any]:
    """A constant, or points."""
    if not accepts(Fraction | Points, value):
        raise ConfigError(f"RLlib's epsilon is {shown(value)}; accepted: {words(Fraction | Points)}")
    return {"exploration_schedule": value}


def epsilon_greedy(value: Any, n_envs: int) -> dict[str, Any]:
    """RLlib's class `EpsilonGreedy` of older versions: a constant, then a line from the first epsilon to the last."""
    defaults = {"initial_epsilon": 1.0, "final_epsilon": 0.05, "epsilon_timesteps": 100_000, "warmup_timesteps": 0}
    given = dict(value) if isinstance(value, Mapping) else {}
    is_meant = str(given.pop("type", None)).rpartition(".")[2] == "EpsilonGreedy"
    known = {**defaults, **given}
    counts = all(accepts(Count, known[name]) for name in ("epsilon_timesteps", "warmup_timesteps"))
    if not is_meant or not counts or known.keys() != defaults.keys():
        accepted = (
            "{type: EpsilonGreedy, initial_epsilon: X, final_epsilon: Y, epsilon_timesteps: N, warmup_timesteps: N}; "
            "other classes are objects in Python: PolicySpec(exploration=marl_sb3.SoftQ(temperature=1.0))"
        )
        raise ConfigError(f"RLlib's exploration_config is {shown(value)}; accepted: {accepted}")
    first, last, env_steps, warmup = known.values()
    return epsilon_schedule([[warmup, first], [warmup + env_steps, last]], n_envs)


def points_of(name: str, setting: str) -> Callable[[Any, int], dict[str, Any]]:
    """Return a conversion of one of RLlib's schedules, a list of points or None, to one setting."""

    def converted(value: Any, n_envs: int) -> dict[str, Any]:
        if not accepts(Points | None, value):
            raise ConfigError(f"RLlib's {name} is {shown(value)}; accepted: {words(Points | None)}")
        return {} if value is None else {setting: value}

    return converted


def by_name(names: Mapping[Any, Any]) -> Callable[[Any], Any]:
    """Return a conversion of some values; all others are returned unchanged and checked later."""

    def converted(value: Any) -> Any:
        return next((ours for theirs, ours in names.items() if type(value) is type(theirs) and value == theirs), value)

    return converted


def is_normalized(value: Any) -> Any:
    """Whether an observation filter normalises."""
    known = {"MeanStdFilter": True, "ConcurrentMeanStdFilter": True, "NoFilter": False}
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"RLlib's observation_filter is {shown(value)}; accepted: {', '.join(known)}")
    return known[value]


def deterministic(value: Any) -> bool:
    """Whether evaluations with this configuration are deterministic."""
    if not isinstance(value, Mapping) or [*value] != ["explore"] or not isinstance(value["explore"], bool):
        raise ConfigError(f"RLlib's evaluation_config is {shown(value)}; accepted: {{explore: true or false}}")
    return not value["explore"]


# --- Names that mean settings ----------------------------------------------------------------------------------------


Convert = Callable[[Any, int], Mapping[str, Any]]
Applies = Callable[[Mapping[str, Any]], bool]  # to an algorithm, by its table of hyperparameters


@dataclass(frozen=True)
class Meaning:
    """What a name means for some algorithms."""

    settings: tuple[str, ...]  # the names of the settings here
    algorithms: str  # of which algorithms, in words
    applies: Applies  # the same as a function
    convert: Convert  # the value of RLlib, and the number of envs -> settings with their values
    note: str = ""  # how the value changes, in words; empty if it does not


_ROLLOUTS = "with rollouts (PPO, A2C, TRPO, ...)", lambda kinds: "gae_lambda" in kinds
_REPLAY = "with a replay buffer (DQN, SAC, ...)", lambda kinds: "buffer_size" in kinds
_Q = "DQN, QRDQN", lambda kinds: "exploration_fraction" in kinds
_SAC = "SAC, TQC", lambda kinds: "target_entropy" in kinds and "target_update_interval" in kinds
_ALL = "all", lambda kinds: "learning_rate" in kinds
_BONUS = "with rollouts and an entropy bonus (PPO, A2C, ...)", lambda kinds: {"gae_lambda", "ent_coef"} <= kinds.keys()
_A2C = "A2C", lambda kinds: "rms_prop_eps" in kinds

# --- Names that mean one setting for every algorithm that has it ------------------------------------------------------


@dataclass(frozen=True)
class Renamed:
    """A name that means one setting."""

    setting: str  # its name here
    value: Callable[[Any], Any] = lambda value: value  # the value of RLlib -> the value here
    note: str = ""  # how the value changes, in words; empty if it does not


RENAMED: Mapping[str, Renamed] = {
    "lr": Renamed("learning_rate"),
    "minibatch_size": Renamed("batch_size"),
    "sgd_minibatch_size": Renamed("batch_size"),
    "num_epochs": Renamed("n_epochs"),
    "num_sgd_iter": Renamed("n_epochs"),
    "lambda": Renamed("gae_lambda"),
    "lambda_": Renamed("gae_lambda"),
    "clip_param": Renamed("clip_range"),
    "entropy_coeff": Renamed("ent_coef"),
    "vf_loss_coeff": Renamed("vf_coef"),
    "grad_clip": Renamed("max_grad_norm"),
    "opt_type": Renamed("use_rms_prop", by_name({"rmsprop": True, "adam": False}), "`rmsprop` is true"),
    "fcnet_hiddens": Renamed("policy_kwargs.net_arch"),
    "fcnet_activation": Renamed(
        "policy_kwargs.activation_fn", by_name({"swish": "silu", "linear": "identity"}), "`swish` is `silu`"
    ),
    "lstm_cell_size": Renamed("policy_kwargs.lstm_hidden_size"),
    "twin_q": Renamed("policy_kwargs.n_critics", by_name({True: 2, False: 1}), "true is 2, false 1"),
    "adam_epsilon": Renamed("policy_kwargs.optimizer_kwargs", lambda value: {"eps": value}, "`{eps: X}`"),
    "lstm_use_prev_action": Renamed("processing.previous_action"),
    "lstm_use_prev_reward": Renamed("processing.previous_reward"),
    "observation_filter": Renamed(
        "processing.normalize_observations", is_normalized, "`MeanStdFilter` is true, `NoFilter` false"
    ),
    "normalize_actions": Renamed("processing.rescale_actions"),
    "initial_alpha": Renamed("ent_coef", lambda value: f"auto_{value}", "`auto_X`"),
    "replay_buffer_config.capacity": Renamed("buffer_size"),
    "num_steps_sampled_before_learning_starts": Renamed("learning_starts", note="in agent steps"),
    "env_config": Renamed("env_kwargs"),
    "algorithm_config_overrides_per_module": Renamed("policy_settings"),
    "metrics_num_episodes_for_smoothing": Renamed("stats_window_size"),
    "sample_timeout_s": Renamed("worker_timeout_s"),
    "max_num_env_runner_restarts": Renamed("max_worker_restarts", note="in a row"),
    "evaluation_config": Renamed("evaluation.deterministic", deterministic, "`{explore: false}` is true"),
}

# --- Names whose meaning depends on the algorithm or on other settings ------------------------------------------------

_BATCH = (
    Meaning(("n_steps",), *_ROLLOUTS, batch_per_env, "divided by `n_envs`, rounded up"),
    Meaning(("batch_size",), *_REPLAY, same("batch_size")),
)
DEPENDENT: Mapping[str, tuple[Meaning, ...]] = {
    "train_batch_size_per_learner": _BATCH,
    "train_batch_size": _BATCH,
    "rollout_fragment_length": (
        Meaning(("n_steps",), *_ROLLOUTS, same("n_steps", "auto"), "`auto`: not set"),
        Meaning(("train_freq",), *_REPLAY, same("train_freq", "auto"), "`auto`: not set"),
    ),
    "target_network_update_freq": (
        Meaning(("target_update_interval",), *_Q, same("target_update_interval")),
        Meaning(("target_update_interval",), *_SAC, updates_of_sac, "0 is 1: with every gradient step; no others"),
    ),
    "n_step": (Meaning(("n_steps",), *_REPLAY, same("n_steps")),),
    "epsilon": (
        Meaning(("exploration_schedule",), *_Q, epsilon_schedule),
        Meaning(("rms_prop_eps",), *_A2C, same("rms_prop_eps")),
    ),
    "exploration_config": (
        Meaning(("exploration_schedule",), *_Q, epsilon_greedy, "`{type: EpsilonGreedy, ...}`: points"),
    ),
    "lr_schedule": (Meaning(("learning_rate",), *_ALL, points_of("lr_schedule", "learning_rate"), "`null`: not set"),),
    "entropy_coeff_schedule": (
        Meaning(("ent_coef",), *_BONUS, points_of("entropy_coeff_schedule", "ent_coef"), "`null`: not set"),
    ),
}

# Names that together mean one network, see `rllib.network_settings`: first those of arguments of `attention`, with
# RLlib's defaults.
ATTENTION: Mapping[str, tuple[str, Any]] = {
    "attention_num_transformer_units": ("num_layers", 1),
    "attention_dim": ("embed_dim", 64),
    "attention_num_heads": ("num_heads", 1),
    "attention_head_dim": ("head_dim", 32),
    "attention_position_wise_mlp_dim": ("feedforward_dim", 32),
    "attention_init_gru_gate_bias": ("gate_bias", 2.0),
}
MEMORY: Mapping[str, int] = {"attention_memory_inference": 50, "attention_memory_training": 50}
_EXTRACTOR = "policy_kwargs.features_extractor_class"
_ARGUMENTS = "policy_kwargs.features_extractor_kwargs"
# Name -> settings, for which algorithms, and how the value changes.
NETWORK: Mapping[str, tuple[str, str, str]] = {
    "vf_share_layers": (
        _EXTRACTOR,
        _ROLLOUTS[0],
        "true: `mlp`, with the layers of `fcnet_hiddens` and `fcnet_activation`; `net_arch` is `[]`",
    ),
    "use_attention": (
        _EXTRACTOR,
        "all",
        "true: `attention` with RLlib's defaults and sinusoidal positions, of the frames alone; the layers of "
        "`fcnet_hiddens` and `fcnet_activation` come before it, and `net_arch` is `[]` then",
    ),
    **{name: (_ARGUMENTS, "all", f"`{argument}`") for name, (argument, _) in ATTENTION.items()},
    **dict.fromkeys(
        MEMORY, ("processing.frame_stack", "all", "N earlier observations are N + 1 frames; both must be the same")
    ),
}

# Names that together mean the run's `n_envs`: the number of runners, 0 is 1, times the number of envs of each.
RUNNERS = ("num_env_runners", "num_rollout_workers", "num_workers")
ENVS_PER_RUNNER = ("num_envs_per_env_runner", "num_envs_per_worker")

# Names of mappings whose entries are names of this table; entries of the second one have its name before theirs.
NESTED: Mapping[str, str] = {"model": "", "model_config": "", "replay_buffer_config": "replay_buffer_config."}


# --- Names that mean no setting --------------------------------------------------------------------------------------


class Always(NamedTuple):
    """A name of RLlib of which only some values are accepted, because they describe what always happens here."""

    values: Sequence[Any]  # these values; they need no setting
    why: str  # why there are no others, or what to set instead; a clause that follows a semicolon


_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
ALWAYS: Mapping[str, Always] = {name: Always(*always) for name, always in _TABLES["always"].items()}
REASONS: Mapping[str, Sequence[str]] = _TABLES["no counterpart"]  # a reason, and what to set instead -> the names
NO_COUNTERPART: Mapping[str, str] = {name: reason for reason, names in REASONS.items() for name in names}
