"""What RLlib's names of settings mean here: those of its `AlgorithmConfig`s of PPO, APPO, IMPALA, DQN, SAC and CQL.

Every name of RLlib 2.60 without a leading underscore, and those of older versions that its tuned examples have, is in
one of three tables: it means a setting, or it is always so here, or it has no counterpart. Those that need no code
are in the file of data beside this one. The documentation is generated from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from marl_sb3.core.config import Count, Fraction, Points, PositiveInt, accepts, require, words
from marl_sb3.errors import ConfigError, require_known, shown

PAGE = "docs/coming_from/rllib.md"  # where users of RLlib read on
_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

# --- Names that mean settings ----------------------------------------------------------------------------------------

NOT_SET = object()  # the value of a setting that stays as it is by default


@dataclass(frozen=True)
class Meaning:
    """What a name means; for some algorithms, or for all that have the setting."""

    setting: str  # its name here
    value: Callable[[Any, int], Any] = lambda value, _: value  # the value of RLlib, and the number of envs -> that here
    note: str = ""  # how the value changes, in words; empty if it does not
    algorithms: str = "all"  # of which algorithms, in words
    applies: Callable[[Mapping[str, Any]], bool] = lambda _: True  # the same of a table of hyperparameters


def _batch_per_env(value: Any, n_envs: int) -> Any:
    """The steps of each env that make a batch."""
    require("train_batch_size", value, PositiveInt)
    return math.ceil(value / n_envs)


def _or_auto(value: Any, _: int) -> Any:
    return NOT_SET if value == "auto" else value


def _updates_of_sac(value: Any, _: int) -> int:
    """RLlib counts env steps, SB3's SAC gradient steps: only "always" is the same."""
    if value in (0, 1) and not isinstance(value, bool):
        return 1
    raise ConfigError(
        f"RLlib's target_network_update_freq is {shown(value)}; accepted with SAC: 0; SB3's target_update_interval "
        "counts gradient steps instead of env steps"
    )


def _not_double(value: Any, _: int) -> Any:
    if value is False:
        return NOT_SET
    why = "SB3's DQN takes the maximum over the target network; recurrent_dqn, vdn and qmix have double Q-learning"
    raise ConfigError(f"RLlib's double_q is {shown(value)}; accepted: false; {why}")


def _epsilon_greedy(value: Any, _: int) -> Any:
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
    return _of_kind("epsilon", Fraction | Points)([[warmup, first], [warmup + env_steps, last]], 0)


def _sampled(value: Any, _: int) -> Any:
    """RLlib's class `StochasticSampling` of older versions, which algorithms with a distribution always do."""
    if value == {"type": "StochasticSampling"}:
        return NOT_SET
    accepted = "{type: StochasticSampling}, or EpsilonGreedy with DQN and QRDQN; noise is action_noise of TD3 and DDPG"
    raise ConfigError(f"RLlib's exploration_config is {shown(value)}; accepted: {accepted}")


def _of_kind(name: str, kind: Any) -> Callable[[Any, int], Any]:
    """Return a conversion of values of a kind, such as RLlib's schedules; None is not set."""

    def converted(value: Any, _: int) -> Any:
        if not accepts(kind, value):
            raise ConfigError(f"RLlib's {name} is {shown(value)}; accepted: {words(kind)}")
        return NOT_SET if value is None else value

    return converted


def _by_name(names: Mapping[Any, Any]) -> Callable[[Any, int], Any]:
    """Return a conversion of some values; all others are returned unchanged and checked later."""
    return lambda value, _: next(
        (ours for theirs, ours in names.items() if (type(theirs), theirs) == (type(value), value)), value
    )


def _is_normalized(value: Any, _: int) -> bool:
    """Whether an observation filter normalises."""
    known = {"MeanStdFilter": True, "ConcurrentMeanStdFilter": True, "NoFilter": False}
    require_known(str(value), known, f"RLlib's observation_filter is {shown(value)}")
    return known[str(value)]


def _clipped(value: Any, _: int) -> Any:
    """RLlib's true keeps the signs of rewards alone; a number clips to -X to X, here too."""
    if value is True:
        accepted = "a number X, which clips to -X to X, or false; the env_wrapper ClipRewardEnv keeps their signs alone"
        raise ConfigError(f"RLlib's clip_rewards is true; accepted: {accepted}")
    return None if value is False else value


def _deterministic(value: Any, _: int) -> bool:
    """Whether evaluations with this configuration are deterministic."""
    if not isinstance(value, Mapping) or [*value] != ["explore"] or not isinstance(value["explore"], bool):
        raise ConfigError(f"RLlib's evaluation_config is {shown(value)}; accepted: {{explore: true or false}}")
    return not value["explore"]


# Names that mean one setting for every algorithm that has it: those whose values stay as they are, and others.
RENAMED: Mapping[str, Meaning] = {
    **{name: Meaning(setting) for name, setting in _TABLES["renamed"].items()},
    "opt_type": Meaning("use_rms_prop", _by_name({"rmsprop": True, "adam": False}), "`rmsprop` is true"),
    "fcnet_activation": Meaning(
        "policy_kwargs.activation_fn", _by_name({"swish": "silu", "linear": "identity"}), "`swish` is `silu`"
    ),
    "twin_q": Meaning("policy_kwargs.n_critics", _by_name({True: 2, False: 1}), "true is 2, false 1"),
    "adam_epsilon": Meaning("policy_kwargs.optimizer_kwargs", lambda value, _: {"eps": value}, "`{eps: X}`"),
    "observation_filter": Meaning(
        "processing.normalize_observations", _is_normalized, "`MeanStdFilter` is true, `NoFilter` false"
    ),
    "initial_alpha": Meaning("ent_coef", lambda value, _: f"auto_{value}", "`auto_X`"),
    "num_steps_sampled_before_learning_starts": Meaning("learning_starts", note="in agent steps"),
    "max_num_env_runner_restarts": Meaning("max_worker_restarts", note="in a row"),
    "evaluation_config": Meaning("evaluation.deterministic", _deterministic, "`{explore: false}` is true"),
}

