"""What RLlib's names of settings mean here: those of its `AlgorithmConfig`s of PPO, APPO, IMPALA, DQN and SAC.

Every name of RLlib 2.60 without a leading underscore, and older ones that users still have in their files, is in one of
three tables: it means a setting, or it is always so here, or it has no counterpart. The documentation is generated from
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from marl_sb3.config.rllib.values import (
    Context,
    batch_per_env,
    by_name,
    deterministic,
    epsilon_greedy,
    epsilon_schedule,
    fragment,
    is_normalized,
    one_setting,
    updates_of_sac,
)

Convert = Callable[[Any, Context], Mapping[str, Any]]
Applies = Callable[[Mapping[str, Any]], bool]  # to an algorithm, by its table of hyperparameters


@dataclass(frozen=True)
class Meaning:
    """What a name means for some algorithms.

    Attributes:
        settings: the names of the settings here.
        algorithms: of which algorithms, in words.
        applies: the same as a function.
        convert: the value of RLlib -> settings with their values.
        note: how the value changes, in words; empty if it does not.
    """

    settings: tuple[str, ...]
    algorithms: str
    applies: Applies
    convert: Convert
    note: str = ""


_ROLLOUTS = "with rollouts (PPO, A2C, TRPO, ...)", lambda kinds: "gae_lambda" in kinds
_REPLAY = "with a replay buffer (DQN, SAC, ...)", lambda kinds: "buffer_size" in kinds
_Q = "DQN, QRDQN", lambda kinds: "exploration_fraction" in kinds
_SAC = "SAC, TQC", lambda kinds: "target_entropy" in kinds and "target_update_interval" in kinds
_A2C = "A2C", lambda kinds: "rms_prop_eps" in kinds

# --- Names that mean one setting for every algorithm that has it ------------------------------------------------------


@dataclass(frozen=True)
class Renamed:
    """A name that means one setting.

    Attributes:
        setting: its name here.
        value: the value of RLlib -> the value here.
        note: how the value changes, in words; empty if it does not.
    """

    setting: str
    value: Callable[[Any], Any] = lambda value: value
    note: str = ""


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
    Meaning(("batch_size",), *_REPLAY, one_setting("batch_size")),
)
DEPENDENT: Mapping[str, tuple[Meaning, ...]] = {
    "train_batch_size_per_learner": _BATCH,
    "train_batch_size": _BATCH,
    "rollout_fragment_length": (
        Meaning(("n_steps",), *_ROLLOUTS, fragment("n_steps"), "`auto`: not set"),
        Meaning(("train_freq",), *_REPLAY, fragment("train_freq"), "`auto`: not set"),
    ),
    "target_network_update_freq": (
        Meaning(("target_update_interval",), *_Q, one_setting("target_update_interval")),
        Meaning(("target_update_interval",), *_SAC, updates_of_sac, "0 is 1: with every gradient step; no others"),
    ),
    "n_step": (Meaning(("n_steps",), *_REPLAY, one_setting("n_steps")),),
    "epsilon": (
        Meaning(
            ("exploration_initial_eps", "exploration_final_eps", "exploration_fraction"),
            *_Q,
            epsilon_schedule,
            "`[[0, 1.0], [10000, 0.05]]`: the fraction is 10000 / `n_timesteps`",
        ),
        Meaning(("rms_prop_eps",), *_A2C, one_setting("rms_prop_eps")),
    ),
    "exploration_config": (
        Meaning(
            ("exploration_initial_eps", "exploration_final_eps", "exploration_fraction"),
            *_Q,
            epsilon_greedy,
            "`{type: EpsilonGreedy, ...}` without `warmup_timesteps`: the fraction is `epsilon_timesteps` / "
            "`n_timesteps`",
        ),
    ),
}

# Names that together mean the run's `n_envs`: the number of runners, 0 is 1, times the number of envs of each.
RUNNERS = ("num_env_runners", "num_rollout_workers", "num_workers")
ENVS_PER_RUNNER = ("num_envs_per_env_runner", "num_envs_per_worker")

# Names of mappings whose entries are names of this table; entries of the second one have its name before theirs.
NESTED: Mapping[str, str] = {"model": "", "model_config": "", "replay_buffer_config": "replay_buffer_config."}
