"""Modules are found under the names that the documentation gave them earlier."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

from marl_sb3.moved import present_name


@pytest.mark.parametrize(
    ("earlier", "name"),
    [
        ("marl_sb3.vec_env", "marl_sb3.core.vec_env"),
        ("marl_sb3.serving.client", "marl_sb3.tools.serving.client"),
        ("marl_sb3.analysis.reading", "marl_sb3.results.reading"),
        ("marl_sb3.analysis.health", "marl_sb3.results.health"),
        ("marl_sb3.tools.looking.health", "marl_sb3.results.health"),
        ("marl_sb3.envs.batched", "marl_sb3.core.envs.batched"),
        ("marl_sb3.data.dataset", "marl_sb3.extensions.data.dataset"),
    ],
)
def test_an_earlier_name_gives_the_same_module_and_a_warning(earlier: str, name: str) -> None:
    for each in [each for each in sys.modules if present_name(each) is not None]:
        del sys.modules[each]
    with warnings.catch_warnings(record=True, action="always", category=DeprecationWarning) as caught:
        module = importlib.import_module(earlier)
    assert str(caught[-1].message) == f"{earlier} is {name} now"  # the folder's comes first
    assert module is importlib.import_module(name)
    assert module.__name__ == name
    assert module.__spec__ is not None
    assert module.__spec__.name == name


def test_other_names_are_left_alone() -> None:
    assert present_name("marl_sb3.envs.arena") is None
    assert present_name("marl_sb3.callbacks") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("marl_sb3.nothing")


def test_what_has_moved_is_there() -> None:
    modules = ("acting.by_agent", "checkup.finding", "tuning.api", "training.algorithm", "metrics", "policies.mapping")
    for module in modules:
        assert importlib.util.find_spec(str(present_name(f"marl_sb3.{module}"))) is not None
