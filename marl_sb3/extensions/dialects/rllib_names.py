"""What RLlib's names of settings mean here: those of its `AlgorithmConfig`s of PPO, APPO, IMPALA, DQN and SAC.

Every name of RLlib 2.60 without a leading underscore, and those of older versions that its tuned examples have, is in
one of three tables: it means a setting, or it is always so here, or it has no counterpart. The documentation is
generated from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from marl_sb3.core.config import Count, Fraction, Points, PositiveInt, accepts, require, shown, words
from marl_sb3.errors import ConfigError

# --- Values ----------------------------------------------------------------------------------------------------------


class Context(NamedTuple):
    """What a value may depend on; None: not known."""

    n_envs: int | None = None  # number of envs of the run


def batch_per_env(value: Any, context: Context) -> dict[str, Any]:
    """The steps of each env that make a batch."""
    require("train_batch_size", value, PositiveInt)
    if context.n_envs is None:
        raise ConfigError("RLlib's train_batch_size needs the number of envs, which is not known here; set n_steps")
    return {"n_steps": math.ceil(value / context.n_envs)}


def same(setting: str, unset: str | None = None) -> Callable[[Any, Context], dict[str, Any]]:
    """Return a conversion to one setting with the same value, or to none where that is `unset`: RLlib chooses it."""
    return lambda value, context: {} if value is not None and value == unset else {setting: value}


def updates_of_sac(value: Any, context: Context) -> dict[str, Any]:
    """RLlib counts env steps, SB3's SAC gradient steps: only "always" is the same."""
    if value in (0, 1) and not isinstance(value, bool):
        return {"target_update_interval": 1}
    raise ConfigError(
        f"RLlib's target_network_update_freq is {shown(value)}; accepted with SAC: 0; SB3's target_update_interval "
        "counts gradient steps instead of env steps"
    )


def epsilon_schedule(value: Any, context: Context) -> dict[str, Any]:
    """A constant, or points."""
    if not accepts(Fraction | Points, value):
        raise ConfigError(f"RLlib's epsilon is {shown(value)}; accepted: {words(Fraction | Points)}")
    return {"exploration_schedule": value}


def epsilon_greedy(value: Any, context: Context) -> dict[str, Any]:
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
    return epsilon_schedule([[warmup, first], [warmup + env_steps, last]], context)


def points_of(name: str, setting: str) -> Callable[[Any, Context], dict[str, Any]]:
    """Return a conversion of one of RLlib's schedules, a list of points or None, to one setting."""

    def converted(value: Any, context: Context) -> dict[str, Any]:
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


Convert = Callable[[Any, Context], Mapping[str, Any]]
Applies = Callable[[Mapping[str, Any]], bool]  # to an algorithm, by its table of hyperparameters


@dataclass(frozen=True)
class Meaning:
    """What a name means for some algorithms."""

    settings: tuple[str, ...]  # the names of the settings here
    algorithms: str  # of which algorithms, in words
    applies: Applies  # the same as a function
    convert: Convert  # the value of RLlib -> settings with their values
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

    values: tuple[Any, ...]  # these values; they need no setting
    why: str  # why there are no others, or what to set instead; a clause that follows a semicolon


_CUDA = "set device=cuda to put all networks on a GPU"
_SAC_RATES = "SB3 uses one learning rate for the actor, the critics and the entropy coefficient; set lr"
_QUANTILES = "set algo=qrdqn to learn the distribution of returns"
_LSTM = "for an LSTM, set algo=recurrent_ppo and policy_kwargs.lstm_hidden_size"
_FRAMES = "frames have observations alone; processing.previous_action and previous_reward append the latest ones"
_HEADS = "actor and critic have separate networks; add these layers to the end of fcnet_hiddens"

