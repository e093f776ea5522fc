"""Presets, files, options and `--set`: which wins, what they become, and what is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marl_sb3.core.config.settings import policy_sections, section_by_setting
from marl_sb3.core.mapping import resolve_policies
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.dialects.names import FLAT_NAMES
from marl_sb3.files.plain_yaml import parse_value, require_few_values
from marl_sb3.runs.files import preset_path, to_yaml
from marl_sb3.runs.schema import ACCEPTED, SECTIONS, CheckpointSettings, Source, TrainConfig
from marl_sb3.runs.settings import load_config


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


# Each level merges the one before it twice, so that the last has 2^20 entries, all with the same key.
_MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n + 1}: &a{n + 1} {{<<: [*a{n}, *a{n}]}}\n" for n in range(20))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E5", 1e5),
        ("-2.5e+3", -2500.0),
        (".5e1", 5.0),
        ("0.1", 0.1),
        ("7", 7),
        ("true", True),
        ("null", None),
        ("lin_3e-4", "lin_3e-4"),
        ("[64, 64]", [64, 64]),
        ("{net_arch: [8]}", {"net_arch": [8]}),
        ("relu", "relu"),
        ("e5", "e5"),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("-.inf", -float("inf")),
        ("007", "007"),  # 7 in YAML 1.1
        ("010", "010"),  # 8 there
        ("12:30", "12:30"),  # 750 there
        ("1:30.5", "1:30.5"),
        ("2026-01-01", "2026-01-01"),
    ],
)
def test_text_becomes_the_value_that_it_looks_like(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system ['true']", "[1, 2", "!!python/name:os.system"])
def test_text_that_is_not_plain_data_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the value"):
        parse_value(text)


@pytest.mark.parametrize("text", ["{a:1}", "[{x: {b:2}}]"])
def test_a_mapping_without_a_space_after_the_colon_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"has no space after a colon; accepted: \{(a: 1|b: 2)\}"):
        parse_value(text)


def test_settings_of_every_section_reach_the_policies() -> None:
    one_of_each = {"frame_stack": 2, "central_critic": True, "imitation_coefficient": 0.5, "curiosity": "rnd"}
    assert [section_by_setting()[name] for name in one_of_each] == list(policy_sections())
    found = load_config("arena", settings={**one_of_each, "imitation_data": "x"}).of_policy("shared").hyperparameters
    assert {name: found[name] for name in one_of_each} == one_of_each


def test_the_arena_has_a_preset_and_an_unknown_env_the_defaults() -> None:
    assert preset_path("ppo").is_file()
    arena = load_config("arena")
    assert arena.n_envs == 20
    assert arena.hyperparameters["batch_size"] == 200
    other = load_config("some-env")
    assert other == TrainConfig("some-env")


@pytest.mark.parametrize("env", ["arena", "classic/rps-v2"])
def test_presets_of_envs_that_ask_for_mixed_strategies_sample_in_evaluations(env: str) -> None:
    assert load_config(env).evaluation.deterministic is False


def test_a_changed_configuration_does_not_change_the_preset() -> None:
    def network() -> list[int]:
        return load_config("CartPole-v1", "dqn").hyperparameters["policy_kwargs"]["net_arch"]  # type: ignore[no-any-return]

    network().append(8)
    assert network() == [128, 128]


def test_options_win_over_the_file_and_set_wins_over_options(tmp_path: Path) -> None:
    path = write(tmp_path / "h.yml", "e:\n  n_envs: 2\n  n_timesteps: 10\n  gamma: 0.5\n  policies: per_agent\n")
    config = load_config("e", hparams=path, n_envs=3, n_timesteps=20, settings={"n_timesteps": 30, "gamma": 0.9})
    assert (config.n_envs, config.n_timesteps) == (3, 30)
    assert config.policies == "per_agent"
    assert config.hyperparameters == {"gamma": 0.9}


def test_dotted_keys_reach_the_env_the_network_and_one_policy() -> None:
    config = load_config(
        "e",
        settings={
            "env.height": 6,
            "policy_kwargs.net_arch": [8],
            "pol1.learning_rate": 4e-4,
            "pol1.policy_kwargs.activation_fn": "relu",
        },
    )
    assert config.env_kwargs == {"height": 6}
    assert config.hyperparameters == {"policy_kwargs": {"net_arch": [8]}}
    assert config.own_settings["pol1"] == {"learning_rate": 4e-4, "policy_kwargs": {"activation_fn": "relu"}}
    assert config.own_settings.get("pol2", {}) == {}


def test_a_policy_whose_id_has_dots_is_reached() -> None:
    settings = {"x.a.gamma": 0.9, "x.a.policy_kwargs.activation_fn": "relu", "env.wind.speed": 3}
    config = load_config("e", settings=settings)
    assert config.own_settings["x.a"] == {"gamma": 0.9, "policy_kwargs": {"activation_fn": "relu"}}
    assert config.env_kwargs == {"wind.speed": 3}


def test_integers_that_stand_for_ids_are_their_digits(tmp_path: Path) -> None:
    text = "e:\n  policies: {1: {agents: [0]}, b: {agents: ['7', c]}}\n"
    text += "  custom_metrics: {2: {key: hits, agent: 0}}\n"
    settings = {"policies_to_train": [1], "policy_settings": {1: {"n_epochs": 2}}, "1.gamma": 0.5}
    config = load_config("e", hparams=write(tmp_path / "h.yml", text), settings=settings)
    assert config.policies == {"1": {"agents": ["0"]}, "b": {"agents": ["7", "c"]}}
    assert config.policies_to_train == ["1"]
    assert config.own_settings["1"] == {"n_epochs": 2, "gamma": 0.5}
    assert config.custom_metrics == {"2": {"key": "hits", "agent": "0"}}
    assert load_config(None, hparams=write(tmp_path / "config.yaml", to_yaml(config))) == config


def test_listed_policies_take_single_settings_on_top_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path / "h.yml", "e:\n  policies:\n    p: {agents: [a], gamma: 0.5, n_epochs: 2}\n")
    config = load_config("e", hparams=path, settings={"p.gamma": 0.7})
    assert config.own_settings["p"] == {"gamma": 0.7, "n_epochs": 2}


def test_teams_are_policies_with_their_agents(tmp_path: Path) -> None:
    """Whatever stood there before; an id may look like a number."""
    path = tmp_path / "h.yml"
    path.write_text("arena: {teams: {1: [agent1], red: [2]}}", encoding="utf-8")
    expected = {"1": {"agents": ["agent1"]}, "red": {"agents": ["2"]}}
    assert load_config("arena", hparams=path).policies == expected
    config = load_config("arena", policies="per_agent", settings={"teams": {"blue": ["agent2"]}, "blue.gamma": 0.5})
    assert config.policies == {"blue": {"agents": ["agent2"]}}
    assert config.of_policy("blue").hyperparameters["gamma"] == 0.5


def test_a_file_of_one_env_needs_no_env_argument(tmp_path: Path) -> None:
    path = write(tmp_path / "h.yml", "the-env:\n  n_envs: 2\n")
    assert load_config(None, hparams=path).env == "the-env"


def test_an_error_says_where_the_setting_came_from(tmp_path: Path) -> None:
    path = write(tmp_path / "h.yml", "e:\n  n_envs: none\n  gamma: 2\n")
    with pytest.raises(ConfigError, match=r"h\.yml, e\.n_envs: n_envs is 'none'; accepted: an integer"):
        load_config("e", hparams=path)
    config = load_config("e", hparams=path, n_envs=1)
    assert config.where("gamma") == f"{path}, e.gamma: "
    assert load_config("e", settings={"gamma": 2}).where("gamma") == "--set gamma: "
    assert config.where("n_epochs") == ""


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"n_envs": 0}, "--n-envs: n_envs is 0; accepted: an integer from 1 to 2147483647"),
        ({"n_envs": True}, "n_envs is True"),
        ({"n_timesteps": 0}, "--timesteps: n_timesteps is 0"),
        ({"seed": -1}, "--seed: seed is -1; accepted: an integer from 0 to 4294967295"),
        ({"seed": 2**32}, "seed is 4294967296"),
        ({"stop": {"x": float("nan")}}, "--stop: stop is 'x=nan'; accepted: METRIC=NUMBER"),
        ({"stop": {"x": "high"}}, "--stop: stop is 'x=high'; accepted: METRIC=NUMBER"),
        ({"policies": 3}, "--policies: policies is 3; accepted: shared, per_agent or a mapping"),
        ({"policies": {"p": 3}}, "policies.p is 3; accepted: a mapping of settings"),
        ({"n_threads": 0}, "n_threads is 0"),
        ({"n_threads": 1025}, "n_threads is 1025; accepted: an integer from 1 to 1024"),
        (
            {"settings": {"teams": "blue"}},
            "--set teams: teams is 'blue'; accepted: a mapping of teams to l",
        ),
        ({"settings": {"teams": {"blue": "agent1"}}}, "teams is {'blue': 'agent1'}; accepted: a mapping of teams to l"),
        ({"settings": {"teams": {}, "policies": "shared"}}, "teams and policies are both given, but mean the same"),
        *(({"settings": {key: 1}}, "accepted") for key in ("env", "", ".x", "p.", "p.q.", ".policy_kwargs.x", "env.")),
        *(
            ({"extensions": listed}, "extensions is ")
            for listed in (
                3,
                [3],
                [{"until": 5}],
                [{"until": 5, "n_timesteps": 0}],
                [{"until": 5, "n_timesteps": {"gamma": 0.9}}],
                [{"until": 5, "n_timesteps": 9, "settings": 3}],
                [{"until": True, "n_timesteps": 9}],
                [{"until": 9, "n_timesteps": 9}, {"until": 9, "n_timesteps": 20}],
            )
        ),
    ],
)
def test_a_wrong_value_and_a_malformed_key_are_refused_with_what_is_accepted(overrides: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("e", **overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "holds [1, 2]; accepted: a mapping of env ids to their settings"),
        ("", "h.yml is empty; accepted: "),
        ("a: {n_envs: 2}\nb: {n_envs: 2}\n", "no settings for env 'e'; it has a, b"),
        ("ee: {n_envs: 2}\n", "did you mean ee?"),
        ("e: 5", "e: is 5; accepted: a mapping of settings"),
        ("e: {n_envs: 2", "is not valid YAML: line 1, column 14: while parsing a flow mapping: expected ',' or '}'"),
        ("e:\n\tn_envs: 2", r"line 2, column 1: while scanning for the next token: found character '\t'"),
        ("e:\n  n_envs: 2\n  n_envs: 3\n", "line 3, column 3: 'n_envs' is set twice"),
        ("e: !!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("e: &e {x: *e}", "it holds more than 100000 values"),
        (_MERGES, "it holds more than 100000 values"),
        ("e: {x: \udce9}", "cannot read"),
    ],
)
def test_a_malformed_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "h.yml", text)
    with pytest.raises(ConfigError) as caught:
        load_config("e", hparams=path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_values_behind_aliases_are_counted_in_little_memory() -> None:
    data = [[0] * 9_000] * 9_000
    tracemalloc.start()
    with pytest.raises(yaml.YAMLError, match="it holds more than 100000 values"):
        require_few_values(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20  # all values one after the other would take 600 MiB


def test_a_missing_file_and_a_missing_env_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read a"):
        load_config("e", hparams="a\0b")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config("e", hparams=tmp_path / "none.yml")
    with pytest.raises(ConfigError, match="no env given"):
        load_config(None)
    with pytest.raises(ConfigError, match="say which env"):
        load_config(None, hparams=write(tmp_path / "h.yml", "a: {}\nb: {}\n"))


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3),
    max_leaves=5,
)


@example({}, {"0E0": "3e-4", "level": "1e5"}, 0)  # words that look like numbers
@example({}, {"\x85": "\u2028 \u2029\x85"}, 0)
@settings(max_examples=20, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(["gamma", "n_steps", "learning_rate"], plain),
            "policy_kwargs": st.none() | st.dictionaries(st.text(min_size=1, max_size=5), plain, max_size=3),
        },
    ),
    st.dictionaries(st.text(min_size=1, max_size=5), plain, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_a_written_configuration_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, hyperparameters: dict, env_kwargs: dict, seed: int
) -> None:
    config = TrainConfig("e", seed=seed, env_kwargs=env_kwargs, hyperparameters=hyperparameters, stop={"a/b": 1.5})
    path = write(tmp_path_factory.mktemp("c") / "config.yaml", to_yaml(config))
    assert load_config(None, hparams=path) == config


def test_letters_of_any_language_are_written_as_they_are(tmp_path: Path) -> None:
    config = TrainConfig("e", policies={"pölicy": {"agents": ["ägent"]}}, env_kwargs={"x": "\u2028\udce9\x1b"})
    path = write(tmp_path / "config.yaml", to_yaml(config))
    assert "pölicy" in path.read_text(encoding="utf-8")
    assert load_config(None, hparams=path) == config


def test_numbers_of_numpy_become_numbers_that_a_file_can_hold(tmp_path: Path) -> None:
    chosen = {"learning_rate": np.float32(0.5), "env.sizes": np.arange(2), "policy_kwargs": {"net_arch": [np.int64(8)]}}
    config = load_config("e", seed=np.int64(3), settings=chosen)
    assert (config.seed, config.env_kwargs) == (3, {"sizes": [0, 1]})
    assert load_config(None, hparams=write(tmp_path / "config.yaml", to_yaml(config))) == config


def test_what_a_file_cannot_hold_is_not_written() -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml holds numbers, strings, lists and mappings only"):
        to_yaml(TrainConfig("e", hyperparameters={"learning_rate": lambda progress: progress}))


SECTIONED = {"every": 5, "keep": 2, "metric": "a/b", "mode": "min"}


@pytest.mark.parametrize(
    "given",
    [
        {f"checkpoint_{name}": value for name, value in SECTIONED.items()},
        {f"checkpoints.{name}": value for name, value in SECTIONED.items()},
        {"checkpoints": SECTIONED},
        {"checkpoints": {"every": 5.0, "keep": 2}, "checkpoint_metric": "a/b", "checkpoints.mode": "min"},
    ],
)
def test_settings_of_a_section_have_flat_dotted_and_nested_names(given: dict, tmp_path: Path) -> None:
    config = load_config("e", settings=given)
    assert config.checkpoints == CheckpointSettings(**SECTIONED)
    assert config == load_config("e", hparams=write(tmp_path / "h.yml", f"e: {given}"))
    nested = yaml.safe_load(to_yaml(config))["e"]
    assert nested["checkpoints"] == SECTIONED
    assert not set(FLAT_NAMES) & set(nested)


def test_every_flat_name_is_that_of_a_setting() -> None:
    assert set(FLAT_NAMES.values()) == {name for name in ACCEPTED if name.partition(".")[0] in SECTIONS}


def test_a_later_source_changes_one_setting_of_a_section(tmp_path: Path) -> None:
    text = "e: {evaluation: {interval: 3, duration: 7}, hyperparameters: {lr: 0.1}, gamma: 0.5}"
    path = write(tmp_path / "h.yml", text)
    config = load_config("e", hparams=path, settings={"evaluation_interval": 4, "hyperparameters.gamma": 0.9})
    assert (config.evaluation.interval, config.evaluation.duration) == (4, 7)
    assert config.hyperparameters == {"learning_rate": 0.1, "gamma": 0.9}
    assert config.where("evaluation.duration") == f"{path}, e.evaluation.duration: "
    assert config.where("evaluation.interval") == "--set evaluation_interval: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policies: {no: {}}", "policy id False is of type bool; accepted: strings (in YAML: in quotes)"),
        ("policies: {1.5: {}}", "policy id 1.5 is of type float"),
        ("policies: {null: {}}", "policy id None is of type NoneType"),
        ("policies: {1: {}, '1': {}}", "1 and '1' are the same id; accepted: each id once"),
        ("policies: {p: {agents: null}}", "p.agents is None; accepted: a list of agent ids, such as [agent1, agent2]"),
        ("policies: {p: {agents: 3}}", "p.agents is 3; accepted: a list of agent ids"),
        ("policies: {p: {agents: agent1}}", "p.agents is 'agent1'; accepted: a list of agent ids"),
        ("policies: {p: {agents: [no]}}", "agent id False is of type bool"),
        ("policy_settings: {p: {agents: [a]}}", "policies is 'shared'; agents can be listed only where policies are"),
        ("policies_to_train: 1", "policies_to_train is 1; accepted: a list of policy ids, or null"),
        ("policies_to_train: [yes]", "policy id True is of type bool"),
        ("custom_metrics: {no: {key: hits}}", "custom metric id False is of type bool"),
        ("checkpoints: 5", "e.checkpoints: checkpoints is 5; accepted: a mapping"),
        ("checkpoints: {evry: 5}", "'evry' in checkpoints is unknown; accepted: every, keep, metric, mode"),
        (
            "checkpoints: {every: -1}",
            "e.checkpoints.every: checkpoints.every is -1; accepted: an integer of at",
        ),
        ("checkpoint_every: -1", "e.checkpoint_every: checkpoints.every is -1; accepted: an integer of at least 0"),
        ("evaluation: {seed: x}", "evaluation.seed is 'x'; accepted: an integer from 0 to 4294967295"),
        ("evaluation: {interval_unit: [x]}", "evaluation.interval_unit is ['x']; accepted: iterations or timesteps"),
        ("checkpoints: {every: 1}, checkpoint_every: 2", "checkpoints.every and checkpoint_every are both given"),
        ("checkpoints: {every: 1}, checkpoints.every: 2", "checkpoints.every is given twice"),
        ("hyperparameters: {n_envs: 2}", "'n_envs' in hyperparameters is no hyperparameter"),
        ("hyperparameters: {env.height: 2}", "'env.height' in hyperparameters is no hyperparameter"),
        ("hyperparameters: {gamma: 1}, gamma: 1", "hyperparameters.gamma and gamma are both given"),
        ("hyperparameters: [gamma]", "hyperparameters is ['gamma']; accepted: a mapping"),
    ],
)
def test_a_wrong_section_or_id_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "h.yml", f"e: {{{text}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_config("e", hparams=path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}, e.")


def test_what_is_no_mapping_gets_no_entries(tmp_path: Path) -> None:
    path = write(tmp_path / "h.yml", "e: {env_kwargs: 5}\n")
    with pytest.raises(ConfigError, match="env_kwargs: env_kwargs is 5; accepted: a mapping of names to values"):
        load_config("e", hparams=path, settings={"env.height": 6})


def test_a_changed_configuration_knows_where_the_change_comes_from() -> None:
    config = load_config("e", settings={"gamma": 0.5}).changed({"checkpoints.every": 0, "seed": 3}, "the search")
    assert (config.checkpoints.every, config.seed, config.hyperparameters) == (0, 3, {"gamma": 0.5})
    assert [config.where(name) for name in ("checkpoints.every", "gamma")] == ["the search: ", "--set gamma: "]
    with pytest.raises(ConfigError, match=r"checkpoints\.every is -1"):
        config.changed({"checkpoints.every": -1})


def test_what_a_file_holds_is_shortened_and_escaped_in_messages() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_policies("x" * 1000, ["a"])
    assert len(str(caught.value)) < 400
    assert str(Source("h.yml, arena.\x1b[31m")) == r"h.yml, arena.\x1b[31m"
