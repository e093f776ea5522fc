"""The settings of each policy are complete, with the defaults of its own algorithm, and are built from once."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_sb3 import PolicySpec
from marl_sb3.config import TrainConfig, load_config, to_yaml
from marl_sb3.learners import spec
from marl_sb3.learners.algorithms import ALGORITHMS
from marl_sb3.policies.hyperparameters import hyperparameter_defaults
from marl_sb3.runs.build import build, resolved

SETTINGS = {"agent2.algo": "a2c", "agent2.gamma": 0.5, "agent1.n_epochs": 2, "learning_rate": "lin_1e-3"}


@pytest.fixture
def mixed() -> TrainConfig:
    return resolved(load_config("arena", settings=SETTINGS, policies="per_agent", n_envs=2, seed=1))


def test_each_policy_has_all_hyperparameters_of_its_own_algorithm(mixed: TrainConfig) -> None:
    one, other = mixed.of_policy("agent1"), mixed.of_policy("agent2")
    assert (one.algo, other.algo) == ("ppo", "a2c")
    for settings in (one, other):
        assert set(settings.hyperparameters) == set(hyperparameter_defaults(ALGORITHMS[settings.algo]))
    assert (one.hyperparameters["n_epochs"], one.hyperparameters["learning_rate"]) == (2, "lin_1e-3")
    defaults = hyperparameter_defaults(ALGORITHMS["a2c"])
    assert other.hyperparameters == {**defaults, "gamma": 0.5}


def test_a_written_configuration_has_the_same_policies(mixed: TrainConfig, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(mixed), encoding="utf-8")
    again = resolved(load_config(None, hparams=path))
    for policy_id in ("agent1", "agent2"):
        assert again.of_policy(policy_id) == mixed.of_policy(policy_id)


def test_hyperparameters_are_checked_once_for_each_policy(mixed: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[type] = []
    check = spec.require_algorithm
    monkeypatch.setattr(spec, "require_algorithm", lambda algorithm: (made.append(algorithm), check(algorithm)))
    build(mixed, None).env.close()
    assert made == [ALGORITHMS["ppo"], ALGORITHMS["a2c"]]


def test_defaults_that_a_spec_has_leave_it_as_it_is() -> None:
    spec = PolicySpec(gamma=0.5, lr=0.1)
    assert spec.with_defaults({"gamma": 0.9}) is spec