ALWAYS: Mapping[str, Always] = {
    "framework": Always(("torch",), "SB3 runs on PyTorch only"),
    "framework_str": Always(("torch",), "SB3 runs on PyTorch only"),
    "use_gae": Always((True,), "lambda=1 computes returns minus values, as RLlib does without GAE"),
    "use_critic": Always((True,), "all of SB3's on-policy algorithms have a critic"),
    "use_kl_loss": Always((False,), "SB3's PPO has no KL penalty; target_kl ends an update early"),
    "vf_clip_param": Always(
        (None, math.inf, "inf"),
        "RLlib limits the squared error by it; SB3's clip_range_vf limits the change of the predicted value instead",
    ),
    "grad_clip_by": Always(("global_norm",), "SB3 clips the norm of all gradients together"),
    "shuffle_batch_per_epoch": Always((True,), "SB3 shuffles in every epoch"),
    "batch_mode": Always(("truncate_episodes",), "rollouts have a fixed number of steps, and bootstrap at their end"),
    "count_steps_by": Always(("env_steps",), "the length of a run is counted in env steps"),
    "num_learners": Always((0, 1), "all policies are updated in one process"),
    "num_gpus": Always((0,), _CUDA),
    "num_gpus_per_learner": Always((0,), _CUDA),
    "num_gpus_per_env_runner": Always((0,), _CUDA),
    "explore": Always((True,), "training always explores; set evaluation.deterministic for evaluations"),
    "clip_actions": Always((True,), "SB3 always clips actions to the bounds of their Box"),
    "free_log_std": Always((True,), "the standard deviation of SB3's on-policy actors is no output of a network"),
    "use_lstm": Always((False,), _LSTM),
    "attention_use_n_prev_actions": Always((0,), _FRAMES),
    "attention_use_n_prev_rewards": Always((0,), _FRAMES),
    "head_fcnet_hiddens": Always(([],), _HEADS),
    "post_fcnet_hiddens": Always(([],), _HEADS),
    "conv_filters": Always((None,), "set policy=CnnPolicy, or register your own extractor with register_network"),
    "dueling": Always((False,), "SB3's DQN has no dueling networks"),
    "double_q": Always((False,), "SB3's DQN takes the maximum over the target network, without double Q-learning"),
    "noisy": Always((False,), "SB3's DQN explores by epsilon; set exploration_fraction"),
    "num_atoms": Always((1,), _QUANTILES),
    "td_error_loss_fn": Always(("huber",), "SB3's DQN uses the Huber loss"),
    "training_intensity": Always((None,), "set gradient_steps = training_intensity x train_freq x n_envs / batch_size"),
    "store_buffer_in_checkpoints": Always((True,), "checkpoints always hold the buffer, so that runs resume exactly"),
    "decay": Always((0.99,), "the RMSprop of SB3's A2C has a decay of 0.99"),
    "momentum": Always((0.0,), "the RMSprop of SB3's A2C has no momentum"),
    "evaluation_parallel_to_training": Always((False,), "evaluations run between iterations, not beside them"),
    "evaluation_num_env_runners": Always((0,), "the envs of evaluations are stepped in the process of the training"),
    "restart_failed_env_runners": Always((True,), "a worker that dies is always replaced; see max_worker_restarts"),
    "ignore_env_runner_failures": Always((False,), "an env that raises an exception ends the run with a message"),
    "replay_buffer_config.type": Always(
        (
            "ReplayBuffer",
            "EpisodeReplayBuffer",
            "MultiAgentReplayBuffer",
            "MultiAgentEpisodeReplayBuffer",
        ),
        "SB3 draws all transitions with the same probability",
    ),
    "replay_buffer_config.replay_sequence_length": Always((None, 1), "SB3 draws single transitions"),
    "replay_buffer_config.storage_unit": Always(("timesteps",), "SB3 draws single transitions"),
    "replay_buffer_config.alpha": Always((0, 0.0), "SB3 draws all transitions with the same probability"),
}

_WORKERS = "set n_workers to step the envs in several processes, or use --runners, and --ray for runners on Ray"
_FAULTS = "set worker_timeout_s and max_worker_restarts; an env that raises an exception ends the run"
_GPU = "set device=cuda"
_SYNCHRONOUS = "updates are synchronous: every rollout is played with the current weights"
_OFFLINE = (
    "the command imitate, imitation_data and replay_data learn from episodes of --record; evaluate --on estimates "
    "returns on them"
)
_RECORDING = "set --record DIR to write episodes, to HDF5 files"
_CALLBACKS = "pass callback=[...] to train() or learn(), or name callbacks: [module:Class]"
_CONNECTORS = "set processing, or wrap the env"
_IMPLEMENTATION = "it selects an implementation inside RLlib"
_ITERATION = "an iteration is n_steps of every env; set n_steps"
_LIBRARY = "pass it to MultiAgentAlgorithm in Python; spaces are those of the env"
_PRIORITIES = "SB3 draws all transitions with the same probability"
_INITIAL = "SB3 initialises layers itself; set policy_kwargs.ortho_init to switch orthogonal weights on or off"

