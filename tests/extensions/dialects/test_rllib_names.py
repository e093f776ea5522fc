"""Every public name of RLlib is there, or its error says what to write here; the lists are those of RLlib 2.60.

Names of the former API stack follow, which older tutorials have: `Trainer`, `Policy`, `Episode`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, MultiAgentCallback, RunningEpisode, make_vec_env
from marl_sb3.core.config.algorithms import algorithm_info, built_in, canonical_algorithm
from marl_sb3.core.envs.registry import env_factory
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.training.accepted import accepted_callbacks
from marl_sb3.extensions.dialects.names import metric_here, require_logged
from marl_sb3.extensions.dialects.table import COUNTERPARTS
from marl_sb3.runs.run import Run

PAGE = "see docs/coming_from/rllib.md"
METHODS = {
    of: {name: said.removesuffix(f"; {PAGE}") for name, said in names.items() if said.endswith(PAGE)}
    for of, names in COUNTERPARTS.items()
}

ALGORITHM = """add_module add_policy callbacks cleanup compute_actions compute_single_action config
default_resource_request env_creator env_runner env_runner_group env_to_module_connector eval_env_runner
eval_env_runner_group evaluate evaluate_offline evaluation_config evaluation_dataset evaluation_workers export_model
export_policy_checkpoint export_policy_model from_checkpoint from_state get_auto_filled_metrics
get_checkpointable_components get_config get_ctor_args_and_kwargs get_current_ip_pid get_default_config
get_default_policy_class get_metadata get_module get_policy get_state get_weights is_actor iteration learner_group
load_checkpoint local_replay_buffer log_result logdir merge_algorithm_configs metrics module_to_env_connector
offline_data offline_eval_runner_group remote_requests_in_flight remove_module remove_policy reset reset_config
resource_help restore restore_env_runners restore_from_path restore_offline_eval_runners restore_workers
reward_estimators save save_checkpoint save_to_path set_state set_weights setup spaces step stop train train_buffered
training_iteration training_step trial_id trial_name trial_resources validate_env workers compute_action import_model
import_policy_model_from_h5 restore_from_object save_to_object"""
POLICY = """action_space apply_gradients compute_actions compute_actions_from_input_dict compute_gradients
compute_log_likelihoods compute_single_action config device dist_class export_checkpoint export_model exploration
from_checkpoint get_exploration_state get_initial_state get_state get_weights import_model_from_h5 is_recurrent
learn_on_batch learn_on_batch_from_replay_buffer learn_on_loaded_batch loss make_model make_model_and_action_dist model
num_grad_updates num_state_tensors observation_space postprocess_trajectory set_state set_weights stats_fn
target_models catalog forward_exploration forward_inference forward_train get_exploration_action_dist_cls
get_inference_action_dist_cls get_train_action_dist_cls is_stateful model_config restore_from_path save_to_path
unwrapped"""
EPISODE = """agent_episode_ids agent_episodes agent_ids agent_steps agent_to_module_mapping_fn custom_data env_steps
env_t get_actions get_agents_that_stepped get_agents_to_act get_duration_s get_extra_model_outputs get_infos
get_observations get_return get_rewards get_sample_batch get_temporary_timestep_data get_terminateds get_truncateds id_
add_temporary_timestep_data is_done is_terminated is_truncated module_for module_id multi_agent_episode_id set_actions
set_extra_model_outputs set_observations set_rewards action_space observation_space active_agent_steps active_env_steps
agent_rewards custom_metrics env_id episode_id get_agents hist_data last_info_for length media policy_for policy_map
policy_mapping_fn postprocess_episode total_agent_steps total_env_steps total_reward user_data worker batch_builder
last_action_for last_observation_for last_pi_info_for last_raw_obs_for last_reward_for prev_action_for prev_reward_for
rnn_state_for"""
HOOKS = """on_algorithm_init on_checkpoint_loaded on_create_policy on_env_runners_recreated on_environment_created
on_episode_created on_episode_end on_episode_start on_episode_step on_evaluate_end on_evaluate_offline_end
on_evaluate_offline_start on_evaluate_start on_learn_on_batch on_offline_eval_runners_recreated
on_postprocess_trajectory on_sample_end on_sub_environment_created on_train_result on_workers_recreated on_checkpoint
on_experiment_end on_trial_complete on_trial_recover on_trial_restore on_trial_result on_trial_save on_trial_start"""
ALGORITHMS = """APPO BC CQL DQN DreamerV3 IMPALA IQL MARWIL PPO SAC TQC A2C A3C APEX APEX_DDPG ARS AlphaStar AlphaZero
ApexDQN BanditLinTS BanditLinUCB CRR DDPG DDPPO DT Dreamer ES Impala LeelaChessZero MADDPG MAML MBMPO PG QMIX R2D2
RNNSAC RandomAgent SimpleQ SlateQ TD3 contrib/MADDPG PPOConfig PPOTrainer"""
RESULTS = """config date done experiment_tag hostname iterations_since_restore node_ip
num_training_step_calls_per_iteration pid should_checkpoint time_since_restore time_this_iter_s time_total_s timestamp
training_iteration trial_id env_runners/agent_episode_returns_mean env_runners/agent_steps/agent1
env_runners/env_step_timer env_runners/episode_duration_sec_mean env_runners/episode_len_max
env_runners/episode_len_mean env_runners/episode_return_max env_runners/episode_return_mean
env_runners/module_episode_returns_mean/shared env_runners/num_agent_steps_sampled/agent1
env_runners/num_agent_steps_sampled_lifetime/agent1 env_runners/num_env_steps_sampled
env_runners/num_env_steps_sampled_lifetime env_runners/num_episodes env_runners/num_episodes_lifetime
env_runners/num_module_steps_sampled/shared env_runners/num_module_steps_sampled_lifetime/shared
env_runners/rlmodule_inference_timer env_runners/sample env_runners/weights_seq_no learners/shared/curr_entropy_coeff
learners/shared/curr_kl_coeff learners/shared/default_optimizer_learning_rate
learners/shared/diff_num_grad_updates_vs_sampler_policy learners/shared/entropy
learners/shared/gradients_default_optimizer_global_norm learners/shared/mean_kl_loss
learners/shared/num_module_steps_trained learners/shared/num_module_steps_trained_lifetime
learners/shared/num_non_trainable_parameters learners/shared/num_trainable_parameters learners/shared/policy_loss
learners/shared/total_loss learners/shared/vf_explained_var learners/shared/vf_loss learners/shared/vf_loss_unclipped
learners/__all_modules__/num_env_steps_trained learners/__all_modules__/num_module_steps_trained_lifetime
fault_tolerance/num_remote_worker_restarts num_env_steps_sampled_lifetime perf/cpu_util_percent perf/ram_util_percent
timers/env_runner_sampling_timer timers/learner_update_timer timers/training_iteration timers/training_step
agent_timesteps_total episode_len_mean episode_reward_max episode_reward_mean episode_reward_min episodes_this_iter
episodes_total hist_stats/episode_reward info/learner/default_policy/learner_stats/cur_kl_coeff
info/learner/default_policy/learner_stats/cur_lr info/learner/default_policy/learner_stats/entropy
info/learner/default_policy/learner_stats/vf_loss num_agent_steps_sampled num_env_steps_sampled num_env_steps_trained
num_healthy_workers policy_reward_mean/default_policy sampler_perf/mean_inference_ms
sampler_results/episode_reward_mean timers/learn_time_ms timesteps_this_iter timesteps_total"""
BUNDLE = """compute_action compute_actions compute_single_action config env_runner_group evaluate
export_policy_model forward_exploration forward_inference from_checkpoint get_config get_module get_policy get_weights
load_checkpoint restore restore_from_path save save_checkpoint save_to_path set_weights stop train training_step
workers"""
ENV = """close foreach_env foreach_env_runner foreach_worker get_agent_ids get_sub_environments local_env_runner
local_worker poll remote_workers reset reset_at send_actions step vector_reset vector_step with_agent_groups"""
SEARCH = """callbacks checkpoint_config config max_concurrent_trials max_failures metric name num_samples param_space
reuse_actors run_config run_or_experiment scheduler search_alg storage_path time_budget_s tune_config verbose
checkpoint_at_end checkpoint_freq keep_checkpoints_num local_dir resources_per_trial restore resume"""
STUDY = """best_checkpoint best_config best_dataframe best_result best_trial dataframe errors experiment_path
get_all_configs get_best_checkpoint get_best_config get_best_result get_best_trial get_dataframe get_last_checkpoint
num_errors num_terminated results results_df trial_dataframes trials"""


@pytest.fixture(scope="module")
def algorithm() -> MultiAgentAlgorithm:
    return MultiAgentAlgorithm(make_vec_env("arena", n_envs=1), "shared", n_steps=8, batch_size=8, device="cpu")


def study() -> Any:
    return object.__new__(marl_sb3.TuneStudy)


OBJECTS: Mapping[str, tuple[str, str, Callable[[MultiAgentAlgorithm], Any]]] = {
    "algorithm": (ALGORITHM, "algorithm", lambda algorithm: algorithm),
    "run": (ALGORITHM, "algorithm", lambda algorithm: Run(files=None, config=None, algorithm=algorithm)),  # type: ignore[arg-type]
    "bundle": (BUNDLE, "bundle", lambda algorithm: algorithm.bundle()),
    "env": (ENV, "env", lambda algorithm: algorithm.env),
    "policy": (POLICY, "policy", lambda algorithm: algorithm.policies["shared"]),
    "episode": (EPISODE, "episode", lambda _: RunningEpisode("0-1", 0, ["agent1"])),
    "study": (STUDY, "study", lambda _: study()),
}


def said_of(owner: Any, name: str) -> str | None:
    """The message of an owner without the attribute; None if it has it."""
    if name in dir(type(owner)) or name in vars(owner):
        return None
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    return str(caught.value)


@pytest.mark.parametrize("of", OBJECTS)
def test_a_name_of_rllibs_objects_is_there_or_its_error_says_what_is(of: str, algorithm: MultiAgentAlgorithm) -> None:
    names, table, make = OBJECTS[of]
    owner = make(algorithm)
    for name in names.split():
        said, has_it = said_of(owner, name), of == "run" and hasattr(algorithm, name)
        where = "of run.algorithm, " if of == "run" else ""
        here = f"its algorithm has it, run.algorithm.{name}" if has_it else f"{where}{METHODS[table].get(name)}; {PAGE}"
        assert said is None or re.fullmatch(rf".* has no (attribute )?'{name}': {re.escape(here)}", said), name
    if of != "run":
        assert [name for name in METHODS[table] if said_of(owner, name) is None] == []
        named = {found[1] for said in METHODS[table].values() if (found := re.match(r"(\w+)[(\[]", said))}
        elsewhere = {"EvaluationCallback", "PolicySpec", "on_trajectory"}
        assert [name for name in named - elsewhere if said_of(owner, name)] == []
    for unknown in ("of_nobody", "_private"):
        assert PAGE not in (said_of(owner, unknown) or PAGE)


@pytest.mark.parametrize("of", OBJECTS)
def test_the_error_of_a_property_is_not_hidden(
    of: str, algorithm: MultiAgentAlgorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = OBJECTS[of][2](algorithm)
    monkeypatch.setattr(type(owner), "faulty", property(lambda _: [].nothing), raising=False)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'list' object has no attribute 'nothing'"):
        owner.faulty  # noqa: B018 - it raises


@pytest.mark.parametrize("name", SEARCH.split())
def test_an_argument_of_tune_is_named(name: str) -> None:
    said = rf"tune\(\) got an unexpected keyword argument '{name}': {re.escape(METHODS['search'][name])}; {PAGE}"
    with pytest.raises(TypeError, match=said):
        marl_sb3.tune("arena", **{name: 1})  # type: ignore[arg-type]


def test_an_error_of_a_property_of_ones_own_algorithm_stays(algorithm: MultiAgentAlgorithm) -> None:
    class Own(marl_sb3.PPO):
        @property
        def margin(self) -> float:
            return self.nowhere  # type: ignore[no-any-return, attr-defined]

    own = object.__new__(Own)
    with pytest.raises(AttributeError, match=r"'Own' object has no attribute 'nowhere'$"):
        _ = own.margin


# --- Callbacks --------------------------------------------------------------------------------------------------------


def refusal(algorithm: MultiAgentAlgorithm, **methods: Any) -> str | None:
    """What is said of a callback with these methods before the training; None if it is accepted."""
    callback = type("Ported", (MultiAgentCallback,), methods)()
    try:
        accepted_callbacks(callback)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", HOOKS.split())
def test_a_hook_of_rllib_is_called_or_refused_with_the_name_here(name: str, algorithm: MultiAgentAlgorithm) -> None:
    ours = getattr(MultiAgentCallback, name, None)
    said = refusal(algorithm, **{name: ours or (lambda self, **_: None)})
    where = f"in its place: {METHODS['callback'].get(name)}; {PAGE}"
    assert (
        said is None
        if ours
        else said == f"callback Ported has RLlib's {name}, which is never called here; accepted {where}"
    )


def _former(
    self: Any, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: Any, **kwargs: Any
) -> None: ...
def _latest(
    self: Any, *, episode: Any, prev_episode_chunks: Any = (), metrics_logger: Any = None, **kwargs: Any
) -> None: ...
def _of_checkpoints(self: Any, *, algorithm: Any, **kwargs: Any) -> None: ...
def _of_evaluations(self: Any, *, algorithm: Any, evaluation_metrics: Any, **kwargs: Any) -> None: ...
def _fits(self: Any, episode: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        (
            "on_episode_end",
            _former,
            "on_episode_end(*, worker, base_env, policies, episode, env_index, **kwargs), which cannot be called; "
            "accepted: on_episode_end(episode); RLlib's worker: self.algorithm.env has the envs",
        ),
        (
            "on_episode_step",
            _latest,
            "on_episode_step(*, episode, prev_episode_chunks=(), metrics_logger=None, **kwargs), which cannot be "
            "called; accepted: on_episode_step(episode); RLlib's metrics_logger: self.logger.record(name, value)",
        ),
        (
            "on_checkpoint_loaded",
            _of_checkpoints,
            "accepted: on_checkpoint_loaded(); RLlib's algorithm: self.algorithm is",
        ),
        ("complete_result", _of_evaluations, "accepted: complete_result(result); RLlib's algorithm"),
        (
            "on_iteration_end",
            lambda self: True,
            "on_iteration_end(), which cannot be called; accepted: on_iteration_end(result)",
        ),
        ("on_episode_end", _fits, None),
        ("on_episode_end", staticmethod(lambda episode: None), None),
        ("on_episode_end", wraps(lambda self, episode, given: None)(lambda *_: None), None),
        ("on_episode_end", None, None),
    ],
)
def test_a_hook_with_the_parameters_of_rllib_is_refused_before_the_training(
    name: str, method: Any, message: str | None, algorithm: MultiAgentAlgorithm
) -> None:
    said = refusal(algorithm, **{name: method})
    assert said is None if message is None else said is not None and message in said


# --- Names of algorithms, metrics and modules -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS.split())
def test_an_algorithm_of_rllib_is_known_or_said_to_be_one(name: str) -> None:
    known = canonical_algorithm(name)
    if known in built_in():
        assert algorithm_info(known).name == known
        return
    with pytest.raises(ConfigError, match=rf"unknown algorithm '{name}': it is one of RLlib's; .*; {PAGE}"):
        algorithm_info(known)


def test_a_result_of_rllib_has_the_same_name_or_its_name_here(algorithm: MultiAgentAlgorithm) -> None:
    known = list(flatten(algorithm.train_iteration()))
    for name in RESULTS.split():
        if name in known:
            assert not metric_here(name)
            continue
        with pytest.raises(ConfigError, match=rf"unknown metric '{re.escape(name)}'; it is .* here.*; {PAGE}"):
            require_logged(name, known)
    ours = {name.replace("/agent1", "/AGENT").replace("/shared", "/POLICY") for name in known}
    named = {said.split()[2] for said in COUNTERPARTS["metric"].values()} - {
        "no",
        "learners/POLICY/ent_coef",
        "learners/POLICY/NAME",
    }
    sometimes = ("evaluation/", "fault_", "env_runners/custom")  # with evaluations, workers, metrics of the env
    assert {name for name in named if not name.startswith(sometimes)} - ours == set()
    assert metric_here("rollout/ep_rew_mean") == "it is env_runners/episode_return_mean here"  # SB3's


def test_an_env_of_rllib_without_ray_says_what_it_needs(in_tmp: Path) -> None:
    for line, env in (("", "of_ray:Echo"), ("def make(config):\n    ", "makes_ray:make")):
        Path(f"{env.partition(':')[0]}.py").write_text(f"{line}import ray.rllib\n", encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"No module named 'ray': .* pip install 'ray\[rllib\]'; .*; {PAGE}"):
            make_vec_env(env_factory(env), n_envs=1)
