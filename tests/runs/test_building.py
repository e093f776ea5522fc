"""The settings of each policy are complete, with the defaults of its own algorithm, and are built from once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch as th
import yaml

import marl_sb3.runs.building
from marl_sb3 import PolicySpec
from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.core.learners import spec
from marl_sb3.core.learners.spec import hyperparameter_defaults
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.opponents import OPPONENTS
from marl_sb3.files.plain_yaml import read_yaml
from marl_sb3.runs.building import build, check_device, policy_spec, resolved, with_policies, with_rollouts
from marl_sb3.runs.files import preset_path, to_yaml
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import load_config, require_trusted
from marl_sb3.runs.start import resolve


def env_of(agents: Iterable[str]) -> Any:
    return SimpleNamespace(agents=list(agents), groups=[])


SETTINGS = {"agent2.algo": "a2c", "agent2.gamma": 0.5, "agent1.n_epochs": 2, "learning_rate": "lin_1e-3"}


@pytest.fixture
def mixed() -> TrainConfig:
    return resolved(load_config("arena", settings=SETTINGS, policies="per_agent", n_envs=2, seed=1))


def test_each_policy_has_all_hyperparameters_of_its_own_algorithm(mixed: TrainConfig) -> None:
    one, other = mixed.of_policy("agent1"), mixed.of_policy("agent2")
    assert (one.algo, other.algo) == ("ppo", "a2c")
    for settings in (one, other):
        assert set(settings.hyperparameters) == set(
            hyperparameter_defaults(algorithm_info(settings.algo).algorithm_class)
        )
    assert (one.hyperparameters["n_epochs"], one.hyperparameters["learning_rate"]) == (2, "lin_1e-3")
    defaults = hyperparameter_defaults(algorithm_info("a2c").algorithm_class)
    assert other.hyperparameters == {**defaults, "gamma": 0.5}


def test_a_configuration_holds_the_policies_that_were_chosen(tmp_path: Path) -> None:
    config = resolved(load_config("e:f", settings={"agent2.policy_kwargs": {"net_arch": [8]}}, policies="per_agent"))
    network = {"net_arch": [8], "features_extractor_class": "image_cnn"}
    specs = {"agent1": PolicySpec("ppo", "MultiInputPolicy"), "agent2": PolicySpec(policy_kwargs=network)}
    specs["agent2"] = specs["agent2"].with_policy("CnnPolicy", {})
    found = with_policies(config, specs)
    assert (config.policy, found.policy) == ("auto", "MultiInputPolicy")
    assert found.policy_settings == {"agent2": {"policy": "CnnPolicy", "policy_kwargs": network}}
    (tmp_path / "config.yaml").write_text(to_yaml(found), encoding="utf-8")
    written = load_config("e:f", hparams=tmp_path / "config.yaml")
    assert [policy_spec(written, name).policy for name in specs] == ["MultiInputPolicy", "CnnPolicy"]
    of_vectors = with_policies(config, dict.fromkeys(specs, PolicySpec()))
    assert (of_vectors.policy, with_policies(found, specs)) == ("MlpPolicy", found)


def test_a_written_configuration_has_the_same_policies_when_defaults_have_changed(
    mixed: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(mixed), encoding="utf-8")
    monkeypatch.setattr(
        marl_sb3.runs.building, "hyperparameter_defaults", lambda algorithm: {"gamma": 0.1, "n_steps": 99}
    )
    again = resolved(load_config(None, hparams=path))
    for policy_id in ("agent1", "agent2"):
        assert again.of_policy(policy_id) == mixed.of_policy(policy_id)
        used = policy_spec(again, policy_id).hyperparameters
        assert {**used, "learning_rate": 0} == {**policy_spec(mixed, policy_id).hyperparameters, "learning_rate": 0}


NETWORK = "net_arch is ['x']; accepted: a list of layer widths"


@pytest.mark.parametrize(
    ("policy", "place", "message"),
    [
        ("{gama: 0.5}", "gama", "policy 'p': unknown hyperparameter 'gama' of PPO; did you mean gamma?"),
        ("{lr: -1}", "lr", "policy 'p': learning_rate is -1; accepted: a number from 0"),
        ("{policy_kwargs: {net_arch: [x]}}", "policy_kwargs", f"policy 'p': {NETWORK}"),
        ("{fcnet_hiddens: [x]}", "fcnet_hiddens", f"policy 'p': {NETWORK}"),
        ("{algo: dqq}", "algo", "unknown algorithm 'dqq'"),
        ("{agents: 3}", "agents", "p.agents is 3; accepted: a list of agent ids"),
        ("5", "", "policies.p is 5; accepted: a mapping of settings"),
    ],
)
@pytest.mark.parametrize("field", ["policies", "policy_settings"])
def test_a_wrong_setting_of_a_listed_policy_is_found_in_its_file(
    tmp_path: Path, field: str, policy: str, place: str, message: str
) -> None:
    path = tmp_path / "h.yml"
    listed = f"policies: {{p: {policy}}}" if field == "policies" else f"policies: {{p: {{}}}}, {field}: {{p: {policy}}}"
    path.write_text(f"arena: {{{listed}}}", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        build(resolved(load_config("arena", hparams=path, n_envs=1)), None)
    where = ".".join(filter(None, [str(path) + ", arena", field, "p", place]))
    assert str(caught.value).startswith(f"{where}: {message}")


def test_hyperparameters_are_checked_once_for_each_policy(mixed: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[type] = []
    check = spec.info_of_class
    monkeypatch.setattr(spec, "info_of_class", lambda algorithm: made.append(algorithm) or check(algorithm))
    build(mixed, None)[1].env.close()
    assert made == [algorithm_info("ppo").algorithm_class, algorithm_info("a2c").algorithm_class]


def test_defaults_that_a_spec_has_leave_it_as_it_is() -> None:
    spec = PolicySpec(gamma=0.5, learning_rate=0.1)
    assert spec.with_defaults({"gamma": 0.9}) is spec


def test_agents_beside_the_list_stay_with_a_policy_of_another_algorithm() -> None:
    settings = {"blue.agents": ["agent1"], "blue.algo": "a2c", "red.agents": ["agent2"]}
    config = resolved(load_config("arena", policies={"blue": {}, "red": {}}, settings=settings))
    assert config.agents == {"blue": ["agent1"], "red": ["agent2"]}


@pytest.mark.parametrize(
    ("n_devices", "device", "message"),
    [(0, "cuda", "device is 'cuda', but torch finds no CUDA"), (2, "cuda:2", "'cuda:2'; accepted: cuda:0 to cuda:1")],
)
def test_a_gpu_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, n_devices: int, device: str, message: str
) -> None:
    monkeypatch.setattr(th.cuda, "is_available", lambda: n_devices > 0)
    monkeypatch.setattr(th.cuda, "device_count", lambda: n_devices)
    with pytest.raises(ConfigError, match=message):
        check_device(device)
    if n_devices:
        check_device(f"cuda:{n_devices - 1}")


@pytest.mark.parametrize(
    "name", [path.stem for path in preset_path("ppo").parent.glob("*.yml") if "." not in path.stem]
)
def test_every_shipped_preset_fits_the_algorithm(name: str) -> None:
    for env in read_yaml(preset_path(name)):
        config = load_config(env, name)
        for policy in ["shared"] if isinstance(config.policies, str) else config.policies:
            assert policy_spec(config, policy).algorithm is algorithm_info(name).algorithm_class


@pytest.mark.parametrize(
    ("name", "observe", "team_reward"), [("coordinates", "coordinates", None), ("team", "window", "mean")]
)
def test_the_long_trainings_of_the_arena_observe_more(name: str, observe: str, team_reward: str | None) -> None:
    config = load_config(None, hparams=preset_path("ppo").with_name(f"arena.{name}.yml"))
    assert (config.env, config.env_kwargs, config.n_timesteps) == ("arena", {"observe": observe}, 1_000_000)
    spec = policy_spec(config, "shared")
    assert (spec.algorithm, spec.processing.team_reward) == (algorithm_info("ppo").algorithm_class, team_reward)


def test_a_league_has_a_preset() -> None:
    config = load_config("arena", hparams=preset_path("ppo").with_name("ppo.league.yml"))
    assert (config.league.snapshot_every, config.league.sampling) == (2, "uniform")


@pytest.mark.parametrize("env", ["classic/connect_four-v3", "classic/tictactoe-v3"])
def test_opponents_in_presets_are_players_of_the_package(env: str) -> None:
    config = load_config(env, "maskable_ppo", hparams=preset_path("ppo").with_name("maskable_ppo.league.yml"))
    assert set(config.league.opponents or ()) <= {"random", *OPPONENTS.names()}
    require_trusted(config.code(), config.sources)


@pytest.mark.parametrize("env", ["open_spiel/leduc_poker", "open_spiel/kuhn_poker"])
def test_the_bonus_for_entropy_falls_in_poker(env: str) -> None:
    config = load_config(env, hparams=preset_path("ppo").with_name("maskable_ppo.poker.yml"))
    shared = policy_spec(config, "shared")
    bonus = shared.hyperparameters["ent_coef"]
    assert shared.algorithm is algorithm_info("maskable_ppo").algorithm_class
    assert (bonus(1.0), bonus(0.0)) == pytest.approx((1.0, 0.05))  # by the share of the training that is left


# --- Rollouts that nobody has set -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_agents", "options", "expected"),
    [
        (1, {}, 256),
        (2, {}, 128),
        (3, {}, 64),
        (3, {"policies": "per_agent"}, 256),
        (100, {}, 16),
        (1, {"n_envs": 1}, 2048),  # as SB3
        (1, {"settings": {"batch_size": 100}}, 275),  # 2,200 agent steps: whole minibatches
        (1, {"settings": {"n_steps": 2048}}, 2048),
        (1, {"settings": {"train_batch_size": 4000}}, 500),  # a name of RLlib that sets it
        (1, {"hparams": {"any": {"gamma": 0.9}}}, 2048),  # a file means SB3's defaults
        (1, {"algo": "a2c"}, 5),
        (2, {"algo": "recurrent_ppo"}, 128),
        (2, {"algo": "trpo"}, 128),
    ],
)
def test_rollouts_in_an_env_without_a_preset_have_about_2048_agent_steps(
    n_agents: int, options: dict[str, Any], expected: int
) -> None:
    config = resolved(load_config("any", **options))
    env = env_of(f"a{index}" for index in range(n_agents))
    picked = with_rollouts(config, env)
    assert picked.hyperparameters["n_steps"] == expected
    assert picked.policy_settings == {}
    assert picked.picks_rollouts == (expected != config.hyperparameters["n_steps"])
    assert with_rollouts(load_config("any", hparams=yaml.safe_load(to_yaml(picked))), env) == picked


def test_each_policy_has_rollouts_that_fit_its_agents() -> None:
    policies = {"pack": {"agents": ["a", "b", "c"]}, "prey": {"agents": ["d"]}, "q": {"agents": ["e"], "algo": "dqn"}}
    picked = with_rollouts(resolved(load_config("any", policies=policies)), env_of("abcde"))
    assert [picked.of_policy(policy).hyperparameters["n_steps"] for policy in policies] == [64, 256, 1]
    assert load_config("any", policies=policies).picks_rollouts
    given = resolved(load_config("any", policies=policies, settings={"prey.n_steps": 512}))
    assert with_rollouts(given, env_of("abcde")).of_policy("prey").hyperparameters["n_steps"] == 512


def test_a_policy_that_plays_only_in_some_episodes_has_rollouts_of_one_agent() -> None:
    settings = {"mapping": {"a": "main", "b": ["main", "x"]}}
    picked = with_rollouts(
        resolved(load_config("any", policies={"main": {}, "x": {}}, settings=settings)), env_of("ab")
    )
    assert [picked.of_policy(policy).hyperparameters["n_steps"] for policy in ("main", "x")] == [128, 256]


def test_a_preset_sets_its_own_rollouts() -> None:
    assert not load_config("arena").picks_rollouts


# --- What messages name -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("evaluation.episodes", 4),  # the preset has `evaluation.deterministic`
        ("checkpoints.evry", 4),
        ("evaluation.function", "no_module:f"),
        ("league.opponents", ["no_module:C"]),
        ("custom_metrics", {"x": [1]}),
        ("env_kwargs", {"heigt": 3}),
        ("env.heigt", 3),
        ("data.replay_data", "nothing"),
        ("shred.gamma", 0.9),
        ("gama", 0.9),
        ("policy_kwargs.netarch", [3]),
        ("stop.x", 3),
        ("policies", {"a": {"agents": ["agent1"]}}),
    ],
)
def test_a_message_names_what_the_user_has_typed(key: str, value: Any, in_tmp: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^--set {key}: ") as raised:
        resolve(load_config("arena", settings={key: value}))
    assert str(raised.value).count("--set") == 1
