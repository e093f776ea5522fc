"""Actions of several parts are recorded as Minari has them, read as vectors, and learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import minari
import numpy as np
from gymnasium import spaces
from toy_envs import SampledEnv

import marl_sb3
from marl_sb3.extensions.data.dataset import recorded_policies

PARTS = spaces.Dict(
    [
        ("mode", spaces.Discrete(3, start=1)),
        ("aim", spaces.Tuple([spaces.Box(-0.1, 0.1, (2,), np.float64), spaces.MultiBinary(2)])),
    ]
)


class Played(SampledEnv):
    """One agent; what it did is noted by the class."""

    played: list[Any] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1, 1, (3,)), PARTS, {"a": (4, "terminated")})

    def step(self, actions: Any) -> Any:
        self.played.append(actions["a"])
        return super().step(actions)


def test_they_are_recorded_read_by_minari_and_learned_from(in_tmp: Path) -> None:
    settings: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}}
    options: dict[str, Any] = {"n_envs": 1, "seed": 0, "timesteps": 16, "progress_bar": False, "settings": settings}
    Played.played.clear()
    marl_sb3.train(Played, run_dir="run", record="parts", **options)
    (data,) = recorded_policies("parts").values()
    assert data.action_space.of_env == PARTS  # type: ignore[attr-defined]
    played = iter(Played.played)
    for theirs, own in zip(minari.MinariDataset("parts/shared/data"), data.episodes, strict=True):
        for step, vector in enumerate(np.asarray(own.actions)):
            action = next(played)
            np.testing.assert_array_equal(vector, [*action["aim"][0].astype(np.float32), *action["aim"][1],
                                                   action["mode"] - 1])  # fmt: skip
            assert theirs.actions["mode"][step] == action["mode"]
            np.testing.assert_array_equal(theirs.actions["aim"][0][step], action["aim"][0])
        assert own.sampled_actions is not None  # before its numbers were brought within their bounds
        np.testing.assert_array_equal(np.clip(own.sampled_actions, -0.1, 0.1)[:, :2], np.asarray(own.actions)[:, :2])
    cloned = marl_sb3.imitate(
        "parts", Played, epochs=2, seed=1, progress_bar=False, run_dir="cloned", settings=settings
    )
    assert np.isfinite(cloned.results[-1]["learners"]["shared"]["imitation_loss"])
    beside = {**options, "settings": {**settings, "imitation_data": "parts"}}
    learned = marl_sb3.train(Played, run_dir="beside", **beside)
    assert np.isfinite(learned.results[-1]["learners"]["shared"]["imitation_loss"])
