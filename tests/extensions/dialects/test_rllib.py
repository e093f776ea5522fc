"""RLlib's names are translated by one table, the same way in files, after `--set` and in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import stable_baselines3

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.learners.spec import policy_specs
from marl_sb3.core.sb3.schedules import Progress
from marl_sb3.extensions.dialects.names import FLAT_NAMES, canonical_name, is_of_rllib, unnested
from marl_sb3.extensions.dialects.table import NAMES, NESTED, PARTS, RENAMED
from marl_sb3.extensions.dialects.table import TABLES as NAMED
from marl_sb3.extensions.fast.builtin import ALGORITHMS as INFOS
from marl_sb3.runs.schema import ACCEPTED, value_of
from marl_sb3.runs.settings import load_config
from marl_sb3.tools.tuning.space import parse_space

# Name -> a value of RLlib, and the same as hyperparameters or fields here.
RENAMED_VALUES: dict[str, tuple[Any, Any]] = {
    "lr": (1e-3, {"learning_rate": 1e-3}),
    "minibatch_size": (64, {"batch_size": 64}),
    "sgd_minibatch_size": (64, {"batch_size": 64}),
    "num_epochs": (2, {"n_epochs": 2}),
    "num_sgd_iter": (2, {"n_epochs": 2}),
    "lambda": (0.9, {"gae_lambda": 0.9}),
    "lambda_": (0.9, {"gae_lambda": 0.9}),
    "clip_param": (0.3, {"clip_range": 0.3}),
    "entropy_coeff": (0.01, {"ent_coef": 0.01}),
    "vf_loss_coeff": (0.7, {"vf_coef": 0.7}),
    "grad_clip": (0.4, {"max_grad_norm": 0.4}),
    "opt_type": ("rmsprop", {"use_rms_prop": True}),
    "fcnet_hiddens": ([8], {"policy_kwargs": {"net_arch": [8]}}),
    "fcnet_activation": ("swish", {"policy_kwargs": {"activation_fn": "silu"}}),
    "lstm_cell_size": (8, {"policy_kwargs": {"lstm_hidden_size": 8}}),
    "twin_q": (True, {"policy_kwargs": {"n_critics": 2}}),
    "adam_epsilon": (1e-5, {"policy_kwargs": {"optimizer_kwargs": {"eps": 1e-5}}}),
    "initial_alpha": (0.5, {"ent_coef": "auto_0.5"}),
    "dueling": (True, {"policy_kwargs": {"dueling": True}}),
    "prioritized_replay": (True, {"replay": "prioritized"}),
    "prioritized_replay_alpha": (0.5, {"replay_alpha": 0.5}),
    "replay_buffer_config.prioritized_replay_alpha": (0.5, {"replay_alpha": 0.5}),
    "replay_buffer_config.alpha": (0.5, {"replay_alpha": 0.5}),
    "replay_buffer_config.type": ("PrioritizedEpisodeReplayBuffer", {"replay": "prioritized"}),
    "prioritized_replay_beta": (0.5, {"replay_beta": 0.5}),
    "replay_buffer_config.prioritized_replay_beta": (0.5, {"replay_beta": 0.5}),
    "replay_buffer_config.beta": (0.5, {"replay_beta": 0.5}),
    "replay_buffer_config.capacity": (99, {"buffer_size": 99}),
    "replay_buffer_config.replay_burn_in": (4, {"burn_in": 4}),
    "num_steps_sampled_before_learning_starts": (9, {"learning_starts": 9}),
}
FIELD_VALUES: dict[str, tuple[Any, str, Any]] = {
    "lstm_use_prev_action": (True, "processing.previous_action", True),
    "lstm_use_prev_reward": (True, "processing.previous_reward", True),
    "observation_filter": ("MeanStdFilter", "processing.normalize_observations", True),
    "normalize_actions": (True, "processing.rescale_actions", True),
    "env_config": ({"height": 3}, "env_kwargs", {"height": 3}),
    "algorithm_config_overrides_per_module": ({"p": {"lr": 0.1}}, "policy_settings", {"p": {"learning_rate": 0.1}}),
    "metrics_num_episodes_for_smoothing": (7, "stats_window_size", 7),
    "policy_mapping_fn": ("swap", "mapping", "swap"),
    "horizon": (50, "episode_horizon", 50),
    "max_num_worker_restarts": (7, "max_worker_restarts", 7),
    "evaluation_num_episodes": (7, "evaluation.duration", 7),
    "checkpoint_freq": (7, "checkpoints.every", 7),
    "checkpoint_frequency": (0, "checkpoints.every", 0),
    "keep_checkpoints_num": (7, "checkpoints.keep", 7),
    "num_to_keep": (7, "checkpoints.keep", 7),
    "sample_timeout_s": (7.5, "worker_timeout_s", 7.5),
    "max_num_env_runner_restarts": (7, "max_worker_restarts", 7),
    "evaluation_config": ({"explore": False}, "evaluation.deterministic", True),
}
ALWAYS: dict[str, tuple[list[Any], str]] = NAMED["always"]
ALGORITHMS = (stable_baselines3.PPO, stable_baselines3.A2C, stable_baselines3.SAC, marl_sb3.RecurrentDQN, marl_sb3.DQN)
TABLES = {info.class_name: info.kinds for info in INFOS.values()}
OWN_NAMES = {*ACCEPTED, *FLAT_NAMES, *(name for table in TABLES.values() for name in table)}


def sources(given: dict[str, Any], folder: Path) -> list[Any]:
    """The ways in which settings are given, each as a function that returns the configuration."""
    path = folder / "h.yml"
    path.write_text(f"e: {given}".replace("None", "null").replace(": inf", ": .inf"), encoding="utf-8")
    return [lambda: load_config("e", settings=given), lambda: load_config("e", hparams=path)]


def test_no_name_is_in_two_tables_or_means_something_else() -> None:
    settings = [name for names in NAMED["settings"] for name in names.split(", ")]
    names = [*settings, *ALWAYS, *(name for reason in NAMED["no counterpart"].values() for name in reason), *NESTED]
    assert len(names) == len({*names}) == len(NAMES) + len(NESTED) > 350
    assert not OWN_NAMES.intersection(names)
    assert {*RENAMED_VALUES, *FIELD_VALUES} == {*RENAMED}


# Names of older versions, as tuned examples and configurations of their runs have them.
OLDER = """actor_hiddens actor_hidden_activation async_remote_worker_envs callbacks critic_hiddens
critic_hidden_activation custom_eval_function custom_resources_per_worker eager evaluation_num_workers
final_prioritized_replay_beta horizon huber_threshold ignore_worker_failures l2_reg max_num_worker_restarts memory
memory_per_worker monitor multiagent no_done_at_end num_cpus_for_driver num_cpus_per_worker num_gpus_per_worker
num_workers object_store_memory prioritized_replay_beta_annealing_timesteps pure_exploration_steps
recreate_failed_workers sample_batch_size smooth_target_policy soft_horizon straggler_mitigation target_noise use_huber
mixer optim_alpha optim_eps use_pytorch validate_workers_after_construction"""


@pytest.mark.parametrize("name", OLDER.split())
def test_names_of_older_versions_are_known(name: str) -> None:
    assert is_of_rllib(name) or name in OWN_NAMES


@pytest.mark.parametrize(("name", "does"), [("output", "--record"), ("input", "imitate"), ("input_evaluation", "--on")])
def test_recording_and_recorded_data_are_named_where_rllib_has_them(name: str, does: str) -> None:
    with pytest.raises(ConfigError, match=does):
        load_config("e", settings={name: "DIR"})


@pytest.mark.parametrize("name", RENAMED_VALUES)
def test_a_renamed_hyperparameter_is_the_same_everywhere(name: str, tmp_path: Path) -> None:
    value, expected = RENAMED_VALUES[name]
    for load in sources({name: value}, tmp_path):
        assert load().hyperparameters == expected
    assert load_config("e", settings={f"p.{name}": value}).own_settings["p"] == expected
    has = [algorithm for algorithm in ALGORITHMS if next(iter(expected)) in TABLES[algorithm.__name__]]
    spec = PolicySpec(has[-1] if name == "initial_alpha" else has[0])
    (found,) = policy_specs({"p": spec}, ["p"], {name: value}, 1).values()
    assert found.hyperparameters == spec.with_defaults(expected).hyperparameters
    space = parse_space({name: {"choices": [value, value]}}, "here")
    assert load_config("e", settings=space.settings(next(space.grid()))).hyperparameters == expected


@pytest.mark.parametrize("name", FIELD_VALUES)
def test_a_renamed_setting_of_the_run_is_the_same_everywhere(name: str, tmp_path: Path) -> None:
    value, field, expected = FIELD_VALUES[name]
    for load in sources({name: value}, tmp_path):
        assert value_of(load(), field) == expected
    if field.startswith("processing."):
        own = field.partition(".")[2]
        assert load_config("e", settings={f"p.{name}": value}).own_settings["p"] == {own: expected}
        (spec,) = policy_specs("shared", ["shared"], {name: value}, 1).values()
        assert getattr(spec.processing, own) == expected


@pytest.mark.parametrize("name", ALWAYS)
def test_what_is_always_so_needs_no_setting_and_all_else_is_refused(name: str, tmp_path: Path) -> None:
    values, why = ALWAYS[name]
    for value in values:
        for load in sources({name: value}, tmp_path):
            assert load() == load_config("e")
        assert policy_specs("shared", ["shared"], {name: value}, 1)["shared"].hyperparameters == {}
    for load in (*sources({name: "other"}, tmp_path), lambda: policy_specs("shared", ["p"], {name: "other"}, 1)):
        with pytest.raises(ConfigError, match=rf"RLlib's {name} is 'other'; accepted: .*; ") as caught:
            load()
        assert why in str(caught.value)


def test_a_name_without_counterpart_is_refused_with_the_reason(tmp_path: Path) -> None:
    for reason, names in NAMED["no counterpart"].items():
        for name in names:
            with pytest.raises(ConfigError) as caught:
                list(unnested(name, 1))
            assert str(caught.value) == f"RLlib's {name} has no counterpart here; {reason}"
    for load in (*sources({"vtrace": True}, tmp_path), lambda: policy_specs("shared", ["p"], {"vtrace": True}, 1)):
        with pytest.raises(ConfigError, match="RLlib's vtrace has no counterpart here; updates are synchron"):
            load()
    with pytest.raises(ConfigError, match=r"p\.kl_target: RLlib's kl_target has no"):
        load_config("e", settings={"p.kl_target": 0.1})


EPSILON = [[0, 0.9], [250_000, 0.05]]
RATES = [[0, 1e-3], [1_000_000, 1e-4]]
MEANINGS = [
    ("ppo", {"train_batch_size_per_learner": 1001, "num_envs_per_env_runner": 10}, {"n_steps": 101}),
    ("a2c", {"train_batch_size": 40}, {"n_steps": 5}),
    ("dqn", {"train_batch_size": 40}, {"batch_size": 40}),
    ("trpo", {"rollout_fragment_length": 7}, {"n_steps": 7}),
    ("sac", {"rollout_fragment_length": 7}, {"train_freq": 7}),
    ("ppo", {"rollout_fragment_length": "auto"}, {}),
    ("qrdqn", {"target_network_update_freq": 500}, {"target_update_interval": 500}),
    ("sac", {"target_network_update_freq": 0}, {"target_update_interval": 1}),
    ("td3", {"n_step": 3}, {"n_steps": 3}),
    ("dqn", {"epsilon": 0.1}, {"exploration_schedule": 0.1}),
    ("dqn", {"epsilon": EPSILON}, {"exploration_schedule": EPSILON}),
    ("qrdqn", {"epsilon": [[0, 1.0], [5, 0.5], [9, 0.0]]}, {"exploration_schedule": [[0, 1.0], [5, 0.5], [9, 0.0]]}),
    (
        "dqn",
        {"exploration_config": {"type": "EpsilonGreedy", "initial_epsilon": 0.9, "epsilon_timesteps": 250_000}},
        {"exploration_schedule": EPSILON},
    ),
    (
        "dqn",
        {"exploration_config": {"type": "EpsilonGreedy", "warmup_timesteps": 500, "epsilon_timesteps": 1000}},
        {"exploration_schedule": [[500, 1.0], [1500, 0.05]]},
    ),
    ("ppo", {"exploration_config": {"type": "StochasticSampling"}}, {}),
    ("ppo", {"lr": RATES}, {"learning_rate": RATES}),
    ("sac", {"lr_schedule": RATES}, {"learning_rate": RATES}),
    ("ppo", {"lr_schedule": None, "entropy_coeff_schedule": None}, {}),
    ("a2c", {"entropy_coeff": RATES}, {"ent_coef": RATES}),
    ("maskable_ppo", {"entropy_coeff_schedule": RATES}, {"ent_coef": RATES}),
    ("a2c", {"epsilon": 0.1}, {"rms_prop_eps": 0.1}),
    ("qmix", {"double_q": False, "grad_clip": 9.0}, {"double_dqn": False, "max_grad_norm": 9.0}),
    (
        "recurrent_dqn",
        {"burn_in_len": 4, "max_seq_len": 9, "double_q": False},
        {"burn_in": 4, "sequence_length": 9, "double_dqn": False},
    ),
    ("recurrent_sac", {"burn_in_len": 4}, {"burn_in": 4}),
    ("dqn", {"double_q": False}, {}),
]


def test_double_q_learning_is_named_where_it_is() -> None:
    with pytest.raises(ConfigError, match=r"double_q is True; accepted: false; .* recurrent_dqn, vdn and qmix have"):
        load_config("e", settings={"algo": "dqn", "double_q": True})


@pytest.mark.parametrize(("algo", "given", "expected"), MEANINGS)
def test_names_that_depend_on_the_algorithm_mean_its_setting(
    algo: str, given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    for load in sources({"algo": algo, **given}, tmp_path):
        assert load().hyperparameters == expected
    of_one = {name: value for name, value in given.items() if name not in PARTS["envs of a runner"]}
    if of_one == given:
        config = load_config("e", settings={"p.algo": algo, **{f"p.{name}": value for name, value in given.items()}})
        assert config.own_settings["p"] == {"algo": algo, **expected}
        listed = load_config("e", hparams={"e": {"policies": {"p": {"algo": algo, **given}}}})
        assert listed.own_settings["p"] == {"algo": algo, **expected}


@pytest.mark.parametrize(
    ("given", "n_envs"),
    [
        ({"num_envs_per_env_runner": 5}, 5),
        ({"num_env_runners": 3}, 3),
        ({"num_env_runners": 0, "num_envs_per_worker": 4}, 4),
        ({"num_workers": 2, "num_envs_per_env_runner": 4}, 8),
    ],
)
def test_envs_of_all_runners_are_the_envs_of_the_run(given: dict[str, Any], n_envs: int, tmp_path: Path) -> None:
    for load in sources(given, tmp_path):
        assert (load().n_envs, load().hyperparameters) == (n_envs, {})


def test_the_entries_of_models_and_buffers_are_read_as_if_they_stood_alone(tmp_path: Path) -> None:
    model = {"fcnet_hiddens": [8, 8], "fcnet_activation": "relu", "use_lstm": False, "lstm_use_prev_action": True}
    for name in ("model", "model_config"):
        for load in sources({name: model}, tmp_path):
            config = load()
            assert config.hyperparameters == {"policy_kwargs": {"net_arch": [8, 8], "activation_fn": "relu"}}
            assert config.processing.previous_action
    buffer = {"type": "PrioritizedEpisodeReplayBuffer", "alpha": 0.5, "capacity": 99}
    given = {"algo": "dqn", "replay_buffer_config": buffer}
    ours = {"replay": "prioritized", "replay_alpha": 0.5, "buffer_size": 99}
    for load in sources(given, tmp_path):
        assert load().hyperparameters == ours
    of_policy = {"algo": "dqn", "p.replay_buffer_config": buffer}
    assert load_config("e", settings=of_policy).own_settings["p"] == ours
    (spec,) = policy_specs({"p": PolicySpec("dqn")}, ["p"], {"replay_buffer_config": buffer}, 1).values()
    assert spec.hyperparameters == ours
    plain = {"algo": "sac", "replay_buffer_config": {"type": "MultiAgentReplayBuffer", "alpha": 0, "capacity": 99}}
    assert load_config("e", settings=plain).hyperparameters == {"buffer_size": 99}


LAYERS = {"fcnet_hiddens": [8, 6], "fcnet_activation": "relu"}
OURS = {"net_arch": [8, 6], "activation_fn": "relu"}
GTRXL = {"num_layers": 1, "embed_dim": 64, "num_heads": 1, "head_dim": 32, "feedforward_dim": 32, "gate_bias": 2.0}
SMALL = {
    "attention_num_transformer_units": 2,
    "attention_dim": 16,
    "attention_num_heads": 4,
    "attention_head_dim": 8,
    "attention_position_wise_mlp_dim": 12,
    "attention_init_gru_gate_bias": 1.0,
    "attention_memory_inference": 9,
    "attention_memory_training": 9,
}
OF_SMALL = {"num_layers": 2, "embed_dim": 16, "num_heads": 4, "head_dim": 8, "feedforward_dim": 12, "gate_bias": 1.0}
# What RLlib's file says, and the features extractor, its arguments, the widths behind it, and the frames.
NETWORKS: dict[str, tuple[dict[str, Any], str | None, Any, Any, int]] = {
    "shared layers": ({"vf_share_layers": True, **LAYERS}, "mlp", OURS, [], 1),
    "shared layers by default": ({"vf_share_layers": True}, "mlp", {}, [], 1),
    "separate layers": ({"vf_share_layers": False, "fcnet_hiddens": [8]}, None, None, [8], 1),
    "attention by default": ({"use_attention": True}, "attention", GTRXL, None, 51),
    "attention": (
        {"use_attention": True, "attention_use_n_prev_actions": 0, **SMALL, **LAYERS},
        "attention",
        {**OF_SMALL, **OURS},
        [],
        10,
    ),
    "attention and shared layers": ({"use_attention": True, "vf_share_layers": True}, "attention", GTRXL, None, 51),
    "no attention": ({"use_attention": False, **SMALL, "fcnet_hiddens": [8]}, None, None, [8], 1),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_names_of_networks_mean_a_features_extractor_together(name: str, tmp_path: Path) -> None:
    given, extractor, arguments, widths, frames = NETWORKS[name]
    if extractor == "attention":
        arguments = {**arguments, "positions": "sinusoidal"}

    def check(policy_kwargs: Any) -> None:
        assert policy_kwargs.get("features_extractor_class") == extractor
        assert policy_kwargs.get("features_extractor_kwargs") == arguments
        assert policy_kwargs.get("net_arch") == widths

    for load in [*sources(given, tmp_path), *sources({"model": given}, tmp_path)]:
        config = load()
        check(config.hyperparameters.get("policy_kwargs", {}))
        assert config.processing.frame_stack == frames
    own = load_config("e", settings={f"p.{name}": value for name, value in given.items()}).own_settings["p"]
    check(own.get("policy_kwargs", {}))
    assert own.get("frame_stack", 1) == frames
    plain: Any = policy_specs("shared", ["shared"], given, 1)["shared"].to_plain()
    check(plain["hyperparameters"].get("policy_kwargs", {}))
    assert plain["processing"].get("frame_stack", 1) == frames


def test_shared_layers_and_frames_of_earlier_sources_are_kept_or_replaced() -> None:
    preset = {"e": {"net_arch": [7], "frame_stack": 3}}
    config = load_config("e", hparams=preset, settings={"vf_share_layers": True})
    assert config.hyperparameters["policy_kwargs"]["features_extractor_kwargs"] == {"net_arch": [7]}
    assert load_config("e", hparams=preset, settings={"use_attention": True}).processing.frame_stack == 51
    later = load_config("e", hparams={"e": {"use_attention": True}}, settings={"frame_stack": 3})
    assert later.processing.frame_stack == 3


def test_a_later_source_wins_by_whatever_name() -> None:
    def n_steps(first: dict[str, Any], second: dict[str, Any]) -> Any:
        config = load_config("e", hparams={"e": {"n_envs": 4, **first}}, settings=second)
        return config.hyperparameters["n_steps"]

    assert n_steps({"n_steps": 9}, {"train_batch_size": 40}) == 10
    assert n_steps({"train_batch_size": 40}, {"n_steps": 9}) == 9
    assert n_steps({"train_batch_size": 40}, {"rollout_fragment_length": 3}) == 3
    assert n_steps({"train_batch_size": 40}, {"num_env_runners": 2}) == 20
    assert load_config("e", hparams={"e": {"num_env_runners": 2}}, n_envs=3).n_envs == 3
    assert load_config("e", hparams={"e": {"num_env_runners": 2}}, settings={"num_envs_per_worker": 3}).n_envs == 6
    file = {"learning_rate": 0.1, "lambda": 0.5, "policy_kwargs": {"ortho_init": False}}
    found = load_config("e", hparams={"e": file}, settings={"lr": 0.2, "gae_lambda": 0.6, "fcnet_hiddens": [4]})
    network = {"ortho_init": False, "net_arch": [4]}
    assert found.hyperparameters == {"learning_rate": 0.2, "gae_lambda": 0.6, "policy_kwargs": network}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_batch_size": 9, "n_steps": 9}, "train_batch_size and n_steps are both given, but mean the same; acc"),
        (
            {"rollout_fragment_length": 9, "train_batch_size": 9},
            "train_batch_size and rollout_fragment_length are both given, but mean the same, n_steps; accepted: one of",
        ),
        (
            {"clip_rewards": True},
            "RLlib's clip_rewards is true; accepted: a number X, which clips to -X to X, or false",
        ),
        ({"num_env_runners": 2, "n_envs": 2}, "num_env_runners and n_envs are both given"),
        ({"num_env_runners": 2, "num_workers": 2}, "num_env_runners and num_workers are both given"),
        ({"lr": 1, "learning_rate": 1}, "lr and learning_rate are both given"),
        ({"train_batch_size": 0}, "train_batch_size is 0; accepted: an integer of at least 1"),
        ({"num_env_runners": -1}, "num_env_runners is -1; accepted: an integer of at least 0"),
        ({"n_step": 3}, "RLlib's n_step has no counterpart for ppo; it means n_steps of algorithms with a replay buf"),
        ({"algo": "td3", "target_network_update_freq": 0}, "has no counterpart for td3; it means target_update_interv"),
        ({"algo": "sac", "target_network_update_freq": 8}, "target_network_update_freq is 8; accepted with SAC: 0; "),
        (
            {"algo": "dqn", "epsilon": [[0, 1], [5]]},
            r"RLlib's epsilon is \[\[.*; accepted: a number from 0 to 1, or \[\[",
        ),
        ({"lr_schedule": 1e-3}, "RLlib's lr_schedule is 0.001; accepted: .* for lines between points, or null"),
        ({"lr": 1e-3, "lr_schedule": RATES}, "lr_schedule and learning_rate are both given"),
        (
            {"algo": "sac", "entropy_coeff_schedule": RATES},
            "no counterpart for sac; it means ent_coef of algorithms with",
        ),
        (
            {"algo": "dqn", "exploration_config": {"type": "SoftQ"}},
            r"exploration_config is .*; accepted: {type: .*PolicySpec\(exploration=marl_sb3.SoftQ",
        ),
        (
            {"exploration_config": {"type": "EpsilonGreedy"}},
            "exploration_config is {'type': 'EpsilonGreedy'}; accepted: {type: StochasticSampling}, or EpsilonGreedy ",
        ),
        (
            {"use_lstm": True},
            "use_lstm is True; accepted: false; for an LSTM, set algo=recurrent_ppo",
        ),
        (
            {"algo": "dqn", "vf_share_layers": True},
            "vf_share_layers has no counterpart for dqn, which has no value function of states",
        ),
        (
            {"policy": "CnnPolicy", "vf_share_layers": True},
            "vf_share_layers is true with CnnPolicy, whose features extractor is shared already; accepted: false",
        ),
        ({"vf_share_layers": 1}, "vf_share_layers is 1; accepted: true or false"),
        (
            {"vf_share_layers": True, "net_arch": {"pi": [8], "vf": [4]}},
            "vf_share_layers takes the layers of fcnet_hiddens, which are .*; accepted: one list",
        ),
        (
            {"use_attention": True, "policy_kwargs": {"features_extractor_class": "NatureCNN"}},
            "use_attention and policy_kwargs.features_extractor_class are both given",
        ),
        ({"use_attention": True, "frame_stack": 3}, "use_attention and processing.frame_stack are both given"),
        (
            {"use_attention": True, "attention_memory_inference": 9},
            "attention_memory_inference 9 and attention_memory_training 50 .*act and learn with the same frames",
        ),
        ({"attention_use_n_prev_actions": 2}, "prev_actions is 2; accepted: 0; frames have observations alone; proc"),
        ({"observation_filter": "x"}, "RLlib's observation_filter is 'x'; accepted: MeanStdFilter, "),
        ({"evaluation_config": {"lr": 1}}, "RLlib's evaluation_config is .*; accepted: {explore: true or false}"),
        ({"model": {"fcnet": [8]}}, "'fcnet' in model is unknown; did you mean fcnet_"),
        ({"model": {"qqq": [8]}}, "'qqq' in model is unknown; accepted: the names of RLlib"),
        (
            {"lr": {"grid_search": [1e-3, 1e-4]}},
            r"lr is .*, a search of Ray Tune; accepted: --grid lr=A,B of the command tune, or marl_sb3.tune\(grid=",
        ),
        ({"model": 3}, "model is 3; accepted: a mapping"),
        ({"vf_clip_param": 10}, "vf_clip_param is 10; accepted: null or inf; RLlib limits the squared error"),
        ({"replay_buffer_config": {"type": "ReservoirReplayBuffer"}}, "uniformly or by priority"),
    ],
)
def test_what_cannot_be_translated_is_refused_with_its_place(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    for load, place in zip(sources(given, tmp_path), ("--set ", f"{tmp_path / 'h.yml'}, e."), strict=True):
        with pytest.raises(ConfigError, match=message) as caught:
            load()
        assert str(caught.value).startswith(place)


def test_an_algorithm_without_a_setting_says_what_rllib_calls_it() -> None:
    with pytest.raises(ConfigError, match=r"hyperparameter 'max_grad_norm' \(RLlib's grad_clip\) of SAC"):
        PolicySpec(stable_baselines3.SAC, max_grad_norm=0.5)


def test_the_library_knows_the_number_of_envs_where_there_are_envs() -> None:
    env = make_vec_env("arena", n_envs=3)
    algorithm = MultiAgentAlgorithm(env, train_batch_size=10, minibatch_size=4, device="cpu")
    assert algorithm.policies["shared"].n_steps == algorithm.n_steps == 4
    with pytest.raises(ConfigError, match="num_env_runners belongs to the run, not to a policy; set n_envs"):
        MultiAgentAlgorithm(env, num_env_runners=2)
    epsilon = MultiAgentAlgorithm(env, algorithm="dqn", epsilon=EPSILON, device="cpu").policies["shared"]
    assert epsilon.exploration_schedule(Progress(0.1, 125_000)) == pytest.approx(0.475)
    with pytest.raises(ConfigError, match=r"'train_batch_size' is a name of RLlib; .* accepted here: SB3's"):
        PolicySpec(train_batch_size=10)


def test_arguments_of_a_users_own_algorithm_and_network_keep_their_names() -> None:
    class Own(stable_baselines3.PPO):
        """Its argument is called as a setting of RLlib."""

        def __init__(self, *args: Any, momentum: float = 0.5, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    assert PolicySpec(Own, momentum=0.9).hyperparameters == {"momentum": 0.9}
    assert load_config("e", settings={"policy_kwargs.momentum": 3}).hyperparameters == {
        "policy_kwargs": {"momentum": 3}
    }
    assert load_config("e", settings={"env.vtrace": 3}).env_kwargs == {"vtrace": 3}


def test_an_off_policy_algorithm_of_ones_own_has_the_arguments_that_it_hands_on() -> None:
    class Own(stable_baselines3.DQN):
        """Adds an argument."""

        def __init__(self, *args: Any, margin: float = 0.5, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    env = make_vec_env("arena", n_envs=1)
    spec = PolicySpec(Own, margin=0.9, buffer_size=100, learning_rate="lin_1e-3")
    learned = MultiAgentAlgorithm(env, {"shared": spec}, device="cpu").policies["shared"]
    assert (learned.buffer_size, learned.lr_schedule(0.5)) == (100, pytest.approx(5e-4))


@pytest.mark.parametrize("policy", [{}, {"policy": "MlpLstmPolicy"}])
def test_the_commands_name_of_the_algorithm_is_answered_with_that_of_python(policy: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="accepted here: algorithm='a2c'"):
        MultiAgentAlgorithm(make_vec_env("arena", n_envs=1), "shared", algo="a2c", **policy)


# --- Names and values of any dialect ----------------------------------------------------------------------------------


BOTH = "are both given, but are two names of {}; accepted: one of them"


@pytest.mark.parametrize(
    ("given", "names", "setting"),
    [
        ({"lr": 1e-3, "learning_rate": 1e-3}, "lr and learning_rate", "learning_rate"),
        ({"lambda": 0.9, "lambda_": 0.9}, "lambda and lambda_", "gae_lambda"),
        (
            {"policy_kwargs": {"net_arch": [8]}, "fcnet_hiddens": [8]},
            "policy_kwargs: {net_arch: ...} and fcnet_hiddens",
            "policy_kwargs.net_arch",
        ),
    ],
)
def test_two_names_of_one_setting_are_refused(given: dict[str, Any], names: str, setting: str) -> None:
    message = f"{names} {BOTH.format(setting)}"
    for source in (
        lambda: load_config("e", settings=given),
        lambda: load_config("e", hparams={"e": given}),
        lambda: load_config("e", hparams={"e": {"policies": {"p": given}}}),
        lambda: policy_specs("shared", ["shared"], given, n_envs=1),
    ):
        with pytest.raises(ConfigError) as caught:
            source()
        assert message in str(caught.value)
    with pytest.raises(ConfigError, match=r"p\.lr and p\.learning_rate are both given"):
        load_config("e", settings={"p.lr": 1, "p.learning_rate": 1})


def test_arguments_of_an_env_keep_their_names() -> None:
    assert load_config("e", settings={"env.lr": 1.0, "env.n_steps": 2.0}).env_kwargs == {"lr": 1.0, "n_steps": 2.0}
    assert canonical_name("env.lambda") == "env.lambda"


def test_numbers_with_an_exponent_are_integers_where_these_are_meant(tmp_path: Path) -> None:
    path = tmp_path / "h.yml"
    path.write_text("e: {n_timesteps: !!float 1e5, seed: 1e3, n_steps: 1e2, policies: {p: {n_epochs: 1e1}}}")
    config = load_config("e", hparams=path)
    found = (config.n_timesteps, config.seed, config.hyperparameters["n_steps"], config.own_settings["p"]["n_epochs"])
    assert found == (100_000, 1000, 100, 10)
    assert {type(value) for value in found} == {int}
    assert type(load_config("e", settings={"gamma": 1.0}).hyperparameters["gamma"]) is float
    with pytest.raises(ConfigError, match=r"n_timesteps is 1\.5; accepted"):
        load_config("e", n_timesteps=1.5)
