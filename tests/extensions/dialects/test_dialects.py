"""What every dialect of settings keeps; a new one joins by a line in `DIALECTS_TESTED`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

import marl_sb3
from marl_sb3 import ConfigError, PolicySpec
from marl_sb3.doors import DIALECTS, Dialect


class Toy(Dialect):
    """One other name: `hurry`, in thousandths."""

    def translated(self, spec: PolicySpec, given: Mapping[str, Any], n_envs: int) -> dict[str, Any]:
        if {"hurry", "learning_rate"} <= given.keys():
            raise ConfigError("hurry and learning_rate are both given; accepted: one of them", key="hurry")
        named = {name: value for name, value in given.items() if name != "hurry"}
        return {**named, "learning_rate": given["hurry"] / 1000} if "hurry" in given else named

    def explain(self, name: str) -> str | None:
        return "'hurry' is a toy's name; accepted here: learning_rate" if name == "hurry" else None

    def method(self, name: str, of: str = "algorithm") -> str | None:
        return None

    def names_of(self, setting: str) -> str | None:
        return "the toy's hurry" if setting == "learning_rate" else None


class Case(NamedTuple):
    """A dialect with what it is to do: `given` means `meant`, and not together with `twice`."""

    dialect: Dialect
    algo: str
    given: dict[str, Any]
    meant: dict[str, Any]
    twice: dict[str, Any]


DIALECTS_TESTED = {
    "rllib": Case(DIALECTS["other libraries"], "ppo", {"lr": 0.5}, {"learning_rate": 0.5}, {"learning_rate": 0.5}),
    "zoo": Case(
        DIALECTS["other libraries"],
        "sac",
        {"noise_type": "normal", "noise_std": 0.5},
        {"action_noise": {"normal": 0.5}},
        {"action_noise": {"normal": 0.5}},
    ),
    "toy": Case(Toy(), "ppo", {"hurry": 500}, {"learning_rate": 0.5}, {"learning_rate": 0.5}),
}


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    """The toy stands at the door, too."""
    DIALECTS.add("toy", DIALECTS_TESTED["toy"].dialect)
    yield
    DIALECTS.remove("toy")


EACH = pytest.mark.parametrize("tested", DIALECTS_TESTED.values(), ids=DIALECTS_TESTED)


@EACH
def test_its_names_are_translated_and_all_others_stay(tested: Case) -> None:
    spec, others = PolicySpec(tested.algo), {"gamma": 0.9, "frame_stack": 2, "of_nobody": [1]}
    given = {**tested.given, **others}
    before = dict(given)
    meant = tested.dialect.translated(spec, given, 1)
    assert meant == {**tested.meant, **others}
    assert tested.dialect.translated(spec, meant, 1) == meant
    assert given == before


@EACH
def test_a_setting_by_two_names_is_refused(tested: Case) -> None:
    spec = PolicySpec(tested.algo)
    for given in ({**tested.given, **tested.twice}, {**tested.twice, **tested.given}):
        with pytest.raises(ConfigError, match=r"are both given.*; accepted: one of them"):
            tested.dialect.translated(spec, given, 1)


@EACH
def test_its_names_are_explained_where_only_those_of_sb3_are_taken(tested: Case) -> None:
    name = next(iter(tested.given))
    assert repr(name) in str(tested.dialect.explain(name))
    assert tested.dialect.explain("of_nobody") is None
    assert tested.dialect.explain("learning_rate") is None
    assert tested.dialect.names_of("of_nobody") is None
    with pytest.raises(ConfigError) as caught:
        PolicySpec(tested.algo, **{name: 1})
    assert str(caught.value) == tested.dialect.explain(name)


def test_a_dialect_at_the_door_is_one_of_the_algorithm() -> None:
    env = marl_sb3.make_vec_env("arena", n_envs=1, seed=0)
    settings: dict[str, Any] = {"hurry": 0.5, "num_epochs": 1, "n_steps": 8, "batch_size": 16}
    algo = marl_sb3.MultiAgentAlgorithm(env, seed=0, device="cpu", **settings)
    assert (algo.policies["shared"].learning_rate, algo.policies["shared"].n_epochs) == (0.0005, 1)
    with pytest.raises(ConfigError, match="'hurry' is a toy's name; accepted here: learning_rate"):
        PolicySpec(hurry=0.5)
    with pytest.raises(ConfigError, match=r"'buffer_size' \(RLlib's replay_buffer_config\.capacity\) of PPO"):
        PolicySpec(buffer_size=9)
