"""What was given is used or refused, never dropped: a new argument joins by a line, and fails here without one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from small_trainings import assert_same
from stable_baselines3.common.noise import ActionNoise
from toy_envs import RandomEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.config.settings import section_by_setting
from marl_sb3.core.learners.spec import hyperparameter_defaults
from marl_sb3.core.metrics.episodes import InfoMetric
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError, ConfigError, MarlSb3Error
from marl_sb3.extensions.exploration import SoftQ
from marl_sb3.extensions.fast.builtin import ALGORITHMS


def parameters(function: Callable[..., Any], *others: str) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", *others}


def arena(n_envs: int = 2) -> Any:
    return make_vec_env("arena", n_envs=n_envs, seed=1, max_timesteps=7)


TINY: dict[str, Any] = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}}

# --- The arguments of MultiAgentAlgorithm, and of its load -----------------------------------------------------------


@dataclass(frozen=True)
class Argument:
    """An argument: what is given to a training, what is given anew when it is loaded, and what says that it is used."""

    given: Any
    other: Any
    read: Callable[[MultiAgentAlgorithm], Any]
    refused: str = ""  # the message for `other` when the training is loaded; else it is used
    saved: bool = True  # else it is that of the constructor again
    needs: str = ""  # the message of a load without it, which a checkpoint cannot hold
    beside: Mapping[str, Any] | None = None  # what is given with it


def one_for_each(**more: Any) -> dict[str, PolicySpec]:
    return {policy_id: PolicySpec(gamma=0.9, **more) for policy_id in ("x", "y")}


def trained(algorithm: MultiAgentAlgorithm) -> list[str]:
    return [policy_id for policy_id, learner in algorithm.parts.learners.items() if learner.trained]


def crossed(agent: str) -> str:
    return "x" if agent == "agent2" else "y"


MAPPED: dict[str, Any] = {"policies": one_for_each(), "policy_mapping_fn": {"agent1": "x", "agent2": "y"}}
ARGUMENTS: dict[str, Argument] = {
    "policies": Argument(
        {"one": PolicySpec(gamma=0.9, policy_kwargs={"net_arch": [4]})},
        {"one": PolicySpec(gamma=0.8, policy_kwargs={"net_arch": [4]})},
        lambda each: [(policy_id, policy.gamma) for policy_id, policy in each.policies.items()],
        beside={"policy_mapping_fn": lambda agent: "one"},
    ),
    "policy_mapping_fn": Argument(
        {"agent1": "x", "agent2": "y"},
        crossed,
        lambda each: each.policy_of,
        refused="the policy of agent 'agent1': 'y' given, the checkpoint has 'x'",
        beside=MAPPED,
    ),
    "policies_to_train": Argument(
        ["y"], ["x"], trained, refused=r"policies_to_train: \['x'\] given, the checkpoint has \['y'\]", beside=MAPPED
    ),
    "n_steps": Argument(8, 16, lambda each: each.n_steps, refused="n_steps: 16 given, the checkpoint has 8"),
    "seed": Argument(5, 6, lambda each: each.seed, refused="seed: 6 given, the checkpoint has 5"),
    "device": Argument("cpu", "nowhere", lambda each: str(each.policies["shared"].device), refused="nowhere"),
    "stats_window_size": Argument(7, 9, lambda each: each.tracker.episodes.maxlen),
    "custom_metrics": Argument(
        {"mine": InfoMetric("x")},
        {"yours": InfoMetric("x")},
        lambda each: [*each.tracker.custom_metrics][2:],  # the arena announces two
        refused="custom/yours is missing",
    ),
    "update_path": Argument("torch", "fused", lambda each: each.policies["shared"].update_path),  # type: ignore[attr-defined]
    "n_threads": Argument(2, 3, lambda each: each.n_threads),
    "n_parallel_updates": Argument(64, 65, lambda each: each.n_parallel_updates, saved=False),
    "evaluation_deterministic": Argument(False, True, lambda each: each.evaluation_deterministic),
    "verbose": Argument(1, 2, lambda each: each.verbose, saved=False),
    "tensorboard_log": Argument("one", "two", lambda each: each._reporter._folder, saved=False),
}


def made(name: str, value: Any) -> MultiAgentAlgorithm:
    return MultiAgentAlgorithm(arena(), **{**TINY, **(ARGUMENTS[name].beside or {}), name: value})


def test_every_argument_has_a_line() -> None:
    assert parameters(MultiAgentAlgorithm.__init__, "env", "hyperparameters") == {*ARGUMENTS}
    assert parameters(MultiAgentAlgorithm.load) == {"path", "env", "policies", "checkpoint", "settings"}


def test_policies_may_be_given_in_another_order(in_tmp: Path) -> None:
    specs = one_for_each(policy_kwargs={"net_arch": [4]})
    whole = MultiAgentAlgorithm(arena(), **TINY | MAPPED | {"policies": specs})
    whole.save("saved")
    loaded = MultiAgentAlgorithm.load("saved", arena(), policies=dict(reversed(specs.items())))
    for policy_id, its in whole.policies.items():
        weights = loaded.policies[policy_id].policy.state_dict()
        assert all(each.equal(weights[name]) for name, each in its.policy.state_dict().items())


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_is_used_saved_and_used_or_refused_when_it_is_given_anew(name: str, in_tmp: Path) -> None:
    argument = ARGUMENTS[name]
    whole = made(name, argument.given)
    whole.save("saved")
    default = MultiAgentAlgorithm(arena(), **{key: value for key, value in TINY.items() if key != name})
    is_default = argument.read(whole) == argument.read(default) if name != "policies_to_train" else False
    assert is_default == (name == "device")  # whose other values need a GPU
    for again in ({}, {name: argument.given}):
        loaded = MultiAgentAlgorithm.load("saved", arena(), **again)
        as_it_was = argument.saved or again
        assert argument.read(loaded) == argument.read(whole if as_it_was else default)
    if argument.refused:
        with pytest.raises(CheckpointError, match=argument.refused):
            MultiAgentAlgorithm.load("saved", arena(), **{name: argument.other})
    else:
        loaded = MultiAgentAlgorithm.load("saved", arena(), **{name: argument.other})
        assert argument.read(loaded) == argument.read(made(name, argument.other)) != argument.read(whole)
        loaded.save("again")  # and is kept
        if argument.saved:
            assert argument.read(MultiAgentAlgorithm.load("again", arena())) == argument.read(loaded)


def test_a_loaded_training_goes_on_by_the_path_that_it_was_given(in_tmp: Path) -> None:
    whole = made("update_path", "torch")
    whole.learn(32)
    whole.save("saved")
    whole.learn(32, reset_num_timesteps=False)
    assert_same(MultiAgentAlgorithm.load("saved", arena()).learn(32, reset_num_timesteps=False), whole)


def test_a_rollout_without_its_own_length_keeps_it(in_tmp: Path) -> None:
    """The iteration has that of the longest one."""
    script = dict.fromkeys("abc", (3, "terminated"))
    lengths = {"a": {"n_steps": 4}, "b": {"n_steps": 8}, "c": {}}
    specs = {agent: PolicySpec(batch_size=4, **own) for agent, own in lengths.items()}
    algorithm = MultiAgentAlgorithm(make_vec_env(ScriptedEnv, script=script), specs)
    algorithm.save("saved")
    loaded = MultiAgentAlgorithm.load("saved", make_vec_env(ScriptedEnv, script=script))
    found = [[policy.n_steps for policy in each.policies.values()] for each in (algorithm, loaded)]
    assert found == [[4, 8, 4]] * 2
    assert algorithm.n_steps == loaded.n_steps


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policies": "per_agent"}, "policies is 'per_agent'; accepted: a PolicySpec by policy id"),
        ({"algorithm": "a2c"}, "algorithm='a2c' is given for policies that have their own"),
        ({"policy": "CnnPolicy"}, "accepted: policy=... of the PolicySpec of each policy"),
        ({"exploration": SoftQ()}, "exploration=.* is given for policies"),
        ({"nothing": 1}, "unknown hyperparameter 'nothing' of PPO"),
        ({"lr": 1e-3, "learning_rate": 1e-3}, "learning_rate"),
        ({"checkpoint": "7"}, "is one checkpoint, and not '7'; accepted: best, latest, or its own number"),
    ],
)
def test_what_a_load_cannot_use_is_refused(given: dict[str, Any], message: str, in_tmp: Path) -> None:
    MultiAgentAlgorithm(arena(), **TINY).save("saved")
    with pytest.raises(MarlSb3Error, match=message):
        MultiAgentAlgorithm.load("saved", arena(), **given)


def test_a_seed_is_for_the_episodes_of_another_number_of_envs(in_tmp: Path) -> None:
    made("seed", 5).save("saved")
    assert MultiAgentAlgorithm.load("saved", arena(3), seed=6).seed == 6


# --- PolicySpec, and hyperparameters that are given through it -------------------------------------------------------

# Name -> another value than the default, in which a training can go on.
CHANGED: dict[str, Any] = {
    **{"learning_rate": 0.01, "gamma": 0.5, "gae_lambda": 0.5, "ent_coef": 0.1, "vf_coef": 0.3, "max_grad_norm": 0.1},
    **{"n_epochs": 2, "clip_range": 0.1, "clip_range_vf": 0.3, "normalize_advantage": False, "target_kl": 0.1},
    **{"rms_prop_eps": 1e-3, "batch_size": 5, "sub_sampling_factor": 2, "n_critic_updates": 3, "cg_damping": 0.2},
    **{"cg_max_steps": 3, "line_search_shrinking_factor": 0.5, "line_search_max_iter": 3, "learning_starts": 3},
    **{"tau": 0.1, "train_freq": 6, "gradient_steps": 2, "target_update_interval": 5, "exploration_fraction": 0.5},
    **{"exploration_initial_eps": 0.9, "exploration_final_eps": 0.2, "exploration_schedule": "lin_0.5"},
    **{"double_dqn": False, "target_entropy": -2.0, "replay_alpha": 0.9, "replay_beta": 0.7},
    **{"policy_delay": 3, "target_policy_noise": 0.3, "target_noise_clip": 0.4, "top_quantiles_to_drop_per_net": 1},
    **{"burn_in": 3, "sequence_length": 4, "expectile": 0.8, "beta": 2.0, "buffer_size": 40},
    **{"clip_observations": 5.0, "clip_normalized_rewards": 5.0, "normalize_epsilon": 1e-3},
    **{"replay_buffer_kwargs": {"handle_timeout_termination": False}, "sde_sample_freq": 2, "use_sde_at_warmup": True},
    **{"central_critic_popart": False, "td_lambda": 0.5, "curiosity_scale": 2.0, "curiosity_learning_rate": 1e-3},
}
# The same for those that cannot change, because the state of the training would not fit.
FIXED: dict[str, Any] = {
    **{"policy_kwargs": {"net_arch": [5]}, "use_sde": True, "use_rms_prop": False, "optimize_memory_usage": True},
    **{"action_noise": {"normal": 0.2}, "clip_rewards": 0.5, "rescale_actions": True},
    **{"mixing_embed_dim": 3, "hypernet_embed": 4, "resize": [40, 40], "grayscale": True, "frame_stack": 2},
    **{"normalize_observations": True, "normalize_keys": ["x"], "previous_action": True, "previous_reward": True},
    **{"time_feature": 9, "agent_indicator": True, "normalize_rewards": True, "central_critic": True},
    **{"central_critic_net": [5], "curiosity": "rnd", "replay": "prioritized"},
}
# Those of recorded episodes, of envs with goals and of teams: their specs are saved, and changed; training is tested
# with them.
OF_SPECS: dict[str, Any] = {
    "team_reward": "mean",
    **{"imitation_data": "there", "imitation_coefficient": 0.5, "replay_data": "there", "replay_data_share": 0.3},
    **{"replay_data_updates": 2, "replay_buffer_class": "HerReplayBuffer"},
}
# What other settings a training needs for one of them.
BESIDE: dict[str, dict[str, Any]] = {
    **{name: {"normalize_observations": True} for name in ("clip_observations", "normalize_epsilon")},
    "clip_normalized_rewards": {"normalize_rewards": True},
    **{name: {"central_critic": True} for name in ("central_critic_net", "central_critic_popart")},
    **{name: {"curiosity": "rnd"} for name in ("curiosity_scale", "curiosity_learning_rate")},
    **{name: {"replay": "prioritized"} for name in ("replay_alpha", "replay_beta")},
    "td_lambda": {"n_steps": 2},
    "sde_sample_freq": {"use_sde": True},
    "use_sde_at_warmup": {"use_sde": True},
    "optimize_memory_usage": {"replay_buffer_kwargs": {"handle_timeout_termination": False}},
    "imitation_coefficient": {"imitation_data": "there"},
    "replay_data_share": {"replay_data": "there"},
    "replay_data_updates": {"replay_data": "there"},
}
SMALL: dict[str, Any] = {
    **{"n_steps": 8, "batch_size": 8, "n_epochs": 1, "buffer_size": 60, "learning_starts": 4, "train_freq": 4},
    **{"policy_kwargs": {"net_arch": [4]}, "n_critic_updates": 1},
}
OF_ALGORITHM = {name: info for info in reversed(ALGORITHMS.values()) for name in info.kinds}
CONTINUOUS = spaces.Box(-1, 1, (1,))


OBSERVED = dict.fromkeys(["resize", "grayscale"], spaces.Box(0, 255, (50, 50, 3), np.uint8))


def env_for(info: Any, name: str) -> Any:
    acts = CONTINUOUS if "action_noise" in info.kinds or "use_sde" in info.kinds else spaces.Discrete(3)
    observed = OBSERVED.get(name, spaces.Box(-1, 1, (3,)))
    return make_vec_env(RandomEnv, n_envs=2, seed=1, observation_space=observed, action_space=acts)


def spec_of(info: Any, **given: Any) -> PolicySpec:
    replays = "buffer_size" in info.kinds  # its n_steps are those of a return
    small = {name: value for name, value in SMALL.items() if name in info.kinds and not (replays and name == "n_steps")}
    return PolicySpec(info.algorithm_class, **{**small, **given})


def found_in(algorithm: MultiAgentAlgorithm, name: str) -> list[str]:
    """A hyperparameter as the spec has it, and as the algorithm does."""
    spec, policy = StateReader(algorithm.get_state()[0]).fields("specs").fields("p"), algorithm.policies["p"]
    made = PolicySpec.from_plain(spec)
    section = section_by_setting().get(name)
    values = getattr(getattr(made, section), name) if section else made.values[name], getattr(policy, name, None)
    is_schedule = [callable(value) and not isinstance(value, (type, ActionNoise)) for value in values]
    return [repr(value(0.5) if line else value) for value, line in zip(values, is_schedule, strict=True)]


@pytest.mark.parametrize("name", [*CHANGED, *FIXED])
def test_a_hyperparameter_is_used_saved_and_used_or_refused_when_it_is_given_anew(name: str, in_tmp: Path) -> None:
    info, value = OF_ALGORITHM.get(name, ALGORITHMS["ppo"]), {**CHANGED, **FIXED}[name]

    def build(**given: Any) -> MultiAgentAlgorithm:
        spec = spec_of(info, **BESIDE.get(name, {}), **given)
        return MultiAgentAlgorithm(env_for(info, name), {"p": spec}, seed=1, n_steps=8)

    first, second = build(), build(**{name: value})
    assert found_in(first, name) != found_in(second, name)
    for each, folder in ((first, "first"), (second, "second")):
        each.train_iteration()
        each.save(folder)
    assert found_in(MultiAgentAlgorithm.load("second", env_for(info, name)), name) == found_in(second, name)
    if name in FIXED:
        with pytest.raises(MarlSb3Error, match=f"first does not fit the env or {name}: "):
            MultiAgentAlgorithm.load("first", env_for(info, name), **{name: value})
    else:
        changed = MultiAgentAlgorithm.load("first", env_for(info, name), **{name: value})
        changed.train_iteration()
        assert found_in(changed, name) == found_in(second, name)


@pytest.mark.parametrize("name", OF_SPECS)
def test_a_setting_of_recorded_episodes_is_saved_and_changed_with_its_spec(name: str) -> None:
    spec = spec_of(OF_ALGORITHM.get(name, ALGORITHMS["dqn"]), **BESIDE.get(name, {}))
    changed = spec.with_defaults({name: OF_SPECS[name]}, override=True)
    plain = changed.to_plain()
    assert plain != spec.to_plain()
    assert PolicySpec.from_plain(StateReader(plain)).to_plain() == plain


def test_every_hyperparameter_has_a_line() -> None:
    known = {name for info in ALGORITHMS.values() for name in hyperparameter_defaults(info.algorithm_class)}
    known |= {*section_by_setting()} - {"n_steps"}  # an argument of `load` itself
    assert sorted({*CHANGED, *FIXED, *OF_SPECS, "n_steps"} ^ known) == []
    assert parameters(PolicySpec.__init__) == {"algorithm", "policy", "exploration", "hyperparameters"}


def test_algorithm_and_policy_are_saved_and_an_exploration_is_asked_for(in_tmp: Path) -> None:
    spec = PolicySpec("dqn", "MlpPolicy", exploration=SoftQ(), learning_starts=4)
    whole = MultiAgentAlgorithm(env_for(ALGORITHMS["dqn"], ""), {"p": spec})
    whole.save("saved")
    with pytest.raises(ConfigError, match="policy 'p' was made of classes or functions: pass `policies`"):
        MultiAgentAlgorithm.load("saved", env_for(ALGORITHMS["dqn"], ""))
    for name, policy in (("a2c", "MlpPolicy"), ("dqn", "MlpPolicy"), ("ppo", "CnnPolicy")):
        info = ALGORITHMS[name]
        env = partial(env_for, info, "resize" if policy == "CnnPolicy" else "")
        MultiAgentAlgorithm(env(), {"p": PolicySpec(name, policy)}).save(name)
        loaded = MultiAgentAlgorithm.load(name, env())
        assert [type(loaded.policies["p"]), type(loaded.policies["p"].policy)] == [
            info.algorithm_class,
            getattr(alias := info.algorithm_class.policy_aliases[policy], "plain", alias),
        ]


# --- make_vec_env ----------------------------------------------------------------------------------------------------

# Name -> a value, and what says that it is used; workers are started for theirs.
OF_ENVS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "n_envs": (3, lambda env: env.num_envs),
    "seed": (7, lambda env: env.episode_seeds([0])),
    "vectorizer": ("sync", lambda env: type(env).__name__),
    "episode_horizon": (2, lambda env: [env.step(stay(env)).truncated.any() for _ in range(3)]),
    "n_workers": (1, lambda env: type(env).__name__),
    "worker_timeout_s": (0.9, lambda env: env._supervisor._interrupted_s),
    "max_worker_restarts": (0, lambda env: env._supervisor._budget.most),
    "env_state": (True, lambda env: env.latest.env_state is None),
    "env_kwargs": (5, lambda env: env.groups[0].observation_space.nvec.tolist()),  # the height of the arena
}


def stay(env: Any) -> Any:
    return [np.zeros((env.num_envs, len(group.agents)), np.int64) for group in env.groups]


def vec_env(**given: Any) -> Any:
    env = make_vec_env(**{"env": "arena", "seed": 1, **given})
    env.reset()
    return env


@pytest.mark.parametrize("name", OF_ENVS)
def test_an_argument_of_make_vec_env_is_used(name: str) -> None:
    assert parameters(make_vec_env, "env") == {*OF_ENVS}
    value, read = OF_ENVS[name]
    beside = {"n_workers": 1} if "worker" in name and name != "n_workers" else {}
    envs = [vec_env(**beside, **given) for given in ({}, {"height": 5} if name == "env_kwargs" else {name: value})]
    try:
        without, with_it = (read(env) for env in envs)
        assert without != with_it
    finally:
        for env in envs:
            env.close()


# --- train -----------------------------------------------------------------------------------------------------------

# Name -> a value, and what says that it is used; all in one training.
OF_TRAIN: dict[str, tuple[Any, Callable[[Any], Any], Any]] = {
    "env": ("arena", lambda run: run.config.env, "arena"),
    "policies": ("per_agent", lambda run: [*run.bundle().policies], ["agent1", "agent2"]),
    "algo": ("a2c", lambda run: {type(each).__name__ for each in run.bundle().policies.values()}, {"A2C"}),
    "timesteps": ("10k", lambda run: run.config.n_timesteps, 10_000),
    "n_envs": (3, lambda run: run.config.n_envs, 3),
    "seed": (8, lambda run: run.config.seed, 8),
    "settings": ({"gamma": 0.7}, lambda run: run.bundle().policies["agent1"].gamma, 0.7),
    "hparams": ({"arena": {"vf_coef": 0.2}}, lambda run: run.bundle().policies["agent1"].vf_coef, 0.2),
    "stop": ({"iteration": 2}, lambda run: run.result["iteration"], 2),
    "n_workers": (1, lambda run: run.config.n_workers, 1),
    "vectorizer": ("sync", lambda run: run.config.vectorizer, "sync"),
    "device": ("cpu", lambda run: run.config.device, "cpu"),
    "run_dir": ("here", lambda run: run.folder.name, "here"),
    "progress_bar": (False, lambda run: None, None),
    "record": ("recorded", lambda run: Path("recorded").is_dir(), True),
    "record_limit": ("1MB", lambda run: None, None),
    "more_settings": (0.4, lambda run: run.bundle().policies["agent1"].ent_coef, 0.4),
}
# Those that have tests of their own.
ELSEWHERE = {"trust_file", "init_from", "trust_pickle", "resume", "callback", "ray", "runners", "track"}


def test_the_arguments_of_train_are_used(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parameters(marl_sb3.train) == {*OF_TRAIN, *ELSEWHERE}
    given = {name: value for name, (value, *_) in OF_TRAIN.items() if name != "more_settings"}
    run = marl_sb3.train(**given, ent_coef=0.4, n_steps=5)
    assert capsys.readouterr().out == ""
    assert {name: read(run) for name, (_, read, _) in OF_TRAIN.items()} == {
        name: expected for name, (*_, expected) in OF_TRAIN.items()
    }