# The reason -> the names.
_REASONS: Mapping[str, str] = {
    "SB3's PPO has no KL penalty; target_kl ends an update early": "kl_coeff kl_target",
    _SAC_RATES: "actor_lr critic_lr alpha_lr optimization optimization_config",
    "set policy_kwargs.net_arch={pi: [...], qf: [...]}": "policy_model_config q_model_config",
    _QUANTILES: "v_min v_max",
    "SB3's DQN explores by epsilon; set exploration_fraction": "sigma0",
    "SB3's DQN has no dueling networks": "hiddens",
    "SB3's DQN takes the action with the highest value": "categorical_distribution_temperature",
    _PRIORITIES: "replay_buffer_config.beta replay_buffer_config.prioritized_replay_alpha "
    "replay_buffer_config.prioritized_replay_beta replay_buffer_config.prioritized_replay_eps prioritized_replay "
    "prioritized_replay_alpha prioritized_replay_beta prioritized_replay_eps worker_side_prioritization "
    "prioritized_replay_beta_annealing_timesteps final_prioritized_replay_beta",
    "set policy_kwargs.optimizer_class and optimizer_kwargs": "optimizer",
    "set `algo` of the run or of a policy": "algo_class learner_class",
    "set policies, and the settings of one policy as POLICY.NAME": "multiagent",
    "the end of an episode is the env's: make it with a limit, as Gymnasium's TimeLimit does": "horizon soft_horizon "
    "no_done_at_end",
    _LSTM: "burn_in_len max_seq_len replay_sequence_length lstm_use_prev_action_reward",
    "set processing.resize, processing.frame_stack or processing.grayscale": "framestack dim zero_mean",
    "actor and critic have the activation function of fcnet_activation": "head_fcnet_activation post_fcnet_activation "
    "fusionnet_activation conv_activation fusionnet_hiddens",
    _INITIAL: "fcnet_kernel_initializer fcnet_kernel_initializer_kwargs fcnet_bias_initializer "
    "fcnet_bias_initializer_kwargs conv_kernel_initializer conv_kernel_initializer_kwargs conv_bias_initializer "
    "conv_bias_initializer_kwargs head_fcnet_kernel_initializer head_fcnet_kernel_initializer_kwargs "
    "head_fcnet_bias_initializer head_fcnet_bias_initializer_kwargs lstm_kernel_initializer "
    "lstm_kernel_initializer_kwargs lstm_bias_initializer lstm_bias_initializer_kwargs fcnet_weights_initializer "
    "fcnet_weights_initializer_config fcnet_bias_initializer_config post_fcnet_weights_initializer "
    "post_fcnet_weights_initializer_config post_fcnet_bias_initializer post_fcnet_bias_initializer_config "
    "lstm_weights_initializer lstm_weights_initializer_config lstm_bias_initializer_config "
    "conv_kernel_initializer_config conv_bias_initializer_config",
    "SB3's networks have no layer normalisation; register_network adds a features extractor of your own":
    "fcnet_use_layernorm head_fcnet_use_layernorm",
    "SB3 sets the limits of standard deviations itself": "log_std_clip_param",
    "register_network gives your class a name, for policy or policy_kwargs": "custom_model custom_model_config "
    "custom_action_dist custom_preprocessor no_final_linear encoder_latent_dim always_check_shapes",
    "it belongs to an algorithm that does not exist here": "before_learn_on_batch replay_mode replay_batch_size",
    _GPU: "num_gpus_per_worker num_gpus_per_offline_eval_runner local_gpu_idx",
    "set framework=torch, or leave it out: SB3 runs on PyTorch only": "use_pytorch eager",
    "set rollout_fragment_length": "sample_batch_size",
    "set policy_kwargs.net_arch={pi: [...], qf: [...]} and policy_kwargs.activation_fn": "actor_hiddens critic_hiddens "
    "actor_hidden_activation critic_hidden_activation",
    "set policy_kwargs.optimizer_kwargs={weight_decay: X}": "l2_reg",
    "set target_policy_noise": "target_noise smooth_target_policy",
    "set learning_starts": "pure_exploration_steps",
    "SB3 uses the Huber loss in DQN and the squared error in DDPG and TD3": "use_huber huber_threshold",
    _ITERATION: "min_time_s_per_iteration min_train_timesteps_per_iteration min_sample_timesteps_per_iteration "
    "timesteps_per_iteration min_iter_time_s min_time_s_per_reporting min_train_timesteps_per_reporting "
    "min_sample_timesteps_per_reporting",
    "set evaluation.interval and evaluation.duration": "evaluation_num_episodes "
    "custom_async_evaluation_function always_attach_evaluation_results enable_async_evaluation "
    "evaluation_sample_timeout_s evaluation_auto_duration_max_env_steps_per_sample "
    "evaluation_auto_duration_min_env_steps_per_sample evaluation_force_reset_envs_before_iteration in_evaluation "
    "evaluation_error_after_n_consecutive_skips evaluation_unhealthy_workers_timeout_s",
    "-v and -vv log more": "log_level",
    "the reference lists the metrics and checkpoints that are written": "log_sys_usage log_gradients "
    "keep_per_episode_custom_metrics export_native_model_files checkpoint_trainable_policies_only "
    "metrics_smoothing_episodes stats_cls_lookup monitor sampler_perf_stats_ema_coef",
    _LIBRARY: "policy_mapping_fn observation_space action_space input_spaces_jsonable is_atari",
    "use --video of the command evaluate": "render_env record_env",
    "use the command doctor to examine an env": "disable_env_checking auto_wrap_old_gym_envs",
    "wrap the env": "observation_fn",
    "set curriculum, or use CurriculumCallback": "env_task_fn",
    "set evaluation.function to MODULE:NAME": "custom_evaluation_function custom_eval_function",
    "the key is always action_mask": "action_mask_key",
    "the final observation is always used": "ignore_final_observation",
    "set on_nan=rollback to return to the latest checkpoint after a NaN": "torch_skip_nan_gradients",
    _CONNECTORS: "preprocessor_pref episode_lookback_horizon add_default_connectors_to_env_to_module_pipeline "
    "add_default_connectors_to_module_to_env_pipeline add_default_connectors_to_learner_pipeline enable_connectors "
    "learner_config_dict sample_collector use_state_preprocessor episodes_to_numpy",
    _CALLBACKS: "callbacks_class callbacks_on_algorithm_init callbacks_on_checkpoint_loaded "
    "callbacks_on_env_runners_recreated callbacks_on_environment_created callbacks_on_episode_created "
    "callbacks_on_episode_end callbacks_on_episode_start callbacks_on_episode_step callbacks_on_evaluate_end "
    "callbacks_on_evaluate_offline_end callbacks_on_evaluate_offline_start callbacks_on_evaluate_start "
    "callbacks_on_offline_eval_runners_recreated callbacks_on_sample_end callbacks_on_train_result",
    _SYNCHRONOUS: "vtrace vtrace_clip_rho_threshold vtrace_clip_pg_rho_threshold broadcast_interval "
    "circular_buffer_iterations_per_batch circular_buffer_num_batches use_circular_buffer learner_queue_size "
    "learner_queue_timeout max_requests_in_flight_per_aggregator_worker minibatch_buffer_size num_aggregation_workers "
    "num_gpu_loader_threads num_multi_gpu_tower_stacks replay_buffer_num_slots replay_proportion simple_queue_size "
    "target_update_frequency target_worker_clipping timeout_s_aggregator_manager timeout_s_sampler_manager",
    _OFFLINE: "input input_ input_compress_columns input_config input_evaluation input_filesystem "
    "input_filesystem_kwargs "
    "input_read_batch_size input_read_episodes input_read_method input_read_method_kwargs input_read_sample_batches "
    "input_read_schema iter_batches_kwargs map_batches_kwargs materialize_data materialize_mapped_data "
    "off_policy_estimation_methods offline_data_class offline_eval_batch_size_per_runner "
    "offline_eval_rl_module_inference_only offline_eval_runner_class offline_eval_runner_health_probe_timeout_s "
    "offline_eval_runner_restore_timeout_s offline_evaluation_duration offline_evaluation_interval "
    "offline_evaluation_parallel_to_training offline_evaluation_timeout_s offline_evaluation_type "
    "offline_loss_for_module_fn offline_sampling ope_split_batch_by_episode "
    "postprocess_inputs prelearner_buffer_class prelearner_buffer_kwargs prelearner_class "
    "prelearner_module_synch_period prelearner_use_recorded_module_states actions_in_input_normalized "
    "dataset_num_iters_per_eval_runner dataset_num_iters_per_learner shuffle_buffer_size num_offline_eval_runners "
    "broadcast_offline_eval_runner_states ignore_offline_eval_runner_failures "
    "max_num_offline_eval_runner_restarts max_requests_in_flight_per_offline_eval_runner "
    "num_cpus_per_offline_eval_runner custom_resources_per_offline_eval_runner restart_failed_offline_eval_runners "
    "validate_offline_eval_runners_after_construction",
    _RECORDING: "output output_compress_columns output_config output_filesystem output_filesystem_kwargs "
    "output_max_file_size output_max_rows_per_file output_write_episodes output_write_method "
    "output_write_method_kwargs output_write_remaining_data",
    _FAULTS: "ignore_worker_failures recreate_failed_workers max_num_worker_restarts delay_between_worker_restarts_s "
    "num_consecutive_worker_failures_tolerance worker_health_probe_timeout_s worker_restore_timeout_s "
    "delay_between_env_runner_restarts_s num_consecutive_env_runner_failures_tolerance "
    "env_runner_health_probe_timeout_s env_runner_restore_timeout_s restart_failed_sub_environments",
    _WORKERS: "num_cpus_per_worker num_cpus_for_driver custom_resources_per_worker evaluation_num_workers memory "
    "memory_per_worker object_store_memory object_store_memory_per_worker straggler_mitigation "
    "async_remote_worker_envs max_sample_requests_in_flight_per_worker validate_workers_after_construction "
    "num_data_load_threads num_data_loader_buffers "
    "num_aggregator_actors_per_learner num_cpus_for_main_process num_cpus_per_env_runner "
    "num_cpus_per_learner custom_resources_per_env_runner custom_resources_per_learner "
    "custom_resources_for_main_process placement_strategy extra_python_environs_for_driver "
    "extra_python_environs_for_worker max_requests_in_flight_per_aggregator_actor "
    "max_requests_in_flight_per_env_runner max_requests_in_flight_per_learner  "
    "remote_worker_envs remote_env_batch_wait_ms env_runner_cls "
    "create_local_env_runner create_env_on_local_worker validate_env_runners_after_construction "
    "update_worker_filter_stats use_worker_filter_stats synchronize_filters sync_filters_on_rollout_workers_timeout_s "
    "merge_env_runner_states broadcast_env_runner_states use_env_runner_state_server "
    "env_runner_state_server_max_concurrency compress_observations metrics_episode_collection_timeout_s "
    "collect_metrics_timeout fake_sampler worker_cls",
    "set vectorizer": "gym_env_vectorize_mode",
    _IMPLEMENTATION: "torch_compile_learner torch_compile_learner_dynamo_backend torch_compile_learner_dynamo_mode "
    "torch_compile_learner_what_to_compile torch_compile_worker torch_compile_worker_dynamo_backend "
    "torch_compile_worker_dynamo_mode torch_ddp_kwargs eager_max_retraces eager_tracing enable_tf1_exec_eagerly "
    "local_tf_session_args tf_session_args simple_optimizer enable_env_runner_and_connector_v2 "
    "enable_rl_module_and_learner policy_map_cache policy_map_capacity policy_states_are_swappable",
}  # fmt: skip

NO_COUNTERPART: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
REASONS: Mapping[str, list[str]] = {reason: names.split() for reason, names in _REASONS.items()}
