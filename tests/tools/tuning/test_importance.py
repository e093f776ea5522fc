"""Importances of parameters: what decides is above its chance level, what does not matter is below it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from marl_sb3.tools.tuning.figures import importances


def columns(n: int = 40, seed: int = 0) -> dict[str, list[float | str | None]]:
    """Parameters of trials, drawn without a look at what comes of them."""
    rng = np.random.default_rng(seed)
    return {
        "gamma": rng.uniform(0.8, 0.9, n).tolist(),
        "n_steps": rng.integers(1, 4, n).tolist(),
        "net_arch": rng.choice(["[64, 64]", "[32]"], n).tolist(),
        "activation": [None if missing else "tanh" for missing in rng.random(n) < 0.5],
    }


@pytest.mark.parametrize("name", ["gamma", "n_steps", "net_arch", "activation"])
@pytest.mark.parametrize("n", [30, 40, 300])
def test_a_parameter_that_decides_is_above_chance(name: str, n: int) -> None:
    found = columns(n)
    order = sorted(range(n), key=lambda trial: (found[name][trial] is None, found[name][trial] or 0))
    ordered = importances({other: [column[trial] for trial in order] for other, column in found.items()})
    importance, chance = ordered.pop(name)
    assert importance > chance
    assert all(importance > other for other, _ in ordered.values())


def test_parameters_that_do_not_matter_stay_below_chance() -> None:
    above = [own > chance for seed in range(60) for own, chance in importances(columns(seed=seed)).values()]
    assert len(above) == 240
    assert 2 <= sum(above) <= 24  # 1 in 20 is 12


def test_the_scale_of_numbers_does_not_matter() -> None:
    found = columns()
    scaled = {**found, "gamma": [10.0 ** (100 * float(value or 0)) for value in found["gamma"]]}
    assert importances(scaled) == importances(found)


def test_divergence_of_choices_worked_by_hand() -> None:
    # The best 2 of 8 chose a, as did 4 of all: (1 - 0.5)^2 / 0.5 + (0 - 0.5)^2 / 0.5 = 1; the other has no divergence.
    found = importances({"decides": list("aabbbbaa"), "does not": list("abababab")})
    assert {name: own for name, (own, _) in found.items()} == {"decides": 1.0, "does not": 0.0}


def test_importances_add_up_to_one_and_are_the_same_again() -> None:
    found = importances(columns())
    assert sum(own for own, _ in found.values()) == pytest.approx(1.0)
    assert importances(columns()) == found


def test_what_never_differs_has_no_importance() -> None:
    assert importances({"n_epochs": ["5"] * 30}) == {"n_epochs": (0.0, 0.0)}
    assert importances({}) == {}


def test_hundreds_of_trials_take_little_time() -> None:
    start = time.process_time()
    importances({f"{name}{copy}": column for copy in range(5) for name, column in columns(500).items()})
    assert time.process_time() - start < 2  # seconds