# Names whose values in RLlib become those here: most of the former, and one that means the same setting here.
VALUES: Mapping[str, Callable[[Any, int], Any]] = {
    **{name: meaning.value for name, meaning in RENAMED.items()},
    "clip_rewards": _clipped,
}

# Names of metrics of RLlib, old and new, and of SB3 -> in words what they are here; `config/` is all that begin so.
METRICS: Mapping[str, str] = {
    **{name: f"it is {ours} here" for ours, names in _TABLES["metrics of SB3"].items() for name in names},
    **{name: f"it is {ours} here; see {PAGE}" for ours, names in _TABLES["metrics"].items() for name in names},
    **{
        name: f"it is no metric here: {why}; see {PAGE}"
        for why, names in _TABLES["no metric"].items()
        for name in names
    },
}

# Names whose meaning depends on the algorithm or on other settings.
_ROLLOUTS = "with rollouts (PPO, A2C, TRPO, ...)", lambda kinds: "gae_lambda" in kinds
_REPLAY = "with a replay buffer (DQN, SAC, ...)", lambda kinds: "buffer_size" in kinds
_Q = "DQN, QRDQN", lambda kinds: "exploration_fraction" in kinds
_SAC = "SAC, TQC", lambda kinds: "target_entropy" in kinds and "target_update_interval" in kinds
_ALL = "all", lambda kinds: "learning_rate" in kinds
_BONUS = "with rollouts and an entropy bonus (PPO, A2C, ...)", lambda kinds: {"gae_lambda", "ent_coef"} <= kinds.keys()
_SEQUENCES = "RecurrentDQN, RecurrentSAC", lambda kinds: "burn_in" in kinds
_DOUBLE = "RecurrentDQN, VDN, QMIX", lambda kinds: "double_dqn" in kinds
_A2C = "A2C", lambda kinds: "rms_prop_eps" in kinds
_same = Meaning.value
_BATCH = (
    Meaning("n_steps", _batch_per_env, "divided by `n_envs`, rounded up", *_ROLLOUTS),
    Meaning("batch_size", _same, "", *_REPLAY),
)
_points = {name: _of_kind(name, Points | None) for name in ("lr_schedule", "entropy_coeff_schedule")}
DEPENDENT: Mapping[str, tuple[Meaning, ...]] = {
    "train_batch_size_per_learner": _BATCH,
    "train_batch_size": _BATCH,
    "rollout_fragment_length": (
        Meaning("n_steps", _or_auto, "`auto`: not set", *_ROLLOUTS),
        Meaning("train_freq", _or_auto, "`auto`: not set", *_REPLAY),
    ),
    "target_network_update_freq": (
        Meaning("target_update_interval", _same, "", *_Q),
        Meaning("target_update_interval", _updates_of_sac, "0 is 1: with every gradient step; no others", *_SAC),
    ),
    "n_step": (Meaning("n_steps", _same, "", *_REPLAY),),
    "burn_in_len": (Meaning("burn_in", _same, "", *_SEQUENCES),),
    "max_seq_len": (Meaning("sequence_length", _same, "", *_SEQUENCES),),
    "double_q": (
        Meaning("double_dqn", _same, "", *_DOUBLE),
        Meaning("double_dqn", _not_double, "`false`: not set", "all others", _ALL[1]),
    ),
    "epsilon": (
        Meaning("exploration_schedule", _of_kind("epsilon", Fraction | Points), "", *_Q),
        Meaning("rms_prop_eps", _same, "", *_A2C),
    ),
    "exploration_config": (
        Meaning("exploration_schedule", _epsilon_greedy, "`{type: EpsilonGreedy, ...}`: points", *_Q),
        Meaning("exploration_schedule", _sampled, "`{type: StochasticSampling}`: not set", "all others", _ALL[1]),
    ),
    "lr_schedule": (Meaning("learning_rate", _points["lr_schedule"], "`null`: not set", *_ALL),),
    "entropy_coeff_schedule": (Meaning("ent_coef", _points["entropy_coeff_schedule"], "`null`: not set", *_BONUS),),
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


ALWAYS: Mapping[str, Always] = {name: Always(*always) for name, always in _TABLES["always"].items()}
REASONS: Mapping[str, Sequence[str]] = _TABLES["no counterpart"]  # a reason, and what to set instead -> the names
NO_COUNTERPART: Mapping[str, str] = {name: reason for reason, names in REASONS.items() for name in names}

# Of an `algorithm`, one without envs (`bundle`), an `env` of several, a `policy` and an `episode` of RLlib, of a
# `callback` and its `parameter`s, of the arguments of a `search` and of a `study` of Tune, of `algo` in small letters,
# and of a `module`: name -> what does the same here.
METHODS: Mapping[str, Mapping[str, str]] = {
    of: {name: instead for instead, names in entries.items() for name in names}
    for of, entries in _TABLES["methods"].items()
}
