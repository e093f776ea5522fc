"""The shipped presets and search spaces: one file of each for every algorithm, with settings that it accepts."""

from __future__ import annotations

import pytest

from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.extensions.dialects.names import canonical_hyperparameters
from marl_sb3.extensions.fast.builtin import ALGORITHMS
from marl_sb3.files.plain_yaml import read_yaml
from marl_sb3.runs.files import preset_path
from marl_sb3.runs.settings import load_config
from marl_sb3.tools.tuning.space import read_space


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_algorithm_accepts_its_presets_and_every_corner_of_its_search_spaces(algo: str) -> None:
    algorithm, presets, searched = (
        algorithm_info(algo).algorithm_class,
        *map(read_yaml, map(preset_path, (algo, f"{algo}.space"))),
    )
    assert presets
    for env in {**presets, **searched}:
        preset = load_config(env, algo).hyperparameters
        for corner in read_space(env, algo, None).corners():
            PolicySpec(algorithm, **{**preset, **canonical_hyperparameters(corner)})
